"""`simulate`: from records to a run directory, in the order in which a federation does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pate_fed.lab.mechanisms  # noqa: F401 - a simulation may use each of them
from coordinator.runs import results
from coordinator.runs.interim import teach
from coordinator.runs.later_steps import another_student, attempt
from coordinator.runs.preflight import require_chargeable, untrained_teachers
from coordinator.simulation import notes
from coordinator.simulation.engines import require_engine
from coordinator.simulation.evaluation import PrivateEvaluation
from coordinator.simulation.federation import SimulatedFederation
from coordinator.simulation.hospitals import yardsticks
from coordinator.simulation.labeling import Labeled, label
from coordinator.simulation.near_quota import near_notes
from coordinator.simulation.outcome import Progress, Simulation, Stages, Tell, kept, say_nothing
from coordinator.simulation.rounds import EarlierRounds, free_name
from pate_fed.data import DatasetKind
from pate_fed.planning import RunSettings
from pate_fed.report import refuse_existing
from pate_fed.report.scores import scores_of
from pate_fed.report.tables import Truth, metrics_table
from pate_fed.report.warning_words import end_warnings, slack_warnings
from pate_fed.students import Student
from protocols.forms import FORMS

_RUN = "simulation"


def simulate(
    settings: RunSettings,
    out: Path,
    *,
    progress: Progress,
    tell: Tell = say_nothing,
    after: Path | None = None,
) -> Simulation:
    """Run a whole federation on this machine and write its run directory.

    Args:
        settings: The settings of the run.
        out: Run directory to make; must not exist.
        progress: Called with the progress.
        tell: Called with each line on the data, before anything is trained.
        after: Directory of an earlier round that this one stands on; its budgets are then those of
            all rounds.

    Raises:
        PateFedError, ProtocolError, CoordinatorError: nothing was released, and nothing is
            left behind.
    """
    settings.check(FORMS)
    require_engine(settings.engine)
    refuse_existing(out)
    kind: DatasetKind = "table" if settings.data.is_table else "image"
    require_chargeable(settings, kind=kind, pool=None, classes=0, place=out)  # before all work
    rounds = EarlierRounds() if after is None else EarlierRounds.read(after)
    rounds.require_same(settings)
    name = _RUN if after is None else free_name(out, rounds.rounds)
    stages = Stages(progress)
    federation = SimulatedFederation.made(settings, rounds, out=out, tell=tell, stages=stages)
    labels = label(federation, name, out, stages)
    if not labels.run.store.releases() and labels.stopped_by is not None:
        raise labels.stopped_by
    return _written(federation, labels, out, tell, stages)


def _written(
    federation: SimulatedFederation, labels: Labeled, out: Path, tell: Tell, stages: Stages
) -> Simulation:
    """Train the student, measure, and write the run directory.

    Labels are there by now, so no step fails the run: see `coordinator.runs.later_steps`.
    """
    settings, dataset, before = federation.settings, federation.dataset, federation.before
    run, labeling = labels.run, labels.labeling
    again, missing = another_student(str(out)), list[str]()
    warnings = [
        *notes.public_patients(settings, dataset),
        *run.warnings,
        *results.warnings_of(labeling),
        *federation.notes,
        *notes.large_delta(settings, dataset, federation.rounds.number),
        *federation.rounds.raised(before),
        *notes.known_prevalence(settings, federation.facts),
        *near_notes(labels.left_out),
        *(f"{said}." for said in run.skipped_words),
    ]
    with stages.timed("student"):
        student = teach(
            run.lessons,
            name=settings.student,
            pool=federation.pool,
            kind=federation.kind,
            classes=federation.classes,
            facts=federation.facts,
            rng=federation.chance.of("student"),
            warnings=warnings,
            again=again,
            counts=run.counts,
            device=settings.device,
        )
    with stages.timed("yardsticks"):
        measured = attempt(missing, "comparison models", lambda: _measured(federation, stages))
    names = tuple(one.name for one in federation.hospitals)
    privacy = results.privacy_of(
        labeling,
        settings=settings,
        store=run.store,
        simulated=True,
        earlier=before.used_runs(names, labeling.members),
        budgets=dict(zip(names, before.budgets, strict=False)),
    )
    own = {query: label for query, label, _ in results.answers_of(run.store)}
    evaluation = attempt(
        missing,
        "the private evaluation",
        lambda: _evaluated(federation, student, privacy, own, tell=tell, stages=stages),
    )
    if evaluation is None:
        privacy["evaluation"] = None
    scores = attempt(missing, "the student's scores", lambda: _scores(federation, student))
    # Batches that were asked and are in no release.
    void = len(labeling.asked) - len(own)
    warnings += [
        *(f"{note}." for note in missing),
        *slack_warnings(privacy),
        *end_warnings(
            labeling.terms,
            is_over=labeling.is_over,
            ledger=privacy["ledger"],
            queries=len(run.request.queries) - len(run.earlier),
            void=void,
            voids=run.voids,
        ),
    ]
    metrics = metrics_table(
        data={**federation.data, "outlook": federation.outlook},
        parties=len(federation.hospitals),
        teachers=settings.all_teachers,
        truth=Truth(dataset.pool.labels, dataset.class_names),
        pool=len(federation.pool),
        queries=run.request.queries,
        outcomes=run.outcomes,
        void=void,
        reinforced=len(run.reinforced),
        student=student,
        scores=scores,
        yardsticks=measured or {},
        sent=run.traffic.sent,
        received=run.traffic.received,
        exchanges=labels.exchanges,
        batches=len(run.store.ledger().states),
        seconds=stages.seconds,
        warnings=warnings,
        earlier_runs=Counter(run.drawn_in.values()),
        evaluation=evaluation,
    )
    run_dir, fault = kept(
        out,
        partial(
            results.write_results,
            run=labeling,
            begun_on=run.attempt.begun_on(),
            settings=before.with_whole_budgets(settings),
            source=federation.rounds.table(),
            partition=federation.manifest,
            # All of a simulation is made on one machine: its seal proves nothing to others.
            split={
                "seed": federation.chance.root.hex(),
                "coordinator": run.identity.private_bytes.hex(),
            },
            drawn_in=run.drawn_in,
            reinforced=run.reinforced,
            pool_digest=federation.pool.digest,
            metrics=metrics,
            privacy=privacy,
            outcomes=run.outcomes,
            class_names=dataset.class_names,
            student=student,
            preprocessing=dataset.preprocessing,
            row_names=dataset.pool.row_names,
            packets=run.traffic.packets,
            again=again,
            notes=[],
        ),
    )
    return Simulation(run_dir, metrics, privacy, labels.stopped_by or fault)


def _measured(
    federation: SimulatedFederation, stages: Stages
) -> dict[str, dict[str, float | None]]:
    return yardsticks(
        federation.dataset,
        federation.partition,
        federation.hospitals,
        make_teachers=partial(untrained_teachers, federation.settings, federation.kind),
        facts=federation.facts,
        generator=federation.chance.of("yardsticks"),
        tick=stages.ticker("measuring yardsticks", federation.partition.parties),
    )


def _evaluated(
    federation: SimulatedFederation,
    student: Student | None,
    privacy: dict[str, Any],
    labels: Mapping[int, int],
    *,
    tell: Tell,
    stages: Stages,
) -> dict[str, Any] | None:
    """Score the student on held-out patients, where asked to; its price joins the others."""
    if student is None or federation.held_out is None:
        return None
    with stages.timed("evaluation"):
        settings = federation.settings
        evaluation = PrivateEvaluation.planned(
            settings, federation.dataset, federation.held_out, student
        )
        tell(evaluation.price_line())
        privacy["evaluation"] = evaluation.privacy(privacy)
        scores = evaluation.run(student, form=settings.form, chance=federation.chance)
        return {**scores, "no_answer": evaluation.no_answer(student, labels)}


def _scores(federation: SimulatedFederation, student: Student | None) -> dict[str, Any] | None:
    if student is None:
        return None
    test = federation.dataset.test
    return scores_of(
        student.chances(test.inputs),
        test.labels,
        federation.dataset.class_names,
        hospitals=test.hospitals,
    )

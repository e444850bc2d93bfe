"""`simulate`: from records to a run directory, in the order in which a federation does it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pate_fed.lab.mechanisms  # noqa: F401 - a simulation may use each of them
from coordinator.runs import results
from coordinator.runs.interim_student import teach
from coordinator.runs.later_steps import attempt
from coordinator.runs.open_run import OpenRun
from coordinator.runs.preflight import require_chargeable, untrained_teachers
from coordinator.simulation import simulation_notes
from coordinator.simulation.earlier_runs import EarlierRuns, free_name
from coordinator.simulation.engines import require_engine
from coordinator.simulation.labeling import label
from coordinator.simulation.outcome import Progress, Simulation, Stages, Tell, kept
from coordinator.simulation.private_evaluation import PrivateEvaluation
from coordinator.simulation.simulated_federation import SimulatedFederation
from coordinator.simulation.simulated_hospitals import yardsticks
from pate_fed.data import DatasetKind
from pate_fed.errors import InvalidSettingError
from pate_fed.evaluation_task import groups_of
from pate_fed.planning import RunSettings
from pate_fed.record import Privacy
from pate_fed.record.manifest import SplitKeys
from pate_fed.record.metrics import EvaluationScores, Quality, StudentScores
from pate_fed.record.privacy import EvaluationPrice
from pate_fed.report.ended_run import Truth
from pate_fed.report.scores import scores_of
from pate_fed.run_folder import refuse_existing
from pate_fed.students import Student
from protocols.forms import FORMS

_RUN = "simulation"


def simulate(
    settings: RunSettings,
    out: Path,
    *,
    progress: Progress,
    tell: Tell = lambda _: None,
    after: Path | None = None,
) -> Simulation:
    """Run a whole federation on this machine and write its run directory, a new one.

    `tell` gets each line on the data, before anything is trained. After an earlier run, budgets
    are those of the whole series.

    Raises:
        PateFedError, ProtocolError, CoordinatorError: nothing was released, and nothing is
            left behind.
    """
    settings.check(FORMS)
    if after is not None and settings.caps.labels is not None:
        raise InvalidSettingError("--after is for one label", f"{settings.caps.labels} labels")
    if FORMS[settings.form].adds_noise:
        _require_plain_ways(settings, after)
    require_engine(settings.engine)
    refuse_existing(out)
    kind: DatasetKind = "table" if settings.data.is_table else "image"
    require_chargeable(settings, kind=kind, pool=None, classes=0, place=out)  # before all work
    earlier = EarlierRuns() if after is None else EarlierRuns.read(after)
    earlier.require_same(settings)
    name = _RUN if after is None else free_name(out, earlier.runs)
    stages = Stages(progress)
    federation = SimulatedFederation.made(settings, earlier, out=out, tell=tell, stages=stages)
    run = label(federation, name, out, stages)
    if not run.store.releases() and run.stopped_by is not None:
        raise run.stopped_by
    return _written(federation, run, tell, stages)


def _require_plain_ways(settings: RunSettings, after: Path | None) -> None:
    """Refuse what needs messages of rounds, or their transcript."""
    kind = f"--sum {settings.form} must be"
    if after is not None:
        raise InvalidSettingError(f"{kind} without --after: it has no transcript", "an earlier run")
    if settings.engine != "local":
        raise InvalidSettingError(f"{kind} with --engine local", settings.engine)


def _written(
    federation: SimulatedFederation, run: OpenRun, tell: Tell, stages: Stages
) -> Simulation:
    """Train the student, measure, and write the run directory.

    Labels are there by now, so no step fails the run: see `coordinator.runs.later_steps`.
    """
    settings, dataset, before = federation.settings, federation.dataset, federation.before
    missing = list[str]()
    run.warnings += [
        *federation.notes,
        *simulation_notes.public_patients(settings, dataset),
        *simulation_notes.large_delta(settings, dataset, federation.earlier.number),
        *federation.earlier.raised(before),
        *simulation_notes.known_prevalence(settings, federation.facts),
    ]
    with stages.timed("student"):
        student = teach(
            run, kind=dataset.kind, facts=federation.facts, rng=federation.chance.of("student")
        )
    names = tuple(one.name for one in federation.hospitals)
    privacy = results.privacy_of(
        run,
        earlier=before.used_runs(names, run.labeling.members),
        budgets=dict(zip(names, before.budgets, strict=False)),
    )
    with stages.timed("yardsticks"):
        measured = attempt(
            missing, "comparison models", lambda: _measured(federation, privacy, stages)
        )
    evaluation = attempt(
        missing,
        "the private evaluation",
        lambda: _evaluated(federation, run, student, privacy, tell=tell, stages=stages),
    )
    if evaluation is not None:
        privacy = privacy.changed(evaluation=evaluation[1])
    scores = attempt(missing, "the student's scores", lambda: _scores(federation, student))
    run.warnings += [f"{note}." for note in missing]
    metrics = results.metrics_of(
        run,
        student=student,
        seconds=stages.seconds,
        data=federation.data,
        truth=Truth(dataset.pool.labels, dataset.class_names),
        scores=scores,
        yardsticks=measured or {},
        evaluation=evaluation and evaluation[0],
    )
    write = partial(
        results.write_results,
        run=run,
        metrics=metrics,
        privacy=privacy,
        student=student,
        preprocessing=dataset.preprocessing,
        settings=replace(settings, party_epsilons=before.budgets) if before.budgets else settings,
        others={"earlier": federation.earlier.runs},
        partition=federation.manifest,
        # All of a simulation is made on one machine: its seal proves nothing to others.
        split=SplitKeys(
            seed=federation.chance.root.hex(), coordinator=run.identity.private_bytes.hex()
        ),
        row_names=dataset.pool.row_names,
        notes=[],
    )
    run_dir, fault = kept(run.results, write)
    return Simulation(run_dir, metrics, privacy, run.stopped_by or fault)


def _measured(
    federation: SimulatedFederation, privacy: Privacy, stages: Stages
) -> dict[str, Quality]:
    settings, public = federation.settings, privacy.views.public
    assert settings.unit is not None
    return yardsticks(
        federation.dataset,
        federation.partition,
        make_model=partial(untrained_teachers, settings, federation.dataset.kind),
        facts=federation.facts,
        price=(settings.unit, public.epsilon, privacy.delta) if public.epsilon else None,
        generator=federation.chance.of("yardsticks"),
        tick=stages.ticker("measuring yardsticks", federation.partition.parties),
    )


def _evaluated(
    federation: SimulatedFederation,
    run: OpenRun,
    student: Student | None,
    privacy: Privacy,
    *,
    tell: Tell,
    stages: Stages,
) -> tuple[EvaluationScores, EvaluationPrice] | None:
    """Score the student on held-out patients, where asked to; its price joins the others."""
    if student is None or federation.held_out is None:
        return None
    with stages.timed("evaluation"):
        settings = federation.settings
        evaluation = PrivateEvaluation.planned(
            settings, federation.dataset, federation.held_out, student
        )
        tell(evaluation.price_line())
        scores = evaluation.run(student, form=settings.form, chance=federation.chance)
        labels = {query: label for query, label, _ in run.released}
        scores = scores.changed(no_answer=evaluation.no_answer(student, labels))
        return scores, evaluation.privacy(privacy)


def _scores(federation: SimulatedFederation, student: Student | None) -> StudentScores | None:
    if student is None:
        return None
    dataset, columns = federation.dataset, federation.settings.evaluate_by
    test = dataset.test
    chances = student.chances(test.inputs)
    return scores_of(
        chances,
        test.labels,
        dataset.class_names,
        groups=groups_of(test, dataset.preprocessing, columns),
        labels_named=dataset.labels,
        in_set=student.sets_from(chances),
    )

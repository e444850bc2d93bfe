"""`simulate`: from records to a run directory, in the order in which a federation does it."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import pate_fed.lab.mechanisms  # noqa: F401 - a simulation may use each of them
from coordinator.database import Database, RunStore
from coordinator.errors import CoordinatorError, RunEndedError, VoidBatchError
from coordinator.runs import results
from coordinator.runs.interim import labels_to_learn, predictions_for, reinforced_labels, teach
from coordinator.runs.labeling import LabelingJob, LabelingRun, Member
from coordinator.runs.later_steps import another_student, attempt
from coordinator.runs.preflight import require_chargeable, untrained_teachers
from coordinator.runs.queue import RunQueue
from coordinator.runs.transport import Traffic, Transport
from coordinator.simulation import notes
from coordinator.simulation.another_student import pool_shares
from coordinator.simulation.engines import require_engine, run_engine
from coordinator.simulation.evaluation import PrivateEvaluation, keep_back
from coordinator.simulation.hospitals import (
    KEYSTREAM,
    Hospital,
    HospitalsBlueprint,
    life_of,
    simulation_policy,
    train_hospitals,
    yardsticks,
)
from coordinator.simulation.near_quota import near_notes, within_quota
from coordinator.simulation.outcome import Progress, Simulation, Tell, kept, say_nothing
from coordinator.simulation.rounds import EarlierRounds, free_name
from pate_fed.charging import RunLedger
from pate_fed.data import Dataset, DatasetKind, load_dataset
from pate_fed.federation import RunTerms
from pate_fed.lab.per_instance import PerInstanceMeter
from pate_fed.partition import (
    Partition,
    build_manifest,
    limited_rows,
    partition_records,
    verify_manifest,
)
from pate_fed.planning import DEFAULTS, RunSettings, terms_of
from pate_fed.planning.fine_noise import require_fine_noise
from pate_fed.planning.notes import outlook_of, unit_notes
from pate_fed.queries import QueryPool
from pate_fed.record import Metrics, Privacy
from pate_fed.record.manifest import PartitionProof, SplitKeys
from pate_fed.record.metrics import EvaluationScores, Quality, StudentScores
from pate_fed.record.privacy import EvaluationPrice
from pate_fed.report.data_words import data_lines, data_table
from pate_fed.report.scores import scores_of
from pate_fed.report.tables import Answers, Truth, metrics_table
from pate_fed.report.warning_words import end_warnings, slack_warnings
from pate_fed.run_folder import refuse_existing
from pate_fed.students import (
    LabelFacts,
    Student,
    cluster_cores,
    interim_chances,
    least_confident,
    select_queries,
)
from protocols.errors import ProtocolError
from protocols.forms import FORMS
from protocols.identity import SigningIdentity
from protocols.sums import SUMS

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
    rehearsal = _Rehearsal(settings, progress, tell, rounds, name)
    rehearsal.prepare(out)
    rehearsal.label()
    return rehearsal.write(out)


@dataclass(slots=True)
class _Labels:
    """The outcome of the labeling."""

    run: LabelingRun
    traffic: Traffic
    exchanges: dict[str, int] = field(default_factory=dict)
    void: int = 0
    stopped_by: Exception | None = None
    warnings: list[str] = field(default_factory=list)


class _Rehearsal:
    """One simulation, stage by stage."""

    def __init__(
        self,
        settings: RunSettings,
        progress: Progress,
        tell: Tell,
        rounds: EarlierRounds,
        name: str,
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._tell = tell
        self._rounds = rounds
        self._name = name
        self._chance = rounds.chance(settings.seed)
        self._begun_on = datetime.now(UTC).date()
        self._seconds: dict[str, float] = {}
        self._workers = os.cpu_count() or 1
        self._counts: dict[int, NDArray[np.float64]] = {}

    # Stages -----------------------------------------------------------------------------------

    def prepare(self, out: Path) -> None:
        """Load, check, partition, choose queries, train teachers."""
        settings = self._settings
        with self._timed("data"):
            self._dataset: Dataset = self._load()
            if settings.evaluate == "private":
                rng = self._chance.of("held-out patients")
                self._dataset, self._held_out = keep_back(settings, self._dataset, rng=rng)
            self._data = data_table(self._dataset)
            for line in (*data_lines(self._data), *self._dataset.notes):
                self._tell(line)
            pool, names = self._dataset.pool, self._dataset.class_names
            self._pool = QueryPool(pool.features, images=pool.images)
            self._before = self._rounds.joined(settings, self._pool, names)
            asked = self._before.settings
            self._settings = settings = self._before.resolved(self._dataset)
            require_chargeable(
                settings,
                kind=self._dataset.kind,
                pool=self._pool.views,
                classes=len(names),
                place=out,
            )
            self._unit_notes = unit_notes(asked, settings)
            self._outlook = outlook_of(settings, self._dataset)
            if self._outlook:
                self._tell(self._outlook)
            self._partition = self._deal()
            self._manifest = self._prove_disjoint()
            self._rounds.require_same_numbers(self._manifest)
        with self._timed("queries"):
            # Hospitals answer no question twice, and equal inputs are one question.
            earlier = self._before.asked
            distinct = sorted(set(self._pool.distinct) - set(earlier))
            queries, method = settings.caps.max_asks or 0, settings.select or ""
            if settings.votes_by_cluster:
                method = "medoids"
            if settings.asks_by_student:
                queries, method = min(queries, settings.caps.batch_size or queries), "stratified"
            chosen = select_queries(
                self._pool.inputs[list(distinct)],
                queries,
                method=method,
                rng=self._chance.of("queries"),
            )
            asked_for = tuple(distinct[place] for place in chosen)
            self._queries = within_quota(self._pool, asked_for, earlier=earlier)
            self._left_out = len(asked_for) - len(self._queries)
            self._cores = (
                cluster_cores(self._pool.inputs, self._queries) if settings.votes_by_cluster else {}
            )
        with self._timed("teachers"):
            parties = self._partition.parties
            self._hospitals: list[Hospital] = train_hospitals(
                self._dataset,
                self._partition,
                make_teachers=partial(untrained_teachers, settings, self._dataset.kind),
                weights=settings.weights or (),
                generators=[self._chance.of(f"teachers {party}") for party in range(parties)],
                workers=self._workers,
                tick=self._ticker("training teachers", parties),
            )

    def label(self) -> None:
        """Set the federation up and ask all batches."""
        settings = self._settings
        self._identity = identity = SigningIdentity.generate()
        terms = terms_of(
            settings,
            name=self._name,
            classes=len(self._dataset.class_names),
            pool_digest=self._pool.digest,
            sums=FORMS,
        )
        self._names = tuple(hospital.name for hospital in self._hospitals)
        self._drafted = terms
        require_fine_noise(terms)
        policy = simulation_policy(
            terms=terms,
            form=settings.form,
            suite=settings.suite,
            queries=settings.caps.max_asks or 0,
        )
        blueprint = HospitalsBlueprint(
            tuple(self._hospitals),
            coordinator=identity.public,
            pool=self._pool,
            policy=policy,
            budgets=tuple(life_of(terms, seat) for seat in range(len(terms.weights))),
            noise_seeds=self._chance.noise_seeds(hospital.name for hospital in self._hospitals),
            cores=self._cores,
        )
        self._labels: _Labels | None = None
        with self._timed("labeling"):
            run_engine(
                settings.engine,
                lambda transport: self._ask_all(transport, identity),
                blueprint,
                workers=self._workers,
            )

    def write(self, out: Path) -> Simulation:
        """Train the student, measure, and write the run directory.

        Labels are there by now, so no step fails the run: see `coordinator.runs.later_steps`.
        """
        labels = self._known_labels()
        labels.warnings[:0] = notes.public_patients(self._settings, self._dataset)
        labels.warnings.extend([*self._dataset.notes, *self._unit_notes])
        labels.warnings.extend(
            notes.large_delta(self._settings, self._dataset, self._rounds.number)
        )
        labels.warnings.extend(self._rounds.raised(self._before))
        labels.warnings.extend(notes.known_prevalence(self._settings, self._facts))
        labels.warnings.extend(near_notes(self._left_out))
        outcomes = [*self._before.outcomes, *results.answers_of(self._store)]
        if not self._store.releases() and labels.stopped_by is not None:
            raise labels.stopped_by
        missing: list[str] = []
        with self._timed("student"):
            student = self._teach(labels, out)
        with self._timed("yardsticks"):
            measured = attempt(missing, "comparison models", self._measure)
        privacy = results.privacy_of(
            labels.run,
            settings=self._settings,
            store=self._store,
            simulated=True,
            earlier=self._before.used_runs(self._names, labels.run.members),
            budgets=dict(zip(self._names, self._before.budgets, strict=False)),
        )
        evaluation = attempt(
            missing, "the private evaluation", lambda: self._evaluate(student, privacy)
        )
        if evaluation is not None:
            privacy = privacy.changed(evaluation=evaluation[1])
        scores = attempt(missing, "the student's scores", lambda: self._scores(student))
        labels.warnings.extend(f"{note}." for note in missing)
        labels.warnings.extend(slack_warnings(privacy))
        labels.warnings.extend(
            end_warnings(
                labels.run.terms,
                is_over=labels.run.is_over,
                ledger=privacy.ledger,
                queries=len(self._queries),
                void=labels.void,
                voids=labels.run.voids,
            )
        )
        drawn_in = self._before.drawn_in
        metrics = metrics_table(
            data=self._data.changed(outlook=self._outlook),
            parties=len(self._hospitals),
            teachers=self._settings.all_teachers,
            truth=Truth(self._dataset.pool.labels, self._dataset.class_names),
            pool=len(self._pool),
            queries=(*drawn_in, *self._queries),
            outcomes=outcomes,
            void=labels.void,
            reinforced=len(self._reinforced),
            student=student,
            scores=scores,
            yardsticks=measured or {},
            sent=labels.traffic.sent,
            received=labels.traffic.received,
            exchanges=labels.exchanges,
            batches=len(self._store.ledger().states),
            seconds=self._seconds,
            warnings=labels.warnings,
            earlier_runs=Counter(drawn_in.values()),
            evaluation=evaluation and evaluation[0],
        )
        write = partial(
            self._write_files, student=student, outcomes=outcomes, metrics=metrics, privacy=privacy
        )
        run_dir, fault = kept(out, write)
        return Simulation(run_dir, metrics, privacy, labels.stopped_by or fault)

    def _measure(self) -> dict[str, Quality]:
        return yardsticks(
            self._dataset,
            self._partition,
            self._hospitals,
            make_teachers=partial(untrained_teachers, self._settings, self._dataset.kind),
            facts=self._facts,
            generator=self._chance.of("yardsticks"),
            tick=self._ticker("measuring yardsticks", self._partition.parties),
        )

    def _evaluate(
        self, student: Student | None, privacy: Privacy
    ) -> tuple[EvaluationScores, EvaluationPrice] | None:
        """Score the student on held-out patients, where asked to; its price joins the others."""
        if student is None or self._settings.evaluate != "private":
            return None
        with self._timed("evaluation"):
            evaluation = PrivateEvaluation.planned(
                self._settings, self._dataset, self._held_out, student
            )
            self._tell(evaluation.price_line())
            labels = {query: label for query, label, _ in results.answers_of(self._store)}
            scores = evaluation.run(student, form=self._settings.form, chance=self._chance)
            scores = scores.changed(no_answer=evaluation.no_answer(student, labels))
            return scores, evaluation.privacy(privacy)

    # Helpers ----------------------------------------------------------------------------------

    @property
    def _known(self) -> Answers:
        """The outcomes to learn from, of all rounds so far."""
        return [*self._before.lessons, *results.answers_of(self._store)]

    @property
    def _reinforced(self) -> dict[int, int]:
        """Labels that sure students kept, of all rounds so far."""
        return {**self._before.reinforced, **reinforced_labels(self._store)}

    def _load(self) -> Dataset:
        """Load the records, and leave out patients beyond the number that was asked for."""
        settings = self._settings
        dataset = load_dataset(settings.data, rng=self._chance.of("data"))
        if settings.patients is None:
            return dataset
        has_hospitals = dataset.private.hospitals is not None
        rows = limited_rows(
            dataset.private,
            patients=settings.patients,
            parties=settings.parties or DEFAULTS[settings.data.name].parties,
            scheme=settings.partition or ("column" if has_hospitals else "iid"),
            rng=self._chance.of("patients"),
        )
        return replace(dataset, private=dataset.private.select(rows))

    def _deal(self) -> Partition:
        settings = self._settings
        assert settings.partition is not None
        assert settings.teachers is not None
        return partition_records(
            self._dataset.private,
            parties=settings.parties,
            teachers=settings.teachers,
            scheme=settings.partition,
            rng=self._chance.of("partition"),
        )

    def _prove_disjoint(self) -> PartitionProof:
        """Build the manifest under a key that is stored nowhere, and check it."""
        key = secrets.token_bytes(32)
        manifest = build_manifest(self._dataset.private, self._partition, key=key)
        verify_manifest(manifest, self._dataset.private, self._partition, key=key)
        return manifest

    def _ask_all(self, transport: Transport, identity: SigningIdentity) -> None:
        run = LabelingRun(
            LabelingJob(
                transport=transport,
                identity=identity,
                form=SUMS[self._settings.form](keystream=KEYSTREAM),
                members=[
                    Member(hospital.name, hospital.identity.public, hospital.weights)
                    for hospital in self._hospitals
                ],
                pool=self._pool,
                terms=self._terms,
                simulated=True,
                suite=self._settings.suite,
                store=self._open_store,
                random_bytes=secrets.token_bytes,
                noise_bytes=self._chance.noise(),
                clock=time.time,
                meter=PerInstanceMeter.of,
            )
        )
        self._labels = labels = _Labels(run, transport.traffic)
        run.set_up()
        labels.exchanges["setup"] = transport.traffic.exchanges
        total = self._settings.caps.max_asks or 0
        size = self._settings.caps.batch_size or total
        tick = self._ticker("labeling", -(-total // size))
        begun = 0
        for start in range(0, total, size):
            if start and self._settings.asks_by_student:
                self._queries += self._least_sure(min(size, total - start))
            # No more than the caps allow may be asked at once.
            batch = self._queries[begun : begun + size][: run.left.asks]
            begun += len(batch)
            if run.is_over or not batch:
                break
            try:
                predictions = predictions_for(
                    batch,
                    outcomes=self._known,
                    store=self._store,
                    pool=self._pool,
                )
                release = run.ask(batch, predictions=predictions)
            except RunEndedError as error:
                labels.stopped_by = error
                break
            except VoidBatchError as error:
                labels.stopped_by = error
                labels.void += len(batch)
                labels.warnings.append(f"A batch is void: {error}")
            else:
                if release.counts is not None:
                    self._counts |= dict(zip(batch, release.counts, strict=False))
            tick()
        labels.exchanges["batches"] = transport.traffic.exchanges - labels.exchanges["setup"]
        try:
            run.close()
        except (CoordinatorError, ProtocolError) as error:
            labels.stopped_by = labels.stopped_by or error
            labels.warnings.append(f"The run could not be closed by all parties: {error}")
        labels.warnings.extend(results.warnings_of(run))
        before_closing = labels.exchanges["setup"] + labels.exchanges["batches"]
        labels.exchanges["closing"] = transport.traffic.exchanges - before_closing

    def _least_sure(self, count: int) -> tuple[int, ...]:
        """Choose the next queries: those that the student so far is least sure of."""
        known = labels_to_learn(self._known, self._store)
        earlier = (*self._before.asked, *self._queries)
        others = np.array(sorted(set(self._pool.distinct) - set(earlier)), dtype=np.int64)
        chances = interim_chances(
            self._pool.inputs[list(known)],
            np.array(list(known.values()), dtype=np.int64),
            self._pool.inputs[others],
            classes=len(self._dataset.class_names),
        )
        if chances is None:  # fewer than two classes have a label
            chosen = self._chance.of(f"queries after {len(self._queries)}").permutation(len(others))
        else:
            chosen = least_confident(chances, count)
        wanted = others[chosen[:count]].tolist()
        found = within_quota(self._pool, wanted, earlier=earlier)
        self._left_out += len(wanted) - len(found)
        return found

    def _open_store(self, ledger: RunLedger) -> RunStore:
        runs = RunQueue(Database.in_memory(), clock=lambda: datetime.now(UTC))
        runs.add(_RUN, "{}")
        self._store = RunStore(
            runs.take_up(_RUN),
            ledger,
            pool=self._pool,
            task_digest=self._drafted.task_digest,
            members=[hospital.identity.fingerprint for hospital in self._hospitals],
        )
        return self._store

    def _terms(self, members: tuple[Member, ...]) -> RunTerms:
        """Put the planned terms in seat order."""
        return results.in_seat_order(self._drafted, names=self._names, members=members)

    def _teach(self, labels: _Labels, out: Path) -> Student | None:
        return teach(
            labels_to_learn(self._known, self._store),
            name=self._settings.student,
            pool=self._pool,
            kind=self._dataset.kind,
            classes=len(self._dataset.class_names),
            facts=self._facts,
            rng=self._chance.of("student"),
            warnings=labels.warnings,
            again=another_student(str(out)),
            counts=self._counts,
            device=self._settings.device,
        )

    @property
    def _facts(self) -> LabelFacts:
        """Public facts about the labels; prevalence is the pool's where nobody says."""
        settings = self._settings
        records = len(self._dataset.private) / settings.all_teachers
        facts = replace(settings.label_facts(self._dataset.kind), records=records)
        if facts.prevalence is not None or not facts.shared_out:
            return facts
        return replace(facts, prevalence=pool_shares(self._dataset))

    def _scores(self, student: Student | None) -> StudentScores | None:
        if student is None:
            return None
        test = self._dataset.test
        return scores_of(
            student.chances(test.inputs),
            test.labels,
            self._dataset.class_names,
            hospitals=test.hospitals,
        )

    def _write_files(
        self,
        out: Path,
        *,
        student: Student | None,
        outcomes: Answers,
        metrics: Metrics,
        privacy: Privacy,
    ) -> None:
        results.write_results(
            out,
            run=self._known_labels().run,
            begun_on=self._begun_on,
            settings=self._before.with_whole_budgets(self._settings),
            others={"earlier": self._rounds.rounds},
            partition=self._manifest,
            # Everything of a simulation is made on one machine: its seal proves nothing to others.
            split=SplitKeys(
                seed=self._chance.root.hex(), coordinator=self._identity.private_bytes.hex()
            ),
            drawn_in=self._before.drawn_in,
            reinforced=self._reinforced,
            pool_digest=self._pool.digest,
            metrics=metrics,
            privacy=privacy,
            outcomes=outcomes,
            class_names=self._dataset.class_names,
            student=student,
            preprocessing=self._dataset.preprocessing,
            row_names=self._dataset.pool.row_names,
            packets=self._known_labels().traffic.packets,
            again=another_student(str(out)),
            notes=[],
        )

    def _known_labels(self) -> _Labels:
        assert self._labels is not None
        return self._labels

    def _ticker(self, stage: str, total: int) -> Callable[[], None]:
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            self._progress(stage, done, total)

        self._progress(stage, 0, total)
        return tick

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[stage] = time.perf_counter() - start

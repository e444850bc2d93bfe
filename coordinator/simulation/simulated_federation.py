"""A simulated federation before anything is asked: records, hospitals with teachers, queries."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from coordinator.runs.interim_student import predictions_for
from coordinator.runs.open_run import OpenRun
from coordinator.runs.preflight import require_chargeable, untrained_teachers
from coordinator.runs.request import RequestedParty, RunRequest
from coordinator.simulation.another_student import pool_shares
from coordinator.simulation.chance import Chance
from coordinator.simulation.earlier_runs import Before, EarlierRuns
from coordinator.simulation.outcome import Stages, Tell
from coordinator.simulation.private_evaluation import keep_back
from coordinator.simulation.simulated_hospitals import Hospital, train_hospitals
from pate_fed.data import Dataset, Records, load_dataset
from pate_fed.evaluation_task import groups_of
from pate_fed.partition import (
    Partition,
    build_manifest,
    limited_rows,
    partition_records,
    verify_manifest,
)
from pate_fed.planning import DEFAULTS, RunSettings
from pate_fed.planning.planning_notes import outlook_of, unit_notes
from pate_fed.queries import QueryPool
from pate_fed.record.manifest import PartitionProof
from pate_fed.record.metrics import Data
from pate_fed.report.data_words import data_lines, data_table
from pate_fed.students import LabelFacts, choose_queries, cluster_cores, least_confident
from pate_fed.terms import NO_TASK


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class SimulatedFederation:
    """A federation on this machine.

    Attributes:
        settings: The run's, resolved.
        dataset: The records, without those kept back.
        held_out: Patients kept back for a private evaluation; None without one.
        queries: The queries known beforehand, as positions in the pool, in the order asked.
        cores: Inputs that teachers vote on in place of a query; see `HospitalsBlueprint`.
    """

    settings: RunSettings
    earlier: EarlierRuns
    before: Before
    chance: Chance
    dataset: Dataset
    held_out: Records | None
    data: Data
    pool: QueryPool
    partition: Partition
    manifest: PartitionProof
    queries: tuple[int, ...] = ()
    cores: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    hospitals: list[Hospital] = field(default_factory=list)
    notes: list[str]

    @classmethod
    def made(
        cls, asked: RunSettings, earlier: EarlierRuns, *, out: Path, tell: Tell, stages: Stages
    ) -> Self:
        """Load, check, partition, choose queries, train teachers; `tell` gets lines on the data."""
        chance, held_out = earlier.chance(asked.seed), None
        with stages.timed("data"):
            dataset = _load(asked, chance)
            groups_of(dataset.test, dataset.preprocessing, asked.evaluate_by)  # before any charge
            if asked.evaluate == "private":
                dataset, held_out = keep_back(asked, dataset, rng=chance.of("held-out patients"))
            data = data_table(dataset)
            for line in (*dataset.notes, *data_lines(data)):
                tell(line)
            pool = QueryPool(dataset.pool.features, images=dataset.pool.images)
            before = earlier.joined(asked, pool, dataset.class_names)
            settings = before.resolved(dataset, rng=chance.of("partition"))
            queries = _first_queries(settings, pool, before.answers, rng=chance.of("queries"))
            require_chargeable(
                settings,
                kind=dataset.kind,
                pool=pool.views,
                classes=len(dataset.class_names),
                place=out,
            )
            outlook = outlook_of(settings, dataset)
            if outlook:
                tell(outlook)
            assert settings.partition is not None
            partition = partition_records(
                dataset.private,
                parties=settings.parties,
                teachers=settings.party_teachers or settings.teachers or 1,
                scheme=settings.partition,
                rng=chance.of("partition"),
            )
            made = cls(
                settings=settings,
                earlier=earlier,
                before=before,
                chance=chance,
                dataset=dataset,
                held_out=held_out,
                data=data.changed(outlook=outlook),
                pool=pool,
                partition=partition,
                manifest=_prove_disjoint(dataset, partition),
                queries=queries,
                notes=[
                    *dataset.notes,
                    *unit_notes(before.settings, settings),
                ],
            )
            earlier.require_same_numbers(made.manifest)
        with stages.timed("queries"):
            if settings.votes_by_cluster:
                made.cores = cluster_cores(pool.inputs, made.queries)
        with stages.timed("teachers"):
            made.hospitals = train_hospitals(
                dataset,
                partition,
                make_teachers=partial(untrained_teachers, settings, dataset.kind),
                weights=settings.weights or (),
                generators=[chance.of(f"teachers {one}") for one in range(partition.parties)],
                workers=os.cpu_count() or 1,
                tick=stages.ticker("training teachers", partition.parties),
            )
        return made

    @property
    def facts(self) -> LabelFacts:
        """Public facts about the labels; prevalence is the pool's where nobody says."""
        known = self.settings.label_facts(self.dataset.kind)
        facts = replace(known, records=self._records)
        shares = pool_shares(self.dataset)
        if facts.prevalence is not None or not facts.shared_out:
            shares = (facts.prevalence,) * len(shares)
        return facts.of_each(self.dataset.labels, shares)

    def request(self, name: str) -> RunRequest:
        """Return the request of its run; queries of earlier runs are answered already."""
        return RunRequest(
            name=name,
            pool=self.pool.digest,
            task=NO_TASK,
            source="",
            kind=self.dataset.kind,
            label="",
            class_names=self.dataset.class_names,
            parties=tuple(
                RequestedParty(one.name, one.identity.fingerprint, one.ensemble.teachers)
                for one in self.hospitals
            ),
            queries=(*self.before.answers, *self.queries),
            patience_s=0.0,  # who is silent on this machine stays so
            settings=self.settings,
            answered=len(self.before.answers),
            epsilon=0.0,  # for an operator's pages alone; `privacy.json` states it
        )

    @property
    def _records(self) -> float:
        """Records of a teacher, on average."""
        return self.dataset.sizes[0] / self.settings.all_teachers

    def next_queries(self, run: OpenRun) -> tuple[int, ...]:
        """Choose the next queries, if a student does: those that it so far is least sure of."""
        total, done = self.settings.caps.max_asks or 0, run.request.queries
        asked = len(done) - len(run.earlier)
        count = min(self.settings.caps.batch_size or total, total - asked)
        if not self.settings.asks_by_student or not count:
            return ()
        fresh = _fresh(self.pool, done)
        chances = predictions_for(fresh, known=run.lessons, pool=self.pool, classes=run.classes)
        if chances is None:  # fewer than two classes have a label
            ranked = self.chance.of(f"queries after {asked}").permutation(len(fresh))
        else:
            ranked = least_confident(chances, len(fresh))
        return tuple(fresh[place] for place in ranked[:count])


def _first_queries(
    settings: RunSettings,
    pool: QueryPool,
    earlier: Mapping[int, Any],
    *,
    rng: np.random.Generator,
) -> tuple[int, ...]:
    """Choose the queries that are known beforehand."""
    count, method = settings.caps.max_asks or 0, settings.select or ""
    if settings.votes_by_cluster:
        method = "medoids"
    if settings.asks_by_student:
        count, method = min(count, settings.caps.batch_size or count), "stratified"
    # One question of each input stands for all of its labels.
    labels = settings.caps.labels or 1
    fresh = [place for place in _fresh(pool, earlier) if place % labels == 0]
    chosen = choose_queries(
        pool,
        fresh,
        count // labels,
        method=method,
        rng=rng,
        calibrates=settings.coverage is not None,
    )
    return tuple(first + label for first in chosen for label in range(labels))


def _fresh(pool: QueryPool, asked: Sequence[int] | Mapping[int, Any]) -> list[int]:
    """Return what may be asked: hospitals answer no question twice, nor its equals."""
    return sorted(set(pool.distinct).difference(asked))


def _load(settings: RunSettings, chance: Chance) -> Dataset:
    """Load the records, and leave out patients beyond the number that was asked for."""
    dataset = load_dataset(settings.data, rng=chance.of("data"))
    if settings.patients is None:
        return dataset
    has_hospitals = dataset.private.hospitals is not None
    rows = limited_rows(
        dataset.private,
        patients=settings.patients,
        parties=settings.parties or DEFAULTS[settings.data.name].parties,
        scheme=settings.partition or ("column" if has_hospitals else "iid"),
        rng=chance.of("patients"),
    )
    return replace(dataset, private=dataset.private.select(rows))


def _prove_disjoint(dataset: Dataset, partition: Partition) -> PartitionProof:
    """Build the manifest under a key that is stored nowhere, and check it."""
    key = secrets.token_bytes(32)
    manifest = build_manifest(dataset.private, partition, key=key)
    verify_manifest(manifest, dataset.private, partition, key=key)
    return manifest

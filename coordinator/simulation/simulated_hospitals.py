"""The simulated hospitals: identities, teachers, and a node each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coordinator.runs.open_run import KEYSTREAM
from party.decision.guard import Guard
from party.decision.node import PartyNode
from party.site.party_task import PartyTask, tasks_of
from party.site.policy import Policy
from party.storage import Journal, LedgerStore, PartyDatabase
from pate_fed.accounting import PrivacyLedger, event_additive_delta, event_charged_rdp
from pate_fed.accounting.conversion import epsilon_at_order
from pate_fed.accounting.costs import PrivacyUnit
from pate_fed.accounting.formal_cost import ROUNDING_ROOM
from pate_fed.charges import whole_charge
from pate_fed.class_shares import share_offsets
from pate_fed.data import Dataset, Records
from pate_fed.data.label_questions import apart_by_label
from pate_fed.inputs import Inputs
from pate_fed.mechanisms import keyed_stream
from pate_fed.partition import Partition
from pate_fed.private_baseline import train_private_baseline
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.record.metrics import Quality
from pate_fed.report.scores import mean_quality, quality_of
from pate_fed.students.facts import LabelFacts
from pate_fed.teachers import TeacherEnsemble
from pate_fed.teachers.teachers_of_labels import TeachersOfLabels
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.sums import SUMS

Tick = Callable[[], None]

Teachers = TeacherEnsemble | TeachersOfLabels

MakeTeachers = Callable[..., Teachers]
"""Makes the untrained teachers of a hospital, given its `records` of each and number of `teachers`;
of neither: its own model of all its records.
"""

_LEAST_SCORE = -1e6
"""Stands for minus infinity where scores are compared."""


@dataclass(frozen=True, slots=True, repr=False)
class Hospital:
    """One simulated hospital, in a form that an engine can send to another process.

    Attributes:
        weight: Votes that each of them casts per query.
    """

    name: str
    private_bytes: bytes
    ensemble: Teachers
    weight: int = 1

    @property
    def weights(self) -> TeacherWeights:
        """Votes of its teachers."""
        return TeacherWeights.equal(self.ensemble.teachers, weight=self.weight)

    @property
    def identity(self) -> SigningIdentity:
        """Its identity."""
        return SigningIdentity.from_private_bytes(self.private_bytes)

    def __repr__(self) -> str:
        return f"Hospital({self.name}, teachers={self.ensemble.teachers})"


def train_hospitals(
    dataset: Dataset,
    partition: Partition,
    *,
    make_teachers: MakeTeachers,
    weights: tuple[int, ...],
    generators: list[np.random.Generator],
    workers: int,
    tick: Tick,
) -> list[Hospital]:
    """Train every hospital's teachers, each on its own shards, in the partition's order.

    Each has a generator of its own, so that the order of training changes nothing.
    """

    def train(party: int) -> Hospital:
        shards = [dataset.private.select(shard.rows) for shard in partition.shards_of(party)]
        patients = {unit for shard in shards for unit in shard.unit_ids}
        ensemble = make_teachers(records=len(patients) / len(shards), teachers=len(shards))
        ensemble.fit(
            shards,
            classes=len(dataset.class_names),
            rng=generators[party],
            public=dataset.pool.inputs,
        )
        tick()
        private_bytes = SigningIdentity.generate().private_bytes
        return Hospital(partition.party_names[party], private_bytes, ensemble, weights[party])

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(train, range(partition.parties)))


@dataclass(frozen=True, slots=True, repr=False)
class HospitalsBlueprint:
    """The values that an engine needs to open every hospital's node anywhere.

    Attributes:
        terms: The run's, hospitals in this order.
        noise_seeds: Seed of each hospital's own noise, for a repeatable run; None to draw it
            afresh.
        cores: Inputs that teachers vote on in place of a query, by its position in the pool; empty
            to vote on the queries themselves.
    """

    hospitals: tuple[Hospital, ...]
    coordinator: PublicIdentity
    pool: QueryPool
    terms: RunTerms
    form: str
    suite: str
    noise_seeds: tuple[bytes, ...] | None = None
    cores: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    def open(self) -> list[PartyNode]:
        """Give every hospital its node. In a simulation all pins count as checked."""
        identities = [hospital.identity for hospital in self.hospitals]
        pins = {identity.fingerprint: identity.public for identity in identities}
        bodies = {
            identity.fingerprint: hospital.name
            for identity, hospital in zip(identities, self.hospitals, strict=True)
        }
        policy = simulation_policy(self.terms, form=self.form, suite=self.suite)
        nodes = []
        for seat, (hospital, identity) in enumerate(zip(self.hospitals, identities, strict=True)):
            database = PartyDatabase.in_memory()
            seed = self.noise_seeds[seat] if self.noise_seeds else None
            node = PartyNode(
                identity=identity,
                coordinator=self.coordinator,
                known_peers=pins,
                guard=Guard(policy=policy, weights=hospital.weights, checked_peers=bodies),
                tasks=tasks_of(self._task_of(hospital)),
                forms={name: form(keystream=KEYSTREAM) for name, form in SUMS.items()},
                journal=Journal(database),
                ledger=LedgerStore(database, budget=life_of(self.terms, seat)),
                random_bytes=secrets.token_bytes,
                clock=time.time,
                noise_bytes=None if seed is None else keyed_stream(seed, tag="party noise"),
            )
            nodes.append(node)
        return nodes

    def _task_of(self, hospital: Hospital) -> PartyTask:
        patients = None
        if self.terms.do_records_vote:
            patients = tuple(map(str, range(hospital.ensemble.teachers)))
        return PartyTask(
            self.pool, votes_of(hospital.ensemble, self.pool, self.cores), patients=patients
        )


def votes_of(
    ensemble: Teachers, pool: QueryPool, cores: Mapping[int, NDArray[np.int64]]
) -> Callable[[QueryBatch], NDArray[np.int64]]:
    """Return what asks a hospital's teachers, or lets them vote on the cores of queries."""
    if cores:
        return partial(vote_on_cores, ensemble, pool, cores)
    return lambda batch: ensemble.vote(batch.views)


def life_of(terms: RunTerms, seat: int) -> PrivacyLedger:
    """Open a simulated hospital's budget for its life, which is this run: it holds its caps."""
    charge = whole_charge(terms, seat)
    if charge is None:  # nothing is a bound, so nothing is charged
        return PrivacyLedger.for_life(terms.budgets[seat], terms.delta)
    kept = event_additive_delta(charge) * ROUNDING_ROOM
    life = PrivacyLedger.for_life(terms.budgets[seat], terms.delta, additive_delta=kept)
    [rdp] = event_charged_rdp(charge, [life.order])
    needed = epsilon_at_order(rdp * ROUNDING_ROOM, life.order, delta=terms.delta - kept)
    return replace(life, epsilon=max(life.epsilon, needed * ROUNDING_ROOM))


def simulation_policy(terms: RunTerms, *, form: str, suite: str) -> Policy:
    """The policy of all simulated hospitals: it allows the run, and nothing beyond it."""
    return Policy(
        approved_pools=frozenset({terms.pool_digest}),
        least_checked_peers=2,
        forms=frozenset({form}),
        suites=frozenset({suite}),
        mechanisms=frozenset({terms.rule.mechanism}),
        noise_places=frozenset({"parties" if terms.rule.at_parties else "coordinator"}),
        # In a simulation the user chooses the amount of noise freely.
        least_sigma1=0.0,
        least_sigma2=0.0,
        most_queries=terms.caps.most.asks,
        most_epsilon=terms.epsilon,
        most_delta=terms.delta,
        # Nothing is lost for life in a simulation.
        most_forfeited=1.0,
        most_returned=1.0,
        simulated=True,
    )


def yardsticks(
    dataset: Dataset,
    partition: Partition,
    *,
    make_model: MakeTeachers,
    facts: LabelFacts,
    price: tuple[PrivacyUnit, float, float] | None,
    generator: np.random.Generator,
    tick: Tick,
) -> dict[str, Quality]:
    """Measure the models to compare the student with, on the public test records.

    Each says a class for the same share of the public pool as the student does.

    Args:
        dataset: The records, split.
        partition: Who holds which of them.
        make_model: Makes the untrained model of a hospital on its own.
        facts: As the student's.
        price: Unit, epsilon and delta of the run; None without a finite epsilon.
        generator: Seeds the models, and draws the baseline's noise.
        tick: Told after each hospital.

    Returns:
        "average_hospital": mean over hospitals of one model each, trained on all its records.
        "best_hospital": the one of these that is best on the public pool, whose truth a simulation
        knows: chosen on the test records it would look better than it is. "pooled": one model of
        all private records together, without privacy. "private_baseline": see
        `pate_fed.private_baseline`; absent without a price.
    """
    pool, test = dataset.pool, dataset.test
    labels = dataset.label_count

    def measured(scores: Callable[[Inputs], NDArray[np.float64]]) -> tuple[Quality, Quality]:
        """Return the quality on the pool and on the test records, the mean over all labels."""
        on_pool, on_test = scores(pool.inputs), scores(test.inputs)
        found = []
        for label, of_label in enumerate(facts.by_label.values() or (facts,)):
            rows = slice(label, None, labels)
            on_both = (on_pool[rows], on_test[rows])
            shares = of_label.decided_shares(dataset.classes)
            if shares is not None:
                offsets = share_offsets(on_both[0], shares)
                on_both = (on_both[0] + offsets, on_both[1] + offsets)
            found.append(
                [
                    quality_of(np.maximum(scored, _LEAST_SCORE), part.labels[rows])
                    for scored, part in zip(on_both, (pool, test), strict=True)
                ]
            )
        on_pool_quality, on_test_quality = (mean_quality(each) for each in zip(*found, strict=True))
        return on_pool_quality, on_test_quality

    def alone(rows: NDArray[np.int64]) -> tuple[Quality, Quality]:
        model = make_model()
        records: Records = dataset.private.select(rows)
        model.fit([records], classes=dataset.classes, rng=generator, public=pool.inputs)
        return measured(lambda inputs: next(model.scores(inputs)))

    rows_of = [
        np.concatenate([np.asarray(one.rows) for one in partition.shards_of(party)])
        for party in range(partition.parties)
    ]
    each = []
    for rows in rows_of:
        each.append(alone(rows))
        tick()
    best = max(each, key=lambda one: (one[0].auc or 0.0, one[0].balanced_accuracy))
    found = {
        "average_hospital": mean_quality([on_test for _, on_test in each]),
        "best_hospital": best[1],
        "pooled": alone(np.sort(np.concatenate(rows_of)))[1],
    }
    if price is not None:
        unit, epsilon, delta = price
        private = dataset.private
        owners: Sequence[object] = private.unit_ids
        if unit == "party":
            of_row = {row: party for party, rows in enumerate(rows_of) for row in rows.tolist()}
            owners = [of_row[row] for row in range(len(private))]
        baseline = train_private_baseline(
            apart_by_label(private.features, labels),
            private.labels,
            np.unique(np.array(owners), return_inverse=True)[1].astype(np.int64),
            classes=dataset.classes,
            pool=apart_by_label(pool.features, labels),
            epsilon=epsilon,
            delta=delta,
            rng=generator,
        )
        found["private_baseline"] = measured(
            lambda inputs: baseline.scores(apart_by_label(inputs.features, labels))
        )[1]
    return found


def vote_on_cores(
    ensemble: Teachers,
    pool: QueryPool,
    cores: Mapping[int, NDArray[np.int64]],
    batch: QueryBatch,
) -> NDArray[np.int64]:
    """Let every teacher classify the inputs of each query's core, and vote for the commonest class.

    If classes tie, the first wins. Returns the classes voted for; int64, shape (teachers, queries).
    """
    found = []
    for query in batch.indices:
        said = ensemble.vote(pool.views.select(cores[query]))
        found.append([int(np.bincount(votes).argmax()) for votes in said])
    return np.array(found, dtype=np.int64).T

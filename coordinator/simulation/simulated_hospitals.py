"""The simulated hospitals: identities, teachers, and a node each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
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
from pate_fed.accounting.formal_cost import ROUNDING_ROOM
from pate_fed.charges import whole_charge
from pate_fed.class_shares import share_offsets
from pate_fed.data import Dataset, Records
from pate_fed.mechanisms import keyed_stream
from pate_fed.partition import Partition
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.record.metrics import Quality
from pate_fed.report.scores import quality_of
from pate_fed.students.facts import LabelFacts
from pate_fed.teachers import TeacherEnsemble
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.sums import SUMS

Tick = Callable[[], None]

MakeTeachers = Callable[[], TeacherEnsemble]

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
    ensemble: TeacherEnsemble
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
        ensemble = make_teachers()
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
                tasks=tasks_of(PartyTask(self.pool, self._votes_of(hospital.ensemble))),
                forms={name: form(keystream=KEYSTREAM) for name, form in SUMS.items()},
                journal=Journal(database, sketch_key=b""),  # the same signs, so that it repeats
                ledger=LedgerStore(database, budget=life_of(self.terms, seat)),
                random_bytes=secrets.token_bytes,
                clock=time.time,
                noise_bytes=None if seed is None else keyed_stream(seed, tag="party noise"),
            )
            nodes.append(node)
        return nodes

    def _votes_of(self, ensemble: TeacherEnsemble) -> Callable[[QueryBatch], NDArray[np.int64]]:
        if self.cores:
            return partial(vote_on_cores, ensemble, self.pool, self.cores)
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
        noise_places=frozenset({terms.rule.noise_place}),
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
    hospitals: list[Hospital],
    *,
    make_teachers: MakeTeachers,
    facts: LabelFacts,
    generator: np.random.Generator,
    tick: Tick,
) -> dict[str, Quality]:
    """Measure the models to compare the student with, on the public test records.

    Each says a class for the same share of the public pool as the student does.

    Returns:
        "teacher_mean": mean of all teachers. "best_single_party": best of one model per hospital,
        trained on all its records. "pooled": one model trained on all private records together,
        without privacy.
    """
    measure = partial(_measured, dataset=dataset, facts=facts)
    teachers = [quality for hospital in hospitals for quality in measure(hospital.ensemble)]

    def alone(rows: NDArray[np.int64]) -> Quality:
        single = make_teachers()
        records: Records = dataset.private.select(rows)
        single.fit(
            [records],
            classes=len(dataset.class_names),
            rng=generator,
            public=dataset.pool.inputs,
        )
        [quality] = measure(single)
        return quality

    each = []
    for party in range(partition.parties):
        each.append(
            alone(np.concatenate([np.asarray(one.rows) for one in partition.shards_of(party)]))
        )
        tick()
    held = np.concatenate([np.asarray(shard.rows) for shard in partition.shards])
    return {
        "teacher_mean": _over(teachers, np.mean),
        "best_single_party": _over(each, max),
        "pooled": alone(np.sort(held)),
    }


def _measured(
    ensemble: TeacherEnsemble, *, dataset: Dataset, facts: LabelFacts
) -> Iterator[Quality]:
    """Yield the quality of each model of an ensemble."""
    shares = facts.decided_shares(len(dataset.class_names))
    pool = dataset.pool.inputs
    for on_pool, on_test in zip(
        ensemble.scores(pool), ensemble.scores(dataset.test.inputs), strict=True
    ):
        found = on_test if shares is None else on_test + share_offsets(on_pool, shares)
        yield quality_of(np.maximum(found, _LEAST_SCORE), dataset.test.labels)


def _over(found: list[Quality], summary: Callable[[list[float]], float]) -> Quality:
    """Summarize each measure over several models; the area is None where one of them has none."""
    areas = [one.auc for one in found if one.auc is not None]
    return Quality(
        accuracy=float(summary([one.accuracy for one in found])),
        balanced_accuracy=float(summary([one.balanced_accuracy for one in found])),
        auc=float(summary(areas)) if len(areas) == len(found) else None,
    )


def vote_on_cores(
    ensemble: TeacherEnsemble,
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

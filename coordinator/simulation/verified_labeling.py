"""The labels of a simulation whose sums are verified: hospitals report, both aggregators open.

Proofs, envelopes, signatures and the noise are real, and both aggregators are in this process. A
hospital has no policy and no journal here; a deployment sends the same reports as messages.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coordinator.database.run_store import StoredBatch
from coordinator.errors import RunEndedError
from coordinator.runs.labeling.deciding import Decider
from coordinator.runs.labeling.roster import Member, in_seat_order
from coordinator.runs.labeling.vote_checking import rejection_notes
from coordinator.runs.open_run import OpenRun
from coordinator.runs.transport import Packet
from pate_fed.accounting import NO_OUTCOMES, Outcomes
from pate_fed.charges import noise_of, outcomes_of
from pate_fed.mechanisms import RandomBytes
from pate_fed.queries import QueryBatch
from pate_fed.releases import NoisyRelease
from pate_fed.terms import BatchTerms, RunTerms
from pate_fed.votes import NoisyHistogram, TeacherWeights, count_votes
from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import TooFewPartiesError
from protocols.forms import Verified
from protocols.identity import SigningIdentity
from protocols.values import encode_value
from protocols.verified import (
    Aggregator,
    VerifiedSum,
    VerifyingEnd,
    VoteBatch,
    make_report,
    run_verified_sum,
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReportingHospital:
    """One simulated hospital that reports its votes.

    Attributes:
        vote: Asks its teachers; returns the classes that they vote for. Secret.
    """

    name: str
    identity: SigningIdentity
    vote: Callable[[QueryBatch], NDArray[np.int64]]
    weights: TeacherWeights

    def report(self, batch: VoteBatch, queries: QueryBatch) -> bytes | None:
        """Return the frame of its one message for a batch; None where it never comes."""
        votes = count_votes(self.vote(queries), classes=batch.columns, weights=self.weights)
        return make_report(
            batch,
            votes.counts,
            identity=self.identity,
            random_bytes=secrets.token_bytes,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SimulatedAggregator:
    """One of both: its identity, its key, and the source of its own noise. Secret."""

    identity: SigningIdentity
    key: SealingKey
    noise_bytes: RandomBytes

    @classmethod
    def made(cls, suite: str, noise_bytes: RandomBytes) -> Self:
        """Make one with fresh keys."""
        return cls(SigningIdentity.generate(), SealingKey(suite), noise_bytes)

    @property
    def public(self) -> Aggregator:
        """What hospitals pin of it."""
        return Aggregator(self.identity.fingerprint, self.key.public_bytes)

    def end_of(self, terms: RunTerms, queries: int) -> VerifyingEnd:
        """Draw its noise for one batch, the full amount, before any share is added."""
        share = noise_of(terms).draw(queries, terms.classes, random_bytes=self.noise_bytes)
        return VerifyingEnd(self.key, secrets.token_bytes(32), share.counts)


@dataclass(slots=True, eq=False, repr=False)
class VerifiedLabeling:
    """A run of verified sums, as `OpenRun` sees a labeling.

    Attributes:
        members: The hospitals, in the order of their seats.
        lost: For each batch that opened without hospitals which never came, their names.
        rejected: For each batch, names of those whose reports hold no votes.
        round: None: no messages went around.
    """

    run: OpenRun
    hospitals: Sequence[ReportingHospital]
    aggregators: Sequence[SimulatedAggregator]
    suite: str
    tick: Callable[[], None]
    members: tuple[Member, ...] = field(init=False)
    lost: tuple[tuple[str, ...], ...] = ()
    rejected: tuple[tuple[str, ...], ...] = ()
    round: None = None
    share_faults: tuple[tuple[str, ...], ...] = ()
    not_heard: tuple[str, ...] = ()
    per_instance_cost: None = None
    _decider: Decider = field(init=False)

    def __post_init__(self) -> None:
        self.members = in_seat_order(self.run.members)
        # Both have drawn their noise by the time that it decides.
        self._decider = Decider(self.terms, noise_bytes=secrets.token_bytes, meter=None)

    @property
    def terms(self) -> RunTerms:
        """Its terms."""
        return self.run.store.ledger().terms

    @property
    def names_by_node(self) -> dict[int, str]:
        """Names of the hospitals, by seat."""
        return {seat: member.name for seat, member in enumerate(self.members)}

    @property
    def asked(self) -> frozenset[int]:
        """Positions in the pool that were asked about."""
        return frozenset(
            index for each in self.run.store.asked().values() for index in each.indices
        )

    @property
    def left(self) -> Outcomes:
        """The outcomes that the caps still allow."""
        return self.run.store.ledger().left

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached."""
        return self.left == NO_OUTCOMES

    def ask(
        self, indices: tuple[int, ...], predictions: NDArray[np.float64] | None
    ) -> NoisyRelease:
        """Ask one batch: both charge for it, then they open its noisy sum.

        Raises:
            RunEndedError: too few hospitals reported votes. Nothing opened; the charge stays, as in
                a deployment, where nothing proves that.
        """
        store = self.run.store
        ledger = store.ledger()
        asked = StoredBatch(len(store.asked()), indices, ledger.left, predictions)
        rule = self._decider.rule_for(indices, predictions)
        store.save_asked(ledger.reserve(asked.entry_id, ledger.worst_case(len(indices))), asked)
        try:
            found = self._opened(asked)
        except TooFewPartiesError as error:
            ledger = store.ledger().forfeit(asked.entry_id)
            store.save_void(ledger, batch=asked.number, is_freed=False)
            must = f"a batch must have the votes of at least {error.threshold} hospitals"
            raise RunEndedError(must, error.got) from error
        noise = noise_of(self.terms)
        noisy = NoisyHistogram(found.counts.astype(np.float64), noise.sum_sigma(noise.parties))
        release = self._decider.decide(noisy, rule=rule, left=asked.left)
        ledger = store.ledger().commit(asked.entry_id, outcomes_of(release), release.digest)
        store.save_release(ledger, batch=asked.number, release=release)
        return release

    def _opened(self, asked: StoredBatch) -> VerifiedSum:
        """Let all hospitals report, and both aggregators check and open."""
        terms, traffic = self.terms, self.run.traffic
        plan = encode_value(BatchTerms(terms, asked.indices).as_record())
        coordinator, tally = self.aggregators
        batch = VoteBatch(
            hashlib.sha256(plan + secrets.token_bytes(32)).digest(),
            len(asked.indices),
            terms.classes,
            {
                member.identity.fingerprint: votes
                for member, votes in zip(self.members, terms.quotas, strict=True)
            },
            coordinator.public,
            tally.public,
            self.suite,
        )
        queries = self.run.pool.ask(asked.indices)
        by_name = {hospital.name: hospital for hospital in self.hospitals}
        came: dict[str, bytes] = {}
        for seat, member in enumerate(self.members):
            frame = by_name[member.name].report(batch, queries)
            traffic.sent += len(plan)
            if frame is not None:
                came[member.name] = frame
                packet = wire.pack([frame])
                digest = hashlib.sha256(packet).digest()
                traffic.packets.append(Packet(seat, wire.kinds_in(packet), len(packet), digest))
            self.tick()
        traffic.exchanges += 1
        first, second = (each.end_of(terms, len(queries)) for each in self.aggregators)
        found = run_verified_sum(
            batch,
            list(came.values()),
            identities={one.identity.fingerprint: one.identity for one in self.members},
            coordinator=first,
            tally=second,
            least_parties=Verified.threshold(len(self.members)),
        )
        names = {one.identity.fingerprint: one.name for one in self.members}
        accepted = {names[one] for one in found.accepted}
        refused = tuple(name for name in names.values() if name in came.keys() - accepted)
        self.rejected += (refused,)
        self.lost += (tuple(name for name in names.values() if name not in came),)
        return found

    @property
    def notes(self) -> list[str]:
        """Name the hospitals whose reports hold no votes, and count those batches."""
        return rejection_notes(self.rejected)

"""What a tally checks by itself of a run's record and of a plan, before it answers about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.errors import UnservedRunError
from pate_fed.charges import mechanism_of, noise_of
from pate_fed.errors import PateFedError
from pate_fed.mechanisms import GaussianMax
from pate_fed.terms import BatchTerms, RunTerms
from protocols import wire
from protocols.envelope import require_key_of
from protocols.errors import UnexpectedMessageError
from protocols.forms import Verified
from protocols.identity import PublicIdentity
from protocols.messages import KeyStatement, Plan, RunOffer, RunRecord
from protocols.rounds.seating import require_run, require_statement, seats_of
from protocols.run_scope import RunScope
from protocols.values import decode_value
from protocols.verified import VoteBatch
from protocols.verified.vote_side import NoiseLaw
from protocols.wire import Signed


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run as its record fixes it.

    Attributes:
        run_id: Digest of the record.
        terms: Read from it.
        hospitals: Identities of those that are not absent, in seat order, by fingerprint.
        votes: Of each seat on a query.
        scope: `RunScope.digest`: a run that is set up anew keeps it.
    """

    run_id: bytes
    record: RunRecord
    frame: bytes
    terms: RunTerms
    hospitals: Mapping[bytes, PublicIdentity]
    votes: Mapping[bytes, int]
    scope: bytes

    @classmethod
    def of(cls, frame: bytes, *, coordinator: PublicIdentity) -> ServedRun:
        """Read a record.

        Raises:
            RemoteProtocolError: it is not the coordinator's, or a hospital's keys in it are not
                signed by that hospital for its offer.
            UnservedRunError: it is of another form, simulated, or of too few hospitals; or its
                terms do not fit.
            InvalidTermsError: its terms cannot be read.
        """
        signed = wire.decode(frame)
        record = wire.expect(signed, RunRecord)
        signed.verify(coordinator)
        if record.coordinator != coordinator.fingerprint:
            raise UnexpectedMessageError("a record must name its coordinator")
        require_served(record)
        require_key_of(record.suite, record.sealing_key)
        hospitals = _hospitals_of(record)
        seats = seats_of(record)
        number = len(set(seats))
        fewest = Verified.fewest_present(number)
        if len(hospitals) < fewest:
            raise UnservedRunError(f"a run must have {fewest} hospitals or more", len(hospitals))
        if number != len(seats) or list(record.absent) != sorted(record.absent):
            raise UnexpectedMessageError("a record must have each hospital once, ascending")
        # A run has one scope, and so one account, however its record is written.
        least, most = Verified.threshold(number), Verified.most_colluders(number)
        facts = record.threshold, record.dropouts, record.colluders, record.ring_bits
        if facts != (least, number - least, most, Verified.ring_bits):
            raise UnservedRunError("a record must have the numbers of its form")
        terms = RunTerms.from_record(decode_value(record.terms))
        _require_fitting(terms, parties=number)
        scope = RunScope.of(record, seats=seats)
        votes = dict(zip(seats, terms.quotas, strict=True))
        return cls(signed.digest, record, frame, terms, hospitals, votes, scope.digest)

    def batch_of(self, plan: Signed, asked: BatchTerms) -> VoteBatch:
        """Return the batch of a plan of `plan_of`."""
        return VoteBatch.of_record(
            self.record,
            plan_digest=plan.digest,
            queries=len(asked.indices),
            columns=asked.run.columns,
            votes=self.votes,
        )

    def plan_of(self, frame: bytes, *, coordinator: PublicIdentity) -> tuple[Signed, BatchTerms]:
        """Read a plan of this run; return it with its terms.

        Raises:
            RemoteProtocolError: it is not the coordinator's, or of another run.
            UnservedRunError: its terms are another run's, or do not fit it.
            InvalidTermsError: its terms cannot be read.
        """
        signed = wire.decode(frame)
        plan = wire.expect(signed, Plan)
        signed.verify(coordinator)
        require_run(plan.run_id, self.run_id)
        asked = BatchTerms.from_record(decode_value(plan.terms))
        if asked.run != self.terms or plan.words != asked.words:
            raise UnservedRunError("a plan's terms must be of its run, with its number of words")
        if plan.expires_at > self.record.expires_at:
            raise UnservedRunError("a plan must end before its run")
        return signed, asked

    @property
    def rule(self) -> GaussianMax:
        """The rule from the opened sum to labels."""
        rule = mechanism_of(self.terms)
        assert isinstance(rule, GaussianMax), "checked when it was read"
        return rule


def noise_law(terms: RunTerms) -> NoiseLaw:
    """Return the law of one aggregator's noise, the full amount; both ends draw by it."""
    noise = noise_of(terms)
    return lambda shape, source: noise.draw(*shape, random_bytes=source).counts


def require_served(told: RunOffer | RunRecord) -> None:
    """Refuse, with `UnservedRunError`, a run that is simulated or of another form."""
    if told.form != Verified.name:
        raise UnservedRunError(f"the form must be {Verified.name}", told.form)
    if told.simulated:
        raise UnservedRunError("a run must not be simulated")


def _hospitals_of(record: RunRecord) -> dict[bytes, PublicIdentity]:
    found: dict[bytes, PublicIdentity] = {}
    for frame in record.statements:
        signed = wire.decode(frame)
        statement = wire.expect(signed, KeyStatement)
        identity = PublicIdentity(statement.identity_key)
        signed.verify(identity)
        require_statement(
            statement,
            identity.fingerprint,
            offer_digest=record.offer_digest,
            suite=record.suite,
            expires_at=record.expires_at,
        )
        found[identity.fingerprint] = identity
    if list(found) != sorted(found) or len(found) != len(record.statements):
        raise UnexpectedMessageError("a record must have each hospital once, ascending")
    return found


def _require_fitting(terms: RunTerms, *, parties: int) -> None:
    if len(terms.weights) != parties:
        raise UnservedRunError("one quota must be for each hospital", len(terms.weights))
    if not terms.rule.at_aggregators:
        raise UnservedRunError("noise must be the aggregators' to add", terms.rule.noise_place)
    assert Verified.most_votes is not None
    if max(terms.quotas) > Verified.most_votes:
        raise UnservedRunError(f"a quota must be at most {Verified.most_votes}")
    try:
        noise_of(terms).require_room(terms.total_votes)
        rule: Any = mechanism_of(terms)
    except PateFedError as error:
        raise UnservedRunError(error.must, error.got) from error
    if not isinstance(rule, GaussianMax):
        raise UnservedRunError("the mechanism must label noisy sums", terms.rule.mechanism)

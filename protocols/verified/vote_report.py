"""A hospital's one message for a batch: its votes in two sealed parts under one signature.

Each part is sealed to one aggregator. The signed header binds both parts, so that neither
aggregator can be shown another report than the other one. A part opens for its hospital, plan and
aggregator alone: a report that somebody copied, and sends as its own, opens nowhere. Otherwise it
would count its victim's votes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import VOTES, SealingKey, seal
from protocols.errors import UnexpectedMessageError, UnknownPeerError, WrongShareError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import KeyStatement, RunRecord
from protocols.run_scope import tally_of
from protocols.suites import DEFAULT_SUITE
from protocols.values import digest_of_values
from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import VoteShare, prove
from protocols.vote_messages import ReportHeader, VoteReport


@dataclass(frozen=True, slots=True)
class Aggregator:
    """The public half of an aggregator: its fingerprint, and its raw key for sealed parts."""

    fingerprint: bytes
    sealing_key: bytes


@dataclass(frozen=True, slots=True)
class VoteBatch:
    """What hospitals and both aggregators know of one attempt at a batch, from its signed plan.

    Attributes:
        plan_digest: Of the plan; 32 bytes. It names run, batch and attempt.
        queries: Rows.
        columns: Numbers of a row.
        votes: Number of votes of each hospital on a query, by fingerprint: from its signed
            enrollment, never from its report.
        coordinator: Has the larger part.
        tally: Has the smaller part, which the coordinator relays.
        suite: Of the sealed parts.
    """

    plan_digest: bytes
    queries: int
    columns: int
    votes: Mapping[bytes, int]
    coordinator: Aggregator
    tally: Aggregator
    suite: str = DEFAULT_SUITE

    @classmethod
    def of_record(
        cls,
        record: RunRecord,
        *,
        plan_digest: bytes,
        queries: int,
        columns: int,
        votes: Mapping[bytes, int],
    ) -> Self:
        """Return the batch of a plan of a run, whose record was checked; the rest is as above."""
        statement = wire.expect(wire.decode(record.tally), KeyStatement)
        return cls(
            plan_digest,
            queries,
            columns,
            votes,
            Aggregator(record.coordinator, record.sealing_key),
            Aggregator(tally_of(record), statement.sealing_key),
            record.suite,
        )

    def layout_of(self, hospital: bytes) -> VoteLayout:
        """Return the layout of a hospital's votes; `UnknownPeerError` where it has none."""
        if hospital not in self.votes:
            raise UnknownPeerError("a report must be of a hospital of its plan")
        return VoteLayout.of(queries=self.queries, columns=self.columns, votes=self.votes[hospital])

    def context_of(self, hospital: bytes) -> bytes:
        """Return the digest of all that is fixed for a hospital's report; 32 bytes."""
        numbers = list(self.layout_of(hospital).numbers)
        ends = [hospital, self.coordinator.fingerprint, self.tally.fingerprint]
        return digest_of_values("report context", [self.plan_digest, *ends, numbers])


def make_report(
    batch: VoteBatch,
    rows: NDArray[np.int64],
    *,
    identity: SigningIdentity,
    random_bytes: Callable[[int], bytes],
) -> bytes:
    """Prove, seal and sign a hospital's votes; return the frame of its `VoteReport`.

    A hospital keeps the frame before it sends it, and resends these bytes: it makes one report of
    a batch.

    Args:
        batch: Of its plan.
        rows: Votes; shape (queries, columns). Secret.
        identity: The hospital's.
        random_bytes: The operating system's randomness.

    Raises:
        UnknownPeerError: the hospital is not in the batch.
        InvalidVectorError: the rows are no votes of its number.
        SuiteError: an aggregator's key is of another suite.
    """
    hospital = identity.fingerprint
    layout, context = batch.layout_of(hospital), batch.context_of(hospital)
    proved = prove(layout, rows, context=context, random_bytes=random_bytes)
    bindings = (
        VoteShare.of_coordinator(layout, proved.coordinator, context=context).binding,
        VoteShare.of_tally(layout, proved.tally, context=context).binding,
    )
    envelopes = [
        seal(
            part,
            to.sealing_key,
            suite=batch.suite,
            run_id=_scope(context, *bindings),
            sender=hospital,
            receiver=to.fingerprint,
            purpose=VOTES,
        )
        for part, to in ((proved.coordinator, batch.coordinator), (proved.tally, batch.tally))
    ]
    digests = _digest_of_part(context, proved.coordinator), _digest_of_envelope(envelopes[1])
    header = ReportHeader(batch.plan_digest, hospital, *bindings, *digests)
    return wire.contain(VoteReport(wire.sign(header, identity).frame, *envelopes))


def read_header(
    batch: VoteBatch, frame: bytes, *, identities: Mapping[bytes, PublicIdentity]
) -> ReportHeader:
    """Check a report's header, as both aggregators do before they open anything.

    Raises:
        MalformedMessageError: it is no header.
        UnexpectedMessageError: it is of another plan.
        UnknownPeerError: its hospital is not in the batch, or not among `identities`.
        BadSignatureError: its hospital did not sign it.
    """
    signed = wire.decode(frame)
    header = wire.expect(signed, ReportHeader)
    if header.plan_digest != batch.plan_digest:
        raise UnexpectedMessageError("a report must be of the open plan")
    identity = identities.get(header.sender)
    if identity is None or header.sender not in batch.votes:
        raise UnknownPeerError("a report must be of a hospital of its plan")
    signed.verify(identity)
    return header


def open_part(
    batch: VoteBatch, header: ReportHeader, sealed: bytes, *, key: SealingKey, is_tally: bool
) -> bytes:
    """Open an aggregator's part of a report whose header was checked; see `read_part`.

    Raises:
        WrongShareError: another envelope than its hospital signed.
        BrokenEnvelopeError: it was sealed for another report, hospital or aggregator.
    """
    if is_tally:
        require_handed_on(header, sealed)
    context = batch.context_of(header.sender)
    return key.open(
        sealed,
        run_id=_scope(context, header.coordinator_binding, header.tally_binding),
        sender=header.sender,
        receiver=(batch.tally if is_tally else batch.coordinator).fingerprint,
        purpose=VOTES,
    )


def read_part(batch: VoteBatch, header: ReportHeader, part: bytes, *, is_tally: bool) -> VoteShare:
    """Read an opened part of a report whose header was checked.

    Raises:
        WrongShareError: another part than its hospital signed.
        MalformedMessageError: it has another length, or a word that is no element.
    """
    layout, context = batch.layout_of(header.sender), batch.context_of(header.sender)
    read = VoteShare.of_tally if is_tally else VoteShare.of_coordinator
    share = read(layout, part, context=context)
    if share.binding != (header.tally_binding if is_tally else header.coordinator_binding):
        raise WrongShareError("a part of a report must be the one that its hospital bound")
    # Its binding does not cover the quotients, which depend on it.
    if not is_tally and _digest_of_part(context, part) != header.coordinator_part:
        raise WrongShareError("a part of a report must be the one that its hospital signed")
    return share


def require_handed_on(header: ReportHeader, sealed: bytes) -> None:
    """Refuse, with `WrongShareError`, an envelope for the tally that its hospital did not sign."""
    if _digest_of_envelope(sealed) != header.tally_envelope:
        raise WrongShareError("an envelope must be the one that its hospital signed")


def _scope(context: bytes, coordinator_binding: bytes, tally_binding: bytes) -> bytes:
    return digest_of_values("report", [context, coordinator_binding, tally_binding])


def _digest_of_part(context: bytes, part: bytes) -> bytes:
    return digest_of_values("report part", [context, part])


def _digest_of_envelope(sealed: bytes) -> bytes:
    return digest_of_values("report envelope", sealed)

"""Whether one aggregator told the truth in a batch, its noise included: for an auditor, afterwards.

All that an end tells is a function of the sealed reports, the coin and its own seed, to which it
committed before there was a coin. An auditor who is given one end's key and seed computes all of it
again. The other end's noise still hides the sum from the auditor. Whoever is given both ends' keys
reads every vote: never let one auditor have both, nor one that the other end may talk to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import ProtocolError, UnexpectedMessageError, UnknownPeerError
from protocols.fields import Message
from protocols.identity import PublicIdentity
from protocols.verified.vote_report import VoteBatch, read_header
from protocols.verified.vote_side import (
    ListedReport,
    NoiseLaw,
    SideSecrets,
    VoteSide,
    coin_of,
    commitment_to_nonce,
    decide,
    report_taken,
    reports_in,
    require_list,
)
from protocols.vote_messages import Acceptance, ListReceipt, ReportList, SumShare, VoteAnswers

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class SideMaterial:
    """What one aggregator hands over. Secret: together with the other end's it opens every vote.

    Attributes:
        key: Of its sealed parts: so that what it says it got is what hospitals sealed.
        secrets: Of the batch.
        reports: The coordinator's: `VoteReport` frames as they came. The tally's are in the list.
    """

    key: SealingKey = field(repr=False)
    secrets: SideSecrets
    reports: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SideFindings:
    """How an aggregator's messages differ from what it had to tell.

    Attributes:
        wrong: Names of the types of its wrong messages, in their order; empty if all are right.
        hospitals: Fingerprints of those about whose reports its answer is wrong, ascending: it may
            have excluded them.
    """

    wrong: tuple[str, ...]
    hospitals: tuple[bytes, ...] = ()


def audit_side(
    batch: VoteBatch,
    material: SideMaterial,
    told: Sequence[bytes],
    *,
    is_tally: bool,
    ends: tuple[PublicIdentity, PublicIdentity],
    hospitals: Mapping[bytes, PublicIdentity],
    least_parties: int,
    draw_noise: NoiseLaw,
) -> SideFindings:
    """Compute again what one aggregator told in a batch, and compare.

    Args:
        batch: Of the signed plan.
        material: Of the audited end.
        told: Frames of both ends, in any order, as far as the batch came. Those of the audited end
            are to be taken from the other end's journal: they are what really left.
        is_tally: Which end is audited.
        ends: Pinned identities of coordinator and tally.
        hospitals: Those of the hospitals, by fingerprint.
        least_parties: Fewest hospitals in an opened sum.
        draw_noise: The law that the plan names.

    Raises:
        UnknownPeerError: the key is not the one that the plan names.
        RemoteProtocolError: a frame is not of one of the two or of this batch, or there is no list.
    """
    end = batch.tally if is_tally else batch.coordinator
    if material.key.public_bytes != end.sealing_key:
        raise UnknownPeerError("an audited aggregator must hand over the key that its plan names")
    said = _Said(batch, told, ends=ends)
    side = VoteSide(batch, is_tally, material.key, material.secrets, draw_noise)
    listed = said.need(ReportList, by_tally=False)
    try:
        if is_tally:
            require_list(batch, listed, hospitals=hospitals, least=least_parties)
            reports = reports_in(listed)
        else:
            reports = _reports_of(batch, material.reports, hospitals=hospitals)
    except ProtocolError:  # the tally noted what is no list, or the coordinator shows other reports
        return SideFindings(((ListReceipt if is_tally else ReportList).__name__,))
    first = side.receipt_of(listed) if is_tally else side.list_of(reports)
    wrong = said.wrong_of([first], (type(first),), by_tally=is_tally)
    if wrong or not said.has(VoteAnswers, by_tally=False):
        return SideFindings(wrong)
    nonces = (
        said.need(VoteAnswers, by_tally=False).nonce,
        said.need(ListReceipt, by_tally=True).nonce,
    )
    coin = coin_of(batch, reports, coordinator_nonce=nonces[0], tally_nonce=nonces[1])
    expected: list[Message] = []
    own = side.answers(reports, coin)
    if commitment_to_nonce(batch, nonces[0]) == listed.nonce_commitment:
        expected.append(own)
    differing: tuple[bytes, ...] = ()
    if said.has(VoteAnswers, by_tally=True):
        # What both stated, wrong or not, is what they decided by.
        answers = [said.need(VoteAnswers, by_tally=by_tally) for by_tally in (False, True)]
        decision = decide(batch, reports, coin, (answers[0], answers[1]))
        expected.append(side.acceptance(decision, coin))
        if len(decision.accepted) >= least_parties:
            expected.append(side.sum_share(reports, decision, coin))
        differing = _differing(reports, own, answers[is_tally])
    kinds = (VoteAnswers, Acceptance, SumShare)
    return SideFindings(said.wrong_of(expected, kinds, by_tally=is_tally), differing)


class _Said:
    """What both ends told, checked for its sender."""

    def __init__(
        self,
        batch: VoteBatch,
        frames: Sequence[bytes],
        *,
        ends: tuple[PublicIdentity, PublicIdentity],
    ) -> None:
        self._messages: dict[tuple[type[Message], bool], list[Message]] = {}
        for frame in frames:
            signed = wire.decode(frame)
            message = signed.message
            if getattr(message, "plan_digest", None) != batch.plan_digest:
                raise UnexpectedMessageError("a message must be of the audited plan")
            by_tally = isinstance(message, ListReceipt) or (
                getattr(message, "sender", b"") == batch.tally.fingerprint
            )
            signed.verify(ends[by_tally])
            known = self._messages.setdefault((type(message), by_tally), [])
            if message not in known:
                known.append(message)

    def has(self, kind: type[Message], *, by_tally: bool) -> bool:
        return (kind, by_tally) in self._messages

    def need(self, kind: type[M], *, by_tally: bool) -> M:
        """Return an end's first message of a kind."""
        for message in self._messages.get((kind, by_tally), []):
            if isinstance(message, kind):
                return message
        raise UnexpectedMessageError(f"an audit must have the {kind.__name__}")

    def wrong_of(
        self, expected: Sequence[Message], kinds: Sequence[type[Message]], *, by_tally: bool
    ) -> tuple[str, ...]:
        """Name the kinds of which an end told anything but what it had to tell."""
        return tuple(
            kind.__name__
            for kind in kinds
            if any(each not in expected for each in self._messages.get((kind, by_tally), []))
        )


def _reports_of(
    batch: VoteBatch, frames: Sequence[bytes], *, hospitals: Mapping[bytes, PublicIdentity]
) -> tuple[ListedReport, ...]:
    found = {}
    for frame in frames:
        report = report_taken(frame)
        read_header(batch, report.frame, identities=hospitals)
        found[report.header.sender] = report
    return tuple(found[hospital] for hospital in sorted(found))


def _differing(
    reports: Sequence[ListedReport], expected: VoteAnswers, stated: VoteAnswers
) -> tuple[bytes, ...]:
    rows = zip(reports, expected.answers, stated.answers, strict=True)
    return tuple(report.header.sender for report, own, told in rows if own != told)

"""Whether one aggregator told the truth in a batch, its noise included: for an auditor, afterwards.

All that an end tells is a function of its parts of reports, the coin and its own seed, to which it
committed before there was a coin. An auditor who is given one end's opened parts and seed of a
batch computes all of it again: each part is the one that its hospital signed. No key is handed
over, so nothing of another batch can be read. The other end's noise still hides the sum from the
auditor. Whoever is given both ends' parts of one batch reads every vote of it: never let one
auditor have both, nor one that the other end may talk to.

Of a report for which an end shows no part nobody can tell whether its hospital sealed none, or the
end excluded it: `SideFindings.unopened` names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import ProtocolError, UnexpectedMessageError, WrongShareError
from protocols.fields import Message
from protocols.identity import PublicIdentity
from protocols.verified.vote_report import VoteBatch, read_part, require_handed_on
from protocols.verified.vote_side import (
    ListedReport,
    NoiseLaw,
    SideSecrets,
    VoteSide,
    coin_of,
    commitment_to_nonce,
    decide,
    parts_opened_by,
    reports_in,
    require_list,
)
from protocols.vote_messages import Acceptance, ListReceipt, ReportList, SumShare, VoteAnswers

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class SideMaterial:
    """What one aggregator hands over. Secret: with the other end's it opens the batch's votes.

    Attributes:
        secrets: Of the batch.
        parts: Its opened parts of reports, by hospital, of those that it could open.
        headers: The coordinator's: signed headers of all reports that came. The tally's are in the
            list.
    """

    secrets: SideSecrets
    parts: Mapping[bytes, bytes] = field(repr=False)
    headers: tuple[bytes, ...] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        batch: VoteBatch,
        secrets: SideSecrets,
        reports: Sequence[ListedReport],
        *,
        key: SealingKey,
        is_tally: bool,
    ) -> Self:
        """Open an end's parts of a batch's reports, as it has them."""
        part_of, parts = parts_opened_by(key, batch, is_tally=is_tally), {}
        for report in reports:
            with suppress(ProtocolError):
                part = part_of(report)
                read_part(batch, report.header, part, is_tally=is_tally)
                parts[report.header.sender] = part
        headers = () if is_tally else tuple(report.frame for report in reports)
        return cls(secrets, parts, headers)

    def part_of(self, report: ListedReport) -> bytes:
        """Return a report's part; `WrongShareError` where none was opened."""
        if report.header.sender not in self.parts:
            raise WrongShareError("a part of a report must have been opened")
        return self.parts[report.header.sender]


@dataclass(frozen=True, slots=True)
class SideFindings:
    """How an aggregator's messages differ from what it had to tell.

    Attributes:
        wrong: Names of the types of its wrong messages, in their order; empty if all are right.
        hospitals: Fingerprints of those about whose reports its answer is wrong, ascending: it may
            have excluded them.
        unopened: Fingerprints of those of whose reports the audited end shows no part: they sealed
            none, or it excluded them.
    """

    wrong: tuple[str, ...]
    hospitals: tuple[bytes, ...] = ()
    unopened: tuple[bytes, ...] = ()


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
        WrongShareError: a shown part is not the one that its hospital signed.
        RemoteProtocolError: a frame is not of one of the two or of this batch, or there is no list.
    """
    said = _Said(batch, told, ends=ends)
    side = VoteSide(batch, is_tally, material.part_of, material.secrets, draw_noise)
    listed = said.need(ReportList, by_tally=False)
    try:
        require_list(batch, listed, hospitals=hospitals, least=least_parties)
        reports = reports_in(listed)
        if not is_tally:
            reports = _as_coordinator(reports, material.headers)
    except ProtocolError:  # the tally noted what is no list, or the coordinator told none
        return SideFindings(((ListReceipt if is_tally else ReportList).__name__,))
    for report in reports:
        if report.header.sender in material.parts:
            read_part(batch, report.header, material.part_of(report), is_tally=is_tally)
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
    senders = (report.header.sender for report in reports)
    unopened = tuple(each for each in senders if each not in material.parts)
    if said.has(VoteAnswers, by_tally=True):
        # What both stated, wrong or not, is what they decided by.
        answers = [said.need(VoteAnswers, by_tally=by_tally) for by_tally in (False, True)]
        decision = decide(batch, reports, coin, (answers[0], answers[1]))
        expected.append(side.acceptance(decision, coin))
        has_parts = material.parts.keys() >= set(decision.accepted)
        if has_parts and len(decision.accepted) >= least_parties:
            expected.append(side.sum_share(reports, decision, coin))
        differing = _differing(reports, own, answers[is_tally])
    kinds = (VoteAnswers, Acceptance, SumShare)
    wrong = said.wrong_of(expected, kinds, by_tally=is_tally)
    return SideFindings(wrong, differing, unopened)


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


def _as_coordinator(
    listed: Sequence[ListedReport], came: Sequence[bytes]
) -> tuple[ListedReport, ...]:
    """Return a list's reports as the coordinator has them, all of those that came.

    Raises `UnexpectedMessageError` where it listed others, `WrongShareError` where it handed on
    another envelope than a hospital signed.
    """
    if {report.frame for report in listed} != set(came):
        raise UnexpectedMessageError("a list must have all reports that came, and no other")
    for report in listed:
        require_handed_on(report.header, report.sealed)
    return tuple(replace(report, sealed=b"", handed_on=report.sealed) for report in listed)


def _differing(
    reports: Sequence[ListedReport], expected: VoteAnswers, stated: VoteAnswers
) -> tuple[bytes, ...]:
    rows = zip(reports, expected.answers, stated.answers, strict=True)
    return tuple(report.header.sender for report, own, told in rows if own != told)

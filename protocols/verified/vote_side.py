"""What one aggregator computes of a batch: of its parts, its secrets and what both ends told alone.

So its machine computes it again after a restart, and whoever is given the same can tell whether it
told the truth (`side_audit`). It holds the share of one hospital at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import MalformedMessageError, ProtocolError, TooFewPartiesError
from protocols.fields import DIGEST_BYTES
from protocols.identity import PublicIdentity
from protocols.values import digest_of_values
from protocols.verified.prime_field import Elements, PrimeField
from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import EvaluationPoint, VoteShare, challenge
from protocols.verified.vote_report import (
    Aggregator,
    VoteBatch,
    open_part,
    read_header,
    read_part,
)
from protocols.verified.vote_sum import make_coin, noise_bytes, noisy_share
from protocols.vote_messages import (
    Acceptance,
    ListReceipt,
    ReportHeader,
    ReportList,
    SumShare,
    VoteAnswers,
    VoteReport,
)

NoiseLaw: TypeAlias = Callable[[tuple[int, int], Callable[[int], bytes]], NDArray[np.int64]]
"""Draws noise of a shape, the full amount, from a source of bytes alone."""


@dataclass(frozen=True, slots=True)
class SideSecrets:
    """What an aggregator draws for a batch: its half of the coin, the seed of its noise. Secret."""

    nonce: bytes = field(repr=False)
    noise_seed: bytes = field(repr=False)

    @classmethod
    def draw(cls, random_bytes: Callable[[int], bytes]) -> SideSecrets:
        """Draw both, 32 bytes each."""
        return cls(random_bytes(DIGEST_BYTES), random_bytes(DIGEST_BYTES))


@dataclass(frozen=True, slots=True)
class ListedReport:
    """A report of the closed list, as one aggregator has it.

    Attributes:
        header: Checked.
        frame: Of the signed header.
        sealed: This aggregator's part.
        handed_on: At the coordinator the tally's part.
    """

    header: ReportHeader
    frame: bytes = field(repr=False)
    sealed: bytes = field(repr=False)
    handed_on: bytes = field(default=b"", repr=False)


PartOf: TypeAlias = Callable[[ListedReport], bytes]
"""Returns an aggregator's part of a report; raises a `ProtocolError` where it has none."""


def parts_opened_by(key: SealingKey, batch: VoteBatch, *, is_tally: bool) -> PartOf:
    """Open parts with an aggregator's key for sealed parts."""
    return lambda report: open_part(batch, report.header, report.sealed, key=key, is_tally=is_tally)


@dataclass(frozen=True, slots=True)
class Decision:
    """Which reports both aggregators' answers prove to be of votes.

    Attributes:
        accepted: Fingerprints of their hospitals, ascending.
        rejected: The signed header of each other report, by hospital: for the operator. Why, nobody
            notes: a hospital hears that it was rejected, and no more.
    """

    accepted: tuple[bytes, ...]
    rejected: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class VoteSide:
    """One aggregator in one batch.

    Attributes:
        batch: Of the signed plan.
        is_tally: Which of the two.
        part_of: Its parts of reports. Secret.
        secrets: Of this batch.
        draw_noise: The law of the noise.
    """

    batch: VoteBatch
    is_tally: bool
    part_of: PartOf = field(repr=False)
    secrets: SideSecrets
    draw_noise: NoiseLaw = field(repr=False)

    @property
    def fingerprint(self) -> bytes:
        """The aggregator's."""
        return self._end.fingerprint

    def list_of(self, reports: Sequence[ListedReport]) -> ReportList:
        """Return the coordinator's message that closes the list."""
        return ReportList(
            self.batch.plan_digest,
            tuple(report.frame for report in reports),
            tuple(report.handed_on for report in reports),
            commitment_to_nonce(self.batch, self.secrets.nonce),
            self.noise_commitment,
        )

    def receipt_of(self, told: ReportList) -> ListReceipt:
        """Return the tally's answer to a list that it noted."""
        return ListReceipt(
            self.batch.plan_digest,
            wire.digest_of(told),
            self.secrets.nonce,
            self.noise_commitment,
        )

    @property
    def noise_commitment(self) -> bytes:
        """Digest of the seed of its noise: tells nothing of it, and fixes it."""
        said = [self.batch.plan_digest, self.fingerprint, self.secrets.noise_seed]
        return digest_of_values("noise commitment", said)

    def answers(self, reports: Sequence[ListedReport], coin: bytes) -> VoteAnswers:
        """Return its answers: each depends on its own share of a report, and the coin, alone."""
        told = []
        for report in reports:
            opened = self._opened(report)
            if opened is None:
                told.append(b"")
            else:
                point = _point_of(opened[0], coin)
                answer = point.answer(opened[1], takes_off_votes=not self.is_tally)
                told.append(opened[0].field.to_bytes(answer))
        return VoteAnswers(
            self.batch.plan_digest, self.fingerprint, self.secrets.nonce, tuple(told)
        )

    def acceptance(self, decision: Decision, coin: bytes) -> Acceptance:
        """Return the digest of a decision, as both ends must find it."""
        accepted = digest_of_values("accepted reports", [coin, list(decision.accepted)])
        return Acceptance(self.batch.plan_digest, self.fingerprint, accepted)

    def sum_share(
        self, reports: Sequence[ListedReport], decision: Decision, coin: bytes
    ) -> SumShare:
        """Return its share of the accepted votes with its noise: the one thing that opens a sum."""
        noise = self.draw_noise(
            (self.batch.queries, self.batch.columns),
            noise_bytes(
                self.secrets.noise_seed,
                plan_digest=self.batch.plan_digest,
                aggregator=self.fingerprint,
                coin=coin,
            ),
        )
        accepted = frozenset(decision.accepted)
        share = noisy_share(self._shares_of(reports, accepted), noise)
        return SumShare(self.batch.plan_digest, self.fingerprint, PrimeField().to_bytes(share))

    @property
    def _end(self) -> Aggregator:
        return self.batch.tally if self.is_tally else self.batch.coordinator

    def _shares_of(
        self, reports: Sequence[ListedReport], hospitals: frozenset[bytes]
    ) -> Iterator[tuple[VoteLayout, VoteShare]]:
        for report in reports:
            if report.header.sender in hospitals:
                opened = self._opened(report)
                assert opened is not None  # an accepted one was answered
                yield opened

    def _opened(self, report: ListedReport) -> tuple[VoteLayout, VoteShare] | None:
        try:
            part = self.part_of(report)
            share = read_part(self.batch, report.header, part, is_tally=self.is_tally)
        except ProtocolError:
            return None
        return self.batch.layout_of(report.header.sender), share


@lru_cache(maxsize=256)
def _point_of(layout: VoteLayout, coin: bytes) -> EvaluationPoint:
    """Prepare the point of a coin: hospitals of as many votes share it."""
    return EvaluationPoint.of(layout, coin)


def commitment_to_nonce(batch: VoteBatch, nonce: bytes) -> bytes:
    """Return the digest that fixes the coordinator's half of the coin before the tally's is told.

    So neither end chooses the coin.
    """
    return digest_of_values("nonce commitment", [batch.plan_digest, nonce])


def coin_of(
    batch: VoteBatch,
    reports: Sequence[ListedReport],
    *,
    coordinator_nonce: bytes,
    tally_nonce: bytes,
) -> bytes:
    """Return the coin of a batch's closed list."""
    return make_coin(
        plan_digest=batch.plan_digest,
        headers=[wire.digest_of(report.header) for report in reports],
        coordinator_nonce=coordinator_nonce,
        tally_nonce=tally_nonce,
    )


def report_taken(frame: bytes) -> ListedReport:
    """Read a report whose header was checked, as the coordinator lists it."""
    report = wire.expect(wire.decode(frame), VoteReport)
    header = wire.expect(wire.decode(report.header), ReportHeader)
    return ListedReport(header, report.header, report.coordinator_envelope, report.tally_envelope)


def require_list(
    batch: VoteBatch,
    told: ReportList,
    *,
    hospitals: Mapping[bytes, PublicIdentity],
    least: int,
) -> None:
    """Check a list as the tally does before it notes it.

    Raises:
        MalformedMessageError: hospitals do not ascend, or one has no envelope.
        RemoteProtocolError: a header is not its hospital's, or of another plan; see `read_header`.
        TooFewPartiesError: fewer reports than the plan wants.
    """
    senders = [read_header(batch, frame, identities=hospitals).sender for frame in told.headers]
    if senders != sorted(set(senders)) or len(told.envelopes) != len(senders):
        raise MalformedMessageError("a list must have each hospital once, ascending")
    if len(senders) < least:
        raise TooFewPartiesError(received=len(senders), threshold=least)


def reports_in(told: ReportList) -> tuple[ListedReport, ...]:
    """Return the reports of a list that was checked, as the tally has them."""
    headers = (wire.expect(wire.decode(frame), ReportHeader) for frame in told.headers)
    rows = zip(headers, told.headers, told.envelopes, strict=True)
    return tuple(ListedReport(*row) for row in rows)


def read_answers(
    batch: VoteBatch, reports: Sequence[ListedReport], told: VoteAnswers
) -> list[Elements | None]:
    """Read an aggregator's answers, each of shape (2, answer length); None where it has none.

    Raises `MalformedMessageError` where one is of another length or has words that are no elements,
    or their number is not the list's.
    """
    if len(told.answers) != len(reports):
        raise MalformedMessageError("there must be an answer for each report", len(told.answers))
    found: list[Elements | None] = []
    for report, answer in zip(reports, told.answers, strict=True):
        layout = batch.layout_of(report.header.sender)
        length = layout.answer_length
        found.append(
            layout.field.from_bytes(answer, 2 * length, MalformedMessageError).reshape(2, length)
            if answer
            else None
        )
    return found


def read_sum_share(batch: VoteBatch, told: SumShare) -> Elements:
    """Read an aggregator's noisy share, of shape (queries, columns).

    Raises `MalformedMessageError` where it is of another length or has words that are no elements.
    """
    body = PrimeField().from_bytes(told.body, batch.queries * batch.columns, MalformedMessageError)
    return body.reshape(batch.queries, batch.columns)


def decide(
    batch: VoteBatch,
    reports: Sequence[ListedReport],
    coin: bytes,
    answers: tuple[VoteAnswers, VoteAnswers],
) -> Decision:
    """Decide from both aggregators' answers, in either order: both ends decide alike."""
    accepted, rejected = [], {}
    both = zip(*(read_answers(batch, reports, told) for told in answers), strict=True)
    for report, (one, other) in zip(reports, both, strict=True):
        header, hospital = report.header, report.header.sender
        layout, context = batch.layout_of(hospital), batch.context_of(hospital)
        bindings = header.coordinator_binding, header.tally_binding
        weights = challenge(layout, *bindings, context=context)
        point = _point_of(layout, coin)
        if one is not None and other is not None and point.accepts(weights, one, other):
            accepted.append(hospital)
        else:
            rejected[hospital] = report.frame
    return Decision(tuple(accepted), rejected)

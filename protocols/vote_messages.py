"""Messages of verified votes: of a hospital, and between both aggregators.

The flow is in docs/reference/messages.md, what is in them in `verified`.
"""

from __future__ import annotations

from typing import Annotated

from protocols.fields import (
    KIB,
    MAX_PARTIES,
    MAX_WORDS,
    Digest,
    Frame,
    Length,
    Message,
    Nonce,
    message,
)


@message(36, "report header")
class ReportHeader(Message):
    """What a hospital signs of its votes in a batch: it binds both aggregators to one report.

    Attributes:
        coordinator_binding: Of the coordinator's part; see `verified.vote_proof`.
        tally_binding: Of the tally's part.
        coordinator_part: Digest of the coordinator's whole part, which its binding leaves out some
            of: so that its auditor knows what it opened.
        tally_envelope: Digest of the tally's sealed part, which the coordinator relays.
    """

    plan_digest: Digest
    sender: Digest
    coordinator_binding: Digest
    tally_binding: Digest
    coordinator_part: Digest
    tally_envelope: Digest


@message(37, most_bytes=4 * MAX_WORDS + 16 * KIB)
class VoteReport(Message):
    """All that a hospital sends for a batch; `header` is its signed `ReportHeader` frame.

    The coordinator opens its own part, and hands header and `tally_envelope` on.
    """

    header: Frame
    coordinator_envelope: Annotated[bytes, Length(1, 4 * MAX_WORDS + 4 * KIB)]
    tally_envelope: Annotated[bytes, Length(1, 2 * KIB)]


MAX_ANSWER_BYTES = 128 * KIB
"""An aggregator's answer about one report, of up to 16,000 columns of a proof's grid."""


@message(38, "report list", most_bytes=MAX_PARTIES * 7 * KIB)
class ReportList(Message):
    """The coordinator closes a batch's list of reports: no report enters later.

    Attributes:
        headers: Signed `ReportHeader` frames, by ascending fingerprints of their hospitals.
        envelopes: The tally's sealed part of each report, in the same order.
        nonce_commitment: Digest of the coordinator's half of the coin, which it tells later.
        noise_commitment: Digest of the seed of its noise, which it never tells the tally.
    """

    plan_digest: Digest
    headers: Annotated[tuple[Frame, ...], Length(1, MAX_PARTIES)]
    envelopes: Annotated[tuple[Annotated[bytes, Length(1, 2 * KIB)], ...], Length(1, MAX_PARTIES)]
    nonce_commitment: Digest
    noise_commitment: Digest


@message(39, "list receipt")
class ListReceipt(Message):
    """The tally noted a list, with the digest of its message, and gives its half of the coin."""

    plan_digest: Digest
    list_digest: Digest
    nonce: Nonce
    noise_commitment: Digest


@message(40, "vote answers", most_bytes=MAX_PARTIES * (MAX_ANSWER_BYTES + 8))
class VoteAnswers(Message):
    """What an aggregator's shares are at the coin's point, for each report of the list.

    Attributes:
        nonce: The sender's half of the coin.
        answers: Elements of the extension, all real parts first; empty where the sender's part of
            a report does not open.
    """

    plan_digest: Digest
    sender: Digest
    nonce: Nonce
    answers: Annotated[
        tuple[Annotated[bytes, Length(0, MAX_ANSWER_BYTES)], ...], Length(1, MAX_PARTIES)
    ]


@message(41, "acceptance")
class Acceptance(Message):
    """An aggregator's digest of the reports that it accepts (`verified.vote_side`)."""

    plan_digest: Digest
    sender: Digest
    accepted: Digest


@message(42, "sum share", most_bytes=4 * MAX_WORDS + 4 * KIB)
class SumShare(Message):
    """An aggregator's share of the accepted votes, with its noise; elements of the field."""

    plan_digest: Digest
    sender: Digest
    body: Annotated[bytes, Length(1, 4 * MAX_WORDS)]

    def __repr__(self) -> str:
        return f"SumShare({len(self.body)} bytes)"

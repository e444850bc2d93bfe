"""The whole of verified votes in one function, to be read: reports in, their noisy sum out.

Both aggregators take their steps in turn, in one place. Each value that one tells the other is
named; everything else stays with its owner. A service does the same message by message, and notes
each message before it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from protocols.envelope import SealingKey
from protocols.errors import ProtocolError, TooFewPartiesError
from protocols.identity import PublicIdentity
from protocols.verified.vote_report import VoteBatch, read_header
from protocols.verified.vote_side import (
    ListedReport,
    SideSecrets,
    VoteSide,
    coin_of,
    decide,
    parts_opened_by,
    read_sum_share,
    report_taken,
)
from protocols.verified.vote_sum import open_noisy_sum


@dataclass(frozen=True, slots=True)
class VerifyingEnd:
    """One aggregator: its key for sealed parts, its nonce, its own noise. Secret.

    Attributes:
        key: Its public half stands in the batch.
        nonce: 32 random bytes, fresh for the batch.
        noise: Drawn for this batch alone, the full amount; shape (queries, columns).
    """

    key: SealingKey = field(repr=False)
    nonce: bytes = field(repr=False)
    noise: NDArray[np.int64] = field(repr=False)

    def side(self, batch: VoteBatch, *, is_tally: bool) -> VoteSide:
        """Return what it computes of a batch: its noise is drawn, so that it needs no seed."""
        secrets = SideSecrets(self.nonce, noise_seed=b"")
        part_of = parts_opened_by(self.key, batch, is_tally=is_tally)
        return VoteSide(batch, is_tally, part_of, secrets, lambda *_: self.noise)


@dataclass(frozen=True, slots=True)
class VerifiedSum:
    """The end of a batch.

    Attributes:
        accepted: Fingerprints of the hospitals whose votes are in the sum, ascending.
        rejected: The signed header of each other report, by hospital: for the operator. A hospital
            hears no reason.
        unreadable: Reports without a header of a hospital of the batch: they are nobody's.
        counts: Votes and both noises; shape (queries, columns).
    """

    accepted: tuple[bytes, ...]
    rejected: Mapping[bytes, bytes]
    unreadable: int
    counts: NDArray[np.int64]


def run_verified_sum(
    batch: VoteBatch,
    frames: Sequence[bytes],
    *,
    identities: Mapping[bytes, PublicIdentity],
    coordinator: VerifyingEnd,
    tally: VerifyingEnd,
    least_parties: int,
) -> VerifiedSum:
    """Check the reports of a batch, and open the noisy sum of those that hold votes.

    Args:
        batch: Of the signed plan.
        frames: `VoteReport` frames as they came; the first one of a hospital counts.
        identities: Pinned identities of the hospitals, by fingerprint.
        coordinator: The end that gets the reports.
        tally: The other one.
        least_parties: Fewest hospitals whose sum opens.

    Raises:
        TooFewPartiesError: fewer were accepted; nothing opens.
    """
    # 1. The coordinator collects, and passes header and tally's envelope on. The tally reads each
    # header itself. When all are there the list is closed: no report enters later.
    reports: dict[bytes, ListedReport] = {}
    unreadable = 0
    for frame in frames:
        try:
            report = report_taken(frame)
            read_header(batch, report.frame, identities=identities)
        except ProtocolError:
            unreadable += 1
        else:
            reports.setdefault(report.header.sender, report)
    listed = [reports[hospital] for hospital in sorted(reports)]
    handed_on = [replace(report, sealed=report.handed_on) for report in listed]

    # 2. Both say their nonces, which with the list give one coin for all reports.
    coin = coin_of(batch, listed, coordinator_nonce=coordinator.nonce, tally_nonce=tally.nonce)

    # 3. Each opens its own parts, and tells its answer about each hospital, or that it has none.
    first, second = coordinator.side(batch, is_tally=False), tally.side(batch, is_tally=True)
    told = first.answers(listed, coin), second.answers(handed_on, coin)

    # 4. Both decide alike from both answers: the accepted are one set.
    decision = decide(batch, listed, coin, told)
    if len(decision.accepted) < least_parties:
        raise TooFewPartiesError(received=len(decision.accepted), threshold=least_parties)

    # 5. Each adds its shares of the accepted hospitals' votes, and its own noise, and tells that.
    shares = (
        first.sum_share(listed, decision, coin),
        second.sum_share(handed_on, decision, coin),
    )
    counts = open_noisy_sum(*(read_sum_share(batch, share) for share in shares))
    return VerifiedSum(decision.accepted, decision.rejected, unreadable, counts)

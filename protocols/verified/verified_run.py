"""The whole of verified votes in one function, to be read: reports in, their noisy sum out.

Both aggregators take their steps in turn, in one place. Each value that one tells the other is
named; everything else stays with its owner. A service does the same message by message, and notes
each message before it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import ProtocolError, TooFewPartiesError
from protocols.identity import PublicIdentity
from protocols.verified.prime_field import Elements
from protocols.verified.vote_proof import EvaluationPoint, VoteShare, challenge
from protocols.verified.vote_report import (
    VoteBatch,
    open_coordinator_part,
    open_tally_part,
    read_header,
)
from protocols.verified.vote_sum import make_coin, noisy_share, open_noisy_sum
from protocols.vote_messages import ReportHeader, VoteReport


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
    reports: dict[bytes, tuple[ReportHeader, VoteReport]] = {}
    unreadable = 0
    for frame in frames:
        try:
            report = wire.expect(wire.decode(frame), VoteReport)
            header = read_header(batch, report.header, identities=identities)
        except ProtocolError:
            unreadable += 1
        else:
            reports.setdefault(header.sender, (header, report))
    hospitals = sorted(reports)

    # 2. Both say their nonces, which with the list give one point for all reports of a layout.
    coin = make_coin(
        plan_digest=batch.plan_digest,
        headers=[wire.digest_of(reports[hospital][0]) for hospital in hospitals],
        coordinator_nonce=coordinator.nonce,
        tally_nonce=tally.nonce,
    )
    point_of = cache(lambda layout: EvaluationPoint.of(layout, coin))

    # 3. Each opens its own parts, and tells its answer about each hospital, or that it has none.
    opened: dict[bytes, tuple[VoteShare, VoteShare]] = {}
    rejected: set[bytes] = set()
    for hospital in hospitals:
        header, report = reports[hospital]
        try:
            # Two ends: a fault that one of them finds is told to the other as "no answer".
            opened[hospital] = (
                open_coordinator_part(
                    batch, header, report.coordinator_envelope, key=coordinator.key
                ),
                open_tally_part(batch, header, report.tally_envelope, key=tally.key),
            )
        except ProtocolError:
            rejected.add(hospital)

    # 4. Both decide alike from both answers: the accepted are one set.
    accepted = []
    for hospital, (first, second) in opened.items():
        layout = batch.layout_of(hospital)
        point = point_of(layout)
        told: tuple[Elements, Elements] = (
            point.answer(first, takes_off_votes=True),
            point.answer(second, takes_off_votes=False),
        )
        weights = challenge(
            layout, first.binding, second.binding, context=batch.context_of(hospital)
        )
        if point.accepts(weights, *told):
            accepted.append(hospital)
        else:
            rejected.add(hospital)
    if len(accepted) < least_parties:
        raise TooFewPartiesError(received=len(accepted), threshold=least_parties)

    # 5. Each adds its shares of the accepted hospitals' votes, and its own noise, and tells that.
    shares = [
        noisy_share([(batch.layout_of(one), opened[one][place]) for one in accepted], end.noise)
        for place, end in enumerate((coordinator, tally))
    ]
    return VerifiedSum(
        tuple(accepted),
        {hospital: reports[hospital][1].header for hospital in sorted(rejected)},
        unreadable,
        open_noisy_sum(shares[0], shares[1]),
    )

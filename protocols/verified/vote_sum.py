"""What both aggregators make together: the coin of a batch, and the noisy sum of its votes.

An aggregator tells the other one its share of the sum only with its own noise in it, so neither
ever sees a sum without the other's noise. Each adds the full amount: a bound for one aggregator's
view must not count its own noise, which it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from protocols.errors import InvalidVectorError
from protocols.fields import DIGEST_BYTES
from protocols.prg import ctr_keystream
from protocols.values import digest_of_values
from protocols.verified.prime_field import Elements, PrimeField
from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import VoteShare

MOST_NOISE = 2**28
"""Noise of one aggregator on a number is below it: so votes and both noises never wrap around."""


def make_coin(
    *, plan_digest: bytes, headers: Sequence[bytes], coordinator_nonce: bytes, tally_nonce: bytes
) -> bytes:
    """Return the coin from which the evaluation point of a batch follows; 32 bytes.

    An aggregator says its nonce after it noted the list, and gives one coin for a plan, ever: with
    a second point two aggregators learn something of a report's votes.

    Args:
        plan_digest: Of the batch's plan.
        headers: Digests of the signed headers of all reports, in the list's order.
        coordinator_nonce: 32 random bytes; neither nonce leaves the two before the list is closed.
        tally_nonce: The same.

    Raises:
        InvalidVectorError: a nonce has another length.
    """
    for nonce in (coordinator_nonce, tally_nonce):
        if len(nonce) != DIGEST_BYTES:
            raise InvalidVectorError(f"a nonce must have {DIGEST_BYTES} bytes", len(nonce))
    said = [plan_digest, list(headers), coordinator_nonce, tally_nonce]
    return digest_of_values("verification coin", said)


def noise_bytes(
    seed: bytes, *, plan_digest: bytes, aggregator: bytes, coin: bytes
) -> Callable[[int], bytes]:
    """Return the source of an aggregator's noise for a sum; it goes on from call to call.

    The seed was committed to before the coin was known, so neither end could choose its noise; and
    whoever is told the seed afterwards draws the same noise.

    Args:
        seed: 32 random bytes, of this plan alone. Secret.
        plan_digest: Of the batch's plan.
        aggregator: Fingerprint of the end whose noise it is.
        coin: Of the batch.
    """
    key = digest_of_values("aggregator's noise", [plan_digest, aggregator, coin, seed])
    stream = ctr_keystream(key)

    def next_bytes(count: int) -> bytes:
        drawn = bytearray(count)
        stream.update_into(bytes(count), drawn)
        return bytes(drawn)

    return next_bytes


def noisy_share(
    accepted: Iterable[tuple[VoteLayout, VoteShare]], noise: NDArray[np.int64]
) -> Elements:
    """Add an aggregator's shares of all accepted votes, and its own noise.

    Args:
        accepted: Layout and share of each hospital that both aggregators accepted; at least one.
            They may come one by one: a share has as many numbers as the sum.
        noise: This aggregator's own, drawn for this sum alone; shape (queries, columns). Secret.

    Returns:
        What it tells the other one; shape (queries, columns).

    Raises:
        InvalidVectorError: noise of another shape, or of `MOST_NOISE` and more; or nobody was
            accepted.
    """
    if int(np.abs(noise).max(initial=0)) >= MOST_NOISE:
        raise InvalidVectorError(f"noise must be below {MOST_NOISE}")
    field, hospitals = PrimeField(), 0
    # A residue modulo p of a negative number is not negative.
    total: Elements = (noise % field.prime).astype(np.uint64)
    for layout, share in accepted:
        if noise.shape != (layout.queries, layout.columns):
            raise InvalidVectorError("noise must have the sum's shape", str(noise.shape))
        total = field.add(total, layout.numbers_of(share.digits))
        hospitals += 1
    if not hospitals:
        raise InvalidVectorError("a sum must have votes of a hospital")
    return total


def open_noisy_sum(share: Elements, other_share: Elements) -> NDArray[np.int64]:
    """Add both noisy shares; numbers in the upper half of the field are negative.

    Returns:
        Votes of all accepted hospitals with both noises; shape (queries, columns).
    """
    field = PrimeField()
    total = field.add(share, other_share).astype(np.int64)
    total[total > field.prime // 2] -= field.prime
    return total

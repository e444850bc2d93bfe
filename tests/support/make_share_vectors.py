"""Writes vectors of sharing: elements, shares, what they join to.

From a second implementation only, as `make_protocol_vectors`.
Run from the repository root: ``python -m tests.support.make_share_vectors``.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

from tests.support.make_format_vectors import some_bytes
from tests.support.make_protocol_vectors import write_vectors
from tests.support.make_spoiled_shares import NOT_CANONICAL
from tests.support.reference_sharing import (
    PRIME,
    cut,
    join,
    read_secret,
    share_of,
    threshold_of,
    write_secret,
    write_share,
)

Row = dict[str, Any]
PARTIES = 5


def _numbers(label: str) -> list[int]:
    return [int.from_bytes(raw, "big") % PRIME for raw in cut(some_bytes(label, 64), 4)]


def elements() -> Row:
    """16 numbers modulo 65537 as 34 bytes."""
    good = {
        "zeros": [0] * 16,
        "0 to 15": list(range(16)),
        "65535": [65535] * 16,
        "65536 in every place": [65536] * 16,
        "65536 in the first place": [65536, *range(1, 16)],
        "65536 in the last place": [*range(15), 65536],
        "at random": _numbers("an element"),
    }
    share = write_share(good["at random"])
    return {
        "good": {
            name: {"numbers": numbers, "bytes": write_share(numbers).hex()}
            for name, numbers in good.items()
        },
        "spoiled": {
            "empty": "",
            "32 bytes, without the bits": share[:32].hex(),
            "33 bytes": share[:33].hex(),
            "35 bytes": (share + b"\0").hex(),
            "both 1 and 65536": NOT_CANONICAL.hex(),
            "65535 and a bit": (b"\xff\xff" + bytes(30) + b"\x01\0").hex(),
            "the bit of the last place beside a word": (bytes(31) + b"\x01\0\x80").hex(),
        },
    }


def sharings() -> Row:
    """One secret among five: any four shares join it."""
    threshold = threshold_of(PARTIES)
    secret = some_bytes("a secret")
    powers = [_numbers(f"coefficients of x^{power}") for power in range(1, threshold)]
    shares = [share_of(read_secret(secret), powers, holder) for holder in range(PARTIES)]
    four = [0, 1, 3, 4]
    chosen = {holder: shares[holder] for holder in four}
    changed = {**chosen, 3: [(shares[3][0] + 1) % PRIME, *shares[3][1:]]}
    swapped = {**chosen, 0: shares[1], 1: shares[0]}
    no_word = [65536, *read_secret(secret)[1:]]
    high = [share_of(no_word, powers, holder) for holder in range(PARTIES)]
    return {
        "parties": PARTIES,
        "threshold": threshold,
        "secret": secret.hex(),
        "coefficients": [write_share(power).hex() for power in powers],
        "shares": [write_share(share).hex() for share in shares],
        "holders_that_join_it": [list(some) for some in combinations(range(PARTIES), threshold)],
        "spoiled": {
            "a share changed": _joined(changed),
            "two shares swapped": _joined(swapped),
            "three shares": {
                "shares": {str(holder): write_share(shares[holder]).hex() for holder in four[:3]},
                "joins_to": None,
            },
            "shares of 65536, which is no word": {
                "shares": {str(holder): write_share(high[holder]).hex() for holder in four},
                "joins_to": None,
            },
        },
        "thresholds": {str(n): threshold_of(n) for n in (5, 6, 7, 10, 30, 31, 100, 1024)},
    }


def _joined(shares: dict[int, list[int]]) -> Row:
    return {
        "shares": {str(holder): write_share(share).hex() for holder, share in shares.items()},
        "joins_to": write_secret(join(shares)).hex(),
    }


def shares() -> Row:
    return {
        "what": "shares as bytes, a secret among five, and what joins to another or to nothing",
        "elements": elements(),
        "sharing": sharings(),
    }


VECTORS: dict[str, Callable[[], Row]] = {"shares": shares}


if __name__ == "__main__":
    write_vectors(VECTORS)

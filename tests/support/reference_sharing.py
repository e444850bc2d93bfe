"""Shares of a batch's keys once more, in plain whole numbers, from the wire format's page alone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.reference_crypto import hkdf
from tests.support.reference_frames import Refused, require, sha256

PRIME = 65537
WORDS = 16
SHARE_BYTES = 34
MAC_BYTES = 16
_DOMAIN = b"pate-fed/1/dealing\0"

Element = list[int]
"""16 numbers modulo 65537: a secret, a share, or a coefficient of its 16 polynomials."""


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def write_share(numbers: Sequence[int]) -> bytes:
    words = b"".join((number % 65536).to_bytes(2, "little") for number in numbers)
    flags = sum(1 << place for place, number in enumerate(numbers) if number == 65536)
    return words + flags.to_bytes(2, "little")


def read_share(data: bytes) -> Element:
    require(len(data) == SHARE_BYTES, "a share has 34 bytes")
    words = read_secret(data[:32])
    flags = int.from_bytes(data[32:], "little")
    numbers = [65536 if flags >> place & 1 else word for place, word in enumerate(words)]
    require(write_share(numbers) == data, "where a bit is set the word is zero")
    return numbers


def read_secret(secret: bytes) -> Element:
    return [int.from_bytes(secret[2 * place :][:2], "little") for place in range(WORDS)]


def write_secret(numbers: Sequence[int]) -> bytes:
    require(65536 not in numbers, "shares join to words")
    return b"".join(number.to_bytes(2, "little") for number in numbers)


def threshold_of(parties: int) -> int:
    return 2 * parties // 3 + 1


def share_of(secret: Element, coefficients: Sequence[Element], holder: int) -> Element:
    """Value at holder + 1 of the polynomials with these coefficients of x, x^2, ..."""
    polynomials = zip(secret, *coefficients, strict=True)
    return [sum(c * (holder + 1) ** k for k, c in enumerate(p)) % PRIME for p in polynomials]


def join(shares: Mapping[int, Element]) -> Element:
    """Value at 0 of the polynomials through these shares, by Lagrange."""
    joined = [0] * WORDS
    for holder, share in shares.items():
        top, bottom = 1, 1
        for other in shares:
            if other != holder:
                top, bottom = top * (other + 1) % PRIME, bottom * (other - holder) % PRIME
        weight = top * pow(bottom, PRIME - 2, PRIME)
        joined = [(a + weight * b) % PRIME for a, b in zip(joined, share, strict=True)]
    return joined


@dataclass(frozen=True)
class Dealing:
    """What a dealer signs, and its seat."""

    plan: bytes
    salt: bytes
    seat: int
    secret_hashes: Sequence[bytes] = ()
    roots: Sequence[bytes] = ()

    def hash_of_secret(self, seat: int, secret: bytes) -> bytes:
        return sha256(_DOMAIN, b"secret\0", self._bound, u32(seat), secret)

    def hash_of_share(self, holder: int, seat: int, share: bytes) -> bytes:
        label = _DOMAIN + b"share\0" + self._bound + u32(holder)
        return sha256(label + bytes(128 - len(label)), u32(seat), share)

    def keys_of(self, hashes: Sequence[bytes]) -> bytes:
        kept = [one for seat, one in enumerate(hashes) if seat != self.seat]
        return sha256(_DOMAIN, b"keys\0", *kept)

    def root_of(self, own: bytes, keys: bytes) -> bytes:
        return sha256(_DOMAIN, b"column\0", own, keys)

    @property
    def _bound(self) -> bytes:
        return self.plan + self.salt + u32(self.seat)


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def hashes_of_shares(dealing: Dealing, shares: bytes, holder: int) -> list[bytes]:
    pieces = enumerate(cut(shares, SHARE_BYTES))
    return [dealing.hash_of_share(holder, seat, share) for seat, share in pieces]


def column_of(dealing: Dealing, shares: bytes, holder: int) -> bytes:
    """What is sealed for a holder: `keys`, then its shares."""
    return dealing.keys_of(hashes_of_shares(dealing, shares, holder)) + shares


def root_of_shares(dealing: Dealing, shares: bytes, holder: int) -> bytes:
    hashes = hashes_of_shares(dealing, shares, holder)
    return dealing.root_of(hashes[dealing.seat], dealing.keys_of(hashes))


def check_column(dealing: Dealing, column: bytes, holder: int, dropped: Sequence[int]) -> None:
    """All that a holder looks at before it opens anything."""
    keys, shares = column[:32], column[32:]
    require(len(shares) == SHARE_BYTES * len(dealing.roots), "a share of each secret")
    for place in (dealing.seat, *dropped):
        read_share(cut(shares, SHARE_BYTES)[place])
    hashes = hashes_of_shares(dealing, shares, holder)
    root = dealing.root_of(hashes[dealing.seat], keys)
    require(root == dealing.roots[holder], "as it was signed")
    require(not dropped or dealing.keys_of(hashes) == keys, "keys as they were signed")


def disclosure(dealing: Dealing, column: bytes, holder: int, dropped: Sequence[int]) -> bytes:
    shares = cut(column[32:], SHARE_BYTES)
    hashes = hashes_of_shares(dealing, column[32:], holder)
    opened = [shares[seat] for seat in (dealing.seat, *dropped)]
    if not dropped:
        return b"".join((*opened, column[:32]))
    closed = [one for seat, one in enumerate(hashes) if seat not in (dealing.seat, *dropped)]
    return b"".join((*opened, *closed))


def read_disclosure(
    dealing: Dealing, data: bytes, holder: int, dropped: Sequence[int]
) -> dict[int, Element]:
    """The opened shares by the seat of their secret, if they are as the dealer signed."""
    places = (dealing.seat, *dropped)
    hidden = [seat for seat in range(len(dealing.roots)) if seat not in places]
    size = SHARE_BYTES * len(places)
    require(len(data) == size + 32 * (len(hidden) if dropped else 1), "a disclosure's length")
    shares = dict(zip(places, cut(data[:size], SHARE_BYTES), strict=True))
    hashes = {seat: dealing.hash_of_share(holder, seat, share) for seat, share in shares.items()}
    if dropped:
        hashes |= dict(zip(hidden, cut(data[size:], 32), strict=True))
        keys = dealing.keys_of([hashes[seat] for seat in sorted(hashes)])
    else:
        keys = data[size:]
    root = dealing.root_of(hashes[dealing.seat], keys)
    require(root == dealing.roots[holder], "shares are as their dealer signed")
    return {seat: read_share(share) for seat, share in shares.items()}


# Keys and envelopes ----------------------------------------------------------------------------


def column_key(root: bytes, plan: bytes, sender: bytes, receiver: bytes) -> bytes:
    info = b"pate-fed/1/pair\0envelope\0shares\0" + sender + receiver
    return hkdf(root, salt=plan, info=info)


def verdict_key(root: bytes, plan: bytes, sender: bytes, receiver: bytes) -> bytes:
    info = b"pate-fed/1/pair\0envelope\0verdict\0" + sender + receiver
    return hkdf(root, salt=plan, info=info)


def verdict_mac(key: bytes, digest: bytes) -> bytes:
    """What authenticates a verdict, by its digest, from one party to another."""
    return hmac.new(key, digest, hashlib.sha256).digest()[:MAC_BYTES]


def seal_column(key: bytes, digest: bytes, column: bytes) -> bytes:
    return AESGCM(key).encrypt(bytes(12), column, digest)


def open_column(key: bytes, sealed: bytes, digest: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, digest)
    except (InvalidTag, ValueError) as error:
        raise Refused("an envelope opens under its key, with its dealing") from error

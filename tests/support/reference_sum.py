"""Keys of pairs, y and the opened sum once more, in plain whole numbers, from the page alone."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence

from tests.support.reference_crypto import counter_stream, hkdf

_PAIR = b"pate-fed/1/pair\0"


def pair_root(run: bytes, one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> bytes:
    """Root of epoch 0 of two parties, each a fingerprint and its half."""
    (lower, first), (higher, second) = sorted((one, other))
    return hkdf(first + second, salt=run, info=_PAIR + b"root\0" + lower + higher)


def ratcheted(root: bytes, epoch: int) -> bytes:
    for number in range(1, epoch + 1):
        root = hkdf(root, salt=b"", info=_PAIR + b"ratchet\0" + number.to_bytes(8, "big"))
    return root


def stream_key(root: bytes, plan: bytes, one: bytes, other: bytes) -> bytes:
    return hkdf(root, salt=plan, info=_PAIR + b"stream\0" + min(one, other) + max(one, other))


def confirmation(root: bytes, run: bytes, sender: bytes, receiver: bytes) -> bytes:
    key = hkdf(root, salt=run, info=_PAIR + b"confirm\0")
    return hmac.new(key, _PAIR + sender + receiver, hashlib.sha256).digest()


def stream(key: bytes, length: int) -> list[int]:
    return read_words(counter_stream(key, 4 * length))


def read_words(body: bytes) -> list[int]:
    return [int.from_bytes(body[place : place + 4], "little") for place in range(0, len(body), 4)]


def write_words(words: Iterable[int]) -> bytes:
    return b"".join((word % 2**32).to_bytes(4, "little") for word in words)


def with_streams(words: Sequence[int], signed_keys: Iterable[tuple[int, bytes]]) -> list[int]:
    """Words with the streams of signed keys added, modulo 2^32."""
    added = list(words)
    for sign, key in signed_keys:
        added = [
            (word + sign * other) % 2**32
            for word, other in zip(added, stream(key, len(added)), strict=True)
        ]
    return added


def sign_of(seat: int, peer: int) -> int:
    return 1 if seat < peer else -1


def y_of(
    vector: Sequence[int], seat: int, keys: Mapping[int, bytes], own: bytes | None = None
) -> bytes:
    """What the party in a seat publishes; `own` is b of the masked form."""
    signed = [(sign_of(seat, peer), key) for peer, key in keys.items()]
    return write_words(with_streams(vector, signed + ([(1, own)] if own else [])))


def opened_sum(
    ys: Mapping[int, bytes], secrets: Mapping[int, Mapping[int, bytes]] | None = None
) -> list[int]:
    """The signed sum of the vectors under these y's.

    Args:
        ys: By seat, of the survivors.
        secrets: In the masked form, by survivor: its b at its own seat, and its stream keys with
            every seat that is no survivor.
    """
    total = [sum(column) % 2**32 for column in zip(*map(read_words, ys.values()), strict=True)]
    left = [
        (-1 if seat == dealer else -sign_of(dealer, seat), key)
        for dealer, keys in (secrets or {}).items()
        for seat, key in keys.items()
    ]
    return [(word + 2**31) % 2**32 - 2**31 for word in with_streams(total, left)]

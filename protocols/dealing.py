"""A dealer's shares of one attempt, and the hashes that expose a wrong share and its dealer.

Party j deals n secrets: its self mask b_j, at its own seat, and its key with each other seat. The
dealer signs, under a fresh salt, a hash of every secret and one root per holder, the root of the
hashes of its n shares::

    keys = H(hashes of the shares of the keys, in seat order)
    root = H(hash of the share of b_j | keys)

so that a holder can show any of its shares, and nobody can show another in its place. Secrets and
shares are uniform over 2^256 values and more, so their hashes cannot be guessed back.

A holder discloses its share of b_j and its shares of j's keys with the dropped parties. It adds the
other hashes that the root needs: those of its other shares, or just `keys` where nobody dropped
out. Its column, sealed for it by the dealer, starts with `keys`: so it hashes the shares of the
keys only if it opens one. A wrong share of an unneeded key is not found, and does no harm; of a
needed one it is found before it is opened.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from protocols.errors import WrongShareError
from protocols.fields import DIGEST_BYTES, MAX_PARTIES
from protocols.messages import Dealing
from protocols.prg import KEY_BYTES, ctr_keystream
from protocols.shamir import (
    SHARE_BYTES,
    Elements,
    Shamir,
    secrets_to_elements,
    split_shares,
    write_shares,
)

_SALT_BYTES = 32
_LABEL_BYTES = 128
_SECRETS_AT_ONCE = 8
"""Secrets that are split in one product of matrices. This bounds memory, and keeps the product of a
hundred parties on one core: waking a second one costs more than the product.
"""

_DOMAIN = b"pate-fed/1/dealing\0"
_NUMBERS = tuple(seat.to_bytes(4, "big") for seat in range(MAX_PARTIES))


@dataclass(frozen=True, slots=True, repr=False)
class Dealt:
    """The output of a dealer. Secret but for `message`, the hashes that it signs.

    `columns` are one per holder, in seat order, the dealer among them: the digest of the hashes of
    its shares of the keys, then its share of every secret.
    """

    message: Dealing
    columns: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"Dealt(holders={len(self.columns)})"


def deal(
    secrets: Sequence[bytes],
    *,
    seat: int,
    sender: bytes,
    plan_digest: bytes,
    threshold: int,
    random_bytes: Callable[[int], bytes],
) -> Dealt:
    """Share a dealer's secrets among all parties; any `threshold` shares open one.

    The secrets, 32 bytes each, are its self mask at its own seat, its key with every other seat;
    `sender` is its fingerprint. `random_bytes` gives a salt, and the key of the stream from which
    the polynomials are drawn. Many shares take many numbers, and the operating system is several
    times slower than a stream. Telling the stream from random numbers means breaking AES-256, which
    the masks rest on anyway.
    """
    parties = len(secrets)
    salt, drawn = random_bytes(_SALT_BYTES), _stream_bytes(random_bytes(KEY_BYTES))
    shamir, elements = Shamir(threshold, parties), secrets_to_elements(secrets)
    shares = np.empty((parties, parties, SHARE_BYTES // 2), dtype="<u2")
    for start in range(0, parties, _SECRETS_AT_ONCE):
        some = slice(start, start + _SECRETS_AT_ONCE)
        split = shamir.split(elements[some], random_bytes=drawn)
        write_shares(split, out=shares[:, some])
    labels = Labels(plan_digest, salt, seat)
    columns, roots = [], []
    for holder in range(parties):
        held = shares[holder].tobytes()
        hashes = labels.of_shares(holder, held)
        keys_digest = _keys_digest(hashes, seat)
        columns.append(keys_digest + held)
        roots.append(_root_above(hashes[seat], keys_digest))
    message = Dealing(
        plan_digest=plan_digest,
        sender=sender,
        salt=salt,
        secret_hashes=b"".join(map(labels.of_secret, range(parties), secrets)),
        column_roots=b"".join(roots),
    )
    return Dealt(message, tuple(columns))


@dataclass(frozen=True, slots=True)
class Labels:
    """The hashes of one dealing, bound to its plan, its salt, its dealer's seat and the secret."""

    plan_digest: bytes
    salt: bytes
    dealer: int

    @classmethod
    def of(cls, dealing: Dealing, *, dealer: int) -> Labels:
        """Labels of a received dealing."""
        return cls(dealing.plan_digest, dealing.salt, dealer)

    def of_secret(self, place: int, secret: bytes) -> bytes:
        """Hash of the secret at a place."""
        return hashlib.sha256(self._prefix(b"secret\0") + _NUMBERS[place] + secret).digest()

    def of_shares(self, holder: int, shares: bytes) -> list[bytes]:
        """Hash of each of a holder's concatenated shares."""
        # The one loop over all shares of a dealer: the label is hashed once, not for each.
        begun = hashlib.sha256(self._of_holder(holder)).copy
        hashes: list[bytes] = []
        add = hashes.append
        for number, share in zip(_NUMBERS, _pieces(shares, SHARE_BYTES), strict=False):
            state = begun()
            state.update(number + share)
            add(state.digest())
        return hashes

    def of_share(self, holder: int, place: int, share: bytes) -> bytes:
        """Hash of one share of a holder."""
        label = self._of_holder(holder) + _NUMBERS[place]
        return hashlib.sha256(label + share).digest()

    def _of_holder(self, holder: int) -> bytes:
        """Two whole blocks of the hash: the rest, a share and its number, is one more."""
        return (self._prefix(b"share\0") + _NUMBERS[holder]).ljust(_LABEL_BYTES, b"\0")

    def _prefix(self, kind: bytes) -> bytes:
        return _DOMAIN + kind + self.plan_digest + self.salt + _NUMBERS[self.dealer]


def disclose(
    column: bytes, dealing: Dealing, *, dealer: int, holder: int, dropped: Sequence[int]
) -> bytes:
    """Open a holder's shares of a survivor's self mask and of its keys with the dropped parties.

    `column` is the holder's, as the survivor sealed it; `dropped` are seats, in order. Returns the
    opened shares, then the other hashes for the root of the column. Raises `WrongShareError` where
    the shares differ from those that the dealer signed, or are none.
    """
    parties = dealing.parties
    if len(column) != column_bytes(parties):
        raise WrongShareError("one share must be of each secret", len(column))
    labels = Labels.of(dealing, dealer=dealer)
    shares = _pieces(column[DIGEST_BYTES:], SHARE_BYTES)
    opened = b"".join(shares[place] for place in (dealer, *dropped))
    split_shares(opened)
    rest = keys_digest = column[:DIGEST_BYTES]
    mask_hash = labels.of_share(holder, dealer, opened[:SHARE_BYTES])
    as_signed = _root_above(mask_hash, keys_digest) == dealing.column_root(holder)
    if dropped:
        hashes = labels.of_shares(holder, column[DIGEST_BYTES:])
        as_signed = as_signed and _keys_digest(hashes, dealer) == keys_digest
        rest = b"".join(hashes[place] for place in _kept(parties, dealer, dropped))
    if not as_signed:
        raise WrongShareError("shares must be the ones that their dealer signed")
    return opened + rest


def column_bytes(parties: int) -> int:
    """Length of a column among this many parties."""
    return DIGEST_BYTES + SHARE_BYTES * parties


def disclosed_bytes(parties: int, dropped: int) -> int:
    """Length of one disclosure."""
    hashes = parties - 1 - dropped if dropped else 1
    return SHARE_BYTES * (1 + dropped) + DIGEST_BYTES * hashes


def read_disclosure(
    disclosed: bytes, dealing: Dealing, *, dealer: int, holder: int, dropped: Sequence[int]
) -> Elements:
    """Read a holder's disclosure, checked against the dealer's signed hashes.

    Returns the shares of the self mask and of the keys with `dropped`; shape (1 + dropped, 16).
    """
    parties = dealing.parties
    if len(disclosed) != disclosed_bytes(parties, len(dropped)):
        raise WrongShareError("a disclosure must have its length", len(disclosed))
    places = (dealer, *dropped)
    opened_bytes = disclosed[: SHARE_BYTES * len(places)]
    rest = disclosed[len(opened_bytes) :]
    labels = Labels.of(dealing, dealer=dealer)
    opened = {
        place: labels.of_share(holder, place, share)
        for place, share in zip(places, _pieces(opened_bytes, SHARE_BYTES), strict=True)
    }
    keys_digest = rest
    if dropped:
        kept = zip(_kept(parties, dealer, dropped), _pieces(rest, DIGEST_BYTES), strict=True)
        hashes = opened | dict(kept)
        keys_digest = _keys_digest([hashes[place] for place in range(parties)], dealer)
    if _root_above(opened[dealer], keys_digest) != dealing.column_root(holder):
        raise WrongShareError("shares must be the ones that their dealer signed")
    return split_shares(opened_bytes)


def _stream_bytes(key: bytes) -> Callable[[int], bytes]:
    """Read the stream of a fresh key, piece by piece."""
    encryptor = ctr_keystream(key)

    def read(size: int) -> bytes:
        piece = bytearray(size)
        encryptor.update_into(bytes(size), piece)
        return bytes(piece)

    return read


def _root_above(mask_hash: bytes, keys_digest: bytes) -> bytes:
    return hashlib.sha256(_DOMAIN + b"column\0" + mask_hash + keys_digest).digest()


def _keys_digest(hashes: Sequence[bytes], dealer: int) -> bytes:
    keys = b"".join(hashes[:dealer]) + b"".join(hashes[dealer + 1 :])
    return hashlib.sha256(_DOMAIN + b"keys\0" + keys).digest()


def _kept(parties: int, dealer: int, dropped: Sequence[int]) -> list[int]:
    return [place for place in range(parties) if place != dealer and place not in dropped]


def _pieces(joined: bytes, size: int) -> tuple[bytes, ...]:
    """Cut joined pieces of one size apart, whole pieces only."""
    return struct.unpack(f"{size}s" * (len(joined) // size), joined)

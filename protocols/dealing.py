"""A dealer's shares of one attempt, and the hashes by which a wrong one is known and named.

Party j deals n secrets: its self mask b_j, which stands at its own seat, and its key with each
other seat. The n shares of one holder are a column. The dealer signs, under a fresh salt, a hash
of every secret and one root per column, the root of the hashes of its shares::

    root = H(hash of the share of b_j | H(hashes of the shares of the keys, in seat order))

so that a holder can show any of its shares, and nobody can show another in its place. Secrets and
shares are uniform over 2^256 values and more: their hashes tell nothing that could be tried out.

A holder discloses its share of b_j, its shares of j's keys with those who dropped out, and what
is missing for the root: the hashes of its other shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from protocols.errors import WrongShareError
from protocols.messages import MAX_PARTIES, Dealing
from protocols.shamir import (
    SHARE_BYTES,
    Elements,
    Shamir,
    secrets_to_elements,
    split_shares,
    write_shares,
)

SALT_BYTES = 32
DIGEST_BYTES = 32
_SECRETS_AT_ONCE = 8
"""Secrets that are split in one product of matrices: bounds memory."""

_DOMAIN = b"pate-fed/1/dealing\0"
_NUMBERS = tuple(seat.to_bytes(4, "big") for seat in range(MAX_PARTIES))


@dataclass(frozen=True, slots=True, repr=False)
class Dealt:
    """What a dealer made. Secret but for `message`.

    Attributes:
        message: The hashes that it signs.
        columns: The shares of each holder, in seat order; its own among them.
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
    """Share a dealer's secrets among all parties.

    Args:
        secrets: Its self mask at its own seat, its key with every other seat; 32 bytes each.
        seat: The dealer's seat.
        sender: Its fingerprint.
        plan_digest: Plan whose secrets they are.
        threshold: Shares that open a secret.
        random_bytes: Cryptographic random numbers.
    """
    parties = len(secrets)
    salt = random_bytes(SALT_BYTES)
    shamir, elements = Shamir(threshold, parties), secrets_to_elements(secrets)
    shares = np.empty((parties, parties, SHARE_BYTES // 2), dtype="<u2")
    for start in range(0, parties, _SECRETS_AT_ONCE):
        some = slice(start, start + _SECRETS_AT_ONCE)
        split = shamir.split(elements[some], random_bytes=random_bytes)
        write_shares(split, out=shares[:, some])
    columns = tuple(column.tobytes() for column in shares)
    del shares
    names = Labels(plan_digest, salt, seat)
    message = Dealing(
        plan_digest=plan_digest,
        sender=sender,
        salt=salt,
        secret_hashes=tuple(names.of_secret(place, secret) for place, secret in enumerate(secrets)),
        column_roots=tuple(
            names.root(names.of_column(holder, column)) for holder, column in enumerate(columns)
        ),
    )
    return Dealt(message, columns)


@dataclass(frozen=True, slots=True)
class Labels:
    """The hashes of one dealing: bound to its plan, its salt, its dealer, and what they are of.

    Attributes:
        plan_digest: The plan, 32 bytes.
        salt: The dealer's salt, 32 bytes.
        dealer: The dealer's seat.
    """

    plan_digest: bytes
    salt: bytes
    dealer: int

    @classmethod
    def of(cls, dealing: Dealing, *, dealer: int) -> Labels:
        """Labels of a dealing that came."""
        return cls(dealing.plan_digest, dealing.salt, dealer)

    def of_secret(self, place: int, secret: bytes) -> bytes:
        """Hash of the secret at a place."""
        return hashlib.sha256(self._prefix(b"secret\0") + _NUMBERS[place] + secret).digest()

    def of_column(self, holder: int, column: bytes) -> list[bytes]:
        """Hash of each share of a holder."""
        # The one loop over all shares of all parties: the label is hashed once, not for each.
        begun = hashlib.sha256(self._prefix(b"share\0") + _NUMBERS[holder]).copy
        hashes = []
        for number, start in zip(_NUMBERS, range(0, len(column), SHARE_BYTES), strict=False):
            state = begun()
            state.update(number + column[start : start + SHARE_BYTES])
            hashes.append(state.digest())
        return hashes

    def of_share(self, holder: int, place: int, share: bytes) -> bytes:
        """Hash of one share of a holder."""
        label = self._prefix(b"share\0") + _NUMBERS[holder] + _NUMBERS[place]
        return hashlib.sha256(label + share).digest()

    def root(self, hashes: Sequence[bytes]) -> bytes:
        """Root of a column from the hashes of its shares."""
        return _root_above(hashes[self.dealer], _keys_digest(hashes, self.dealer))

    def _prefix(self, kind: bytes) -> bytes:
        return _DOMAIN + kind + self.plan_digest + self.salt + _NUMBERS[self.dealer]


def require_column(column: bytes, dealing: Dealing, *, dealer: int, holder: int) -> list[bytes]:
    """Check that a holder's shares are the ones that their dealer signed.

    Returns:
        The hash of each share, for `disclose`.

    Raises:
        WrongShareError: they are not, or are no shares.
    """
    if len(column) != SHARE_BYTES * len(dealing.column_roots):
        raise WrongShareError("one share must be of each secret", "another length")
    split_shares(column)
    labels = Labels.of(dealing, dealer=dealer)
    hashes = labels.of_column(holder, column)
    if labels.root(hashes) != dealing.column_roots[holder]:
        raise WrongShareError("shares must be the ones that their dealer signed", "others")
    return hashes


def disclose(
    column: bytes, hashes: Sequence[bytes], *, dealer: int, dropped: Sequence[int]
) -> bytes:
    """Open a holder's shares of a survivor's self mask and of its keys with who dropped out.

    Args:
        column: The holder's shares.
        hashes: Their hashes, as `require_column` returned them.
        dealer: The seat of their dealer; a survivor.
        dropped: Seats that dropped out, in order.

    Returns:
        The opened shares, then what is missing for the root of the column.
    """
    places = (dealer, *dropped)
    opened = b"".join(column[SHARE_BYTES * place : SHARE_BYTES * (place + 1)] for place in places)
    if not dropped:
        return opened + _keys_digest(hashes, dealer)
    kept = _kept(len(hashes), dealer, dropped)
    return opened + b"".join(hashes[place] for place in kept)


def disclosed_bytes(parties: int, dropped: int) -> int:
    """Length of one disclosure."""
    hashes = parties - 1 - dropped if dropped else 1
    return SHARE_BYTES * (1 + dropped) + DIGEST_BYTES * hashes


def read_disclosure(
    disclosed: bytes, dealing: Dealing, *, dealer: int, holder: int, dropped: Sequence[int]
) -> Elements:
    """Read what a holder disclosed, if it is what the dealer signed.

    Returns:
        Shares of the self mask and of the keys with `dropped`; shape (1 + dropped, 16).

    Raises:
        WrongShareError: it is something else.
    """
    parties = len(dealing.column_roots)
    if len(disclosed) != disclosed_bytes(parties, len(dropped)):
        raise WrongShareError("a disclosure must have its length", "another")
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
    if _root_above(opened[dealer], keys_digest) != dealing.column_roots[holder]:
        raise WrongShareError("shares must be the ones that their dealer signed", "others")
    return split_shares(opened_bytes)


def _root_above(mask_hash: bytes, keys_digest: bytes) -> bytes:
    """Root of a column from the hash of the self mask's share and the keys' digest."""
    return hashlib.sha256(_DOMAIN + b"column\0" + mask_hash + keys_digest).digest()


def _keys_digest(hashes: Sequence[bytes], dealer: int) -> bytes:
    """Digest of the hashes of the shares of all keys."""
    keys = b"".join(hashes[:dealer]) + b"".join(hashes[dealer + 1 :])
    return hashlib.sha256(_DOMAIN + b"keys\0" + keys).digest()


def _kept(parties: int, dealer: int, dropped: Sequence[int]) -> list[int]:
    """Places of the keys that stay closed."""
    return [place for place in range(parties) if place != dealer and place not in dropped]


def _pieces(joined: bytes, size: int) -> list[bytes]:
    return [joined[start : start + size] for start in range(0, len(joined), size)]

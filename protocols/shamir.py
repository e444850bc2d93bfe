"""Shamir's sharing: any `threshold` of n holders can join a secret, fewer learn nothing of it.

A 32-byte secret is 16 words, each shared on a polynomial of its own over the integers modulo 65537,
the smallest prime that holds all words. Every product fits a machine word, so all secrets of a
dealer are shared in one matrix product. Sharing does not detect a lying dealer or holder: a wrong
share joins to a wrong secret. Commitments (`dealing`) catch that.

Source: Shamir 1979, How to share a secret. https://doi.org/10.1145/359168.359176
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.errors import InvalidSharingError, TooFewSharesError, WrongShareError

PRIME = 65537
"""The field of every run. Tests may take a smaller one, to try everything."""

SECRET_BYTES = 32
SECRET_WORDS = 16
SHARE_BYTES = 34

_WORD = np.dtype("<u2")
_DRAW = np.dtype("<u4")
_PLACES = np.arange(SECRET_WORDS)

Elements = NDArray[np.int64]
"""Field elements, each in [0, prime)."""


class Shamir:
    """Sharing among n holders, of whom any `threshold` can join. Holder h stands at x = h + 1.

    `prime`, the size of the field, is above the number of holders. Raises `InvalidSharingError`
    where there is no such sharing.
    """

    def __init__(self, threshold: int, parties: int, *, prime: int = PRIME) -> None:
        if not 1 <= threshold <= parties < prime <= PRIME:
            raise InvalidSharingError(
                f"1 <= threshold <= parties < prime <= {PRIME} must hold",
                f"{threshold}, {parties}, {prime}",
            )
        self.threshold = threshold
        self.parties = parties
        self.prime = prime

    def split(self, secrets: Elements, *, random_bytes: Callable[[int], bytes]) -> Elements:
        """Share field elements of shape (secrets, words), each on a fresh random polynomial.

        Returns shares, of shape (parties, secrets, words). Raises `InvalidSharingError` where an
        element is outside the field.
        """
        if secrets.size and not 0 <= secrets.min() <= secrets.max() < self.prime:
            raise InvalidSharingError("a secret must be of field elements")
        drawn = _uniform((self.threshold - 1) * secrets.size, self.prime, random_bytes)
        coefficients = np.empty((self.threshold, secrets.size), dtype=np.float64)
        coefficients[0] = secrets.ravel()
        coefficients[1:] = drawn.reshape(self.threshold - 1, secrets.size)
        # A sum of at most 2^16 products of two numbers up to 2^16 is a whole number up to 2^48, and
        # so exact in floating point, where a product of matrices is fastest.
        shares = (_powers(self.threshold, self.parties, self.prime) @ coefficients).astype(np.int64)
        shares -= shares // self.prime * self.prime  # several times faster than numpy's remainder
        return shares.reshape(self.parties, *secrets.shape)

    def join(self, shares: Elements, *, holders: Sequence[int]) -> Elements:
        """Find the secrets, of shape (...), from `threshold` shares of each.

        Args:
            shares: One row per holder; shape (threshold, ...).
            holders: The holder of each row, none twice.

        Raises:
            TooFewSharesError: fewer rows than the threshold.
            InvalidSharingError: not one row per holder, or a holder that is unknown or comes twice.
        """
        if len(holders) < self.threshold:
            raise TooFewSharesError(received=len(holders), threshold=self.threshold)
        known = set(holders) <= set(range(self.parties))
        if not known or not len(set(holders)) == len(holders) == len(shares) == self.threshold:
            raise InvalidSharingError("one row must be for each of threshold holders")
        weights = np.array(self._weights(holders), dtype=np.int64)
        return np.tensordot(weights, shares, axes=1) % self.prime

    def _weights(self, holders: Sequence[int]) -> list[int]:
        """Lagrange's coefficients at x = 0."""
        weights = []
        for holder in holders:
            top, bottom = 1, 1
            for other in holders:
                if other != holder:
                    top = top * (other + 1) % self.prime
                    bottom = bottom * (other - holder) % self.prime
            weights.append(top * pow(bottom, -1, self.prime) % self.prime)
        return weights


@lru_cache(maxsize=8)
def _powers(threshold: int, parties: int, prime: int) -> NDArray[np.float64]:
    """x^0, x^1, ... of every holder's x; shape (parties, threshold)."""
    points = np.arange(1, parties + 1, dtype=np.int64)
    powers = np.ones((parties, threshold), dtype=np.int64)
    for degree in range(1, threshold):
        powers[:, degree] = powers[:, degree - 1] * points % prime
    exact = powers.astype(np.float64)
    exact.flags.writeable = False
    return exact


def secrets_to_elements(secrets: Sequence[bytes]) -> Elements:
    """Read 32-byte secrets as field elements; shape (secrets, 16)."""
    if any(len(secret) != SECRET_BYTES for secret in secrets):
        raise InvalidSharingError(f"a secret must have {SECRET_BYTES} bytes")
    words = np.frombuffer(b"".join(secrets), dtype=_WORD)
    return words.astype(np.int64).reshape(len(secrets), SECRET_WORDS)


def elements_to_secrets(elements: Elements) -> list[bytes]:
    """Give secrets back as bytes; `WrongShareError` where an element is no word."""
    if elements.size and elements.max() >= PRIME - 1:
        raise WrongShareError("shares must join to a secret of words")
    return [row.astype(_WORD).tobytes() for row in elements]


def write_shares(shares: Elements, *, out: NDArray[np.uint16]) -> None:
    """Write shares: the 16 words of each, then a word whose bits mark the words equal to 65536.

    The last axis of `shares` is 16, of `out` 17.
    """
    # 65536, the one element that is no word, is written as zero with its bit set.
    np.copyto(out[..., :SECRET_WORDS], shares, casting="unsafe")
    out[..., SECRET_WORDS] = 0
    if np.maximum.reduce(shares, axis=None, initial=0) == PRIME - 1:  # one of 65537 is that large
        out[..., SECRET_WORDS] = (shares >> SECRET_WORDS) @ (1 << _PLACES)


def split_shares(joined: bytes) -> Elements:
    """Read concatenated shares, strictly, or raise `WrongShareError`; see `write_shares`."""
    if len(joined) % SHARE_BYTES:
        raise WrongShareError(f"shares must have {SHARE_BYTES} bytes each", len(joined))
    words = np.frombuffer(joined, dtype=_WORD).reshape(-1, SECRET_WORDS + 1)
    shares = words[:, :SECRET_WORDS].astype(np.int64)
    carried = words[:, SECRET_WORDS]
    if carried.any():  # in one of some thousand shares
        flags = carried[:, None].astype(np.int64) >> _PLACES & 1
        if (flags & (shares != 0)).any():
            raise WrongShareError("a share must be in canonical form")
        shares += flags << 16
    return shares


def _uniform(
    count: int, prime: int, random_bytes: Callable[[int], bytes]
) -> NDArray[np.unsignedinteger[Any]]:
    """Draw field elements, exactly uniform: a draw that would bias them is repeated."""
    limit = 2**32 // prime * prime
    drawn = np.empty(0, dtype=_DRAW)
    while len(drawn) < count:
        raw = random_bytes((count - len(drawn)) * _DRAW.itemsize)
        values = np.frombuffer(raw, dtype=_DRAW)
        fit = values[values < limit]
        fit -= fit // prime * prime
        drawn = np.concatenate([drawn, fit]) if len(drawn) else fit
    return drawn

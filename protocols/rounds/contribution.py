"""A party's entry in a settlement: the digest of everything that it signed for a plan.

The settlement goes into the transcript, so every message bound here does, too (rule R8). In the
additive form a party signs only its y, and its entry is the digest of that y. In a form that
survives drop-outs the entry binds y to its dealing and to the shares that the party revealed: two
parties that agree on every y remember one opening of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from protocols.values import digest_of_values


@dataclass(frozen=True, slots=True)
class Contribution:
    """Digests of the messages that a party signed for one plan.

    `dealing` and `reveal` are empty where the form has none, `reveal` also where none came.
    """

    vector: bytes
    dealing: bytes = b""
    reveal: bytes = b""

    @property
    def digest(self) -> bytes:
        """Its entry in a settlement, 32 bytes."""
        if not self.dealing:
            return self.vector
        return digest_of_values("contribution", [self.vector, self.dealing, self.reveal])

    @property
    def without_reveal(self) -> Self:
        """The same, of a party whose shares did not come."""
        return replace(self, reveal=b"")


def entry_of(contribution: Contribution | None) -> bytes:
    """Return a seat's entry in a settlement; empty for a party that is not in the sum."""
    return b"" if contribution is None else contribution.digest


def opening_digest(verdict_digest: bytes, dealing_digests: Sequence[bytes]) -> bytes:
    """Digest of an opening: the verdict, and the survivors' dealings that its shares must fit."""
    return digest_of_values("opening", [verdict_digest, list(dealing_digests)])

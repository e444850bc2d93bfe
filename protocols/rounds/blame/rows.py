"""A row of a plan: who is named for it, and the sum of a stream over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocols.errors import WrongStateError
from protocols.prg import expand
from protocols.secure_sum import SecureSum


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is named for a wrong row, by fingerprint in seat order.

    Attributes:
        parties: Those whose y does not come to its quota by their own statement: each of them
            cheated.
        pairs: Two ends that state different sums of their stream: at least one of them cheated.
        silent: Parties that were asked and stated nothing.
    """

    parties: tuple[bytes, ...] = ()
    pairs: tuple[tuple[bytes, bytes], ...] = ()
    silent: tuple[bytes, ...] = ()


def require_rows(words: int, row_words: int) -> None:
    """Check that rows fill a vector.

    Raises:
        WrongStateError: they do not, or a row is a single word, whose sum would open it.
    """
    if row_words < 2 or words % row_words:
        raise WrongStateError("rows must have two words or more, and fill the vector", row_words)


def row_sum(form: SecureSum, key: bytes, row: int, *, row_words: int) -> int:
    """Add the words of a stream over one row, modulo the ring."""
    end = (row + 1) * row_words
    words = expand(key, end, ring=form.ring, keystream=form.keystream)[end - row_words :]
    return int(words.sum(dtype=np.uint64)) % (1 << form.ring.bits)

"""The sum of a stream over a row of a plan."""

from __future__ import annotations

import numpy as np

from protocols.prg import expand
from protocols.secure_sum import SecureSum


def row_sum(form: SecureSum, key: bytes, row: int, *, row_words: int) -> int:
    """Add the words of a stream over one row, modulo the ring."""
    end = (row + 1) * row_words
    words = expand(key, end, ring=form.ring, keystream=form.keystream)[end - row_words :]
    return int(words.sum(dtype=np.uint64)) % (1 << form.ring.bits)

"""A table of public inputs as somebody else would write it down: the same rows, another file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def rewrite(
    source: Path,
    target: Path,
    *,
    removed: int = 0,
    added: Sequence[str] = (),
    is_shuffled: bool = False,
    is_written_otherwise: bool = False,
) -> Path:
    """Write a table again: without its first rows, with others, in another order and form."""
    header, *lines = source.read_text("utf-8").splitlines()
    lines = [*lines[removed:], *added]
    if is_shuffled:
        lines = [lines[place] for place in np.random.default_rng(4).permutation(len(lines))]
    rows = [header.split(","), *(line.split(",") for line in lines)]
    if is_written_otherwise:  # other numerals, blanks, and columns the other way round
        rows[1:] = [[_otherwise(cell) for cell in row] for row in rows[1:]]
        rows = [row[::-1] for row in rows]
    target.write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8")
    return target


def _otherwise(cell: str) -> str:
    try:
        number = float(cell)
    except ValueError:
        return f"  {cell} "
    return f" +{number:.17e} " if "." not in cell else f" 00{cell}00 "

"""Public rows in their lasting form: column names and values, the same from any file.

A hospital answers a question once in its life, over all federations. So the identity of a question
must not depend on a pool, on an encoder fitted on one, on the order of columns, or on how a number
is written. It is the row itself, each cell in its one form (`pate_fed.cells`). The label is no part
of it, nor is any column that the task does not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pate_fed.cells import Cell, csv_line, is_in_form, is_text, text_of
from pate_fed.errors import InvalidParameterError

_LABEL = b"pate-fed row\n"
_BYTE_ORDER = "\ufeff"  # without it some spreadsheets misread letters with accents


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PublicRows:
    """Rows of a public table, of the columns that a task reads.

    Attributes:
        digests: SHA-256 of each row, 32 bytes: the same for the same cells of the same columns, in
            any order of columns.
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    digests: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise InvalidParameterError("every column must be named once")
        if not all(is_text(name) for name in self.columns):
            raise InvalidParameterError("names of columns must be UTF-8")
        for row in self.cells:
            if len(row) != len(self.columns) or not all(is_in_form(cell) for cell in row):
                raise InvalidParameterError(
                    "a row must have a cell in its one form for each column"
                )
        object.__setattr__(self, "digests", tuple(self._digest(row) for row in self.cells))

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        return f"PublicRows(rows={len(self)}, columns={len(self.columns)})"

    def pick(self, indices: Sequence[int]) -> PublicRows:
        """Return some rows, in the order of `indices`."""
        return PublicRows(self.columns, tuple(self.cells[index] for index in indices))

    def csv_lines(self) -> Iterator[str]:
        """Yield them as lines of a CSV file for a person: a header, then a line for each row.

        Each cell as `csv_line` shows it, "?" for a missing one. Such a file may not be read back as
        these rows.
        """
        yield _BYTE_ORDER + csv_line(self.columns)
        for row in self.cells:
            yield csv_line(map(_plain_to_see, row))

    def _digest(self, row: tuple[Cell, ...]) -> bytes:
        named = dict(zip(self.columns, row, strict=True))
        text = json.dumps(named, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(_LABEL + text.encode("ascii")).digest()


def _plain_to_see(cell: Cell) -> str:
    return "?" if cell is None else text_of(cell)

"""Read a CSV file, plain or gzipped, strictly and within bounds.

Messages name lines and columns, never the content of a cell: a cell is a patient's.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pate_fed.cells import is_missing, plain
from pate_fed.data.packed_file import open_unpacked
from pate_fed.errors import InvalidCellError, MissingColumnError, UnreadableFileError

MAX_LINE_BYTES = 2**20
"""Longest line that is read."""

MAX_FILE_BYTES = 2**31
"""Most bytes that are read, after unpacking."""

MAX_CELLS = 30_000_000
"""Most cells that are kept in memory."""

_BLOCK = 10_000
"""Rows that are moved into columns at once."""

_DECIMAL_COMMA = re.compile(r"^([+-]?\d+),(\d+)(?=$|[eE ]|[^\d,.])")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CsvTable:
    """The text of a CSV file, column by column.

    Attributes:
        columns: The cells of each column, stripped of blanks around them. Names and cells are in
            Unicode NFC.
        lines: Line of the file on which each row ends, counted from 1.
    """

    file_name: str
    header: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]

    def __repr__(self) -> str:
        return f"CsvTable(rows={len(self.lines)}, columns={len(self.header)})"

    def column(self, name: str) -> tuple[str, ...]:
        """Return the cells of a column; one that the header lacks is a MissingColumnError."""
        if name in self.header:
            return self.columns[self.header.index(name)]
        others = f"{len(self.header)} columns of other names in the first row"
        if len(self.header) == 1:
            found = next((one for one in ";\t|," if one in self.header[0]), None)
            others = "1 column: are the columns separated by commas?"
            others += f" A simulation takes --separator {found!r}" if found else ""
        raise MissingColumnError(f"{self.file_name} must have a column {name!r}", others)

    def unit_ids(self, patient_column: str | None) -> tuple[str, ...]:
        """Return whose each row is; without a column each row is a patient of its own."""
        if patient_column is None:
            # By place, not by line: a cell with line breaks must not rename other rows.
            return tuple(f"row-{place}" for place in range(len(self.lines)))
        return self.known_cells(patient_column)

    def known_cells(self, name: str) -> tuple[str, ...]:
        """Return the cells of a column without gaps; raises as `unit_ids`."""
        cells = self.column(name)
        unknown = {cell for cell in set(cells) if is_missing(cell)}
        for line, cell in zip(self.lines, cells, strict=True):
            if cell in unknown:
                raise InvalidCellError(
                    f"column {name!r} of {self.file_name} must be filled in every row",
                    f"an empty cell in line {line}",
                )
        return cells


def plain_or_packed(folder: Path, name: str) -> Path:
    """Find a file in a folder, plain or with `.gz`; none is an UnreadableFileError."""
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.exists():
            return candidate
    raise UnreadableFileError(f"the data folder must hold {name} or {name}.gz")


def read_csv(
    path: Path,
    *,
    separator: str = ",",
    decimal: str = ".",
    header: Sequence[str] | None = None,
    mended: Callable[[Iterator[str]], Iterator[str]] = lambda lines: lines,
) -> CsvTable:
    """Read a table of text in UTF-8 whose first row names the columns.

    Empty lines are skipped.

    Args:
        path: The file; gzip is recognized by its first bytes.
        decimal: Sign before a number's decimals: a comma is read as a point.
        header: Names of the columns of a file whose first row has none.
        mended: Turns the lines of a known file into those of a table.

    Raises:
        UnreadableFileError: the file is missing, unreadable, no UTF-8 text, damaged, too large,
            has no header, a name twice, or a row whose length differs from the header's.
    """
    with open_unpacked(path, most_bytes=MAX_FILE_BYTES) as stream:
        text = parse(stream, path.name, mended, separator=separator, header=header)
    return text if decimal == "." else _with_points(text)


def _with_points(text: CsvTable) -> CsvTable:
    """Return a table whose numbers have a point before their decimals."""
    cells = {cell for column in text.columns for cell in column}
    changed = {cell: _DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells}
    columns = tuple(tuple(changed[cell] for cell in column) for column in text.columns)
    return replace(text, columns=columns)


def parse(
    stream: IO[bytes] | gzip.GzipFile,
    name: str,
    mended: Callable[[Iterator[str]], Iterator[str]] = lambda lines: lines,
    *,
    separator: str = ",",
    header: Sequence[str] | None = None,
) -> CsvTable:
    """Read a table from a stream, as `read_csv` does from a file; `name` is for messages."""
    text = mended(_lines(stream, name))
    reader = csv.reader(text, strict=True, delimiter=separator, skipinitialspace=True)
    try:
        titles = _header(reader, name) if header is None else tuple(header)
        columns, lines = _rows(reader, name, len(titles))
    except csv.Error:
        # The reader's own message could quote a cell, so it is not passed on.
        raise UnreadableFileError(
            f"{name} must be a well-formed CSV file",
            f"a broken quotation or too long a cell by line {reader.line_num}",
        ) from None
    return CsvTable(name, titles, columns, lines)


def _lines(stream: IO[bytes] | gzip.GzipFile, name: str) -> Iterator[str]:
    total = 0
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        total += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise UnreadableFileError(
                f"{name} must have lines of at most {MAX_LINE_BYTES} bytes",
                f"a longer one, line {number}",
            )
        if total > MAX_FILE_BYTES:
            raise UnreadableFileError(f"{name} must hold at most {MAX_FILE_BYTES} bytes of text")
        if b"\0" in line:
            raise UnreadableFileError(
                f"{name} must be a text file", f"a binary zero in line {number}"
            )
        yield _decode(line, name, number)


def _decode(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        # The codec's own message holds the line.
        raise UnreadableFileError(
            f"{name} must be text in UTF-8 (save it as CSV UTF-8)", f"other bytes in line {number}"
        ) from None


def _header(reader: Iterator[list[str]], name: str) -> tuple[str, ...]:
    for row in reader:
        if row:
            header = tuple(
                plain(cell) or f"column {number}" for number, cell in enumerate(row, start=1)
            )
            if len(set(header)) != len(header):
                raise UnreadableFileError(
                    f"{name} must name every column once",
                    f"{len(header) - len(set(header))} names that come again",
                )
            return header
    raise UnreadableFileError(f"{name} must have a first row with column names", "an empty file")


def _rows(
    reader: Iterator[list[str]], name: str, width: int
) -> tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]:
    cells: list[list[str]] = [[] for _ in range(width)]
    lines: list[int] = []
    known = _PlainCells()
    block: list[list[str]] = []
    for row in reader:
        if not row:
            continue
        line: int = reader.line_num  # type: ignore[attr-defined]  # csv.reader has no public type
        if len(row) != width:
            raise UnreadableFileError(
                f"every row of {name} must have {width} cells, like its first",
                f"{len(row)} in line {line}",
            )
        lines.append(line)
        if len(lines) * width > MAX_CELLS:
            raise UnreadableFileError(f"{name} must have at most {MAX_CELLS} cells")
        block.append(row)
        if len(block) == _BLOCK:
            _move(block, cells, known)
    _move(block, cells, known)
    return tuple(tuple(column) for column in cells), tuple(lines)


class _PlainCells(dict[str, str]):
    """Each cell in its plain form, worked out once; equal cells share one string."""

    def __missing__(self, cell: str) -> str:
        text = plain(cell)
        self[cell] = found = self.setdefault(text, text)
        return found


def _move(block: list[list[str]], cells: list[list[str]], known: _PlainCells) -> None:
    """Append rows to columns, and empty the block of rows."""
    if block:
        for column, added in zip(cells, zip(*block, strict=True), strict=True):
            column.extend(map(known.__getitem__, added))
        block.clear()

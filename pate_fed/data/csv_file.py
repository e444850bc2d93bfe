"""Read a CSV file, plain or gzipped, strictly and within bounds.

Text is UTF-8; or UTF-16, by its byte order mark; or else Windows-1252, which holds Latin-1.

Messages name lines and columns, never the content of a cell: a cell is a patient's.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

from pate_fed.cells import folded, is_missing, is_text, plain
from pate_fed.data.packed_file import open_unpacked
from pate_fed.errors import InvalidCellError, MissingColumnError, UnreadableFileError

MAX_LINE_BYTES = 2**20
"""Longest line that is read."""

MAX_FILE_BYTES = 2**31
"""Most bytes that are read, after unpacking."""

MAX_CELLS = 30_000_000
"""Most cells that are kept in memory."""

MAX_ROWS = 5_000_000
"""Most rows, for a table of few columns."""

_PIECE = 2**16
_BLOCK = 10_000
"""Rows that are moved into columns at once."""

_PEEKED = 50
"""Rows that are looked at for the place where a table begins."""

UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_OTHER_KINDS = {
    rb"PK\x03\x04": "an Excel workbook, or a ZIP archive to unpack",
    rb"\xd0\xcf\x11\xe0": "an old Excel workbook",
    rb"%PDF": "a PDF document",
    rb"\x89PNG": "a picture",
    rb"HEADER RECORD\*|\x00{12}\xc2\xea\x81\x60": "a file of SAS",
    rb"\$FL[23]": "a file of SPSS",
    rb"<stata|[\x6c-\x73][\x01\x02]\x01\x00": "a file of Stata",
    rb"RD[AX]\d\n": "a file of R",
    rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!": "an archive to unpack",
    rb"(?i)\s*<(\?xml|!doctype|html|table|div)\b": "a page of HTML or XML",
    rb"\s*(\[\s*)?\{\s*\"": "a file of JSON",
    rb"([^\x00]\x00){4}|(\x00[^\x00]){4}": "text in UTF-16 without its mark",
}
"""Kinds of files by how they begin: patterns of bytes."""

_SEPARATORS = {";": "';'", "\t": "'\\t'", "|": "'|'"}
_DECIMAL_COMMA = re.compile(r"(^|[;\t|])[+-]?[\d.]*\d,\d+($|[;\t|])")
_DECIMAL_POINT = re.compile(r"(^|[;\t|])[+-]?\d+\.(\d{1,2}|\d{4,})($|[;\t|])")
_NAME_LETTERS = 256
_MOST_NAMES = 5


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CsvTable:
    """The text of a CSV file, column by column.

    Attributes:
        columns: The cells of each column, stripped of blanks around them. Names and cells are in
            Unicode NFC.
        lines: Line of the file on which each row ends, counted from 1.
        asked: Sentences for the table's owner that ask for an answer, on how it was read.
        notes: Others, which only say how.
        is_typed: Whether its columns are in the form that `cell_forms.typed` gives them.
    """

    file_name: str
    header: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    asked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_typed: bool = False

    def __repr__(self) -> str:
        return f"CsvTable(rows={len(self.lines)}, columns={len(self.header)})"

    def column(self, name: str) -> tuple[str, ...]:
        """Return the cells of a column; one that the header lacks is a MissingColumnError."""
        if name in self.header:
            return self.columns[self.header.index(name)]
        others = f"{len(self.header)} columns of other names in the first row"
        near = [one for one in self.header if folded(one).strip("'\"` ") == folded(name)]
        if near:
            others = f"{near[0]!r}"
        if len(self.header) == 1:
            others = "1 column: are the columns separated as --separator says?"
        raise MissingColumnError(f"{self.file_name} must have a column {name!r}", others)

    def select(self, rows: Sequence[int]) -> CsvTable:
        """Return some of the rows."""
        columns = tuple(tuple(map(column.__getitem__, rows)) for column in self.columns)
        return replace(self, columns=columns, lines=tuple(map(self.lines.__getitem__, rows)))

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
                    f"column {name!r} of {self.file_name} must be filled in every row: fill it, or "
                    "leave such rows out",
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
    header: Sequence[str] | None = None,
    mended: Callable[[Iterator[str]], Iterator[str]] = lambda lines: lines,
) -> CsvTable:
    """Read a table of text whose first row names the columns.

    Empty lines are skipped.

    Args:
        path: The file; gzip and encodings are recognized by its bytes.
        header: Names of the columns of a file whose first row has none.
        mended: Turns the lines of a known file into those of a table.

    Raises:
        UnreadableFileError: the file is missing, unreadable, no text, damaged, too large,
            has no header, a name twice, or a row whose length differs from the header's.
    """
    read = partial(parse, name=path.name, mended=mended, separator=separator, header=header)
    try:
        with open_unpacked(path, most_bytes=MAX_FILE_BYTES) as stream:
            text = read(stream)
    except _NoUtf8:
        with open_unpacked(path, most_bytes=MAX_FILE_BYTES) as stream:
            text = read(stream, is_latin=True)
        note = (
            f"{path.name} is no UTF-8 text, and was read as Windows-1252 (Latin-1): if letters "
            "look wrong, save it as CSV UTF-8."
        )
        return replace(text, asked=(note,))
    with open_unpacked(path, most_bytes=MAX_FILE_BYTES) as stream:
        is_wide = stream.read(2) in UTF16_MARKS
    return replace(text, notes=(f"{path.name} was read as UTF-16.",)) if is_wide else text


class _NoUtf8(Exception):  # noqa: N818 - nobody sees it
    """A line is no UTF-8."""


def parse(
    stream: IO[bytes],
    name: str,
    mended: Callable[[Iterator[str]], Iterator[str]] = lambda lines: lines,
    *,
    separator: str = ",",
    header: Sequence[str] | None = None,
    is_latin: bool = False,
) -> CsvTable:
    """Read a table from a stream, as `read_csv` does from a file; `name` is for messages."""
    text = mended(_lines(stream, name, is_latin=is_latin))
    reader = csv.reader(text, strict=True, delimiter=separator, skipinitialspace=True)
    try:
        titles = _header(reader, name, separator) if header is None else tuple(header)
        columns, lines = _rows(reader, name, titles)
    except csv.Error:
        # The reader's own message could quote a cell, so it is not passed on.
        raise UnreadableFileError(
            f"{name} must be a well-formed CSV file",
            f"a broken quotation or too long a cell by line {reader.line_num}",
        ) from None
    return CsvTable(name, titles, columns, lines)


def _lines(stream: IO[bytes], name: str, *, is_latin: bool = False) -> Iterator[str]:
    total = 0
    for number, line in enumerate(_byte_lines(stream, name), start=1):
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
                f"{name} must be a text file (save it as CSV UTF-8)",
                f"a binary zero in line {number}",
            )
        text = _decode(line, name, number, is_latin=is_latin)
        if number == 1:
            _refuse_first_line(text, name)
        elif "\ufeff" in text:
            raise UnreadableFileError(
                f"{name} must be one file: put joined ones into a folder, and give the folder",
                f"a byte order mark in line {number}",
            )
        yield text


def _byte_lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield lines in UTF-8 or an encoding that contains ASCII; a longer line than allowed whole."""
    line = stream.readline(MAX_LINE_BYTES + 1)
    encoding = UTF16_MARKS.get(line[:2])
    for begin, kind in _OTHER_KINDS.items():
        if re.match(begin, line):
            raise UnreadableFileError(
                f"{name} must be a CSV or Parquet file: export it as CSV UTF-8", kind
            )
    while line and encoding is None:
        yield line
        line = stream.readline(MAX_LINE_BYTES + 1)
    if encoding is None:
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    piece, rest = line[2:], ""
    while len(rest) <= MAX_LINE_BYTES:
        try:
            rest += decoder.decode(piece, final=not piece)
        except UnicodeDecodeError:
            raise UnreadableFileError(
                f"{name} must be whole text in UTF-16", "a damaged one"
            ) from None
        *whole, rest = rest.split("\n")
        for text in whole:
            yield f"{text}\n".encode()
        if not piece:
            break
        piece = stream.read(_PIECE)
    if rest:
        yield rest.encode()


def _refuse_first_line(text: str, name: str) -> None:
    if re.fullmatch(r"sep=.?\s*", text, re.I):
        sign = _SEPARATORS.get(text[4:5], repr(text[4:5] or ","))
        raise UnreadableFileError(
            f"{name} must begin with the columns' names: remove the first line, and give "
            f"--separator {sign}",
            "Excel's line sep=",
        )
    if "\r" in text.rstrip("\r\n") and '"' not in text:
        raise UnreadableFileError(
            f"{name} must have lines that end with a line feed: save it as CSV UTF-8",
            "lines that end with a carriage return, as old Macintosh files have",
        )


def _decode(line: bytes, name: str, number: int, *, is_latin: bool) -> str:
    # Text of another encoding is hardly ever UTF-8 by chance.
    if is_latin and not line.isascii() and is_text(line.decode("utf-8", "surrogateescape")):
        raise UnreadableFileError(
            f"{name} must have one encoding (save it as CSV UTF-8)",
            f"UTF-8 in line {number}, and other bytes elsewhere",
        )
    try:
        if is_latin:
            return line.decode("cp1252")
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        if not is_latin:
            raise _NoUtf8 from None
        # The codec's own message holds the line.
        raise UnreadableFileError(
            f"{name} must be text in UTF-8 (save it as CSV UTF-8)", f"other bytes in line {number}"
        ) from None


def _header(reader: Iterator[list[str]], name: str, separator: str) -> tuple[str, ...]:
    for row in reader:
        if any(map(str.strip, row)):
            if len(row) == 1 and separator == ",":
                _refuse_one_cell(row[0], reader, name)
            header = tuple(
                plain_name(cell) or f"column {number}" for number, cell in enumerate(row, start=1)
            )
            require_names(header, name)
            return header
    raise UnreadableFileError(f"{name} must have a first row with column names", "an empty file")


def plain_name(text: str) -> str:
    """Return a column's name in one line, as it is typed."""
    return " ".join(plain(text).splitlines())


def require_names(header: Sequence[str], name: str) -> None:
    """Refuse names of columns that come twice, or cannot be printed."""
    if len(set(header)) != len(header):
        names = [one for one, times in Counter(header).items() if times > 1]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise UnreadableFileError(
            f"{name} must name every column once, in one row",
            f"{', '.join(map(repr, names[:_MOST_NAMES]))}{more} again",
        )
    for number, one in enumerate(header, start=1):
        if not one.isprintable() or len(one) > _NAME_LETTERS:
            raise UnreadableFileError(
                f"{name} must name columns in at most {_NAME_LETTERS} printable characters",
                f"another name of column {number}",
            )


def require_size(name: str, *, rows: int, columns: int) -> None:
    """Refuse a table of more rows or cells than memory is kept for."""
    if rows > MAX_ROWS:
        raise UnreadableFileError(f"{name} must have at most {MAX_ROWS} rows")
    if rows * columns > MAX_CELLS:
        raise UnreadableFileError(f"{name} must have at most {MAX_CELLS} cells")


def _refuse_one_cell(first: str, others: Iterator[list[str]], name: str) -> None:
    """Refuse a first line in one cell that another sign separates, and propose the options."""
    found = next((one for one in _SEPARATORS if one in first), None)
    if found is not None:
        asked = f"--separator {_SEPARATORS[found]}"
        second = ",".join(next(others, []))
        if _DECIMAL_COMMA.search(second) and not _DECIMAL_POINT.search(second):
            asked += " --decimal ,"
        raise UnreadableFileError(
            f"{name} must have columns separated by commas: give {asked}",
            "a first line in one cell",
        )


def _rows(
    reader: Iterator[list[str]], name: str, header: tuple[str, ...]
) -> tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]:
    width = len(header)
    cells: list[list[str]] = [[] for _ in range(width)]
    lines: list[int] = []
    known = _PlainCells()
    block: list[list[str]] = []
    for row in reader:
        if not row or (width > 1 and not any(map(str.strip, row))):
            continue
        line: int = reader.line_num  # type: ignore[attr-defined]  # csv.reader has no public type
        if len(row) > width and not any(map(str.strip, row[width:])):
            del row[width:]  # separators at the end of rows, without a column's name
        if len(row) != width:
            advice = _begin_asked(width, len(lines), (line, row), reader)
            raise UnreadableFileError(
                f"every row of {name} must have {width} cells, like its first{advice}",
                f"{len(row)} in line {line}",
            )
        if row[0] == header[0] and tuple(map(plain_name, row)) == header:
            raise UnreadableFileError(
                f"{name} must have one row with column names: put joined files into a folder, and "
                "give the folder",
                f"the names again in line {line}",
            )
        lines.append(line)
        require_size(name, rows=len(lines), columns=width)
        block.append(row)
        if len(block) == _BLOCK:
            _move(block, cells, known)
    _move(block, cells, known)
    return tuple(tuple(column) for column in cells), tuple(lines)


def _begin_asked(
    width: int, rows: int, odd: tuple[int, list[str]], reader: Iterator[list[str]]
) -> str:
    """Say where the table seems to begin, after a row of another length than the first."""
    line, row = odd
    widths, first = Counter({width: 1 + rows, len(row): 1}), {len(row): line}
    for row in islice(reader, _PEEKED):
        if row:
            widths[len(row)] += 1
            first.setdefault(len(row), reader.line_num)  # type: ignore[attr-defined]
    usual = max(widths, key=lambda one: (widths[one], one))
    if not rows and usual == width + 1 == len(row):
        return "; if R wrote its row names, export without them (row.names = FALSE)"
    if usual == width:
        is_end = len(row) < width and widths[width] == 1 + rows
        return f"; if the table ends above line {line}, delete it and all below" if is_end else ""
    return f"; if its column names stand in line {first[usual]}, delete the lines above them"


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

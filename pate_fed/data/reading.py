"""How the files of a table are read: what its owner says beside them, remembered with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pate_fed.cells import folded, is_missing, parse_number, plain
from pate_fed.data.cell_forms import FLOOR, counted, typed, with_points
from pate_fed.data.csv_file import CsvTable, read_csv, require_names, require_size
from pate_fed.data.parquet_file import is_parquet, read_parquet
from pate_fed.errors import (
    InvalidCellError,
    InvalidParameterError,
    MissingColumnError,
    UnreadableFileError,
)
from pate_fed.regular_files import MOST_SETTINGS_BYTES, read_regular

MOST_FILES: Final = 1000
"""Most files of one table."""

_ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt", ".parquet", ".pq")
_MOST_WORDS: Final = {"max_length": 1000}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the owner of a table says about its form; a Parquet file needs none of it.

    Attributes:
        separator: Character between cells; a typed backslash and t is a tab.
        decimal: Sign before a number's decimals: "." or ",".
        missing: Cells that stand for "not known" here, beside the usual ones.
        ignored: Columns that are not read.
        renamed: Columns or classes with the name that a task has for them, each as OLD=NEW, and
            categories, as COLUMN:OLD=NEW.
        drops_unlabeled: Leave out rows without a label.
    """

    separator: str = ","
    decimal: str = "."
    missing: tuple[str, ...] = field(default=(), metadata=_MOST_WORDS)
    ignored: tuple[str, ...] = field(default=(), metadata=_MOST_WORDS)
    renamed: tuple[str, ...] = field(default=(), metadata=_MOST_WORDS)
    drops_unlabeled: bool = False

    def __post_init__(self) -> None:
        if self.separator == "\\t":
            object.__setattr__(self, "separator", "\t")
        if len(self.separator) != 1 or self.separator in '"\r\n ':
            raise InvalidParameterError(
                "--separator must be one character, such as ; or a tab", repr(self.separator)
            )
        if self.decimal not in (".", ","):
            raise InvalidParameterError("--decimal must be . or ,", repr(self.decimal))
        for one in self.renamed:
            if not all(map(plain, one.partition("="))):
                raise InvalidParameterError("--map must be OLD=NEW", repr(one))

    @property
    def renamings(self) -> tuple[tuple[str, str], ...]:
        """Old and new names."""
        pairs = (one.partition("=") for one in self.renamed)
        return tuple((plain(old), plain(new)) for old, _, new in pairs)


USUAL: Final = Reading()
"""Of a file as the documentation has it."""


def read_table(path: Path, reading: Reading = USUAL) -> CsvTable:
    """Read a table as its owner says: a CSV or Parquet file, or a folder of such files.

    All files in a folder have the same columns; their rows follow each other in the order of the
    files' names, and so do the lines of messages.

    Raises:
        UnreadableFileError: a file cannot be read, or has other columns than the first.
        MissingColumnError: a column to ignore, of missing cells or of a category to rename, is not
            there.
        InvalidCellError: a number has a point, which the reading has for thousands.
    """
    files = table_files(path)
    text = _joined(path.name, [_read_file(one, reading) for one in files])
    text = _renamed(_without_ignored(text, reading), reading)
    text = _with_gaps(text, reading)
    return text if reading.decimal == "." else with_points(text)


def names_in(path: Path) -> tuple[str, ...]:
    """Return names of columns from a file, one a line; empty lines and those with # are none."""
    try:
        content = read_regular(path, most_bytes=MOST_SETTINGS_BYTES)
    except OSError as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable file", error.strerror or type(error).__name__
        ) from error
    lines = map(plain, content.decode("utf-8-sig", "replace").splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def table_files(path: Path) -> list[Path]:
    """Return the files of a table, in order: the file itself, or those in a folder."""
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    odd = [one for one in found if one.is_dir() or not one.name.lower().endswith(_ENDINGS)]
    if odd or not 0 < len(found) <= MOST_FILES:
        raise UnreadableFileError(
            f"{path.name} must hold the files of one table and nothing else, 1 to {MOST_FILES} "
            f"that end in {', '.join(_ENDINGS)}",
            repr(odd[0].name) if odd else len(found),
        )
    return found


def labeled(text: CsvTable, labels: Collection[str], reading: Reading) -> CsvTable:
    """Return a table with the owner's names of classes, and without rows that lack a label.

    Raises:
        MissingColumnError: a column is not there, or a renamed one is neither column nor class.
        InvalidCellError: a label is missing, unless the owner leaves such rows out.
    """
    columns = {name: text.column(name) for name in labels}
    for old, new in reading.renamings:
        if new in text.header or ":" in old:
            continue  # a column, or a category of one
        if not any(old in cells for cells in columns.values()):
            raise MissingColumnError(
                f"{text.file_name} must have {old!r}, which --map renames, as a column or a class",
                "none",
            )
        for name, cells in columns.items():
            columns[name] = tuple(new if cell == old else cell for cell in cells)
    changed = (columns.get(*one) for one in zip(text.header, text.columns, strict=True))
    text = replace(text, columns=tuple(changed))
    gaps = {row for cells in columns.values() for row, cell in enumerate(cells) if is_missing(cell)}
    if not gaps:
        return text
    rows = counted(len(gaps)).replace("cells", "rows")
    if not reading.drops_unlabeled:
        line = text.lines[min(gaps)]
        raise InvalidCellError(
            f"the label in {text.file_name} must be filled in every row: fill it, or give "
            "--drop-unlabeled",
            f"{rows} without, the first in line {line}",
        )
    kept = text.select([row for row in range(len(text.lines)) if row not in gaps])
    return replace(kept, notes=(*text.notes, f"Rows without a label are left out: {rows}."))


def read_records(
    path: Path,
    reading: Reading,
    *,
    labels: Collection[str],
    apart: Collection[str] = (),
    floor: int = FLOOR,
) -> CsvTable:
    """Read a table with its columns in the form that everybody reads, and its labels filled.

    See `read_table`, `labeled` and `cell_forms.typed`; `apart` names the columns of patients and
    hospitals.
    """
    text = labeled(read_table(path, reading), labels, reading)
    return typed(text, apart={*labels, *apart}, floor=floor)


def _read_file(path: Path, reading: Reading) -> CsvTable:
    return read_parquet(path) if is_parquet(path) else read_csv(path, separator=reading.separator)


def _joined(name: str, texts: Sequence[CsvTable]) -> CsvTable:
    """Return files of the same columns as one table."""
    first, *others = texts
    if not others:
        return first
    for one in others:
        if set(one.header) != set(first.header):
            name = min(set(one.header) ^ set(first.header))
            raise UnreadableFileError(
                f"{one.file_name} must have the columns of {first.file_name}, of the same table",
                f"column {name!r} in one of them alone",
            )
    require_size(name, rows=sum(len(one.lines) for one in texts), columns=len(first.header))
    lines, last = list[int](), 0
    for one in texts:
        lines += [last + line for line in one.lines]
        last = lines[-1] if lines else 0
    columns = tuple(
        tuple(cell for one in texts for cell in one.column(column)) for column in first.header
    )
    asked = tuple(note for one in texts for note in one.asked)
    notes = tuple(note for one in texts for note in one.notes)
    return CsvTable(name, first.header, columns, tuple(lines), asked, notes)


def _without_ignored(text: CsvTable, reading: Reading) -> CsvTable:
    for name in reading.ignored:
        text.column(name)
    kept = [place for place, name in enumerate(text.header) if name not in reading.ignored]
    return replace(
        text,
        header=tuple(text.header[place] for place in kept),
        columns=tuple(text.columns[place] for place in kept),
    )


def _renamed(text: CsvTable, reading: Reading) -> CsvTable:
    """Return a table whose columns, and categories of columns, have the names given for them."""
    columns, header = list(text.columns), list(text.header)
    for old, new in reading.renamings:
        name, _, value = old.rpartition(":")
        if old in text.header:
            header[text.header.index(old)] = new
        elif name:
            cells = text.column(plain(name))
            place = text.header.index(plain(name))
            if value not in cells:
                raise MissingColumnError(
                    f"column {name!r} of {text.file_name} must have what --map renames",
                    repr(value),
                )
            columns[place] = tuple(new if cell == value else cell for cell in columns[place])
    require_names(header, text.file_name)
    return replace(text, header=tuple(header), columns=tuple(columns))


def _with_gaps(text: CsvTable, reading: Reading) -> CsvTable:
    """Return a table in which the cells that the owner names are empty."""
    columns = list(text.columns)
    for one in reading.missing:
        name, sign, value = one.partition("=")
        if sign:
            text.column(plain(name))  # or its error names it
        wanted = plain(value if sign else one)
        number = parse_number(wanted)
        for place, cells in enumerate(columns):
            if not sign or text.header[place] == plain(name):
                gaps = {
                    cell
                    for cell in set(cells)
                    if folded(cell) == folded(wanted) or parse_number(cell) == number
                }
                if gaps:
                    columns[place] = tuple("" if cell in gaps else cell for cell in cells)
    return replace(text, columns=tuple(columns))

"""How the files of a table are read: what its owner says beside them, remembered with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pate_fed.data.csv_file import CsvTable, read_csv
from pate_fed.data.parquet_file import read_parquet
from pate_fed.errors import InvalidParameterError

_PARQUET = (".parquet", ".pq")
_MOST_WORDS: Final = {"max_length": 1000}


@dataclass(frozen=True, slots=True)
class Reading:
    """What the owner of a table says about its form; a Parquet file needs none of it.

    Attributes:
        separator: Character between cells; a typed backslash and t is a tab.
        decimal: Sign before a number's decimals: "." or ",".
        missing: Cells that stand for "not known" here, beside the usual ones.
        ignored: Columns that are not read.
        renamed: Columns or classes with the name that a task has for them, each as OLD=NEW.
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


USUAL: Final = Reading()
"""Of a file as the documentation has it."""


def read_table(path: Path, reading: Reading = USUAL) -> CsvTable:
    """Read a CSV file, or a Parquet file by its name."""
    if path.suffix.lower() in _PARQUET:
        return read_parquet(path)
    return read_csv(path, separator=reading.separator, decimal=reading.decimal)

"""Read a Parquet file as the table that a CSV file of it would be."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from pate_fed.cells import plain
from pate_fed.data.csv_file import (
    MAX_FILE_BYTES,
    CsvTable,
    plain_name,
    require_names,
    require_size,
)
from pate_fed.errors import MissingExtraError, UnreadableFileError
from pate_fed.regular_files import open_regular

_MAGIC: Final = b"PAR1"
_INDEX = re.compile(r"__index_level_\d+__|index|level_\d+")
_MOST_LETTERS = 2**17
"""Of a cell, as in a CSV file."""


def read_parquet(path: Path) -> CsvTable:
    """Read a Parquet file; its row numbers stand for the lines of a CSV file.

    The index that pandas wrote beside the columns is left out.

    Raises:
        UnreadableFileError: the file is missing or damaged, has a name twice, is too large, or has
            a column of bytes, lists or other values that are no cells.
    """
    try:
        from pyarrow import ArrowException, compute, parquet, types  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("Parquet files need the extra `tables`") from error
    notes = []
    try:
        with open_regular(path, most_bytes=MAX_FILE_BYTES) as raw, parquet.ParquetFile(raw) as file:
            schema, facts = file.schema_arrow, file.metadata
            require_size(path.name, rows=facts.num_rows, columns=facts.num_columns)
            size = sum(facts.row_group(one).total_byte_size for one in range(facts.num_row_groups))
            if size > MAX_FILE_BYTES:
                raise UnreadableFileError(f"{path.name} must hold at most {MAX_FILE_BYTES} bytes")
            kept, index = _kept_columns(schema)
            if index:
                listed = ", ".join(map(repr, index))
                notes.append(f"The index that pandas kept in {path.name} is left out: {listed}.")
            header = tuple(plain_name(schema.names[place]) for place in kept)
            require_names(header, path.name)
            for name, place in zip(header, kept, strict=True):
                kind = schema.types[place]
                if types.is_dictionary(kind):
                    kind = kind.value_type
                if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
                    raise UnreadableFileError(
                        f"column {name!r} of {path.name} must hold numbers or texts: leave it out "
                        "of the export",
                        str(kind),
                    )
        texts = [schema.names[place] for place in kept if "string" in str(schema.types[place])]
        columns = []
        with (
            open_regular(path, most_bytes=MAX_FILE_BYTES) as raw,
            # Texts that come again are kept once: a small file may stand for any number of them.
            parquet.ParquetFile(raw, read_dictionary=texts) as file,
        ):
            for place in kept:
                column = file.read(columns=[schema.names[place]]).column(0)
                columns.append(_cells(column, compute, types, path.name))
            rows = facts.num_rows
    except (OSError, ArrowException, UnicodeDecodeError) as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable Parquet file", type(error).__name__
        ) from error
    if any(len(column) != rows for column in columns):
        raise UnreadableFileError(
            f"{path.name} must be a whole Parquet file", "other numbers of rows"
        )
    return CsvTable(
        path.name, header, tuple(columns), tuple(range(1, rows + 1)), notes=tuple(notes)
    )


def without_rows(path: Path, rows: Collection[int]) -> bytes:
    """Return a Parquet file without some rows."""
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415 - the same

    with open_regular(path, most_bytes=MAX_FILE_BYTES) as raw:
        table = parquet.read_table(raw)
    kept = io.BytesIO()
    parquet.write_table(
        table.filter(pa.array([row not in rows for row in range(len(table))])), kept
    )
    return kept.getvalue()


def is_parquet(path: Path) -> bool:
    """Tell whether a file is a Parquet file, by its name or its first bytes."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return True
    try:
        with open_regular(path, most_bytes=MAX_FILE_BYTES) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False  # whoever reads it says so


def _kept_columns(schema: Any) -> tuple[list[int], list[str]]:
    """Return places of columns, and names of those that are the index of a data frame."""
    try:
        facts = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        listed = {one for one in facts.get("index_columns", ()) if isinstance(one, str)}
    except (ValueError, AttributeError, TypeError, RecursionError):
        listed = set()
    index = [
        name
        for name in schema.names
        if name.startswith("__index_level_") or (name in listed and _INDEX.fullmatch(name))
    ]
    return [place for place, name in enumerate(schema.names) if name not in index], index


def _cells(column: Any, compute: Any, types: Any, name: str) -> tuple[str, ...]:
    if types.is_boolean(column.type):
        column = column.cast("int8")
    if not types.is_dictionary(column.type):
        column = compute.dictionary_encode(column.cast("string"))
    found: list[str] = []
    for chunk in column.chunks:
        words = chunk.dictionary.cast("string")
        longest = compute.max(compute.binary_length(words)).as_py() or 0
        if longest > _MOST_LETTERS:
            raise UnreadableFileError(
                f"cells of {name} must have at most {_MOST_LETTERS} bytes", "a longer one"
            )
        known = [plain(word or "") for word in words.to_pylist()]
        places = compute.fill_null(chunk.indices, -1).to_numpy(zero_copy_only=False)
        found.extend("" if place < 0 else known[place] for place in places.tolist())
    return tuple(found)

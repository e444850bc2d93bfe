"""Read a Parquet file as the table that a CSV file of it would be."""

from __future__ import annotations

from pathlib import Path

from pate_fed.cells import plain
from pate_fed.data.csv_file import MAX_CELLS, MAX_FILE_BYTES, CsvTable
from pate_fed.errors import MissingExtraError, UnreadableFileError
from pate_fed.regular_files import open_regular


def read_parquet(path: Path) -> CsvTable:
    """Read a Parquet file; its row numbers stand for the lines of a CSV file.

    Raises:
        UnreadableFileError: the file is missing or damaged, has a name twice, is too large, or has
            a column of lists or other nested values.
    """
    try:
        from pyarrow import ArrowException, compute, parquet, types  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("Parquet files need the extra `tables`") from error
    try:
        with open_regular(path, most_bytes=MAX_FILE_BYTES) as raw, parquet.ParquetFile(raw) as file:
            if file.metadata.num_rows * file.metadata.num_columns > MAX_CELLS:
                raise UnreadableFileError(f"{path.name} must have at most {MAX_CELLS} cells")
            table = file.read()
        header = tuple(plain(name) for name in table.column_names)
        if len(set(header)) != len(header):
            raise UnreadableFileError(f"{path.name} must name every column once")
        columns = []
        for name, column in zip(header, table.columns, strict=True):
            if types.is_nested(column.type):
                raise UnreadableFileError(
                    f"column {name!r} of {path.name} must hold numbers or texts", str(column.type)
                )
            plain_cells = column.cast("int8") if types.is_boolean(column.type) else column
            texts = compute.fill_null(plain_cells.cast("string"), "").to_pylist()
            columns.append(tuple(plain(text) for text in texts))
    except (OSError, ArrowException) as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable Parquet file", type(error).__name__
        ) from error
    return CsvTable(path.name, header, tuple(columns), tuple(range(1, table.num_rows + 1)))

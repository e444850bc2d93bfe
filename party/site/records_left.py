"""What a hospital's records are without one patient: their file's new bytes, images to delete."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from party.errors import DataError, ErasureError
from party.site.own_table import FEWEST_PATIENTS, digest_of, read_registered
from party.site.site import Site
from pate_fed.cells import plain
from pate_fed.data.csv_file import MAX_FILE_BYTES, UTF16_MARKS, CsvTable
from pate_fed.data.image_files import ImageFiles, class_folders, read_arrays
from pate_fed.data.parquet_file import is_parquet, without_rows
from pate_fed.data.reading import Reading, read_table
from pate_fed.data.task import OwnRecords
from pate_fed.regular_files import read_regular

_GZIP_MAGIC = b"\x1f\x8b"
_ARRAYS = {"images", "labels", "patients"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecordsLeft:
    """Registered records without one patient. Secret.

    Attributes:
        before: The records with the patient.
        removed: The patient's rows or images.
        rows: The number of the others.
        digest: Of the others, hex.
        content: New bytes of the table, list or archive; None for a folder of images.
        erased: Files of images, and folders, that are to be deleted.
    """

    before: OwnRecords
    removed: int
    rows: int
    digest: str
    content: bytes | None
    erased: tuple[Path, ...] = ()


def records_without(site: Site, patient: str) -> RecordsLeft:
    """Find what is left without a patient; nothing is written.

    Raises:
        ErasureError: no such patient, nothing says whose a record is, or the files cannot be
            changed here.
        DataError, DataChangedError: too few patients would remain, or the records are others than
            the registered ones.
    """
    before = read_registered(site)
    path = Path(site.data.file)
    if isinstance(before, ImageFiles):
        return _images_without(site, before, patient)
    raw = _whole_file(path, site.data.reading)
    column = _column_of(site.data.patient_id)
    rows = _rows_of(raw.known_cells(column), patient, where=f"column {column!r} of {path.name}")
    content = _without(path, raw, rows)
    return RecordsLeft(
        before,
        len(rows),
        len(raw.lines) - len(rows),
        digest_of({"": hashlib.sha256(content).hexdigest()}, site.data.reading),
        content,
    )


def _column_of(column: str) -> str:
    if not column:
        raise ErasureError(
            "the records must say whose each is: `pate-party data add` with --patient-id, or "
            "images in a folder for each patient",
            "no column of patients",
        )
    return column


def _rows_of(cells: Sequence[str], patient: str, *, where: str) -> frozenset[int]:
    rows = frozenset(row for row, one in enumerate(cells) if one == patient)
    if not rows:
        raise ErasureError(f"the patient must stand in {where}", "an unknown id")
    return rows


# Images -----------------------------------------------------------------------------------------


def _images_without(site: Site, before: ImageFiles, patient: str) -> RecordsLeft:
    path, column = Path(site.data.file), site.data.patient_id
    if before.patients is None:
        _column_of("")
    rows = _rows_of(before.units, patient, where=f"{column} of {path.name}")
    others = [row for row in range(len(before)) if row not in rows]
    count = len({before.units[row] for row in others})
    if count < FEWEST_PATIENTS:
        raise DataError(f"{path.name} must hold at least {FEWEST_PATIENTS} patients", count)
    content, erased = None, tuple(_folders_of(path, patient))
    if path.suffix.lower() == ".npz":
        content, erased = _archive_without(path, others), ()
    elif not path.is_dir():
        text = _whole_file(path, site.data.reading)
        listed = _rows_of(text.known_cells(column), patient, where=column)
        content = _without(path, text, listed)
        erased = tuple(path.parent / before.names[row] for row in sorted(rows))
    _require_deletable(path if path.is_dir() else path.parent, erased)
    return RecordsLeft(
        before, len(rows), len(others), before.select(others).digest, content, erased
    )


def _folders_of(path: Path, patient: str) -> Iterator[Path]:
    """Find a patient's folder in the folder of each class."""
    if path.is_dir():
        for kind in class_folders(path):
            for name in class_folders(path / kind):
                if plain(name) == patient:
                    yield path / kind / name


def _require_deletable(root: Path, paths: Sequence[Path]) -> None:
    found = [*paths, *(one for path in paths for one in path.rglob("*"))]
    there = root.resolve()
    if any(one.resolve() != there / one.relative_to(root) for one in found):
        raise ErasureError(
            "a patient's images must be files themselves: what a link names would stay", "a link"
        )
    if not all(
        os.access(one, os.W_OK | os.X_OK, effective_ids=True)
        for one in {one.parent for one in found}
    ):
        raise ErasureError(
            "the folders of the patient's images must be writable for this account", "read only"
        )


def _archive_without(path: Path, others: Sequence[int]) -> bytes:
    arrays = read_arrays(path)
    if set(arrays) != _ARRAYS:
        raise ErasureError(
            f"{path.name} must hold images, labels and patients alone: other arrays may tell of "
            "the patient",
            "others",
        )
    made = io.BytesIO()
    kept = {name: array[list(others)] for name, array in arrays.items()}
    np.savez_compressed(made, allow_pickle=False, **kept)
    return made.getvalue()


# Tables -----------------------------------------------------------------------------------------


def _whole_file(path: Path, reading: Reading) -> CsvTable:
    """Return the table with every row of its file, those without a label, too."""
    if path.is_dir():
        raise ErasureError(
            f"{path.name} must be one file: join its files, and register the one file by "
            "`pate-party data add`",
            "a folder of files",
        )
    return read_table(path, reading)


def _without(path: Path, text: CsvTable, rows: frozenset[int]) -> bytes:
    """Return the table's file without some rows; every other line of text keeps its bytes."""
    if is_parquet(path):
        return without_rows(path, rows)
    content = read_regular(path, most_bytes=MAX_FILE_BYTES)
    is_packed = content.startswith(_GZIP_MAGIC)
    content = gzip.decompress(content) if is_packed else content
    mark = next((one for one in UTF16_MARKS if content.startswith(one)), b"")
    if mark:
        content = content.removeprefix(mark).decode(UTF16_MARKS[mark]).encode()
    lines = io.BytesIO(content).readlines()
    start, kept = _header_end(lines), list[bytes]()
    kept += lines[:start]
    for row, end in enumerate(text.lines):
        if row not in rows:
            kept += lines[start:end]
        start = end
    kept += lines[start:]
    left = b"".join(kept)
    if mark:
        left = mark + left.decode().encode(UTF16_MARKS[mark])
    return gzip.compress(left, mtime=0) if is_packed else left


def _header_end(lines: list[bytes]) -> int:
    texts = (line.decode("utf-8-sig", "replace") for line in lines)
    reader = csv.reader(texts, skipinitialspace=True)
    for row in reader:
        if row:
            break
    return reader.line_num

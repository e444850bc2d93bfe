"""The hospital's own table: registered once, then held to its hash; nothing of it leaves.

Its tables are for the hospital's own people. Counts below the site's floor are hidden all the same:
a screen's content may end in a mail.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from party.errors import DataChangedError, DataError
from party.site.site import Site
from pate_fed.data.column_review import copies_of_label
from pate_fed.data.columns import MOST_CLASSES, canonical_cells, read_column, sorted_names
from pate_fed.data.csv_file import MAX_FILE_BYTES, CsvTable
from pate_fed.data.image_files import (
    ImageFiles,
    class_folders,
    images_of,
    lists_images,
)
from pate_fed.data.reading import USUAL, Reading, read_records
from pate_fed.data.table_features import NumberEncoder, TableEncoder, fit_column
from pate_fed.data.table_review import TableReview, review
from pate_fed.data.tables import refuse_spellings
from pate_fed.data.task import OwnRecords
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.inputs import DatasetKind
from pate_fed.nodes.owner_files import as_fault
from pate_fed.regular_files import open_regular

FEWEST_PATIENTS = 2
_CHUNK_BYTES = 2**20
_FOLDERS = "the folder of each patient"


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One column, without a cell; its role is "label", "patient", "number" or "text".

    `doubt` says why no teacher learns from it if the public rows look alike.
    """

    name: str
    role: str
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """A table as `data add` shows it, without a cell; `sha256` is the file's, hex.

    Counts of patients of `classes` are None where they are below `floor`, the smallest that is
    shown. `asked` has sentences on how the table is read that ask for an answer, `notes` others.
    `patients_by` says what names the patient where no column does.
    """

    file: Path
    sha256: str
    rows: int
    patients: int
    columns: tuple[ColumnSummary, ...]
    classes: tuple[tuple[str, int | None], ...]
    floor: int
    asked: tuple[str, ...]
    notes: tuple[str, ...]
    kind: DatasetKind = "table"
    patients_by: str = ""


def examine(
    path: Path,
    *,
    label: str,
    patient_id: str | None,
    floor: int,
    reading: Reading = USUAL,
) -> DatasetSummary:
    """Look at a table; without `patient_id`, each row is a patient's only one.

    For a terminal of the hospital's own people: an error names the image that is wrong.

    Raises `UnreadableFileError`, `MissingColumnError`, `InvalidCellError` or
    `InvalidParameterError` where it is no table with these columns, `InvalidDataError` where a
    column has two units; `DataError` where it has too few patients or too many classes.
    """
    if holds_images(path, reading):
        return _examined_images(
            path, label=label, patient_id=patient_id, floor=floor, reading=reading
        )
    digest = records_digest(path, reading)
    text = _read(path, label=label, patient_id=patient_id, floor=floor, reading=reading)
    units = text.unit_ids(patient_id)
    patients = len(set(units))
    if patients < FEWEST_PATIENTS:
        raise DataError(f"{path.name} must hold at least {FEWEST_PATIENTS} patients", patients)
    classes = canonical_cells(text.column(label))
    # A patient with rows of a class counts once: a floor is one of people.
    counts = Counter(name for name, _ in set(zip(classes, units, strict=True)))
    if len(counts) > MOST_CLASSES:
        raise DataError(
            f"column {label!r} of {path.name} must hold at most {MOST_CLASSES} classes", len(counts)
        )
    refuse_spellings(f"column {label!r} of {path.name}", counts)
    found, columns = own_review(text, label=label, patient_id=patient_id, floor=floor)
    if records_digest(path, reading) != digest:
        raise DataChangedError(f"{path.name} must stay the same while it is read")
    return DatasetSummary(
        file=path.resolve(),
        sha256=digest,
        rows=len(text.lines),
        patients=patients,
        columns=columns,
        classes=_shown(counts, floor),
        floor=floor,
        asked=found.asked,
        notes=found.notes,
    )


def add(
    site: Site,
    path: Path,
    *,
    label: str,
    patient_id: str | None,
    reading: Reading = USUAL,
) -> tuple[Site, DatasetSummary]:
    """Register a table as the site's data set in use, in the place of an earlier one.

    See `examine`.
    """
    known = site.settings.data
    summary = examine(path, label=label, patient_id=patient_id, floor=known.floor, reading=reading)
    column = patient_id or summary.patients_by
    is_same = (known.digest, known.patient_id) == (summary.sha256, column)
    data = replace(
        known,
        kind=summary.kind,
        reading=reading,
        file=str(summary.file),
        label=label,
        patient_id=column,
        digest=summary.sha256,
        rows=summary.rows,
        notes=(*summary.asked, *summary.notes),
        patients=known.patients if is_same else summary.patients,
    )
    return site.save(replace(site.settings, data=data)), summary


def read_registered(site: Site) -> OwnRecords:
    """Read the registered records, and no others; `DataError` where none were registered."""
    data = site.data
    if not data.file:
        raise DataError("a table must be registered by `pate-party data add`")
    path = Path(data.file)
    require_unchanged(site)
    if data.kind == "image":  # each file is read later, once
        return _images_of(site)
    text = _read(
        path,
        label=data.label,
        patient_id=data.patient_id or None,
        floor=data.floor,
        reading=data.reading,
    )
    require_unchanged(site)  # nor did it change while it was read
    return text


def require_unchanged(site: Site) -> None:
    """Refuse, with `DataChangedError`, a registered table with another hash."""
    if registered_digest(site) != site.data.digest:
        name = Path(site.data.file).name
        raise DataChangedError(f"{name} must be as `pate-party data add` saw it")


def registered_digest(site: Site) -> str:
    """Return the digest of the registered records as they are now, hex."""
    data, path = site.data, Path(site.data.file)
    if data.kind == "image":
        return _images_of(site).digest
    return records_digest(path, data.reading)


def units_of(site: Site, found: OwnRecords | None = None) -> tuple[str, ...]:
    """Return the patient of each registered record, `found` if they were read."""
    found = read_registered(site) if found is None else found
    if isinstance(found, ImageFiles):
        return found.units
    return found.unit_ids(site.data.patient_id or None)


def records_digest(path: Path, reading: Reading) -> str:
    """Return the digest of a file, or of all files in a folder, and of how they are read; hex."""
    if path.is_dir():
        return digest_of({name: file_digest(one) for name, one in files_of(path).items()}, reading)
    return digest_of({"": file_digest(path)}, reading)


def digest_of(digests: Mapping[str, str], reading: Reading) -> str:
    """Return the digest of files with these digests, by their names below a folder.

    A file alone has no name: it may be moved. Read in the usual way, its digest is SHA-256 of it.
    """
    if reading == USUAL and set(digests) == {""}:
        return digests[""]
    facts = [sorted(digests.items()), asdict(reading)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def files_of(path: Path) -> dict[str, Path]:
    """Return the files in a folder and its folders, by their names in it, but hidden ones."""
    found = {str(one.relative_to(path)): one for one in path.rglob("*") if not one.is_dir()}
    return {
        name: found[name]
        for name in sorted(found)
        if not any(part.startswith(".") for part in Path(name).parts)
    }


def file_digest(path: Path) -> str:
    """Return SHA-256 of a file, hex; `UnreadableFileError` where it cannot be read."""
    found = hashlib.sha256()
    with (
        as_fault(UnreadableFileError, f"{path.name} must be a readable file"),
        open_regular(path, most_bytes=MAX_FILE_BYTES) as file,
    ):
        while piece := file.read(_CHUNK_BYTES):
            found.update(piece)
    return found.hexdigest()


def own_review(
    text: CsvTable, *, label: str, patient_id: str | None, floor: int
) -> tuple[TableReview, tuple[ColumnSummary, ...]]:
    """Look at a table as a simulation does, and at each of its columns."""
    columns = tuple(_columns(text, label=label, patient_id=patient_id))
    found = review(text, labels=[label], patient=patient_id, floor=floor)
    copies = (note for _, notes in columns for note in notes)
    return replace(found, notes=(*copies, *found.notes)), tuple(one for one, _ in columns)


# Images -----------------------------------------------------------------------------------------


def holds_images(path: Path, reading: Reading = USUAL) -> bool:
    """Tell whether records are images: folders by class, a .npz archive, or a list of paths."""
    if path.is_dir():
        return bool(class_folders(path))
    if path.suffix.lower() == ".npz":
        return True
    return lists_images(path, reading)


def _images_of(site: Site) -> ImageFiles:
    data = site.data
    patient = data.patient_id or None
    return _images_at(
        Path(data.file),
        label=data.label,
        patient_id=patient,
        reading=data.reading,
        shows_names=False,
    )


def _images_at(
    path: Path, *, label: str, patient_id: str | None, reading: Reading, shows_names: bool
) -> ImageFiles:
    is_list = not path.is_dir() and path.suffix.lower() != ".npz"
    if patient_id not in (None, _FOLDERS) and not is_list:
        raise InvalidParameterError(
            "--patient-id names a column of a list of images: put the images of each patient into "
            "a folder of their own, inside the folder of their class",
            patient_id,
        )
    return images_of(
        path, label=label, patient_id=patient_id, reading=reading, shows_names=shows_names
    )


def _examined_images(
    path: Path, *, label: str, patient_id: str | None, floor: int, reading: Reading
) -> DatasetSummary:
    """Look at images as `examine` does at a table: every one is read once."""
    found = _images_at(path, label=label, patient_id=patient_id, reading=reading, shows_names=True)
    digest, notes, patients = found.digest, list(found.notes), len(set(found.units))
    if patients < FEWEST_PATIENTS:
        raise DataError(f"{path.name} must hold at least {FEWEST_PATIENTS} patients", patients)
    if found.patients is None:
        notes.insert(0, "Each image counts as a patient of its own: nothing says whose it is.")
    for _ in found.looks():  # a file that is no image is found now, and not after days
        pass
    notes += found.copies
    refuse_spellings(f"the classes of {path.name}", set(found.labels))
    if found.digest != digest:
        raise DataChangedError(f"{path.name} must stay the same while it is read")
    counts = Counter({label: len(units) for label, units in _units_by_label(found).items()})
    return DatasetSummary(
        file=path.resolve(),
        sha256=digest,
        rows=len(found),
        patients=patients,
        columns=(),
        classes=_shown(counts, floor),
        floor=floor,
        asked=(),
        notes=tuple(notes),
        kind="image",
        patients_by=_FOLDERS if patient_id is None and found.patients is not None else "",
    )


def _units_by_label(found: ImageFiles) -> dict[str, set[str]]:
    units: dict[str, set[str]] = {}
    for label, unit in zip(found.labels, found.units, strict=True):
        units.setdefault(label, set()).add(unit)
    return units


# Helpers ----------------------------------------------------------------------------------------


def _read(
    path: Path, *, label: str, patient_id: str | None, floor: int, reading: Reading
) -> CsvTable:
    apart = () if patient_id is None else (patient_id,)
    text = read_records(path, reading, labels=[label], apart=apart, floor=floor)
    _require_columns(text, label=label, patient_id=patient_id)
    return text


def _require_columns(text: CsvTable, *, label: str, patient_id: str | None) -> None:
    if patient_id is not None:
        text.column(patient_id)
    if label == patient_id:
        raise InvalidParameterError("label and patient must be different columns")
    if len(text.header) < 2 + (patient_id is not None):
        raise DataError(f"{text.file_name} must have columns to learn from")


def _shown(counts: Counter[str], floor: int) -> tuple[tuple[str, int | None], ...]:
    """Hide counts below the floor, and one more where the total would reveal one."""
    hidden = {name for name, count in counts.items() if count < floor}
    if len(hidden) == 1 < len(counts):
        hidden.add(min(set(counts) - hidden, key=lambda name: (counts[name], name)))
    return tuple((name, None if name in hidden else counts[name]) for name in sorted_names(counts))


def _columns(
    text: CsvTable, *, label: str, patient_id: str | None
) -> Iterator[tuple[ColumnSummary, tuple[str, ...]]]:
    """Yield each column's summary, and the warnings about it."""
    rows = np.arange(len(text.lines), dtype=np.int64)
    classes = canonical_cells(text.column(label))
    places = {name: place for place, name in enumerate(dict.fromkeys(classes))}
    labels = np.fromiter(map(places.__getitem__, classes), np.int64, len(classes))
    for name in text.header:
        if name in (label, patient_id):
            yield ColumnSummary(name, "label" if name == label else "patient"), ()
            continue
        column = read_column(text, name)  # one at a time: a table may have a million rows
        found = fit_column(0, column, rows)
        if isinstance(found, str):
            is_number = bool(np.isfinite(column.numbers[~column.missing()]).all())
            yield ColumnSummary(name, "number" if is_number else "text", found), ()
            continue
        role = "number" if isinstance(found, NumberEncoder) else "text"
        warnings = copies_of_label((column,), labels, TableEncoder((found,)), rows)
        yield ColumnSummary(name, role), tuple(warnings)

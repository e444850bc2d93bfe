"""Which images there are, whose and of which class: a folder, a list of paths, or an archive.

Pixels are read later, at the size of a task. Hidden files, and those that systems leave behind, are
skipped. An error about a private image says its place, and its name, which may be a patient's,
only at its owner's terminal.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import is_missing, plain
from pate_fed.data.columns import MOST_CLASSES, canonical_cells
from pate_fed.data.csv_file import CsvTable, read_csv
from pate_fed.data.image_pixels import (
    MOST_FILE_BYTES,
    ImageLook,
    ImageReading,
    look_at,
    read_image,
)
from pate_fed.data.reading import USUAL, Reading, labeled, read_table
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    MissingColumnError,
    UnreadableFileError,
)
from pate_fed.regular_files import open_regular, read_regular
from pate_fed.wording import plural

PATHS: Final = "path"
"""Column of a list that names each image's file, beside the list."""

MOST_IMAGES: Final = 2**20
MOST_IMAGE_BYTES: Final = 2**32
"""Most bytes of pixels that are kept in memory."""

LARGEST_USUAL_SIDE: Final = 64
"""Images of one size up to this are read as they are, others at this size."""

_ENDINGS: Final = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".dcm", ".dicom"}
_LEFT_BEHIND: Final = {"thumbs.db", "desktop.ini", "dicomdir", "__macosx", "ehthumbs.db"}
_MAGIC_END: Final = 132
_LENGTH: Final = struct.Struct(">Q")

Source = Callable[[], bytes] | NDArray[np.uint8]
"""An image's file, read when it is needed, or its pixels."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ImageFiles:
    """Images whose pixels are not read yet. Secret where they are patients'.

    Attributes:
        file_name: Name of the folder, the list or the archive.
        names: Of each image, none twice: its path, or its place in an archive.
        labels: Class of each, by its name; empty for public images without labels.
        patients: Whose each is; None where nobody says it, and each is a patient's only one.
        hospitals: Where each is from, where a list says it.
        notes: What was skipped or taken for granted, in sentences.
        shows_names: Whether errors name them: public ones, or any at their owner's terminal.
    """

    file_name: str
    names: tuple[str, ...]
    sources: tuple[Source, ...]
    labels: tuple[str, ...] = ()
    patients: tuple[str, ...] | None = None
    hospitals: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    shows_names: bool = False

    def __post_init__(self) -> None:
        if not self.names:
            raise UnreadableFileError(f"{self.file_name} must hold images", "none")
        if len(self.names) > MOST_IMAGES:
            raise UnreadableFileError(
                f"{self.file_name} must hold at most {MOST_IMAGES} images", len(self.names)
            )
        if any(map(is_missing, self.labels)):
            raise InvalidCellError(
                f"every image of {self.file_name} must be of a class",
                "one whose class is called as a missing cell",
            )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ImageFiles(images={len(self)})"

    def select(self, rows: Sequence[int]) -> ImageFiles:
        """Return some of the images, as if there were no others."""
        names = tuple(self.names[row] for row in rows)
        return replace(
            self,
            names=names if callable(self.sources[0]) else _numbered(len(rows)),
            sources=tuple(self.sources[row] for row in rows),
            labels=canonical_cells(tuple(self.labels[row] for row in rows)),
            patients=self.patients and tuple(self.patients[row] for row in rows),
            hospitals=self.hospitals and tuple(self.hospitals[row] for row in rows),
        )

    @property
    def units(self) -> tuple[str, ...]:
        """The patient of each image; its own place where nobody says whose it is."""
        if self.patients is not None:
            return self.patients
        return tuple(str(place) for place in range(1, len(self) + 1))

    def named(self, place: int) -> str:
        """Return what an error calls an image, by its place from 0."""
        if self.shows_names:
            return self.names[place]
        return f"image {place + 1} of {self.file_name}, in the order of names,"

    def content(self, place: int) -> bytes | NDArray[np.uint8]:
        """Read an image's file; an `UnreadableFileError` where it cannot be read."""
        source = self.sources[place]
        if not callable(source):
            return source
        try:
            return source()
        except (OSError, EOFError, RuntimeError, BadZipFile, zlib.error) as error:
            raise UnreadableFileError(
                f"{self.named(place)} must be a readable file", type(error).__name__
            ) from None

    def read(self, reading: ImageReading, rows: Iterable[int] | None = None) -> NDArray[np.uint8]:
        """Read all images, or those at some places; uint8, shape (n, *reading.shape)."""
        places = list(range(len(self)) if rows is None else rows)
        size = len(places) * int(np.prod(reading.shape))
        if size > MOST_IMAGE_BYTES:
            raise UnreadableFileError("images must fit into memory", f"{len(places)} of them")
        images = np.empty((len(places), *reading.shape), dtype=np.uint8)
        for row, place in enumerate(places):
            images[row] = read_image(self.content(place), self.named(place), reading)
        return images

    def looks(self, rows: Iterable[int] | None = None) -> Iterator[ImageLook]:
        """Look at all images, or at those at some places."""
        for place in range(len(self)) if rows is None else rows:
            yield look_at(self.content(place), self.named(place))

    @property
    def copies(self) -> tuple[str, ...]:
        """Say whether files of one content are there under two names, and under two classes."""
        labels: dict[bytes, set[str]] = {}
        for place in range(len(self)):
            label = self.labels[place] if self.labels else ""
            labels.setdefault(self._sha256(place), set()).add(label)
        found = list[str]()
        if len(labels) < len(self):
            found.append(
                "Some images are there twice. If a patient is there under two names, the guarantee "
                "covers each of them only by itself."
            )
        if unclear := sum(len(one) > 1 for one in labels.values()):
            found.append(f"{plural(unclear, 'image')} of two classes: one of them is wrong.")
        return tuple(found)

    def _sha256(self, place: int) -> bytes:
        content = self.content(place)
        data = content if isinstance(content, bytes) else content.tobytes()
        return hashlib.sha256(data).digest()

    @property
    def digest(self) -> str:
        """SHA-256 over names, labels, patients and every file's content, hex."""
        found = hashlib.sha256(b"pate-fed images\n")
        of_each = (self.labels or self.names, self.patients or self.names)
        for place, (name, *facts) in enumerate(zip(self.names, *of_each, strict=True)):
            for part in (name, *facts):
                text = part.encode("utf-8", "surrogateescape")
                found.update(_LENGTH.pack(len(text)) + text)
            found.update(self._sha256(place))
        return found.hexdigest()


def reading_of(
    looks: Iterable[ImageLook], *, largest_side: int = LARGEST_USUAL_SIDE
) -> ImageReading:
    """Choose how all images are read, from public ones.

    They are read at their size if they have one of at most `largest_side` pixels a side, otherwise
    at `LARGEST_USUAL_SIDE`; in color if one of them has color. The window is the range of those
    with more than 8 bits; where there are none it is everything that 16 bits hold.
    """
    found = list(looks)
    sizes = {(one.height, one.width) for one in found}
    size = (LARGEST_USUAL_SIDE, LARGEST_USUAL_SIDE)
    if len(sizes) == 1 and max(max(one) for one in sizes) <= largest_side:
        [size] = sizes
    channels = 3 if any(one.has_color for one in found) else 1
    lows = [one.lowest for one in found if one.lowest is not None]
    highs = [one.highest for one in found if one.highest is not None]
    if not lows:
        return ImageReading(*size, channels)
    low = min(lows)
    return ImageReading(*size, channels, low, max(low + 1, *highs))


def images_of(
    path: Path,
    *,
    label: str | None = None,
    patient_id: str | None = None,
    hospital: str | None = None,
    reading: Reading = USUAL,
    shows_names: bool = False,
) -> ImageFiles:
    """Find labelled images.

    Args:
        path: A folder with a folder for each class; in these lie images, or a folder for each
            patient. Or a CSV file with a column `path`, a label and perhaps patients. Or a .npz
            archive with `images` and `labels`, and perhaps `patients`.
        label: Column of the classes in a CSV file; folders and archives need none.
        reading: How a list is read; of folders and archives it renames classes.

    Raises:
        UnreadableFileError: it is none of these, or holds nothing.
        InvalidParameterError: a folder or an archive is to be read as a list.
        InvalidDataError: a class holds images beside patients' folders, or a path stands twice.
        MissingColumnError, InvalidCellError: a column or a cell of the list is missing.
    """
    if path.is_dir():
        return _renamed(_of_folder(path, shows_names=shows_names), reading)
    if path.suffix.lower() == ".npz":
        return _renamed(_of_archive(path, shows_names=shows_names), reading)
    if not path.exists():
        raise UnreadableFileError(f"{path.name} must be a folder or a file", "none")
    if label is None:
        raise InvalidDataError(f"{path.name} lists images: --label must name its column of classes")
    text = labeled(read_table(path, reading), [label], reading)
    return _of_list(
        path, text, label=label, patient_id=patient_id, hospital=hospital, shows_names=shows_names
    )


def _renamed(found: ImageFiles, reading: Reading) -> ImageFiles:
    """Return images with the owner's names of classes."""
    if replace(reading, renamed=()) != USUAL:
        raise InvalidParameterError(
            f"{found.file_name} is no list of images: it takes --label and --map alone",
            "an option of tables",
        )
    names = dict(reading.renamings)
    for old in names:
        if old not in found.labels:
            raise MissingColumnError(
                f"{found.file_name} must have {old!r}, which --map renames, as a class", "none"
            )
    return replace(found, labels=tuple(names.get(one, one) for one in found.labels))


def public_images(path: Path) -> ImageFiles:
    """Find public images without labels: in a folder and those in it, a .zip or a .npz archive.

    They are in the order of their paths.
    """
    found: dict[str, Source]
    if path.is_dir():
        found = {_below(path, one): _reader(one) for one in _walk(path) if _may_be_image(one)}
    elif path.suffix.lower() == ".zip":
        found = _in_zip(path)
    elif path.suffix.lower() == ".npz":
        arrays = read_arrays(path)
        if "images" not in arrays:
            raise UnreadableFileError(f"{path.name} must hold images", "no such array")
        pixels = checked_pixels(arrays["images"], path.name)
        return ImageFiles(path.name, _numbered(len(pixels)), tuple(pixels), shows_names=True)
    else:
        found = {path.name: _reader(path)}
    names = tuple(sorted(found))
    return ImageFiles(path.name, names, tuple(found[one] for one in names), shows_names=True)


def lists_images(path: Path, reading: Reading = USUAL) -> bool:
    """Tell whether a table is a list: it has a column `path`, and a file there, or its ending."""
    if path.suffix.lower() != ".csv":
        return False
    try:
        text = read_csv(path, separator=reading.separator)
    except InvalidDataError:
        return False  # its reader says what is wrong
    if PATHS not in text.header:
        return False
    cells = text.column(PATHS)
    endings = {PurePosixPath(one).suffix.lower() for one in cells}
    try:
        return bool(endings & _ENDINGS) or (path.parent / cells[0]).is_file()
    except OSError:  # a text longer than any name
        return False


def is_images(path: Path) -> bool:
    """Tell by its name whether public inputs are images, and no table."""
    return path.is_dir() or path.suffix.lower() in (".zip", ".npz", *_ENDINGS)


# A folder -----------------------------------------------------------------------------------------


def _of_folder(folder: Path, *, shows_names: bool) -> ImageFiles:
    classes = [one for one in _entries(folder) if one.is_dir()]
    if not 1 <= len(classes) <= MOST_CLASSES:
        raise UnreadableFileError(
            f"{folder.name} must hold 1 to {MOST_CLASSES} folders, one for each class", len(classes)
        )
    found: list[tuple[Path, str, str]] = []
    is_nested: set[bool] = set()
    others = 0
    for kind in classes:
        for entry in _entries(kind):
            if entry.is_dir():
                inner = [one for one in _walk(entry) if _may_be_image(one)]
                found += [(one, kind.name, entry.name) for one in inner]
                is_nested |= {True} if inner else set()
            elif _may_be_image(entry):
                found.append((entry, kind.name, ""))
                is_nested.add(False)
            else:
                others += 1
    if len(is_nested) > 1:
        raise InvalidDataError(
            f"the folders of classes in {folder.name} must hold images, or a folder for each "
            "patient: put every image into its patient's folder",
            "both",
        )
    outside = sum(not one.is_dir() for one in _entries(folder))
    found.sort(key=lambda one: _below(folder, one[0]))
    nested = True in is_nested
    patients = tuple(plain(patient) for _, _, patient in found) if nested else None
    notes = []
    if patients is not None:
        notes.append(
            f"The folders inside a class are taken for patients: {plural(len(found), 'image')} of "
            f"{plural(len(set(patients)), 'patient')}. A folder of the same name in two classes is "
            "one patient."
        )
    if others + outside:
        notes.append(f"{plural(others + outside, 'other file')} beside the images left out.")
    empty = len(classes) - len({kind for _, kind, _ in found})
    if empty:
        notes.append(f"{plural(empty, 'class folder')} without an image.")
    return ImageFiles(
        folder.name,
        tuple(_below(folder, one) for one, _, _ in found),
        tuple(_reader(one) for one, _, _ in found),
        labels=canonical_cells(tuple(plain(kind) for _, kind, _ in found)),
        patients=patients,
        notes=tuple(notes),
        shows_names=shows_names,
    )


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the names of a folder's folders, sorted, without hidden ones."""
    return tuple(one.name for one in _entries(folder) if one.is_dir())


def _entries(folder: Path) -> list[Path]:
    try:
        found = sorted(one for one in folder.iterdir() if not _is_left_behind(one.name))
    except OSError as error:
        raise UnreadableFileError(
            f"{folder.name} must be a readable folder", type(error).__name__
        ) from None
    if any(one.is_symlink() and one.is_dir() for one in found):
        raise UnreadableFileError(
            f"{folder.name} must hold its folders themselves", "a link to a folder"
        )
    return found


def _walk(folder: Path) -> Iterator[Path]:
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _walk(entry)
        else:
            yield entry


def _is_left_behind(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LEFT_BEHIND


def _may_be_image(path: Path) -> bool:
    """Tell whether a file is taken for an image; one of DICOM may have any name."""
    if path.suffix.lower() in _ENDINGS:
        return True
    try:
        with open_regular(path, most_bytes=MOST_FILE_BYTES) as file:
            return file.read(_MAGIC_END)[-4:] == b"DICM"
    except OSError:
        return False


def _below(folder: Path, path: Path) -> str:
    return PurePosixPath(path.relative_to(folder)).as_posix()


def _reader(path: Path) -> Callable[[], bytes]:
    return lambda: read_regular(path, most_bytes=MOST_FILE_BYTES)


# A list -------------------------------------------------------------------------------------------


def _of_list(
    path: Path,
    text: CsvTable,
    *,
    label: str,
    patient_id: str | None,
    hospital: str | None,
    shows_names: bool,
) -> ImageFiles:
    names = _paths_in(text)
    folder = path.parent

    def column(name: str | None) -> tuple[str, ...] | None:
        return None if name is None else text.known_cells(name)

    order = sorted(range(len(names)), key=names.__getitem__)

    def sorted_cells(cells: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if cells is None else tuple(cells[place] for place in order)

    labels = sorted_cells(canonical_cells(text.known_cells(label)))
    assert labels is not None, "a column"
    listed = tuple(names[place] for place in order)
    return ImageFiles(
        path.name,
        listed,
        tuple(_reader(folder / os.fspath(one)) for one in listed),
        labels=labels,
        patients=sorted_cells(column(patient_id)),
        hospitals=sorted_cells(column(hospital)),
        notes=text.notes,
        shows_names=shows_names,
    )


def _paths_in(text: CsvTable) -> tuple[str, ...]:
    """Return each image's path below the list's folder, in its one form."""
    seen: dict[str, None] = {}
    for line, cell in zip(text.lines, text.known_cells(PATHS), strict=True):
        path = PurePosixPath(cell)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise InvalidDataError(
                f"{text.file_name} must name images in its folder and in those below, without ..",
                f"another path in line {line}",
            )
        if str(path) in seen:
            raise InvalidDataError(
                f"{text.file_name} must list every image once", f"one again in line {line}"
            )
        seen[str(path)] = None
    return tuple(seen)


# Archives -----------------------------------------------------------------------------------------


def _of_archive(path: Path, *, shows_names: bool) -> ImageFiles:
    arrays = read_arrays(path)
    missing = [one for one in ("images", "labels") if one not in arrays]
    if missing:
        raise UnreadableFileError(f"{path.name} must hold images and labels", f"no {missing[0]}")
    pixels = checked_pixels(arrays["images"], path.name)
    labels = arrays["labels"].reshape(-1)
    patients = arrays.get("patients")
    lengths = {len(pixels), len(labels), len(pixels) if patients is None else patients.size}
    if len(lengths) != 1:
        raise InvalidDataError(
            f"{path.name} must hold a label, and a patient where it names them, for each image",
            f"lengths {sorted(lengths)}",
        )
    return ImageFiles(
        path.name,
        _numbered(len(pixels)),
        tuple(pixels),
        labels=canonical_cells(tuple(plain(str(one)) for one in labels.tolist())),
        patients=None if patients is None else tuple(map(str, patients.reshape(-1).tolist())),
        shows_names=shows_names,
    )


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"image-{place}" for place in range(count))


def _in_zip(path: Path) -> dict[str, Source]:
    try:
        archive = ZipFile(path)
        listed = [one for one in archive.infolist() if not one.is_dir()]
    except (OSError, BadZipFile, ValueError) as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable .zip file", type(error).__name__
        ) from None
    found: dict[str, Source] = {}
    for entry in listed:
        parts = PurePosixPath(entry.filename).parts
        if ".." in parts or "/" in parts:
            raise UnreadableFileError(
                f"paths in {path.name} must be below it, without ..", "another path"
            )
        if any(_is_left_behind(one) for one in parts):
            continue
        if PurePosixPath(entry.filename).suffix.lower() not in _ENDINGS:
            continue
        if entry.filename in found:
            raise UnreadableFileError(f"{path.name} must hold every file once", "one again")
        if entry.file_size > MOST_FILE_BYTES:
            raise UnreadableFileError(
                f"files in {path.name} must have at most {MOST_FILE_BYTES} bytes"
            )
        found[entry.filename] = _zipped(archive, entry.filename, entry.file_size)
    return found


def _zipped(archive: ZipFile, name: str, size: int) -> Callable[[], bytes]:
    def read() -> bytes:
        with archive.open(name) as file:
            content = file.read(size + 1)
        if len(content) != size:
            raise BadZipFile(name)
        return content

    return read


def checked_pixels(images: NDArray[np.generic], where: str) -> NDArray[np.uint8]:
    """Return an array of images with 4 axes, if it is one; see `read_arrays`."""
    stacked = images[..., None] if images.ndim == 3 else images
    if stacked.ndim != 4 or stacked.dtype != np.uint8 or stacked.shape[3] not in (1, 3):
        raise InvalidDataError(
            f"{where} must hold gray or RGB images of bytes", f"{images.dtype} {images.shape}"
        )
    if min(stacked.shape[1:3]) < 4:
        raise InvalidDataError(
            f"{where} must hold images of at least 4 x 4", str(stacked.shape[1:3])
        )
    return np.asarray(stacked)


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read a .npz archive of arrays; an `UnreadableFileError` where it is none of 4 GiB at most."""
    try:
        with (
            open_regular(path, most_bytes=MOST_IMAGE_BYTES) as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            size = sum(entry.file_size for entry in archive.zip.infolist())
            if size > MOST_IMAGE_BYTES:
                raise UnreadableFileError(f"{path.name} must hold at most 4 GiB", f"{size} bytes")
            return {one: archive[one] for one in archive.files}
    except (
        OSError,
        ValueError,
        EOFError,
        AttributeError,
        LookupError,
        MemoryError,
        OverflowError,
        BadZipFile,
        zlib.error,
    ) as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable .npz file of arrays", type(error).__name__
        ) from error

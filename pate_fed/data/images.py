"""Images from files as a data set: idx pairs like MNIST's, archives, folders, lists of paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.columns import MOST_CLASSES, sorted_names
from pate_fed.data.copies import without_copies
from pate_fed.data.csv_file import plain_or_packed
from pate_fed.data.dataset import Dataset, Records
from pate_fed.data.idx import read_idx
from pate_fed.data.image_features import fit_image_encoder
from pate_fed.data.image_files import (
    LARGEST_USUAL_SIDE,
    ImageFiles,
    checked_pixels,
    class_folders,
    images_of,
    public_images,
    read_arrays,
    reading_of,
)
from pate_fed.data.image_pixels import MOST_SIDE, WHOLE_WINDOW, ImageReading
from pate_fed.data.reading import USUAL, Reading
from pate_fed.data.stored_preprocessing import ImagePreprocessing
from pate_fed.data.tables import refuse_spellings, split_by_unit
from pate_fed.errors import InvalidDataError, RareClassError, UnreadableFileError

_POOL_SHARE = 0.9
_FASHION = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_DIGITS = tuple(str(digit) for digit in range(10))
_CLASS_NAMES = {
    "mnist": _DIGITS,
    "fashion-mnist": _FASHION,
    "pneumoniamnist": ("normal", "pneumonia"),
}
"""Classes of known archives, in the order of their numbers."""
_OF_NOBODY = ("digits", "mnist", "fashion-mnist")
"""Sets whose images are of no patients."""

_ONE_EACH = (
    "Each image counts as a patient of its own. Where a patient has several, they may lie with "
    "several teachers and in the public part: epsilon is for one image."
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LabeledImages:
    """Images of one part of a data set.

    Attributes:
        images: uint8, shape (n, height, width, channels).
        ids: Name of each, none twice in a data set.
        units: Patient of each; the image itself where nobody names one.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: tuple[str, ...]
    units: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: NDArray[np.int64]) -> LabeledImages:
        """Pick images by position, in the order given."""
        return LabeledImages(
            self.images[rows],
            self.labels[rows],
            tuple(self.ids[row] for row in rows),
            tuple(self.units[row] for row in rows),
        )


def load_idx_images(data_dir: Path, *, name: str) -> Dataset:
    """Load four idx files; the training images are private.

    Nothing is shuffled: the first nine tenths of the test images are the pool and the last tenth
    the test, as in the PATE papers.

    Args:
        data_dir: Folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`,
            `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, each plain or with `.gz`.

    Source:
        Papernot et al. 2018, section 5.1, for the split. https://arxiv.org/abs/1802.08908
    """
    private = _read_pair(data_dir, "train")
    public = _read_pair(data_dir, "t10k")
    pool, test = np.split(np.arange(len(public)), [int(len(public) * _POOL_SHARE)])
    return image_dataset(name, private, public.select(pool), public.select(test))


def load_npz_images(path: Path, *, name: str, rng: np.random.Generator) -> Dataset:
    """Load an archive of arrays.

    It holds `train_images`, `val_images` and `test_images` with `..._labels`, as MedMNIST does:
    these are the private images, the pool and the test. Or it holds `images` and `labels`, and
    perhaps `patients`, which are split 60/25/15.

    `rng` decides the split of an archive that has none.
    """
    arrays = read_arrays(path)
    if {"images", "labels"} <= set(arrays):
        return load_image_files(path, rng=rng)
    named = ("train", "val", "test")
    wanted = [f"{part}_{what}" for part in named for what in ("images", "labels")]
    missing = [one for one in wanted if one not in arrays]
    if missing:
        raise UnreadableFileError(
            f"{path.name} must hold images and labels, or train_, val_ and test_ of both",
            f"no {missing[0]}",
        )
    train, val, test = (
        _checked(arrays[f"{part}_images"], arrays[f"{part}_labels"], path.name, name=part)
        for part in named
    )
    return image_dataset(name, train, val, test)


def load_image_files(
    path: Path,
    *,
    rng: np.random.Generator,
    label: str | None = None,
    patient_id: str | None = None,
    hospital: str | None = None,
    how: Reading = USUAL,
) -> Dataset:
    """Load the images of `images_of`; split 60/25/15, with all of a patient in one part.

    They are read as the pool's decide (`reading_of`).

    Raises:
        UnreadableFileError: nothing there, fewer than two classes, or a file that is no image.
        RareClassError: a class with fewer patients than parts.
    """
    found = images_of(
        path, label=label, patient_id=patient_id, hospital=hospital, reading=how, shows_names=True
    )
    if path.is_dir():
        _require_classes(path, found)
    refuse_spellings(f"the classes of {path.name}", set(found.labels))
    names = sorted_names(set(found.labels))
    if not 2 <= len(names) <= MOST_CLASSES:
        raise InvalidDataError(f"{path.name} must hold 2 to {MOST_CLASSES} classes", len(names))
    places = {one: place for place, one in enumerate(names)}
    labels = np.array([places[one] for one in found.labels], dtype=np.int64)
    try:
        parts = split_by_unit(labels, found.units, rng=rng)
    except RareClassError as error:
        must = " ".join((f"{error.must}.", *found.notes))
        raise RareClassError(must, error.got) from error
    pool = parts[1]
    # Public ones alone decide: no private image may change how the others are read.
    largest = MOST_SIDE if path.suffix.lower() == ".npz" else LARGEST_USUAL_SIDE
    reading = reading_of(found.looks(pool.tolist()), largest_side=largest)
    units = found.names if found.patients is None else found.patients
    private, asked, test = (
        LabeledImages(
            found.read(reading, rows.tolist()),
            labels[rows],
            tuple(found.names[row] for row in rows),
            tuple(units[row] for row in rows),
        )
        for rows in parts
    )
    hospitals = found.hospitals
    made = image_dataset(
        path.name,
        private,
        asked,
        test,
        class_names=names,
        window=(reading.low, reading.high),
        notes=(*found.notes, f"Images are read as {reading.words}."),
        has_patients=found.patients is not None,
    )
    if hospitals is None:
        return made
    of_image = dict(zip(found.names, hospitals, strict=True))
    return with_hospitals(made, of_image)


def with_hospitals(data: Dataset, of_image: Mapping[str, str]) -> Dataset:
    """Return a data set of images whose records name their hospitals, by the images' names."""

    def placed(part: Records) -> Records:
        assert part.row_names is not None, "images have names"
        return replace(part, hospitals=tuple(of_image[one] for one in part.row_names))

    private, pool, test = map(placed, data.parts)
    return replace(data, private=private, pool=pool, test=test)


def _require_classes(folder: Path, found: ImageFiles) -> None:
    names = class_folders(folder)
    if len(names) < 2:
        raise UnreadableFileError(
            f"{folder.name} must hold 2 to {MOST_CLASSES} folders, one for each class", len(names)
        )
    known = {one.split("/")[0] for one in found.names}
    names = tuple(one for one in names if one not in known)
    if names:
        raise UnreadableFileError(
            f"every folder of {folder.name} must hold images", f"none in {names[0]}"
        )


def image_dataset(
    name: str,
    private: LabeledImages,
    pool: LabeledImages,
    test: LabeledImages,
    *,
    class_names: tuple[str, ...] | None = None,
    window: tuple[int, int] = WHOLE_WINDOW,
    notes: tuple[str, ...] = (),
    has_patients: bool = False,
) -> Dataset:
    """Encode three parts that fit together, with features learned from the pool."""
    if len({part.images.shape[1:] for part in (private, pool, test)}) != 1:
        raise InvalidDataError("all images must have one size")
    if not all(len(part) for part in (private, pool, test)):
        raise InvalidDataError("hospitals, pool and test must have images")
    known = class_names or _CLASS_NAMES.get(name)
    if known is None:
        known, (private, pool, test) = _as_they_occur(private, pool, test)
    names = known
    classes = int(max(part.labels.max() for part in (private, pool, test))) + 1
    if not classes <= len(names) <= MOST_CLASSES:
        raise InvalidDataError(f"labels must be of at most {len(names)} classes", classes)
    encoder = fit_image_encoder(pool.images)

    def records(part: LabeledImages) -> Records:
        return Records(
            features=encoder.apply(part.images),
            labels=part.labels,
            unit_ids=part.units,
            images=part.images,
            row_names=part.ids,
        )

    own, asked = records(private), records(pool)
    tested, copies = without_copies(records(test), own, asked)
    notes = (*notes, *copies)
    return Dataset(
        name=name,
        kind="image",
        class_names=names,
        private=own,
        pool=asked,
        test=tested,
        notes=notes if has_patients or name in _OF_NOBODY else (_ONE_EACH, *notes),
        preprocessing=ImagePreprocessing(encoder, window),
    )


def _read_pair(data_dir: Path, part: str) -> LabeledImages:
    images = read_idx(plain_or_packed(data_dir, f"{part}-images-idx3-ubyte"), axes=3)
    labels = read_idx(plain_or_packed(data_dir, f"{part}-labels-idx1-ubyte"), axes=1)
    return _checked(images, labels, f"the {part} files", name=part)


def _as_they_occur(
    *parts: LabeledImages,
) -> tuple[tuple[str, ...], tuple[LabeledImages, ...]]:
    """Number the classes that there are: labels 1 and 2 are two classes, and 0 is none."""
    values = np.unique(np.concatenate([part.labels for part in parts]))
    return tuple(map(str, values.tolist())), tuple(
        replace(part, labels=np.searchsorted(values, part.labels).astype(np.int64))
        for part in parts
    )


def _checked(
    images: NDArray[np.generic], labels: NDArray[np.generic], where: str, *, name: str
) -> LabeledImages:
    """Return images with 4 axes and labels with one, if they belong together."""
    pixels = checked_pixels(images, where)
    flat = labels.reshape(len(labels), -1) if labels.ndim else labels.reshape(0, 1)
    if flat.shape != (len(pixels), 1) or not np.issubdtype(flat.dtype, np.integer):
        raise InvalidDataError(
            f"{where} must hold a whole number for each image",
            f"{len(pixels)} images, labels {labels.dtype} {labels.shape}",
        )
    found = flat[:, 0].astype(np.int64)
    if len(found) and not 0 <= found.min() <= found.max() < MOST_CLASSES:
        raise InvalidDataError(f"{where} must have labels from 0 to {MOST_CLASSES - 1}")
    ids = tuple(f"{name}-{row}" for row in range(len(found)))
    return LabeledImages(pixels, found, ids, ids)


def read_images(path: Path, reading: ImageReading) -> tuple[tuple[str, ...], NDArray[np.uint8]]:
    """Read images for a trained student, as it reads them.

    Args:
        path: An image, a folder of images, or an archive: see `public_images`.

    Returns:
        Name of each image, and the images; uint8, shape (n, *reading.shape).
    """
    found = public_images(path)
    return found.names, found.read(reading)

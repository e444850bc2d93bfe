"""Images from files: idx pairs like MNIST's, .npz archives, or a folder for each class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.columns import MOST_CLASSES
from pate_fed.data.copies import without_copies
from pate_fed.data.csv_file import plain_or_packed
from pate_fed.data.dataset import Dataset, Records
from pate_fed.data.idx import read_idx
from pate_fed.data.image_features import fit_image_encoder
from pate_fed.data.stored_preprocessing import ImagePreprocessing
from pate_fed.data.tables import split_by_unit
from pate_fed.errors import InvalidDataError, UnreadableFileError
from pate_fed.regular_files import open_regular

SIDE = 64
"""Height and width, in pixels, that the images of a folder are scaled to."""

MOST_IMAGE_BYTES = 2**32
"""Most bytes of pixels that are kept in memory."""

_POOL_SHARE = 0.9
_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"}
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
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: NDArray[np.int64]) -> LabeledImages:
        """Pick images by position, in the order given."""
        return LabeledImages(
            self.images[rows], self.labels[rows], tuple(self.ids[row] for row in rows)
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
    these are the private images, the pool and the test. Or it holds `images` and `labels`, which
    are split 60/25/15.

    `rng` decides the split of an archive that has none.
    """
    arrays = _read_npz(path)
    if {"images", "labels"} <= set(arrays):
        everything = _checked(arrays["images"], arrays["labels"], path.name, name="image")
        return _split(name, everything, class_names=None, rng=rng)
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


def load_image_folder(folder: Path, *, rng: np.random.Generator) -> Dataset:
    """Load a folder that has one folder of images for each class; split 60/25/15.

    Images are scaled to `SIDE` x `SIDE` pixels. They stay in color if one of them has color.

    Raises:
        UnreadableFileError: no such folder, fewer than two classes, or a file that is no image.
        RareClassError: a class with fewer images than parts.
    """
    names = _class_folders(folder)
    files = [
        (place, path)
        for place, name in enumerate(names)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in _ENDINGS
    ]
    labels = np.array([place for place, _ in files], dtype=np.int64)
    missing = sorted(set(range(len(names))) - set(labels.tolist()))
    if missing:
        raise UnreadableFileError(
            f"every folder of {folder.name} must hold images", f"none in {names[missing[0]]}"
        )
    if len(files) * SIDE * SIDE * 3 > MOST_IMAGE_BYTES:
        raise UnreadableFileError("images must fit into memory", f"{len(files)} of them")
    images = _read_images([path for _, path in files], (SIDE, SIDE, 3))
    if (images == images[..., :1]).all():
        images = images[..., :1]
    ids = tuple(f"{path.parent.name}/{path.name}" for _, path in files)
    everything = LabeledImages(images, labels, ids)
    return _split(folder.name, everything, class_names=names, rng=rng)


def _split(
    name: str,
    everything: LabeledImages,
    *,
    class_names: tuple[str, ...] | None,
    rng: np.random.Generator,
) -> Dataset:
    parts = split_by_unit(everything.labels, everything.ids, rng=rng)
    private, pool, test = (everything.select(rows) for rows in parts)
    return image_dataset(name, private, pool, test, class_names=class_names)


def image_dataset(
    name: str,
    private: LabeledImages,
    pool: LabeledImages,
    test: LabeledImages,
    *,
    class_names: tuple[str, ...] | None = None,
) -> Dataset:
    """Encode three parts that fit together, with features learned from the pool."""
    if len({part.images.shape[1:] for part in (private, pool, test)}) != 1:
        raise InvalidDataError("all images must have one size")
    if not all(len(part) for part in (private, pool, test)):
        raise InvalidDataError("hospitals, pool and test must have images")
    classes = int(max(part.labels.max() for part in (private, pool, test))) + 1
    names = class_names or _CLASS_NAMES.get(name) or tuple(str(one) for one in range(classes))
    if not classes <= len(names) <= MOST_CLASSES:
        raise InvalidDataError(f"labels must be of at most {len(names)} classes", classes)
    encoder = fit_image_encoder(pool.images)

    def records(part: LabeledImages) -> Records:
        return Records(
            features=encoder.apply(part.images),
            labels=part.labels,
            unit_ids=part.ids,
            images=part.images,
            row_names=part.ids,
        )

    own, asked = records(private), records(pool)
    tested, notes = without_copies(records(test), own, asked)
    return Dataset(
        name=name,
        kind="image",
        class_names=names,
        private=own,
        pool=asked,
        test=tested,
        notes=notes if name in _OF_NOBODY else (_ONE_EACH, *notes),
        preprocessing=ImagePreprocessing(encoder),
    )


def _read_pair(data_dir: Path, part: str) -> LabeledImages:
    images = read_idx(plain_or_packed(data_dir, f"{part}-images-idx3-ubyte"), axes=3)
    labels = read_idx(plain_or_packed(data_dir, f"{part}-labels-idx1-ubyte"), axes=1)
    return _checked(images, labels, f"the {part} files", name=part)


def _checked(
    images: NDArray[np.generic], labels: NDArray[np.generic], where: str, *, name: str
) -> LabeledImages:
    """Return images with 4 axes and labels with one, if they belong together."""
    flat = labels.reshape(len(labels), -1) if labels.ndim else labels.reshape(0, 1)
    stacked = images[..., None] if images.ndim == 3 else images
    if (
        stacked.ndim != 4
        or stacked.dtype != np.uint8
        or stacked.shape[3] not in (1, 3)
        or flat.shape != (len(stacked), 1)
        or not np.issubdtype(flat.dtype, np.integer)
    ):
        raise InvalidDataError(
            f"{where} must hold gray or RGB images of bytes, and a whole number for each",
            f"images {images.dtype} {images.shape}, labels {labels.dtype} {labels.shape}",
        )
    if min(stacked.shape[1:3]) < 4:
        raise InvalidDataError(
            f"{where} must hold images of at least 4 x 4", str(stacked.shape[1:3])
        )
    found = flat[:, 0].astype(np.int64)
    if len(found) and not 0 <= found.min() <= found.max() < MOST_CLASSES:
        raise InvalidDataError(f"{where} must have labels from 0 to {MOST_CLASSES - 1}")
    ids = tuple(f"{name}-{row}" for row in range(len(found)))
    return LabeledImages(np.asarray(stacked), found, ids)


def _read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
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
        BadZipFile,
    ) as error:
        raise UnreadableFileError(
            f"{path.name} must be a readable .npz file of arrays", type(error).__name__
        ) from error


def _class_folders(folder: Path) -> tuple[str, ...]:
    try:
        names = tuple(sorted(one.name for one in folder.iterdir() if one.is_dir()))
    except OSError as error:
        raise UnreadableFileError(
            f"{folder.name} must be a readable folder", type(error).__name__
        ) from error
    if not 2 <= len(names) <= MOST_CLASSES:
        raise UnreadableFileError(
            f"{folder.name} must hold 2 to {MOST_CLASSES} folders, one for each class", len(names)
        )
    return names


def read_images(
    path: Path, shape: tuple[int, int, int]
) -> tuple[tuple[str, ...], NDArray[np.uint8]]:
    """Read images for a trained student, scaled to the size that it takes.

    Args:
        path: An image, a folder of images, or a .npz archive with `images`.

    Returns:
        Name of each image, and the images; uint8, shape (n, height, width, channels).

    Raises:
        InvalidDataError: an archive of images of another size.
    """
    if path.suffix.lower() == ".npz":
        arrays = _read_npz(path)
        if "images" not in arrays:
            raise UnreadableFileError(f"{path.name} must hold images")
        stored = arrays["images"]
        unlabeled = np.zeros(len(stored), dtype=np.int64)
        found = _checked(stored, unlabeled, path.name, name="image")
        if found.images.shape[1:] != shape:
            raise InvalidDataError(
                f"{path.name} must hold images of {shape}", str(found.images.shape[1:])
            )
        return found.ids, found.images
    files = [path]
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if one.suffix.lower() in _ENDINGS)
    if not files:
        raise UnreadableFileError(f"{path.name} must hold images")
    return tuple(file.name for file in files), _read_images(files, shape)


def _in_eight_bits(image: Any) -> Any:
    """Scale an image of 16 bits, as X-rays have, by its own range: Pillow would clip it."""
    from PIL import Image  # noqa: PLC0415 - for files of images only

    values = np.asarray(image).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)
    return Image.fromarray(scaled.round().astype(np.uint8))


def _read_images(paths: list[Path], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - for files of images only

    height, width, channels = shape
    images = np.empty((len(paths), height, width, channels), dtype=np.uint8)
    for place, path in enumerate(paths):
        try:
            with (
                open_regular(path) as file,
                Image.open(file) as image,
            ):
                shown = _in_eight_bits(image) if image.mode.startswith("I") else image
                mode = shown.convert("L" if channels == 1 else "RGB")
                scaled = mode.resize((width, height), Image.Resampling.BILINEAR)
        except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise UnreadableFileError(
                f"{path.name} must be a readable image", type(error).__name__
            ) from error
        images[place] = np.asarray(scaled).reshape(height, width, channels)
    return images

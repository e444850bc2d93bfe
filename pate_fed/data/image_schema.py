"""How every hospital reads its own images: label, classes, size and window, and features.

Beside `task_schema`, for tables. The features follow from the first pool's images by one function,
so that the author of a task chooses no encoder. A stranger wrote the document: its sizes are
bounded before anything is built from it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.cells import is_missing, parse_number, plain
from pate_fed.data.columns import MOST_CLASSES
from pate_fed.data.dataset import Records
from pate_fed.data.image_features import ImageEncoder, fit_image_encoder
from pate_fed.data.image_files import ImageFiles
from pate_fed.data.image_pixels import ImageReading
from pate_fed.data.preprocessing import exactly
from pate_fed.data.stored_preprocessing import ImagePreprocessing
from pate_fed.data.task_schema import (
    MOST_NAME_LENGTH,
    MOST_RECORD_BYTES,
    canonical_json,
    refuse_constant,
    require_data_set,
)
from pate_fed.errors import InvalidCellError, InvalidDataError, InvalidTaskError
from pate_fed.inputs import DatasetKind
from pate_fed.public_images import PublicImages

VERSION: Final = 1
LEAST_SIDE: Final = 8
"""What students of images need."""

MOST_IMAGES: Final = 2**14
"""Most images of a pool."""

MOST_POOL_BYTES: Final = 2**25
"""Most bytes of a pool's pixels: a document has two pools at most."""

MAX_HEADER_BYTES: Final = 2**18
_KEYS: Final = {"version", "name", "label", "data_set", "classes", "size", "window", "images"}
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ImageSchema:
    """The target, and the way an image is read for it: the same for every pool.

    Attributes:
        first: The images of the task's first pool.
        data_set: Data set of a hospital that it asks for; "" for the one without a name.
        window: The numbers that become black and white in an image with more than 8 bits.
        encoder: How images become features, learned from the first pool.
        digest: The task, for any pool: SHA-256 of header and first images, 32 bytes.

    Raises:
        InvalidTaskError: names that cannot be, or more than the bounds.
    """

    kind: ClassVar[DatasetKind] = "image"

    name: str
    label: str
    class_names: tuple[str, ...]
    first: PublicImages
    window: tuple[int, int]
    data_set: str = ""
    encoder: ImageEncoder = field(init=False)
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        _check_names(self)
        require_data_set(self.data_set)
        require_pool(len(self.first), self.first.pixels.shape[1:])
        try:
            _ = self.reading
        except InvalidDataError as error:
            raise InvalidTaskError(error.must, error.got) from error
        object.__setattr__(self, "encoder", fit_image_encoder(self.first.pixels))
        images = b"".join(self.first.digests)
        object.__setattr__(self, "digest", hashlib.sha256(self._header() + images).digest())

    def __repr__(self) -> str:
        return f"ImageSchema({self.name!r}, {self.first!r})"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read: none."""
        return ()

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def reading(self) -> ImageReading:
        """How an image's file is read."""
        height, width, channels = self.first.pixels.shape[1:]
        return ImageReading(height, width, channels, *self.window)

    @property
    def preprocessing(self) -> ImagePreprocessing:
        """The way from raw images to inputs."""
        return ImagePreprocessing(self.encoder, self.window)

    def encode(self, own: ImageFiles) -> Records:
        """Read a hospital's images as everybody does.

        Raises:
            UnreadableFileError: an image cannot be read. Its place is named, never its name.
            InvalidCellError: an image is of no class of the task.
            InvalidTaskError: they would need more than `MOST_RECORD_BYTES`.
        """
        labels = labels_of(own, self.class_names)
        features = 8 * self.encoder.projection.axes.shape[1]
        size = len(own) * (math.prod(self.reading.shape) + features)
        if size > MOST_RECORD_BYTES:
            raise InvalidTaskError(
                f"images and their features must be at most {MOST_RECORD_BYTES} bytes",
                f"{len(own)} images",
            )
        images = own.read(self.reading)
        return Records(self.encoder.apply(images), labels, own.units, images=images)

    def inputs_of(self, rows: PublicImages) -> NDArray[np.float64]:
        """Turn public images into features; float64, shape (images, features)."""
        require_pool(len(rows), rows.pixels.shape[1:])
        if rows.pixels.shape[1:] != self.first.pixels.shape[1:]:
            raise InvalidTaskError("a pool's images must be of the task's size")
        return self.encoder.apply(rows.pixels)

    def to_bytes(self) -> bytes:
        """Return its one form: the header's length, the header, then the first pool's pixels."""
        header = self._header()
        return _LENGTH.pack(len(header)) + header + self.first.pixels.tobytes()

    def read_rows(self, content: bytes, start: int) -> PublicImages:
        """Read the pixels of another pool, which end the document."""
        return _read_images(content, start, len(content), self.first.pixels.shape[1:])

    @classmethod
    def read(cls, content: bytes, start: int = 0) -> tuple[ImageSchema, int]:
        """Read the bytes of `to_bytes`, and nothing else; return the place after them, too."""
        at = start + _LENGTH.size
        if len(content) < at:
            raise InvalidTaskError("a task's schema must be whole")
        (length,) = _LENGTH.unpack_from(content, start)
        if length > MAX_HEADER_BYTES or at + length > len(content):
            raise InvalidTaskError(
                f"a task's header must be whole, of at most {MAX_HEADER_BYTES} bytes", length
            )
        header = content[at : at + length]
        try:
            schema, end = cls._of(header, content, at + length)
            if schema._header() != header:
                raise InvalidTaskError("a task must have its one form")
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            if isinstance(error, InvalidTaskError):
                raise
            raise InvalidTaskError("a task's schema must be as it was made") from error
        return schema, end

    @classmethod
    def _of(cls, header: bytes, content: bytes, at: int) -> tuple[ImageSchema, int]:
        fields = json.loads(header.decode("ascii"), parse_constant=refuse_constant)
        if type(fields) is not dict or set(fields) != _KEYS:
            raise TypeError
        if type(fields["version"]) is not int or fields["version"] != VERSION:
            raise InvalidTaskError(f"a task of images must be of version {VERSION}")
        height, width, channels = (exactly(one, int) for one in exactly(fields["size"], list))
        low, high = (exactly(one, int) for one in exactly(fields["window"], list))
        count = exactly(fields["images"], int)
        shape = (height, width, channels)
        require_pool(count, shape)
        end = at + count * math.prod(shape)
        schema = cls(
            name=exactly(fields["name"], str),
            label=exactly(fields["label"], str),
            class_names=tuple(exactly(one, str) for one in exactly(fields["classes"], list)),
            first=_read_images(content, at, end, shape),
            window=(low, high),
            data_set=exactly(fields["data_set"], str),
        )
        return schema, end

    def _header(self) -> bytes:
        return canonical_json(
            {
                "version": VERSION,
                "name": self.name,
                "data_set": self.data_set,
                "label": self.label,
                "classes": list(self.class_names),
                "size": list(self.first.pixels.shape[1:]),
                "window": list(self.window),
                "images": len(self.first),
            }
        )


def require_pool(images: int, shape: tuple[int, ...]) -> None:
    """Refuse a pool that is larger than hospitals read."""
    if not 1 <= images <= MOST_IMAGES:
        raise InvalidTaskError(f"a pool must have 1 to {MOST_IMAGES} images: ask fewer", "others")
    height, width, channels = shape
    if min(height, width) < LEAST_SIDE or channels not in (1, 3):
        raise InvalidTaskError(
            f"images must have at least {LEAST_SIDE} pixels a side, in gray or color",
            str(shape),
        )
    size = images * height * width * channels
    if size > MOST_POOL_BYTES:
        raise InvalidTaskError(
            f"a pool's pixels must be at most {MOST_POOL_BYTES} bytes: ask fewer, or smaller ones",
            size,
        )


def labels_of(own: ImageFiles, class_names: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the place of each image's class; int64, shape (images,).

    Raises:
        InvalidCellError: one is of no class. Its place is named, never the class.
    """
    places: dict[str | float, int] = {one: place for place, one in enumerate(class_names)}
    for place, one in enumerate(class_names):
        if math.isfinite(value := parse_number(one)):
            places[value] = place
    found = np.empty(len(own), dtype=np.int64)
    for row, label in enumerate(own.labels):
        place_of = places.get(label, places.get(parse_number(label)))
        if place_of is None:
            raise InvalidCellError(
                f"{own.named(row)} must be of a class of the task: {', '.join(class_names)}",
                "another",
            )
        found[row] = place_of
    return found


def _read_images(content: bytes, start: int, end: int, shape: tuple[int, ...]) -> PublicImages:
    size = math.prod(shape)
    if not start < end <= len(content) or (end - start) % size:
        raise InvalidTaskError("a pool's images must be whole, of the task's size")
    require_pool((end - start) // size, shape)
    pixels = np.frombuffer(content, dtype=np.uint8, count=end - start, offset=start)
    return PublicImages(pixels.reshape(-1, *shape))


def _check_names(task: ImageSchema) -> None:
    for text in (task.name, task.label, *task.class_names):
        if not (text.isprintable() and text == plain(text) and 0 < len(text) <= MOST_NAME_LENGTH):
            raise InvalidTaskError(
                f"a name must be 1 to {MOST_NAME_LENGTH} printable characters, in NFC", len(text)
            )
    if not 2 <= len(task.class_names) <= MOST_CLASSES:
        raise InvalidTaskError(f"2 to {MOST_CLASSES} classes", len(task.class_names))
    numbers = [value for value in map(parse_number, task.class_names) if math.isfinite(value)]
    for names in (task.class_names, numbers):
        if len(set(names)) != len(names):
            raise InvalidTaskError("every class must be named once")
    if any(is_missing(name) for name in task.class_names):
        raise InvalidTaskError("a class must not be called like a missing cell")

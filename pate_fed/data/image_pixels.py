"""One file of one image as bytes of gray or color, by one rule for all images of a task.

The rule is an `ImageReading`. Only pixels leave a file: no text of its header, in an error neither.
An image of bytes stays as it is; one of more bits is read in a fixed *window* of numbers, the same
for all, because a range of its own would make a bright image and a dark one alike. Every image is
turned as its file says (EXIF), transparent places are black, and it is scaled to one size.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dicom_file import DicomImage, is_dicom, read_dicom
from pate_fed.errors import UnreadableFileError

MOST_SIDE: Final = 512
LEAST_SIDE: Final = 4
MOST_NUMBER: Final = 2**16 - 1
"""The largest number of a pixel in a window; the smallest is its negative, as in CT."""

WHOLE_WINDOW: Final = (0, MOST_NUMBER)
"""Everything that 16 bits hold."""

MOST_PIXELS: Final = 2**26
"""Most pixels of a file, whatever its few bytes say."""

MOST_FILE_BYTES: Final = 2**28
_FORMATS: Final = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
_DEEP: Final = ("I", "I;16", "I;16L", "I;16B", "I;16N")


@dataclass(frozen=True, slots=True)
class ImageReading:
    """How every image of a task becomes bytes of shape (height, width, channels).

    Attributes:
        channels: 1 for gray, 3 for color.
        low, high: The window: the numbers of a pixel that become 0 and 255. For images of more than
            8 bits alone; a DICOM file with a window of its own is read in that.
    """

    height: int
    width: int
    channels: int
    low: int = 0
    high: int = MOST_NUMBER

    def __post_init__(self) -> None:
        sides = (self.height, self.width)
        good = (
            all(type(one) is int and LEAST_SIDE <= one <= MOST_SIDE for one in sides)
            and self.channels in (1, 3)
            and type(self.low) is type(self.high) is int
            and -MOST_NUMBER <= self.low < self.high <= MOST_NUMBER
        )
        if not good:
            raise UnreadableFileError(
                f"images must be read at {LEAST_SIDE} to {MOST_SIDE} pixels a side, in gray or "
                f"color, in a window of numbers up to {MOST_NUMBER}",
                str(self.shape),
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels

    @property
    def words(self) -> str:
        """What is done to each image, in a line."""
        color = "color" if self.channels == 3 else "gray"
        return (
            f"{self.height} x {self.width} pixels in {color}; of images with more than 8 bits "
            f"{self.low} becomes black and {self.high} white"
        )


@dataclass(frozen=True, slots=True)
class ImageLook:
    """What of an image decides how a pool is read: its upright size, color and depth.

    Attributes:
        lowest, highest: Its numbers where it has more than 8 bits, and no window of its own.
    """

    height: int
    width: int
    has_color: bool
    lowest: int | None = None
    highest: int | None = None


def read_image(
    content: bytes | NDArray[np.uint8], name: str, reading: ImageReading
) -> NDArray[np.uint8]:
    """Return an image as bytes; uint8, shape `reading.shape`.

    Args:
        content: A PNG, JPEG, TIFF, BMP, WebP or DICOM file of one image, or its pixels.
        name: What an error calls it.

    Raises:
        UnreadableFileError: it is none of these, cut off, of several pages, or too large.
        MissingExtraError: a DICOM file, and pydicom is not installed.
    """
    from PIL import Image  # noqa: PLC0415 - for files of images only

    shown = _shown(_decoded(content, name), reading)
    mode = shown.convert("L" if reading.channels == 1 else "RGB")
    scaled = mode.resize((reading.width, reading.height), Image.Resampling.BILINEAR)
    return np.asarray(scaled, dtype=np.uint8).reshape(reading.shape)


def look_at(content: bytes | NDArray[np.uint8], name: str) -> ImageLook:
    """Look at a public image; errors as for `read_image`."""
    found = _decoded(content, name)
    if isinstance(found, DicomImage):
        height, width = found.values.shape[:2]
        is_deep = found.needs_window
        values = found.values if is_deep else None
        color = found.values.ndim == 3
    else:
        width, height = found.size
        values = np.asarray(found) if found.mode in _DEEP else None
        color = False if values is not None else _has_color(found)
    if values is None:
        return ImageLook(height, width, color)
    low, high = np.clip((values.min(), values.max()), -MOST_NUMBER, MOST_NUMBER)
    return ImageLook(height, width, color, int(np.floor(low)), int(np.ceil(high)))


def _has_color(image: Any) -> bool:
    if image.mode in ("1", "L", "LA", "La"):
        return False
    pixels = np.asarray(image.convert("RGB"))
    return bool((pixels != pixels[..., :1]).any())


def _shown(found: Any, reading: ImageReading) -> Any:
    """Return a Pillow image of 8 bits."""
    from PIL import Image  # noqa: PLC0415 - as above

    if isinstance(found, DicomImage):
        values = found.values
        if found.needs_window:
            values = _in_window(values, reading)
        pixels = np.asarray(values, dtype=np.uint8)
        return Image.fromarray(255 - pixels if found.is_inverted else pixels)
    if found.mode in _DEEP:
        return Image.fromarray(_in_window(np.asarray(found), reading))
    return found


def _in_window(values: NDArray[Any], reading: ImageReading) -> NDArray[np.uint8]:
    """Scale numbers in the task's window: Pillow would clip them at 255."""
    share = (values.astype(np.float64) - reading.low) / (reading.high - reading.low)
    return np.asarray((np.clip(share, 0.0, 1.0) * 255).round(), dtype=np.uint8)


def _decoded(content: bytes | NDArray[np.uint8], name: str) -> Any:
    """Return a DICOM image, or an upright Pillow image without transparency."""
    from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - as above

    if not isinstance(content, bytes):
        return Image.fromarray(content[..., 0] if content.shape[2] == 1 else content)
    if is_dicom(content):
        return read_dicom(content, name, most_pixels=MOST_PIXELS)

    try:
        with (
            warnings.catch_warnings(action="ignore"),  # they may quote the file
            Image.open(io.BytesIO(content), formats=_FORMATS) as image,
        ):
            _require_one(image, name)
            image.load()
            upright = ImageOps.exif_transpose(image)
            return _opaque(upright, name)
    except UnidentifiedImageError:
        raise UnreadableFileError(
            f"{name} must be a readable image: PNG, JPEG, TIFF, BMP, WebP or DICOM"
        ) from None
    except UnreadableFileError:
        raise
    except (
        OSError,
        ValueError,
        SyntaxError,
        LookupError,
        TypeError,
        ArithmeticError,
        EOFError,
        MemoryError,
        Image.DecompressionBombError,
    ) as error:
        raise UnreadableFileError(
            f"{name} must be a readable image", type(error).__name__
        ) from None


def _require_one(image: Any, name: str) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise UnreadableFileError(f"{name} must have at most {MOST_PIXELS} pixels", "more")
    # Of a camera's MPO the second picture is a preview.
    pages = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if pages > 1:
        raise UnreadableFileError(
            f"{name} must be one image: save each page as a file", "several pages"
        )


def _opaque(image: Any, name: str) -> Any:
    """Put an image with transparency on black, where its hidden colors would show otherwise."""
    from PIL import Image  # noqa: PLC0415 - as above

    if image.mode == "F":
        raise UnreadableFileError(f"{name} must have whole numbers as pixels", "fractions")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        if image.mode in _DEEP:
            return image
        whole = image.convert("RGBA")
        black = Image.new("RGBA", whole.size, (0, 0, 0, 255))
        black.alpha_composite(whole)
        return black.convert("RGB")
    return image

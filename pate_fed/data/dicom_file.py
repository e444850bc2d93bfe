"""A DICOM file's pixels, by its own rescale and window, and nothing else of it.

No text of a header leaves this module: no value, warning or error of the library is passed on.
"""

from __future__ import annotations

import io
import logging
import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import MissingExtraError, UnreadableFileError

_MAGIC_AT: Final = 128
_MAGIC: Final = b"DICM"
_DEFLATED: Final = b"1.2.840.10008.1.2.1.99"
_GRAY: Final = ("MONOCHROME1", "MONOCHROME2")
_COLOR: Final = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DicomImage:
    """Pixels of a DICOM file.

    Attributes:
        values: Bytes, shape (rows, columns) or with three colors; where it `needs_window`, float64
            numbers after the file's rescale.
        is_inverted: Whether the smallest value is white.
    """

    values: NDArray[Any]
    needs_window: bool
    is_inverted: bool


def is_dicom(content: bytes) -> bool:
    """Tell whether a file begins as a DICOM file does."""
    return content[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC


def read_dicom(content: bytes, name: str, *, most_pixels: int) -> DicomImage:
    """Read the pixels of a file.

    Raises:
        UnreadableFileError: no image of one frame, in gray or RGB, that can be read here.
        MissingExtraError: pydicom is not installed.
    """
    try:
        import pydicom  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("DICOM files need the extra `dicom`") from error
    if _DEFLATED in content[:4096]:  # its few bytes could become any number in memory
        raise UnreadableFileError(
            f"{name} must not be deflated as a whole", "a deflated DICOM file"
        )
    logger = logging.getLogger("pydicom")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings(action="ignore"):
            return _pixels_of(pydicom.dcmread(io.BytesIO(content)), name, most_pixels)
    except UnreadableFileError as error:
        raise error from None
    except Exception as error:  # whatever a stranger's file makes the library raise
        raise UnreadableFileError(
            f"{name} must be a DICOM file whose pixels can be read here; save it uncompressed",
            type(error).__name__,
        ) from None
    finally:
        logger.disabled = was_disabled


def _pixels_of(file: Any, name: str, most_pixels: int) -> DicomImage:
    from pydicom.pixels.processing import apply_modality_lut, apply_voi  # noqa: PLC0415 - an extra
    from pydicom.pixels.utils import pixel_array  # noqa: PLC0415 - an extra

    if "PixelData" not in file:
        raise UnreadableFileError(f"{name} must hold an image of whole numbers", "none")
    frames = int(file.get("NumberOfFrames") or 1)
    if frames > 1:
        raise UnreadableFileError(
            f"{name} must be one image: save each frame as a file", "several frames"
        )
    rows, columns = int(file.Rows), int(file.Columns)
    if not 0 < rows * columns <= most_pixels:
        raise UnreadableFileError(f"{name} must have 1 to {most_pixels} pixels")
    kind = str(file.PhotometricInterpretation)
    if kind not in (*_GRAY, *_COLOR):
        raise UnreadableFileError(f"{name} must be in gray or RGB", "another kind of color")
    stored = pixel_array(file)
    if stored.shape[:2] != (rows, columns):
        raise UnreadableFileError(f"{name} must have the pixels that it says", str(stored.shape))
    if kind in _COLOR:
        if stored.dtype != np.uint8 or stored.shape[2:] != (3,):
            raise UnreadableFileError(f"{name} must have colors of 8 bits", str(stored.dtype))
        return DicomImage(stored, needs_window=False, is_inverted=False)
    values = np.asarray(apply_modality_lut(stored, file), dtype=np.float64)
    is_inverted = kind == "MONOCHROME1"
    window = _window_of(file)
    if window is not None:
        shares = _windowed(values, *window)
    elif file.get("VOILUTSequence"):
        table = file.VOILUTSequence[0]
        bits = int(table.LUTDescriptor[2])
        looked_up = apply_voi(np.asarray(apply_modality_lut(stored, file)), file)
        shares = np.asarray(looked_up, dtype=np.float64) / (2**bits - 1)
    elif int(file.BitsStored) <= 8 and not file.get("PixelRepresentation"):
        shares = stored / (2 ** int(file.BitsStored) - 1)
    else:
        return DicomImage(values, needs_window=True, is_inverted=is_inverted)
    pixels = (np.clip(shares, 0.0, 1.0) * 255).round().astype(np.uint8)
    return DicomImage(pixels, needs_window=False, is_inverted=is_inverted)


def _window_of(file: Any) -> tuple[float, float, str] | None:
    """Return center, width and function of a file's first window, if it has one."""

    def first(name: str) -> float | None:
        found = file.get(name)
        if found is None or found == "":
            return None
        listed = found if isinstance(found, list | tuple) or hasattr(found, "append") else [found]
        return float(listed[0]) if len(listed) else None

    center, width = first("WindowCenter"), first("WindowWidth")
    if center is None or width is None or width <= 0 or not np.isfinite([center, width]).all():
        return None
    return center, width, str(file.get("VOILUTFunction") or "LINEAR")


def _windowed(
    values: NDArray[np.float64], center: float, width: float, function: str
) -> NDArray[np.float64]:
    """Return the share of white, from 0 to 1.

    Source:
        DICOM PS3.3, C.11.2.1.2. https://dicom.nema.org/medical/dicom/current/output/html/part03.html
    """
    if function == "SIGMOID":
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-4 * (values - center) / width)))
    if function == "LINEAR_EXACT":
        return np.asarray((values - center) / width + 0.5)
    if width <= 1:
        return np.asarray(values > center - 0.5, dtype=np.float64)
    return np.asarray((values - (center - 0.5)) / (width - 1) + 0.5)

"""Public images in their lasting form: size and bytes, the same from any file.

The identity of a question to hospitals is the image as their teachers see it: see `public_rows`.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import InvalidParameterError

_LABEL: Final = b"pate-fed image\n"
_SHAPE: Final = struct.Struct(">III")
_SHEET_COLUMNS: Final = 12
_SHEET_SIDE: Final = 56
_GAP: Final = 4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PublicImages:
    """Images of a public pool, all of one size.

    Attributes:
        pixels: uint8, shape (images, height, width, channels), read-only.
        digests: SHA-256 of each image, 32 bytes: the same for the same pixels of the same size.
    """

    pixels: NDArray[np.uint8]
    digests: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        pixels = np.ascontiguousarray(self.pixels).view()
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or not pixels.size:
            raise InvalidParameterError(
                "public images must be bytes with 4 axes", f"{pixels.dtype} {pixels.shape}"
            )
        pixels.flags.writeable = False
        object.__setattr__(self, "pixels", pixels)
        shape = _SHAPE.pack(*pixels.shape[1:])
        digests = (hashlib.sha256(_LABEL + shape + one.tobytes()).digest() for one in pixels)
        object.__setattr__(self, "digests", tuple(digests))

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        return f"PublicImages{self.pixels.shape}"

    def pick(self, indices: Sequence[int]) -> PublicImages:
        """Return some images, in the order of `indices`."""
        return PublicImages(self.pixels[list(indices)])

    def as_zip(self) -> bytes:
        """Return an archive with a PNG file for each, named by its place from 0, for people."""
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            for place, pixels in enumerate(self.pixels):
                archive.writestr(f"{place:06}.png", as_png(pixels))
        return made.getvalue()


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image of shape (height, width, channels) as a PNG file."""
    from PIL import Image  # noqa: PLC0415 - for people's eyes only

    made = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(made, "PNG")
    return made.getvalue()


def contact_sheet(images: NDArray[np.uint8], *, columns: int = _SHEET_COLUMNS) -> bytes:
    """Return small copies of images, in rows of so many, as one PNG file.

    Args:
        images: uint8, shape (images, height, width, channels); 1 or more.
    """
    from PIL import Image  # noqa: PLC0415 - as above

    cell = _SHEET_SIDE + _GAP
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (min(len(images), columns) * cell, rows * cell), "white")
    for place, pixels in enumerate(images):
        shown = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
        longest = max(shown.size)
        width, height = (max(1, round(side * _SHEET_SIDE / longest)) for side in shown.size)
        small = shown.resize((width, height), Image.Resampling.BILINEAR)
        row, column = divmod(place, columns)
        sheet.paste(small, (column * cell, row * cell))
    made = io.BytesIO()
    sheet.save(made, "PNG")
    return made.getvalue()

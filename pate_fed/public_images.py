"""Public images in their lasting form: size and bytes, the same from any file.

The identity of a question to hospitals is the image as their teachers see it: see `public_rows`.
"""

from __future__ import annotations

import base64
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
SHEET_COLUMNS: Final = 12
SHEET_CELL: Final = 60
"""Height and width, in pixels, of a place in a sheet."""

_SHOWN_SIDE: Final = 56


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

    def sheet_address(self, *, most: int) -> str:
        """Return small copies of the first ones as an address that a page can show."""
        return png_address(contact_sheet([self.pixels[:most]]))


def png_address(content: bytes) -> str:
    """Return a PNG file as an address that a page can show."""
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image of shape (height, width, channels) as a PNG file."""
    from PIL import Image  # noqa: PLC0415 - for people's eyes only

    made = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(made, "PNG")
    return made.getvalue()


def contact_sheet(groups: Sequence[NDArray[np.uint8]]) -> bytes:
    """Return small copies of images as one PNG file, `SHEET_COLUMNS` in a row of `SHEET_CELL` high.

    Each group begins a row.

    Args:
        groups: Each uint8, shape (images, height, width, channels).
    """
    from PIL import Image  # noqa: PLC0415 - as above

    rows = sum(map(sheet_rows, map(len, groups)))
    sheet = Image.new("RGB", (SHEET_COLUMNS * SHEET_CELL, max(1, rows) * SHEET_CELL), "white")
    first = 0
    for group in groups:
        for place, pixels in enumerate(group):
            gray = pixels.shape[2] == 1
            shown = Image.fromarray(pixels[..., 0] if gray else pixels).convert("RGB")
            longest = max(shown.size)
            size = tuple(max(1, round(side * _SHOWN_SIDE / longest)) for side in shown.size)
            row, column = divmod(place, SHEET_COLUMNS)
            place_of = (column * SHEET_CELL, (first + row) * SHEET_CELL)
            sheet.paste(shown.resize(size, Image.Resampling.BILINEAR), place_of)
        first += sheet_rows(len(group))
    made = io.BytesIO()
    sheet.save(made, "PNG")
    return made.getvalue()


def sheet_rows(images: int) -> int:
    """Return how many rows of a sheet so many images take."""
    return -(-images // SHEET_COLUMNS)

"""Small copies of the public images that got labels, class by class, in a run's one sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.public_images import SHEET_CELL, SHEET_COLUMNS, contact_sheet, png_address, sheet_rows
from pate_fed.report.run_directory import FinishedRun

MOST_OF_A_CLASS: Final = 3 * SHEET_COLUMNS
_PNG: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Strip:
    """The images of one class: `top` and `height` in pixels of the sheet."""

    label: str
    shown: int
    of: int
    top: int
    height: int


def sheet_of(images: NDArray[np.uint8], labels: Sequence[tuple[str, str]]) -> bytes:
    """Draw the sheet of a run, a PNG file.

    Args:
        images: The public pool; uint8, shape (images, height, width, channels).
        labels: Position in the pool and class of each query, "" for "no answer".
    """
    groups = _by_class(labels)
    return contact_sheet([images[places[:MOST_OF_A_CLASS]] for places in groups.values()])


def strips_of(run: FinishedRun) -> tuple[Strip, ...]:
    """Return where the sheet of a run has the images of each class; none where it has no sheet."""
    if not run.images.startswith(_PNG):
        return ()
    strips, top = [], 0
    for label, places in _by_class(run.labels).items():
        shown = min(len(places), MOST_OF_A_CLASS)
        height = sheet_rows(shown) * SHEET_CELL
        strips.append(Strip(label, shown, len(places), top, height))
        top += height
    return tuple(strips)


def sheet_address(run: FinishedRun) -> str:
    """Return the sheet as an address that a page can show; it is never decoded here."""
    return png_address(run.images)


def _by_class(labels: Sequence[tuple[str, str]]) -> Mapping[str, list[int]]:
    found: dict[str, list[int]] = {}
    for query, label in labels:
        if label:
            found.setdefault(label, []).append(int(query))
    return {label: found[label] for label in sorted(found)}

"""Images of made-up patients in files, for tests: bright disks are sick, dark ones are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16
LABEL, CLASSES = "disk", ("dark", "bright")


def picture(rng: np.random.Generator, kind: int, *, side: int = SIDE) -> NDArray[np.uint8]:
    """A noisy disk, left for the first class, right for the second."""
    rows, columns = np.mgrid[:side, :side]
    center = side * (0.3 if kind == 0 else 0.7)
    inside = (rows - side / 2) ** 2 + (columns - center) ** 2 < (side / 4) ** 2
    shade = np.where(inside, 190.0, 60.0) + rng.normal(0, 12, (side, side))
    return np.asarray(np.clip(shade, 0, 255), dtype=np.uint8)


def write_class_folders(
    folder: Path, *, patients: int = 40, images: int = 2, seed: int = 5, ending: str = ".png"
) -> Path:
    """A folder for each class, in it one for each patient, in it images."""
    rng = np.random.default_rng(seed)
    for patient in range(patients):
        kind = patient % 2
        place = folder / CLASSES[kind] / f"p{patient:03}"
        place.mkdir(parents=True)
        for number in range(images):
            Image.fromarray(picture(rng, kind)).save(place / f"{number}{ending}")
    return folder


def write_public_images(folder: Path, *, images: int = 60, seed: int = 6) -> Path:
    """A folder of public images without labels; those at odd places are of the second class."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(images):
        Image.fromarray(picture(rng, number % 2)).save(folder / f"{number:04}.png")
    return folder

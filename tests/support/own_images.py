"""Images of made-up patients in files, for tests: bright disks are sick, dark ones are not."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, ExplicitVRLittleEndian, generate_uid

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


def dicom_file(
    pixels: NDArray[np.uint8],
    *,
    inverted: bool = False,
    window: bool = True,
    texts: Mapping[str, str] | None = None,
    syntax: str = ExplicitVRLittleEndian,
    **changed: Any,
) -> bytes:
    """A file of 12 stored bits that are shown as these pixels, with texts in its header.

    It needs its own rescale and, unless it has none, its own window.
    """
    shown = 255 - pixels if inverted else pixels
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = UID(syntax)
    file.file_meta.MediaStorageSOPClassUID = _X_RAY
    file.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    file.SOPClassUID, file.SOPInstanceUID = _X_RAY, file.file_meta.MediaStorageSOPInstanceUID
    file.Modality = "CR"
    file.Rows, file.Columns = pixels.shape
    file.SamplesPerPixel = 1
    file.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.RescaleSlope, file.RescaleIntercept = 2, -1000
    if window:  # numbers of 8 * shade - 1000, from black at -1000 to white at 1040
        file.WindowCenter, file.WindowWidth = 20, 2040
        file.VOILUTFunction = "LINEAR_EXACT"
    pixels_bytes = (shown.astype("<u2") * 4).tobytes()
    file.PixelData = pixels_bytes if syntax == ExplicitVRLittleEndian else encapsulate([b"no code"])
    for name, text in {**(texts or {}), **changed}.items():
        setattr(file, name, text)
    made = io.BytesIO()
    file.save_as(made, enforce_file_format=True)
    return made.getvalue()


_X_RAY = "1.2.840.10008.5.1.4.1.1.1"

"""The way from raw records to inputs as a student's folder keeps it, of images, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pate_fed.data.image_features import ImageEncoder, Projection
from pate_fed.data.image_pixels import WHOLE_WINDOW, ImageReading
from pate_fed.data.preprocessing import Preprocessing, TablePreprocessing, exactly
from pate_fed.errors import InvalidDataError, RunDirectoryError
from pate_fed.inputs import DatasetKind, Inputs
from pate_fed.regular_files import read_regular

INPUTS_FILE = "inputs.json"
TENSORS_FILE = "inputs.safetensors"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ImagePreprocessing(Preprocessing):
    """How images become features.

    Attributes:
        window: The numbers that become black and white where an image has more than 8 bits.
    """

    kind: ClassVar[DatasetKind] = "image"

    encoder: ImageEncoder
    window: tuple[int, int] = WHOLE_WINDOW

    @property
    def reading(self) -> ImageReading:
        """How an image's file is read."""
        return ImageReading(*self.encoder.shape, *self.window)

    def inputs_of(self, raw: Any) -> Inputs:
        """See `Preprocessing.inputs_of`."""
        images = np.asarray(raw)
        stacked = images[..., None] if images.ndim == 3 else images
        if stacked.dtype != np.uint8 or stacked.ndim != 4:
            raise InvalidDataError(
                "images must be bytes of shape (n, height, width) or with channels",
                f"{images.dtype} of shape {images.shape}",
            )
        return Inputs(self.encoder.apply(stacked), stacked)

    def write(self, directory: Path) -> dict[str, object]:
        """See `Preprocessing.write`."""
        from safetensors.numpy import save_file  # noqa: PLC0415 - students only

        projection = self.encoder.projection
        save_file({"mean": projection.mean, "axes": projection.axes}, directory / TENSORS_FILE)
        return {"shape": list(self.encoder.shape), "window": list(self.window)}


def write_preprocessing(
    directory: Path, preprocessing: Preprocessing, *, class_names: Sequence[str]
) -> None:
    """Write the way from raw records to inputs, and the names of the classes."""
    directory.mkdir(parents=True, exist_ok=True)
    described = {
        "schema_version": SCHEMA_VERSION,
        "kind": preprocessing.kind,
        "class_names": list(class_names),
        **preprocessing.write(directory),
    }
    text = json.dumps(described, indent=2, sort_keys=True, allow_nan=False) + "\n"
    (directory / INPUTS_FILE).write_text(text, "utf-8")


def read_preprocessing(directory: Path) -> tuple[Preprocessing, tuple[str, ...]]:
    """Read a folder of `write_preprocessing`, run nothing; refuse another."""
    try:
        described = json.loads(read_regular(directory / INPUTS_FILE))
        if described["schema_version"] != SCHEMA_VERSION:
            raise LookupError("schema_version")  # noqa: TRY301 - told with the others
        names = tuple(exactly(one, str) for one in exactly(described["class_names"], list))
        if described["kind"] == "table":
            return TablePreprocessing.from_fields(exactly(described["columns"], list)), names
        height, width, channels = (exactly(one, int) for one in described["shape"])
        low, high = (exactly(one, int) for one in described["window"])
        projection = _read_projection(directory)
        encoder = ImageEncoder((height, width, channels), projection)
        return ImagePreprocessing(encoder, (low, high)), names
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise RunDirectoryError(
            f"a student's folder must hold a readable {INPUTS_FILE}", type(error).__name__
        ) from error


def _read_projection(directory: Path) -> Projection:
    from safetensors import SafetensorError  # noqa: PLC0415 - students only
    from safetensors.numpy import load_file  # noqa: PLC0415

    try:
        arrays = load_file(directory / TENSORS_FILE)
    except SafetensorError as error:
        raise ValueError(TENSORS_FILE) from error
    mean, axes = arrays["mean"], arrays["axes"]
    is_double = mean.dtype == axes.dtype == np.float64
    if axes.ndim != 2 or mean.shape != axes.shape[:1] or not is_double:
        raise TypeError
    return Projection(mean, axes)

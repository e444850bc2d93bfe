"""Where records come from: one name for each kind of source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pate_fed.data.bundled import load_bundled_breast_cancer, load_bundled_digits
from pate_fed.data.dataset import Dataset
from pate_fed.data.mnist import load_mnist
from pate_fed.data.tables import load_csv
from pate_fed.errors import InvalidParameterError

SOURCE_NAMES = ("digits", "breast-cancer", "mnist", "csv")
"""Every name that `DataSource` knows."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """Which data set, and where its files are.

    Attributes:
        name: One of `SOURCE_NAMES`.
        data_dir: Folder of "mnist", else None.
        data_file: File of "csv", else None.
        label_column: Column of "csv" with the class.
        patient_column: Column of "csv" that names the patient, or None.
        hospital_column: Column of "csv" that names the hospital, or None.
    """

    name: str
    data_dir: Path | None = None
    data_file: Path | None = None
    label_column: str | None = None
    patient_column: str | None = None
    hospital_column: str | None = None

    def __post_init__(self) -> None:
        if self.name not in SOURCE_NAMES:
            raise InvalidParameterError(
                f"data must be one of {', '.join(SOURCE_NAMES)}", repr(self.name)
            )
        if self.name == "mnist" and self.data_dir is None:
            raise InvalidParameterError(
                "--data mnist needs --data-dir, the folder of its files", "none"
            )
        needed = {"--data-file": self.data_file, "--label": self.label_column}
        missing = [option for option, value in needed.items() if value is None]
        if self.name == "csv" and missing:
            came = "neither" if len(missing) == len(needed) else f"no {missing[0]}"
            raise InvalidParameterError("--data csv needs --data-file and --label", came)


def load_dataset(source: DataSource, *, rng: np.random.Generator) -> Dataset:
    """Load a data set, split it and preprocess it with statistics of its public pool.

    Args:
        source: The data set to load.
        rng: Decides the split where the data set has none of its own.

    Raises:
        InvalidDataError: or one of its kinds, if the files cannot be used.
    """
    if source.name == "digits":
        return load_bundled_digits(rng=rng)
    if source.name == "breast-cancer":
        return load_bundled_breast_cancer(rng=rng)
    if source.name == "mnist":
        assert source.data_dir is not None, "checked when the source was made"
        return load_mnist(source.data_dir)
    assert source.data_file is not None, "checked when the source was made"
    assert source.label_column is not None, "checked when the source was made"
    return load_csv(
        source.data_file,
        label_column=source.label_column,
        patient_column=source.patient_column,
        hospital_column=source.hospital_column,
        rng=rng,
    )

"""Where records come from: one name for each kind of source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.bundled import load_bundled_breast_cancer, load_bundled_digits
from pate_fed.data.cell_forms import typed
from pate_fed.data.columns import read_column
from pate_fed.data.dataset import Dataset
from pate_fed.data.images import load_idx_images, load_image_files, load_npz_images
from pate_fed.data.known_tables import KNOWN_TABLES, read_known_table
from pate_fed.data.reading import Reading, read_records, read_table
from pate_fed.data.table_features import fit_table_encoder
from pate_fed.data.table_review import review
from pate_fed.data.tables import Roles, find_roles, table_dataset
from pate_fed.errors import InvalidParameterError

_BUNDLED = ("digits", "breast-cancer")
_IDX = ("mnist", "fashion-mnist")
_PNEUMONIA = "pneumoniamnist"
_OWN = ("csv", "images")
SOURCE_NAMES = (*_BUNDLED, *_IDX, _PNEUMONIA, *KNOWN_TABLES, *_OWN)
"""Every name that `DataSource` knows."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """Which data set, and where its files are.

    Attributes:
        data_dir: Folder of a published data set, or of "images"; None for others.
        data_file: File of "csv" (or a Parquet file), or the .npz archive of "images"; else None.
        label_column: Column to predict, or several of yes and no.
        positive: Class of a table that is told from all others; None to keep all classes.
    """

    name: str
    data_dir: Path | None = None
    data_file: Path | None = None
    label_column: str | tuple[str, ...] | None = None
    patient_column: str | None = None
    hospital_column: str | None = None
    ignored_columns: tuple[str, ...] = ()
    positive: str | None = None
    separator: str = ","
    decimal: str = "."
    missing: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    drop_unlabeled: bool = False

    def __post_init__(self) -> None:
        if self.name not in SOURCE_NAMES:
            raise InvalidParameterError(
                f"data must be one of {', '.join(SOURCE_NAMES)}", repr(self.name)
            )
        if self.name in (*_IDX, _PNEUMONIA, *KNOWN_TABLES) and self.data_dir is None:
            raise InvalidParameterError(
                f"--data {self.name} needs --data-dir, the folder of its files"
            )
        if self.name == "images" and (self.data_dir is None) == (self.data_file is None):
            raise InvalidParameterError(
                "--data images needs --data-dir, a folder with a folder for each class, or "
                "--data-file, a .npz archive or a CSV file with a column path",
                "neither" if self.data_dir is None else "both",
            )
        needed = {"--data-file": self.data_file, "--label": self.label_column}
        missing = [option for option, value in needed.items() if value is None]
        if self.name == "csv" and missing:
            came = "neither" if len(missing) == len(needed) else f"no {missing[0]}"
            raise InvalidParameterError("--data csv needs --data-file and --label", came)
        _ = self.reading  # it refuses what cannot be

    @property
    def reading(self) -> Reading:
        """How the file of a table is read."""
        return Reading(
            separator=self.separator,
            decimal=self.decimal,
            missing=self.missing,
            renamed=self.renamed,
            drops_unlabeled=self.drop_unlabeled,
        )

    @property
    def several_labels(self) -> tuple[str, ...]:
        """The columns to predict if they are several; otherwise none."""
        return self.label_column if isinstance(self.label_column, tuple) else ()

    @property
    def lists_images(self) -> bool:
        """Whether it is a table of images' paths."""
        file = self.data_file
        return self.name == "images" and file is not None and file.suffix.lower() == ".csv"

    @property
    def is_table(self) -> bool:
        """Whether it is a table from a file, whose columns have names."""
        return self.name == "csv" or self.name in KNOWN_TABLES


def load_dataset(source: DataSource, *, rng: np.random.Generator) -> Dataset:
    """Load a data set, split it and preprocess it with statistics of its public pool.

    `rng` decides the split where the data set has none of its own.
    """
    match source:
        case DataSource(name="digits"):
            return load_bundled_digits(rng=rng)
        case DataSource(name="breast-cancer"):
            return load_bundled_breast_cancer(rng=rng)
        case DataSource(name="images", data_dir=Path() as folder):
            return load_image_files(folder, rng=rng, how=source.reading)
        case DataSource(name="images", data_file=Path() as file):
            if source.lists_images:
                return _load_listed_images(source, file, rng)
            return load_npz_images(file, name=file.name, rng=rng)
        case DataSource(name=name, data_dir=Path() as folder) if name in _IDX:
            return load_idx_images(folder, name=name)
        case DataSource(name=name, data_dir=Path() as folder) if name == _PNEUMONIA:
            return load_npz_images(folder / f"{name}.npz", name=name, rng=rng)
    return _load_table(source, rng)


def _load_listed_images(source: DataSource, file: Path, rng: np.random.Generator) -> Dataset:
    if not isinstance(source.label_column, str):
        raise InvalidParameterError(
            "--data images with a list of paths needs --label, its column of classes",
            "none" if source.label_column is None else "several",
        )
    return load_image_files(
        file,
        rng=rng,
        label=source.label_column,
        patient_id=source.patient_column,
        hospital=source.hospital_column,
        how=source.reading,
    )


def _load_table(source: DataSource, rng: np.random.Generator) -> Dataset:
    if source.name in KNOWN_TABLES:
        assert source.data_dir is not None, "checked when the source was made"
        usual = KNOWN_TABLES[source.name].roles
        roles = Roles(
            usual.label,
            usual.patient,
            usual.hospital,
            ignored=(*usual.ignored, *source.ignored_columns),
            positive=source.positive or usual.positive,
        )
        text, is_public = read_known_table(source.name, source.data_dir)
        return table_dataset(source.name, find_roles(text, roles), rng=rng, is_public=is_public)
    assert source.data_file is not None, "checked when the source was made"
    assert source.label_column is not None, "checked when the source was made"
    roles = Roles(
        source.label_column,
        source.patient_column,
        source.hospital_column,
        ignored=source.ignored_columns,
        positive=source.positive,
    )
    text = read_records(
        source.data_file,
        source.reading,
        labels=roles.labels,
        apart=(*roles.named, *roles.ignored),
    )
    found = review(
        text,
        labels=roles.labels,
        patient=roles.patient,
        apart=(*roles.named, *roles.ignored),
    )
    table = replace(find_roles(text, roles), lines=text.lines, notes=found.sentences)
    return table_dataset(source.data_file.name, table, rng=rng)


def read_public_inputs(path: Path) -> NDArray[np.float64]:
    """Read a table of public inputs, every column a possible feature; shape (rows, features)."""
    text = typed(read_table(path))
    columns = tuple(read_column(text, name) for name in text.header)
    rows = np.arange(len(text.lines), dtype=np.int64)
    return fit_table_encoder(columns, rows).apply(columns, rows)

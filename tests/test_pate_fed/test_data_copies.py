"""No record of the test is in what students and teachers see, by the hash of its bytes."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pate_fed.data import Dataset, DataSource, Records, load_dataset
from pate_fed.data.copies import without_copies
from pate_fed.errors import InvalidDataError
from tests.support.command import write_table
from tests.support.real_data import real_data

ALIKE = "patients look alike in this table"


def load(source: DataSource) -> Dataset:
    return load_dataset(source, rng=np.random.default_rng(5))


def hashes(part: Records) -> list[bytes]:
    rows = part.features if part.images is None else part.images
    return [sha256(row.tobytes()).digest() for row in rows]


def equal_rows(data: Dataset) -> int:
    """Number of test records that equal one that a student or a teacher sees."""
    seen = {*hashes(data.pool), *hashes(data.private)}
    return sum(one in seen for one in hashes(data.test))


def note(data: Dataset) -> str:
    [said] = [said for said in data.notes if "test records" in said]
    return said


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("digits", None),
        ("breast-cancer", None),
        ("heart-disease", "heart_disease"),
        pytest.param("pneumoniamnist", "pneumoniamnist", marks=pytest.mark.exhaustive),
        pytest.param("mnist", "mnist", marks=pytest.mark.exhaustive),
        pytest.param("fashion-mnist", "fashion_mnist", marks=pytest.mark.exhaustive),
        pytest.param("diabetes130", "diabetes130", marks=pytest.mark.exhaustive),
    ],
)
def test_named_data_keep_their_test_apart(name: str, folder: str | None) -> None:
    where = None if folder is None else real_data(f"data/{folder}")
    assert equal_rows(load(DataSource(name, data_dir=where))) == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        pytest.param("adult", "adult", marks=pytest.mark.slow),
        pytest.param("brfss", "brfss_diabetes", marks=pytest.mark.exhaustive),
    ],
)
def test_coarse_tables_say_how_many_test_records_look_like_others(name: str, folder: str) -> None:
    """Other people with the same answers are no copies: their labels differ now and then."""
    data = load(DataSource(name, data_dir=real_data(f"data/{folder}")))
    assert note(data).startswith(f"{equal_rows(data)} of {len(data.test)} ")
    assert ALIKE in note(data)


def table(folder: Path) -> DataSource:
    """A table in which a third of the rows came in again, under other ids."""
    file = write_table(folder / "table.csv")
    header, *rows = file.read_text("utf-8").splitlines()
    again = [f"again-{row}" for row in rows[::3]]
    file.write_text("\n".join([header, *rows, *again]) + "\n", "utf-8")
    return DataSource("csv", data_file=file, label_column="sick", patient_column="patient")


def scans(count: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(count, 9, 9), dtype=np.uint8)


def archive(folder: Path) -> DataSource:
    images, labels = scans(60), np.arange(60) % 2
    file = folder / "scans.npz"
    again = slice(0, 60, 3)
    np.savez(file, images=np.r_[images, images[again]], labels=np.r_[labels, labels[again]])
    return DataSource("images", data_file=file)


def split_archive(folder: Path) -> DataSource:
    """Of the test two images are a hospital's and one is the pool's, that with another label."""
    parts = np.split(scans(50), [24, 40])
    parts[2][:3] = *parts[0][:2], parts[1][5]
    arrays = {}
    for name, images in zip(("train", "val", "test"), parts, strict=True):
        arrays |= {f"{name}_images": images, f"{name}_labels": np.arange(len(images)) % 2}
    file = folder / "scans.npz"
    np.savez(file, **arrays)
    return DataSource("images", data_file=file)


def image_folder(folder: Path) -> DataSource:
    for number, image in enumerate(np.r_[scans(40), scans(40)[::2]]):
        place = folder / ("healthy", "ill")[number % 2]
        place.mkdir(exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")
    return DataSource("images", data_dir=folder)


@pytest.mark.parametrize("planted", [table, archive, split_archive, image_folder])
def test_planted_copies_are_left_out_of_the_test(
    planted: Callable[[Path], DataSource], tmp_path: Path
) -> None:
    data = load(planted(tmp_path))
    assert equal_rows(data) == 0
    left_out, _, before, *_ = note(data).split()
    assert len(data.test) == int(before) - int(left_out) > 0


def records(features: list[float], labels: list[int], *, of: str) -> Records:
    units = tuple(f"{of}-{row}" for row in range(len(labels)))
    return Records(np.array(features)[:, None], np.array(labels), units)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        pytest.param([1.0, 7.0, 8.0], [1, 0, 0], id="another label"),
        pytest.param([1.0, 2.0, 8.0], [0, 1, 0], id="most of the test"),
    ],
)
def test_rows_that_only_look_alike_stay_and_a_note_says_so(
    features: list[float], labels: list[int]
) -> None:
    pool = records([1.0, 2.0, 3.0], [0, 1, 1], of="pool")
    test = records(features, labels, of="test")
    kept, [said] = without_copies(test, pool)
    assert kept is test
    assert ALIKE in said


def test_a_zero_is_a_zero() -> None:
    test = records([-0.0, 4.0, 5.0], [0, 1, 1], of="test")
    kept, _ = without_copies(test, records([0.0], [0], of="pool"))
    assert kept.unit_ids == ("test-1", "test-2")


def test_a_test_of_copies_alone_is_refused() -> None:
    images = scans(4)[..., None]
    same = Records(np.ones((4, 1)), np.arange(4) % 2, tuple("abcd"), images=images)
    with pytest.raises(InvalidDataError, match=r"\b4 cop"):
        without_copies(same, same)

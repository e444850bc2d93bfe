"""Images from archives and folders: one size, one split, a clear error for each fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.data.image_pixels import ImageReading
from pate_fed.data.images import read_images
from pate_fed.errors import InvalidDataError, RareClassError, UnreadableFileError
from tests.support.markers import more, sampled
from tests.support.real_data import real_data


def pixels(count: int, *, side: int = 9, channels: int = 0) -> np.ndarray:
    shape = (count, side, side, channels) if channels else (count, side, side)
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def load(path: Path, seed: int = 0) -> Dataset:
    where = {"data_dir": path} if path.is_dir() else {"data_file": path}
    return load_dataset(DataSource("images", **where), rng=np.random.default_rng(seed))


def archive(folder: Path, **arrays: np.ndarray) -> Path:
    file = folder / "scans.npz"
    np.savez(file, **arrays)
    return file


def folder_of(place: Path, *, count: int = 12, color: bool = False, size: int = 20) -> Path:
    folder = place / "scans"
    for kind, name in enumerate(("healthy", "ill")):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            shade = np.full((size, size + 3, 3), 10 * number + 5 * kind, dtype=np.uint8)
            if color and name == "ill":
                shade[..., 0] = 250
            Image.fromarray(shade).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize("channels", [0, 1, 3])
def test_an_archive_of_images_is_split(tmp_path: Path, channels: int) -> None:
    labels = np.arange(40) % 2
    data = load(archive(tmp_path, images=pixels(40, channels=channels), labels=labels))
    assert tuple(len(part) for part in data.parts) == (24, 10, 6)
    assert data.pool.images is not None
    assert data.pool.images.shape[1:] == (9, 9, channels or 1)
    ids = [unit for part in data.parts for unit in part.unit_ids]
    assert len(set(ids)) == 40


def test_an_archive_with_a_split_keeps_it(tmp_path: Path) -> None:
    parts = {"train": 12, "val": 6, "test": 4}
    arrays = {f"{name}_labels": np.arange(count)[:, None] % 3 for name, count in parts.items()}
    images = np.split(pixels(22), [12, 18])
    arrays |= {f"{name}_images": part for name, part in zip(parts, images, strict=True)}
    data = load(archive(tmp_path, **arrays))
    assert tuple(len(part) for part in data.parts) == (12, 6, 4)
    assert data.classes == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        pytest.param({"labels": None}, UnreadableFileError, id="no labels"),
        pytest.param({"labels": np.zeros(39, np.int64)}, InvalidDataError, id="a label too few"),
        pytest.param({"labels": np.zeros(40)}, InvalidDataError, id="labels with fractions"),
        pytest.param({"labels": np.full(40, -1)}, InvalidDataError, id="a negative label"),
        pytest.param({"labels": np.full(40, 2**40)}, InvalidDataError, id="a huge label"),
        pytest.param({"images": np.zeros((40, 9, 9))}, InvalidDataError, id="no bytes"),
        pytest.param({"images": pixels(40, channels=2)}, InvalidDataError, id="two channels"),
        pytest.param({"images": pixels(40, side=3)}, InvalidDataError, id="too small"),
        pytest.param({"labels": np.arange(40) // 38}, RareClassError, id="a class of two"),
        pytest.param(
            {"labels": np.array([{"a": 1}] * 40)}, UnreadableFileError, id="objects, hence pickle"
        ),
    ],
)
def test_an_archive_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, np.ndarray | None], error: type[Exception]
) -> None:
    arrays = {"images": pixels(40), "labels": np.arange(40) % 2, **change}
    kept = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(error):
        load(archive(tmp_path, **kept))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(40), b"nonsense"])
def test_a_damaged_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scans.npz").write_bytes(content)
    with pytest.raises(UnreadableFileError, match="readable"):
        load(tmp_path / "scans.npz")


@sampled()
@pytest.mark.parametrize("color", [False, True])
def test_a_folder_has_a_folder_for_each_class(tmp_path: Path, color: bool) -> None:
    data = load(folder_of(tmp_path, color=color))
    assert data.class_names == ("healthy", "ill")
    assert sum(len(part) for part in data.parts) == 24
    assert data.pool.images is not None
    assert data.pool.images.shape[1:] == (20, 23, 3 if color else 1)
    assert any(unit.startswith("healthy/") for unit in data.private.unit_ids)


def test_a_folder_without_images_of_a_class_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "unknown").mkdir()
    with pytest.raises(UnreadableFileError, match="unknown"):
        load(folder)


def test_one_class_or_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    with pytest.raises(UnreadableFileError, match="class"):
        load(tmp_path)
    with pytest.raises(UnreadableFileError):
        load_dataset(
            DataSource("images", data_dir=tmp_path / "nowhere"), rng=np.random.default_rng(0)
        )


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder / "ill" / "3.png").write_bytes(b"\x89PNG nonsense")
    with pytest.raises(UnreadableFileError, match=r"3\.png"):
        load(folder)


def test_images_for_a_student_are_scaled_to_its_size(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, count=3)
    names, images = read_images(folder / "ill", ImageReading(8, 8, 1))
    assert names == ("0.png", "1.png", "2.png")
    assert images.shape == (3, 8, 8, 1)
    one, single = read_images(folder / "ill" / "1.png", ImageReading(8, 8, 1))
    assert one == ("1.png",)
    assert np.array_equal(single[0], images[1])


def test_an_archive_for_a_student_is_scaled_to_its_size(tmp_path: Path) -> None:
    _, found = read_images(archive(tmp_path, images=pixels(3)), ImageReading(8, 8, 1))
    assert found.shape == (3, 8, 8, 1)


@pytest.mark.parametrize(
    ("name", "folder", "sizes"),
    [
        # MNIST itself, of the same form and size, is read in `test_data_idx`.
        more("fashion-mnist", "fashion_mnist", (60_000, 9_000, 1_000), id="fashion"),
        pytest.param("pneumoniamnist", "pneumoniamnist", (4_708, 524, 624), id="pneumonia"),
    ],
)
@pytest.mark.slow
def test_published_images_are_split_as_published(
    name: str, folder: str, sizes: tuple[int, ...]
) -> None:
    where = real_data(f"data/{folder}")
    data = load_dataset(DataSource(name, data_dir=where), rng=np.random.default_rng(0))
    assert tuple(len(part) for part in data.parts) == sizes
    assert data.pool.features.shape[1] == 80
    assert not data.class_names[0].isdigit()


def test_sixteen_bits_of_an_x_ray_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    shades = np.linspace(1000, 30_000, 20 * 20).reshape(20, 20).astype(np.uint16)
    Image.fromarray(shades).save(tmp_path / "chest.png")
    _, [found] = read_images(tmp_path / "chest.png", ImageReading(20, 20, 1, 1000, 30_000))
    assert (found.min(), found.max()) == (0, 255)
    assert len(np.unique(found)) > 100


def test_images_of_ones_own_say_that_each_counts_as_a_patient(tmp_path: Path) -> None:
    note, *_ = load(folder_of(tmp_path)).notes
    assert "epsilon" in note

"""idx files are read strictly; MNIST is split as in the papers."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import DataSource, load_dataset
from pate_fed.data.idx import read_idx
from pate_fed.errors import InvalidDataError, UnreadableFileError
from tests.support.real_data import real_data

HEADER = struct.pack(">BBBB3I", 0, 0, 8, 3, 2, 2, 2)
BODY = bytes(range(8))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "pack", [pytest.param(bytes, id="plain"), pytest.param(gzip.compress, id="gz")]
)
def test_a_whole_file_is_read(tmp_path: Path, pack: type[bytes]) -> None:
    images = read_idx(write(tmp_path / "images", pack(HEADER + BODY)), axes=3)
    assert np.array_equal(images, np.arange(8, dtype=np.uint8).reshape(2, 2, 2))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(HEADER[:9], id="half a header"),
        pytest.param(b"\x00\x00\x09\x03" + HEADER[4:] + BODY, id="signed bytes"),
        pytest.param(b"\x00\x01\x08\x03" + HEADER[4:] + BODY, id="wrong magic"),
        pytest.param(struct.pack(">BBBBI", 0, 0, 8, 1, 8) + BODY, id="one axis"),
        pytest.param(HEADER + BODY[:-1], id="a byte too few"),
        pytest.param(HEADER + BODY + b"x", id="a byte too many"),
        pytest.param(struct.pack(">BBBB3I", 0, 0, 8, 3, 0, 2, 2), id="no image"),
        pytest.param(struct.pack(">BBBB3I", 0, 0, 8, 3, *[2**32 - 1] * 3), id="announces 2^96"),
        pytest.param(gzip.compress(HEADER + BODY)[:-6], id="truncated gz"),
        pytest.param(gzip.compress(HEADER + BODY)[:14] + b"\xff" * 20, id="damaged gz"),
        pytest.param(b"\x1f\x8bnonsense", id="gz magic only"),
    ],
)
def test_a_broken_file_gives_one_coded_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UnreadableFileError) as caught:
        read_idx(write(tmp_path / "images", content), axes=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", [pytest.param("absent", id="missing"), pytest.param("", id="folder")]
)
def test_no_file_gives_one_coded_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableFileError) as refused:
        read_idx(tmp_path / name, axes=3)
    assert ("exist" in str(refused.value)) is bool(name)


def write_mnist(folder: Path, *, labels: int | None = None, digit: int = 9, side: int = 28) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 30)):
        images = rng.integers(0, 256, (count, side, side)).astype(np.uint8)
        head = struct.pack(">BBBB3I", 0, 0, 8, 3, count, side, side)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        shown = count if labels is None else labels
        body = bytes([digit, *(row % 10 for row in range(1, shown))])
        packed = gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, shown) + body)
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed)


def source(folder: Path) -> DataSource:
    return DataSource("mnist", data_dir=folder)


def test_a_folder_without_mnist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="train-images"):
        load_dataset(source(tmp_path), rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param({"labels": 20}, id="labels too few"),
        pytest.param({"digit": 10}, id="an eleventh digit"),
        pytest.param({"side": 3}, id="too small"),
    ],
)
def test_images_and_labels_that_do_not_match_are_refused(
    tmp_path: Path, spoiled: dict[str, int]
) -> None:
    write_mnist(tmp_path, **spoiled)
    with pytest.raises(InvalidDataError):
        load_dataset(source(tmp_path), rng=np.random.default_rng(0))


@pytest.mark.parametrize("side", [8, 28])
def test_the_first_test_images_are_the_pool_and_the_last_tenth_the_test(
    tmp_path: Path, side: int
) -> None:
    write_mnist(tmp_path, side=side)
    data = load_dataset(source(tmp_path), rng=np.random.default_rng(0))
    assert tuple(len(part) for part in data.parts) == (40, 27, 3)
    assert data.pool.labels.tolist() == [9, *(row % 10 for row in range(1, 27))]
    assert data.test.labels.tolist() == [7, 8, 9]
    assert data.pool.images is not None
    assert data.pool.images.shape == (27, side, side, 1)


@pytest.mark.exhaustive
def test_real_mnist_is_split_as_in_the_papers() -> None:
    folder = real_data("data/mnist")
    data = load_dataset(source(folder), rng=np.random.default_rng(0))
    assert tuple(len(part) for part in data.parts) == (60_000, 9_000, 1_000)
    assert np.bincount(data.private.labels).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert data.private.features.shape[1] == 80

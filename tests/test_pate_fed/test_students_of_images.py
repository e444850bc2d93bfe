"""Convolutional students: repeatable, saved whole, sober about what they cannot learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.data import Dataset, DataSource, Inputs, load_dataset
from pate_fed.errors import InvalidParameterError
from pate_fed.students import IMAGE_STUDENTS, Lesson, read_student, train_student
from tests.support.markers import sampled
from tests.support.short_students import shortened


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset(DataSource("digits"), rng=np.random.default_rng(0))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for some steps only: these tests are not about accuracy."""
    shortened(monkeypatch, steps=6, width=4)


def lesson(data: Dataset, *, labels: int = 120, wrong: float = 0.0) -> Lesson:
    """Labels of some public inputs, a share of them wrong."""
    rng = np.random.default_rng(3)
    indices = rng.choice(len(data.pool), size=labels, replace=False)
    said = data.pool.labels[indices].copy()
    is_wrong = rng.random(labels) < wrong
    said[is_wrong] = rng.choice(data.classes, size=int(is_wrong.sum()))
    return Lesson(data.pool.inputs, indices, said, data.classes)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", list(IMAGE_STUDENTS))
class TestEvery:
    @pytest.mark.exhaustive
    def test_the_same_seed_gives_the_same_student_whatever_torch_drew_before(
        self, name: str, digits: Dataset
    ) -> None:
        import torch  # noqa: PLC0415 - seconds

        found = []
        for seed in (1, 1, 2):
            torch.rand(int(seed) + len(found))
            student = train_student(name, "image", lesson(digits), rng=np.random.default_rng(seed))
            found.append(student.chances(digits.test.inputs))
        np.testing.assert_array_equal(found[0], found[1])
        assert not np.allclose(found[0], found[2])

    @sampled()
    def test_it_is_read_as_it_was_saved(self, name: str, digits: Dataset, tmp_path: Path) -> None:
        student = train_student(name, "image", lesson(digits), rng=np.random.default_rng(1))
        student.save(tmp_path / "student")
        read = read_student(tmp_path / "student")
        chances = student.chances(digits.test.inputs)
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        np.testing.assert_array_equal(read.chances(digits.test.inputs), chances)
        assert not list((tmp_path / "student").glob("*.pkl"))

    def test_one_label_makes_a_constant(self, name: str, digits: Dataset) -> None:
        one = Lesson(digits.pool.inputs, np.array([4]), np.array([2]), digits.classes)
        student = train_student(name, "image", one, rng=np.random.default_rng(1))
        assert set(student.predict(digits.test.inputs).tolist()) == {2}

    @pytest.mark.parametrize("size", [None, (6, 9)])
    def test_a_table_and_tiny_images_are_refused(
        self, name: str, size: tuple[int, int] | None
    ) -> None:
        rng = np.random.default_rng(0)
        images = None if size is None else rng.integers(256, size=(30, *size, 1), dtype=np.uint8)
        inputs = Inputs(rng.normal(size=(30, 5)), images)
        asked = Lesson(inputs, np.arange(20), np.arange(20) % 2, 2)
        with pytest.raises(InvalidParameterError, match="8 x 8"):
            train_student(name, "image", asked, rng=rng)

    def test_a_device_that_cannot_be_used_is_refused(self, name: str, digits: Dataset) -> None:
        # "meta" computes nothing, so that no student comes of it: torch was told of it.
        for device in ("abacus", "meta"):
            with pytest.raises(InvalidParameterError, match=f"--device.*'{device}'"):
                train_student(
                    name, "image", lesson(digits), rng=np.random.default_rng(1), device=device
                )


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(IMAGE_STUDENTS))
@pytest.mark.parametrize(
    ("wrong", "least"),
    [pytest.param(0.0, 0.8, id="right"), pytest.param(0.4, 0.6, id="40 % wrong")],
)
def test_it_learns_from_few_labels_and_bears_wrong_ones(
    name: str, wrong: float, least: float, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortened(monkeypatch, steps=150, width=16)
    student = train_student(
        name, "image", lesson(digits, labels=200, wrong=wrong), rng=np.random.default_rng(1)
    )
    assert (student.predict(digits.test.inputs) == digits.test.labels).mean() >= least

"""A student's beliefs half way: chances of each class, from released labels alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.mechanisms import StudentPredictions
from pate_fed.students.interim_chances import interim_chances


def blobs(
    count: int, *, classes: int = 3, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Points around one center per class on a circle, and the class of each."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % classes
    angles = 2 * np.pi * np.arange(classes) / classes
    centers = 10.0 * np.column_stack([np.cos(angles), np.sin(angles)])
    return centers[labels] + rng.normal(size=(count, 2)), labels


def test_chances_follow_what_was_learned() -> None:
    known, labels = blobs(60)
    new, truth = blobs(30, seed=1)
    chances = interim_chances(known, labels, new, classes=3)
    assert chances is not None
    assert chances.argmax(axis=1).tolist() == truth.tolist()
    assert chances.max(axis=1).min() > 0.8


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 100),
    count=st.integers(2, 40),
    classes=st.integers(2, 6),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_every_row_is_a_law_over_all_classes(
    seed: int, count: int, classes: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, size=count)
    inputs = scale * rng.normal(size=(7, 3))
    chances = interim_chances(scale * rng.normal(size=(count, 3)), labels, inputs, classes=classes)
    if len(set(labels.tolist())) < 2:
        assert chances is None
        return
    assert chances is not None
    assert chances.shape == (7, classes)
    assert (chances >= 0).all()
    assert chances.sum(axis=1) == pytest.approx(np.ones(7), abs=1e-12)
    unseen = sorted(set(range(classes)) - set(labels.tolist()))
    assert not chances[:, unseen].any()
    # It is what the mechanism takes.
    assert StudentPredictions.of(chances, total_votes=50).votes.shape == (7, classes)


@pytest.mark.parametrize(
    "labels", [pytest.param([], id="none"), pytest.param([2, 2, 2], id="all of one class")]
)
def test_there_is_no_student_before_two_classes_have_a_label(labels: list[int]) -> None:
    known = np.zeros((len(labels), 2))
    found = interim_chances(known, np.array(labels, dtype=np.int64), np.ones((4, 2)), classes=3)
    assert found is None


def test_the_same_labels_give_the_same_chances() -> None:
    # Coordinator and whoever checks it must come to the same predictions.
    known, labels = blobs(40, classes=4, seed=3)
    new, _ = blobs(10, classes=4, seed=4)
    first, second = (interim_chances(known, labels, new, classes=4) for _ in range(2))
    assert first is not None
    assert second is not None
    assert np.array_equal(first, second)


def test_a_constant_feature_does_no_harm() -> None:
    known, labels = blobs(40)
    constant = np.column_stack([known, np.full(40, 7.0)])
    chances = interim_chances(constant, labels, constant[:5], classes=3)
    assert chances is not None
    assert np.isfinite(chances).all()


def test_arguments_stay_as_they_were() -> None:
    known, labels = blobs(30)
    before = known.copy(), labels.copy()
    interim_chances(known, labels, known, classes=3)
    assert np.array_equal(known, before[0])
    assert np.array_equal(labels, before[1])

"""Every student when lessons are poor: a class without labels, wrong labels, refused queries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pate_fed.inputs import DatasetKind, Inputs
from pate_fed.students import IMAGE_STUDENTS, STUDENTS, LabelFacts, Lesson, Student, train_student
from tests.support.markers import more
from tests.support.short_students import shortened

CLASSES = 3
CHANCE = 1 / CLASSES

LEVEL = 0.8
"""Least accuracy of a student of labels of which 40 % are wrong.

Who learns labels by heart is right on 60 %, who hears the majority of a group on all. The level is
halfway; on 150 test inputs 60 % have a standard error of 4 points, so it is 5 of them above.
"""

LABELED_ONLY = {"supervised", "logistic", "forest", "boosting", "kernel-ridge", "co-teaching"}
"""Students that look at labeled inputs alone."""

SLOW_TO_LEARN = {"self-training", "vat"}
"""Students of images that are still short of the level after ten steps, or close to it."""

NETWORKS = {"network", *IMAGE_STUDENTS}
"""Students that decide as they learned, whatever the facts are."""


def pictures(count: int, *, seed: int) -> tuple[Inputs, np.ndarray]:
    """Images of 8 x 8 with one bright band for each class, and noise; classes in turn."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    images = rng.integers(90, size=(count, 8, 8, 1), dtype=np.uint8)
    for place, label in enumerate(labels):
        images[place, 2 * label : 2 * label + 3] += 120
    return seen(images), labels


def seen(images: np.ndarray) -> Inputs:
    """Images, with the brightness of their rows as features."""
    return Inputs(images.mean(axis=(2, 3)) / 255.0, images)


POOL, TRUE = pictures(300, seed=1)
TEST, ANSWERS = pictures(150, seed=2)


EVERY = [(name, "image") for name in STUDENTS]
"""Every student, with the kind of its inputs; two of them learn tables in another way."""
EVERY += [("propagation", "table"), ("supervised", "table")]
CASES = [
    pytest.param(
        *each, id=" ".join(each), marks=[pytest.mark.slow] if each[0] == "pate-plus-plus" else []
    )
    for each in EVERY
]


def taught(name: str, kind: DatasetKind, lesson: Lesson) -> Student:
    return train_student(name, kind, lesson, rng=np.random.default_rng(0))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_without_a_label_of_one_class_it_knows_the_others(
    name: str, kind: DatasetKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do offsets that share the pool out, to a class that it never saw too, spoil a number."""
    shortened(monkeypatch, steps=4, width=4)
    known = np.flatnonzero(TRUE != 1)[:40]
    told = Lesson(POOL, known, TRUE[known], CLASSES)
    shared = LabelFacts(votes=100, sigma=20.0, shared_out=True, prevalence=(0.3, 0.4, 0.3))
    for facts in (LabelFacts(), shared)[: 1 if name in NETWORKS else 2]:
        student = taught(name, kind, replace(told, facts=facts))
        chances = student.chances(TEST)
        assert chances.shape == (len(TEST), CLASSES)
        assert (chances >= 0).all()  # no NaN either
        np.testing.assert_allclose(chances.sum(axis=1), 1)
        said = student.predict(TEST)
        assert set(said.tolist()) <= set(range(CLASSES))
        if name not in IMAGE_STUDENTS:  # in four steps those learn nothing
            assert (said == ANSWERS)[ANSWERS != 1].mean() > LEVEL
            assert not (said == 1).any()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (more if each[0] in IMAGE_STUDENTS else pytest.param)(*each, id=" ".join(each))
        for each in EVERY
    ],
)
def test_it_bears_that_four_labels_in_ten_are_wrong(
    name: str, kind: DatasetKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortened(monkeypatch, steps=20 if name in SLOW_TO_LEARN else 10, width=8)
    rng = np.random.default_rng(2)
    labels = TRUE.copy()
    wrong = rng.choice(len(labels), size=4 * len(labels) // 10, replace=False)
    labels[wrong] = (labels[wrong] + rng.integers(1, CLASSES, size=len(wrong))) % CLASSES
    assert (labels == TRUE).mean() == pytest.approx(0.6)
    student = taught(name, kind, Lesson(POOL, np.arange(len(labels)), labels, CLASSES))
    right = (student.predict(TEST) == ANSWERS).mean()
    assert right >= LEVEL > CHANCE + 0.4


@pytest.mark.parametrize(
    ("name", "kind"), [each for each in CASES if each.values[0] not in LABELED_ONLY]
)
def test_a_refused_query_is_learned_from_as_an_input_without_a_label(
    name: str, kind: DatasetKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortened(monkeypatch, steps=4, width=4)
    answered = np.arange(0, 60, 2)
    refused = np.arange(1, 60, 2)
    images = POOL.images
    assert images is not None
    other = images.copy()
    other[refused] //= 3
    found = []
    for pool in (images, other):
        lesson = Lesson(seen(pool[:60]), answered, TRUE[answered], CLASSES)
        found.append(taught(name, kind, lesson).chances(TEST))
    assert not np.allclose(*found, atol=1e-6)


def test_self_training_renews_what_it_believes_while_it_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def after(refresh: int) -> np.ndarray:
        shortened(monkeypatch, steps=6, width=4)
        monkeypatch.setattr("pate_fed.students.self_training._REFRESH", refresh)
        lesson = Lesson(POOL, np.arange(30), TRUE[:30], CLASSES)
        return taught("self-training", "image", lesson).chances(TEST)

    assert not np.allclose(after(2), after(6))  # at its last step, and never

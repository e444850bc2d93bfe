"""Scores of a model against scikit-learn's, and intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    precision_score,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from pate_fed.record.metrics import ClassScores
from pate_fed.report.scores import quality_of, scores_of, wilson_interval


def drawn(classes: int, *, records: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=records)
    scores = rng.normal(size=(records, classes)) + 1.5 * np.eye(classes)[labels]
    chances = np.exp(scores)
    return chances / chances.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_scores_are_those_of_scikit_learn(classes: int) -> None:
    chances, labels = drawn(classes)
    names = [str(one) for one in range(classes)]
    found = scores_of(chances, labels, names)
    decided = chances.argmax(axis=1)
    assert found.accuracy == pytest.approx((decided == labels).mean())
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(labels, decided))
    theirs = (
        roc_auc_score(labels, chances[:, 1])
        if classes == 2
        else roc_auc_score(labels, chances, multi_class="ovr")
    )
    assert found.auc == pytest.approx(theirs)
    for place, name in enumerate(names):
        each = found.per_class[name]
        assert each.recall == pytest.approx(
            recall_score(labels, decided, labels=[place], average=None)[0]
        )
        assert each.precision == pytest.approx(
            precision_score(labels, decided, labels=[place], average=None)[0]
        )
    assert found.majority == np.bincount(labels).max() / len(labels)
    assert quality_of(np.log(chances), labels).balanced_accuracy == found.balanced_accuracy


def test_a_constant_shows_as_one() -> None:
    labels = np.array([0] * 86 + [1] * 14)
    found = scores_of(np.tile([1.0, 0.0], (100, 1)), labels, ["well", "ill"])
    assert found.accuracy == found.majority == 0.86
    assert found.balanced_accuracy == 0.5
    assert found.auc == 0.5
    assert found.decided_classes == 1
    assert found.per_class["ill"] == ClassScores(records=14, recall=0.0, decided=0, precision=None)


def test_chances_that_hold_are_calibrated_and_overconfident_ones_are_not() -> None:
    rng = np.random.default_rng(3)
    chance = rng.uniform(0.5, 1.0, size=20_000)
    labels = (rng.random(20_000) > chance).astype(np.int64)
    honest = scores_of(np.stack([chance, 1 - chance], axis=1), labels, ["a", "b"])
    sure = scores_of(np.tile([0.99, 0.01], (20_000, 1)), labels, ["a", "b"])
    assert honest.calibration_error < 0.02
    assert sure.calibration_error > 0.2


def test_confusion_certainty_and_curve_hold_against_sklearn() -> None:
    rng = np.random.default_rng(11)
    chances = np.round(rng.dirichlet(np.ones(2), size=400), 2)
    labels = (rng.random(400) < chances[:, 1]).astype(np.int64)
    found = scores_of(chances, labels, ["a", "b"])
    counted = [[found.confusion[true].get(said, 0) for said in "ab"] for true in "ab"]
    assert counted == confusion_matrix(labels, chances.argmax(axis=1)).tolist()
    assert sum(one.records for one in found.by_certainty) == 400
    assert found.roc is not None
    wrong, right = np.array(found.roc).T
    assert (wrong[-1], right[-1]) == (1.0, 1.0)
    theirs_wrong, theirs_right, _ = roc_curve(labels, chances[:, 1], drop_intermediate=False)
    theirs = set(zip(theirs_wrong.tolist(), theirs_right.tolist(), strict=True))
    assert set(found.roc) <= theirs
    area = ((right[1:] + right[:-1]) / 2 * np.diff(wrong)).sum()
    assert area == pytest.approx(found.auc, abs=0.005)  # at most 100 of the limits are kept
    assert len(found.roc) <= 101


def test_scores_are_told_by_hospital() -> None:
    chances = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9]])
    owners = ["N", "N", "N", "S", "S"]
    found = scores_of(chances, np.array([0, 1, 0, 1, 1]), ["a", "b"], groups={"hospital": owners})
    north, south = found.subgroups["hospital"]["N"], found.subgroups["hospital"]["S"]
    assert (north.records, north.accuracy, north.majority) == (3, 2 / 3, 2 / 3)
    assert (south.records, south.accuracy, south.majority) == (2, 1.0, 1.0)
    assert tuple(north.accuracy_interval) == wilson_interval(2, 3)
    assert (north.recall, south.recall) == ({"a": 1.0, "b": 0.0}, {"a": None, "b": 1.0})
    assert (north.auc, south.auc) == (1.0, None)
    errors = [north.calibration_error, south.calibration_error]
    assert errors == pytest.approx([(0.1 + 0.6 + 0.3) / 3, 0.15])


def test_a_hospital_of_all_records_has_the_scores_of_all() -> None:
    rng = np.random.default_rng(5)
    chances = rng.dirichlet(np.ones(3), size=200)
    only = {"hospital": 200 * ["only"]}
    found = scores_of(chances, rng.integers(0, 3, 200), ["a", "b", "c"], groups=only)
    one = found.subgroups["hospital"]["only"]
    assert (one.auc, one.calibration_error) == (found.auc, found.calibration_error)
    assert one.recall == {name: row.recall for name, row in found.per_class.items()}


def test_without_two_classes_there_is_no_curve() -> None:
    assert scores_of(np.eye(2)[[0, 0]], np.array([0, 0]), ["a", "b"]).auc is None


@pytest.mark.parametrize(("share", "records"), [(0.5, 30), (0.9, 100), (0.99, 400)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(
    share: float, records: int
) -> None:
    covered = 0.0
    for right in range(records + 1):
        low, high = wilson_interval(right, records)
        assert 0 <= low <= right / records <= high <= 1
        covered += float(binom.pmf(right, records, share)) * (low <= share <= high)
    assert 0.92 < covered < 0.985


def test_a_yardstick_is_ranked_as_a_student_is() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=600)
    scores = rng.normal(size=(600, 3)) + 1.2 * np.eye(3)[labels]
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    as_student = scores_of(chances, labels, ("a", "b", "c")).auc
    assert quality_of(scores, labels).auc == pytest.approx(as_student)

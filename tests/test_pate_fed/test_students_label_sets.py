"""Sets of classes: their coverage against its exact law, and what they do not promise."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, kstest

from pate_fed.data import DataSource
from pate_fed.errors import InvalidParameterError, InvalidSettingError, RunDirectoryError
from pate_fed.inputs import Inputs
from pate_fed.planning import RunSettings
from pate_fed.planning.resolving import resolve_for
from pate_fed.queries import QueryPool
from pate_fed.students import LabelFacts, LabelSets, Lesson, read_student, train_student
from pate_fed.students.label_sets import CALIBRATING_PART, calibrating_rows, labels_needed
from pate_fed.students.query_selection import SELECTION_METHODS, choose_queries
from protocols.forms import FORMS
from protocols.suites import DEFAULT_SUITE
from tests.support.rules import run_settings

COVERAGES = st.sampled_from([0.5, 0.55, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999])


def chances_of(own: np.ndarray) -> np.ndarray:
    """Return chances of three classes: class 1, the label, has `own`, and class 0 more."""
    return np.stack([0.6 * np.ones_like(own), own, 0.4 - own], axis=1)


def calibrated(own: np.ndarray, coverage: float) -> LabelSets:
    labels = np.ones(len(own), dtype=np.int64)
    return LabelSets.calibrated(chances_of(own), labels, coverage=coverage)


def covered(sets: LabelSets, chances: np.ndarray, labels: np.ndarray) -> float:
    return float(sets.of(chances)[np.arange(len(labels)), labels].mean())


# The law.


@pytest.mark.parametrize(("labels", "coverage"), [(9, 0.9), (40, 0.8), (100, 0.9), (333, 0.95)])
def test_the_coverage_of_many_draws_is_that_of_a_beta_distribution(
    labels: int, coverage: float
) -> None:
    """The seed is fixed; a false alarm in a million. A rank that is one too low is noticed."""
    rng = np.random.default_rng(labels)
    found = []
    for own in rng.uniform(0, 0.4, size=(4000, labels)):
        sets = calibrated(own, coverage)
        found.append(1 - sets.least_chance / 0.4)  # of a chance that is uniform in 0..0.4
    place = math.ceil((labels + 1) * coverage)
    law = beta(place, labels + 1 - place)
    assert kstest(found, law.cdf).pvalue > 1e-6
    assert kstest(found, beta(place - 1, labels + 2 - place).cdf).pvalue < 1e-6
    sets = calibrated(rng.uniform(0, 0.4, size=labels), coverage)
    assert sets.interval == pytest.approx(law.ppf([0.025, 0.975]))


@given(
    own=st.lists(st.integers(0, 12).map(lambda one: one / 40), min_size=1, max_size=30),
    coverage=COVERAGES,
)
def test_of_rows_in_any_order_the_last_is_covered_often_enough_with_ties_too(
    own: list[float], coverage: float
) -> None:
    """Each of n + 1 rows is the new one in as many orders: all are tried, so this is exact."""
    values = np.array(own)
    hits = 0
    for last in range(len(values)):
        sets = calibrated(np.delete(values, last), coverage)
        hits += bool(sets.of(chances_of(values[[last]]))[0, 1])
    assert hits / len(values) >= coverage - 1e-12
    if len(set(own)) == len(own) >= labels_needed(coverage) + 1:
        assert hits == math.ceil(round(len(values) * coverage, 9))  # and not more often


@given(coverage=COVERAGES, spare=st.integers(0, 3))
def test_too_few_labels_give_sets_of_all_classes_and_the_number_that_is_needed(
    coverage: float, spare: int
) -> None:
    needed = labels_needed(coverage)
    own = np.linspace(0.1, 0.3, needed + spare)
    assert calibrated(own, coverage).least_chance > 0
    few = calibrated(own[: needed - 1], coverage)
    assert few.least_chance == 0
    assert few.labels_needed == needed
    assert few.of(np.array([[1.0, 0.0, 0.0]])).all()
    assert few.interval == (1.0, 1.0)


def test_a_set_is_never_empty() -> None:
    sets = calibrated(np.full(99, 0.39), 0.9)
    held = sets.of(np.array([[0.3, 0.35, 0.35], [0.2, 0.2, 0.6]]))
    assert held.tolist() == [[False, True, False], [False, False, True]]


# What is covered, and what is not.


def rings(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of two clusters and their labels, which are noise outside of the two cores."""
    side = rng.integers(2, size=count)
    away = rng.random(count) < 0.35
    spread = np.where(away, 4.0, 0.3)[:, np.newaxis] * rng.normal(size=(count, 2))
    rows = np.array([[-3.0, 0.0], [3.0, 0.0]])[side] + spread
    return rows, np.where(away, rng.integers(2, size=count), side)


def one_run(seed: int, *, method: str, is_drawn: bool) -> float:
    """Return the coverage on 2,000 fresh rows of a student's sets at 0.9."""
    rng = np.random.default_rng(seed)
    rows, labels = rings(700, rng)
    pool = QueryPool(rows)
    everything = range(len(rows))
    if is_drawn:
        asked = choose_queries(pool, everything, 200, method=method, rng=rng, calibrates=True)
        known = {row: int(labels[row]) for row in asked}
        lesson = Lesson.of(pool, known, classes=2, facts=LabelFacts(), coverage=0.9)
        student = train_student("logistic", "table", lesson, rng=rng)
        sets = student.sets
    else:  # a fifth of the chosen ones, as a careless program would
        asked = choose_queries(pool, everything, 200, method=method, rng=rng)
        known = {row: int(labels[row]) for row in asked[:40]}
        taught = np.array(asked[40:])
        lesson = Lesson(Inputs(rows), taught, labels[taught], 2)
        student = train_student("logistic", "table", lesson, rng=rng)
        held = np.array(list(known))
        sets = LabelSets.calibrated(student.chances(Inputs(rows[held])), labels[held], coverage=0.9)
    assert sets is not None
    fresh, said = rings(2000, rng)
    return covered(sets, student.chances(Inputs(fresh)), said)


@pytest.mark.slow
@pytest.mark.parametrize("method", SELECTION_METHODS)
def test_a_student_covers_fresh_rows_however_the_other_queries_are_chosen(method: str) -> None:
    """The mean of 60 runs; below 0.9 by three standard errors in a run of a thousand."""
    found = np.array([one_run(seed, method=method, is_drawn=True) for seed in range(60)])
    assert found.mean() > 0.9 - 3 * found.std() / math.sqrt(len(found))


@pytest.mark.slow
def test_labels_of_the_middles_of_clusters_would_not_calibrate() -> None:
    """So the draw at random is what the coverage rests on."""
    found = np.array([one_run(seed, method="medoids", is_drawn=False) for seed in range(20)])
    assert found.mean() + 5 * found.std() / math.sqrt(len(found)) < 0.9


def test_the_released_label_is_covered_not_the_true_class() -> None:
    """Hospitals whose labels all wrong the one class: sets hold what they release."""
    rng = np.random.default_rng(3)
    truth = rng.integers(3, size=30_000)
    released = np.where(truth == 2, 1, truth)  # noise and votes never name class 2
    chances = 0.02 + 0.9 * np.eye(3)[released]
    chances[:, 0] += rng.uniform(0, 1e-3, len(truth))
    chances /= chances.sum(axis=1, keepdims=True)
    sets = LabelSets.calibrated(chances[:300], released[:300], coverage=0.9)
    assert covered(sets, chances[300:], released[300:]) > 0.9
    assert covered(sets, chances[300:], truth[300:]) < 0.7
    assert not sets.of(chances[300:][truth[300:] == 2])[:, 2].any()


def test_a_class_that_calibrated_nothing_is_not_covered_alone() -> None:
    sets = LabelSets.calibrated(
        np.tile([0.7, 0.25, 0.05], (50, 1)), np.zeros(50, dtype=np.int64), coverage=0.9
    )
    assert sets.of(np.array([[0.1, 0.1, 0.8], [0.7, 0.25, 0.05]])).tolist() == [
        [False, False, True],
        [True, False, False],
    ]


@pytest.mark.parametrize(
    ("chances", "labels", "coverage"),
    [
        pytest.param(np.ones((3, 2)) / 2, np.zeros(2, dtype=np.int64), 0.9, id="a label is gone"),
        pytest.param(np.ones(3), np.zeros(3, dtype=np.int64), 0.9, id="no row of chances"),
        pytest.param(np.ones((1, 2)) / 2, np.zeros(1, dtype=np.int64), 1.0, id="certainty"),
        pytest.param(np.ones((1, 2)) / 2, np.zeros(1, dtype=np.int64), 0.4, id="a minority"),
        pytest.param(np.ones((1, 2)) / 2, np.zeros(1, dtype=np.int64), math.nan, id="no number"),
    ],
)
def test_what_is_no_calibration_is_refused(
    chances: np.ndarray, labels: np.ndarray, coverage: float
) -> None:
    with pytest.raises(InvalidParameterError):
        LabelSets.calibrated(chances, labels, coverage=coverage)


# The draw.


def test_which_rows_calibrate_depends_on_each_row_alone() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 3))
    drawn = {tuple(rows[place]) for place in calibrating_rows(QueryPool(rows))}
    # Of 3,000 fair draws with chance 1/5; outside in a run of a million.
    low, high = binom(3000, 1 / CALIBRATING_PART).ppf([5e-7, 1 - 5e-7])
    assert low <= len(drawn) <= high
    some = rng.permutation(3000)[:1000]
    others = {tuple(rows[some][place]) for place in calibrating_rows(QueryPool(rows[some]))}
    assert others == drawn & {tuple(row) for row in rows[some]}
    assert abs(np.mean([row[0] for row in drawn])) < 5 / math.sqrt(len(drawn))


@pytest.mark.parametrize("method", SELECTION_METHODS)
def test_a_fifth_of_the_queries_calibrates_evenly_from_the_first_on(method: str) -> None:
    pool = QueryPool(np.random.default_rng(1).normal(size=(400, 3)))
    asked = choose_queries(
        pool, range(400), 100, method=method, rng=np.random.default_rng(2), calibrates=True
    )
    reserved = set(calibrating_rows(pool))
    assert len(set(asked)) == 100
    for many in (25, 50, 100):
        assert len(reserved.intersection(asked[:many])) == many // CALIBRATING_PART


def test_a_whole_pool_may_be_asked() -> None:
    pool = QueryPool(np.random.default_rng(1).normal(size=(60, 8)))
    asked = choose_queries(
        pool, range(60), 60, method="random", rng=np.random.default_rng(2), calibrates=True
    )
    assert sorted(asked) == list(range(60))


def test_a_student_sees_no_label_and_no_row_that_calibrates_it() -> None:
    pool = QueryPool(np.random.default_rng(1).normal(size=(50, 2)))
    known = dict.fromkeys(range(0, 50, 2), 1) | {1: 0}
    lesson = Lesson.of(pool, known, classes=2, facts=LabelFacts(), coverage=0.9)
    held = [row for row in calibrating_rows(pool) if row in known]
    assert lesson.held is not None
    assert len(lesson.held.labels) == len(held) > 0
    assert lesson.held.inputs.features.tolist() == pool.inputs[held].tolist()
    seen = {tuple(row) for row in lesson.pool.features}
    assert seen.isdisjoint({tuple(row) for row in pool.inputs[held]})
    assert len(lesson.pool) == 50 - len(held)
    taught = {
        tuple(row): label for row, label in zip(lesson.labeled.features, lesson.labels, strict=True)
    }
    assert taught == {tuple(pool.inputs[row]): known[row] for row in known if row not in held}


# Settings and files.


def made(**given: Any) -> RunSettings:
    return run_settings(DataSource("digits"), DEFAULT_SUITE, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"select": "least-confident"}, "least-confident"),
        ({"select": "cluster-votes"}, "cluster-votes"),
        ({"mechanism": "interactive-threshold"}, "interactive-threshold"),
        ({"coverage": 1.0}, "1"),
        ({"coverage": 0.2}, "0.5"),
    ],
    ids=str,
)
def test_settings_under_which_no_coverage_holds_are_refused(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidSettingError, match=said) as caught:
        made(**({"coverage": 0.9} | given)).check(FORMS)
    assert "--coverage" in str(caught.value)


@pytest.mark.parametrize(("queries", "is_enough"), [(44, False), (45, True)])
def test_too_few_queries_for_a_coverage_are_refused_before_they_are_asked(
    queries: int, is_enough: bool
) -> None:
    settings = made(mechanism="gnmax", sigma2=400.0, queries=queries, coverage=0.9)

    def resolve() -> None:
        resolve_for(settings, (50,) * 4, pool=100, classes=2, sums=FORMS)

    if is_enough:
        resolve()
        return
    with pytest.raises(InvalidSettingError) as caught:
        resolve()
    assert re.findall("[0-9.]+", caught.value.must) == ["0.9", "9", "45"]


def test_saved_sets_are_read_again_and_spoiled_ones_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pool = QueryPool(rng.normal(size=(200, 2)))
    known = {row: int(pool.inputs[row, 0] > 0) for row in range(200)}
    lesson = Lesson.of(pool, known, classes=2, facts=LabelFacts(), coverage=0.8)
    student = train_student("logistic", "table", lesson, rng=rng)
    student.save(tmp_path)
    assert read_student(tmp_path).sets == student.sets
    file = tmp_path / "student.json"
    kept = json.loads(file.read_text())
    for spoiled in (None, {}, [0.8], {"coverage": "0.8", "labels": 40, "least_chance": 0.1}):
        file.write_text(json.dumps(kept | {"sets": spoiled}))
        with pytest.raises(RunDirectoryError, match="sets"):
            read_student(tmp_path)
    for name, value in (("coverage", 1.5), ("labels", -1), ("least_chance", 2.0)):
        file.write_text(json.dumps(kept | {"sets": kept["sets"] | {name: value}}))
        with pytest.raises(RunDirectoryError, match="sets"):
            read_student(tmp_path)

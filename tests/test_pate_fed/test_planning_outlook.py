"""Whether federating is likely to pay, said before a run."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InvalidParameterError
from pate_fed.planning.outlook import DOUBTFUL, LIKELY, evidence, outlook

FACTS = {"votes": 100, "queries": 500, "sigma": 40.0, "classes": 2}


def rows(directions: int, *, copies: int = 1) -> np.ndarray:
    """Public rows that differ in so many directions, each feature repeated."""
    found = np.random.default_rng(0).normal(size=(4000, directions))
    return np.repeat(found, copies, axis=1)


def test_it_is_the_formula() -> None:
    pool = rows(8)
    assert evidence(pool, **FACTS) == pytest.approx(100**2 * 500 / 40**2 / 8, rel=0.02)  # type: ignore[arg-type]


def test_copied_features_are_no_new_directions() -> None:
    once, thrice = (evidence(rows(8, copies=n), **FACTS) for n in (1, 3))  # type: ignore[arg-type]
    assert once == pytest.approx(thrice)


@pytest.mark.parametrize(
    ("changed", "factor"),
    [
        ({"votes": 200}, 4.0),
        ({"queries": 1000}, 2.0),
        ({"sigma": 80.0}, 0.25),
        ({"classes": 3}, 0.5),
    ],
)
def test_more_votes_and_answers_tell_more_and_noise_and_classes_less(
    changed: dict[str, float], factor: float
) -> None:
    pool = rows(5)
    more = evidence(pool, **{**FACTS, **changed})  # type: ignore[arg-type]
    assert more == pytest.approx(factor * evidence(pool, **FACTS))  # type: ignore[arg-type]


NO, OPEN, GAIN = "xpect no gain", "uncertain", "Expect the student to beat the average"


@pytest.mark.parametrize(
    ("found", "records", "said"),
    [
        (DOUBTFUL - 0.1, None, NO),
        (DOUBTFUL, None, OPEN),
        (LIKELY - 0.1, 1, OPEN),
        (LIKELY, None, "at most 50 records each"),
        (LIKELY, 50, GAIN),
        (LIKELY, 51, OPEN),
        (1e6, 799, OPEN),
        (1e6, 800, NO),
        (DOUBTFUL - 0.1, 1, NO),
    ],
)
def test_words_follow_the_numbers(found: float, records: int | None, said: str) -> None:
    assert said in outlook(found, queries=400, records=records)


def test_a_gain_over_hospitals_without_records_is_none() -> None:
    assert NO in outlook(1e6, queries=79)
    assert NO not in outlook(1e6, queries=80)


@pytest.mark.parametrize("wrong", [{"votes": 0}, {"queries": 0}, {"sigma": 0.0}, {"classes": 1}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidParameterError):
        evidence(rows(3), **{**FACTS, **wrong})  # type: ignore[arg-type]


def test_equal_rows_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        evidence(np.ones((30, 3)), **FACTS)  # type: ignore[arg-type]

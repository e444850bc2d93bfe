"""Events: checked values that outlive the program that wrote them."""

from __future__ import annotations

import json
import math

import pytest

from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
    event_from_record,
)
from pate_fed.errors import InvalidParameterError

EVENTS = [
    pytest.param(GaussianMaxEvent(answers=30, sigma=7.2), id="gnmax"),
    pytest.param(
        ConfidentGaussianMaxEvent(asks=30, answers=20, sigma1=15.0, sigma2=0.1, weight=3.0),
        id="confident",
    ),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_json_exactly(event: PrivacyEvent) -> None:
    assert event_from_record(json.loads(json.dumps(event.as_record()))) == event


def test_records_of_old_ledgers_keep_their_meaning() -> None:
    old = {"event": "gaussian-max/1", "answers": 3, "sigma": 2.5, "weight": 1.0}
    assert event_from_record(old) == GaussianMaxEvent(3, 2.5, 1.0)
    old = {
        "event": "confident-gaussian-max/1",
        "asks": 4,
        "answers": 3,
        "sigma1": 9.0,
        "sigma2": 2.5,
        "weight": 2.0,
    }
    assert event_from_record(old) == ConfidentGaussianMaxEvent(4, 3, 9.0, 2.5, 2.0)


@pytest.mark.parametrize(
    "record",
    [
        pytest.param({}, id="empty"),
        pytest.param({"event": "gaussian-max/2", "answers": 1, "sigma": 1.0}, id="unknown name"),
        pytest.param({"event": ["gaussian-max/1"]}, id="name of another type"),
        pytest.param({"event": "gaussian-max/1", "answers": 1, "sigma": 1.0}, id="missing field"),
        pytest.param(
            {"event": "gaussian-max/1", "answers": 1, "sigma": 1.0, "weight": 1.0, "x": 1},
            id="unknown field",
        ),
        pytest.param(
            {"event": "gaussian-max/1", "answers": 1, "sigma": "1", "weight": 1.0},
            id="text for a number",
        ),
        pytest.param(
            {"event": "gaussian-max/1", "answers": True, "sigma": 1.0, "weight": 1.0},
            id="yes for a number",
        ),
        pytest.param(
            {"event": "gaussian-max/1", "answers": 1.0, "sigma": 1.0, "weight": 1.0},
            id="fractional type for a count",
        ),
    ],
)
def test_spoiled_records_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError):
        event_from_record(record)


@pytest.mark.parametrize(
    ("answers", "sigma", "weight"),
    [
        pytest.param(-1, 1.0, 1.0, id="negative answers"),
        pytest.param(1, 0.0, 1.0, id="sigma 0"),
        pytest.param(1, -1.0, 1.0, id="negative sigma"),
        pytest.param(1, math.inf, 1.0, id="infinite sigma"),
        pytest.param(1, math.nan, 1.0, id="sigma is no number"),
        pytest.param(1, 1.0, 0.0, id="weight 0"),
    ],
)
def test_gnmax_events_out_of_range_are_refused(answers: int, sigma: float, weight: float) -> None:
    with pytest.raises(InvalidParameterError):
        GaussianMaxEvent(answers, sigma, weight)


def test_more_answers_than_asks_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        ConfidentGaussianMaxEvent(asks=2, answers=3, sigma1=1.0, sigma2=1.0)


def test_a_reservation_covers_less_of_the_same_and_nothing_else() -> None:
    reserved = ConfidentGaussianMaxEvent(asks=10, answers=5, sigma1=9.0, sigma2=4.0)
    assert ConfidentGaussianMaxEvent(10, 5, 9.0, 4.0).is_covered_by(reserved)
    assert ConfidentGaussianMaxEvent(3, 0, 9.0, 4.0).is_covered_by(reserved)
    assert not ConfidentGaussianMaxEvent(11, 5, 9.0, 4.0).is_covered_by(reserved)
    assert not ConfidentGaussianMaxEvent(10, 6, 9.0, 4.0).is_covered_by(reserved)
    assert not ConfidentGaussianMaxEvent(3, 0, 9.5, 4.0).is_covered_by(reserved)
    assert not ConfidentGaussianMaxEvent(3, 0, 9.0, 4.0, 2.0).is_covered_by(reserved)
    assert not GaussianMaxEvent(1, 4.0).is_covered_by(reserved)
    assert GaussianMaxEvent(1, 4.0).is_covered_by(GaussianMaxEvent(2, 4.0))
    assert not GaussianMaxEvent(3, 4.0).is_covered_by(GaussianMaxEvent(2, 4.0))
    assert not reserved.is_covered_by(GaussianMaxEvent(100, 4.0))

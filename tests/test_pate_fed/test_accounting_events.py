"""Events: checked values that outlive the program that wrote them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    DistributedCountsEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    LaplaceMaxEvent,
    PrivacyEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
    event_from_record,
)
from pate_fed.errors import InvalidParameterError

EVENTS = [
    pytest.param(GaussianMaxEvent(asks=30, sigma=7.2), id="gnmax"),
    pytest.param(
        ConfidentGaussianMaxEvent(asks=30, answers=20, sigma1=15.0, sigma2=0.1, weight=3.0),
        id="confident",
    ),
    pytest.param(LaplaceMaxEvent(asks=30, gamma=0.05, weight=2.0), id="lnmax"),
    pytest.param(StableLaplaceMaxEvent(30, 0.2, 1e-8, 5.0), id="stable, Laplace test"),
    pytest.param(StableGaussianMaxEvent(30, 15.0, 1e-8), id="stable, Gaussian test"),
    pytest.param(ImmutableMaxEvent(asks=3), id="immutable"),
    pytest.param(DistributedGaussianMaxEvent(30, 7.2, 12, 3), id="gnmax, noise at the parties"),
    pytest.param(DistributedCountsEvent(3, 7.2, 12, 3), id="counts, noise at the parties"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_json_exactly(event: PrivacyEvent) -> None:
    assert event_from_record(json.loads(json.dumps(event.as_record()))) == event


def test_records_of_old_ledgers_keep_their_meaning() -> None:
    old = {"event": "gaussian-max/1", "asks": 3, "sigma": 2.5, "weight": 1.0}
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
        pytest.param({"event": "gaussian-max/2", "asks": 1, "sigma": 1.0}, id="unknown name"),
        pytest.param({"event": ["gaussian-max/1"]}, id="name of another type"),
        pytest.param({"event": "gaussian-max/1", "asks": 1, "sigma": 1.0}, id="missing field"),
        pytest.param(
            {"event": "gaussian-max/1", "asks": 1, "sigma": 1.0, "weight": 1.0, "x": 1},
            id="unknown field",
        ),
        pytest.param(
            {"event": "gaussian-max/1", "asks": 1, "sigma": "1", "weight": 1.0},
            id="text for a number",
        ),
        pytest.param(
            {"event": "gaussian-max/1", "asks": True, "sigma": 1.0, "weight": 1.0},
            id="yes for a number",
        ),
        pytest.param(
            {"event": "gaussian-max/1", "asks": 1.0, "sigma": 1.0, "weight": 1.0},
            id="fractional type for a count",
        ),
    ],
)
def test_spoiled_records_are_refused(record: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError):
        event_from_record(record)


@pytest.mark.parametrize(
    ("asks", "sigma", "weight"),
    [
        pytest.param(-1, 1.0, 1.0, id="negative asks"),
        pytest.param(1, 0.0, 1.0, id="sigma 0"),
        pytest.param(1, -1.0, 1.0, id="negative sigma"),
        pytest.param(1, math.inf, 1.0, id="infinite sigma"),
        pytest.param(1, math.nan, 1.0, id="sigma is no number"),
        pytest.param(1, 1.0, 0.0, id="weight 0"),
    ],
)
def test_gnmax_events_out_of_range_are_refused(asks: int, sigma: float, weight: float) -> None:
    with pytest.raises(InvalidParameterError):
        GaussianMaxEvent(asks, sigma, weight)


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


@pytest.mark.parametrize(
    ("reserved", "numbers"),
    [
        pytest.param(LaplaceMaxEvent(10, 0.1), {"gamma": 0.2}, id="lnmax"),
        pytest.param(StableLaplaceMaxEvent(10, 0.2, 1e-8), {"test_epsilon": 0.1}, id="Laplace"),
        pytest.param(StableGaussianMaxEvent(10, 9.0, 1e-8), {"test_delta": 1e-9}, id="Gaussian"),
        pytest.param(ImmutableMaxEvent(10), {}, id="immutable"),
    ],
)
def test_other_mechanisms_reserve_asks_of_the_same_kind(
    reserved: PrivacyEvent, numbers: dict[str, Any]
) -> None:
    assert replace(reserved, asks=10).is_covered_by(reserved)
    assert replace(reserved, asks=0).is_covered_by(reserved)
    assert not replace(reserved, asks=11).is_covered_by(reserved)
    assert not replace(reserved, weight=2.0).is_covered_by(reserved)
    assert not GaussianMaxEvent(1, 9.0).is_covered_by(reserved)
    if numbers:
        assert not replace(reserved, **numbers).is_covered_by(reserved)


def test_noise_at_the_parties_is_covered_by_the_same_noise_only() -> None:
    reserved = DistributedGaussianMaxEvent(5, 6.0, 7)
    assert DistributedGaussianMaxEvent(4, 6.0, 7).is_covered_by(reserved)
    for changed in ({"asks": 6}, {"sigma": 6.5}, {"shares": 6}, {"shares": 8}, {"weight": 2}):
        assert not replace(reserved, **changed).is_covered_by(reserved)
    # Gaussian noise at the coordinator is not discrete noise at the parties; counts are no labels.
    assert not GaussianMaxEvent(1, 6.0).is_covered_by(reserved)
    assert not reserved.is_covered_by(GaussianMaxEvent(5, 6.0))
    assert not DistributedCountsEvent(1, 6.0, 7).is_covered_by(reserved)


@pytest.mark.parametrize("test_delta", [0.0, 0.5, 1.0, math.nan])
def test_tests_of_stability_out_of_range_are_refused(test_delta: float) -> None:
    for make in (StableLaplaceMaxEvent, StableGaussianMaxEvent):
        with pytest.raises(InvalidParameterError):
            make(1, 1.0, test_delta)
        with pytest.raises(InvalidParameterError):
            make(1, 0.0, 1e-6)

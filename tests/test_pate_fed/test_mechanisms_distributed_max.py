"""Mechanisms with noise at the parties: rows, refusals, and a whole batch of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import DistributedGaussianMaxEvent, event_from_record
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.registry import SPECS, make_mechanism, specs_with
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.mechanisms.threshold_max import InteractiveThresholdMax, ThresholdMax
from pate_fed.opened_sums import open_noisy_sum
from pate_fed.releases import ABSTAIN, Outcome
from pate_fed.rule import PARAMETERS, Rule
from pate_fed.votes import NoisyHistogram, SummedHistogram, VoteHistogram

GNMAX = GaussianMax(sigma=6.0, shares=7)
THRESHOLD = ThresholdMax(6.0, vote_threshold=30.0, shares=7)
INTERACTIVE = InteractiveThresholdMax(6.0, vote_threshold=20.0, shares=7, confidence=0.8)
MECHANISMS = [
    pytest.param(mechanism, id=mechanism.name) for mechanism in (GNMAX, THRESHOLD, INTERACTIVE)
]
ORDERS = np.array([2.0, 8.0])


def noisy(rows: list[list[int]], sigma: float = 10.0) -> NoisyHistogram:
    return NoisyHistogram(np.array(rows, dtype=np.float64), sigma)


def test_every_mechanism_that_the_parties_can_add_noise_for_is_tested() -> None:
    assert {one.values[0].name for one in MECHANISMS} == set(specs_with("parties"))


def test_gnmax_answers_every_row_with_its_argmax_and_adds_nothing() -> None:
    release = GNMAX.label(noisy([[1, 5, 5], [-3, -2, -9], [7, 7, 0]]), max_answers=3)
    assert release.labels.tolist() == [1, 1, 0]
    assert release.answered == 3


def test_a_row_is_answered_from_its_largest_entry_if_that_reaches_the_threshold() -> None:
    release = THRESHOLD.label(noisy([[30, 0], [29, 29], [-50, 31], [40, 41]]), max_answers=9)
    assert release.labels.tolist() == [0, ABSTAIN, 1, 1]
    assert release.outcomes.tolist()[1] == Outcome.REFUSED


@pytest.mark.parametrize(
    ("threshold", "least"), [(29.2, 30), (30.0, 30), (-0.5, 0), (-(2.0**29), -50), (2.0**29, None)]
)
def test_whole_rows_reach_a_threshold_between_two_whole_numbers_at_the_next(
    threshold: float, least: int | None
) -> None:
    rule = replace(THRESHOLD, vote_threshold=threshold)
    for top in range(-50, 51):
        [label] = rule.label(noisy([[top, top - 1]]), max_answers=1).labels
        assert label == (0 if least is not None and top >= least else ABSTAIN)


def test_the_students_votes_are_taken_off_the_opened_row() -> None:
    asking = INTERACTIVE.with_predictions([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]], total_votes=40)
    # 39 - 36, 1 - 4; 39 - 4; 30 - 20: only the second reaches 20.
    release = asking.label(noisy([[39, 1], [39, 1], [30, 10]]), max_answers=9)
    assert release.labels.tolist() == [ABSTAIN, 0, ABSTAIN]
    assert asking.reinforced_labels(release).tolist() == [0, 0, ABSTAIN]
    with pytest.raises(InvalidParameterError):
        asking.label(noisy([[1, 2]]), max_answers=9)
    plain = INTERACTIVE.label(noisy([[20, 0], [19, 19]]), max_answers=9)
    assert plain.labels.tolist() == [0, ABSTAIN], "without a student nothing is taken off"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_row_is_opened_that_may_not_be_answered(mechanism: GaussianMax) -> None:
    with pytest.raises(InvalidParameterError, match=r"\b2\b"):
        mechanism.label(noisy([[1, 2]] * 3), max_answers=2)
    with pytest.raises(InvalidParameterError):
        mechanism.label(noisy([[1, 2]]), max_answers=-1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(tops=st.lists(st.integers(-50, 90), max_size=30), weight=st.integers(1, 4))
def test_what_is_opened_is_within_what_was_reserved(
    mechanism: GaussianMax, tops: list[int], weight: int
) -> None:
    rows = np.array([[top, 0] for top in tops], dtype=np.float64).reshape(-1, 2)
    release = mechanism.label(NoisyHistogram(rows, 10.0), max_answers=len(rows))
    assert release.asked == len(rows), "every opened row is decided on, and paid for"
    assert SPECS[mechanism.name].may_refuse or not release.refused
    charged = mechanism.event(release.asked, release.answered, weight=weight)
    reserved = mechanism.worst_case_event(len(rows), len(rows), weight=weight)
    assert charged == reserved == DistributedGaussianMaxEvent(len(rows), 6.0, 7, weight)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_with_less_noise_than_was_promised_are_refused(mechanism: GaussianMax) -> None:
    narrow = noisy([[40, 0]], sigma=math.nextafter(mechanism.sigma, 0.0))
    with pytest.raises(InvalidParameterError, match="noise"):
        mechanism.label(narrow, max_answers=1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_events_survive_json_cost_what_they_cover_and_take_whole_weights_only(
    mechanism: GaussianMax,
) -> None:
    event = mechanism.worst_case_event(7, 7, weight=3.0)
    assert event_from_record(json.loads(json.dumps(event.as_record()))) == event
    less = mechanism.worst_case_event(6, 6, weight=3.0)
    assert less.is_covered_by(event)
    assert not event.is_covered_by(less)
    assert not mechanism.worst_case_event(6, 6, weight=2.0).is_covered_by(event)
    assert (event_rdp(less, ORDERS) < event_rdp(event, ORDERS)).all()
    assert not event_rdp(mechanism.worst_case_event(0, 0), ORDERS).any()
    for wrong in (2.5, 0.0, -1.0):
        with pytest.raises(InvalidParameterError):
            mechanism.event(1, 1, weight=wrong)
    with pytest.raises(InvalidParameterError):
        mechanism.event(2, 3)


AT_PARTIES: dict[str, Any] = {"noise_place": "parties", "colluders": 1, "dropouts": 0}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_guarantee_and_parameters_are_written_down(mechanism: GaussianMax) -> None:
    assert "Guarantee:" in (type(mechanism).__doc__ or "")
    parameters = mechanism.parameters()
    assert parameters["shares"] == 7
    json.dumps(parameters, allow_nan=False)
    given: dict[str, Any] = {name: parameters.get(name) for name in PARAMETERS}
    rule = Rule(mechanism.name, **given, **AT_PARTIES)
    assert make_mechanism(rule, parties=8) == mechanism


def test_mechanisms_that_others_add_no_noise_for_are_refused() -> None:
    rule = Rule("", 9.0, 6.0, 6.0, test_delta=1e-6, **AT_PARTIES)
    for name in ("lnmax", "immutable", "stable-gaussian", "confident", "interactive", "nonsense"):
        with pytest.raises(InvalidParameterError, match=f"{name}$"):
            make_mechanism(replace(rule, mechanism=name), parties=8, simulated=True)
    with pytest.raises(InvalidParameterError, match="given"):
        make_mechanism(Rule("threshold", sigma2=6.0, **AT_PARTIES), parties=8)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_noise_is_added_in_one_place_only(mechanism: GaussianMax) -> None:
    with pytest.raises(InvalidParameterError, match="coordinator"):
        mechanism.release(
            SummedHistogram(np.array([[40, 0]]), total_votes=40),
            noise=CoordinatorNoise(),
            random_bytes=keyed_stream(b"s", tag="t"),
            max_answers=1,
        )
    with pytest.raises(InvalidParameterError, match="parties"):
        replace(mechanism, shares=None).label(noisy([[40, 0]]), max_answers=1)


@pytest.mark.parametrize(
    "changed",
    [{"sigma": 2.6}, {"sigma": 0.0}, {"shares": 0}, {"vote_threshold": math.nan}],
    ids=str,
)
def test_mechanisms_out_of_range_are_refused(changed: dict[str, float]) -> None:
    good = {"sigma": 6.0, "vote_threshold": 30.0, "shares": 7}
    with pytest.raises(InvalidParameterError):
        ThresholdMax(**{**good, **changed})  # type: ignore[arg-type]


def test_a_whole_batch_runs_from_votes_to_labels() -> None:
    """Eight parties, one opened row for each query; the clean sum is made nowhere."""
    parties, classes, teachers, queries = 8, 3, 25, 20
    mechanism = ThresholdMax(6.0, vote_threshold=120.0, shares=parties - 1)
    clear, split = np.array([22, 2, 1]), np.array([9, 8, 8])
    votes = VoteHistogram(np.array([clear, split] * (queries // 2)))
    stream = keyed_stream(b"one phase", tag="parties")
    noise = DistributedNoise(mechanism.sigma, parties, 1, 0)
    total = np.zeros((queries, classes), dtype=np.int64)
    for _ in range(parties):
        share = noise.draw(queries, classes, random_bytes=stream)
        total += share.add_to(votes).counts
    opened = open_noisy_sum(
        total.ravel(),
        queries=queries,
        classes=classes,
        total_votes=parties * teachers,
        sigma=noise.sum_sigma(parties),
        row_sum_bound=noise.row_sum_bound(queries, classes, senders=parties),
    )
    release = mechanism.label(opened, max_answers=queries)
    # 176 votes pass 120, 72 do not, with noise of 6.4.
    assert release.labels.tolist() == [0, ABSTAIN] * (queries // 2)


def test_events_refuse_what_the_mechanisms_refuse() -> None:
    for make in (
        lambda: DistributedGaussianMaxEvent(1, 2.6, 7),
        lambda: DistributedGaussianMaxEvent(-1, 6.0, 7),
        lambda: DistributedGaussianMaxEvent(1, 6.0, 7, 0),
    ):
        with pytest.raises(InvalidParameterError):
            make()

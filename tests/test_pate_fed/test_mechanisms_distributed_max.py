"""Mechanisms with noise at the parties: phases, caps, refusals, and a whole run of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pate_fed.mechanisms.first_phase import FirstPhase

from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import (
    DistributedConfidentMaxEvent,
    DistributedGaussianMaxEvent,
    event_from_record,
)
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.gaussian_max import ConfidentGaussianMax, GaussianMax
from pate_fed.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.mechanisms.mechanism import Options
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.registry import USUAL_AT_PARTIES, make_mechanism, specs_with
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.releases import ABSTAIN, Outcome
from pate_fed.votes import NoisyHistogram, SummedHistogram, VoteHistogram, open_noisy_sum

GNMAX = GaussianMax(sigma=6.0, shares=7)
CONFIDENT = ConfidentGaussianMax(vote_threshold=30.0, sigma1=9.0, sigma2=6.0, shares=7)
INTERACTIVE = InteractiveGaussianMax(20.0, 9.0, 6.0, shares=7, confidence=0.8)
MECHANISMS = [
    pytest.param(mechanism, id=mechanism.name) for mechanism in (GNMAX, CONFIDENT, INTERACTIVE)
]
ORDERS = np.array([2.0, 8.0])


def noisy(rows: list[list[int]], sigma: float = 10.0) -> NoisyHistogram:
    return NoisyHistogram(np.array(rows, dtype=np.float64), sigma)


def decide(mechanism: ConfidentGaussianMax | GaussianMax, rows: NoisyHistogram) -> object:
    if isinstance(mechanism, ConfidentGaussianMax):
        return mechanism.phase_one(rows, max_answers=1, max_refusals=1)
    return mechanism.label(rows, max_answers=1)


# GNMax ------------------------------------------------------------------------------------------


def test_gnmax_answers_every_row_with_its_argmax_and_adds_nothing() -> None:
    release = GNMAX.label(noisy([[1, 5, 5], [-3, -2, -9], [7, 7, 0]]), max_answers=3)
    assert release.labels.tolist() == [1, 1, 0]
    assert release.answered == 3


def test_gnmax_opens_no_row_that_it_may_not_answer() -> None:
    with pytest.raises(InvalidParameterError, match="at most 2 rows"):
        GNMAX.label(noisy([[1, 2]] * 3), max_answers=2)


# Two phases -------------------------------------------------------------------------------------


def test_a_row_passes_by_its_largest_entry_and_is_labeled_from_another() -> None:
    first = CONFIDENT.phase_one(
        noisy([[30, 0], [29, 29], [-50, 31]]), max_answers=9, max_refusals=9
    )
    assert first.outcomes.tolist() == [Outcome.ANSWERED, Outcome.REFUSED, Outcome.ANSWERED]
    assert first.passed.tolist() == [0, 2]
    # The second row decides alone, whatever the first looked like.
    release = CONFIDENT.phase_two(first, noisy([[1, 2], [8, 8]]))
    assert release.labels.tolist() == [1, ABSTAIN, 0]
    assert release.outcomes.tolist() == first.outcomes.tolist()


def test_the_second_phase_opens_the_rows_that_passed_and_no_others() -> None:
    first = CONFIDENT.phase_one(noisy([[30, 0], [0, 0]]), max_answers=9, max_refusals=9)
    for rows in ([], [[1, 2]] * 2):
        with pytest.raises(InvalidParameterError):
            CONFIDENT.phase_two(first, NoisyHistogram(np.reshape(rows, (-1, 2)), 10.0))


def test_after_the_last_allowed_outcome_nothing_passes() -> None:
    rows = [[40, 0], [0, 0], [40, 0], [0, 0], [40, 0]]
    first = CONFIDENT.phase_one(noisy(rows[:4]), max_answers=2, max_refusals=3)
    assert first.outcomes.tolist()[3] == Outcome.NOT_ASKED
    # Five rows are more than 2 answers and 3 refusals can look at.
    with pytest.raises(InvalidParameterError, match="at most 4 rows"):
        CONFIDENT.phase_one(noisy(rows), max_answers=2, max_refusals=3)


@given(
    passes=st.lists(st.booleans(), max_size=30),
    max_answers=st.integers(0, 12),
    max_refusals=st.integers(0, 12),
    weight=st.integers(1, 4),
)
def test_what_is_opened_is_within_what_was_reserved(
    passes: list[bool], max_answers: int, max_refusals: int, weight: int
) -> None:
    caps = {"max_answers": max_answers, "max_refusals": max_refusals}
    asks, answers = CONFIDENT.caps(len(passes), **caps)
    rows = np.array([[40.0 * passed, 0.0] for passed in passes[:asks]]).reshape(-1, 2)
    first = CONFIDENT.phase_one(NoisyHistogram(rows, 10.0), **caps)
    assert first.opened == asks
    assert len(first.passed) <= answers
    release = CONFIDENT.phase_two(first, NoisyHistogram(rows[first.passed], 10.0))
    assert release.answered == len(first.passed) <= max_answers
    assert release.refused <= max_refusals
    # Rows that a cap cut off were opened all the same, and are charged.
    charged = CONFIDENT.event(first.opened, len(first.passed), weight=weight)
    assert charged.is_covered_by(CONFIDENT.worst_case_event(asks, answers, weight=weight))


def test_a_first_phase_is_bound_to_its_outcomes() -> None:
    outcomes = np.array([Outcome.ANSWERED, Outcome.REFUSED])
    digests = {FirstPhase(x).digest for x in (outcomes, outcomes[::-1], outcomes[:1])}
    assert len(digests) == 3
    assert FirstPhase(outcomes).digest == FirstPhase(outcomes.astype(np.int8)).digest
    for wrong in ([5], [[0]], [Outcome.NOT_ASKED, Outcome.ANSWERED]):
        with pytest.raises(InvalidParameterError):
            FirstPhase(np.array(wrong))


# A student --------------------------------------------------------------------------------------


def test_the_students_votes_are_taken_off_the_opened_row() -> None:
    asking = INTERACTIVE.with_predictions([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]], total_votes=40)
    rows = noisy([[39, 1], [39, 1], [30, 10]])
    first = asking.phase_one(rows, max_answers=9, max_refusals=9)
    # 39 - 36, 1 - 4; 39 - 4; 30 - 20: only the second reaches 20.
    assert first.outcomes.tolist() == [Outcome.REFUSED, Outcome.ANSWERED, Outcome.REFUSED]
    release = asking.phase_two(first, noisy([[9, 3]]))
    assert asking.reinforced_labels(release).tolist() == [0, 0, ABSTAIN]


def test_without_a_student_it_is_the_confident_check() -> None:
    rows = noisy([[20, 0], [19, 19]])
    first = INTERACTIVE.phase_one(rows, max_answers=9, max_refusals=9)
    assert first.passed.tolist() == [0]
    assert INTERACTIVE.event(5, 3) == DistributedConfidentMaxEvent(5, 3, 9.0, 6.0, 7)


def test_predictions_must_fit_the_opened_rows() -> None:
    asking = INTERACTIVE.with_predictions([[0.9, 0.1]], total_votes=40)
    with pytest.raises(InvalidParameterError):
        asking.phase_one(noisy([[1, 2], [3, 4]]), max_answers=9, max_refusals=9)
    with pytest.raises(InvalidParameterError):
        InteractiveGaussianMax(20.0, 9.0, 6.0, shares=7, confidence=1.5)


# All of them ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_with_less_noise_than_was_promised_are_refused(
    mechanism: ConfidentGaussianMax | GaussianMax,
) -> None:
    narrow = noisy([[40, 0]], sigma=math.nextafter(mechanism.phase_sigmas[0], 0.0))
    with pytest.raises(InvalidParameterError, match="noise must be of at least"):
        decide(mechanism, narrow)
    first = CONFIDENT.phase_one(noisy([[40, 0]]), max_answers=1, max_refusals=1)
    with pytest.raises(InvalidParameterError):
        CONFIDENT.phase_two(first, noisy([[1, 2]], sigma=5.9))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_events_survive_json_cost_what_they_cover_and_take_whole_weights_only(
    mechanism: ConfidentGaussianMax | GaussianMax,
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


def test_guarantee_and_parameters_are_written_down() -> None:
    mechanism = GNMAX
    assert "Guarantee:" in (type(mechanism).__doc__ or "")
    parameters = mechanism.parameters()
    assert parameters["shares"] == 7
    json.dumps(parameters, allow_nan=False)
    options = {name: parameters[name] for name in parameters if name != "name"}
    assert make_mechanism(mechanism.name, Options(**options)) == mechanism  # type: ignore[arg-type]


def test_mechanisms_that_others_add_no_noise_for_are_refused() -> None:
    assert USUAL_AT_PARTIES in specs_with("parties")
    options = Options(sigma1=6.0, sigma2=6.0, test_delta=1e-6, shares=7)
    for name in ("lnmax", "immutable", "stable-gaussian", "confident", "interactive", "nonsense"):
        with pytest.raises(InvalidParameterError, match="one of"):
            make_mechanism(name, options, simulated=True)
    with pytest.raises(InvalidParameterError, match="must be given"):
        make_mechanism("gnmax", Options(shares=7))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_noise_is_added_in_one_place_only(mechanism: ConfidentGaussianMax | GaussianMax) -> None:
    summed = SummedHistogram(np.array([[40, 0]]), total_votes=40)
    with pytest.raises(InvalidParameterError, match="the coordinator's to add"):
        mechanism.release(
            summed,
            noise=NoisePlan(),
            random_bytes=keyed_stream(b"s", tag="t"),
            max_answers=1,
            max_refusals=1,
        )
    here = replace(mechanism, shares=None)
    with pytest.raises(InvalidParameterError, match="the parties' to add"):
        decide(here, noisy([[40, 0]]))


@pytest.mark.parametrize(
    "changed",
    [
        {"sigma1": 2.6},
        {"sigma2": 2.6},
        {"sigma2": 0.0},
        {"shares": 0},
        {"vote_threshold": math.nan},
    ],
    ids=str,
)
def test_mechanisms_out_of_range_are_refused(changed: dict[str, float]) -> None:
    good = {"vote_threshold": 30.0, "sigma1": 9.0, "sigma2": 6.0, "shares": 7}
    with pytest.raises(InvalidParameterError):
        ConfidentGaussianMax(**{**good, **changed})


def test_a_whole_batch_of_two_phases_runs_from_votes_to_labels() -> None:
    """Eight parties, two phases with noise of their own; the clean sum is made nowhere."""
    parties, classes, teachers = 8, 3, 25
    mechanism = ConfidentGaussianMax(120.0, 9.0, 6.0, shares=parties - 1)
    clear = np.array([22, 2, 1])
    split = np.array([9, 8, 8])
    votes = [VoteHistogram(np.array([clear, split] * 10)) for _ in range(parties)]
    stream = keyed_stream(b"two phases", tag="parties")

    def opened_rows(phase: int, rows: list[int]) -> NoisyHistogram:
        noise = DistributedNoise(mechanism.phase_sigmas[phase], parties, 1, 0)
        total = np.zeros((len(rows), classes), dtype=np.int64)
        for party in votes:
            share = noise.draw(len(rows), classes, random_bytes=stream)
            total += share.add_to(VoteHistogram(party.counts[rows])).counts
        return open_noisy_sum(
            total.ravel(),
            queries=len(rows),
            classes=classes,
            total_votes=parties * teachers,
            sigma=noise.sum_sigma(parties),
            row_sum_bound=noise.row_sum_bound(len(rows), classes, senders=parties),
        )

    caps = {"max_answers": 20, "max_refusals": 20}
    asks, _ = mechanism.caps(20, **caps)
    first = mechanism.phase_one(opened_rows(0, list(range(asks))), **caps)
    release = mechanism.phase_two(first, opened_rows(1, first.passed.tolist()))
    # 176 votes pass 120, 72 do not, with noise of 9.6.
    assert first.passed.tolist() == list(range(0, 20, 2))
    assert release.labels.tolist() == [0, ABSTAIN] * 10


def test_events_refuse_what_the_mechanisms_refuse() -> None:
    for make in (
        lambda: DistributedGaussianMaxEvent(1, 2.6, 7),
        lambda: DistributedGaussianMaxEvent(-1, 6.0, 7),
        lambda: DistributedGaussianMaxEvent(1, 6.0, 7, 0),
        lambda: DistributedConfidentMaxEvent(2, 3, 9.0, 6.0, 7),
        lambda: DistributedConfidentMaxEvent(2, 1, 2.6, 6.0, 7),
    ):
        with pytest.raises(InvalidParameterError):
            make()

"""What every mechanism keeps to: caps, prices, ties, prefixes, noise. One class, all forms."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.curves import event_approximate_rdp
from pate_fed.accounting.events import event_from_record
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.lab.mechanisms.immutable_max import ImmutableMax
from pate_fed.lab.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.lab.mechanisms.noisy_counts import NoisyCounts
from pate_fed.lab.per_instance import instance_rdp
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.gaussian_max import GaussianMax
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.mechanism import Mechanism
from pate_fed.mechanisms.registry import SPECS
from pate_fed.mechanisms.sampling import RandomBytes, keyed_stream
from pate_fed.mechanisms.stable_max import StableGaussianMax, StableLaplaceMax
from pate_fed.mechanisms.threshold_max import InteractiveThresholdMax, ThresholdMax
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.rule import Rule
from pate_fed.votes import SummedHistogram
from tests.support.noise_sources import CountingSource

NO_CAP = 10**9
ORDERS = np.array([1.5, 2.0, 8.0, 32.0])
ROW = [60, 20, 20]


def released(
    mechanism: Mechanism,
    counts: list[list[int]] | NDArray[np.int64],
    random_bytes: RandomBytes,
    *,
    max_answers: int = NO_CAP,
) -> NoisyRelease:
    rows = np.asarray(counts, dtype=np.int64)
    return mechanism.release(
        SummedHistogram(rows, total_votes=int(rows[0].sum())),
        noise=CoordinatorNoise(),
        random_bytes=random_bytes,
        max_answers=max_answers,
    )


class MechanismContract:
    """Inherited by one class per mechanism, which says what it is and whether it may refuse."""

    mechanism: Mechanism
    may_refuse: bool

    # Every form runs this test as its own: that is what a contract is.
    @settings(suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])
    @given(
        seed=st.binary(min_size=1, max_size=8),
        queries=st.integers(1, 40),
        max_answers=st.integers(0, 20),
    )
    def test_the_cap_is_kept_and_what_is_spent_was_reserved(
        self, seed: bytes, queries: int, max_answers: int
    ) -> None:
        stream = keyed_stream(seed, tag="caps")
        outcome = released(self.mechanism, [ROW] * queries, stream, max_answers=max_answers)
        # Without refusals a run asks as often as it may answer.
        asks = queries * (max_answers > 0) if self.may_refuse else min(queries, max_answers)
        answers = min(asks, max_answers)
        assert outcome.asked <= asks
        assert outcome.answered <= answers
        assert self.may_refuse or not outcome.refused
        not_asked = outcome.outcomes == Outcome.NOT_ASKED
        assert not not_asked[: outcome.asked].any()
        assert not_asked[outcome.asked :].all()
        if outcome.asked < queries:  # it ends with its last allowed answer, and only then
            assert outcome.answered == max_answers
            assert not max_answers or outcome.outcomes[outcome.asked - 1] == Outcome.ANSWERED
        spent = self.mechanism.event(outcome.asked, outcome.answered)
        reserved = self.mechanism.worst_case_event(asks, answers)
        assert spent.is_covered_by(reserved)
        assert not reserved.is_covered_by(spent) or spent == reserved
        costs = [event_approximate_rdp(event, ORDERS) for event in (spent, reserved)]
        assert (costs[0] <= costs[1]).all()

    def test_labels_are_classes_and_the_same_bytes_give_the_same_release(self) -> None:
        first, again = (
            released(self.mechanism, [ROW] * 50, keyed_stream(b"s", tag="t")) for _ in range(2)
        )
        assert first.digest == again.digest
        answered = first.labels[first.outcomes == Outcome.ANSWERED]
        assert ((answered >= 0) & (answered < len(ROW))).all()
        other = released(self.mechanism, [ROW] * 50, keyed_stream(b"other", tag="t"))
        assert (other.digest != first.digest) == SPECS[self.mechanism.name].is_private

    def test_nothing_after_the_stop_influences_the_release(self) -> None:
        counts = np.tile(np.array(ROW), (30, 1))
        outcome = released(self.mechanism, counts, keyed_stream(b"s", tag="t"), max_answers=3)
        assert outcome.asked < 30
        changed = counts.copy()
        changed[outcome.asked :] = [0, 0, 100]
        again = released(self.mechanism, changed, keyed_stream(b"s", tag="t"), max_answers=3)
        assert again.digest == outcome.digest

    def test_clear_ties_go_to_the_lowest_class(self) -> None:
        # So much more than the noise that only the tie is left open.
        labels = released(self.mechanism, [[0, 10**6, 0]] * 20, keyed_stream(b"s", tag="t")).labels
        assert set(labels.tolist()) == {1}

    def test_every_query_draws_noise_of_its_own(self) -> None:
        source = CountingSource(keyed_stream(b"s", tag="t"))
        released(self.mechanism, [ROW] * 10, source)
        assert sum(source.calls) >= 10 * 8

    def test_an_event_survives_json_and_has_a_price(self) -> None:
        event = self.mechanism.worst_case_event(7, 7)
        assert event_from_record(json.loads(json.dumps(event.as_record()))) == event
        accountant = RenyiAccountant()
        accountant.compose(event)
        assert (
            np.isfinite(accountant.get_converted(1e-3).epsilon)
            == SPECS[self.mechanism.name].is_private
        )
        nothing = event_approximate_rdp(self.mechanism.worst_case_event(0, 0), ORDERS)
        assert not nothing.any()

    def test_more_queries_never_cost_less(self) -> None:
        costs = [
            event_approximate_rdp(self.mechanism.worst_case_event(n, n), ORDERS) for n in (1, 2, 5)
        ]
        assert (costs[0] <= costs[1]).all()
        assert (costs[1] <= costs[2]).all()
        assert (costs[0] > 0).all()

    def test_the_cost_on_any_votes_is_at_most_that_on_all_or_infinite(self) -> None:
        counts = np.array([[600, 2, 2], [300, 204, 100]])
        outcomes = np.array([Outcome.ANSWERED] * 2, dtype=np.int8)
        bound = instance_rdp(self.mechanism, counts, outcomes, ORDERS, weight=1.0)
        formal = event_approximate_rdp(self.mechanism.event(2, 2), ORDERS)
        assert bound.shape == ORDERS.shape
        assert (bound >= 0).all()
        assert (bound <= formal * (1 + 1e-12)).all()

    def test_parameters_name_the_mechanism_and_are_json(self) -> None:
        parameters = self.mechanism.parameters()
        assert {"name", "vote_threshold", "sigma1", "sigma2"} <= parameters.keys()
        assert parameters["name"] == self.mechanism.name
        assert self.mechanism.name in SPECS
        json.dumps(parameters, allow_nan=False)

    def test_its_guarantee_is_written_down(self) -> None:
        text = type(self.mechanism).__doc__ or ""
        assert "Guarantee:" in text

    def test_a_negative_cap_is_refused(self) -> None:
        with pytest.raises(InvalidParameterError):
            released(self.mechanism, [ROW], keyed_stream(b"s", tag="t"), max_answers=-1)
        with pytest.raises(InvalidParameterError):
            self.mechanism.event(-1, -1)

    def test_more_answers_than_asks_are_refused(self) -> None:
        with pytest.raises(InvalidParameterError):
            self.mechanism.event(2, 3)

    def test_an_empty_batch_releases_nothing(self) -> None:
        empty = np.zeros((0, 3), dtype=np.int64)
        outcome = self.mechanism.release(
            SummedHistogram(empty, total_votes=10),
            noise=CoordinatorNoise(),
            random_bytes=keyed_stream(b"s", tag="t"),
            max_answers=3,
        )
        assert len(outcome) == 0


class TestGaussianMax(MechanismContract):
    mechanism = GaussianMax(sigma=20.0)
    may_refuse = False


class TestThresholdMax(MechanismContract):
    mechanism = ThresholdMax(20.0, vote_threshold=60.0)
    may_refuse = True


class TestInteractiveThresholdMaxWithoutStudent(MechanismContract):
    mechanism = InteractiveThresholdMax(20.0, vote_threshold=60.0)
    may_refuse = True


class TestConfidentGaussianMax(MechanismContract):
    mechanism = ConfidentGaussianMax(Rule("confident", 60.0, 15.0, 20.0))
    may_refuse = True


class TestInteractiveGaussianMaxWithoutStudent(MechanismContract):
    mechanism = InteractiveGaussianMax(Rule("interactive", 60.0, 15.0, 20.0))
    may_refuse = True


class TestLaplaceMax(MechanismContract):
    mechanism = LaplaceMax(gamma=0.05)
    may_refuse = False


class TestStableGaussianMax(MechanismContract):
    mechanism = StableGaussianMax(test_delta=1e-6, sigma=4.0)
    may_refuse = True


class TestStableLaplaceMax(MechanismContract):
    mechanism = StableLaplaceMax(test_delta=1e-6, test_epsilon=0.7)
    may_refuse = True


class TestNoisyCounts(MechanismContract):
    mechanism = NoisyCounts(20.0)
    may_refuse = False


class TestImmutableMax(MechanismContract):
    mechanism = ImmutableMax(gamma=0.05)
    may_refuse = False


def test_every_mechanism_keeps_to_the_contract() -> None:
    tested = {form.mechanism.name for form in MechanismContract.__subclasses__()}
    assert tested == set(SPECS)

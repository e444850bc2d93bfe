"""Charging and prices: no step of a run exceeds a cap, and its caps have one cost."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from pate_fed.accounting import (
    NO_OUTCOMES,
    ConfidentGaussianMaxEvent,
    DistributedGaussianMaxEvent,
    EntryState,
    GaussianMaxEvent,
    Outcomes,
    PrivacyLedger,
    RenyiAccountant,
    convert_curve,
    gdp_epsilon,
    label_level_epsilon,
    label_rdp,
    threshold_bit_rdp,
)
from pate_fed.accounting.costs import (
    GDP_METHOD,
    NO_BOUND_METHOD,
    PUBLIC_VIEW,
    RUNS_METHOD,
    SERIES_METHOD,
)
from pate_fed.accounting.formal_cost import gdp_cost, labels_cost
from pate_fed.charges import (
    RunLedger,
    charge_of,
    lifelong_charge,
    mechanism_of,
    outcomes_of,
    whole_charge,
)
from pate_fed.errors import (
    InvalidParameterError,
    LedgerError,
    OutcomeCapError,
    PateFedError,
)
from pate_fed.mechanisms import InteractiveThresholdMax, ThresholdMax
from pate_fed.planning.budgets import budget_share, share_for_life, tightest_cost
from pate_fed.prices import (
    are_counts_seen,
    charged_price,
    most_exposed,
    public_price,
    removal_price,
    run_price,
)
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.series import delta_of_series, order_of_series, price_of_runs, price_of_series
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights
from tests.support.exact_argmax import histograms, renyi_divergence
from tests.support.markers import sampled
from tests.support.rules import run_terms
from tests.support.threshold_law import threshold_log_law
from tests.support.ties import tied_epsilon, tied_laws

DIGEST = bytes(range(32))
DELTA = 1e-5

THRESHOLD: dict[str, Any] = {"mechanism": "threshold", "vote_threshold": 150.0, "sigma2": 40.0}
GNMAX: dict[str, Any] = {"mechanism": "gnmax", "sigma2": 40.0, "max_answers": 90}
CONFIDENT: dict[str, Any] = {**THRESHOLD, "mechanism": "confident", "sigma1": 50.0}
INTERACTIVE: dict[str, Any] = {
    **THRESHOLD,
    "mechanism": "interactive-threshold",
    "confidence": 0.9,
}
LAPLACE: dict[str, Any] = {"mechanism": "lnmax", "sigma2": 200.0, "max_answers": 90}
STABLE: dict[str, Any] = {"mechanism": "stable-gaussian", "sigma1": 40.0, "test_delta": 1e-8}
IMMUTABLE: dict[str, Any] = {"mechanism": "immutable", "sigma2": 5.0, "max_answers": 90}
COUNTS: dict[str, Any] = {"mechanism": "counts", "sigma2": 40.0, "max_answers": 90}
AT_PARTIES: dict[str, Any] = {"noise_place": "parties", "colluders": 1, "dropouts": 0}
MIXED: dict[str, Any] = {
    "weights": ((1,) * 100, (2,) * 50, (1,) * 40 + (5,) * 2),
    "budgets": (1.2, 1.7, 3.0),
}


def terms(**changed: Any) -> RunTerms:
    """Terms of a run of Threshold-GNMax with 250 teachers at three hospitals."""
    given_ = changed if "mechanism" in changed else {**THRESHOLD, **changed}
    weights = given_.get("weights", ((1,) * 84, (1,) * 83, (1,) * 83))
    fields: dict[str, Any] = {
        "name": "run",
        "pool_digest": bytes(32),
        "task_digest": bytes(32),
        "classes": 2,
        "unit": "record",
        "max_asks": 90,
        "max_answers": 60,
        "budgets": (2.0,) * len(weights),
        "delta": DELTA,
    }
    held = tuple(TeacherWeights.of(party) for party in weights)
    return run_terms(**{**fields, **given_, "weights": held})


def gnmax(sigma: float, asks: int, **changed: Any) -> RunTerms:
    """Terms of a run that answers every query."""
    return terms(mechanism="gnmax", sigma2=sigma, max_asks=asks, max_answers=asks, **changed)


# The ledger of a run, in any order --------------------------------------------------------------

RUNS = {
    "gnmax": terms(**GNMAX),
    "threshold": terms(),
    "threshold, every ask may be answered": terms(max_answers=90),
    "interactive": terms(**INTERACTIVE),
    "noise at the parties": terms(**AT_PARTIES),
    "gnmax, noise at the parties": terms(**GNMAX, **AT_PARTIES),
    "weights": terms(unit="party", **MIXED),
    "Laplace": terms(**LAPLACE),
    "tests of stability": terms(**STABLE),
    "next to no caps": terms(max_asks=3, max_answers=1),
}


def total(counted: list[Outcomes]) -> tuple[int, int]:
    return sum(each.asks for each in counted), sum(each.answers for each in counted)


class ChargingMachine(RuleBasedStateMachine):
    """Drives a run's ledger by all that a coordinator can do, a hostile one included.

    It keeps books of its own: what all parties count against the caps, and what this party's own
    votes went into.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[Outcomes] = []
        self.own: list[Outcomes] = []
        self.held: dict[str, Outcomes] = {}
        self.names = 0

    @initialize(run=st.sampled_from(sorted(RUNS)), at_party=st.booleans())
    def begin(self, run: str, *, at_party: bool) -> None:
        self.run, self.at_party = RUNS[run], at_party
        self.ledger = RunLedger.of(self.run, at_party=at_party)

    def name(self) -> str:
        self.names += 1
        return f"batch {self.names}"

    def one_held(self, data: st.DataObject) -> tuple[str, Outcomes]:
        name = data.draw(st.sampled_from(sorted(self.held)))
        return name, self.held.pop(name)

    def drawn(self, data: st.DataObject, most: Outcomes) -> Outcomes:
        asks = data.draw(st.integers(0, most.asks))
        return Outcomes(asks, data.draw(st.integers(0, min(asks, most.answers))))

    @rule(queries=st.integers(1, 40))
    def reserve(self, queries: int) -> None:
        before, name = self.ledger, self.name()
        try:
            worst = before.worst_case(queries)
            self.ledger = before.reserve(name, worst)
        except PateFedError:
            assert self.ledger is before
            self.refusal_was_needed(queries)
        else:
            self.held[name] = worst

    def refusal_was_needed(self, queries: int) -> None:
        """A ledger that refuses everything would be safe, too."""
        held = list(self.held.values())
        for books in (self.counted, *([self.own] if self.at_party else [])):
            asks, answers = total([*books, *held])
            if asks + queries > self.run.caps.most.asks or answers >= self.run.caps.most.answers:
                return
            if answers + queries > self.run.caps.most.answers:
                return
        raise AssertionError("a batch was refused that fits both books")

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name, held = self.one_held(data)
        released = self.drawn(data, held)
        self.ledger = self.ledger.commit(name, released, DIGEST)
        self.counted.append(released)
        # No query comes back, whatever the coordinator says that it looked at.
        self.own.append(replace(released, asks=held.asks))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def more_than_was_reserved_is_refused(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        held, before = self.held[name], self.ledger
        with pytest.raises(LedgerError):
            before.commit(name, Outcomes(held.asks + 1, 0), DIGEST)
        with pytest.raises(LedgerError):
            before.commit(name, Outcomes(held.answers + 1, held.answers + 1), DIGEST)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forfeit(self, data: st.DataObject) -> None:
        name, held = self.one_held(data)
        self.ledger = self.ledger.forfeit(name)
        self.counted.append(held)
        self.own.append(held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name, _ = self.one_held(data)
        self.ledger = self.ledger.cancel(name)

    @precondition(lambda self: self.held and self.at_party)
    @rule(data=st.data(), is_counted=st.booleans(), is_charged=st.booleans())
    def end_void(self, data: st.DataObject, *, is_counted: bool, is_charged: bool) -> None:
        """A coordinator chooses who saw what: void batches may be charged and not counted."""
        name, held = self.one_held(data)
        self.ledger = self.ledger.end_void(name, is_counted=is_counted, is_charged=is_charged)
        self.counted += [held] * is_counted
        self.own += [held] * is_charged

    @rule(queries=st.integers(1, 60))
    def pass_over(self, queries: int) -> None:
        before, name = self.ledger, self.name()
        if not before.is_over:
            self.counted.append(before.worst_case(min(queries, before.left.asks)))
        self.ledger = before.pass_over(name, queries)
        assert self.ledger.own == before.own
        assert before.is_over is (self.ledger == before)

    @rule(data=st.data(), queries=st.integers(1, 60))
    def follow(self, data: st.DataObject, queries: int) -> None:
        before, name = self.ledger, self.name()
        if before.is_over or queries > before.left.asks:
            with pytest.raises(OutcomeCapError):
                before.follow(name, queries, NO_OUTCOMES, DIGEST)
            return
        released = self.drawn(data, before.worst_case(queries))
        self.ledger = before.follow(name, queries, released, DIGEST)
        self.counted.append(released)
        assert self.ledger.own == before.own

    @rule(name=st.sampled_from(["nobody", "batch 1", "batch 2"]))
    def a_name_is_settled_once(self, name: str) -> None:
        if name in self.held:
            return
        before = self.ledger
        for settle in (
            before.cancel,
            before.forfeit,
            lambda entry: before.commit(entry, NO_OUTCOMES, DIGEST),
        ):
            with pytest.raises(LedgerError):
                settle(name)

    @rule()
    def the_ledger_is_stored_and_read(self) -> None:
        empty = RunLedger.of(self.run, at_party=self.at_party)
        assert empty.with_record(self.ledger.to_record()) == self.ledger
        assert self.ledger.without_entries == empty

    @invariant()
    def no_cap_is_exceeded_by_what_all_count(self) -> None:
        if not hasattr(self, "ledger"):
            return
        asks, answers = total([*self.counted, *self.held.values()])
        assert asks <= self.run.caps.most.asks
        assert answers <= self.run.caps.most.answers
        assert (self.ledger.outcomes.asks, self.ledger.outcomes.answers) == (asks, answers)

    @invariant()
    def no_partys_units_are_in_more_than_the_run_costs(self) -> None:
        if not hasattr(self, "ledger") or not self.at_party:
            return
        asks, answers = total([*self.own, *self.held.values()])
        assert self.ledger.own is not None
        assert (self.ledger.own.asks, self.ledger.own.answers) == (asks, answers)
        assert self.ledger.used_share() == asks / self.run.caps.most.asks <= 1
        for seat in range(len(self.run.weights)):
            weight = self.run.unit_votes_at(seat)
            paid = charge_of(self.run, Outcomes(asks, answers), weight=weight)
            whole = whole_charge(self.run, seat)
            assert whole is not None
            assert paid.is_covered_by(whole)


TestRunLedger = ChargingMachine.TestCase
TestRunLedger.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_void_batches_that_are_charged_but_not_counted_end_where_the_price_ends() -> None:
    """A hostile coordinator voids batch after batch, and calls each one free for the caps."""
    ledger = RunLedger.of(terms(), at_party=True)
    for number in range(100):
        worst = ledger.worst_case(10)
        assert ledger.left == Outcomes(90, 60), "nobody counts them"
        try:
            ledger = ledger.reserve(str(number), worst)
        except OutcomeCapError:
            break
        ledger = ledger.end_void(str(number), is_counted=False, is_charged=True)
    assert ledger.own is not None
    assert (number, ledger.own.asks, ledger.own.answers) == (6, 60, 60)
    assert not ledger.is_over


class TestRunLedgerSteps:
    def test_outcomes_are_counted_from_the_release(self) -> None:
        outcomes = [Outcome.ANSWERED, Outcome.REFUSED, Outcome.ANSWERED, Outcome.NOT_ASKED]
        release = NoisyRelease(
            np.array([1, ABSTAIN, 0, ABSTAIN], dtype=np.int64), np.array(outcomes, dtype=np.int8)
        )
        assert outcomes_of(release) == Outcomes(3, 2)

    def test_states_and_shares_are_those_of_the_partys_own_votes(self) -> None:
        run = terms()
        ledger = RunLedger.of(run, at_party=True).pass_over("a", 30)
        assert (ledger.states, ledger.used_share()) == ((), 0.0)
        ledger = ledger.reserve("b", ledger.worst_case(9)).forfeit("b")
        assert ledger.states == (EntryState.FORFEITED,)
        assert ledger.used_share() == pytest.approx(0.1)
        everybodys = RunLedger.of(run).pass_over("a", 30)
        assert everybodys.used_share() == pytest.approx(1 / 3)

    @pytest.mark.parametrize("place", [AT_PARTIES, {}], ids=["parties", "coordinator"])
    def test_every_query_of_a_batch_is_paid_and_unused_answers_are_not(
        self, place: dict[str, Any]
    ) -> None:
        ledger = RunLedger.of(terms(**place, max_answers=90), at_party=True)
        ledger = ledger.reserve("a", ledger.worst_case(20))
        assert ledger.paid_for("a", Outcomes(12, 5)) == Outcomes(20, 5)
        ledger = ledger.commit("a", Outcomes(12, 5), DIGEST)
        assert ledger.own is not None
        assert (ledger.outcomes.asks, ledger.own.asks) == (12, 20)

    def test_a_passed_batch_of_any_size_leaves_no_cap_exceeded(self) -> None:
        ledger = RunLedger.of(terms(max_answers=5, max_asks=10)).pass_over("a", 10**9)
        assert ledger.is_over
        assert ledger.pass_over("b", 3) == ledger

    def test_a_run_without_a_price_keeps_its_caps(self) -> None:
        ledger = RunLedger.of(terms(**IMMUTABLE))
        ledger = ledger.reserve("a", ledger.worst_case(60)).commit("a", Outcomes(60, 60), DIGEST)
        ledger = ledger.reserve("b", ledger.worst_case(30)).forfeit("b")
        assert ledger.states == (EntryState.COMMITTED, EntryState.FORFEITED)
        assert ledger.is_over
        with pytest.raises(OutcomeCapError):
            ledger.reserve("c", Outcomes(1, 1))

    @pytest.mark.parametrize("at_party", [False, True])
    def test_a_record_comes_back_under_the_same_caps_at_the_same_place_alone(
        self, *, at_party: bool
    ) -> None:
        run = terms()
        ledger = RunLedger.of(run, at_party=at_party)
        record = ledger.reserve("a", Outcomes(3, 1)).forfeit("a").to_record()
        assert RunLedger.of(run, at_party=at_party).with_record(record).used_share() > 0
        others = RunLedger.of(terms(max_answers=59), at_party=at_party)
        for other in (others, RunLedger.of(run, at_party=not at_party)):
            with pytest.raises(LedgerError, match="caps"):
                other.with_record(record)


class TestCharges:
    @pytest.mark.parametrize(
        ("unit", "votes"),
        [
            pytest.param("record", (1, 2, 5), id="record"),
            pytest.param("party", (4, 4, 7), id="all"),
        ],
    )
    def test_each_partys_units_are_charged_for_their_own_votes(
        self, unit: str, votes: tuple[int, ...]
    ) -> None:
        weights = ((1, 1, 1, 1), (2, 2), (1, 1, 5))
        run = terms(unit=unit, weights=weights, vote_threshold=8.0)
        assert tuple(run.unit_votes_at(seat) for seat in range(3)) == votes
        assert run.unit_votes == max(votes)
        assert (run.quotas, run.total_votes) == ((4, 4, 7), 15)
        charges = [whole_charge(run, seat) for seat in range(3)]
        assert charges == [GaussianMaxEvent(90, 40.0, float(each)) for each in votes]

    def test_the_mechanism_is_the_one_that_the_terms_name(self) -> None:
        assert mechanism_of(terms()) == ThresholdMax(40.0, vote_threshold=150.0)
        assert mechanism_of(terms(**AT_PARTIES)) == ThresholdMax(
            40.0, vote_threshold=150.0, shares=2
        )
        assert mechanism_of(terms(**INTERACTIVE)) == InteractiveThresholdMax(
            40.0, vote_threshold=150.0, confidence=0.9
        )

    def test_answers_change_the_charge_of_the_papers_two_noises_alone(self) -> None:
        for run in (terms(), terms(**GNMAX), terms(**AT_PARTIES), terms(**STABLE)):
            few, many = (charge_of(run, Outcomes(9, n), weight=1) for n in (1, 9))
            assert few == many
        assert charge_of(terms(**CONFIDENT), Outcomes(9, 4), weight=1) == ConfidentGaussianMaxEvent(
            9, 4, 50.0, 40.0
        )

    @settings(max_examples=40, deadline=None)
    @given(data=st.data(), run=st.sampled_from(sorted(RUNS)))
    def test_what_is_released_is_covered_by_what_was_reserved(
        self, data: st.DataObject, run: str
    ) -> None:
        # Else a party's own ledger would refuse the settlement after its run's ledger took it.
        kind = RUNS[run]
        worst = RunLedger.of(kind).worst_case(data.draw(st.integers(1, kind.caps.most.asks)))
        asks = data.draw(st.integers(0, worst.asks))
        released = Outcomes(asks, data.draw(st.integers(0, min(asks, worst.answers))))
        weight = kind.unit_votes_at(0)
        reserved, spent = (
            lifelong_charge(kind, outcomes, weight=weight) for outcomes in (worst, released)
        )
        assert reserved is not None
        assert spent is not None
        assert spent.is_covered_by(reserved)

    def test_nothing_is_charged_for_life_for_what_has_no_price(self) -> None:
        assert lifelong_charge(terms(**IMMUTABLE), Outcomes(1, 1), weight=1) is None
        assert whole_charge(terms(**IMMUTABLE), 0) is None

    @pytest.mark.parametrize("changed", [{}, GNMAX, AT_PARTIES, LAPLACE, STABLE], ids=str)
    def test_room_for_life_is_what_a_new_ledger_says(self, changed: dict[str, Any]) -> None:
        run = terms(**changed, budgets=(1.0, 9.0, 50.0))
        shares = []
        for seat, budget in enumerate(run.budgets):
            charge = whole_charge(run, seat)
            assert charge is not None
            kept = 90 * 1e-8 * (1 + 1e-9) if changed is STABLE else 0.0
            ledger = PrivacyLedger.for_life(budget, DELTA, additive_delta=kept)
            shares.append(ledger.share_of(charge))
            assert ledger.can_afford(charge) is (shares[-1] <= 1)
        assert share_for_life(run) == pytest.approx(max(shares), rel=1e-9)

    def test_a_ledger_for_life_holds_less_than_a_run_may_cost(self) -> None:
        fits = gnmax(40.0, 100, **AT_PARTIES)
        cost = charged_price(fits, 0).epsilon
        tight = replace(fits, budgets=(cost * 1.001,) * 3)
        assert budget_share(tight) < 1 < share_for_life(tight)
        assert share_for_life(replace(fits, budgets=(2 * cost,) * 3)) < 1
        assert share_for_life(terms(**{**STABLE, "test_delta": 1e-6})) == math.inf


# Prices -----------------------------------------------------------------------------------------


def least(run: RunTerms, *, weight: int = 1) -> float:
    """What a run cannot cost less than: all its asks tied but for the votes that move."""
    assert run.rule.sigma2 is not None
    return tied_epsilon(run.rule.sigma2 / weight, run.caps.most.asks, run.delta)


def most(run: RunTerms, *, weight: int = 1) -> float:
    """What a run need not cost more than: by divergences, or by exact Gaussian composition."""
    assert run.rule.sigma2 is not None
    asks, sigma = run.caps.most.asks, run.rule.sigma2
    by_label = label_level_epsilon(GaussianMaxEvent(asks, sigma, float(weight)), delta=run.delta)
    return min(by_label.epsilon, gdp_epsilon(math.sqrt(2 * asks) * weight / sigma, DELTA))


class TestOneCost:
    @sampled("weight", "asks", "sigma", cases=2)
    @pytest.mark.parametrize("sigma", [8.0, 40.0, 300.0])
    @pytest.mark.parametrize("asks", [1, 30, 150])
    @pytest.mark.parametrize("weight", [1, 3])
    def test_it_lies_between_an_attack_and_the_bounds_by_divergence(
        self, sigma: float, asks: int, weight: int
    ) -> None:
        for run in (
            gnmax(sigma, asks, weights=((weight,) * 84,) * 3),
            gnmax(sigma, asks, weights=((weight,) * 84,) * 3, classes=10),
            terms(sigma2=sigma, max_asks=asks, max_answers=1, weights=((weight,) * 84,) * 3),
        ):
            epsilon = run_price(run).epsilon
            assert least(run, weight=weight) * (1 - 1e-9) <= epsilon
            assert epsilon <= most(run, weight=weight) * (1 + 1e-9)

    def test_a_threshold_costs_one_more_class_wherever_it_lies_and_whatever_comes_out(self) -> None:
        beside = public_price(gnmax(40.0, 90, classes=3), 0)
        for threshold in (-1e9, 0.0, 149.5, 150.0, 1e9):
            for answers in (1, 60, 90):
                run = terms(vote_threshold=threshold, max_answers=answers)
                assert public_price(run, 0) == charged_price(run, 0) == beside
        assert public_price(terms(**INTERACTIVE), 0) == beside
        assert public_price(gnmax(40.0, 90), 0).epsilon <= beside.epsilon

    def test_more_asks_less_noise_and_more_votes_never_cost_less(self) -> None:
        usual = run_price(terms()).epsilon
        for changed in ({"max_asks": 120}, {"sigma2": 35.0}, {"delta": 1e-6}):
            assert run_price(terms(**changed)).epsilon > usual
        assert public_price(terms(), 0, unit="party").epsilon > usual

    def test_the_papers_two_noises_cost_their_checks_and_labels(self) -> None:
        run = terms(**CONFIDENT)
        event = ConfidentGaussianMaxEvent(90, 60, 50.0, 40.0)
        by_label = label_level_epsilon(event, delta=DELTA).epsilon
        assert run_price(run).epsilon == min(by_label, gdp_cost(event, delta=DELTA).epsilon)

    @pytest.mark.parametrize(
        ("caps", "by_gdp", "by_label"),
        [
            pytest.param((200, 100, 20.0, 8.0), 9.411, 7.7548, id="50 teachers"),
            pytest.param((100, 50, 10.0, 4.0), 14.512, 11.8431, id="20 teachers"),
        ],
    )
    def test_published_settings_cost_what_the_accounting_page_says(
        self, caps: tuple[int, int, float, float], by_gdp: float, by_label: float
    ) -> None:
        asks, answers, sigma1, sigma2 = caps
        noise = {"sigma1": sigma1, "sigma2": sigma2}
        run = terms(**{**CONFIDENT, **noise}, max_asks=asks, max_answers=answers)
        found = gdp_cost(charge_of(run, run.caps.most, weight=1), delta=DELTA)
        assert found.epsilon == pytest.approx(by_gdp, abs=6e-4)
        # The page's are of a coarser table, and never below.
        assert 0.999 * by_label < run_price(run).epsilon <= by_label

    @pytest.mark.parametrize("changed", [LAPLACE, STABLE], ids=["Laplace", "stability"])
    def test_other_mechanisms_cost_what_their_curves_say(self, changed: dict[str, Any]) -> None:
        run = terms(**changed)
        accountant = RenyiAccountant()
        accountant.compose(charge_of(run, run.caps.most, weight=1))
        assert run_price(run).epsilon == pytest.approx(
            accountant.get_converted(DELTA).epsilon, rel=1e-9
        )

    def test_shown_counts_cost_everybody_what_the_counts_cost(self) -> None:
        run = terms(**COUNTS)
        found = public_price(run, 0)
        assert found == charged_price(run, 0) == gdp_cost(GaussianMaxEvent(90, 40.0), delta=DELTA)
        assert found.epsilon > public_price(gnmax(40.0, 90), 0).epsilon
        assert found.holds_for != PUBLIC_VIEW

    def test_with_noise_at_the_parties_the_coordinator_costs_more_than_readers_of_labels(
        self,
    ) -> None:
        run = terms(**GNMAX, **AT_PARTIES)
        charged, public = charged_price(run, 0), public_price(run, 0)
        assert public.epsilon < charged.epsilon
        assert charged.holds_for != PUBLIC_VIEW
        assert public.holds_for == PUBLIC_VIEW
        # Discrete noise and Gaussian noise of that much cost nearly the same.
        exact = gdp_epsilon(math.sqrt(180) / 40, DELTA)
        assert charged.epsilon == pytest.approx(exact, rel=0.01)

    def test_a_threshold_of_noise_at_the_parties_costs_its_readers_the_rows(self) -> None:
        """What a void batch tells beside it is not proved to be less."""
        run = terms(**AT_PARTIES)
        assert public_price(run, 0).epsilon == charged_price(run, 0).epsilon
        assert are_counts_seen(run, at_coordinator=False)
        assert not are_counts_seen(terms(**GNMAX, **AT_PARTIES), at_coordinator=False)
        assert not are_counts_seen(terms(), at_coordinator=True)

    @pytest.mark.parametrize(
        "run",
        [
            pytest.param(terms(**IMMUTABLE), id="no privacy at all"),
            pytest.param(terms(**{**STABLE, "test_delta": 1e-6}), id="tests that take all delta"),
        ],
    )
    def test_what_has_no_finite_price_is_never_within_a_budget(self, run: RunTerms) -> None:
        assert run_price(run).epsilon == math.inf
        assert budget_share(run) == math.inf
        if not run.spec.is_private:
            assert run_price(run).method == NO_BOUND_METHOD

    def test_a_threshold_on_two_classes_costs_more_than_none(self) -> None:
        """Otherwise it would be priced as two options, below what its readers may learn."""
        run = terms()
        assert run.classes == 2
        same = gnmax(run.rule.sigma2 or 0.0, run.caps.most.asks)
        assert public_price(run, 0).epsilon > public_price(same, 0).epsilon

    def test_where_counts_are_cheapest_the_price_is_for_readers_of_labels(self) -> None:
        cost = public_price(gnmax(1.0, 1, classes=3), 0)
        assert (cost.method, cost.holds_for) == (GDP_METHOD, PUBLIC_VIEW)
        assert cost.epsilon == gdp_epsilon(math.sqrt(2), DELTA)

    def test_next_to_no_noise_costs_more_than_any_budget(self) -> None:
        assert run_price(gnmax(1e-9, 5)).epsilon > 1e9
        assert run_price(terms(sigma2=1e-9)).epsilon > 1e9


class TestWhoPays:
    def test_the_party_that_comes_closest_to_its_budget_decides(self) -> None:
        run = gnmax(60.0, 50, **MIXED)
        costs = [charged_price(run, seat).epsilon for seat in range(3)]
        assert costs == sorted(costs)
        shares = [cost / budget for cost, budget in zip(costs, run.budgets, strict=True)]
        assert budget_share(run) == max(shares)
        seat = shares.index(max(shares))
        assert tightest_cost(run) == (costs[seat], run.budgets[seat])

    def test_of_parties_alike_the_smallest_budget_counts(self) -> None:
        run = terms(budgets=(5.0, 0.5, 5.0))
        assert tightest_cost(run) == (charged_price(run, 1).epsilon, 0.5)

    @pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
    def test_the_stated_cost_is_that_of_the_most_exposed(self, order: tuple[int, ...]) -> None:
        run = gnmax(
            60.0, 50, **{name: tuple(all_[at] for at in order) for name, all_ in MIXED.items()}
        )
        seat, cost = most_exposed(run)
        assert (seat, cost) == (order.index(2), public_price(run, order.index(2)))
        assert run_price(run) == cost
        assert cost.epsilon > public_price(run, order.index(0)).epsilon

    def test_of_parties_alike_the_first_is_named(self) -> None:
        weights = ((1,) * 100, (2,) * 50, (2,) * 50)
        assert most_exposed(gnmax(60.0, 50, weights=weights, budgets=(3.0,) * 3))[0] == 1


def removed_divergences(
    sigma: float, threshold: float | None, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The most that one missing vote tells, over small votes, in both directions."""
    found = np.zeros(len(orders))
    level = -1e6 if threshold is None else threshold
    for counts in histograms(7, 3):
        here = threshold_log_law(counts, vote_threshold=level, sigma=sigma)
        for voted in np.eye(3, dtype=np.int64):
            there = threshold_log_law(counts + voted, vote_threshold=level, sigma=sigma)
            seen = np.isfinite(here) & np.isfinite(there)
            for p, q in ((here[seen], there[seen]), (there[seen], here[seen])):
                told = [renyi_divergence(p, q, order) for order in orders]
                found = np.maximum(found, told)
    return found


class TestRemoval:
    """A second number: compared with a unit that casts no vote at all."""

    @pytest.mark.parametrize("threshold", [None, 2.0, 3.5])
    @pytest.mark.parametrize("sigma", [1.5, 6.0])
    def test_a_query_tells_no_more_than_one_bit_of_a_missing_vote(
        self, sigma: float, threshold: float | None
    ) -> None:
        orders = np.array([1.5, 3.0, 8.0])
        told = removed_divergences(sigma, threshold, orders)
        bit = threshold_bit_rdp(orders, sigma=sigma)
        assert (told <= bit * (1 + 1e-9) + 1e-12).all()
        # And a moved vote tells more than any missing one.
        assert (bit < label_rdp(orders, sigma=sigma)).all()

    @pytest.mark.parametrize(
        "run",
        [
            pytest.param(gnmax(40.0, 90), id="two classes"),
            pytest.param(gnmax(9.0, 20, classes=7), id="seven classes"),
            pytest.param(terms(), id="a threshold"),
        ],
    )
    def test_it_is_that_of_a_bit_a_query_and_less_than_what_is_stated(self, run: RunTerms) -> None:
        found, stated = removal_price(run, 0), public_price(run, 0)
        assert found is not None
        assert found.epsilon < stated.epsilon
        sigma, asks = run.rule.sigma2, run.caps.most.asks
        assert sigma is not None
        bits = convert_curve(
            lambda orders: asks * threshold_bit_rdp(orders, sigma=sigma),
            delta=DELTA,
            method="cks",
        ).epsilon
        exact = gdp_epsilon(math.sqrt(asks) / sigma, DELTA)
        # Where all others are known, the class's count moves by 1 around a public number, of noise
        # sigma: half a vote below, or half a vote above.
        attack = tied_epsilon(math.sqrt(2) * sigma, asks, DELTA)
        assert attack * (1 - 1e-9) <= found.epsilon <= min(1.005 * bits, exact) * (1 + 1e-9)

    @pytest.mark.parametrize(
        "run",
        [
            pytest.param(terms(**CONFIDENT), id="another mechanism"),
            pytest.param(terms(**LAPLACE), id="other noise"),
            pytest.param(terms(**COUNTS), id="counts"),
            pytest.param(terms(**AT_PARTIES), id="noise at the parties"),
            pytest.param(terms(weights=((2,) * 80,) * 3), id="several votes"),
            pytest.param(terms(unit="party"), id="a hospital of several teachers"),
        ],
    )
    def test_it_is_stated_where_it_is_proved_alone(self, run: RunTerms) -> None:
        assert removal_price(run, 0) is None


class TestSeveralRuns:
    def test_their_epsilons_add_up(self) -> None:
        runs = [terms(**GNMAX), gnmax(40.0, 20, name="later")]
        alone = [public_price(run, 1) for run in runs]
        together = price_of_runs(runs, 1, unit="record")
        whole = alone[0].epsilon + alone[1].epsilon
        assert whole <= together.epsilon <= whole * (1 + 1e-9)
        assert (together.method, together.holds_for) == (RUNS_METHOD, alone[0].holds_for)
        assert price_of_runs(runs[:1], 1, unit="record") == alone[0]

    def test_a_whole_hospital_costs_more_than_a_patient(self) -> None:
        run = terms(**GNMAX)
        patient, hospital = (price_of_runs([run], 1, unit=unit) for unit in ("record", "party"))
        assert patient.epsilon < hospital.epsilon < math.inf


class TestRounds:
    RUN: ClassVar[RunTerms] = gnmax(40.0, 90, budgets=(50.0,) * 3)

    def test_runs_of_a_series_add_divergences_at_an_order_that_the_first_one_fixed(self) -> None:
        runs = [self.RUN] * 2
        together, added = (
            cost_of(runs, 1, unit="record") for cost_of in (price_of_series, price_of_runs)
        )
        assert together.epsilon < 0.9 * added.epsilon
        assert together.order == order_of_series(runs[0], 1, unit="record")
        assert together.method == SERIES_METHOD
        assert price_of_series(runs[:1], 1, unit="record") == price_of_runs(
            runs[:1], 1, unit="record"
        )
        assert [delta_of_series(runs[:number]) for number in (1, 2)] == [DELTA, 3 * DELTA]
        # It counts all runs, each at its caps.
        assert price_of_series([*runs, runs[0]], 1, unit="record").epsilon > together.epsilon

    @pytest.mark.parametrize(
        "changed",
        [pytest.param(COUNTS, id="counts"), pytest.param(AT_PARTIES, id="noise at the parties")],
    )
    def test_runs_of_a_series_cost_their_readers_no_less_than_the_counts_that_each_run_is_priced_by(
        self, changed: dict[str, Any]
    ) -> None:
        runs = [terms(**changed, budgets=(50.0,) * 3)] * 2
        seen = price_of_series(runs, 1, unit="record")
        # Two runs of such rows by exact composition, at all that their deltas come to.
        least_ = gdp_epsilon(math.sqrt(4 * 90) / 40, delta_of_series(runs))
        assert seen.epsilon >= least_ * (1 - 1e-3)
        if changed is AT_PARTIES:
            whole = price_of_series(runs, 1, unit="record", at_coordinator=True)
            assert seen.epsilon == whole.epsilon

    def test_runs_without_an_order_add_up(self) -> None:
        """Little noise at first, or tests of stability with deltas that releases could choose."""
        stable, loud = terms(**STABLE), gnmax(0.05, 90)
        assert order_of_series(stable, 0, unit="record") is None
        assert order_of_series(loud, 0, unit="record") is None
        for runs in ([stable, self.RUN], [self.RUN, stable]):
            added = price_of_runs(runs, 0, unit="record")
            assert price_of_series(runs, 0, unit="record") == added

    @pytest.mark.parametrize("sigma", [6.0, 30.0])
    def test_no_plan_of_later_runs_tells_more_than_is_stated(self, sigma: float) -> None:
        """The attack: after the first run's labels, pick the second that tells most, or stop.

        Every question is tied but for one vote, so both laws are known. For each stated number the
        reader keeps the paths on which no more is stated, and picks the best plan on each of them.
        """
        runs = {asks: gnmax(sigma, asks, budgets=(500.0,) * 3) for asks in (5, 40, 120)}
        first, menu = runs[40], (0, 5, 40, 120)
        stated = {
            asks: price_of_series(
                [first, runs[asks]] if asks else [first], 0, unit="record"
            ).epsilon
            for asks in menu
        }
        assert sorted(stated.values()) == list(stated.values())
        before = tied_laws(sigma, 40)
        for allowed in stated.values():
            told = np.zeros(41)
            for asks in (asks for asks in menu if stated[asks] <= allowed):
                after = tied_laws(sigma, asks)
                p, q = (np.outer(*laws) for laws in zip(before, after, strict=True))
                gained = np.maximum(p - math.exp(allowed) * q, 0.0).sum(axis=1)
                told = np.maximum(told, gained)
            assert told.sum() <= delta_of_series([first, first])
        attack = tied_epsilon(sigma, 160, delta_of_series([first, first]))
        assert attack <= stated[120] <= 1.3 * attack


def test_an_event_of_another_kind_has_a_cost_of_its_own() -> None:
    """Labels of noise at the parties are never priced as the coordinator's Gaussian noise."""
    parties = labels_cost(DistributedGaussianMaxEvent(90, 40.0, 2), options=3, delta=DELTA)
    here = labels_cost(GaussianMaxEvent(90, 40.0), options=3, delta=DELTA)
    assert parties.method != here.method
    with pytest.raises(InvalidParameterError):
        labels_cost(GaussianMaxEvent(90, 40.0), options=3, delta=1.0)

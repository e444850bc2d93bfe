"""Charging: whatever happens in a run, no budget and no cap of anybody is exceeded."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pate_fed.accounting import (
    NO_OUTCOMES,
    AnyVotesEvent,
    ConfidentGaussianMaxEvent,
    EntryState,
    FormalCost,
    JointPriceEvent,
    Outcomes,
    PrivacyEvent,
    PrivacyLedger,
    RenyiAccountant,
    gdp_epsilon,
)
from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.laplace_bounds import pure_dp_rdp
from pate_fed.accounting.statement import (
    BELLMAN_METHOD,
    CAPS_METHOD,
    FILTER_METHODS,
    NO_BOUND_METHOD,
    ROUNDS_METHOD,
    RUNS_METHOD,
    Pricing,
)
from pate_fed.charging import RunLedger, caps_of, charge_of, ledger_of, lifelong_charge, outcomes_of
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    LedgerError,
    OutcomeCapError,
    PateFedError,
    UnsupportedEventError,
)
from pate_fed.federation import RunTerms
from pate_fed.pricing import (
    PRICINGS,
    affordable_queries,
    cheapest_pricing,
    cost_of_runs,
    formal_bounds,
    formal_cost_at,
    most_exposed,
    priced,
    unconditional_epsilon,
)
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.rounds import (
    cost_of_rounds,
    delta_of_rounds,
    order_of_rounds,
    unconditional_epsilon_of_rounds,
)
from pate_fed.votes import TeacherWeights
from tests.support.charged import charged_epsilon
from tests.support.markers import in_turn, sampled
from tests.support.ties import tied_epsilon, tied_laws

DIGEST = bytes(range(32))
DELTA = 1e-5

GAUSSIAN: dict[str, Any] = {
    "mechanism": "confident",
    "vote_threshold": 150.0,
    "sigma1": 50.0,
    "sigma2": 40.0,
}
LAPLACE: dict[str, Any] = {"mechanism": "lnmax", "sigma2": 200.0, "max_refusals": 0}
STABLE: dict[str, Any] = {"mechanism": "stable-gaussian", "sigma1": 40.0, "test_delta": 1e-8}
IMMUTABLE: dict[str, Any] = {"mechanism": "immutable", "sigma2": 5.0, "max_refusals": 0}


def terms(**changed: Any) -> RunTerms:
    """Terms of a run of Confident-GNMax with 250 teachers at three hospitals."""
    mechanism = changed.get("mechanism", "confident")
    parameters = GAUSSIAN if mechanism == "confident" else {"mechanism": mechanism}
    weights = changed.get("weights", ((1,) * 84, (1,) * 83, (1,) * 83))
    answers, refusals = changed.get("max_answers", 60), changed.get("max_refusals", 30)
    fields: dict[str, Any] = {
        "pool_digest": bytes(32),
        "task_digest": bytes(32),
        "name": "run",
        "classes": 2,
        "vote_threshold": None,
        "sigma1": None,
        "sigma2": None,
        "confidence": None,
        "test_delta": None,
        **parameters,
        "noise_place": "coordinator",
        "unit": "record",
        "pricing": "gdp",
        "orders": (),
        "max_asks": answers + refusals,
        "max_answers": answers,
        "max_refusals": refusals,
        "budgets": (2.0,) * len(weights),
        "delta": DELTA,
        "weights": tuple(TeacherWeights.of(party) for party in weights),
    }
    return RunTerms(**{**fields, **changed, "weights": fields["weights"]})


def priced_by(pricing: Pricing, order: float = 12.0, **changed: Any) -> RunTerms:
    """The same, charged this way at one order for all."""
    parties = len(changed.get("weights", (0, 0, 0)))
    by_order = pricing in ("label", "joint", "renyi")
    given_orders = changed.pop("orders", (order,) * parties)
    return terms(pricing=pricing, orders=given_orders if by_order else (), **changed)


# An independent price of what was released -----------------------------------------------------


def mp_epsilon(rdp: float, order: float, delta: float) -> mpmath.mpf:
    """Convert by CKS with 40 digits."""
    with mpmath.workdps(40):
        rdp_, order_, delta_ = mpmath.mpf(rdp), mpmath.mpf(order), mpmath.mpf(delta)
        log_both = mpmath.log(delta_) + mpmath.log(order_)
        return rdp_ + mpmath.log1p(-1 / order_) - log_both / (order_ - 1)


@lru_cache
def prices_at(run: RunTerms, weight: int, order: float) -> tuple[float, float]:
    """Return what an ask that is refused, and one that is answered, costs at an order."""
    if run.pricing in ("label", "joint"):
        one = {"asks": 1, "max_refusals": run.max_refusals}
        one |= {"max_answers": run.max_answers, "max_asks": run.max_asks}

        def priced(*outcome: int) -> float:
            votes = (run.total_votes, run.classes, run.vote_threshold)
            noise = (run.sigma1, run.sigma2, weight)
            event: PrivacyEvent = (
                JointPriceEvent(*outcome, *votes, *noise, **one)  # type: ignore[arg-type]
                if run.pricing == "joint"
                else AnyVotesEvent(*outcome, run.classes, *noise, **one)  # type: ignore[arg-type]
            )
            return float(event_rdp(event, [order])[0])

        return priced(1, 0), priced(0, 1)
    if run.mechanism == "lnmax":
        assert run.sigma2 is not None
        gamma = math.sqrt(2) / run.sigma2
        answer_only = float(pure_dp_rdp([order], epsilon=2 * gamma * weight)[0])
        return math.inf, answer_only
    assert run.mechanism == "stable-gaussian"
    assert run.sigma1 is not None
    both = order / (2 * run.sigma1**2)
    return both, both


def dearest(outcomes: Outcomes, refusal: float, answer: float) -> float:
    """Price what was released, or the dearest of what may have been, ask by ask."""
    fewest = outcomes.asks - min(outcomes.refusals, outcomes.asks)
    return max(
        answers * answer + ((outcomes.asks - answers) * refusal if answers < outcomes.asks else 0.0)
        for answers in range(fewest, outcomes.answers + 1)
    )


def recomputed_epsilon(run: RunTerms, seat: int, spent: list[Outcomes]) -> float:
    """Price all that was released or may have been, from first principles, for one party."""
    weight = run.unit_votes_at(seat)
    if run.pricing == "gdp":
        assert run.sigma1 is not None
        assert run.sigma2 is not None
        mu_squared = weight**2 * math.fsum(
            each.asks / run.sigma1**2 + 2 * each.answers / run.sigma2**2 for each in spent
        )
        return gdp_epsilon(math.sqrt(mu_squared), run.delta) * (1 - 1e-12)
    order = run.orders[seat]
    refusal, answer = prices_at(run, weight, order)
    # Released asks, each by its own price; a lost batch at the dearest mix of its asks.
    rdp = math.fsum(dearest(each, refusal, answer) for each in spent)
    delta = run.delta
    if run.test_delta is not None:
        delta -= run.test_delta * run.max_asks
    return float(mp_epsilon(rdp, order, delta)) if rdp else 0.0


# The ledger of a run, in any order -------------------------------------------------------------

MIXED: dict[str, Any] = {
    "weights": ((1,) * 100, (2,) * 50, (1,) * 40 + (5,) * 2),
    "budgets": (1.2, 1.7, 3.0),
}
RUNS = [
    pytest.param(priced_by("gdp"), id="gdp"),
    pytest.param(priced_by("gdp", **MIXED), id="gdp, weights and budgets"),
    pytest.param(priced_by("gdp", unit="party", **{**MIXED, "sigma1": 4e3, "sigma2": 3e3}), id="p"),
    pytest.param(priced_by("label", budgets=(1.5,) * 3), id="label"),
    pytest.param(priced_by("label", orders=(9.0, 6.0, 4.0), **MIXED), id="label, mixed"),
    pytest.param(priced_by("joint", budgets=(0.9,) * 3), id="joint"),
    pytest.param(priced_by("joint", orders=(12.0, 8.0, 5.0), **MIXED), id="joint, mixed"),
    pytest.param(priced_by("joint", max_asks=70), id="joint, few asks"),
    pytest.param(priced_by("renyi", order=7.0, **LAPLACE), id="renyi, Laplace"),
    pytest.param(priced_by("renyi", order=9.0, **STABLE), id="renyi, stability"),
]


class ChargingMachine(RuleBasedStateMachine):
    """Drives a run's ledger and keeps its own books of what left and what nobody can rule out."""

    def __init__(self) -> None:
        super().__init__()
        self.released: list[Outcomes] = []
        self.lost: list[Outcomes] = []
        self.passed: list[Outcomes] = []
        self.held: dict[str, Outcomes] = {}
        self.names = 0

    @initialize(run=st.sampled_from([each.values[0] for each in RUNS]), alone=st.booleans())
    def begin(self, run: RunTerms, alone: bool) -> None:
        self.run = run
        self.seats = (1,) if alone else tuple(range(len(run.weights)))
        self.ledger = RunLedger.of(run, seat=1 if alone else None)

    @property
    def spent(self) -> list[Outcomes]:
        """Everything that must be paid for."""
        return [*self.released, *self.lost, *self.held.values()]

    @rule(queries=st.integers(1, 40))
    def reserve(self, queries: int) -> None:
        before = self.ledger
        self.names += 1
        name = f"batch {self.names}"
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
        if queries > self.ledger.outcomes.asks_left or self.ledger.is_over:
            return
        spent = [*self.spent, self.ledger.worst_case(queries)]
        assert any(
            recomputed_epsilon(self.run, seat, spent) > self.run.budgets[seat] * (1 - 1e-7)
            for seat in self.seats
        )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held.pop(name)
        refusals = data.draw(st.integers(0, held.refusals))
        answers = data.draw(st.integers(0, min(held.answers, held.asks - refusals)))
        self.ledger = self.ledger.commit(name, Outcomes(refusals, answers), DIGEST)
        self.released.append(Outcomes(refusals, answers))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def more_than_was_reserved_is_refused(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        held, before = self.held[name], self.ledger
        for too_many in (
            Outcomes(held.refusals + 1, 0),
            Outcomes(0, held.answers + 1),
            Outcomes(held.refusals, held.asks - held.refusals + 1),
        ):
            with pytest.raises(LedgerError):
                before.commit(name, too_many, DIGEST)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forfeit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.ledger = self.ledger.forfeit(name)
        self.lost.append(self.held.pop(name))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.ledger = self.ledger.cancel(name)
        del self.held[name]

    @rule(queries=st.integers(1, 60))
    def pass_over(self, queries: int) -> None:
        self.names += 1
        before = self.ledger
        if before.is_over:
            assert before.pass_over(f"batch {self.names}", queries) == before
            return
        self.passed.append(before.worst_case(min(queries, before.outcomes.asks_left)))
        self.ledger = before.pass_over(f"batch {self.names}", queries)

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

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for seat in self.seats:
            assert recomputed_epsilon(self.run, seat, self.spent) <= self.run.budgets[seat]
        for kept in self.ledger.costs:
            assert kept.used_share() <= 1

    @invariant()
    def charges_never_fall_below_what_was_released(self) -> None:
        if not hasattr(self, "ledger"):
            return
        kept = dict(zip(self.ledger.seats, self.ledger.costs, strict=True))
        for seat, ledger in kept.items():
            released = recomputed_epsilon(self.run, seat, [*self.released, *self.lost])
            assert charged_epsilon(ledger) >= released * (1 - 1e-9)

    @invariant()
    def no_cap_is_exceeded(self) -> None:
        if not hasattr(self, "ledger"):
            return
        counted = [*self.spent, *self.passed]
        assert sum(each.refusals for each in counted) <= self.run.max_refusals
        assert sum(each.answers for each in counted) <= self.run.max_answers
        assert sum(each.asks for each in counted) <= self.run.max_asks
        assert self.ledger.outcomes.asks == sum(each.asks for each in counted)


TestRunLedger = ChargingMachine.TestCase
TestRunLedger.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# Prices ----------------------------------------------------------------------------------------


class TestPriced:
    def test_the_smallest_bound_that_holds_is_chosen(self) -> None:
        bounds = formal_bounds(terms(), weight=1, votes_are_valid=True)
        assert set(bounds) == {"gdp", "label", "joint"}
        assert bounds["joint"].epsilon < bounds["label"].epsilon < bounds["gdp"].epsilon
        chosen = priced(terms(), votes_are_valid=True)
        assert chosen.pricing == "joint"
        assert chosen.orders == (bounds["joint"].order,) * 3

    def test_joint_is_never_chosen_without_valid_votes(self) -> None:
        assert "joint" not in formal_bounds(terms(), weight=1, votes_are_valid=False)
        chosen = priced(terms(), votes_are_valid=False)
        assert chosen.pricing == "label"
        with pytest.raises(InvalidParameterError):
            priced(terms(), votes_are_valid=False, wanted=frozenset({"joint"}))

    @sampled(1)
    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param(
                {"mechanism": "gnmax", "sigma2": 40.0, "max_refusals": 0}, id="no check to join"
            ),
            pytest.param(
                {**GAUSSIAN, "mechanism": "interactive", "confidence": 0.9},
                id="a check against predictions",
            ),
            pytest.param({"weights": ((1,) * 4000,) * 3}, id="too many teachers"),
        ],
    )
    def test_joint_is_never_chosen_where_it_is_not_proved(self, changed: dict[str, Any]) -> None:
        asked = terms(**{**changed, "classes": 5})
        joint = formal_bounds(asked, weight=1, votes_are_valid=True).get("joint")
        assert joint is None or math.isinf(joint.epsilon)
        assert priced(asked, votes_are_valid=True).pricing == "label"

    def test_a_price_that_cannot_be_charged_is_refused_with_the_reason(self) -> None:
        asked = terms(weights=((1,) * 4000,) * 3, classes=5)
        with pytest.raises(InvalidParameterError, match="at most 1000 teachers, got 12000"):
            priced(asked, votes_are_valid=True, wanted=frozenset({"joint"}))

    def test_exact_composition_is_chosen_where_it_is_smallest(self) -> None:
        one = terms(max_answers=1, max_refusals=1, max_asks=1, **{"sigma2": 400.0, "sigma1": 500.0})
        bounds = formal_bounds(one, weight=1, votes_are_valid=False)
        way, share = cheapest_pricing(one, votes_are_valid=False)
        assert way == min(bounds, key=lambda each: bounds[each].epsilon)
        assert share == bounds[way].epsilon / 2.0

    @pytest.mark.slow
    def test_each_party_has_the_order_that_is_best_for_its_units(self) -> None:
        run = priced(terms(**MIXED), votes_are_valid=True)
        for seat, order in enumerate(run.orders):
            weight = run.unit_votes_at(seat)
            best = formal_bounds(run, weight=weight, votes_are_valid=True)[run.pricing]
            assert order == best.order
        assert len(set(run.orders)) == 3

    @pytest.mark.slow
    def test_the_party_that_comes_closest_to_its_budget_decides(self) -> None:
        generous, tight = (5.0, 5.0, 5.0), (5.0, 5.0, 0.5)
        _, easy = cheapest_pricing(terms(budgets=generous), votes_are_valid=True)
        way, hard = cheapest_pricing(terms(budgets=tight), votes_are_valid=True)
        bounds = formal_bounds(terms(), weight=1, votes_are_valid=True)
        assert easy == bounds["joint"].epsilon / 5.0
        assert hard == bounds[way].epsilon / 0.5
        heavy = terms(budgets=generous, weights=((1,) * 84, (1,) * 83, (3,) * 27))
        way, share = cheapest_pricing(heavy, votes_are_valid=True)
        assert share == formal_bounds(heavy, weight=3, votes_are_valid=True)[way].epsilon / 5.0

    def test_what_protects_nobody_has_no_price(self) -> None:
        run = terms(**IMMUTABLE, pricing="none")
        assert formal_bounds(run, weight=1, votes_are_valid=True) == {
            "none": FormalCost(math.inf, NO_BOUND_METHOD)
        }
        assert priced(run, votes_are_valid=True).pricing == "none"
        with pytest.raises(InvalidParameterError):
            priced(run, votes_are_valid=True, wanted=PRICINGS - {"none"})

    def test_next_to_no_noise_has_an_infinite_price(self) -> None:
        loud = {"sigma1": 1e-9, "sigma2": 1e-9}
        bounds = formal_bounds(terms(**loud), weight=1, votes_are_valid=True)
        assert bounds["gdp"].epsilon == math.inf

    @pytest.mark.exhaustive
    @settings(max_examples=5, deadline=None)
    @given(
        sigma1=st.floats(30, 120),
        sigma2=st.floats(30, 80),
        threshold=st.floats(100, 220),
        weight=st.integers(1, 3),
        valid=st.booleans(),
    )
    def test_no_other_bound_that_holds_is_smaller(
        self, sigma1: float, sigma2: float, threshold: float, weight: int, valid: bool
    ) -> None:
        run = terms(
            sigma1=sigma1,
            sigma2=sigma2,
            vote_threshold=threshold,
            weights=((weight,) * 84, (1,) * 83, (1,) * 80),
            budgets=(1.0,) * 3,
        )
        way, share = cheapest_pricing(run, votes_are_valid=valid)
        bounds = formal_bounds(run, weight=weight, votes_are_valid=True)
        ways: list[Pricing] = ["gdp", "label", "joint"] if valid else ["gdp", "label"]
        assert way in ways
        assert share == min(bounds[each].epsilon for each in ways)


def test_the_party_that_a_run_costs_most_need_not_be_the_one_that_is_charged_most() -> None:
    """Of one vote per patient a smaller number is known than is charged; of two it is not."""
    weights = ((1,) * 60, (2,) * 30)
    run = terms(
        mechanism="gnmax",
        sigma2=37.8,
        max_refusals=0,
        max_answers=100,
        weights=weights,
        budgets=(50.0, 1.223),
        pricing="label",
        orders=(10.0, 10.0),
    )
    charged = [formal_cost_at(run, seat).epsilon for seat in range(2)]
    stated = [cost_of_runs([run], seat, unit="record").epsilon for seat in range(2)]
    assert charged[0] > charged[1]
    assert stated[0] < stated[1]
    assert most_exposed(run) == (1, cost_of_runs([run], 1, unit="record"))


def test_more_labels_than_a_report_has_time_for_state_what_is_charged() -> None:
    run = terms(
        mechanism="gnmax",
        sigma2=60.0,
        classes=3,
        max_refusals=0,
        max_answers=2_001,
        pricing="label",
        orders=(10.0,) * 3,
        budgets=(50.0,) * 3,
    )
    assert cost_of_runs([run], 0, unit="record") == formal_cost_at(run, 0)


class TestSeveralRuns:
    GNMAX: ClassVar[dict[str, Any]] = {"mechanism": "gnmax", "sigma2": 40.0, "max_refusals": 0}

    def test_their_epsilons_add_up(self) -> None:
        runs = [terms(**self.GNMAX), terms(name="later", max_answers=20, **self.GNMAX)]
        alone = [formal_cost_at(run, 1) for run in runs]
        together = cost_of_runs(runs, 1, unit="record")
        whole = alone[0].epsilon + alone[1].epsilon
        assert whole <= together.epsilon <= whole * (1 + 1e-9)
        assert (together.method, together.holds_for) == (RUNS_METHOD, alone[0].holds_for)
        assert cost_of_runs(runs[:1], 1, unit="record") == alone[0]

    def test_rounds_add_divergences_at_an_order_that_the_first_one_fixed(self) -> None:
        runs = [priced_by("joint", budgets=(50.0,) * 3)] * 2
        together, added = (
            cost_of(runs, 1, unit="record") for cost_of in (cost_of_rounds, cost_of_runs)
        )
        assert together.epsilon < 0.85 * added.epsilon
        assert together.order == order_of_rounds(runs[0], 1, unit="record")
        assert together.method == ROUNDS_METHOD
        assert cost_of_rounds(runs[:1], 1, unit="record") == cost_of_runs(
            runs[:1], 1, unit="record"
        )
        assert [delta_of_rounds(runs[:number]) for number in (1, 2)] == [DELTA, 3 * DELTA]
        # It counts all rounds, each at its caps, with the trust of its price.
        assert cost_of_rounds([*runs, runs[0]], 1, unit="record").epsilon > together.epsilon
        free = unconditional_epsilon_of_rounds(runs, 1, unit="record")
        assert together.epsilon < free < 2 * unconditional_epsilon(runs[0], 1, unit="record")

    def test_rounds_without_an_order_add_up(self) -> None:
        """Little noise at first, or tests of stability with deltas that releases could choose."""
        stable = terms(**STABLE, pricing="renyi", orders=(9.0,) * 3, delta=1e-5)
        loud = terms(**{**self.GNMAX, "sigma2": 0.05, "budgets": (1e9,) * 3})
        assert order_of_rounds(stable, 0, unit="record") is None
        assert order_of_rounds(loud, 0, unit="record") is None
        quiet = terms(**self.GNMAX)
        for runs in ([stable, quiet], [quiet, stable]):
            added = cost_of_runs(runs, 0, unit="record")
            assert cost_of_rounds(runs, 0, unit="record") == added

    @pytest.mark.parametrize("sigma", [6.0, 30.0])
    def test_no_plan_of_later_rounds_tells_more_than_is_stated(self, sigma: float) -> None:
        """The attack: after the first round's labels, pick the second that tells most, or stop.

        Every question is tied but for one vote, so both laws are known. For each stated number the
        reader keeps the paths on which no more is stated, and picks the best plan on each of them.
        """

        def round_of(asks: int) -> RunTerms:
            own = {"mechanism": "gnmax", "sigma2": sigma, "classes": 2, "max_refusals": 0}
            caps = {"max_answers": asks, "max_asks": asks, "budgets": (500.0,) * 3}
            return terms(**own, **caps, pricing="label", orders=(9.0,) * 3)

        first, menu = round_of(40), (0, 5, 40, 120)
        stated = {
            asks: cost_of_rounds(
                [first, round_of(asks)] if asks else [first], 0, unit="record"
            ).epsilon
            for asks in menu
        }
        assert sorted(stated.values()) == list(stated.values())
        before = tied_laws(sigma, 40)
        for most in stated.values():
            told = np.zeros(41)
            for asks in (asks for asks in menu if stated[asks] <= most):
                after = tied_laws(sigma, asks)
                p, q = (np.outer(*laws) for laws in zip(before, after, strict=True))
                gained = np.maximum(p - math.exp(most) * q, 0.0).sum(axis=1)
                told = np.maximum(told, gained)
            assert told.sum() <= delta_of_rounds([first, first])
        least = tied_epsilon(sigma, 160, delta_of_rounds([first, first]))
        assert least <= stated[120] <= 1.3 * least

    def test_a_whole_hospital_costs_more_than_a_patient(self) -> None:
        run = terms(**self.GNMAX)
        patient, hospital = (cost_of_runs([run], 1, unit=unit) for unit in ("record", "party"))
        assert patient.epsilon < hospital.epsilon < math.inf

    def test_what_needs_no_valid_votes_is_never_above_the_price_that_needs_none(self) -> None:
        run = terms(**self.GNMAX)
        bounds = formal_bounds(run, weight=1, votes_are_valid=False)
        least = unconditional_epsilon(run, 1, unit="record")
        assert 0 < least < min(cost.epsilon for cost in bounds.values())  # exact composition
        assert unconditional_epsilon(run, 1, unit="party") > least

    def test_a_constant_of_the_caps_is_said_where_it_is_below_what_is_charged(self) -> None:
        run = priced_by("joint", budgets=(50.0,) * 3, max_answers=1, max_refusals=1)
        charged, said = formal_cost_at(run, 0), cost_of_runs([run], 0, unit="record")
        assert 0 < said.epsilon < charged.epsilon < 50
        assert said.method == BELLMAN_METHOD


class TestFormalCost:
    @pytest.mark.parametrize("way", ["gdp", "label", "joint"])
    def test_it_is_the_smaller_of_caps_and_budget(self, way: Pricing) -> None:
        at_caps = formal_bounds(terms(), weight=1, votes_are_valid=True)[way]
        run = priced(terms(), votes_are_valid=True, wanted=frozenset({way}))
        for budget in (50.0, at_caps.epsilon):
            assert formal_cost_at(replace(run, budgets=(budget,) * 3), 0) == at_caps
        smaller = math.nextafter(at_caps.epsilon, 0)
        filtered = formal_cost_at(replace(run, budgets=(smaller,) * 3), 0)
        assert filtered.epsilon == smaller
        assert filtered.method == FILTER_METHODS[way]

    @pytest.mark.slow
    def test_each_party_has_its_own(self) -> None:
        run = priced(terms(**MIXED), votes_are_valid=True)
        costs = [formal_cost_at(run, seat).epsilon for seat in range(3)]
        bounds = [formal_bounds(run, weight=w, votes_are_valid=True)["joint"] for w in (1, 2, 5)]
        assert costs == [bounds[0].epsilon, 1.7, 3.0]
        assert bounds[1].epsilon > 1.7
        assert bounds[2].epsilon > 3.0

    @pytest.mark.parametrize(
        ("caps", "delta", "epsilon"),
        [
            pytest.param((640, 640, 150.0, 40.0), 1e-5, 3.927, id="MNIST, no caps"),
            pytest.param((12_000, 10_762, 500.0, 100.0), 1e-8, 9.012, id="Glyph"),
            pytest.param((200, 100, 20.0, 8.0), 1e-5, 9.411, id="50 teachers"),
            pytest.param((100, 50, 10.0, 4.0), 1e-5, 14.512, id="20 teachers"),
        ],
    )
    def test_published_settings_cost_what_the_accounting_page_says(
        self, caps: tuple[int, int, float, float], delta: float, epsilon: float
    ) -> None:
        asks, answers, sigma1, sigma2 = caps
        run = terms(
            max_asks=asks,
            max_answers=answers,
            max_refusals=asks,
            sigma1=sigma1,
            sigma2=sigma2,
            delta=delta,
            budgets=(50.0,) * 3,
        )
        formal = formal_cost_at(run, 0)
        assert formal.epsilon == pytest.approx(epsilon, abs=6e-4)
        assert formal.method == CAPS_METHOD

    def test_a_budget_holds_where_no_joint_price_is_known(self) -> None:
        run = priced_by("joint", weights=((1,) * 4000,) * 3, classes=5)
        assert formal_cost_at(run, 0).epsilon == 2.0
        with pytest.raises(InvalidParameterError):
            ledger_of(run, 0).reserve("a", charge_of(run, Outcomes(1, 1, 1), weight=1))

    def test_it_is_infinite_for_what_protects_nobody(self) -> None:
        assert formal_cost_at(terms(**IMMUTABLE, pricing="none"), 0).epsilon == math.inf

    @pytest.mark.parametrize("changed", [LAPLACE, STABLE], ids=["Laplace", "stability"])
    def test_other_mechanisms_cost_what_their_curves_say(self, changed: dict[str, Any]) -> None:
        run = priced(terms(**changed, pricing="renyi", orders=(2.0,) * 3), votes_are_valid=False)
        accountant = RenyiAccountant()
        accountant.compose(charge_of(run, caps_of(run), weight=1))
        assert formal_cost_at(run, 0).epsilon == pytest.approx(
            accountant.get_converted(DELTA).epsilon, rel=1e-9
        )

    def test_tests_whose_own_delta_is_too_large_cost_everything(self) -> None:
        run = priced_by("renyi", **{**STABLE, "test_delta": 1e-6})
        assert formal_bounds(run, weight=1, votes_are_valid=True)["renyi"].epsilon == math.inf
        assert formal_cost_at(run, 0).epsilon == 2.0
        with pytest.raises(BudgetExhaustedError):
            RunLedger.of(run).reserve("a", Outcomes(1, 1, 1))


WHOLE_RUNS = [
    pytest.param(terms(), "gdp", id="gdp"),
    pytest.param(terms(), "label", id="label"),
    pytest.param(terms(), "joint", id="joint"),
    pytest.param(terms(mechanism="gnmax", sigma2=40.0, max_refusals=0), "gdp", id="gnmax, gdp"),
    pytest.param(terms(mechanism="gnmax", sigma2=40.0, max_refusals=0), "label", id="gnmax, label"),
    pytest.param(priced_by("renyi", **LAPLACE), "renyi", id="Laplace"),
    pytest.param(priced_by("renyi", **STABLE), "renyi", id="stability"),
]


def worst_run(run: RunTerms, *, batch: int) -> RunLedger:
    """Run to the end, in batches; each gives as many answers as it can."""
    ledger, number = RunLedger.of(run), 0
    while not ledger.is_over:
        worst = ledger.worst_case(min(batch, ledger.outcomes.asks_left))
        answers = min(worst.answers, worst.asks)
        ledger = ledger.reserve(str(number), worst)
        ledger = ledger.commit(str(number), Outcomes(worst.asks - answers, answers), DIGEST)
        number += 1
    return ledger


class TestAffordable:
    @sampled(1)
    @in_turn(("base, way", WHOLE_RUNS), ("budget", [0.37, 0.81]))
    def test_so_many_fit_and_one_more_does_not(
        self, base: RunTerms, way: Pricing, budget: float
    ) -> None:
        wanted = frozenset({way})

        def sized(queries: int) -> RunTerms:
            refusals = min(base.max_refusals, queries)
            return replace(
                base,
                max_asks=queries,
                max_answers=queries,
                max_refusals=refusals,
                budgets=(5.0, budget, 5.0),
            )

        most = affordable_queries(sized, most=400, votes_are_valid=True, wanted=wanted)
        assert 0 < most < 400
        fits = priced(sized(most), votes_are_valid=True, wanted=wanted)
        assert fits.pricing == way
        for batch in (1, 7, most):
            assert worst_run(fits, batch=batch).is_over
        cost = formal_bounds(sized(most + 1), weight=1, votes_are_valid=True)[way]
        assert cost.epsilon > budget * (1 - 1e-8)
        over = priced(sized(most + 1), votes_are_valid=True, wanted=wanted)
        with pytest.raises(BudgetExhaustedError):
            RunLedger.of(over).reserve("all", caps_of(over))

    @sampled(2)
    @pytest.mark.parametrize(("base", "way"), WHOLE_RUNS)
    def test_what_a_run_costs_by_its_caps_lets_it_end_at_them(
        self, base: RunTerms, way: Pricing
    ) -> None:
        # The budget is what the caps cost, to the last digit but one part in a billion.
        run = priced(base, votes_are_valid=True, wanted=frozenset({way}))
        cost = formal_bounds(run, weight=1, votes_are_valid=True)[way].epsilon
        for batch in (1, 7, 60):
            assert worst_run(replace(run, budgets=(cost * (1 + 1e-9),) * 3), batch=batch).is_over

    @sampled(1)
    @pytest.mark.parametrize(("base", "way"), WHOLE_RUNS)
    def test_a_budget_that_the_caps_just_exhaust_is_never_overestimated(
        self, base: RunTerms, way: Pricing
    ) -> None:
        # Ledgers round up: what is said to be afforded must not fail at the last batch.
        wanted = frozenset({way})
        run = priced(base, votes_are_valid=True, wanted=wanted)
        cost = formal_bounds(run, weight=1, votes_are_valid=True)[way].epsilon

        def sized(queries: int) -> RunTerms:
            refusals = min(base.max_refusals, queries)
            return replace(
                base,
                max_asks=queries + refusals,
                max_answers=queries,
                max_refusals=refusals,
                budgets=(cost,) * 3,
            )

        most = affordable_queries(sized, most=200, votes_are_valid=True, wanted=wanted)
        fits = priced(sized(most), votes_are_valid=True, wanted=wanted)
        assert most in (base.max_answers - 1, base.max_answers)
        assert worst_run(fits, batch=7).is_over

    def test_nothing_is_afforded_where_nothing_has_a_price(self) -> None:
        base = terms(**IMMUTABLE, pricing="none")
        assert affordable_queries(lambda _: base, most=5, votes_are_valid=True) == 0

    @pytest.mark.exhaustive
    def test_more_budget_or_more_trust_never_affords_fewer(self) -> None:
        def sized(budget: float) -> Any:
            return lambda queries: terms(
                max_answers=queries,
                max_refusals=max(1, queries // 3),
                max_asks=queries + max(1, queries // 3),
                budgets=(budget,) * 3,
            )

        numbers = [
            affordable_queries(sized(budget), most=400, votes_are_valid=valid)
            for budget in (0.5, 1.0, 2.0)
            for valid in (False, True)
        ]
        assert numbers[0] < numbers[1] < numbers[3] < numbers[5]
        assert numbers[0] < numbers[2] < numbers[4] < numbers[5]


# Joint prices over batches ---------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn, run: RunTerms) -> list[Outcomes]:
    """A run in batches of any size, each released or lost."""
    ledger, number, seen = RunLedger.of(replace(run, budgets=(1e6,) * 3)), 0, []
    while not ledger.is_over and number < 12:
        worst = ledger.worst_case(draw(st.integers(1, ledger.outcomes.asks_left)))
        name = str(number)
        ledger, number = ledger.reserve(name, worst), number + 1
        if draw(st.integers(0, 3)) == 0:
            ledger = ledger.forfeit(name)
            seen.append(worst)
            continue
        refusals = draw(st.integers(0, worst.refusals))
        answers = draw(st.integers(0, min(worst.answers, worst.asks - refusals)))
        ledger = ledger.commit(name, Outcomes(refusals, answers), DIGEST)
        seen.append(Outcomes(refusals, answers))
    return seen


class TestJointBatches:
    @pytest.mark.slow
    @sampled(1)
    @in_turn(("order", [4.0, 12.0, 17.4]), ("max_asks", [60, 75, 90]), every=3)
    @settings(max_examples=40, deadline=None)
    @given(data=st.data())
    def test_batches_cost_at_most_the_whole_run(
        self, order: float, max_asks: int, data: st.DataObject
    ) -> None:
        run = priced_by("joint", order, max_asks=max_asks)
        whole = event_rdp(charge_of(run, caps_of(run), weight=1), [order])[0]
        seen = data.draw(histories(run))
        parts = math.fsum(event_rdp(charge_of(run, each, weight=1), [order])[0] for each in seen)
        assert parts <= whole * (1 + 1e-12)

    def test_a_whole_run_costs_what_its_formal_bound_says(self) -> None:
        run = priced(terms(), votes_are_valid=True, wanted=frozenset({"joint"}))
        formal = formal_bounds(run, weight=1, votes_are_valid=True)["joint"]
        [order] = set(run.orders)
        rdp = event_rdp(charge_of(run, caps_of(run), weight=1), [order])[0]
        epsilon = float(mp_epsilon(rdp, order, DELTA))
        assert epsilon <= formal.epsilon <= epsilon * (1 + 1e-8)

    def test_charges_of_a_run_name_its_caps_and_not_the_batchs(self) -> None:
        run = priced_by("joint")
        one = charge_of(run, Outcomes(1, 0), weight=1)
        other = charge_of(run, Outcomes(0, 1), weight=1)
        for event in (one, other):
            assert isinstance(event, JointPriceEvent)
            assert (event.max_refusals, event.max_answers, event.max_asks) == (30, 60, 90)
        # A pair of prices chosen for each batch alone, after it, would charge less.
        order = [12.0]
        fixed = event_rdp(one, order)[0] + event_rdp(other, order)[0]
        settings_of_run = (250, 2, 150.0, 50.0, 40.0)
        chosen = (
            event_rdp(JointPriceEvent(1, 0, *settings_of_run), order)[0]
            + event_rdp(JointPriceEvent(0, 1, *settings_of_run), order)[0]
        )
        assert chosen < 0.5 * fixed


# What each kind of run charges -----------------------------------------------------------------


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
        run = terms(unit=unit, weights=weights, vote_threshold=8.0, budgets=(1e4,) * 3)
        assert tuple(run.unit_votes_at(seat) for seat in range(3)) == votes
        assert run.unit_votes == max(votes)
        assert (run.quotas, run.total_votes) == ((4, 4, 7), 15)
        ledger = RunLedger.of(run).reserve("a", Outcomes(1, 1, 1))
        kept = dict(zip(ledger.seats, ledger.costs, strict=True))
        for seat, cost in kept.items():
            [entry] = cost.entries
            assert entry.reserved.weight == votes[seat]  # type: ignore[attr-defined]
        # Parties alike in votes, budget and order share a ledger; nobody is left out.
        assert {votes[seat] for seat in kept} == set(votes)

    def test_parties_of_other_orders_have_ledgers_of_their_own(self) -> None:
        # At the first order one ask is dear, at the others cheap: the first must be looked at.
        run = priced_by("label", orders=(12.0, 1.01, 12.0), budgets=(1.0,) * 3)
        both = RunLedger.of(run)
        assert len(both.seats) == 2
        with pytest.raises(BudgetExhaustedError):
            RunLedger.of(run, seat=1).reserve("a", Outcomes(1, 1, 1))
        with pytest.raises(BudgetExhaustedError):
            both.reserve("a", Outcomes(1, 1, 1))
        assert RunLedger.of(run, seat=0).reserve("a", Outcomes(1, 1, 1)).states

    def test_the_tightest_budget_decides_for_all(self) -> None:
        run = priced_by("gdp", budgets=(5.0, 0.5, 5.0))
        both, tight, number = RunLedger.of(run), RunLedger.of(run, seat=1), 0
        worst = both.worst_case(2)
        while tight.costs[0].can_afford(charge_of(run, worst, weight=1)):
            name, number = str(number), number + 1
            both, tight = (
                each.reserve(name, worst).commit(name, Outcomes(1, 1), DIGEST)
                for each in (both, tight)
            )
        assert number > 0
        with pytest.raises(BudgetExhaustedError) as refusal:
            both.reserve("more", worst)
        assert refusal.value.budget == 0.5
        for seat in (0, 2):
            assert RunLedger.of(run, seat=seat).reserve("a", worst).states

    def test_outcomes_are_counted_from_the_release(self) -> None:
        outcomes = [Outcome.ANSWERED, Outcome.REFUSED, Outcome.ANSWERED, Outcome.NOT_ASKED]
        release = NoisyRelease(
            np.array([1, ABSTAIN, 0, ABSTAIN], dtype=np.int64), np.array(outcomes, dtype=np.int8)
        )
        assert outcomes_of(release) == Outcomes(1, 2)

    def test_runs_without_a_price_keep_their_caps_and_no_cost(self) -> None:
        ledger = RunLedger.of(terms(**IMMUTABLE, pricing="none", max_answers=5))
        assert (ledger.seats, ledger.costs) == ((), ())
        ledger = ledger.reserve("a", ledger.worst_case(3)).commit("a", Outcomes(0, 3), DIGEST)
        ledger = ledger.reserve("b", ledger.worst_case(2)).forfeit("b")
        assert ledger.states == (EntryState.COMMITTED, EntryState.FORFEITED)
        assert ledger.is_over
        with pytest.raises(OutcomeCapError):
            ledger.reserve("c", Outcomes(0, 1))

    @pytest.mark.parametrize("mechanism", ["confident", "gnmax", "lnmax", "stable-gaussian"])
    def test_no_pricing_is_for_what_has_no_price_only(self, mechanism: str) -> None:
        given_terms: dict[str, Any] = {
            "confident": {},
            "gnmax": {"mechanism": "gnmax", "sigma2": 40.0, "max_refusals": 0},
            "lnmax": LAPLACE,
            "stable-gaussian": STABLE,
        }[mechanism]
        with pytest.raises(InvalidParameterError, match="got none"):
            terms(**given_terms, pricing="none")

    @pytest.mark.parametrize("pricing", ["gdp", "label", "joint", "renyi"])
    def test_what_protects_nobody_is_never_priced(self, pricing: Pricing) -> None:
        with pytest.raises(InvalidParameterError, match="none"):
            priced_by(pricing, **IMMUTABLE)

    @pytest.mark.parametrize(
        ("pricing", "changed"),
        [
            pytest.param("renyi", {}, id="a curve for Gaussian noise"),
            pytest.param("gdp", LAPLACE, id="Gaussian composition of Laplace noise"),
            pytest.param("label", LAPLACE, id="label level of Laplace noise"),
            pytest.param("gdp", STABLE, id="Gaussian composition of tests of stability"),
            pytest.param("joint", LAPLACE, id="joint price of Laplace noise"),
            pytest.param(
                "joint",
                {**GAUSSIAN, "mechanism": "interactive", "confidence": 0.9},
                id="joint price against predictions",
            ),
        ],
    )
    def test_a_pricing_is_known_for_its_mechanisms_only(
        self, pricing: Pricing, changed: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidParameterError, match="pricing"):
            priced_by(pricing, **changed)

    def test_passed_batches_keep_their_caps_and_cancelled_ones_do_not(self) -> None:
        run = terms(max_answers=5, max_refusals=5)
        cancelled = RunLedger.of(run)
        cancelled = cancelled.reserve("a", cancelled.worst_case(3)).cancel("a")
        passed = RunLedger.of(run).pass_over("a", 3)
        forfeited = RunLedger.of(run)
        forfeited = forfeited.reserve("a", forfeited.worst_case(3)).forfeit("a")
        assert cancelled.left == RunLedger.of(run).left
        assert passed.left == forfeited.left == Outcomes(2, 2, 4)
        charged = [ledger.costs[0].used_share() for ledger in (cancelled, passed, forfeited)]
        assert charged[:2] == [0, 0]
        assert charged[2] > 0

    def test_a_passed_batch_of_any_size_leaves_no_cap_exceeded(self) -> None:
        ledger = RunLedger.of(terms(max_answers=5, max_refusals=5)).pass_over("a", 10**9)
        assert ledger.is_over
        assert ledger.pass_over("b", 3) == ledger


class TestLifelongCharge:
    """A party's own ledger adds up in a way of its own, over runs that are priced otherwise."""

    def charge(self, run: RunTerms, order: float | None) -> PrivacyEvent | None:
        ledger = PrivacyLedger(5.0, DELTA, order=order)
        return lifelong_charge(run, Outcomes(2, 3, 4), weight=1, ledger=ledger)

    @pytest.mark.parametrize("pricing", ["gdp", "label", "joint"])
    def test_a_ledger_without_an_order_takes_the_gaussian_cost(self, pricing: Pricing) -> None:
        gaussian = ConfidentGaussianMaxEvent(4, 3, 50.0, 40.0)
        assert self.charge(priced_by(pricing), None) == gaussian

    def test_a_ledger_with_an_order_takes_the_runs_price(self) -> None:
        run = priced_by("joint")
        assert self.charge(run, 7.0) == charge_of(run, Outcomes(2, 3, 4), weight=1)
        # Never the joint price where the run is not charged by it: its votes are not trusted.
        assert self.charge(priced_by("gdp"), 7.0) == ConfidentGaussianMaxEvent(4, 3, 50.0, 40.0)
        label = priced_by("label")
        assert self.charge(label, 7.0) == charge_of(label, Outcomes(2, 3, 4), weight=1)
        assert isinstance(self.charge(label, 7.0), AnyVotesEvent)

    @pytest.mark.parametrize("changed", [LAPLACE, STABLE], ids=["Laplace", "stability"])
    def test_a_ledger_that_cannot_add_it_up_refuses(self, changed: dict[str, Any]) -> None:
        run = priced_by("renyi", **changed)
        ledger = PrivacyLedger(5.0, DELTA)
        outcomes = Outcomes(0, 1) if changed is LAPLACE else Outcomes(1, 1, 1)
        charge = lifelong_charge(run, outcomes, weight=1, ledger=ledger)
        assert charge is not None
        with pytest.raises(UnsupportedEventError):
            ledger.reserve("a", charge)

    def test_nothing_is_charged_for_what_has_no_price(self) -> None:
        run = terms(**IMMUTABLE, pricing="none")
        found = lifelong_charge(run, Outcomes(0, 1), weight=1, ledger=PrivacyLedger(5.0, DELTA))
        assert found is None

    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def test_what_is_released_is_covered_by_what_was_reserved(self, data: st.DataObject) -> None:
        # Else a party's own ledger would refuse the settlement after its run's ledger took it.
        run: Any = data.draw(st.sampled_from([each.values[0] for each in RUNS]))
        order = data.draw(st.sampled_from([None, 3.0, 12.0]))
        ledger = PrivacyLedger(1e6, DELTA, order=order)
        runs_own = RunLedger.of(run, seat=0)
        worst = runs_own.worst_case(data.draw(st.integers(1, 40)))
        refusals = data.draw(st.integers(0, worst.refusals))
        answers = data.draw(st.integers(0, min(worst.answers, worst.asks - refusals)))
        reserved, spent = (
            lifelong_charge(run, outcomes, weight=run.unit_votes_at(0), ledger=ledger)
            for outcomes in (worst, Outcomes(refusals, answers))
        )
        assert reserved is not None
        assert spent is not None
        assert spent.is_covered_by(reserved)


def test_a_record_of_a_run_comes_back_under_the_same_budgets_and_caps_alone() -> None:
    run = terms()
    ledger = RunLedger.of(run).reserve("a", Outcomes(1, 1)).forfeit("a")
    record = ledger.to_record()
    assert RunLedger.of(run).with_record(record) == ledger
    assert ledger.without_entries == RunLedger.of(run)
    for other in (terms(max_answers=59), terms(budgets=(2.5,) * 3)):
        with pytest.raises(LedgerError, match="keep its budgets and caps"):
            RunLedger.of(other).with_record(record)

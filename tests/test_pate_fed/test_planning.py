"""`pate-fed plan`: what a budget buys, before anything is spent, at both places of the noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed import planning
from pate_fed.accounting import DistributedGaussianMaxEvent, GaussianMaxEvent
from pate_fed.accounting.formal_cost import counts_cost, labels_cost
from pate_fed.data import Dataset, Records
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidSettingError,
    NarrowNoiseError,
    PateFedError,
    UnfitSumError,
)
from pate_fed.mechanisms.preview import simulated_votes
from pate_fed.planning import PlanRequest, RunSettings, advised_sum, resolve, terms_of
from pate_fed.planning.plan import resolve_plan
from pate_fed.prices import charged_price
from protocols.additive import AdditiveSum
from protocols.forms import DEPLOYED_FORMS, FORMS
from protocols.masked import MaskedSum
from tests.support.rules import plan_request
from tests.support.threshold_law import threshold_log_law

DELTA = 1e-5
PLACES = ("coordinator", "parties")


@cache
def plan(asked: PlanRequest) -> dict[str, Any]:
    """Make each plan once: it follows from its request alone."""
    return planning.plan(asked, sums=DEPLOYED_FORMS)


def request(**changed: Any) -> PlanRequest:
    asked: dict[str, Any] = {
        "parties": 10,
        "teachers": 4,
        "classes": 3,
        "epsilon": 4.0,
        "delta": DELTA,
        "unit": "record",
    }
    return plan_request(**{**asked, **changed})


def price_of(place: str, sigma: float, asks: int, *, classes: int = 3, weight: int = 1) -> float:
    """The cost that a budget is for, from its event alone; a threshold is one more option."""
    if place == "parties":  # one colluder of ten, and nobody may be lost
        event = DistributedGaussianMaxEvent(asks, sigma, 9, weight)
        return counts_cost(event, delta=DELTA).epsilon
    one = GaussianMaxEvent(asks, sigma, float(weight))
    return labels_cost(one, options=classes + 1, delta=DELTA).epsilon


@pytest.mark.parametrize("place", PLACES)
class TestForecasts:
    def test_each_fits_the_budget_and_one_query_more_does_not(self, place: str) -> None:
        offer = plan(request(noise=place))["forecast"]
        sigma, queries = offer["mechanism"]["sigma2"], offer["queries"]
        assert queries < 100, "the budget decides, not the usual number"
        assert price_of(place, sigma, queries) <= 4.0 < price_of(place, sigma, queries + 1)
        charged = offer["prices"]["public" if place == "coordinator" else "coordinator"]
        assert charged["epsilon"] == price_of(place, sigma, queries)
        assert offer["expected_right"] <= offer["expected_answered"] <= queries
        assert offer["mechanism"]["name"] == "threshold"

    def test_every_number_says_for_whom_and_by_what(self, place: str) -> None:
        found = plan(request(noise=place))
        views = ["public"] if place == "coordinator" else ["coordinator", "public"]
        assert found["view"] == views[0]
        offer = found["forecast"]
        assert list(offer["prices"]) == views
        for price in offer["prices"].values():
            assert (price["delta"], price["unit"]) == (DELTA, "record")
            assert all(price[key] for key in ("view", "method"))
        assert offer["decides"]["neighbors"] == found["neighbors"]

    def test_expected_answers_are_those_of_the_exact_law(self, place: str) -> None:
        counts = simulated_votes(votes=40, classes=3)
        offer = plan(request(noise=place))["forecast"]
        rule, share = offer["mechanism"], offer["noise_share"]
        # The sum that is opened has the noise of all ten, the colluder's included.
        sigma = rule["sigma2"] if share is None else share["sum_sigma"]
        laws = np.exp(
            [
                threshold_log_law(row, vote_threshold=rule["vote_threshold"], sigma=sigma)
                for row in counts
            ]
        )
        # 8,000 draws: five standard deviations of a share are at most 0.028.
        rate, right = 1 - laws[:, -1].mean(), laws[:, 0].mean()
        assert offer["expected_answered"] / offer["queries"] == pytest.approx(rate, abs=0.028)
        assert offer["expected_right"] / offer["queries"] == pytest.approx(right, abs=0.028)

    def test_a_larger_budget_buys_more_and_never_costs_less(self, place: str) -> None:
        small, large = (plan(request(noise=place, epsilon=one))["forecast"] for one in (2.0, 4.0))
        assert small["expected_right"] < large["expected_right"]
        curve = [point["epsilon"] for point in large["epsilon_over_answers"]]
        assert curve == sorted(curve)
        assert curve[-1] == max(price["epsilon"] for price in large["prices"].values())

    def test_what_was_named_is_kept(self, place: str) -> None:
        own = request(noise=place, vote_threshold=11.0, sigma2=9.0, queries=5)
        offer = plan(own)["forecast"]
        assert (offer["mechanism"]["vote_threshold"], offer["mechanism"]["sigma2"]) == (11.0, 9.0)
        assert offer["queries"] == 5

    def test_a_whole_hospital_gets_fewer_queries_than_a_patient(self, place: str) -> None:
        noise = {"noise": place, "sigma2": 16.0}
        record, party = (
            plan(request(unit=unit, **noise))["forecast"] for unit in ("record", "party")
        )
        assert party["queries"] < record["queries"]

    def test_a_budget_for_no_query_is_refused(self, place: str) -> None:
        with pytest.raises(BudgetExhaustedError):
            plan(request(noise=place, epsilon=0.05))


@pytest.mark.parametrize("place", PLACES)
class TestHospitalsThatDiffer:
    """Each has its own budget, and its teachers may weigh more or less."""

    def test_nobodys_budget_is_broken_and_each_is_told_its_own(self, place: str) -> None:
        budgets = (6.0, *(4.0,) * 9)
        own = {"weights": (2, *(1,) * 9), "party_epsilons": budgets, "sigma2": 20.0}
        best = plan(request(noise=place, teachers=2, unit="party", **own))["forecast"]
        rows = best["parties"]
        assert [row["budget"] for row in rows] == list(budgets)
        assert [row["unit_votes"] for row in rows] == [4] + [2] * 9
        for row in rows:
            cost = price_of(place, 20.0, best["queries"], weight=row["unit_votes"])
            assert row["epsilon"] == cost <= row["budget"]
        assert rows[0]["epsilon"] > rows[1]["epsilon"], "a heavier hospital pays more"
        more = best["queries"] + 1
        assert any(
            price_of(place, 20.0, more, weight=row["unit_votes"]) > row["budget"] for row in rows
        )

    def test_the_tightest_budget_decides(self, place: str) -> None:
        noise = {"noise": place, "sigma2": 12.0}
        alone = plan(request(epsilon=2.0, **noise))["forecast"]
        tightest = plan(request(party_epsilons=(9.0, 2.0, *(9.0,) * 8), **noise))["forecast"]
        assert tightest["queries"] == alone["queries"]
        assert (tightest["decides"]["party"], tightest["decides"]["budget"]) == ("party-2", 2.0)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"parties": 0}, id="no party"),
        pytest.param({"classes": 1}, id="one class"),
        pytest.param({"epsilon": 0.0}, id="no budget"),
        pytest.param({"delta": 1.0}, id="delta of 1"),
        pytest.param({"teacher_accuracy": 1 / 3}, id="teachers that guess"),
        pytest.param({"queries": 0}, id="no query"),
        pytest.param({"queries": -5}, id="fewer than no queries"),
        pytest.param({"classes": 10**6}, id="more classes than memory"),
        pytest.param({"sigma2": 0.0}, id="no noise"),
        pytest.param({"sigma2": float("nan")}, id="noise that is no number"),
        pytest.param({"sigma2": -1.0}, id="negative noise"),
        pytest.param({"vote_threshold": -1.0}, id="negative threshold"),
        pytest.param({"noise": "moon"}, id="noise from nowhere"),
        pytest.param({"colluders": 1}, id="colluders of noise at the coordinator"),
        pytest.param({"vote_threshold": float("nan")}, id="threshold that is no number"),
        pytest.param({"teacher_accuracy": 1.0}, id="teachers that never err"),
    ],
)
def test_bad_requests_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingError):
        request(**changed)


class TestLists:
    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"weights": (1, 1)}, id="too few weights"),
            pytest.param({"weights": (0,) * 10}, id="a weight of 0"),
            pytest.param({"weights": (2**29,) * 10}, id="more votes than can be added"),
            pytest.param({"party_epsilons": (1.0,) * 9}, id="a budget missing"),
            pytest.param({"party_epsilons": (float("nan"),) * 10}, id="budgets no numbers"),
            pytest.param({"party_epsilons": (0.0,) * 10}, id="budgets of 0"),
        ],
    )
    def test_lists_that_do_not_fit_are_refused(self, changed: dict[str, Any]) -> None:
        with pytest.raises(InvalidSettingError):
            plan(request(**changed))


WITHOUT_TALLY = {name: form for name, form in DEPLOYED_FORMS.items() if not form.adds_noise}


class TestAdvisedSum:
    """Which secure sum fits, by how many hospitals may be lost."""

    @pytest.mark.parametrize(
        ("parties", "dropouts", "form"),
        [
            pytest.param(3, 0, "additive", id="three that stay"),
            pytest.param(100, 0, "additive", id="a hundred that stay"),
            pytest.param(5, 1, "masked", id="one of five lost"),
            pytest.param(10, 3, "masked", id="three of ten lost"),
            pytest.param(10, 4, None, id="more of ten than any sum survives"),
            pytest.param(4, 1, None, id="one of four lost"),
            pytest.param(2, 0, None, id="two hospitals"),
        ],
    )
    def test_it_survives_what_is_expected(
        self, parties: int, dropouts: int, form: str | None
    ) -> None:
        advice = advised_sum(parties, dropouts=dropouts, sums=WITHOUT_TALLY)
        assert advice["form"] == form
        if form is not None:
            secure = {"additive": AdditiveSum, "masked": MaskedSum}[form]()
            secure.require_enough(parties)
            assert advice["survives"] == parties - secure.threshold(parties) >= dropouts
            assert advice["hides_from"] == secure.most_colluders(parties)

    @pytest.mark.parametrize("dropouts", [-1, 10])
    def test_impossible_numbers_are_refused(self, dropouts: int) -> None:
        with pytest.raises(InvalidSettingError):
            request(expected_dropouts=dropouts)

    @pytest.mark.parametrize(
        ("parties", "dropouts", "form", "fits"),
        [
            pytest.param(10, 0, "masked", True, id="masked, though nobody may be lost"),
            pytest.param(10, 3, "masked", True, id="as many as masked survives"),
            pytest.param(10, 0, "additive", True, id="additive"),
            pytest.param(10, 1, "additive", False, id="additive with one lost"),
            pytest.param(4, 0, "masked", False, id="masked of four"),
        ],
    )
    def test_a_sum_that_was_named_is_the_one_that_is_judged(
        self, parties: int, dropouts: int, form: str, fits: bool
    ) -> None:
        advice = advised_sum(parties, dropouts=dropouts, sums=DEPLOYED_FORMS, form=form)
        assert advice["form"] == (form if fits else None)
        assert form in advice["why"] or fits


class TestNoiseAtTheParties:
    def test_what_each_hospital_adds_is_what_the_honest_ones_need(self) -> None:
        found = plan(request(noise="parties", form="masked", colluders=2))
        assert found["shares"] == {"parties": 10, "colluders": 2, "dropouts": 3, "suffice": 5}
        offer = found["forecast"]
        share = offer["noise_share"]
        together = 5 * share["share_sigma"] ** 2
        assert share["sigma"] == offer["mechanism"]["sigma2"]
        assert share["sigma"] ** 2 <= together <= share["sigma"] ** 2 * (1 + 1e-12)
        assert share["sum_sigma"] == pytest.approx(share["share_sigma"] * math.sqrt(10))
        assert share["share_sigma"] >= 1
        assert share["sigma"] >= share["least_sigma"] >= math.sqrt(5) - 1e-4
        assert 0 <= share["correction"] < 1e-4
        assert plan(request())["forecast"]["noise_share"] is None

    def test_masked_counts_all_hospitals_that_it_goes_on_without_as_lost(self) -> None:
        found = plan(request(noise="parties", expected_dropouts=1))
        assert found["sum"]["form"] == "masked"
        assert found["shares"] == {"parties": 10, "colluders": 1, "dropouts": 3, "suffice": 6}

    def test_noise_that_is_too_little_to_be_divided_is_refused(self) -> None:
        with pytest.raises(NarrowNoiseError, match="--sigma2") as refusal:
            plan(request(noise="parties", sigma2=2.9))
        assert "at least 3" in refusal.value.must
        assert plan(request(noise="parties", sigma2=3.0, epsilon=50.0))["forecast"]["queries"] > 0

    def test_small_federations_get_noise_that_is_wide_enough(self) -> None:
        found = plan(request(noise="parties", parties=40, teachers=1, unit="party", epsilon=8.0))
        offer = found["forecast"]
        assert offer["mechanism"]["sigma2"] >= math.ceil(math.sqrt(39))

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"colluders": 0}, id="nobody knows its own noise"),
            pytest.param({"colluders": 9}, id="more than additive withstands"),
            pytest.param({"colluders": 4, "form": "masked"}, id="more than masked withstands"),
        ],
    )
    def test_colluders_that_no_sum_withstands_are_refused(self, changed: dict[str, Any]) -> None:
        with pytest.raises(InvalidSettingError, match="--colluders"):
            plan(request(noise="parties", **changed))

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"form": "additive", "expected_dropouts": 1}, id="a lost one voids it"),
            pytest.param({"form": "masked", "expected_dropouts": 4}, id="too many lost"),
            pytest.param({"form": "masked", "parties": 4}, id="too few for masked"),
            pytest.param({"parties": 2}, id="too few for any"),
        ],
    )
    def test_a_sum_that_does_not_fit_is_refused(self, changed: dict[str, Any]) -> None:
        with pytest.raises(UnfitSumError):
            plan(request(noise="parties", **changed))


AGREEING = (
    [
        pytest.param(
            {
                "data": str(rng.choice(["digits", "mnist"])),
                "parties": int(rng.integers(3, 40)),
                "teachers": int(rng.integers(1, 30)),
                "epsilon": float(rng.uniform(1, 8)),
                "delta": float(10.0 ** -rng.integers(4, 7)),
                "mechanism": [None, "threshold", "gnmax"][int(rng.integers(3))],
                "unit": [None, "record", "party"][int(rng.integers(3))],
                "queries": [None, 7][int(rng.integers(2))],
                "noise": str(rng.choice(["coordinator", "parties"])),
                "classes": int(rng.choice([2, 3, 10])),
            },
            id=f"{case}",
        )
        for case, rng in enumerate(map(np.random.default_rng, range(14)))
    ]
    + [
        pytest.param(
            {
                "data": "csv",
                "parties": 4,
                "records": int(rng.integers(8, 300)),
                "epsilon": 2.0,
                "sigma2": float(rng.uniform(20, 60)),
                **({"records_per_teacher": int(rng.integers(2, 20))} if case % 2 else {}),
                "queries": [None, 40][int(rng.integers(2))],
                "classes": 2,
            },
            id=f"table {case}",
        )
        for case, rng in enumerate(map(np.random.default_rng, range(20, 26)))
    ]
    + [
        pytest.param(
            {
                "data": str(rng.choice(["csv", "mnist"])),
                "teacher": "neighbors",
                "parties": int(rng.integers(3, 12)),
                "records": int(rng.integers(3, 90)),
                "epsilon": float(rng.uniform(0.3, 4)),
                "patient_votes": [None, int(rng.integers(1, 30))][case % 2],
                "queries": [None, 90][int(rng.integers(2))],
                "mechanism": [None, "gnmax"][int(rng.integers(2))],
                "classes": int(rng.choice([2, 4])),
            },
            id=f"records that vote {case}",
        )
        for case, rng in enumerate(map(np.random.default_rng, range(30, 36)))
    ]
    + [
        pytest.param(
            {
                "data": ["digits", "csv"][case % 2],
                "form": "verified",
                "parties": int(rng.integers(3, 40)),
                "teachers": int(rng.integers(1, 30)),
                "epsilon": float(rng.uniform(1, 8)),
                "mechanism": [None, "threshold", "gnmax"][int(rng.integers(3))],
                "unit": [None, "record", "party"][int(rng.integers(3))],
                "queries": [None, 7][int(rng.integers(2))],
                "classes": int(rng.choice([2, 3, 10])),
            },
            id=f"verified {case}",
        )
        for case, rng in enumerate(map(np.random.default_rng, range(40, 46)))
    ]
)


@pytest.mark.slow
@pytest.mark.parametrize("given", AGREEING)
def test_a_plan_and_a_simulation_choose_the_same(given: dict[str, Any]) -> None:
    """Queries, mechanism and price: one forecast, wherever it is asked for."""
    own = dict(given)
    data, classes, records = own["data"], own.pop("classes"), own.pop("records", 60)
    others = {"party_epsilons": None, "vote_threshold": None, "mechanism": None, "suite": "s"}
    own = {**others, **own}
    form = own.pop("form", "additive")
    size = int(own["parties"]) * int(records)
    rng = np.random.default_rng(1)

    def part(start: int, count: int) -> Records:
        names = tuple(str(one) for one in range(start, start + count))
        labels = np.arange(count) % classes
        return Records(rng.normal(size=(count, 3)), labels, names)

    kind = "table" if data == "csv" else "image"
    found = Dataset(
        data,
        kind,
        tuple(map(str, range(classes))),
        part(0, size),
        part(size, 600),
        part(size + 600, 20),
    )
    source = {"data_file": Path("x"), "label": "y"} if data == "csv" else {}
    source |= {"data_dir": Path("x")} if data == "mnist" else {}
    asked = RunSettings.of({**own, **source, "form": form})

    def outcome(make: Callable[[], tuple[RunSettings, float]]) -> object:
        try:
            resolved, epsilon = make()
        except PateFedError as error:
            return type(error)
        return resolved.rule, resolved.caps, resolved.unit, resolved.votes, epsilon

    def simulated() -> tuple[RunSettings, float]:
        resolved = resolve(asked, found, sums=FORMS, rng=np.random.default_rng(0))
        terms = terms_of(resolved, name="run", classes=classes, pool_digest=bytes(32), sums=FORMS)
        return resolved, charged_price(terms, 0).epsilon

    def planned() -> tuple[RunSettings, float]:
        request = PlanRequest.of(own, records=records, classes=classes, form=form)
        resolved = resolve_plan(request, FORMS[form]).settings
        found = planning.plan(request, sums={form: FORMS[form]})
        [price] = {row["epsilon"] for row in found["forecast"]["parties"]}
        return resolved, price

    assert outcome(planned) == outcome(simulated)

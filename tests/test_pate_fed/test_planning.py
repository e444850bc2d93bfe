"""`pate-fed plan`: what a budget buys, before anything is spent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from pate_fed import planning
from pate_fed.accounting.formal import RunCaps, formal_costs
from pate_fed.errors import BudgetExhaustedError, InvalidSettingError
from pate_fed.planning import PlanRequest, advised_sum
from protocols.additive import AdditiveSum
from protocols.forms import DEPLOYED_FORMS
from protocols.masked import MaskedSum


@cache
def plan(asked: PlanRequest) -> dict[str, Any]:
    """Make each plan once: it follows from its request alone."""
    return planning.plan(asked, sums=DEPLOYED_FORMS)


def request(**changed: Any) -> PlanRequest:
    asked: dict[str, Any] = {
        "parties": 30,
        "teachers": 1,
        "classes": 2,
        "epsilon": 3.0,
        "delta": 1e-5,
        "unit": "party",
    }
    return PlanRequest(**{**asked, **changed})


@pytest.mark.slow
def test_offer_stays_within_the_budget_and_says_by_which_bound() -> None:
    best = plan(request())["best"]
    assert 0 < best["epsilon"]["smallest"] <= 3.0
    bounds = [best["epsilon"][name] for name in ("formal_gdp", "formal_label", "formal_joint")]
    assert best["epsilon"]["smallest"] == min(bound for bound in bounds if bound is not None)
    assert best["expected_right"] <= best["expected_answered"] <= best["queries"]


@pytest.mark.slow
def test_any_votes_never_get_the_joint_price() -> None:
    best = plan(request(votes_are_valid=False))["best"]
    assert "joint" not in best["epsilon"]["method"]
    assert best["queries"] <= plan(request())["best"]["queries"]


@pytest.mark.exhaustive
def test_no_choice_that_is_tried_buys_more_right_answers() -> None:
    asked = request(parties=12, teachers=5, classes=4, epsilon=1.7, unit="record")
    best = plan(asked)["best"]["expected_right"]
    for threshold, sigma1, sigma2 in product((0.4, 0.5, 0.6), (0.3, 0.4, 0.5), (0.16, 0.2, 0.24)):
        shares = {"vote_threshold": threshold, "sigma1": sigma1, "sigma2": sigma2}
        noises = {name: share * asked.votes for name, share in shares.items()}
        assert plan(replace(asked, **noises))["best"]["expected_right"] <= best


@pytest.mark.slow
def test_a_larger_budget_buys_more() -> None:
    small, large = (plan(request(epsilon=epsilon))["best"] for epsilon in (1.5, 3.0))
    assert small["expected_right"] < large["expected_right"]


@pytest.mark.exhaustive
def test_more_votes_of_one_unit_buy_less() -> None:
    whole = plan(request(parties=10, teachers=3, unit="party"))["best"]
    record = plan(request(parties=10, teachers=3, unit="record"))["best"]
    assert whole["expected_right"] < record["expected_right"]


@pytest.mark.slow
def test_a_budget_for_no_query_is_refused() -> None:
    with pytest.raises(BudgetExhaustedError):
        plan(request(parties=3, epsilon=0.1))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"parties": 0}, id="no party"),
        pytest.param({"classes": 1}, id="one class"),
        pytest.param({"epsilon": 0.0}, id="no budget"),
        pytest.param({"delta": 1.0}, id="delta of 1"),
        pytest.param({"teacher_accuracy": 0.5}, id="teachers that guess"),
        pytest.param({"queries": 0}, id="no query"),
        pytest.param({"queries": -5}, id="fewer than no queries"),
        pytest.param({"classes": 10**6}, id="more classes than memory"),
        pytest.param({"sigma1": 0.0}, id="no noise in the check"),
        pytest.param({"sigma1": float("nan")}, id="noise that is no number"),
        pytest.param({"sigma2": -1.0}, id="negative noise"),
        pytest.param({"vote_threshold": float("nan")}, id="threshold that is no number"),
        pytest.param({"teacher_accuracy": 1.0}, id="teachers that never err"),
    ],
)
def test_bad_requests_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettingError):
        request(**changed)


class TestHospitalsThatDiffer:
    """Each has its own budget, and its teachers may weigh more or less."""

    def rows(self, **changed: Any) -> list[dict[str, Any]]:
        found = plan(request(parties=10, teachers=2, unit="party", **changed))
        return list(found["best"]["parties"])

    @pytest.mark.exhaustive
    def test_nobodys_budget_is_broken(self) -> None:
        budgets = (6.0, 4.0, 4.0, 4.0, 4.0, 5.0, 5.0, 5.0, 5.0, 5.0)
        asked = request(
            parties=10,
            teachers=2,
            unit="party",
            weights=(2, 1, 1, 1, 1, 1, 1, 1, 1, 1),
            party_epsilons=budgets,
        )
        best = plan(asked)["best"]
        rows, rule = list(best["parties"]), best["mechanism"]
        assert [row["budget"] for row in rows] == list(budgets)
        for row in rows:
            # From the caps alone: the number shown is cut at the budget, and could not tell.
            caps = RunCaps(
                teachers=22,
                classes=2,
                vote_threshold=rule["vote_threshold"],
                sigma1=rule["sigma1"],
                sigma2=rule["sigma2"],
                asks=best["queries"],
                answers=rule["max_answers"],
                refusals=rule["max_refusals"],
                weight=row["unit_votes"],
                delta=1e-5,
            )
            costs = formal_costs(caps, votes_are_valid=True)
            by_pricing = {"gdp": costs.gdp, "label": costs.label, "joint": costs.joint}
            cost = by_pricing[rule["pricing"]]
            assert cost is not None
            assert cost.epsilon <= row["budget"]
            assert row["epsilon"] == pytest.approx(cost.epsilon, rel=1e-9)
        assert [row["unit_votes"] for row in rows] == [4] + [2] * 9

    @pytest.mark.exhaustive
    def test_a_heavier_hospital_pays_more(self) -> None:
        rows = self.rows(weights=(2, *(1,) * 9), epsilon=6.0)
        assert rows[0]["epsilon"] > rows[1]["epsilon"]

    @pytest.mark.exhaustive
    def test_the_tightest_budget_decides(self) -> None:
        alone = plan(request(epsilon=1.5))["best"]
        tightest = plan(request(party_epsilons=(1.5, *(9.0,) * 29)))["best"]
        assert tightest["queries"] == alone["queries"]

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"weights": (1, 1)}, id="too few weights"),
            pytest.param({"weights": (0,) * 30}, id="a weight of 0"),
            pytest.param({"weights": (2**29,) * 30}, id="more votes than can be added"),
            pytest.param({"party_epsilons": (1.0,) * 29}, id="a budget missing"),
            pytest.param({"party_epsilons": (float("nan"),) * 30}, id="budgets no numbers"),
            pytest.param({"party_epsilons": (0.0,) * 30}, id="budgets of 0"),
        ],
    )
    def test_lists_that_do_not_fit_are_refused(self, changed: dict[str, Any]) -> None:
        with pytest.raises(InvalidSettingError):
            plan(request(**changed))


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
        advice = advised_sum(parties, dropouts=dropouts, sums=DEPLOYED_FORMS)
        assert advice["form"] == form
        if form is not None:
            secure = {"additive": AdditiveSum, "masked": MaskedSum}[form]()
            secure.require_enough(parties)
            assert advice["survives"] == parties - secure.threshold(parties) >= dropouts
            assert advice["hides_from"] == secure.most_colluders(parties)

    @pytest.mark.parametrize("dropouts", [-1, 30])
    def test_impossible_numbers_are_refused(self, dropouts: int) -> None:
        with pytest.raises(InvalidSettingError):
            request(expected_dropouts=dropouts)

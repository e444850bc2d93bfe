"""`pate-fed plan --noise parties`: prices in both views, shares, and what the check passes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from pate_fed.accounting import (
    DistributedConfidentMaxEvent,
    DistributedGaussianMaxEvent,
    distributed_costs,
)
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidSettingError,
    NarrowNoiseError,
    UnfitSumError,
)
from pate_fed.planning import PlanRequest, advised_sum, plan
from protocols.forms import DEPLOYED_FORMS
from tests.support.markers import more, sampled

DELTA = 1e-5


@lru_cache
def plan_at_parties(asked: PlanRequest) -> dict[str, Any]:
    """The same question has the same answer: each is asked once."""
    return plan(asked, sums=DEPLOYED_FORMS)


def request(**changed: Any) -> PlanRequest:
    asked: dict[str, Any] = {
        "parties": 10,
        "teachers": 4,
        "classes": 3,
        "epsilon": 5.0,
        "delta": DELTA,
        "unit": "record",
        "noise": "parties",
    }
    return PlanRequest(**{**asked, **changed})


def sum_law(share_sigma: float, shares: int) -> NDArray[np.float64]:
    """Return the law of the sum of discrete Gaussians, added up one by one."""
    reach = math.ceil(12 * share_sigma)
    one = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * share_sigma**2))
    law = one / one.sum()
    total = np.ones(1)
    for _ in range(shares):
        total = np.convolve(total, law)
    return np.asarray(total)


def epsilon_of_rows(rows: list[tuple[int, float]], *, shares: int, moved: int) -> float:
    """Price opened rows from their law alone: sum of powers, then CKS, over many orders."""
    orders = 1 + np.geomspace(0.2, 60.0, 4000)
    rdp = np.zeros(len(orders))
    for count, sigma in rows:
        law = sum_law(sigma / math.sqrt(shares), shares)
        here, there = np.log(law[moved:]), np.log(law[:-moved])
        seen = (here > -600) & (there > -600)
        powers = orders[:, np.newaxis] * here[seen] + (1 - orders[:, np.newaxis]) * there[seen]
        top = powers.max(axis=1)
        divergence = (top + np.log(np.exp(powers - top[:, np.newaxis]).sum(axis=1))) / (orders - 1)
        rdp += count * 2 * divergence
    epsilons = rdp + np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    return float(epsilons.min())


class TestPrices:
    """Each number stands against one that was reached another way."""

    @sampled(1)
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("changed", "shares", "moved"),
        [
            pytest.param({}, 9, 1, id="additive"),
            pytest.param({"form": "masked", "colluders": 2}, 5, 1, id="masked"),
            pytest.param({"unit": "party", "epsilon": 30.0}, 9, 4, id="a whole hospital"),
        ],
    )
    def test_the_coordinators_view_is_that_of_the_rows_own_law(
        self, changed: dict[str, Any], shares: int, moved: int
    ) -> None:
        found = plan_at_parties(request(**changed))
        assert found["shares"]["suffice"] == shares
        for offer in (found["best"], *found["others"]):
            rule, asks = offer["mechanism"], offer["queries"]
            rows = [(rule["max_answers"], rule["sigma2"])]
            if rule["name"] == "confident":
                rows.append((asks, rule["sigma1"]))
            expected = epsilon_of_rows(rows, shares=shares, moved=moved)
            price = offer["prices"]["coordinator"]
            # Ledgers must afford the divergences; the statement may compose rows of one kind.
            assert expected <= found["budget"]["epsilon"] * (1 + 1e-5)
            if rule["name"] == "confident":
                assert price["epsilon"] == pytest.approx(expected, rel=1e-5)
            else:
                assert 0.9 * expected < price["epsilon"] < 0.97 * expected

    @pytest.mark.slow
    def test_the_publics_view_is_that_of_the_accountant_and_less(self) -> None:
        found = plan_at_parties(request())
        plain, phased = found["best"], found["others"][0]
        rule = phased["mechanism"]
        sigma2, answers = plain["mechanism"]["sigma2"], rule["max_answers"]
        costs = (
            distributed_costs(
                DistributedGaussianMaxEvent(plain["queries"], sigma2, 9, 1), delta=DELTA
            ),
            distributed_costs(
                DistributedConfidentMaxEvent(
                    phased["queries"], answers, rule["sigma1"], rule["sigma2"], 9, 1
                ),
                delta=DELTA,
            ),
        )
        for offer, cost in zip((plain, phased), costs, strict=True):
            public = offer["prices"]["public"]
            assert public["epsilon"] == cost.public.epsilon
            assert public["epsilon"] < offer["prices"]["coordinator"]["epsilon"]

    @pytest.mark.slow
    def test_every_number_says_for_whom_by_what_and_from_where(self) -> None:
        found = plan_at_parties(request())
        for offer in (found["best"], *found["others"]):
            for price in offer["prices"].values():
                assert (price["delta"], price["unit"]) == (DELTA, "record")
                assert all(price[key] for key in ("neighbors", "view", "method", "source"))
        views = [price["view"] for price in found["best"]["prices"].values()]
        assert "opens every noisy row" in views[0]
        assert "everyone who sees the released labels" in views[1]

    @pytest.mark.parametrize("name", ["gnmax", "confident"])
    def test_one_query_more_would_exceed_the_budget(self, name: str) -> None:
        found = plan_at_parties(request())
        [offer] = [
            each for each in (found["best"], *found["others"]) if each["mechanism"]["name"] == name
        ]
        rule, more = offer["mechanism"], offer["queries"] + 1
        answers = more if name == "gnmax" else rule["max_answers"]
        rows = [(answers, rule["sigma2"])]
        if name == "confident":
            # The cap on answers grows by at most one with it.
            rows = [(answers + 1, rule["sigma2"]), (more, rule["sigma1"])]
        assert epsilon_of_rows(rows, shares=9, moved=1) > 5.0


class TestShares:
    @pytest.mark.slow
    def test_what_each_hospital_adds_is_what_the_honest_ones_need(self) -> None:
        found = plan_at_parties(request(form="masked", colluders=2))
        for offer in (found["best"], *found["others"]):
            for phase in offer["noise_shares"]:
                together = 5 * phase["share_sigma"] ** 2
                assert phase["sigma"] ** 2 <= together <= phase["sigma"] ** 2 * (1 + 1e-12)
                assert phase["sum_sigma"] == pytest.approx(phase["share_sigma"] * math.sqrt(10))
                assert phase["share_sigma"] >= 1
                assert phase["sigma"] >= phase["least_sigma"] >= math.sqrt(5) - 1e-4
                assert 0 <= phase["correction"] < 1e-4

    @pytest.mark.slow
    def test_masked_counts_all_hospitals_that_it_goes_on_without_as_lost(self) -> None:
        found = plan_at_parties(request(expected_dropouts=1))
        assert found["sum"]["form"] == "masked"
        assert found["shares"] == {"parties": 10, "colluders": 1, "dropouts": 3, "suffice": 6}

    @sampled(1)
    @pytest.mark.parametrize("name", ["sigma1", "sigma2"])
    def test_noise_that_is_too_little_to_be_divided_is_refused(self, name: str) -> None:
        with pytest.raises(NarrowNoiseError, match=f"--{name}") as refusal:
            plan_at_parties(request(**{name: 2.9}))
        assert "at least 3" in refusal.value.must
        assert plan_at_parties(request(**{name: 3.0}, epsilon=50.0))["best"]["queries"] > 0

    @pytest.mark.exhaustive
    def test_small_federations_get_noise_that_is_wide_enough(self) -> None:
        found = plan_at_parties(request(parties=40, teachers=1, unit="party", epsilon=8.0))
        assert found["best"]["mechanism"]["sigma2"] >= math.ceil(math.sqrt(39))


class TestWhatPasses:
    @pytest.mark.exhaustive
    def test_the_two_phase_check_lets_flat_rows_through_that_the_coordinators_would_not(
        self,
    ) -> None:
        """PROTOCOL section 3: 250 votes on 10 classes, T = 200, sigma1 = 150."""
        asked = request(
            parties=250, teachers=1, classes=10, vote_threshold=200.0, sigma1=150.0, epsilon=20.0
        )
        flat = plan_at_parties(asked)["others"][0]["passing"][0]
        assert (flat["top_votes"], flat["lead"]) == (25, 0)
        assert round(flat["passes"], 2) == 0.73
        assert round(flat["passes_at_coordinator"], 2) == 0.12

    def test_chances_are_those_of_draws(self) -> None:
        """The exact chance is within 5 standard errors of 200,000 draws: false alarm 6e-7 a row."""
        found = plan_at_parties(request())
        offer = found["others"][0]
        rule, rng, draws = offer["mechanism"], np.random.default_rng(11), 200_000
        law = sum_law(offer["noise_shares"][0]["share_sigma"], 10)
        values = np.arange(len(law)) - len(law) // 2
        noise = rng.choice(values, p=law / law.sum(), size=(draws, 3))
        for row in offer["passing"]:
            rest = 40 - row["top_votes"]
            counts = np.array([row["top_votes"], rest - rest // 2, rest // 2])
            assert counts[0] - counts[1] == row["lead"]
            seen = float(((counts + noise).max(axis=1) >= rule["vote_threshold"]).mean())
            chance = row["passes"]
            assert abs(seen - chance) <= 5 * math.sqrt(chance * (1 - chance) / draws) + 1e-9
            beside = ndtr((counts.max() - rule["vote_threshold"]) / rule["sigma1"])
            assert row["passes_at_coordinator"] == pytest.approx(beside, rel=1e-12)
        tops = [row["top_votes"] for row in offer["passing"]]
        assert tops == sorted(set(tops))
        assert (tops[0], tops[-1]) == (14, 40)

    @sampled(1)
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("classes", [2, more(3), 10])
    def test_the_chosen_threshold_refuses_flat_rows_and_is_the_lowest_that_does(
        self, classes: int
    ) -> None:
        asked = request(classes=classes, epsilon=20.0)
        offer = plan_at_parties(asked)["others"][0]
        rule = offer["mechanism"]
        assert offer["passing"][0]["passes"] <= 0.05
        lower = plan_at_parties(
            request(
                classes=classes,
                epsilon=20.0,
                vote_threshold=rule["vote_threshold"] - 1,
                sigma1=rule["sigma1"],
            )
        )
        assert lower["others"][0]["passing"][0]["passes"] > 0.05

    @pytest.mark.slow
    @sampled(1)
    @pytest.mark.parametrize("classes", [2, 3, 10])
    def test_a_query_on_which_all_agree_passes_more_often_than_not(self, classes: int) -> None:
        """Wide noise would buy many asks at a threshold that nobody's votes can reach."""
        offer = plan_at_parties(request(classes=classes, epsilon=20.0))["others"][0]
        assert offer["passing"][-1]["top_votes"] == 40
        assert offer["passing"][-1]["passes"] >= 0.5

    def test_expected_answers_are_those_of_draws(self) -> None:
        from pate_fed.mechanisms.preview import simulated_votes  # noqa: PLC0415 - its votes only

        offer = plan_at_parties(request())["others"][0]
        rule, rng, times = offer["mechanism"], np.random.default_rng(5), 400
        counts = simulated_votes(votes=40, classes=3)
        first, second = (phase["sum_sigma"] for phase in offer["noise_shares"])
        shape = (times, *counts.shape)
        passed = (np.rint(counts + rng.normal(0, first, shape))).max(axis=2) >= rule[
            "vote_threshold"
        ]
        right = passed & ((counts + rng.normal(0, second, shape)).argmax(axis=2) == 0)
        error = 6 / math.sqrt(times * len(counts))
        assert abs(passed.mean() - offer["expected_answered"] / offer["queries"]) < error / 2
        assert abs(right.mean() - offer["expected_right"] / offer["queries"]) < error


class TestWhatIsRecommended:
    @pytest.mark.slow
    def test_plain_gnmax_comes_first_with_half_the_exchanges(self) -> None:
        for form, exchanges in (("additive", 1), ("masked", 3)):
            found = plan_at_parties(request(form=form))
            assert found["best"]["mechanism"]["name"] == "gnmax"
            assert [each["mechanism"]["name"] for each in found["others"]] == ["confident"]
            assert found["best"]["exchanges"] == exchanges
            assert found["others"][0]["exchanges"] == 2 * exchanges  # a second phase

    def test_noise_does_not_drown_what_it_buys(self) -> None:
        """Ever more noise buys ever more labels, of which ever fewer are right."""
        best = plan_at_parties(request())["best"]
        silent = plan_at_parties(request(sigma2=3.0, epsilon=100.0))["best"]
        assert best["expected_accuracy"] >= 0.88 * silent["expected_accuracy"]

    @pytest.mark.slow
    def test_a_hospital_with_a_small_budget_decides_and_each_is_told_its_own(self) -> None:
        budgets = (3.0, *(6.0,) * 9)
        found = plan_at_parties(request(party_epsilons=budgets, sigma2=12.0))
        best, rows = found["best"], found["best"]["parties"]
        assert best["decides"] == {
            "party": "party-1",
            "budget": 3.0,
            "neighbors": best["decides"]["neighbors"],
        }
        alone = [
            plan_at_parties(request(epsilon=epsilon, sigma2=12.0))["best"]["queries"]
            for epsilon in (3.0, 6.0)
        ]
        assert [row["affords"] for row in rows] == [alone[0], *(alone[1],) * 9]
        assert best["queries"] == alone[0] < alone[1]

    def test_a_budget_for_no_query_is_refused(self) -> None:
        with pytest.raises(BudgetExhaustedError):
            plan_at_parties(request(epsilon=0.05))

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
            plan_at_parties(request(**changed))

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
            plan_at_parties(request(**changed))


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
    parties: int, dropouts: int, form: str, fits: bool
) -> None:
    advice = advised_sum(parties, dropouts=dropouts, sums=DEPLOYED_FORMS, form=form)
    assert advice["form"] == (form if fits else None)
    assert form in advice["why"] or fits

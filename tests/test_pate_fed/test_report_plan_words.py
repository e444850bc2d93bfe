"""The words and the picture of a plan: what it found, no more, on 80 columns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pate_fed.planning import plan
from pate_fed.report import plan_words
from pate_fed.report.plan_words import draw_plan, render_plan
from pate_fed.report.plots import price_plot
from pate_fed.wording import epsilon_text
from protocols.forms import FORMS
from tests.support.renderings import hold, sections
from tests.support.rules import plan_request

REQUESTS: dict[str, dict[str, Any]] = {
    "coordinator": {"parties": 50, "teachers": 1, "unit": "party"},
    "hospitals that differ": {
        "parties": 3,
        "teachers": 10,
        "unit": "record",
        "weights": (1, 1, 2),
        "party_epsilons": (1.0, 2.0, 9.0),
    },
    "parties": {"parties": 5, "teachers": 20, "unit": "record", "noise": "parties"},
    "verified sums": {
        "parties": 5,
        "teachers": 20,
        "unit": "record",
        "noise": "aggregators",
        "form": "verified",
    },
    "records that vote": {
        "parties": 4,
        "teachers": None,
        "party_teachers": (300,) * 4,
        "unit": "record",
        "teacher": "neighbors",
        "mechanism": "gnmax",
        "vote_threshold": None,
        "sigma2": None,
        "patient_votes": 5,
        "max_asks": 100,
    },
    "one query": {"parties": 50, "teachers": 1, "unit": "party", "epsilon": 0.5},
    "no answer": {"parties": 50, "teachers": 1, "unit": "party", "vote_threshold": 400.0},
}

OPTIONS = {
    "vote-threshold": "vote_threshold",
    "sigma2": "sigma2",
    "votes-per-patient": "patient_votes",
}


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    usual = {"classes": 3, "epsilon": 3.0, "delta": 1e-5, "sigma2": 12.0, "vote_threshold": 25.0}
    return {
        kind: plan(plan_request(**{**usual, **asked}), sums=FORMS)
        for kind, asked in REQUESTS.items()
    }


def test_the_words_of_each_plan_are_held(plans: dict[str, dict[str, Any]]) -> None:
    hold("plan", sections({kind: render_plan(found) for kind, found in plans.items()}))


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_plan_says_its_options_and_its_cost_with_all_that_belongs_to_it(
    plans: dict[str, dict[str, Any]], kind: str
) -> None:
    found = plans[kind]
    text, best = render_plan(found), found["forecast"]
    assert max(map(len, text.split("\n"))) <= 80
    words, rule = " ".join(text.split()), best["mechanism"]
    options = {name: rule[key] for name, key in OPTIONS.items() if rule[key] is not None}
    assert all(f"--{name} {number:g} " in words for name, number in options.items())
    assert ("--teacher neighbors " in words) is (rule["patient_votes"] is not None)
    asked = "1 query" if best["queries"] == 1 else f"{best['queries']:,} queries"
    assert f"Ask {asked} with" in words
    for view, price in best["prices"].items():
        stated = f"epsilon {epsilon_text(price['epsilon'], padded=True)} in the {view}'s view"
        assert f"{stated}: {price['view']}. Method: {price['method']}." in words
    assert f"delta 1e-5; unit {found['unit']}" in words
    assert found["neighbors"] in words
    assert not re.search("sigma1|refusals|valid|pricing|joint", text)


def test_each_hospital_that_differs_has_a_line_the_tightest_first(
    plans: dict[str, dict[str, Any]],
) -> None:
    best = plans["hospitals that differ"]["forecast"]
    lines = render_plan(plans["hospitals that differ"]).split("\n")
    shown = [re.split(r" {2,}|; ", line.strip()) for line in lines if line.startswith("  party-")]
    rows = sorted(best["parties"], key=lambda row: -row["epsilon"] / row["budget"])
    assert [line[0] for line in shown] == [row["party"] for row in rows]
    assert best["decides"]["party"] == rows[0]["party"]
    assert shown[-1][-1] == f"epsilon {epsilon_text(rows[-1]['epsilon'], padded=True)} of 9"
    assert "  party-" not in render_plan(plans["coordinator"])


def test_with_noise_at_the_parties_the_budget_bounds_the_coordinators_view(
    plans: dict[str, dict[str, Any]],
) -> None:
    found = plans["parties"]
    assert list(found["forecast"]["prices"]) == ["coordinator", "public"]
    text = " ".join(render_plan(found).split())
    assert "--noise parties --sum additive --colluders 1" in text
    assert "coordinator's view." in text
    assert "coordinator's view." not in render_plan(plans["coordinator"])
    for kind, view in (("parties", "coordinator"), ("coordinator", "public")):
        assert f"(view: {view}):" in render_plan(plans[kind])
        assert f"epsilon (view: {view})" in draw_plan(plans[kind])


@pytest.mark.parametrize("kind", ["coordinator", "one query", "no answer"])
def test_the_picture_has_one_line_and_the_budget(
    plans: dict[str, dict[str, Any]],
    kind: str,
    recwarn: pytest.WarningsRecorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []

    def drawing(
        points: list[tuple[float, float]], *, budget: float, view: str, summary: str
    ) -> str:
        drawn.append((points, budget))
        return price_plot(points, budget=budget, view=view, summary=summary)

    monkeypatch.setattr(plan_words, "price_plot", drawing)
    best = plans[kind]["forecast"]
    picture = draw_plan(plans[kind])
    points = [(one["answers"], one["epsilon"]) for one in best["epsilon_over_answers"]]
    assert drawn == [(points, best["decides"]["budget"])]
    assert points[-1][1] == best["prices"]["public"]["epsilon"]
    assert {">budget<", ">epsilon (view: public)<"} <= set(re.findall(r">[^<]+<", picture))
    assert [str(one.message) for one in recwarn] == []

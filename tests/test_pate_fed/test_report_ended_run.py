"""The cost of a run in its files: one number, from its terms; what it charged, from its ledger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from pate_fed.accounting import Outcomes
from pate_fed.accounting.costs import PUBLIC_VIEW, RENYI_METHOD, RUNS_METHOD, SERIES_METHOD
from pate_fed.charges import RunLedger
from pate_fed.prices import charged_price, removal_price, run_price
from pate_fed.record import Privacy
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.report import render_annexes, render_model_card, render_report, render_summary
from pate_fed.report.editions import no_public_edition
from pate_fed.report.ended_run import EndedRun, UsedRun, privacy_table
from pate_fed.report.warning_words import end_warnings
from pate_fed.series import delta_of_series, price_of_series
from pate_fed.terms import NO_TASK, RunTerms
from pate_fed.votes import TeacherWeights
from protocols.forms import FORMS
from tests.support.rules import run_terms, with_other
from tests.support.sample_run import privacy_of, write_sample

ASKS, DELTA = 12, 1e-5

TERMS = run_terms(
    name="one",
    pool_digest=bytes(32),
    task_digest=NO_TASK,
    classes=3,
    weights=(TeacherWeights.equal(1),) * 20,
    mechanism="threshold",
    vote_threshold=8.0,
    sigma2=6.0,
    unit="party",
    max_asks=ASKS,
    max_answers=ASKS,
    budgets=(5.0,) * 20,
    delta=DELTA,
)

KINDS: dict[str, dict[str, Any]] = {
    "threshold": {},
    "a patient": {"unit": "record", "weights": (TeacherWeights.equal(4),) * 20},
    "hospitals that differ": {
        "weights": (TeacherWeights.equal(1),) * 19 + (TeacherWeights.equal(2),),
        "budgets": (4.0,) * 19 + (9.0,),
    },
    "gnmax": {"mechanism": "gnmax", "vote_threshold": None},
    "noise at the parties": {"noise_place": "parties", "colluders": 1, "dropouts": 0},
    "labels of all, noise at the parties": {
        "mechanism": "gnmax",
        "vote_threshold": None,
        "noise_place": "parties",
        "colluders": 1,
        "dropouts": 0,
    },
    "verified sums": {
        "unit": "record",
        "weights": (TeacherWeights.equal(4),) * 20,
        "noise_place": "aggregators",
        "budgets": (6.0,) * 20,
        "max_asks": 30,
        "max_answers": 30,
    },
    "records that vote": {
        "mechanism": "gnmax",
        "vote_threshold": None,
        "unit": "record",
        "weights": (TeacherWeights.equal(36),) * 20,
        "patient_votes": 3,
        "max_asks": 30,
        "max_answers": 30,
    },
    "two noises": {"mechanism": "confident", "sigma1": 12.0},
    "stable": {
        "mechanism": "stable-gaussian",
        "vote_threshold": None,
        "sigma1": 4.0,
        "sigma2": None,
        "test_delta": 1e-7,
    },
    "no price": {"mechanism": "immutable", "vote_threshold": None},
}
GONE = ("valid votes", "votes are valid", "assum", "pricing", "refusals", "without_trust", "joint")


def terms_of(kind: str, **changed: Any) -> RunTerms:
    return with_other(TERMS, **{**KINDS[kind], **changed})


def release_of(asked: int, answered: int) -> NoisyRelease:
    outcomes = np.array([Outcome.ANSWERED] * answered + [Outcome.REFUSED] * (asked - answered))
    labels = np.where(outcomes == Outcome.ANSWERED, 1, ABSTAIN)
    return NoisyRelease(labels.astype(np.int64), outcomes.astype(np.int8))


def ended_of(terms: RunTerms, *batches: tuple[int, int, int], **changed: Any) -> EndedRun:
    """A run whose batches gave these releases: queries, asked and answered."""
    ledger, releases = RunLedger.of(terms), {}
    for number, (queries, asked, answered) in enumerate(batches):
        release, name = release_of(asked, answered), f"batch {number}"
        ledger = ledger.reserve(name, ledger.worst_case(queries))
        ledger = ledger.commit(name, Outcomes(asked, answered), release.digest)
        releases[number] = release
    names = tuple(f"hospital {seat:02}" for seat in range(len(terms.weights)))
    form = FORMS["verified" if terms.rule.at_aggregators else "additive"]
    run = EndedRun(terms, names, ledger, releases, instance=None, form=form)
    return replace(run, **changed)


def table_of(ended: EndedRun, *, simulated: bool = False) -> dict[str, Any]:
    table = privacy_table(ended=ended, sealing="", seed=None, simulated=simulated)
    content = table.as_json()
    assert Privacy.read(json.dumps(content)) == table
    return content


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, Any]]:
    return {kind: table_of(ended_of(terms_of(kind), (4, 4, 3))) for kind in KINDS}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no price"])
def test_a_run_has_one_epsilon_which_its_terms_fix(
    tables: dict[str, dict[str, Any]], kind: str
) -> None:
    terms, table = terms_of(kind), tables[kind]
    formal, cost = table["views"]["public"], run_price(terms)
    assert formal == {"epsilon": cost.epsilon, "method": cost.method, "holds_for": cost.holds_for}
    assert table["runs"] == [
        {"run": "one", "epsilon": cost.epsilon, "method": cost.method, "delta": DELTA}
    ]
    assert table_of(ended_of(terms))["views"] == table["views"]  # whatever came out
    assert {row["party"]: row["epsilon"] for row in table["parties"]} == {
        f"hospital {seat:02}": charged_price(terms, seat).epsilon for seat in range(20)
    }


@pytest.mark.parametrize("sigma", [6.0, 24.0, 200.0])
def test_a_number_of_labels_holds_for_their_readers_by_whatever_method(sigma: float) -> None:
    """A single query costs less by Gaussian composition, which covers readers of counts, too."""
    cost = run_price(terms_of("hospitals that differ", max_asks=1, max_answers=1, sigma2=sigma))
    assert cost.holds_for == PUBLIC_VIEW


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_or_page_names_another_price_or_an_assumption_about_votes(
    tables: dict[str, dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    table = tables[kind]
    run = write_sample(tmp_path / "run", privacy=table)
    said = {
        "privacy.json": json.dumps(table),
        "report.html": render_report(run).partition("</style>")[2],
        "annexes.html": render_annexes(run).partition("</style>")[2],
        "model_card.md": render_model_card(run.metrics, run.privacy, run.settings),
        "report.txt": render_summary(run.metrics, run.privacy, "run"),
    }
    found = {(file, word) for file, text in said.items() for word in GONE if word in text.lower()}
    # The mathematics assumes exact noise, and says so.
    assert {one for one in found if one[1] != "assum"} == set()
    for file, text in said.items():
        assert text.lower().count("assum") == text.count("assumes exact"), file
        assert "None" not in text.replace("None:", "")


def test_the_file_says_once_what_mechanism_and_caps_were(
    tables: dict[str, dict[str, Any]],
) -> None:
    table = tables["threshold"]
    assert table["mechanism"] == {
        "name": "threshold",
        "vote_threshold": 8.0,
        "sigma2": 6.0,
        "max_asks": ASKS,
        "max_answers": ASKS,
    }
    assert table["budget"] == {"epsilon": 5.0, "delta": DELTA, "order_of_series": None}
    assert table["dp_flavor"] == "(epsilon, delta)"
    kept = tables["stable"]["budget"]["kept_for_tests"]
    assert kept == pytest.approx(ASKS * 1e-7)
    assert tables["stable"]["views"]["public"]["method"] == RENYI_METHOD


def test_a_mechanism_without_a_price_has_no_number_anywhere(
    tables: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    table = tables["no price"]
    assert (table["dp_flavor"], table["charged"]) == ("none", None)
    assert table["views"]["public"]["epsilon"] is None
    assert table["views"]["removal"] is None
    assert {row["epsilon"] for row in [*table["parties"], *table["runs"]]} == {None}
    run = write_sample(tmp_path / "run", privacy=table)
    assert no_public_edition(run)
    assert "protects nobody" in render_report(run)


# Charges --------------------------------------------------------------------------------------


def charges_of(ended: EndedRun) -> tuple[list[int], float]:
    table = table_of(ended)
    return [batch["charged"] for batch in table["ledger"]], table["charged"]


def test_an_ask_is_charged_whatever_comes_out() -> None:
    charges = [charges_of(ended_of(TERMS, (4, 4, answered))) for answered in (0, 2, 4)]
    assert charges == [([4], 4 / ASKS)] * 3


def test_charges_are_those_of_the_ledger_void_batches_included() -> None:
    ended = ended_of(TERMS, (4, 4, 1))
    ledger = ended.ledger
    for name, queries in (("batch 1", 3), ("batch 2", 2)):
        ledger = ledger.reserve(name, ledger.worst_case(queries))
    ledger = ledger.forfeit("batch 1").cancel("batch 2")
    ended = replace(ended, ledger=ledger)
    assert charges_of(ended) == ([4, 3, 0], 7 / ASKS)
    assert ended.ledger.used_share() == 7 / ASKS
    rows = table_of(ended)["ledger"]
    assert [row["state"] for row in rows] == ["committed", "forfeited", "cancelled"]
    assert [(row["asked"], row["answered"]) for row in rows] == [(4, 1), (0, 0), (0, 0)]


@pytest.mark.parametrize("kind", ["noise at the parties", "threshold"])
def test_every_query_of_a_batch_is_charged_even_one_that_a_cap_left_out(kind: str) -> None:
    assert charges_of(ended_of(terms_of(kind, max_answers=2), (6, 4, 2))) == ([6], 6 / ASKS)


def test_a_run_at_a_cap_says_which_caps_it_had() -> None:
    terms = with_other(TERMS, max_answers=2)
    [said] = end_warnings(
        terms,
        is_over=True,
        ledger=privacy_of(table_of(ended_of(terms, (6, 4, 2)))).ledger,
        queries=12,
        void=0,
        voids=0,
    )
    assert f"at most {ASKS} queries and 2 answers" in said


# The second number ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "is_there"),
    [
        ("threshold", True),
        ("gnmax", True),
        ("a patient", False),
        ("hospitals that differ", False),
        ("noise at the parties", False),
        ("two noises", False),
        ("stable", False),
    ],
)
def test_a_second_number_is_there_only_where_one_vote_of_a_hospital_is_proved(
    tables: dict[str, dict[str, Any]], kind: str, is_there: bool
) -> None:
    views = tables[kind]["views"]
    assert (views["removal"] is not None) is is_there
    if is_there:
        cost = removal_price(terms_of(kind), 0)
        assert cost is not None
        assert (views["removal"]["epsilon"], views["removal"]["method"]) == (
            cost.epsilon,
            cost.method,
        )
        assert views["removal"]["epsilon"] < views["public"]["epsilon"]


@pytest.mark.parametrize("lead", [-3.0, -0.5, 0.0, 2.0])
def test_no_game_of_one_missing_vote_beats_the_second_number(
    tables: dict[str, dict[str, Any]], lead: float
) -> None:
    """A class against the threshold, the same on each query: the exact law of its answers."""
    epsilon = tables["threshold"]["views"]["removal"]["epsilon"]
    counts = np.arange(ASKS + 1)
    laws = [binom.pmf(counts, ASKS, ndtr(at / 6.0)) for at in (lead, lead - 1)]
    for here, there in (laws, laws[::-1]):
        assert np.maximum(here - np.exp(epsilon) * there, 0).sum() <= DELTA


# Several runs ---------------------------------------------------------------------------------


def after(*earlier: RunTerms, **changed: Any) -> EndedRun:
    used = tuple(UsedRun(terms, FORMS["additive"]) for terms in earlier)
    return ended_of(replace(TERMS, name="last"), (4, 4, 3), earlier=used, **changed)


@pytest.mark.parametrize("series", [(), (10.0,) * 20], ids=["earlier runs", "series"])
def test_no_number_of_a_later_run_is_said_to_be_fixed_before_the_first_query(
    tmp_path: Path, series: Sequence[float]
) -> None:
    table = table_of(after(TERMS, budgets=tuple(series)), simulated=True)
    run = write_sample(tmp_path / "run", privacy=table)
    for text in (json.dumps(table), render_report(run)):
        assert "the first query" not in text
        assert "before the run:" not in text
    for text in (table["guarantee"], render_report(run)):
        assert "first query" in text
    assert table["views"]["removal"] is None
    assert [run["run"] for run in table["runs"]] == ["one", "last"]


def test_epsilons_and_deltas_of_runs_add_up_and_a_series_costs_less() -> None:
    alone = run_price(TERMS).epsilon
    added = table_of(after(TERMS), simulated=True)
    formal = added["views"]["public"]
    assert formal["epsilon"] == pytest.approx(2 * alone)
    assert (formal["method"], added["delta"]) == (RUNS_METHOD, 2 * DELTA)
    terms = (TERMS, replace(TERMS, name="last"))
    series = table_of(after(TERMS, budgets=(10.0,) * 20), simulated=True)
    cost = price_of_series(terms, 0, unit="party")
    assert series["views"]["public"]["epsilon"] == cost.epsilon < 2 * alone
    assert series["views"]["public"]["method"] == SERIES_METHOD
    assert series["delta"] == delta_of_series(terms) == pytest.approx(3 * DELTA)
    assert series["budget"]["epsilon"] == 10.0
    assert series["budget"]["order_of_series"] == cost.order


def test_a_run_that_asks_nothing_costs_what_earlier_runs_did() -> None:
    table = table_of(
        replace(after(TERMS), asks_nothing=True, ledger=RunLedger.of(TERMS), releases={})
    )
    assert table["views"]["public"]["epsilon"] == run_price(TERMS).epsilon
    assert (table["charged"], table["ledger"]) == (0.0, [])


# Views ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "is_less"),
    [("labels of all, noise at the parties", True), ("noise at the parties", False)],
)
def test_with_noise_at_the_parties_budgets_bound_the_coordinators_number(
    tables: dict[str, dict[str, Any]], tmp_path: Path, kind: str, is_less: bool
) -> None:
    table = tables[kind]
    public, operator = (table["views"][view] for view in ("public", "coordinator"))
    # A threshold costs its readers what the opened row costs.
    assert (public["epsilon"] < operator["epsilon"]) is is_less
    assert public["epsilon"] <= operator["epsilon"]
    assert {row["epsilon"] for row in table["parties"]} == {operator["epsilon"]}
    page = render_report(write_sample(tmp_path / "run", privacy=table))
    headline = page.partition('<p class="figure-epsilon">')[2].partition("</p>")[0]
    assert f'value="{public["epsilon"]}"' in headline
    assert f'value="{operator["epsilon"]}"' in page.partition("Against the coordinator:")[2]


def test_with_the_coordinators_noise_there_is_no_number_against_it(
    tables: dict[str, dict[str, Any]],
) -> None:
    assert tables["threshold"]["views"]["coordinator"] == {
        "epsilon": None,
        "method": "trusted",
    }

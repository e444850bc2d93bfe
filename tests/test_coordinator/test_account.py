"""`pate-fed account`: what votes would cost, by every method side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from pate_fed.accounting import LaplaceMaxEvent, RenyiAccountant, gdp_epsilon
from pate_fed.accounting.conversion import convert_at_orders
from pate_fed.accounting.costs import neighbors
from pate_fed.data.vote_file import load_vote_counts
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.laplace_bounds import laplace_rdp
from pate_fed.lab.smooth_conditions import SmoothSetting, smooth_conditions
from pate_fed.mechanisms import SPECS, StableMax, make_mechanism
from pate_fed.rule import Rule
from tests.support.command import Command, pate_fed
from tests.support.markers import sampled
from tests.support.real_data import real_data

__all__ = ["pate_fed"]

METHODS = {
    "formal_gdp",
    "formal_label",
    "formal_composed",
    "per_instance_paper",
    "per_instance_cks",
    "per_instance_exact",
    "sanitized",
}


def write_votes(path: Path, votes: Any = None) -> Path:
    rng = np.random.default_rng(3)
    made = rng.multinomial(50, [0.7, 0.2, 0.1], size=40)
    np.save(path, made if votes is None else votes)
    return path


def price(pate_fed: Command, votes: Path, *more: object) -> dict[str, Any]:
    ended = pate_fed(
        *("account", votes, "--vote-threshold", 30, "--sigma2", 8, "--format", "json", *more),
    )
    assert (ended.code, ended.err) == (0, "")
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_every_method_says_unit_neighbors_view_method_and_whether_it_may_be_shown(
    pate_fed: Command, tmp_path: Path
) -> None:
    found = price(pate_fed, write_votes(tmp_path / "votes.npy"))
    assert set(found["epsilon"]) == METHODS
    for row in found["epsilon"].values():
        assert {"epsilon", "unit", "neighbors", "view", "method", "releasable"} <= set(row)
    shown = {name for name, row in found["epsilon"].items() if row["releasable"]}
    # A price that is not known for these votes has nothing to be shown, and may be.
    assert shown == {"formal_gdp", "formal_label", "formal_composed"}


def test_formal_bounds_are_ordered_and_exact_is_below_the_papers(
    pate_fed: Command, tmp_path: Path
) -> None:
    epsilon = {
        name: row["epsilon"]
        for name, row in price(pate_fed, write_votes(tmp_path / "votes.npy"))["epsilon"].items()
    }
    assert epsilon["formal_label"] < epsilon["formal_gdp"]
    composed = epsilon["formal_composed"]
    assert composed is None or composed <= epsilon["formal_label"]
    assert epsilon["per_instance_exact"] < epsilon["per_instance_cks"]
    assert epsilon["per_instance_cks"] < epsilon["per_instance_paper"]


def test_caps_that_are_not_whole_make_formal_numbers_private(
    pate_fed: Command, tmp_path: Path
) -> None:
    for mechanism in ("confident", "gnmax"):
        found = price_of(pate_fed, tmp_path, mechanism, "--max-answers", 20.5)
        assert not any(row["releasable"] for row in found["epsilon"].values())
        assert found["epsilon"]["formal_composed"]["epsilon"] is None


@pytest.mark.parametrize(
    "width", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
)
def test_votes_are_read_from_every_width_of_number(tmp_path: Path, width: str) -> None:
    votes = np.random.default_rng(3).multinomial(50, [0.7, 0.2, 0.1], size=12)
    found = load_vote_counts(write_votes(tmp_path / "votes.npy", votes.astype(width)))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, votes)


@pytest.mark.parametrize(
    ("votes", "code"),
    [
        pytest.param(np.array([[3, -1], [1, 1]]), "PF-102", id="negative"),
        pytest.param(np.array([[3, 1], [1, 1]]), "PF-102", id="rows of different sums"),
        pytest.param(np.array([[3.5, 0.5]]), "PF-102", id="not whole"),
        pytest.param(np.array([[np.nan, 1.0]]), "PF-102", id="not a number"),
        pytest.param(np.array([[np.inf, 1.0]]), "PF-102", id="infinite"),
        pytest.param(np.array([[4], [4]]), "PF-102", id="one class"),
        pytest.param(np.array([4, 4]), "PF-102", id="one axis"),
        pytest.param(np.zeros((0, 3)), "PF-102", id="no query"),
        pytest.param(np.zeros((2, 3)), "PF-102", id="no votes"),
        pytest.param(np.array([["a", "b"]]), "PF-102", id="text"),
        pytest.param(np.array([[2**40, 1]]), "PF-102", id="too many votes"),
    ],
)
def test_votes_that_no_teachers_cast_are_refused(
    pate_fed: Command, tmp_path: Path, votes: Any, code: str
) -> None:
    path = write_votes(tmp_path / "votes.npy", votes)
    ended = pate_fed("account", path, "--mechanism", "gnmax", "--sigma2", 8)
    assert ended.error_code == code
    assert ended.code != 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(("--sigma2", 0), "PF-101", id="no noise"),
        pytest.param(("--sigma2", 8, "--delta", 1), "PF-101", id="delta of 1"),
        pytest.param(("--sigma2", 8, "--rows", "5:2"), "PF-101", id="rows backwards"),
        pytest.param(("--sigma2", 8, "--rows", "0:99"), "PF-101", id="rows beyond the end"),
        pytest.param(("--sigma2", 8, "--rows", "x"), "PF-402", id="no rows"),
        pytest.param(("--sigma2", 8, "--sigma1", 9), "PF-105", id="a check for GNMax"),
        pytest.param((), "PF-105", id="no sigma2"),
        pytest.param(("--sigma2", 8, "--delta", 0), "PF-101", id="delta of 0"),
        pytest.param(("--sigma2", 8, "--delta", "nan"), "PF-101", id="delta no number"),
        pytest.param(("--sigma2", "nan"), "PF-101", id="sigma no number"),
        pytest.param(("--sigma2", "inf"), "PF-101", id="infinite noise"),
        pytest.param(("--sigma2", -8), "PF-101", id="negative noise"),
        pytest.param(("--sigma2", 8, "--max-answers", -1), "PF-101", id="negative cap"),
        pytest.param(("--sigma2", 8, "--max-answers", "nan"), "PF-101", id="cap no number"),
        pytest.param(("--sigma2", 8, "--unit-votes", 0), "PF-402", id="unit of no votes"),
    ],
)
def test_bad_parameters_are_refused(
    pate_fed: Command, tmp_path: Path, arguments: tuple[object, ...], code: str
) -> None:
    votes = write_votes(tmp_path / "votes.npy")
    ended = pate_fed("account", votes, "--mechanism", "gnmax", *arguments)
    assert ended.error_code == code
    assert ended.out == ""


@pytest.mark.parametrize("content", [b"", b"no numpy file", b"\x93NUMPY\x01\x00", b"\x80\x04."])
def test_files_that_are_no_array_are_refused(
    pate_fed: Command, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "votes.npy"
    path.write_bytes(content)
    broken = pate_fed("account", path, "--mechanism", "gnmax", "--sigma2", 8)
    assert (broken.code, broken.error_code) == (5, "PF-111")
    gone = pate_fed("account", tmp_path / "none.npy", "--mechanism", "gnmax", "--sigma2", 8)
    assert (gone.code, gone.error_code) == (5, "PF-111")
    assert "none.npy" in gone.err


def test_pickled_arrays_are_refused(pate_fed: Command, tmp_path: Path) -> None:
    path = tmp_path / "votes.npy"
    np.save(path, np.array([[{}]], dtype=object), allow_pickle=True)
    ended = pate_fed("account", path, "--mechanism", "gnmax", "--sigma2", 8)
    assert ended.error_code == "PF-111"


@sampled("name")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "threshold", "sigma1", "delta", "expected"),
    [
        pytest.param("mnist", "0:640", 200, 150, 1e-5, (1.9988, 14.0, 1.7119, 0.936), id="mnist"),
        pytest.param("adult", "0:1500", 300, 200, 1e-5, (1.6782, 15.5, 1.4136, 0.968), id="adult"),
        pytest.param("svhn", "0:500", 300, 200, 1e-6, (1.0965, 25.5, 0.9170, None), id="svhn"),
    ],
)
def test_published_votes_cost_what_the_paper_says(  # noqa: PLR0917 - a table's columns
    pate_fed: Command,
    name: str,
    rows: str,
    threshold: float,
    sigma1: float,
    delta: float,
    expected: tuple[float, float, float, float | None],
) -> None:
    votes = real_data(f"data/pate_votes/pate2018_counts/{name}_250_teachers.npy")
    ended = pate_fed(
        *("account", votes, "--rows", rows, "--mechanism", "confident", "--format", "json"),
        *("--vote-threshold", threshold, "--sigma1", sigma1, "--sigma2", 40, "--delta", delta),
    )
    epsilon = json.loads(ended.out)["epsilon"]
    paper, order, cks, exact = expected
    assert epsilon["per_instance_paper"]["epsilon"] == pytest.approx(paper, abs=5e-5)
    assert epsilon["per_instance_paper"]["order"] == order
    assert epsilon["per_instance_cks"]["epsilon"] == pytest.approx(cks, abs=5e-5)
    if exact is not None:
        assert epsilon["per_instance_exact"]["epsilon"] == pytest.approx(exact, abs=0.002)
    assert epsilon["per_instance_exact"]["epsilon"] < cks


@pytest.mark.exhaustive
def test_published_votes_at_their_expected_outcomes_cost_what_is_promised(
    pate_fed: Command,
) -> None:
    """Real caps taken from the votes: for reproducing papers, and never to be shown."""
    path = real_data("data/pate_votes/pate2018_counts/mnist_250_teachers.npy")
    asked = (
        *("account", path, "--rows", "0:640", "--mechanism", "confident", "--format", "json"),
        *("--vote-threshold", 200, "--sigma1", 150, "--sigma2", 40, "--delta", 1e-5),
    )
    found = pate_fed(*asked, "--max-answers", 282.72).json
    assert found["asked"] == 640
    assert found["expected_answered"] == pytest.approx(282.72, abs=0.005)
    epsilon = {name: row["epsilon"] for name, row in found["epsilon"].items()}
    assert set(epsilon) == METHODS
    assert epsilon["per_instance_paper"] == pytest.approx(1.9988, abs=5e-5)
    assert found["epsilon"]["per_instance_paper"]["order"] == 14
    assert epsilon["per_instance_cks"] == pytest.approx(1.7119, abs=5e-5)
    assert epsilon["per_instance_exact"] == pytest.approx(0.936, abs=0.002)
    assert epsilon["formal_gdp"] == pytest.approx(2.527, abs=5e-4)
    assert epsilon["formal_label"] <= 2.145
    assert 1.7119 < epsilon["sanitized"] < 3.2
    assert not any(row["releasable"] for row in found["epsilon"].values())
    uncapped = pate_fed(*asked).json["epsilon"]
    assert uncapped["formal_gdp"]["epsilon"] == pytest.approx(3.927, abs=5e-4)
    assert uncapped["formal_gdp"]["releasable"]


@pytest.mark.exhaustive
def test_one_noise_costs_published_votes_less_than_two(pate_fed: Command) -> None:
    """As many right answers of MNIST, by a threshold on the labels' own noise."""
    path = real_data("data/pate_votes/pate2018_counts/mnist_250_teachers.npy")
    asked = ("account", path, "--rows", "0:88", "--sigma2", 63, "--vote-threshold", 145)
    found = pate_fed(*asked, "--format", "json").json
    paper = pate_fed(
        *("account", path, "--rows", "0:88", "--mechanism", "confident", "--format", "json"),
        *("--sigma1", 87, "--sigma2", 50, "--vote-threshold", 125),
    ).json
    assert found["expected_answered"] > 0.9 * paper["expected_answered"]
    one, two = (each["epsilon"]["formal_label"]["epsilon"] for each in (found, paper))
    assert one < two


def test_text_fits_a_terminal(pate_fed: Command, tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.npy")
    ended = pate_fed("account", votes, *OPTIONS["threshold"])
    assert ended.code == 0
    assert max(len(line) for line in ended.out.splitlines()) <= 80
    assert ended.out.count("PRIVATE") == 4  # expected answers, three per instance
    confident = ("--mechanism", "confident", *OPTIONS["confident"])
    real = pate_fed("account", votes, *confident, "--max-answers", 20.5)
    assert max(len(line) for line in real.out.splitlines()) <= 80
    assert real.out.count("PRIVATE") == 7


@sampled()
@pytest.mark.parametrize(
    ("arguments", "unit", "votes"),
    [
        pytest.param((), "record", 1, id="one vote"),
        pytest.param(("--unit-votes", 3), "party", 3, id="several votes"),
        pytest.param(
            ("--unit-votes", 3, "--unit", "record"),
            *("record", 3),
            id="a patient whose teacher has several votes",
        ),
        pytest.param(("--unit", "party"), "party", 1, id="a hospital with one vote"),
    ],
)
def test_the_unit_is_the_one_that_was_named(
    pate_fed: Command, tmp_path: Path, arguments: tuple[object, ...], unit: str, votes: int
) -> None:
    found = price_of(pate_fed, tmp_path, "gnmax", *arguments)
    for row in found["epsilon"].values():
        assert row["unit"] == unit
        assert row["neighbors"] == neighbors(unit, votes)


def test_naming_the_unit_changes_no_number(pate_fed: Command, tmp_path: Path) -> None:
    record, party = (
        price_of(pate_fed, tmp_path, "gnmax", "--unit-votes", 3, "--unit", unit)["epsilon"]
        for unit in ("record", "party")
    )
    assert {name: row["epsilon"] for name, row in record.items()} == {
        name: row["epsilon"] for name, row in party.items()
    }


@pytest.mark.parametrize(
    ("mechanism", "more", "mu_squared"),
    [
        # One vote moved: the top count changes by 1 and is checked, two counts of an answer by 1.
        pytest.param("confident", (), 40 / 15**2 + 2 * 40 / 8**2, id="a check and a label"),
        pytest.param(
            "confident", ("--max-answers", 10), 40 / 15**2 + 2 * 10 / 8**2, id="fewer labels"
        ),
        pytest.param(
            "confident", ("--max-answers", 10.5), 40 / 15**2 + 2 * 10.5 / 8**2, id="expected ones"
        ),
        pytest.param("confident", ("--max-answers", 0), 40 / 15**2, id="no label"),
        pytest.param("confident", ("--max-answers", 99), 40 / 15**2 + 2 * 40 / 8**2, id="too many"),
        pytest.param("threshold", (), 2 * 40 / 8**2, id="one noise: every ask alike"),
        pytest.param("interactive-threshold", (), 2 * 40 / 8**2, id="the same beside a student"),
        pytest.param("gnmax", (), 2 * 40 / 8**2, id="always an answer"),
        pytest.param("gnmax", ("--max-answers", 10), 2 * 10 / 8**2, id="as many asks as answers"),
        pytest.param("gnmax", ("--unit-votes", 3), 9 * 2 * 40 / 8**2, id="three votes"),
        pytest.param("threshold", ("--rows", "5:9"), 2 * 4 / 8**2, id="four rows"),
    ],
)
def test_formal_numbers_are_those_of_the_caps(
    pate_fed: Command,
    tmp_path: Path,
    mechanism: str,
    more: tuple[object, ...],
    mu_squared: float,
) -> None:
    found = price_of(pate_fed, tmp_path, mechanism, *more)
    exact = gdp_epsilon(math.sqrt(mu_squared), 1e-5)
    assert found["epsilon"]["formal_gdp"]["epsilon"] == pytest.approx(exact, rel=1e-9)


OPTIONS: dict[str, tuple[object, ...]] = {
    "threshold": ("--vote-threshold", 30, "--sigma2", 8),
    "interactive-threshold": ("--vote-threshold", 30, "--sigma2", 8),
    "confident": ("--vote-threshold", 30, "--sigma1", 15, "--sigma2", 8),
    "gnmax": ("--sigma2", 8),
    "interactive": ("--vote-threshold", 30, "--sigma1", 15, "--sigma2", 8),
    "lnmax": ("--sigma2", 20),
    "stable-gaussian": ("--sigma1", 4, "--test-delta", 1e-8),
    "stable-laplace": ("--sigma1", 4, "--test-delta", 1e-8),
    "immutable": ("--sigma2", 20),
}
RENYI = {"lnmax", "stable-gaussian", "stable-laplace"}
VOTES = np.random.default_rng(3).multinomial(50, [0.7, 0.2, 0.1], size=40)


def write_predictions(path: Path, predictions: Any = None) -> Path:
    made = np.tile([0.5, 0.3, 0.2], (40, 1)) if predictions is None else predictions
    np.save(path, made)
    return path


def price_of(pate_fed: Command, tmp_path: Path, mechanism: str, *more: object) -> dict[str, Any]:
    arguments = [*OPTIONS[mechanism], *more]
    if SPECS[mechanism].learns and "--predictions" not in more:
        arguments += ["--predictions", write_predictions(tmp_path / "student.npy")]
    votes = write_votes(tmp_path / "votes.npy", VOTES)
    ended = pate_fed("account", votes, "--mechanism", mechanism, "--format", "json", *arguments)
    assert (ended.code, ended.err) == (0, "")
    return ended.json


def test_every_mechanism_can_be_priced() -> None:
    assert set(OPTIONS) == {name for name, spec in SPECS.items() if not spec.shows_counts}


@sampled()
@pytest.mark.parametrize("mechanism", OPTIONS)
def test_every_mechanism_has_every_row_and_says_why_where_there_is_no_number(
    pate_fed: Command, tmp_path: Path, mechanism: str
) -> None:
    found = price_of(pate_fed, tmp_path, mechanism)
    rows = found["epsilon"]
    assert set(rows) == METHODS | ({"formal_renyi"} if mechanism in RENYI else set())
    assert {"order"} <= set(rows["per_instance_paper"]) & set(rows["sanitized"])
    for name, row in rows.items():
        assert {"epsilon", "unit", "neighbors", "view", "method", "releasable"} <= set(row)
        if row["epsilon"] is None:
            assert row["method"].startswith("no ")
        else:
            assert 0 < row["epsilon"] < 100
            assert row["releasable"] is name.startswith("formal")
    if mechanism != "immutable":
        assert any(rows[name]["epsilon"] for name in rows if name.startswith("formal"))
    text = pate_fed("account", *_arguments_of_text(tmp_path, mechanism)).out
    assert max(len(line) for line in text.splitlines()) <= 80
    assert text.count("no number\n") == sum(row["epsilon"] is None for row in rows.values())


def _arguments_of_text(tmp_path: Path, mechanism: str) -> list[object]:
    student = ["--predictions", tmp_path / "student.npy"] if SPECS[mechanism].learns else []
    return [tmp_path / "votes.npy", "--mechanism", mechanism, *OPTIONS[mechanism], *student]


def test_nothing_finite_holds_for_the_immutable_argmax(pate_fed: Command, tmp_path: Path) -> None:
    rows = price_of(pate_fed, tmp_path, "immutable")["epsilon"]
    assert all(row["epsilon"] is None and not row["releasable"] for row in rows.values())
    assert all(row["method"].startswith("no ") for row in rows.values())


def test_sigma2_of_lnmax_is_the_standard_deviation_of_laplace_noise(
    pate_fed: Command, tmp_path: Path
) -> None:
    """Both numbers from the formulas as the papers write them, gamma = sqrt(2) / sigma2."""
    found = price_of(pate_fed, tmp_path, "lnmax", "--delta", 1e-6)
    gamma = math.sqrt(2) / 20
    epsilon = 2 * gamma
    by_order = []
    for order in [half / 2 for half in range(4, 201)]:
        total = 0.0
        for row in VOTES.tolist():
            top = max(row)
            losers = sorted(row)[:-1]
            q = sum((2 + gamma * (top - n)) / (4 * math.exp(gamma * (top - n))) for n in losers)
            q = min(q, 1 - 1 / 3)
            moment = min(epsilon**2 * order * (order - 1) / 2, epsilon * (order - 1))
            if q <= 1 / (math.exp(epsilon) + 1):
                usual = (1 - q) * ((1 - q) / (1 - math.exp(epsilon) * q)) ** (order - 1)
                moment = min(moment, math.log(usual + q * math.exp(epsilon * (order - 1))))
            total += moment
        by_order.append((total - math.log(1e-6)) / (order - 1))
    paper = found["epsilon"]["per_instance_paper"]
    assert paper["epsilon"] == pytest.approx(min(by_order), rel=1e-9)
    accountant = RenyiAccountant()
    accountant.compose(LaplaceMaxEvent(40, gamma))
    renyi = found["epsilon"]["formal_renyi"]
    assert renyi["epsilon"] == pytest.approx(accountant.get_converted(1e-6).epsilon, rel=1e-9)
    # The sharper pure bound and conversion make the number of these votes the smallest.
    cks = found["epsilon"]["per_instance_cks"]["epsilon"]
    assert cks < renyi["epsilon"] < paper["epsilon"]
    assert found["expected_answered"] == 40


def test_few_answers_of_lnmax_cost_at_most_their_pure_epsilon(
    pate_fed: Command, tmp_path: Path
) -> None:
    found = price_of(pate_fed, tmp_path, "lnmax", "--max-answers", 1, "--delta", 1e-12)
    renyi = found["epsilon"]["formal_renyi"]
    assert renyi["epsilon"] == pytest.approx(2 * math.sqrt(2) / 20, rel=1e-12)
    assert "pure" in renyi["method"]


@pytest.mark.parametrize("mechanism", ["stable-gaussian", "stable-laplace"])
def test_a_test_of_stability_spends_of_delta_for_each_ask(
    pate_fed: Command, tmp_path: Path, mechanism: str
) -> None:
    found = price_of(pate_fed, tmp_path, mechanism, "--rows", "0:14")
    made = make_mechanism(Rule(mechanism, sigma1=4.0, test_delta=1e-8))
    accountant = RenyiAccountant()
    accountant.compose(made.event(14, 10))
    renyi = found["epsilon"]["formal_renyi"]
    assert renyi["additive_delta"] == pytest.approx(14e-8, rel=1e-12)
    assert renyi["epsilon"] == pytest.approx(accountant.get_converted(1e-5).epsilon, rel=1e-9)
    assert isinstance(made, StableMax)
    assert found["expected_answered"] == pytest.approx(
        made.answer_chances(VOTES[:14]).sum(), rel=1e-12
    )
    if mechanism == "stable-gaussian":
        exact = gdp_epsilon(math.sqrt(14) / 4, 1e-5 - 14e-8)
        assert found["epsilon"]["formal_gdp"]["epsilon"] == pytest.approx(exact, rel=1e-12)
        assert found["epsilon"]["formal_label"]["epsilon"] < exact < renyi["epsilon"]


def test_a_delta_that_the_tests_use_up_is_refused(pate_fed: Command, tmp_path: Path) -> None:
    votes = write_votes(tmp_path / "votes.npy", VOTES)
    arguments = ("account", votes, "--mechanism", "stable-gaussian", "--sigma1", 4, "--test-delta")
    assert pate_fed(*arguments, 2.6e-7).error_code == "PF-101"
    assert pate_fed(*arguments, 2.4e-7).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plain", "interactive", "check"),
    [("threshold", "interactive-threshold", ()), ("confident", "interactive", ("--sigma1", 9))],
)
def test_a_student_without_opinion_changes_no_number(
    pate_fed: Command, tmp_path: Path, plain: str, interactive: str, check: tuple[object, ...]
) -> None:
    """Chances so even that no whole vote is taken off: the numbers of the rule without one."""
    even = np.full((40, 60), 1 / 60)
    votes = np.zeros((40, 60), dtype=np.int64)
    votes[:, :3] = VOTES // 2 + [3, 0, 0]
    votes[:, 3] = 29 - votes.sum(axis=1)
    votes = votes[(votes >= 0).all(axis=1)]
    assert len(votes) > 20
    path = write_votes(tmp_path / "votes.npy", votes)
    student = write_predictions(tmp_path / "student.npy", even[: len(votes)])
    numbers = []
    for mechanism, more in ((plain, ()), (interactive, ("--predictions", student))):
        options = ("--vote-threshold", 18, "--sigma2", 5, *check)
        ended = pate_fed(
            "account", path, "--mechanism", mechanism, "--format", "json", *options, *more
        )
        rows = ended.json["epsilon"]
        numbers.append({name: row["epsilon"] or 0.0 for name, row in rows.items()})
    assert numbers[0]["per_instance_exact"] > 0
    assert numbers[1] == pytest.approx(numbers[0], rel=1e-12)


@pytest.mark.parametrize("mechanism", ["interactive", "interactive-threshold"])
def test_a_threshold_looks_at_what_the_student_does_not_know(
    pate_fed: Command, tmp_path: Path, mechanism: str
) -> None:
    sure = np.tile([0.98, 0.01, 0.01], (40, 1))
    agreeing = price_of(
        pate_fed,
        tmp_path,
        mechanism,
        "--predictions",
        write_predictions(tmp_path / "sure.npy", sure),
    )
    contrary = price_of(
        pate_fed,
        tmp_path,
        mechanism,
        "--predictions",
        write_predictions(tmp_path / "wrong.npy", sure[:, ::-1]),
    )
    left = VOTES - [49, 1, 1]
    chances = (
        norm.cdf((left.max(axis=1) - 30) / 15)
        if mechanism == "interactive"
        else 1 - norm.cdf((30 - left) / 8).prod(axis=1)
    )
    assert agreeing["expected_answered"] == pytest.approx(chances.sum(), rel=1e-9)
    assert agreeing["expected_answered"] < 4
    assert contrary["expected_answered"] > 20
    assert agreeing["expected_reinforced"] == pytest.approx(40 - agreeing["expected_answered"])
    assert (
        agreeing["epsilon"]["per_instance_exact"]["epsilon"]
        < (contrary["epsilon"]["per_instance_exact"]["epsilon"])
    )
    for name in ("formal_gdp", "formal_label"):
        assert agreeing["epsilon"][name] == contrary["epsilon"][name]
    unsure = price_of(
        pate_fed,
        tmp_path,
        mechanism,
        "--confidence",
        0.99,
        "--predictions",
        tmp_path / "sure.npy",
    )
    assert unsure["expected_reinforced"] == 0


def test_rows_are_those_of_votes_and_predictions_alike(pate_fed: Command, tmp_path: Path) -> None:
    predictions = np.random.default_rng(5).dirichlet([1, 1, 1], size=40)
    student = write_predictions(tmp_path / "all.npy", predictions)
    part = price_of(pate_fed, tmp_path, "interactive", "--rows", "10:20", "--predictions", student)
    votes = write_votes(tmp_path / "part.npy", VOTES[10:20])
    cut = write_predictions(tmp_path / "cut.npy", predictions[10:20])
    alone = pate_fed(
        *("account", votes, "--mechanism", "interactive", *OPTIONS["interactive"]),
        *("--predictions", cut, "--format", "json"),
    )
    assert alone.json == part


@pytest.mark.parametrize(
    ("predictions", "code"),
    [
        pytest.param(np.full((40, 3), 0.4), "PF-101", id="rows that do not sum to 1"),
        pytest.param(np.tile([1.5, -0.5, 0.0], (40, 1)), "PF-101", id="negative"),
        pytest.param(np.full((40, 3), np.nan), "PF-101", id="no number"),
        pytest.param(np.full(40, 1.0), "PF-101", id="one axis"),
        pytest.param(np.full((40, 3), "a"), "PF-101", id="text"),
        pytest.param(np.full((39, 3), 1 / 3), "PF-105", id="too few queries"),
        pytest.param(np.full((40, 4), 1 / 4), "PF-105", id="other classes"),
    ],
)
def test_predictions_that_are_no_chances_are_refused(
    pate_fed: Command, tmp_path: Path, predictions: Any, code: str
) -> None:
    votes = write_votes(tmp_path / "votes.npy", VOTES)
    student = write_predictions(tmp_path / "student.npy", predictions)
    ended = pate_fed(
        *("account", votes, "--mechanism", "interactive", *OPTIONS["interactive"]),
        *("--predictions", student),
    )
    assert ended.error_code == code


@pytest.mark.parametrize(
    ("mechanism", "arguments", "code"),
    [
        pytest.param("confident", ("--sigma1", 9, "--sigma2", 8), "PF-105", id="no threshold"),
        pytest.param("interactive", OPTIONS["interactive"], "PF-105", id="no predictions"),
        pytest.param(
            *("interactive", (*OPTIONS["interactive"], "--predictions", "none.npy"), "PF-111"),
            id="no such file",
        ),
        pytest.param("stable-gaussian", ("--sigma1", 4), "PF-105", id="no test_delta"),
        pytest.param(
            "stable-laplace", ("--sigma1", 4, "--test-delta", 0.5), "PF-101", id="test_delta of 1/2"
        ),
        pytest.param(
            *("stable-laplace", ("--sigma1", 0, "--test-delta", 1e-8), "PF-101"),
            id="test without noise",
        ),
        pytest.param("lnmax", ("--sigma2", 0), "PF-101", id="Laplace without noise"),
        pytest.param("lnmax", ("--sigma2", 8, "--delta", 1), "PF-101", id="delta of 1"),
        pytest.param("immutable", ("--sigma2", 8, "--delta", 1), "PF-101", id="NZC with delta 1"),
        pytest.param("nobody", ("--sigma2", 8), "PF-402", id="unknown mechanism"),
        *(
            pytest.param(mechanism, (*OPTIONS[mechanism], option, value), "PF-105", id=name)
            for mechanism, option, value, name in (
                ("threshold", "--max-answers", 3, "a cap that changes no price"),
                ("stable-gaussian", "--max-answers", 3, "a test that costs the same"),
                ("threshold", "--sigma1", 3, "noise of a check of its own"),
                ("gnmax", "--vote-threshold", 3, "a threshold for GNMax"),
                ("threshold", "--confidence", 0.9, "a confidence without a student"),
                ("confident", "--confidence", 0.9, "a student for Confident-GNMax"),
            )
        ),
    ],
)
def test_options_that_do_not_fit_a_mechanism_are_refused(
    pate_fed: Command, tmp_path: Path, mechanism: str, arguments: tuple[object, ...], code: str
) -> None:
    votes = write_votes(tmp_path / "votes.npy", VOTES)
    ended = pate_fed("account", votes, "--mechanism", mechanism, *arguments)
    assert (ended.error_code, ended.out) == (code, "")


def test_a_cap_of_0_answers_is_not_taken_for_none(pate_fed: Command, tmp_path: Path) -> None:
    found = price_of(pate_fed, tmp_path, "gnmax", "--max-answers", 0)
    assert found["epsilon"]["formal_gdp"]["epsilon"] == 0
    assert found["epsilon"]["formal_label"]["epsilon"] == 0


def test_an_order_that_fails_a_condition_is_skipped(pate_fed: Command, tmp_path: Path) -> None:
    """At sigma 12 and 10 classes condition C6 fails at order 10, not at 6."""
    fails = [
        order
        for order in (6.0, 8.0, 10.0, 12.0, 14.0, 17.0, 20.0, 25.0)
        if not smooth_conditions(SmoothSetting(12.0, 10, order, 250)).hold
    ]
    assert fails
    assert len(fails) < 8
    votes = np.random.default_rng(1).multinomial(250, [0.7, 0.2] + [0.0125] * 8, size=20)
    path = write_votes(tmp_path / "votes.npy", votes)
    ended = pate_fed(
        *("account", path, "--mechanism", "gnmax", "--sigma2", 12, "--format", "json"),
    )
    row = ended.json["epsilon"]["sanitized"]
    assert row["epsilon"] > 0
    assert row["order"] not in fails


def test_where_every_order_fails_a_condition_there_is_no_sanitized_number(
    pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InvalidParameterError("the rule", "C6")

    monkeypatch.setattr("pate_fed.lab.compare.private_rows.instance_cost", refuse)
    row = price_of(pate_fed, tmp_path, "gnmax")["epsilon"]["sanitized"]
    assert row["epsilon"] is None
    assert row["method"].endswith(": the rule")


def test_published_votes_cost_what_the_2017_paper_says(pate_fed: Command) -> None:
    """2.04 for 100 answers at gamma 0.05: the paper looked at moments 1 to 8 only."""
    path = real_data("data/pate_votes/pate2018_counts/mnist_250_teachers.npy")
    ended = pate_fed(
        *("account", path, "--rows", "0:100", "--mechanism", "lnmax", "--format", "json"),
        *("--sigma2", math.sqrt(2) / 0.05),
    )
    assert ended.json["epsilon"]["per_instance_paper"]["epsilon"] < 2.04
    orders = np.arange(2.0, 10.0)
    rdp = laplace_rdp(np.load(path)[:100], orders, gamma=0.05, pure_bound="paper").sum(axis=0)
    few = convert_at_orders(rdp, orders, delta=1e-5, method="mironov")
    assert few.epsilon == pytest.approx(2.04, abs=0.005)


def test_published_votes_under_a_test_of_stability(pate_fed: Command) -> None:
    """An independent calculation gave 289 answers at epsilon 8.38, half of delta for the tests."""
    path = real_data("data/pate_votes/pate2018_counts/mnist_250_teachers.npy")
    ended = pate_fed(
        *("account", path, "--rows", "0:640", "--mechanism", "stable-gaussian", "--sigma1", 15),
        *("--test-delta", 5e-6 / 640, "--format", "json"),
    )
    assert ended.json["expected_answered"] == pytest.approx(289, abs=2)
    assert ended.json["epsilon"]["formal_gdp"]["epsilon"] == pytest.approx(8.38, abs=0.005)

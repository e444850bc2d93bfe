"""Published experiments, repeated: the price is the one of the caps, and figures are measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.special import ndtr

from pate_fed.accounting import GaussianMaxEvent, label_level_epsilon
from pate_fed.data import DataSource, load_dataset
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.lab.experiments import (
    EXPERIMENTS,
    Experiment,
    Result,
    Row,
    interactive,
    picture_of,
    published_votes,
    reproduce,
)
from pate_fed.lab.experiments.experiment import (
    DELTA,
    Tell,
    confident_rows,
    epsilon_of,
    noisy_labels,
)
from pate_fed.lab.mechanisms import ConfidentGaussianMax, InteractiveGaussianMax
from pate_fed.mechanisms import GaussianMax, LaplaceMax
from pate_fed.rule import Rule
from tests.support.command import Command, pate_fed
from tests.support.real_data import real_data
from tests.support.ties import tied_epsilon

__all__ = ["pate_fed"]  # a fixture


def silent(_: str) -> None:
    """Hear nothing."""


def test_labels_of_plain_gnmax_cost_what_the_label_level_bound_says() -> None:
    expected = label_level_epsilon(GaussianMaxEvent(500, 60.0), delta=DELTA).epsilon
    attack = tied_epsilon(60.0, 500, DELTA)
    assert attack <= epsilon_of(GaussianMax(60.0), 500, classes=2) <= expected * (1 + 1e-9)


def test_a_check_is_paid_for_at_its_caps() -> None:
    def cost(answers: int, sigma1: float = 150.0) -> float:
        return epsilon_of(
            ConfidentGaussianMax(Rule("confident", 200.0, sigma1, 40.0)), 640, answers, classes=10
        )

    assert cost(200) < cost(290)
    assert cost(290) < epsilon_of(GaussianMax(40.0), 640, classes=10)
    assert cost(290, sigma1=300.0) < cost(290)


def test_noise_is_drawn_anew_and_with_its_deviation() -> None:
    votes = np.tile([[100, 100]], (4000, 1))
    first, second = (noisy_labels(votes, 5.0, np.random.default_rng(seed)) for seed in (0, 1))
    assert 0.45 < first.mean() < 0.55  # 1 in 10^9 by chance
    assert (first != second).any()
    sure = np.tile([[100, 0]], (50, 1))
    assert not noisy_labels(sure, 1e-3, np.random.default_rng(0)).any()


def test_the_check_keeps_rows_that_teachers_agree_about() -> None:
    votes = np.array([[250, 0], [130, 120], [0, 250]])
    assert confident_rows(votes, 200.0, 1e-3, np.random.default_rng(0)).tolist() == [0, 2]


def test_a_result_says_mean_spread_and_least() -> None:
    record = Result(Row("protocol", "forest", 1.0), (0.8, 0.9)).as_record()
    assert (record["mean"], record["least"]) == (pytest.approx(0.85), 0.8)
    assert record["spread"] == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert Result(Row("protocol", "forest", 1.0), (0.8,)).as_record()["spread"] is None


@pytest.mark.parametrize("name", [name for name, one in EXPERIMENTS.items() if one.needs])
def test_a_missing_data_set_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=EXPERIMENTS[name].needs[0]):
        reproduce(name, tmp_path, [0], silent)


@pytest.mark.parametrize(("name", "seeds"), [("oracle", [0]), ("clinics", [])])
def test_an_unknown_experiment_and_no_seed_are_refused(
    name: str, seeds: list[int], tmp_path: Path
) -> None:
    with pytest.raises(InvalidParameterError):
        reproduce(name, tmp_path, seeds, silent)


def test_the_command_names_what_is_missing(pate_fed: Command, tmp_path: Path) -> None:
    ended = pate_fed("reproduce", "clinics", "--data-dir", tmp_path)
    assert (ended.code, ended.out) == (5, "")
    assert "brfss_diabetes" in ended.err


def test_rounds_cost_the_sum_of_their_prices_by_an_independent_formula() -> None:
    def delta_of(epsilon: float) -> float:
        squares = 640 / 150**2 + 2 * 290 / 40**2, 0.0
        if rounds is interactive.TWO_ROUNDS:
            squares = (
                200 / 150**2 + 2 * 100 / 40**2,
                200 / 100**2 + 2 * 40 / 60**2,
            )
        mu = math.sqrt(sum(squares))
        return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))

    for rounds in (interactive.ONE_ROUND, interactive.TWO_ROUNDS):
        assert delta_of(interactive.epsilon_of_rounds(rounds)) == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.slow
def test_a_second_round_asks_other_queries_and_keeps_what_a_sure_student_knows() -> None:
    data = load_dataset(DataSource("digits"), rng=np.random.default_rng(0))
    votes = 5 * np.ones((len(data.pool), 10), int) + 200 * np.eye(10, dtype=int)[data.pool.labels]
    first = interactive.Round(ConfidentGaussianMax(Rule("confident", 150, 5, 5)), 60, 50)
    second = interactive.Round(
        InteractiveGaussianMax(Rule("interactive", 150, 5, 5), confidence=0.5), 60, 5
    )
    alone = interactive.labels_of_rounds([first], votes, data, seed=1)
    both = interactive.labels_of_rounds([first, second], votes, data, seed=1)
    assert len(alone) == 50
    assert alone.items() <= both.items()
    later = both.keys() - alone.keys()
    assert len(later) > 5  # more than its cap on answers: a student's own cost nothing
    assert min(later) >= 60
    assert np.mean([both[place] == data.pool.labels[place] for place in both]) > 0.9


def test_labels_of_lnmax_cost_what_their_event_says() -> None:
    # Pure epsilon of 0.1 each; Renyi composition and conversion can only be cheaper.
    cost = epsilon_of(LaplaceMax(0.05), 100, classes=10)
    basic = 100 * 0.1
    advanced = 0.1 * math.sqrt(2 * 100 * math.log(1 / DELTA)) + 100 * 0.1 * math.expm1(0.1)
    assert 0.5 * advanced < cost < min(basic, advanced)


@pytest.mark.slow
def test_two_neighbors_refute_what_nzc_claims_on_published_votes() -> None:
    found = list(published_votes._published_tables(real_data("data"), [0]))
    shares = [one for one in found if one.row.measure == "share with a lead above 3"]
    assert len(shares) == 3
    assert all(0.99 < one.values[0] < 1 for one in shares)
    bounds = {one.row.protocol: one for one in found if one.row.measure.startswith("lower bound")}
    for name, one in bounds.items():
        assert (max(one.values) > one.row.epsilon) is name.startswith("NZC"), name
    assert len(bounds) == 8


def test_an_argmax_without_noise_tells_the_last_vote_and_a_noisy_one_hardly() -> None:
    rng = np.random.default_rng(0)
    assert published_votes.last_vote_told(None, rng) == 1.0
    # Two counts that differ by one vote, noise of 40 each: right in Phi(1 / (40 sqrt 2)).
    expected = ndtr(1 / (40 * math.sqrt(2)))
    assert published_votes.last_vote_told(40.0, rng) == pytest.approx(expected, abs=0.02)


def test_a_price_that_does_not_exist_is_null_and_said_in_words() -> None:
    record = Result(Row("immutable", "none", math.inf), (0.9,)).as_record()
    assert record["epsilon"] is None
    assert json.loads(json.dumps(record, allow_nan=False)) == record


@pytest.mark.slow
def test_results_are_drawn_with_every_measure_and_series() -> None:
    results = [
        Result(Row("12 queries", "forest", 0.5), (0.7, 0.8)),
        Result(Row("90 queries", "forest", 2.0), (0.989, 0.989, 0.989)),  # mean: 0.98900000...01
        Result(Row("a clinic <alone>", "none", 0.0), (0.6,)),
        Result(Row("no bound", "none", math.inf, measure="last vote told"), (1.0,)),
        Result(Row("much noise", "line", 0.5, measure="auc", at=0.3), (0.6,)),
    ]
    picture = picture_of(results, title="Five rows", axis="epsilon")
    assert picture == picture_of(results, title="Five rows", axis="epsilon")
    root = ElementTree.fromstring(picture)  # noqa: S314 - ours
    said = {text.strip() for text in root.itertext() if text.strip()}
    assert {"Five rows", "epsilon", "test accuracy", "last vote told", "auc"} <= said
    assert {"forest", "a clinic <alone>", "no bound", "line"} <= said


def test_the_command_writes_results_and_their_plot(
    pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:
        tell("begun")
        yield Result(Row("12 queries", "forest", 0.5), tuple(0.1 * one for one in seeds))

    monkeypatch.setitem(EXPERIMENTS, "clinics", Experiment("Small clinics", (), run))
    out = tmp_path / "found"
    asked = ("reproduce", "clinics", "--data-dir", tmp_path, "--first-seed", 4, "--out", out)
    ended = pate_fed(*asked)
    assert ended.code == 0
    assert "epsilon 0.500: test accuracy 0.5000 +- 0.1000 (least 0.4000)" in ended.out
    table = json.loads((out / "results.json").read_text("utf-8"))
    assert (table["experiment"], table["seeds"]) == ("clinics", [4, 5, 6])
    assert "Small clinics" in (out / "results.svg").read_text("utf-8")
    again = pate_fed(*asked)
    assert (again.code, "new folder" in again.err) == (2, True)


@pytest.mark.slow
class TestRealData:
    """One seed each, so bounds are below the means of ten seeds that the documentation has."""

    @pytest.mark.exhaustive
    def test_adult_at_two_budgets(self) -> None:
        folder = real_data("data/pate_votes/pate2018_counts/adult_250_teachers.npy").parents[2]
        best: dict[float, float] = {}
        for result in reproduce("adult-2018", folder, [11], silent):
            best[result.row.epsilon] = max(
                best.get(result.row.epsilon, 0.0), result.as_record()["mean"]
            )
        small, large = sorted(best)
        assert small <= 0.5
        assert large <= 1.9
        assert best[small] >= 0.79
        assert best[large] >= 0.82

    @pytest.mark.exhaustive
    def test_svhn_costs_what_the_paper_says(self) -> None:
        folder = real_data("data/pate_votes/pate2018_counts/svhn_250_teachers.npy").parents[2]
        found = {
            (result.row.protocol.split(",")[0], result.row.measure.split(" ")[0]): result.values[0]
            for result in reproduce("svhn-votes-2018", folder, [11], silent)
        }
        # Published: 3,098 of 8,500 answered at 4.96.
        assert found["Confident-GNMax 300/200/40", "share"] == pytest.approx(3098 / 8500, abs=0.03)
        assert found["Confident-GNMax 300/200/40", "epsilon"] == pytest.approx(4.96, abs=0.2)

    def test_hearts_gain_beside_the_weaker_hospitals(self) -> None:
        folder = real_data("data/heart_disease/processed.va.data").parents[1]
        found = {
            (result.row.protocol.split(",")[0], result.row.measure): float(np.mean(result.values))
            for result in reproduce("hearts", folder, [11, 12], silent)
        }
        assert found["GNMax", "auc"] > found["Zurich and Basel alone", "auc"]
        assert found["GNMax", "accuracy"] > found["Long Beach alone", "accuracy"]

    @pytest.mark.exhaustive
    def test_small_clinics_gain_beside_their_own_models(self) -> None:
        folder = real_data(
            "data/brfss_diabetes/diabetes_binary_health_indicators_BRFSS2015.csv.gz"
        ).parents[1]
        found = {
            (result.row.protocol, result.row.measure): result
            for result in reproduce("clinics", folder, [11], silent)
        }
        own = found["a clinic alone, mean", "accuracy"].values[0]
        student = found["GNMax, sigma 105, 500 random queries", "accuracy"]
        assert student.row.epsilon <= 1.0
        assert student.values[0] >= own + 0.02
        assert found["GNMax, sigma 105, 500 random queries", "auc"].values[0] >= 0.785

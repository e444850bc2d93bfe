"""Published experiments, repeated: the price is the one of the caps, and figures are measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.accounting import label_level_epsilon
from pate_fed.errors import InvalidParameterError, UnreadableFileError
from pate_fed.experiments import EXPERIMENTS, Result, Row, reproduce
from pate_fed.experiments.experiment import (
    DELTA,
    confident_rows,
    epsilon_of,
    load_counts,
    noisy_labels,
)
from tests.support.command import Command, pate_fed
from tests.support.real_data import real_data

__all__ = ["pate_fed"]  # a fixture


def silent(_: str) -> None:
    """Hear nothing."""


def test_labels_of_plain_gnmax_cost_what_the_label_level_bound_says() -> None:
    expected = label_level_epsilon(500, 500, sigma1=None, sigma2=60.0, delta=DELTA).epsilon
    assert epsilon_of(votes=250, classes=2, sigma2=60.0, asks=500) == pytest.approx(expected)


@pytest.mark.slow
def test_a_check_is_paid_for_at_its_caps() -> None:
    def cost(answers: int, sigma1: float = 150.0) -> float:
        return epsilon_of(
            votes=250,
            classes=10,
            sigma2=40.0,
            asks=640,
            answers=answers,
            vote_threshold=200.0,
            sigma1=sigma1,
        )

    assert cost(200) < cost(290)
    assert cost(290) < epsilon_of(votes=250, classes=10, sigma2=40.0, asks=640)
    # A noisy check lets more queries through that cost an answer at full price.
    assert cost(290) < cost(290, sigma1=300.0)


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


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(np.arange(5), id="one axis"),
        pytest.param(np.array([[1, -1]]), id="a negative count"),
        pytest.param(np.array([{"a": 1}], dtype=object), id="objects"),
    ],
)
def test_a_file_that_holds_no_counts_is_refused(tmp_path: Path, content: np.ndarray) -> None:
    np.save(tmp_path / "votes.npy", content)
    with pytest.raises(UnreadableFileError):
        load_counts(tmp_path / "votes.npy")


def test_a_result_says_mean_spread_and_least() -> None:
    record = Result(Row("protocol", "forest", 1.0), (0.8, 0.9)).as_record()
    assert (record["mean"], record["least"]) == (pytest.approx(0.85), 0.8)
    assert record["spread"] == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert Result(Row("protocol", "forest", 1.0), (0.8,)).as_record()["spread"] is None


@pytest.mark.parametrize("name", list(EXPERIMENTS))
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


@pytest.mark.slow
class TestRealData:
    """One seed each, so bounds are below the means of ten seeds that the documentation has."""

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

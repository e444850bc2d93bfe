"""The vote-leak experiment: its votes, its prices, and its perturbing attacker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate_fed.errors import UnreadableFileError
from pate_fed.lab.experiments import adult_consensus
from pate_fed.lab.experiments import vote_leak as module
from pate_fed.lab.experiments.vote_leak import vote_leak
from tests.support.real_data import real_data


def silent(line: str) -> None:
    del line


@pytest.mark.parametrize("name", ["mnist_svhn_15_queries_250_teachers", "none"])
def test_damaged_votes_are_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pate_votes"
    folder.mkdir()
    np.savez(folder / f"{name}.npz", others=np.zeros(3))
    with pytest.raises(UnreadableFileError, match="mnist_svhn_15"):
        list(vote_leak(tmp_path, [0], silent))


@pytest.mark.exhaustive
def test_more_noise_and_more_answers_help_the_attacker() -> None:
    rows = module._histograms(
        real_data("data/pate_votes") / "mnist_svhn_15_queries_250_teachers.npz"
    )
    assert {name: {one.sum() for one in votes} for name, votes in rows.items()} == {
        "mnist": {250},
        "svhn": {250},
    }
    found = {
        (one.row.student, one.row.at): one.values[0]
        for one in module._over_noise("svhn", rows["svhn"], [0], silent)
    }
    assert found["svhn, likelihood", 80.0] < 0.6 * found["svhn, likelihood", 40.0]
    rules = [one.values[0] for one in module._over_answers("svhn", rows["svhn"], [0], silent)]
    assert rules == sorted(rules, reverse=True)


@pytest.mark.slow
def test_more_answers_tell_which_classes_are_confused_and_whom_teachers_disagree_on() -> None:
    rows = module._histograms(
        real_data("data/pate_votes") / "mnist_svhn_15_queries_250_teachers.npz"
    )
    found = {
        (one.row.protocol, one.row.measure): one.values[0]
        for one in module._beside_the_top("mnist", rows["mnist"], [0], silent)
    }
    for measure in (
        "edge: second class found",
        "correlation of the counts beside the largest",
    ):
        few, many = (
            found[f"GNMax, mnist, {asks} answers, sigma 100", measure] for asks in ("100", "10,000")
        )
        assert few < many
        assert many > 0.6
    groups = adult_consensus._groups(real_data("data"))
    assert {one.sum() for one in groups["doctorate"]} == {250}
    everybody = len(groups["no doctorate"])
    for kind in ("age", "gender", "race"):
        assert sum(len(one) for name, one in groups.items() if name.startswith(kind)) == everybody
    rng = np.random.default_rng(0)

    def low(name: str, asks: int | None) -> float:
        seen = [adult_consensus._seen(one, asks, rng) for one in groups[name][:112]]
        return float(np.mean([adult_consensus._agreement(one) < 0.75 for one in seen]))

    assert low("doctorate", None) > 1.5 * low("no doctorate", None)
    assert low("doctorate", 1000) == pytest.approx(low("doctorate", None), abs=0.05)


def test_the_second_class_may_be_any_of_equal_ones() -> None:
    true = np.array([200, 25, 25, 0])
    assert module._finds_second(np.array([190.0, 20.0, 40.0, 0.0]), true)
    assert module._finds_second(np.array([190.0, 40.0, 20.0, 0.0]), true)
    assert not module._finds_second(np.array([190.0, 10.0, 10.0, 40.0]), true)

"""Noisy counts: what they show, what that costs, and that no deployment releases them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from coordinator.cli import app
from pate_fed.accounting import GaussianMaxEvent
from pate_fed.accounting.calibration import most_queries
from pate_fed.accounting.formal_cost import counts_cost, labels_cost
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.mechanisms.noisy_counts import NoisyCounts
from pate_fed.lab.per_instance import instance_rdp
from pate_fed.mechanisms import DEPLOYED_MECHANISMS, SPECS
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.releases import NoisyRelease
from pate_fed.students import LabelFacts, Lesson, train_student
from pate_fed.votes import SummedHistogram
from tests.support.small_records import blobs

DELTA = 1e-5


def counts_of(row: list[int], *, draws: int, sigma: float, seed: bytes) -> np.ndarray:
    release = NoisyCounts(sigma).release(
        SummedHistogram(np.tile(np.array(row), (draws, 1)), total_votes=sum(row)),
        noise=CoordinatorNoise(),
        random_bytes=keyed_stream(seed, tag="counts"),
        max_answers=draws,
    )
    assert release.counts is not None
    assert (release.counts.argmax(axis=1) == release.labels).mean() > 0.99  # but for ties
    return release.counts


def test_two_worlds_are_as_far_apart_as_charged_and_farther_than_their_labels() -> None:
    """The best test of two neighboring rows: its power is that of the Gaussian price, no less."""
    sigma, draws = 2.0, 20_000
    here, there = (
        counts_of(row, draws=draws, sigma=sigma, seed=seed)
        for row, seed in (([26, 24], b"0"), ([25, 25], b"1"))
    )
    told_here, told_there = (counts[:, 0] - counts[:, 1] for counts in (here, there))
    for level in (0.01, 0.1, 0.3):
        at = np.quantile(told_there, 1 - level)
        power, most = (told_here > at).mean(), norm.cdf(norm.ppf(level) + math.sqrt(2) / sigma)
        assert power == pytest.approx(most, abs=0.02)


def test_the_price_is_that_of_counts_and_no_smaller_one_can_be_asked_for() -> None:
    assert SPECS["counts"].shows_counts
    assert not SPECS["counts"].at_parties
    event = NoisyCounts(10.0).worst_case_event(100, 100)
    shown, labels = counts_cost(event, delta=DELTA), labels_cost(event, options=2, delta=DELTA)
    assert labels.epsilon < shown.epsilon  # a label's price would be too low
    assert "noisy counts" in shown.holds_for
    orders = np.array([1.5, 4.0])
    found = instance_rdp(
        NoisyCounts(10.0), np.array([[50, 0]] * 3), np.zeros(3, dtype=np.int8), orders, weight=2.0
    )
    assert found == pytest.approx(orders * 3 * 0.04)  # votes that agree make nothing cheaper


def test_a_budget_affords_fewer_counts_than_labels() -> None:
    def counts(queries: int) -> float:
        return counts_cost(GaussianMaxEvent(queries, 10.0), delta=DELTA).epsilon

    def labels(queries: int) -> float:
        return labels_cost(GaussianMaxEvent(queries, 10.0), options=2, delta=DELTA).epsilon

    by_counts, by_labels = (most_queries(each, budget=2.0, most=1000) for each in (counts, labels))
    assert 0 < by_counts < by_labels


def test_no_deployment_and_no_price_of_labels_knows_them() -> None:
    assert "counts" not in DEPLOYED_MECHANISMS
    for command in (("account", "votes.npy"), ("run", "request")):
        said = CliRunner().invoke(app, [*command, "--mechanism", "counts"])
        assert said.exit_code == 2


def test_counts_travel_in_no_record_and_must_be_of_all_answers() -> None:
    labels, outcomes, counts = np.array([0, 1]), np.zeros(2, dtype=np.int8), np.ones((2, 2))
    release = NoisyRelease(labels, outcomes, counts)
    assert set(release.as_record()) == {"labels", "outcomes"}
    with pytest.raises(InvalidParameterError, match="answers"):
        NoisyRelease(labels, outcomes, counts[:1])


def test_a_student_of_counts_learns_how_sure_the_teachers_were() -> None:
    """Noise hides the winner of many rows; shares of votes average it out."""
    pool = blobs(90)
    rng = np.random.default_rng(0)
    counts = np.eye(3)[pool.labels] * 40 + rng.normal(0, 25, (90, 3))
    facts = LabelFacts(votes=40, sigma=25.0)
    lesson = Lesson(pool.inputs, np.arange(90), counts.argmax(axis=1), 3, facts, counts)
    student = train_student("auto", "table", lesson, rng=rng)
    assert student.name == "kernel-ridge"
    assert "noisy counts" in student.reason
    assert (student.predict(pool.inputs) == pool.labels).mean() > 0.95
    with pytest.raises(InvalidParameterError, match="class"):
        Lesson(pool.inputs, np.arange(90), counts.argmax(axis=1), 3, facts, counts[:, :2])


@pytest.mark.slow
def test_a_simulation_charges_what_its_student_saw(tmp_path: Path) -> None:
    asked = ("simulate", "--data", "breast-cancer", "--parties", 5, "--teachers", 4, "--seed", 1)
    told = {}
    for name in ("counts", "gnmax"):
        options = ("--mechanism", name, "--sigma2", 20, "--queries", 20, "--epsilon", 50)
        words = [*asked, *options, "--out", tmp_path / name, "--format", "json"]
        said = CliRunner().invoke(app, [str(word) for word in words])
        assert said.exit_code == 0, said.output
        told[name] = json.loads(said.stdout)
    counts, labels = (told[name]["privacy"]["views"]["public"] for name in ("counts", "gnmax"))
    assert counts["epsilon"] > labels["epsilon"]
    assert counts["epsilon"] == pytest.approx(
        counts_cost(GaussianMaxEvent(20, 20.0), delta=DELTA).epsilon
    )
    assert "noisy counts" in counts["holds_for"]
    assert told["counts"]["metrics"]["student"]["kind"] == "kernel-ridge"

"""The papers' number for one run: published values, what is charged, never releasable."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from pate_fed.accounting.conversion import convert_at_orders
from pate_fed.accounting.costs import PerInstanceCost
from pate_fed.errors import InvalidParameterError, InvalidVotesError
from pate_fed.lab.mechanisms import ConfidentGaussianMax
from pate_fed.lab.pate_bounds import (
    gnmax_log_q,
    rdp_from_log_q,
    threshold_margin,
    threshold_rdp,
)
from pate_fed.lab.per_instance import PerInstanceMeter
from pate_fed.mechanisms import GaussianMax, Mechanism, ThresholdMax
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from pate_fed.rule import Rule
from tests.support.pate_vectors import composition_counts, load_vectors
from tests.support.query_costs import gnmax_rdp
from tests.support.real_data import real_data

CONFIDENT = ConfidentGaussianMax(Rule("confident", 200.0, 150.0, 40.0))
PAPER_ORDERS = np.concatenate(
    [np.arange(2, 101, 0.5), np.logspace(np.log10(100), np.log10(500), 100)]
)


def release_of(outcomes: Sequence[int]) -> NoisyRelease:
    labels = [0 if outcome == Outcome.ANSWERED else ABSTAIN for outcome in outcomes]
    return NoisyRelease(np.array(labels), np.array(outcomes, dtype=np.int8))


def cost_of(
    counts: ArrayLike,
    release: NoisyRelease,
    mechanism: Mechanism,
    *,
    delta: float,
    weight: float = 1.0,
) -> PerInstanceCost:
    meter = PerInstanceMeter(mechanism, delta=delta, weight=weight)
    meter.add(counts, release)
    return meter.cost


ANSWERED, REFUSED, NOT_ASKED = Outcome.ANSWERED, Outcome.REFUSED, Outcome.NOT_ASKED
COUNTS = [[240, 10, 0], [100, 80, 70], [230, 20, 0], [90, 80, 80]]


def test_a_run_costs_what_the_reference_says() -> None:
    vectors = load_vectors("extract")
    cases = [case for case in vectors["composition"] if case["T"] == 600]
    assert len(cases) == 1
    for case in cases:
        mechanism = ConfidentGaussianMax(
            Rule("confident", case["T"], case["sigma1"], case["sigma2"])
        )
        outcomes = [ANSWERED if answered else REFUSED for answered in case["answered"]]
        cost = cost_of(
            composition_counts(vectors, case),
            release_of(outcomes),
            mechanism,
            delta=case["delta"],
        )
        # A denser grid of orders finds a slightly better one, never a worse one.
        assert 0.995 * case["eps_mironov_total"] <= cost.epsilon
        assert cost.epsilon <= case["eps_mironov_total"] * (1 + 1e-12)
        assert "Mironov" in cost.method


def test_checks_are_charged_for_every_ask_and_labels_for_every_answer() -> None:
    release = release_of([ANSWERED, REFUSED, NOT_ASKED, NOT_ASKED])
    cost = cost_of(COUNTS, release, CONFIDENT, delta=1e-5)
    orders = np.array([cost.order])
    checks = threshold_rdp([240, 100], orders, vote_threshold=200, sigma=150).sum()
    label = gnmax_rdp(COUNTS[:1], orders, sigma=40.0).sum()
    expected = convert_at_orders([checks + label], orders, delta=1e-5, method="mironov")
    assert cost.epsilon == pytest.approx(expected.epsilon, rel=1e-12)


def test_gnmax_pays_for_labels_only() -> None:
    release = release_of([ANSWERED, ANSWERED, NOT_ASKED, NOT_ASKED])
    cost = cost_of(COUNTS, release, GaussianMax(40.0), delta=1e-5)
    labels = gnmax_rdp(COUNTS[:2], [cost.order], sigma=40.0).sum(axis=0)
    expected = convert_at_orders(labels, [cost.order], delta=1e-5, method="mironov")
    assert cost.epsilon == pytest.approx(expected.epsilon, rel=1e-12)


def test_a_threshold_on_the_same_noise_pays_for_every_ask_alike() -> None:
    rule = ThresholdMax(40.0, vote_threshold=150.0)
    costs = [
        cost_of(COUNTS, release_of([*outcomes, NOT_ASKED, NOT_ASKED]), rule, delta=1e-5)
        for outcomes in ([ANSWERED, REFUSED], [REFUSED, ANSWERED], [REFUSED, REFUSED])
    ]
    assert costs[0] == costs[1] == costs[2]
    log_q = gnmax_log_q(COUNTS[:2], sigma=40.0, vote_threshold=150.0)
    labels = rdp_from_log_q(log_q, [costs[0].order], sigma=40.0).sum(axis=0)
    expected = convert_at_orders(labels, [costs[0].order], delta=1e-5, method="mironov")
    assert costs[0].epsilon == pytest.approx(expected.epsilon, rel=1e-12)


def test_nothing_asked_costs_nothing() -> None:
    cost = cost_of(COUNTS, release_of([NOT_ASKED] * 4), CONFIDENT, delta=1e-5)
    assert cost.epsilon == 0


def test_batches_cost_what_they_cost_together() -> None:
    meter = PerInstanceMeter(CONFIDENT, delta=1e-5)
    meter.add(COUNTS[:1], release_of([ANSWERED]))
    meter.add(COUNTS[1:], release_of([REFUSED, ANSWERED, NOT_ASKED]))
    together = cost_of(
        COUNTS, release_of([ANSWERED, REFUSED, ANSWERED, NOT_ASKED]), CONFIDENT, delta=1e-5
    )
    assert meter.cost.epsilon == pytest.approx(together.epsilon, rel=1e-12)


def test_the_number_is_never_releasable() -> None:
    cost = cost_of(COUNTS, release_of([REFUSED] * 4), CONFIDENT, delta=1e-5)
    assert cost.releasable is False


def test_a_hospital_costs_more_than_a_record() -> None:
    release = release_of([ANSWERED, REFUSED, ANSWERED, REFUSED])
    record = cost_of(COUNTS, release, CONFIDENT, delta=1e-5)
    hospital = cost_of(COUNTS, release, CONFIDENT, delta=1e-5, weight=5.0)
    assert hospital.epsilon > 2 * record.epsilon


def test_counts_and_release_must_belong_together() -> None:
    with pytest.raises(InvalidParameterError):
        cost_of(COUNTS, release_of([ANSWERED]), CONFIDENT, delta=1e-5)
    with pytest.raises(InvalidVotesError):
        cost_of([[3, 2], [3, -1]], release_of([0, 0]), CONFIDENT, delta=1e-5)


@pytest.mark.parametrize("dataset", ["mnist", "adult", "svhn"])
def test_published_votes_cost_what_was_published(dataset: str) -> None:
    """The paper's expected cost: each label weighs as much as its chance to be answered."""
    file = f"{dataset}_250_teachers.npy"
    case = next(run for run in load_vectors("extract")["real_runs"] if run["dataset"] == file)
    path = real_data(f"data/pate_votes/pate2018_counts/{file}")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == case["sha256"]
    counts: NDArray[np.float64] = np.load(path)[slice(*case["rows"])]
    check = {"vote_threshold": case["T"], "sigma": case["sigma1"]}
    checks = threshold_rdp(counts.max(axis=1), PAPER_ORDERS, **check)
    chances = ndtr(threshold_margin(counts.max(axis=1), **check))
    assert chances.sum() == pytest.approx(case["E_answered"], rel=1e-12)
    labels = gnmax_rdp(counts, PAPER_ORDERS, sigma=case["sigma2"])
    expected = (checks + chances[:, np.newaxis] * labels).sum(axis=0)
    for index, rdp in case["rdp_expected_at_orders_index"].items():
        assert expected[int(index)] == pytest.approx(rdp, rel=1e-9)
    for index, rdp in case["rdp_threshold_at_orders_index"].items():
        assert checks.sum(axis=0)[int(index)] == pytest.approx(rdp, rel=1e-9)
    mironov = convert_at_orders(expected, PAPER_ORDERS, delta=case["delta"], method="mironov")
    assert mironov.epsilon == pytest.approx(case["eps_mironov"], rel=1e-9)
    assert mironov.order == case["order_mironov"]
    cks = convert_at_orders(expected, PAPER_ORDERS, delta=case["delta"], method="cks")
    assert cks.epsilon == pytest.approx(case["eps_cks"], rel=1e-9)
    assert cks.order == case["order_cks"]

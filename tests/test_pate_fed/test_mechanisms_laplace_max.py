"""LNMax: its law by quadrature, its draws, its price."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2

from pate_fed.accounting.events import LaplaceMaxEvent
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.laplace_bounds import laplace_rdp
from pate_fed.lab.per_instance import instance_rdp
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.sampling import keyed_stream
from pate_fed.releases import Outcome
from tests.test_pate_fed.test_lab_laplace_bounds import laplace_argmax_log_law
from tests.test_pate_fed.test_mechanisms_contract import released


@pytest.mark.parametrize("counts", [[3, 2], [2, 2, 2], [5, 1, 0]])
def test_labels_have_the_chances_that_quadrature_gives(counts: list[int]) -> None:
    """Chi-squared tests with a false-alarm rate of 1e-6; noise 30 % too weak or strong fails."""
    chances = np.exp(laplace_argmax_log_law(np.array(counts), 0.5))
    source = keyed_stream(b"law", tag=str(counts))
    rows = np.tile(np.array(counts), (40_000, 1))

    def statistic(gamma: float) -> float:
        labels = released(LaplaceMax(gamma), rows, source).labels
        seen = np.bincount(labels, minlength=len(counts))
        expected = chances * len(rows)
        return float(((seen - expected) ** 2 / expected).sum())

    bar = chi2.isf(1e-6, len(counts) - 1)
    assert statistic(0.5) <= bar
    if len(set(counts)) > 1:  # a full tie has the same law at every scale
        assert statistic(0.5 / 0.7) > bar
        assert statistic(0.5 * 0.7) > bar


def test_an_answer_costs_twice_gamma_for_every_vote_that_can_move() -> None:
    mechanism = LaplaceMax(0.25)
    assert mechanism.event(4, 4, weight=2) == LaplaceMaxEvent(4, 0.25, 2.0)
    outcomes = np.array([Outcome.ANSWERED, Outcome.ANSWERED], dtype=np.int8)
    counts = np.array([[30, 2], [9, 8]])
    orders = np.array([2.0, 8.0])
    expected = laplace_rdp(counts, orders, gamma=0.25, weight=2).sum(axis=0)
    found = instance_rdp(mechanism, counts, outcomes, orders, weight=2)
    assert found == pytest.approx(expected, rel=1e-14)


def test_the_standard_deviation_is_that_of_laplace_noise() -> None:
    assert LaplaceMax(0.25).parameters()["sigma2"] == pytest.approx(math.sqrt(2) * 4, rel=1e-15)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.nan, math.inf])
def test_gamma_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(InvalidParameterError):
        LaplaceMax(gamma)

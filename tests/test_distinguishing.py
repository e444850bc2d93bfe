"""Whole simulated federations on neighboring data: releases differ by no more than is claimed.

Every query is voted on alike, so a run of many queries is that many independent releases in one
world. Two runs, of two worlds that differ in one teacher's vote, then show how far its chances
differ. With noise 30 % too small they differ by more than is claimed. Seeds are fixed; with other
ones a claim that holds fails once in 10,000 times, and the smaller noise, of which 4,000 queries
show 7 standard errors where 4 are allowed, escapes once in 1,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from pate_fed.accounting.joint_price import flat_prices
from pate_fed.accounting.vote_pairs import JointSetting
from pate_fed.mechanisms import keyed_stream, sampling
from pate_fed.queries import QueryBatch
from pate_fed.releases import ABSTAIN
from tests.support.federation import Federation

pytestmark = pytest.mark.slow

TEACHERS, PARTIES, QUERIES = 7, 3, 4000
ALL = TEACHERS * PARTIES
MARGIN = 4.0
"""Standard errors that an estimate may lie above a claim."""


def voting(first: int, place: int) -> Callable[[QueryBatch], NDArray[np.int64]]:
    """Teachers of one party, of whom `first` over all parties vote for class 0, others for 1."""
    mine = np.arange(place * TEACHERS, (place + 1) * TEACHERS)

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        return np.tile((mine >= first).astype(np.int64)[:, np.newaxis], (1, len(batch)))

    return vote


def released(first: int, **terms: Any) -> NDArray[np.float64]:
    """The share of queries without an answer, with class 0 and with class 1, in one world."""
    caps = {"max_asks": QUERIES, "max_answers": QUERIES}
    federation = Federation(
        parties=PARTIES,
        teachers=TEACHERS,
        votes={place: voting(first, place) for place in range(PARTIES)},
        terms={"classes": 2, **caps, **terms},
        policy={
            **{"most_epsilon": 1e6, "least_sigma1": 0.0, "least_sigma2": 0.0},
            "most_near_queries": None,  # which are looked for in vain, among thousands of rows
        },
        budgets=dict.fromkeys(range(PARTIES), 1e6),
        budget=1e6,
        noise=keyed_stream(b"world %d" % first, tag="distinguish"),
        pool=QUERIES,
    )
    federation.run.set_up()
    labels = federation.ask(*range(QUERIES)).labels
    return np.array([(labels == outcome).mean() for outcome in (ABSTAIN, 0, 1)])


@pytest.fixture(params=[1.0, 0.7], ids=["the declared noise", "noise 30 % too small"])
def is_enough(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the noise is as declared; if not, the coordinator adds less."""
    drawn, factor = sampling.split_gaussian, float(request.param)

    def weaker(shape: Any, *, sigma: float, random_bytes: Any) -> Any:
        return drawn(shape, sigma=factor * sigma, random_bytes=random_bytes)

    monkeypatch.setattr("pate_fed.mechanisms.noise.split_gaussian", weaker)
    return factor == 1.0


def test_labels_of_neighboring_federations_are_as_close_as_claimed(is_enough: bool) -> None:
    """11 of 21 teachers vote for class 0, or 10: nothing distinguishes better, so it is exact."""
    sigma = 3.0
    here, there = (
        released(first, mechanism="gnmax", sigma2=sigma, max_refusals=0)
        for first in (ALL // 2 + 1, ALL // 2)
    )
    mu, found = math.sqrt(2) / sigma, []
    for epsilon in (0.0, 0.1, 0.2):
        p, q, e = here[1], there[1], math.exp(epsilon)
        # The delta of mu-GDP at this epsilon (Dong, Roth, Su 2022), which the run's price is from.
        claim = ndtr(mu / 2 - epsilon / mu) - e * ndtr(-mu / 2 - epsilon / mu)
        error = math.sqrt((p * (1 - p) + e * e * q * (1 - q)) / QUERIES)
        found.append((p - e * q - claim) / error)
    assert bool(max(found) <= MARGIN) is is_enough, found


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Return the Renyi divergence of order 2."""
    return math.log((p**2 / q).sum())


@pytest.mark.exhaustive
def test_refusals_and_labels_of_neighboring_federations_are_as_close_as_claimed(
    is_enough: bool,
) -> None:
    """The votes are the worst ones for one ask at order 2, where the flat price is exact."""
    threshold, sigma1, sigma2 = 14.0, 4.0, 3.0

    def law(first: int) -> NDArray[np.float64]:
        passes = ndtr((max(first, ALL - first) - threshold) / sigma1)
        wins = ndtr((2 * first - ALL) / (math.sqrt(2) * sigma2))
        return np.array([1 - passes, passes * wins, passes * (1 - wins)])

    pairs = [(one, one + step) for one in range(1, ALL) for step in (-1, 1)]
    worst = max(pairs, key=lambda pair: divergence(law(pair[0]), law(pair[1])))
    [claim] = flat_prices(JointSetting(ALL, 2, threshold, sigma1, sigma2), [2.0])
    assert divergence(law(worst[0]), law(worst[1])) == pytest.approx(claim, rel=1e-6)
    here, there = (
        released(
            first,
            mechanism="confident",
            vote_threshold=threshold,
            sigma1=sigma1,
            sigma2=sigma2,
            max_refusals=QUERIES,
        )
        for first in worst
    )
    # The estimate's standard error, about 2 sqrt(D / n) for each of both worlds.
    error = 2 * math.sqrt(2 * claim / QUERIES)
    found = divergence(here, there)
    assert bool(found <= claim + MARGIN * error) is is_enough, (found, claim, error)

"""Whatever the ranges of terms allow is priced in bounded memory, or refused with a code."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

from pate_fed.accounting.any_votes import AnyVotesSetting, any_votes_kinds
from pate_fed.accounting.bellman import bellman_epsilon, can_be_composed
from pate_fed.accounting.composition import labels_epsilon
from pate_fed.accounting.exact import exact_label_rdp
from pate_fed.accounting.ranges import RANGES
from pate_fed.accounting.vote_pairs import JointSetting
from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.federation import RunTerms
from pate_fed.mechanisms.discrete_sampling import largest_draw
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.pass_chances import usual_vote_threshold
from tests.support.extreme_terms import usual_terms
from tests.support.markers import more

MOST_STATES = 2**20
"""Kinds of pairs of neighbors at one order."""

_KINDS = usual_terms()


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, more(2)])
@pytest.mark.parametrize("kind", _KINDS)
def test_every_price_at_the_ends_of_all_ranges_fits_in_a_gigabyte(kind: str, together: int) -> None:
    """A child with a limit: a `MemoryError`, or any error without a code, ends it."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.extreme_terms", kind, str(together)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert child.returncode == 0, f"{child.stdout[-300:]}\n{child.stderr[-1_500:]}"
    cases = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(cases) > 10
    prices = [price for case in cases for price in case["found"].values()]
    assert all(one.startswith("PF-") if isinstance(one, str) else one >= 0 for one in prices)


@pytest.mark.parametrize("sigma1", [1e-9, 1.0, 1e3, 1e4, 1e7, 2.0**28])
@pytest.mark.parametrize("weight", [1, 100, 2**30 - 1])
@pytest.mark.parametrize("order", [1 + 1e-6, 1.1, 400.0, 6e4, 1e6])
def test_any_votes_have_a_bounded_number_of_kinds(sigma1: float, weight: int, order: float) -> None:
    kinds = any_votes_kinds(AnyVotesSetting(2, sigma1, 2.0**28, weight), order)
    assert kinds is None or len(kinds.log_refusal) <= MOST_STATES


def test_more_noise_than_the_largest_that_is_tabulated_is_priced_as_that() -> None:
    """Less noise never costs less: the price of 10,000 votes of noise is an upper bound."""
    tabulated, more_noise = (
        any_votes_kinds(AnyVotesSetting(3, sigma1, 30.0), 9.0) for sigma1 in (1e4, 1e7)
    )
    less_noise = any_votes_kinds(AnyVotesSetting(3, 9e3, 30.0), 9.0)
    assert tabulated is not None
    assert more_noise is not None
    assert less_noise is not None
    assert np.array_equal(tabulated.log_refusal, more_noise.log_refusal)
    assert np.array_equal(tabulated.log_answer, more_noise.log_answer)
    assert less_noise.excess > tabulated.excess


@pytest.mark.parametrize("name", ["sigma1", "sigma2", "classes", "max_asks", "delta", "orders"])
@pytest.mark.parametrize("factor", [1.001, 1e3, math.inf, math.nan])
def test_terms_beyond_a_range_are_refused_before_any_price(name: str, factor: float) -> None:
    record: dict[str, Any] = _KINDS["confident, label, coordinator"].as_record()
    beyond = RANGES[name].most * factor
    if isinstance(record[name], int):
        beyond = -1 if math.isnan(beyond) else int(min(beyond, 1e300))
    record[name] = [beyond] * 3 if name == "orders" else beyond
    with pytest.raises(InvalidTermsError):
        RunTerms.from_record(record)


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(AnyVotesSetting(2, 0.05, 100.0), id="little noise in the check"),
        pytest.param(
            AnyVotesSetting(3, 100.0, 0.2),
            id="little noise of three classes",
            marks=pytest.mark.slow,
        ),
        pytest.param(JointSetting(250, 2, 150, 1e-3, 50.0), id="next to no noise in the check"),
        pytest.param(
            JointSetting(10_000, 2, 6e3, 150.0, 50.0, weight=100),
            id="many moved votes",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_exact_price_that_needs_too_large_tables_is_left_to_the_price_by_outcome(
    setting: JointSetting | AnyVotesSetting,
) -> None:
    assert can_be_composed(setting)
    assert bellman_epsilon(setting, (2, 2, 3), delta=1e-5, known=1.0) == 1.0


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(AnyVotesSetting(3, 5.0, 0.1), id="any votes"),
        pytest.param(AnyVotesSetting(2, 1e-9, 5.0), id="a check of any votes"),
        pytest.param(AnyVotesSetting(2, 50.0, 2000.0, weight=2000), id="many moved votes"),
        pytest.param(JointSetting(250, 2, 150, 50.0, 1e-3), id="valid votes"),
    ],
)
def test_next_to_no_noise_has_no_exact_price(setting: JointSetting | AnyVotesSetting) -> None:
    assert bellman_epsilon(setting, (2, 2, 3), delta=1e-5, known=1.0) == 1.0


def test_two_classes_need_no_table_of_a_third() -> None:
    tracemalloc.start()
    try:
        assert 0 < labels_epsilon(2, 200.0, asks=1, delta=1e-5) < 1.0
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


def test_wide_noise_and_many_votes_need_no_table_of_either() -> None:
    noise = DistributedNoise(3e3, 1024, 1, 0)
    found = usual_vote_threshold(votes=2**30 - 1, classes=10_000, noise=noise)
    assert 2**30 / 10_000 < found < 2**30 / 10_000 + 10 * noise.sum_sigma(1024)
    assert largest_draw(3e4) > 4e5


def test_votes_that_move_far_beyond_the_noise_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        exact_label_rdp([[5, 3]], [2.0], sigma=1e-3, weight=2**20)

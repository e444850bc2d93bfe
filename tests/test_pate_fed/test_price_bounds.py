"""Whatever the ranges of terms allow is priced in bounded memory, or refused with a code."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pate_fed.accounting.ranges import RANGES
from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.mechanisms.discrete_sampling import largest_draw
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.terms import RunTerms
from tests.support.extreme_terms import priced_in_a_child, usual_terms
from tests.support.markers import more
from tests.support.query_costs import exact_label_rdp

_KINDS = usual_terms()


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, more(2)])
@pytest.mark.parametrize("kind", _KINDS)
def test_every_price_at_the_ends_of_all_ranges_fits_in_a_gigabyte(kind: str, together: int) -> None:
    """A child with a limit: a `MemoryError`, or any error without a code, ends it."""
    cases = priced_in_a_child(kind, str(together))
    assert len(cases) > 10
    prices = [price for case in cases for price in case["found"].values()]
    assert all(one.startswith("PF-") if isinstance(one, str) else one >= 0 for one in prices)


@pytest.mark.parametrize("name", ["vote_threshold", "sigma2", "classes", "max_asks", "delta"])
@pytest.mark.parametrize("factor", [1.001, 1e3, math.inf, math.nan])
def test_terms_beyond_a_range_are_refused_before_any_price(name: str, factor: float) -> None:
    record: dict[str, Any] = _KINDS["threshold, coordinator"].as_record()
    beyond = RANGES[name].most * factor
    [held] = [one for one in (record, record["rule"], record["caps"]) if name in one]
    if isinstance(held[name], int):
        beyond = -1 if math.isnan(beyond) else int(min(beyond, 1e300))
    held[name] = beyond
    with pytest.raises(InvalidTermsError):
        RunTerms.from_record(record)


def test_wide_noise_and_many_votes_need_no_table_of_either() -> None:
    noise = DistributedNoise(3e3, 1024, 1, 0)
    assert noise.sum_sigma(1024) == pytest.approx(3e3, rel=0.01)
    assert largest_draw(3e4) > 4e5


def test_votes_that_move_far_beyond_the_noise_are_refused() -> None:
    with pytest.raises(InvalidParameterError):
        exact_label_rdp([[5, 3]], [2.0], sigma=1e-3, weight=2**20)

"""The one door from an exact sum to a noisy one."""

from __future__ import annotations

import numpy as np
import pytest

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import keyed_stream, sample_gaussian
from pate_fed.votes import SummedHistogram
from tests.support.noise_sources import scripted

SUMMED = SummedHistogram(np.array([[7, 3], [5, 5], [0, 10]]), total_votes=10)


def test_every_count_gets_noise_of_its_own() -> None:
    noisy = NoisePlan().perturb(SUMMED, sigma=4.0, random_bytes=keyed_stream(b"n", tag="t"))
    expected = sample_gaussian((3, 2), sigma=4.0, random_bytes=keyed_stream(b"n", tag="t"))
    assert np.array_equal(noisy.counts, SUMMED.counts + expected)
    assert len(np.unique(expected)) == expected.size
    assert noisy.sigma == 4.0


def test_the_top_count_gets_one_draw_per_query() -> None:
    source = scripted([1.0, -1.0, 0.0])
    tops = NoisePlan().perturb_maxima(SUMMED, sigma=2.0, random_bytes=source)
    assert tops == pytest.approx([9.0, 3.0, 10.0], abs=1e-3)


def test_noise_elsewhere_is_refused() -> None:
    with pytest.raises(InvalidParameterError):
        NoisePlan(place="parties")  # type: ignore[arg-type]


def test_a_plan_shows_no_counts() -> None:
    assert "7" not in repr(NoisePlan()) + repr(SUMMED)

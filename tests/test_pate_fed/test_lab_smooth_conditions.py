"""The conditions of smooth sensitivity: closed form, enclosures, refusals."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.errors import InvalidParameterError
from pate_fed.lab import smooth_conditions as module
from pate_fed.lab.pate_bounds import rdp_from_log_q
from pate_fed.lab.smooth_conditions import (
    SmoothSetting,
    capped_rdp,
    require_conditions,
    smooth_conditions,
)
from tests.support.pate_vectors import SETS
from tests.support.smooth_vectors import smooth_vectors

SETTINGS = st.builds(
    SmoothSetting,
    sigma=st.floats(0.5, 200),
    classes=st.integers(2, 40),
    order=st.floats(1.1, 40),
    teachers=st.integers(5, 500),
    weight=st.integers(1, 3),
)


@pytest.mark.parametrize("which", SETS)
def test_crossover_and_conditions_agree_with_the_reference(which: str) -> None:
    for case in smooth_vectors(which)["smooth_gnmax"]:
        setting = SmoothSetting(case["sigma"], len(case["hist"]), case["order"], case["teachers"])
        found = smooth_conditions(setting)
        # Roots: the bound is flat there to 1e-13 of ln M, which 1e-11 in log q covers.
        assert found.log_q0 == pytest.approx(case["logq0"], rel=1e-11)
        assert found.log_q1 == pytest.approx(case["logq1"], rel=1e-11)
        assert [found.c5, found.c6] == case["conditions_C5_C6"]


def test_a_known_setting_fails_and_its_neighbor_passes() -> None:
    fails = smooth_conditions(SmoothSetting(20.0, 10, 25.0, 250))
    assert fails.c5
    assert not fails.c6
    assert smooth_conditions(SmoothSetting(30.0, 10, 25.0, 250)).hold
    with pytest.raises(InvalidParameterError, match="C6 fails"):
        require_conditions(SmoothSetting(20.0, 10, 25.0, 250))


@pytest.mark.parametrize(("sigma", "holds"), [(20.0, False), (30.0, True)])
def test_condition_6_is_what_40_digits_say(sigma: float, holds: bool) -> None:
    """The increase of the bound over one unit, on a grid below q1."""
    setting = SmoothSetting(sigma, 10, 25.0, 250)
    conditions = smooth_conditions(setting)
    z1 = float(setting.z_of(np.array(conditions.log_q1)))
    with mpmath.workdps(40):
        increases = [
            bound_at(z - mpmath.sqrt(2) / sigma, setting) - bound_at(z, setting)
            for z in mpmath.linspace(z1 * (1 + 1e-9), setting.farthest_z, 60)
        ]
    grows_with_q = all(near >= far for near, far in pairwise(increases))
    assert grows_with_q == holds


def bound_at(z: mpmath.mpf, setting: SmoothSetting) -> mpmath.mpf:
    """Theorem 6 as it stands in the paper."""
    q = (setting.classes - 1) * mpmath.ncdf(-z)
    sigma, order = mpmath.mpf(setting.sigma), mpmath.mpf(setting.order)
    mu2 = sigma * mpmath.sqrt(mpmath.log(1 / q))
    mu1 = mu2 + 1
    a = (1 - q) / (1 - (q * mpmath.exp(mu2 / sigma**2)) ** ((mu2 - 1) / mu2))
    b = mpmath.exp(mu1 / sigma**2) / q ** (1 / (mu1 - 1))
    return mpmath.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)


@given(setting=SETTINGS, log_q=st.floats(-400, -1e-3))
def test_the_capped_bound_is_the_papers_bound_or_the_data_independent_one(
    setting: SmoothSetting, log_q: float
) -> None:
    log_q0 = smooth_conditions(setting).log_q0
    capped = float(capped_rdp(np.array(log_q), setting, log_q0=log_q0))
    paper = rdp_from_log_q([log_q], [setting.order], sigma=setting.sigma / setting.weight)[0, 0]
    # Two ways to write one formula; both sum logs near 0, hence 1e-14 absolute.
    assert capped >= paper * (1 - 1e-9) - 1e-14
    assert capped <= setting.largest_rdp * (1 + 1e-12)
    if log_q < log_q0:
        assert capped == pytest.approx(paper, rel=1e-9, abs=1e-14)


@given(setting=SETTINGS, places=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_where_the_conditions_were_shown_random_points_obey_them(
    setting: SmoothSetting, places: tuple[float, float]
) -> None:
    conditions = smooth_conditions(setting)
    z0 = float(setting.z_of(np.array(conditions.log_q0)))
    end = max(setting.farthest_z, z0) + setting.step
    near, far = (z0 + place * (end - z0) for place in sorted(places))

    def bound(z: float) -> float:
        log_q = np.array(min(float(setting.log_q_of(np.array(z))), conditions.log_q0 - 1e-12))
        return float(capped_rdp(log_q, setting, log_q0=conditions.log_q0))

    slack = 1e-12 * setting.largest_rdp  # of double arithmetic
    if conditions.c5:
        assert bound(near) >= bound(far) - slack
    if conditions.c6:
        rises = [bound(z) - bound(z + setting.step) for z in (near, far)]
        assert rises[0] >= rises[1] - slack


@given(
    setting=SETTINGS,
    place=st.floats(0, 1),
    width=st.floats(1e-6, 0.3),
    inside=st.floats(0, 1),
)
def test_derivatives_lie_in_their_enclosures(
    setting: SmoothSetting, place: float, width: float, inside: float
) -> None:
    """Difference quotients of 40 digits, anywhere in a random cell."""
    first = math.sqrt(-smooth_conditions(setting).log_q0)
    low = first + place * 5
    x = low + inside * width
    cell = module._Range(np.array([low]), np.array([low + width]))
    slope = module._d_slope(cell, setting)
    with mpmath.workdps(40):
        step = mpmath.mpf(10) ** -12
        rate = (exact_d(x + step, setting) - exact_d(x - step, setting)) / (2 * step)
        value, allowance = module._d_at(np.array([x]), setting)
        assert abs(float(exact_d(mpmath.mpf(x), setting)) - value[0]) <= allowance[0]
    slack = 1e-9 * (1 + abs(float(rate)))
    assert slope.low[0] - slack <= rate <= slope.high[0] + slack


def exact_d(x: mpmath.mpf, setting: SmoothSetting) -> mpmath.mpf:
    """-M'(x) e^(x^2) / 2 / e^v by the derivative of M, not by its closed form."""
    order, kappa = mpmath.mpf(setting.order), mpmath.mpf(setting.order) - 1
    h = mpmath.mpf(setting.weight) / mpmath.mpf(setting.sigma)

    def excess(at: mpmath.mpf) -> mpmath.mpf:
        """M - 1, each of whose terms keeps its digits however small it is."""
        usual = mpmath.expm1(
            order * mpmath.log1p(-mpmath.exp(-at * at))
            - kappa * mpmath.log1p(-mpmath.exp(-((at - h) ** 2)))
        )
        return usual + mpmath.exp(kappa * order * h * h - (at - kappa * h) ** 2)

    # M - 1 is of the size of its derivative: as many digits are enough wherever x lies.
    with mpmath.workdps(mpmath.mp.dps + 70):
        step = mpmath.mpf(10) ** -30
        slope = (excess(x + step) - excess(x - step)) / (2 * step)
        return -slope * mpmath.exp(x * x - kappa * h * h - 2 * kappa * h * x) / 2


def test_what_cannot_be_shown_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CELLS", 10)
    assert not smooth_conditions(SmoothSetting(40.0, 10, 14.25, 250)).hold


@pytest.mark.parametrize(
    ("sigma", "classes", "order", "teachers", "weight"),
    [
        pytest.param(0.0, 10, 14.0, 250, 1, id="sigma 0"),
        pytest.param(40.0, 1, 14.0, 250, 1, id="one class"),
        pytest.param(40.0, 10, 1.0, 250, 1, id="order 1"),
        pytest.param(40.0, 10, 14.0, 0, 1, id="no teacher"),
        pytest.param(40.0, 10, 14.0, 250, 0, id="weight 0"),
        pytest.param(40.0, 10, math.nan, 250, 1, id="order is no number"),
    ],
)
def test_settings_out_of_range_are_refused(
    sigma: float, classes: int, order: float, teachers: int, weight: int
) -> None:
    with pytest.raises(InvalidParameterError):
        SmoothSetting(sigma, classes, order, teachers, weight)

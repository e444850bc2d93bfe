"""The price by dynamic programming, against games played out to the end and laws by quadrature."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pate_fed.accounting import price
from pate_fed.accounting.any_votes import AnyVotesSetting
from pate_fed.accounting.ask_kinds import Gaps, _two_classes, whole_steps
from pate_fed.accounting.bellman import Ask, Kernel, Splines, bellman_epsilon
from pate_fed.accounting.conversion import convert_curve
from pate_fed.accounting.joint_price import price_of_any_votes
from pate_fed.accounting.label_bounds import label_rdp
from pate_fed.accounting.label_divergence import left_end, three_way_law
from pate_fed.accounting.label_profiles import LabelProfiles, coin_profiles, gaussian_profile
from pate_fed.accounting.vote_pairs import JointSetting
from pate_fed.errors import InvalidParameterError
from tests.support.markers import sampled

Table = NDArray[np.float64]
_NODES = np.linspace(-12, 12, 4001)


def label_law(counts: tuple[int, ...], sigma: float) -> Table:
    """Return the chance of each label, by the trapezoid rule."""
    density = np.exp(-(_NODES**2) / 2) / math.sqrt(2 * math.pi)
    chances = []
    for i, top in enumerate(counts):
        below = [
            scipy.special.ndtr(_NODES + (top - count) / sigma)
            for j, count in enumerate(counts)
            if j != i
        ]
        chances.append(np.trapezoid(density * np.prod(below, axis=0), _NODES))
    return np.array(chances)


def outcome_law(counts: tuple[int, ...], setting: JointSetting) -> Table:
    """Return the chance of a refusal, then of each label."""
    margin = (max(counts) - setting.vote_threshold) / setting.sigma1
    refusal = scipy.special.ndtr(-margin)
    return np.array([refusal, *((1 - refusal) * label_law(counts, setting.sigma2))])


def neighboring_laws(setting: JointSetting) -> list[tuple[Table, Table]]:
    """Return the laws of every ordered pair of neighboring vote counts."""
    votes = [
        counts
        for counts in itertools.product(range(setting.teachers + 1), repeat=setting.classes)
        if sum(counts) <= setting.teachers
    ]
    laws = {counts: outcome_law(counts, setting) for counts in votes}
    pairs = []
    for counts in votes:
        for i, j in itertools.permutations(range(setting.classes), 2):
            for size in range(1, min(counts[i], setting.weight) + 1):
                moved = list(counts)
                moved[i] -= size
                moved[j] += size
                pairs.append((laws[counts], laws[tuple(moved)]))
    return pairs


def played_out(z: Table, pairs: list[tuple[Table, Table]], caps: tuple[int, int, int]) -> Table:
    """Return U of the game, exactly: every ask and every outcome is tried."""
    refusals, answers, asks = caps
    over = np.maximum(z - 1, 0.0)
    if min(caps) == 0:
        return over
    best = over
    for before, after in pairs:
        ratios = z[..., np.newaxis] * before / after
        refused = played_out(ratios[..., 0], pairs, (refusals - 1, answers, asks - 1))
        labeled = played_out(ratios[..., 1:], pairs, (refusals, answers - 1, asks - 1))
        value = after[0] * refused + (after[1:] * labeled).sum(axis=-1)
        best = np.maximum(best, value)
    return best


@sampled(1)
@pytest.mark.parametrize(
    ("setting", "caps"),
    [
        (JointSetting(4, 2, 3.0, 1.5, 1.2), (1, 2, 3)),
        (JointSetting(4, 2, 2.0, 2.0, 2.0), (2, 2, 3)),
        (JointSetting(3, 3, 2.0, 1.5, 1.5), (1, 2, 2)),
        (JointSetting(2, 4, 1.0, 1.0, 2.0), (1, 1, 2)),
        (JointSetting(5, 3, 4.0, 1.5, 2.0), (1, 2, 2)),
        (JointSetting(6, 2, 4.0, 3.0, 3.0, weight=2), (1, 2, 2)),
        (JointSetting(4, 2, 3.0, 4.0, 4.0, weight=3), (2, 2, 2)),
    ],
    ids=str,
)
def test_no_reader_does_better_than_the_price(
    setting: JointSetting, caps: tuple[int, int, int]
) -> None:
    delta = 1e-3
    known = price(
        teachers=setting.teachers,
        classes=setting.classes,
        vote_threshold=setting.vote_threshold,
        sigma1=setting.sigma1,
        sigma2=setting.sigma2,
        max_refusals=caps[0],
        max_answers=caps[1],
        max_asks=caps[2],
        delta=delta,
        weight=setting.weight,
    ).epsilon
    found = bellman_epsilon(setting, caps, delta=delta, known=known)
    assert found <= known
    pairs = neighboring_laws(setting)
    [reached] = math.exp(found) * played_out(np.array([math.exp(-found)]), pairs, caps)
    assert reached <= delta
    # It is no empty bound: 4 % less would not hold with two classes, 20 % with more.
    less = found * (0.96 if setting.classes == 2 else 0.8)
    [beyond] = math.exp(less) * played_out(np.array([math.exp(-less)]), pairs, caps)
    assert beyond > delta


def test_no_reader_does_better_where_votes_are_not_valid() -> None:
    """Any top count with any gap: far more than valid votes can bring about."""
    setting, caps, delta = AnyVotesSetting(2, 1.5, 1.2), (1, 2, 3), 1e-3
    known = price_of_any_votes(
        setting, max_refusals=1, max_answers=2, max_asks=3, delta=delta
    ).epsilon
    found = bellman_epsilon(setting, caps, delta=delta, known=known)
    assert found < known
    tops, gaps = np.linspace(-4, 4, 17), np.linspace(-3, 3, 13)
    pairs = []
    for top, gap, move in itertools.product(tops, gaps, (-1, 0, 1)):
        laws = []
        for m, g in ((top, gap), (top + move, gap - 2)):
            passes = scipy.special.ndtr(m / setting.sigma1)
            heads = scipy.special.ndtr(g / (math.sqrt(2) * setting.sigma2))
            laws.append(np.array([1 - passes, passes * heads, passes * (1 - heads)]))
        pairs.append((laws[0], laws[1]))
    # The last ask is played with all pairs, the ones before with every 13th.
    [reached] = math.exp(found) * played_out(np.array([math.exp(-found)]), pairs[::13], caps)
    assert reached <= delta
    [once] = math.exp(found) * played_out(np.array([math.exp(-found)]), pairs, (1, 1, 1))
    assert once <= delta


@sampled(1)
@pytest.mark.parametrize("sigma", [20.0, 15.0, 0.5])
def test_one_ask_of_any_votes_costs_no_less_than_its_worst_pair(sigma: float) -> None:
    setting, delta = AnyVotesSetting(2, sigma, sigma), 1e-5
    known = price_of_any_votes(
        setting, max_refusals=1, max_answers=1, max_asks=1, delta=delta
    ).epsilon
    found = bellman_epsilon(setting, (1, 1, 1), delta=delta, known=known)
    t, h = np.linspace(-6, 6, 601)[:, np.newaxis], np.linspace(-6, 6, 601)
    worst = 0.0
    for d in (1 / sigma, -1 / sigma):
        laws = []
        for check, label in ((t, h), (t + d, h - math.sqrt(2) / sigma)):
            passes, heads = scipy.special.ndtr(check), scipy.special.ndtr(label)
            laws.append(((1 - passes) + 0 * heads, passes * heads, passes * (1 - heads)))
        gain = sum(
            np.maximum(p - math.exp(found) * q, 0.0) for p, q in zip(laws[0], laws[1], strict=True)
        )
        worst = max(worst, float(np.max(gain)))
    assert worst <= delta


@pytest.mark.parametrize(
    ("teachers", "sigma2", "delta"), [(4, 0.2, 1e-5), (6, 0.5, 1e-9), (20, 1.0, 1e-11)]
)
def test_rare_outcomes_far_beyond_all_ratios_count(
    teachers: int, sigma2: float, delta: float
) -> None:
    """Little noise or a tiny delta: what tells most may be rarer than all else."""
    setting = JointSetting(teachers, 2, -30.0, 3.0, sigma2)
    known = price(
        teachers=teachers,
        classes=2,
        vote_threshold=-30.0,
        sigma1=3.0,
        sigma2=sigma2,
        max_refusals=1,
        max_answers=1,
        max_asks=1,
        delta=delta,
    ).epsilon
    found = bellman_epsilon(setting, (1, 1, 1), delta=delta, known=known)
    gaps = np.arange(2 - teachers, teachers + 1) / (math.sqrt(2) * sigma2)
    after = gaps - math.sqrt(2) / sigma2
    for sign in (1, -1):
        before_logs, after_logs = (scipy.special.log_ndtr(sign * x) for x in (gaps, after))
        gain = np.exp(before_logs) - np.exp(np.minimum(found + after_logs, 0.0))
        assert gain.max() <= delta


@pytest.mark.parametrize("sigma", [0.7, 8.0, 60.0])
def test_any_count_with_noise_is_a_mixture_of_whole_steps(sigma: float) -> None:
    steps, kept = whole_steps(sigma)
    rounding = math.sqrt((sigma * steps) ** 2 - kept**2)
    places = np.arange(-40 * math.ceil(rounding), 41 * math.ceil(rounding))
    for count in (0.0, 0.31, 0.5):
        weights = np.exp(-(((places - count * steps) / rounding) ** 2) / 2)
        weights /= rounding * math.sqrt(2 * math.pi)
        assert math.isclose(weights.sum(), 1.0, rel_tol=1e-12)
        x = np.linspace(-5, 5, 41) * sigma * steps
        mixed = weights @ scipy.special.ndtr((x - places[:, np.newaxis]) / kept)
        assert np.allclose(
            mixed, scipy.special.ndtr((x - count * steps) / (sigma * steps)), rtol=1e-12
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(("classes", "sigma"), [(3, 2.5), (4, 6.0)])
def test_no_real_votes_of_many_classes_do_better_in_two_asks(classes: int, sigma: float) -> None:
    """Fractions, negative counts, two rivals at any distance: none tells more than is said."""
    setting, caps, delta = AnyVotesSetting(classes, sigma, sigma), (1, 2, 2), 1e-4
    known = price_of_any_votes(
        setting, max_refusals=1, max_answers=2, max_asks=2, delta=delta
    ).epsilon
    found = bellman_epsilon(setting, caps, delta=delta, known=known)
    assert found < known
    random = np.random.default_rng(7)
    pairs = []
    for _ in range(60):
        counts = random.normal(0, 1.2 * sigma, classes)
        moved = counts + np.eye(classes)[1] - np.eye(classes)[0]
        threshold = counts.max() + random.normal(0, sigma)
        laws = []
        for each in (counts, moved)[:: random.choice([1, -1])]:
            passes = scipy.special.ndtr((each.max() - threshold) / sigma)
            laws.append(np.array([1 - passes, *(passes * label_law(tuple(each), sigma))]))
        pairs.append((laws[0], laws[1]))
    [reached] = math.exp(found) * played_out(np.array([math.exp(-found)]), pairs, caps)
    assert reached <= delta


def test_noise_too_small_by_30_percent_is_noticed_without_valid_votes() -> None:
    sigma, delta = 6.0, 1e-4
    found = bellman_epsilon(AnyVotesSetting(3, sigma, sigma), (1, 1, 1), delta=delta, known=1.0)

    def largest_gain(drawn: float) -> float:
        gains = []
        for gap in np.linspace(-30, 30, 61):
            before, after = (
                label_law(counts, drawn) for counts in ((gap, 0.0, -3.0), (gap - 1, 1.0, -3.0))
            )
            gains.append(np.maximum(before - math.exp(found) * after, 0.0).sum())
        return max(gains)

    assert largest_gain(sigma) <= delta
    assert largest_gain(0.7 * sigma) > delta


def largest_value(
    pairs: list[tuple[Table, Table]], caps: tuple[int, int, int], log_z: Table
) -> Table:
    """Return U on a fine grid, by chords of a convex function: never below the best reader's."""
    z = np.exp(log_z)
    over = np.maximum(z - 1, 0.0)
    # Votes that differ by names of classes are the same question.
    laws = [
        np.array(pair)[:, [0, *(1 + np.lexsort((before[1:], after[1:])))]]
        for pair in pairs
        for before, after in [pair]
    ]
    laws = list({tuple(np.round(law, 12).ravel().tolist()): law for law in laws}.values())
    after = np.array([law[1] for law in laws])
    ratios = np.array([law[0] for law in laws]) / after

    def later(values: Table, at: Table) -> Table:
        beyond = values[-1] + np.maximum(at - z[-1], 0.0)
        return np.where(at > z[-1], beyond, np.interp(at, z, values))

    @functools.cache
    def value(refusals: int, answers: int, asks: int) -> Table:
        if min(refusals, answers, asks) == 0:
            return over
        refused, answered = (
            value(refusals - 1, answers, asks - 1),
            value(refusals, answers - 1, asks - 1),
        )
        best = over
        for q, ratio in zip(after, ratios, strict=True):
            found = q[0] * later(refused, z * ratio[0])
            for each in range(1, len(q)):
                found = found + q[each] * later(answered, z * ratio[each])
            best = np.maximum(best, found)
        return best

    return value(*caps)


@sampled(1)
@pytest.mark.parametrize(
    ("setting", "caps"),
    [
        (JointSetting(6, 2, 4.0, 2.0, 2.0), (2, 3, 4)),
        (JointSetting(6, 3, 4.0, 2.5, 2.0), (2, 3, 4)),
        (JointSetting(6, 4, 3.0, 2.0, 2.5), (1, 3, 4)),
        (JointSetting(4, 4, 3.0, 1.5, 1.5), (2, 2, 4)),
        (JointSetting(5, 3, 2.0, 3.0, 3.0), (3, 3, 3)),
        (JointSetting(10, 2, 6.0, 3.0, 2.5, weight=2), (2, 3, 4)),
    ],
    ids=str,
)
def test_no_reader_of_four_asks_does_better(
    setting: JointSetting, caps: tuple[int, int, int]
) -> None:
    delta = 1e-4
    known = price(
        teachers=setting.teachers,
        classes=setting.classes,
        vote_threshold=setting.vote_threshold,
        sigma1=setting.sigma1,
        sigma2=setting.sigma2,
        max_refusals=caps[0],
        max_answers=caps[1],
        max_asks=caps[2],
        delta=delta,
        weight=setting.weight,
    ).epsilon
    found = bellman_epsilon(setting, caps, delta=delta, known=known)
    log_z = np.linspace(-12, 8, 6001)
    values = largest_value(neighboring_laws(setting), caps, log_z)
    reached = math.exp(found) * float(np.interp(math.exp(-found), np.exp(log_z), values))
    assert reached <= delta
    weaker = math.exp(0.85 * found) * np.interp(math.exp(-0.85 * found), np.exp(log_z), values)
    assert weaker > delta


def label_known(sigma: float, asks: int, delta: float, weight: int = 1) -> float:
    """Epsilon of labels by their divergences, which `labels_epsilon` is to improve."""
    curve = functools.partial(label_rdp, sigma=sigma, weight=weight)
    return convert_curve(lambda orders: asks * curve(orders), delta=delta, method="cks").epsilon


@pytest.mark.parametrize("weight", [1, 2, 5])
@pytest.mark.parametrize("teachers", [1, 2, 3, 7, 12])
def test_every_pair_of_two_classes_is_in_the_list(teachers: int, weight: int) -> None:
    """For each top count before and after: every gap, with the number of moved votes."""
    runs, kinds = _two_classes(teachers, weight)
    listed: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for before, after, place in kinds:
        run = next(run for run in _starts(runs) if place in range(run[0], run[0] + len(run[1])))
        listed[before, after] = {
            (gap, one.moved)
            for found in run[1][place - run[0] :]
            for one in found
            for gap in range(one.first, one.last + 1)
        }
    for i, j in itertools.product(range(teachers + 1), repeat=2):
        for moved in range(1, min(i, weight) + 1) if i + j <= teachers else ():
            tops = max(i, j), max(i - moved, j + moved)
            assert (i - j, moved) in listed[tops]


def _starts(runs: list[list[list[Gaps]]]) -> list[tuple[int, list[list[Gaps]]]]:
    ends = itertools.accumulate(map(len, runs), initial=0)
    return list(zip(ends, runs, strict=False))


@pytest.mark.parametrize("weight", [2, 3])
def test_no_votes_of_two_classes_do_better_for_several_moved_ones(weight: int) -> None:
    """Fractions, negative counts, and any move of up to so many votes."""
    sigma, caps, delta = 4.0, (1, 2, 2), 1e-3
    setting = AnyVotesSetting(2, sigma, sigma, weight)
    known = price_of_any_votes(
        setting, max_refusals=1, max_answers=2, max_asks=2, delta=delta
    ).epsilon
    found = bellman_epsilon(setting, caps, delta=delta, known=known)
    assert found < known
    random = np.random.default_rng(weight)
    pairs = []
    for trial in range(150):
        counts = random.normal(0, sigma, 2)
        size = weight if trial % 2 else random.uniform(0, weight)
        moved = counts + size * np.array([-1.0, 1.0])
        threshold = counts.max() + random.normal(0, sigma)
        laws = []
        for each in (counts, moved)[:: random.choice([1, -1])]:
            passes = scipy.special.ndtr((each.max() - threshold) / sigma)
            laws.append(np.array([1 - passes, *(passes * label_law(tuple(each), sigma))]))
        pairs.append((laws[0], laws[1]))
    [reached] = math.exp(found) * played_out(np.array([math.exp(-found)]), pairs, caps)
    assert reached <= delta
    # With one vote fewer it would be noticed.
    claimed = AnyVotesSetting(2, sigma, sigma, weight - 1)
    less = bellman_epsilon(claimed, caps, delta=delta, known=known)
    [beyond] = math.exp(less) * played_out(np.array([math.exp(-less)]), pairs, caps)
    assert beyond > delta


def test_a_smaller_noise_breaks_the_price() -> None:
    """The brute force would notice a claim for noise 10 % larger than the drawn one."""
    claimed, drawn = JointSetting(4, 2, 3.0, 1.5, 1.2), JointSetting(4, 2, 3.0, 1.35, 1.08)
    found = bellman_epsilon(claimed, (1, 2, 3), delta=1e-3, known=20.0)
    pairs = neighboring_laws(drawn)
    [reached] = math.exp(found) * played_out(np.array([math.exp(-found)]), pairs, (1, 2, 3))
    assert reached > 1e-3


def test_more_of_anything_costs_no_less() -> None:
    def epsilon(teachers: int, caps: tuple[int, int, int]) -> float:
        setting = JointSetting(teachers, 2, 5.0, 3.0, 3.0)
        return bellman_epsilon(setting, caps, delta=1e-5, known=30.0)

    base = epsilon(6, (2, 3, 4))
    for larger in (epsilon(6, (3, 3, 4)), epsilon(6, (2, 4, 4)), epsilon(6, (2, 3, 5))):
        # Each number has an error of its own grid.
        assert larger >= base * 0.999


def test_a_finer_grid_gives_no_more() -> None:
    setting, caps = JointSetting(10, 2, 6.0, 4.0, 4.0), (3, 6, 8)
    coarse, fine = (
        bellman_epsilon(setting, caps, delta=1e-5, known=6.0, fineness=fineness)
        for fineness in (15.0, 40.0)
    )
    assert coarse * 0.99 < fine <= coarse


def test_known_number_stands_where_it_is_smaller() -> None:
    setting = JointSetting(4, 2, 3.0, 1.5, 1.2)
    assert bellman_epsilon(setting, (1, 2, 3), delta=1e-3, known=0.5) == 0.5
    assert bellman_epsilon(setting, (1, 2, 3), delta=1e-3, known=math.inf) == math.inf


@pytest.mark.parametrize(
    "setting",
    [
        JointSetting(4, 3, 3.0, 1.5, 1.2, weight=2),
        JointSetting(4, 2, 3.0, 1.5, 1.2, may_abstain=True),
        JointSetting(4, 2, 3.0, 1.5, 1.2, noise="discrete-gaussian"),
        AnyVotesSetting(3, 1.5, 1.2, weight=2),
        AnyVotesSetting(3, 10.0, 1e6),
        AnyVotesSetting(3, 1e6, 10.0),
    ],
    ids=str,
)
def test_other_settings_are_refused(setting: JointSetting | AnyVotesSetting) -> None:
    with pytest.raises(InvalidParameterError, match="one vote"):
        bellman_epsilon(setting, (1, 2, 3), delta=1e-3, known=5.0)


def test_splines_stay_above_the_values_that_they_stand_for() -> None:
    """Any kernels, many steps: the spline is above the exact recursion, at every point."""
    random = np.random.default_rng(5)
    splines = Splines(-4.0, 4.0, 0.06)
    ratios = np.linspace(-0.5, 0.5, 41)
    kernels = []
    for _ in range(2):
        log_ratio = random.choice(ratios[:20]), random.choice(ratios[21:])
        low, high = np.exp(log_ratio)
        masses = np.zeros(len(ratios))
        # Two atoms with mean ratio 1, as laws without lost mass have.
        masses[np.searchsorted(ratios, log_ratio)] = [
            (high - 1) / (high - low),
            (1 - low) / (high - low),
        ]
        kernels.append(Kernel(ratios, masses))
    ask = Ask(
        splines,
        lambda gaps: kernels[gaps.first],
        [[[Gaps(0, 0, (0, 0)), Gaps(1, 1, (0, 0))]]],
        None,
        slice(0, 0),
        lost=0.0,
    )

    def exact(z: Table, steps: int) -> Table:
        if steps == 0:
            return np.maximum(z - 1, 0.0)
        later = [
            (each.masses * exact(z[..., np.newaxis] * np.exp(ratios), steps - 1)).sum(axis=-1)
            for each in kernels
        ]
        return np.max([np.maximum(z - 1, 0.0), *later], axis=0)

    value = splines.end
    for steps in (1, 2):
        value = ask.before(value, value)
        places = np.linspace(5, splines.size - 6, 400)
        weights = np.abs(places[:, np.newaxis] - np.arange(splines.size))
        basis = np.where(
            weights < 1,
            (4 - 6 * weights**2 + 3 * weights**3) / 6,
            np.maximum(2 - weights, 0) ** 3 / 6,
        )
        true = exact(np.exp((splines.first + places) * splines.step), steps)
        assert (basis @ value >= true * (1 - 1e-12)).all()
        assert (
            (basis @ value - true) / np.exp((splines.first + places) * splines.step)
        ).max() < 0.02


def profile(before: Table, after: Table, gammas: Table) -> Table:
    """Return G of two laws."""
    whole = np.maximum(before - gammas[:, np.newaxis] * after, 0.0).sum(axis=1)
    return np.asarray(whole - np.maximum(1 - gammas, 0.0))


LOG_GAMMAS = np.linspace(-1.2, 1.2, 49)


def test_profiles_of_coins_hold_over_their_range() -> None:
    starts, ends = np.array([-3.0, -0.5, 1.0]), np.array([-1.0, 0.7, np.inf])
    bound = coin_profiles(LOG_GAMMAS, starts, ends, 0.4)
    for start, end, row in zip(starts, ends, bound, strict=True):
        found = []
        for t in np.linspace(start, min(end, 9.0), 200):
            heads = scipy.special.ndtr(np.array([t, t - 0.4]))
            laws = np.array([heads, 1 - heads])
            found.append(profile(laws[:, 0], laws[:, 1], np.exp(LOG_GAMMAS)))
        assert (np.max(found, axis=0) <= row + 1e-15).all()
        assert np.allclose(np.max(found, axis=0), row, rtol=2e-2, atol=1e-5)


def test_profile_of_two_gaussians_is_that_of_their_densities() -> None:
    x = np.linspace(-14, 14, 200_001)
    before, after = (
        np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for mean in (0.3, -0.3)
    )
    step = x[1] - x[0]
    found = profile(before * step, after * step, np.exp(LOG_GAMMAS))
    assert np.allclose(found, gaussian_profile(LOG_GAMMAS, 0.6), rtol=1e-6, atol=1e-9)


@sampled(1)
@pytest.mark.parametrize(
    ("teachers", "classes", "sigma"), [(12, 3, 3.0), (9, 5, 2.0), (20, 10, 6.0)]
)
def test_profiles_of_labels_hold_for_random_votes(
    teachers: int, classes: int, sigma: float
) -> None:
    law = three_way_law(teachers, sigma, 1, left_end(teachers, sigma, 1, 4.0))
    bounds = LabelProfiles(law, LOG_GAMMAS, teachers, classes)
    random = np.random.default_rng(teachers)
    gammas, tightest = np.exp(LOG_GAMMAS), math.inf
    for _ in range(60):
        cast = int(random.integers(1, teachers + 1))
        share = random.dirichlet(np.full(classes, random.choice([0.3, 1.0, 5.0])))
        counts = random.multinomial(cast, share)
        i = int(random.choice(np.nonzero(counts)[0]))
        j = int(random.choice([c for c in range(classes) if c != i]))
        moved = counts.copy()
        moved[i] -= 1
        moved[j] += 1
        true = profile(
            label_law(tuple(counts.tolist()), sigma),
            label_law(tuple(moved.tolist()), sigma),
            gammas,
        )
        gap, both, top = int(counts[i] - counts[j]), int(counts[i] + counts[j]), int(counts.max())
        if top in (counts[i], counts[j]):
            bound = bounds.touching(gap, gap, both, both)
            wide = bounds.touching(gap - 1, gap + 2, max(both - 1, 0), min(both + 1, teachers))
        else:
            bound = bounds.apart(gap, gap, top)
            wide = bounds.apart(gap - 1, gap + 1, max(top - 1, 1))
        assert (true <= bound + 1e-12).all()
        assert (true <= wide + 1e-12).all()
        tightest = min(tightest, float(bound.sum() / true.sum()))
    assert tightest < 1.1


def test_margin_covers_the_error_of_interpolation() -> None:
    """The interpolant of (x - t)_+^3 / 6 is off by at most 0.056 hats at t, times B-splines."""

    def basis(x: Table) -> Table:
        x = np.abs(x)
        return np.where(x < 1, (4 - 6 * x**2 + 3 * x**3) / 6, np.maximum(2 - x, 0) ** 3 / 6)

    places, nodes = np.linspace(0, 1, 257), np.arange(-9.0, 10.0)
    splines = basis(places[:, np.newaxis] - nodes)
    worst = 0.0
    for knot in np.arange(-4, 5, 1 / 64):
        power = np.maximum(np.arange(-10.0, 11.0) - knot, 0) ** 3 / 6
        coefficients = (-power[:-2] + 8 * power[1:-1] - power[2:]) / 6
        error = np.abs(np.maximum(places - knot, 0) ** 3 / 6 - splines @ coefficients)
        hats = splines @ np.maximum(1 - np.abs(nodes - knot), 0.0)
        assert (error <= 0.056 * hats + 1e-12).all()
        worst = max(worst, float(np.max(error / np.maximum(hats, 1e-9))))
    assert worst > 0.055

"""Private evaluation: counts move no further than priced, and intervals hold the truth."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from pate_fed.errors import InvalidParameterError
from pate_fed.evaluation import CertaintyBins, EvaluationPlan, Grouping, share_interval
from pate_fed.lab.canary import epsilon_lower_bound
from pate_fed.mechanisms import keyed_stream
from pate_fed.report.held_out_scores import held_out_scores
from pate_fed.report.scores import wilson_interval
from tests.support.markers import sampled

CLASS, CERTAINTY = (
    Grouping("class", ("well", "ill")),
    Grouping("certainty", ("60 %", "75 %", "90 %")),
)


def plan(epsilon: float = 1.0, *, delta: float = 1e-5, unit_patients: int = 1) -> EvaluationPlan:
    return EvaluationPlan.priced(
        (CLASS, CERTAINTY), epsilon=epsilon, delta=delta, unit_patients=unit_patients
    )


def counted(patients: list[tuple[int, int, bool]]) -> np.ndarray:
    by_class, bins, right = (np.array(column) for column in zip(*patients, strict=True))
    return plan().counts({"class": by_class, "certainty": bins}, right.astype(bool))


def test_replacing_one_patient_moves_the_counts_by_at_most_2_and_some_patient_does() -> None:
    others = [(0, 1, True), (1, 2, False)]
    every = list(itertools.product(range(2), range(3), (True, False)))
    distances = {
        math.dist(counted([*others, one]), counted([*others, other]))
        for one in every
        for other in every
    }
    assert max(distances) == 2.0


def test_replacing_a_hospital_moves_the_counts_by_as_many_times_that_as_it_has_patients() -> None:
    here, there = [(0, 0, True)] * 7, [(1, 2, False)] * 7
    assert math.dist(counted(here), counted(there)) == 14.0
    assert plan(unit_patients=7).sigma == pytest.approx(7 * plan().sigma, rel=1e-9)


@sampled("epsilon", cases=2)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_noise_is_the_least_for_its_price_by_quadrature(epsilon: float) -> None:
    """The privacy loss integrated over the noise along the move, in 30 digits."""
    delta = 1e-5
    with mpmath.workdps(30):

        def reached(sigma: float) -> float:
            start = mpmath.mpf(epsilon) * sigma**2 / 2 + 1  # beyond it the loss exceeds epsilon

            def excess(x: mpmath.mpf) -> mpmath.mpf:
                return mpmath.npdf(x, 2, sigma) - mpmath.exp(epsilon) * mpmath.npdf(x, 0, sigma)

            return float(mpmath.quad(excess, [start, start + 4 * sigma, start + 40 * sigma]))

        assert reached(plan(epsilon).sigma) <= delta
        assert reached(plan(epsilon).sigma * (1 - 1e-6)) > delta


@sampled()
@pytest.mark.parametrize("factor", [1.0, 0.7], ids=["the declared noise", "30 % too little"])
def test_noisy_counts_of_neighbors_tell_no_more_than_the_price(factor: float) -> None:
    """The best test of two neighbors, whose moved counts are known; 4,000 releases of each."""
    priced = EvaluationPlan.priced((CLASS, CERTAINTY), epsilon=0.5, delta=0.2)
    weaker = EvaluationPlan((CLASS, CERTAINTY), factor * priced.sigma, 0.5, 0.2)
    worlds = counted([(0, 0, True)]), counted([(1, 2, False)])
    direction = worlds[0] - worlds[1]
    noise = keyed_stream(b"evaluation", tag="test")
    seen = [
        sum(float(direction @ weaker.perturb(world, random_bytes=noise)) > 1.0 for _ in range(4000))
        for world in worlds
    ]
    bound = epsilon_lower_bound(*seen, 4000, delta=0.2, confidence=0.9999)
    assert (bound > 0.5) is (factor < 1)


def test_without_noise_the_interval_is_wilsons() -> None:
    for right, records in [(0, 10), (7, 10), (10, 10), (830, 1000)]:
        found = share_interval(right, records - right, 0.0, 0.0)
        known = wilson_interval(right, records)
        assert found[0] == pytest.approx(known[0], abs=2e-4)
        assert found[1] == pytest.approx(known[1], abs=2e-4)


def test_noise_that_hides_all_patients_tells_nothing() -> None:
    assert share_interval(-3.0, 1.0, 100.0, 100.0) == (0.0, 1.0)
    assert share_interval(3.0, 1.0, 1e4, 1e4) == (0.0, 1.0)


@sampled("patients", "share")
@pytest.mark.parametrize("share", [0.02, 0.5, 0.83, 1.0])
@pytest.mark.parametrize("patients", [30, 400])
def test_the_interval_holds_the_true_share(share: float, patients: int) -> None:
    """2,000 draws: below 93.5 % by chance alone in less than one of a thousand runs."""
    rng, sigma = np.random.default_rng(7), 5.0
    held = 0
    for _ in range(2000):
        right = rng.binomial(patients, share)
        noisy = np.array([right, patients - right]) + rng.normal(0, sigma, 2)
        low, high = share_interval(*noisy, sigma**2, sigma**2)
        held += low <= share <= high
    assert held >= 1870


def test_scores_weigh_the_groupings_and_name_every_group() -> None:
    patients = [(0, 2, True)] * 50 + [(1, 0, True)] * 20 + [(1, 0, False)] * 30
    scores = held_out_scores(plan(), counted(patients).astype(float))
    assert scores.patients == pytest.approx(100)
    assert scores.accuracy == pytest.approx(0.7)
    low, high = scores.accuracy_interval
    assert low < 0.7 < high
    assert scores.by_class["ill"].right == pytest.approx(0.4)
    assert scores.by_class["ill"].share == pytest.approx(0.5)
    assert scores.by_certainty["75 %"].right is None


@pytest.mark.parametrize("inputs", [1, 3, 100])
def test_no_bin_of_certainty_is_empty(inputs: int) -> None:
    chances = np.random.default_rng(inputs).dirichlet([1, 1, 1], size=inputs)
    for pool in (chances, np.repeat(chances[:1], inputs, axis=0)):
        bins = CertaintyBins.of(pool)
        assert set(bins.places(pool)) == set(range(len(bins.means)))
        assert (np.diff(bins.means) > 0).all()
        assert len(bins.grouping.groups) == len(bins.means)


@pytest.mark.parametrize(
    ("places", "patients"),
    [
        ({"class": np.array([0, 2]), "certainty": np.array([0, 1])}, 2),
        ({"class": np.array([0, -1]), "certainty": np.array([0, 1])}, 2),
        ({"class": np.array([0, 1])}, 2),
        ({"class": np.array([0, 1]), "certainty": np.array([0])}, 2),
    ],
    ids=["a class that is not planned", "a negative class", "no certainty", "a patient too few"],
)
def test_patients_outside_the_planned_groups_are_refused(
    places: dict[str, np.ndarray], patients: int
) -> None:
    with pytest.raises(InvalidParameterError):
        plan().counts(places, np.ones(patients, dtype=bool))


def test_an_evaluation_of_nothing_is_refused() -> None:
    for groupings, unit_patients in [((), 1), ((CLASS,), 0)]:
        with pytest.raises(InvalidParameterError):
            EvaluationPlan.priced(groupings, epsilon=1, delta=1e-5, unit_patients=unit_patients)
    with pytest.raises(InvalidParameterError):
        plan().perturb(np.zeros(3, dtype=np.int64), random_bytes=keyed_stream(b"", tag="t"))

"""The price of several labels with a cap on "yes", against exact games under the cap."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from pate_fed.accounting import Outcomes
from pate_fed.accounting.composition import labels_epsilon
from pate_fed.errors import InvalidParameterError, InvalidTermsError
from pate_fed.prices import public_price, removal_price
from pate_fed.rule import Caps, Rule
from pate_fed.terms import BatchTerms, RunTerms
from pate_fed.votes import TeacherWeights

Law = NDArray[np.float64]

DELTA = 1e-3


def terms(labels: int | None, cap: int | None, *, inputs: int = 2, **other: object) -> RunTerms:
    asks = inputs * (labels or 1)
    values: dict[str, object] = {
        "name": "labels",
        "pool_digest": bytes(32),
        "task_digest": bytes(32),
        "classes": 2,
        "weights": (TeacherWeights.equal(3),) * 3,
        "rule": Rule("gnmax", sigma2=2.0),
        "unit": "record",
        "caps": Caps(asks, asks, labels or 1, labels, cap),
        "budgets": (100.0,) * 3,
        "delta": DELTA,
    }
    return RunTerms(**{**values, **other})  # type: ignore[arg-type]


def yes_law(lead: NDArray[np.int64], sigma: float) -> Law:
    """Chance of every answer of an input's labels, by the lead of yes; shape (2^labels,)."""
    yes = ndtr(lead / (math.sqrt(2) * sigma))
    law = np.ones(1)
    for chance in yes:
        law = np.outer(law, [1 - chance, chance]).ravel()
    return law


def vectors(labels: int, cap: int, votes: int) -> list[NDArray[np.int64]]:
    """All that one unit may vote: how many of its votes say yes to each label."""
    every = (np.array(one) for one in product(range(votes + 1), repeat=labels))
    return [one for one in every if (one > 0).sum() <= cap]


def worst_delta(
    labels: int, cap: int, *, inputs: int, sigma: float, epsilon: float, votes: int = 1
) -> float:
    """Largest delta of all pairs of votes under the cap, each input chosen by the answers before.

    Others' votes lead by as much at every label, for yes or for no.
    """
    steps = range(0, round(5 * sigma) + 1, round(sigma / 2))
    leads = [size * np.array(sign) for size in steps for sign in product((-1, 1), repeat=labels)]
    pairs: dict[bytes, tuple[Law, Law]] = {}
    voted = vectors(labels, cap, votes)
    for lead in leads:
        laws = [yes_law(lead + 2 * one - votes, sigma) for one in voted]
        for p, q in product(laws, repeat=2):
            pairs.setdefault(np.round([p, q], 12).tobytes(), (p, q))
    listed = [np.array(each) for each in zip(*pairs.values(), strict=True)]

    def value(left: int, p: float, q: float) -> float:
        if not left:
            return max(p - math.exp(epsilon) * q, 0.0)
        if left == 1:
            gains = np.maximum(p * listed[0] - math.exp(epsilon) * q * listed[1], 0.0)
            return float(gains.sum(axis=1).max())
        return max(
            sum(value(left - 1, p * a, q * b) for a, b in zip(one, other, strict=True))
            for one, other in zip(*listed, strict=True)
        )

    return value(inputs, 1.0, 1.0)


GAMES = [
    pytest.param(3, 1, 1, 1, id="3 labels, cap 1"),
    pytest.param(5, 1, 1, 1, id="5 labels, cap 1"),
    pytest.param(5, 2, 1, 1, id="5 labels, cap 2"),
    pytest.param(3, 1, 2, 1, id="2 inputs, the second chosen by the answers"),
    pytest.param(3, 1, 1, 3, id="3 votes of one unit"),
]


@pytest.mark.parametrize(("labels", "cap", "inputs", "votes"), GAMES)
def test_no_votes_under_the_cap_exceed_the_stated_delta(
    labels: int, cap: int, inputs: int, votes: int
) -> None:
    sigma = 2.0 * votes
    run = terms(
        labels,
        cap,
        inputs=inputs,
        rule=Rule("gnmax", sigma2=sigma),
        weights=(TeacherWeights.equal(votes),) * 3,
        unit="party",
    )
    epsilon = public_price(run, 0).epsilon

    found = worst_delta(labels, cap, inputs=inputs, sigma=sigma, epsilon=epsilon, votes=votes)

    assert 0.5 * DELTA < found <= DELTA  # as near as for asks of single labels


@pytest.mark.parametrize(("labels", "cap"), [(3, 1), (4, 1), (5, 2)])
def test_votes_beyond_the_cap_would_break_the_price(labels: int, cap: int) -> None:
    run = terms(labels, cap, inputs=1)
    epsilon = public_price(run, 0).epsilon

    assert worst_delta(labels, cap + 1, inputs=1, sigma=2.0, epsilon=epsilon) > DELTA


@pytest.mark.parametrize("mechanism", ["gnmax", "threshold", "confident", "lnmax"])
@pytest.mark.parametrize(
    ("labels", "cap", "moved"), [(5, None, 5), (5, 2, 4), (5, 1, 2), (3, 1, 2)]
)
def test_inputs_cost_as_many_single_asks_as_the_cap_lets_move(
    mechanism: str, labels: int, cap: int | None, moved: int
) -> None:
    given = {"threshold": {"vote_threshold": 3.0}}
    given["confident"] = {"vote_threshold": 3.0, "sigma1": 4.0}
    rule = Rule(mechanism, sigma2=9.0, **given.get(mechanism, {}))

    several = terms(labels, cap, inputs=20, rule=rule)
    single = terms(None, None, inputs=20 * moved, rule=rule)

    assert public_price(several, 0) == public_price(single, 0)


def test_a_batch_of_whole_inputs_is_charged_its_part() -> None:
    caps = Caps(50, 50, 10, 5, 2)

    assert caps.moved(Outcomes(10, 7)) == Outcomes(8, 7)
    assert caps.moved(Outcomes(10, 10)) == Outcomes(8, 8)
    assert caps.moved(Outcomes(3, 3)) == Outcomes(3, 3)
    batches = [caps.moved(Outcomes(10, 10)).asks] * 5
    assert sum(batches) == caps.moved(caps.most).asks == 40


def test_no_number_is_stated_for_a_hospital_that_casts_no_vote() -> None:
    one_vote = {"weights": (TeacherWeights.equal(1),) * 3, "unit": "party"}

    assert removal_price(terms(None, None, **one_vote), 0) is not None
    assert removal_price(terms(5, 2, **one_vote), 0) is None
    assert removal_price(terms(5, None, **one_vote), 0) is None


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"caps": Caps(11, 11, 5, 5, 2)}, id="asks of half an input"),
        pytest.param({"caps": Caps(10, 10, 4, 5, 2)}, id="batches of half an input"),
        pytest.param({"caps": Caps(10, 10, 5, 5, 3)}, id="a cap that lowers nothing"),
        pytest.param({"caps": Caps(10, 10, 5, None, 2)}, id="a cap without labels"),
        pytest.param({"caps": Caps(10, 10, 1, 1, None)}, id="one label"),
        pytest.param({"caps": Caps(10, 10, 5, 5, 0)}, id="a cap of nothing"),
        pytest.param({"classes": 3}, id="three classes"),
    ],
)
def test_terms_of_several_labels_must_fit_together(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError):
        terms(5, 2, **changed)


@pytest.mark.parametrize(
    ("indices", "is_whole"),
    [
        pytest.param((5, 6, 7, 8, 9), True, id="an input"),
        pytest.param((0, 1, 2, 3), False, id="four of its five labels"),
        pytest.param((1, 2, 3, 4, 5), False, id="of two inputs"),
        pytest.param((4, 3, 2, 1, 0), False, id="in another order"),
    ],
)
def test_a_batch_asks_all_labels_of_its_inputs(indices: tuple[int, ...], is_whole: bool) -> None:
    if is_whole:
        assert BatchTerms(terms(5, 2), indices).indices == indices
        return
    with pytest.raises(InvalidParameterError):
        BatchTerms(terms(5, 2), indices)


def test_terms_of_several_labels_survive_their_record() -> None:
    several, single = terms(5, 2), terms(None, None)

    assert RunTerms.from_record(several.as_record()) == several
    assert set(single.as_record()["caps"]) == {"max_asks", "max_answers", "batch_size"}
    for spoiled in ({"labels": None}, {"label_cap": 2}, {"labels": True}, {"other": 1}):
        record = single.as_record()
        record["caps"] |= spoiled
        with pytest.raises(InvalidTermsError):
            RunTerms.from_record(record)


def test_asks_that_nobody_moves_are_free_however_many() -> None:
    moved = public_price(terms(5, 1, inputs=10), 0).epsilon

    assert moved == pytest.approx(labels_epsilon(2, 2.0, asks=20, delta=DELTA), rel=1e-12)

"""Teachers of several labels: the cap on "yes" that the price rests on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.data import Records
from pate_fed.data.label_questions import of_label, questions_of
from pate_fed.errors import InvalidParameterError
from pate_fed.inputs import Inputs
from pate_fed.teachers import make_ensemble
from pate_fed.teachers.teachers_of_labels import TeachersOfLabels, capped_answers

LABELS = 5
KINDS = ["logistic", "nearest", "direction", pytest.param("forest", marks=pytest.mark.slow)]


def questions(records: int, *, seed: int, likely: float = 0.7) -> Records:
    """Questions about records most of whose answers are yes, so that every cap binds."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(records, 4))
    answers = (features @ rng.normal(size=(4, LABELS)) > -2 * likely).astype(np.int64)
    units = tuple(f"patient-{seed}-{row}" for row in range(records))
    return questions_of(Records(features, answers[:, 0], units), answers)


def trained(
    kind: str = "logistic",
    *,
    cap: int | None = None,
    are_one_unit: bool = False,
    shards: list[Records] | None = None,
    balance: str = "natural",
) -> TeachersOfLabels:
    teachers = TeachersOfLabels(
        partial(make_ensemble, kind, "table", balance=balance),
        LABELS,
        cap=cap,
        are_one_unit=are_one_unit,
    )
    shards = [questions(30, seed=one) for one in range(4)] if shards is None else shards
    public = questions(40, seed=99).inputs
    teachers.fit(shards, classes=2, rng=np.random.default_rng(0), public=public)
    return teachers


def votes_on(teachers: TeachersOfLabels, records: int = 50) -> np.ndarray:
    """Answers by teacher, record and label."""
    votes = teachers.vote(questions(records, seed=7).inputs)
    return votes.reshape(teachers.teachers, records, LABELS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cap", [1, 2])
def test_a_teacher_says_yes_to_no_more_labels_than_the_cap(kind: str, cap: int) -> None:
    balance = "equal" if kind == "direction" else "natural"
    said = votes_on(trained(kind, cap=cap, balance=balance)).sum(axis=2)
    free = votes_on(trained(kind, balance=balance)).sum(axis=2)
    assert free.max() > cap  # the cap binds
    assert (said == np.minimum(free, cap)).all()


@pytest.mark.parametrize("cap", [1, 2])
def test_a_hospital_that_is_the_unit_has_one_cap_for_all_its_teachers(cap: int) -> None:
    votes = votes_on(trained(cap=cap, are_one_unit=True))
    alone = votes_on(trained(cap=cap))
    assert votes.any(axis=0).sum(axis=1).max() == cap
    assert alone.any(axis=0).sum(axis=1).max() > cap  # caps of teachers would not be one


@pytest.mark.parametrize(("kind", "balance"), [("nearest", "natural"), ("direction", "equal")])
def test_without_a_cap_they_are_the_teachers_of_each_label(kind: str, balance: str) -> None:
    shards = [questions(30, seed=one) for one in range(4)]
    said = votes_on(trained(kind, shards=shards, balance=balance))
    records = of_label(questions(50, seed=7), 0, LABELS).inputs
    public = of_label(questions(40, seed=99), 0, LABELS).inputs
    for label in range(LABELS):
        alone = make_ensemble(kind, "table", balance=balance)
        own = [of_label(shard, label, LABELS) for shard in shards]
        alone.fit(own, classes=2, rng=np.random.default_rng(0), public=public)
        assert (said[:, :, label] == alone.vote(records)).all()


@pytest.mark.parametrize("cap", [1, 2])
@pytest.mark.parametrize("are_one_unit", [False, True], ids=["patient", "hospital"])
def test_another_unit_changes_at_most_twice_the_cap(cap: int, are_one_unit: bool) -> None:
    shards = [questions(30, seed=one) for one in range(4)]
    others = [questions(30, seed=one + 50, likely=-0.3) for one in range(4)]
    mine = votes_on(trained(cap=cap, are_one_unit=are_one_unit, shards=shards))
    changed = others if are_one_unit else [shards[0], others[1], *shards[2:]]
    theirs = votes_on(trained(cap=cap, are_one_unit=are_one_unit, shards=changed))
    moved = (mine != theirs).any(axis=0).sum(axis=1)
    assert 0 < moved.max() <= 2 * cap
    if not are_one_unit:
        assert (mine == theirs)[[0, 2, 3]].all()


def test_the_answer_to_a_label_is_the_same_whichever_others_are_asked() -> None:
    teachers = trained(cap=1)
    asked = questions(20, seed=7).inputs
    together = teachers.vote(asked)
    order = np.random.default_rng(3).permutation(len(asked.features))[:30]
    assert (teachers.vote(asked.select(order)) == together[:, order]).all()


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 3),
    st.booleans(),
)
def test_no_leads_break_the_cap(
    seed: int, teachers: int, labels: int, cap: int, are_one_unit: bool
) -> None:
    rng = np.random.default_rng(seed)
    values = np.array([-np.inf, -1e30, -1.0, -0.0, 0.0, 1e-300, 0.5, 1.0, 1e30, np.inf, np.nan])
    leads = rng.choice(values, size=(teachers, 8, labels))
    said = capped_answers(leads, cap, are_one_unit=are_one_unit)
    said_by_unit = said.any(axis=0)[np.newaxis] if are_one_unit else said
    assert said_by_unit.sum(axis=-1).max() <= cap
    assert not (said & ~(leads > 0)).any()
    free = capped_answers(leads, None, are_one_unit=are_one_unit)
    assert (free == (leads > 0)).all()
    if not are_one_unit:
        assert (said.sum(axis=-1) == np.minimum(free.sum(axis=-1), cap)).all()


def test_a_unit_keeps_the_labels_that_lead_most() -> None:
    leads = np.array([[[0.2, -1.0, 0.9, 0.5]], [[0.1, 3.0, -0.5, 0.2]]])
    each = capped_answers(leads, 1, are_one_unit=False)
    assert each[:, 0].tolist() == [[False, False, True, False], [False, True, False, False]]
    together = capped_answers(leads, 2, are_one_unit=True)
    assert together[:, 0].tolist() == [[False, False, True, False], [False, True, False, False]]


def test_leads_are_those_of_the_votes() -> None:
    ensemble = make_ensemble("logistic", "table", balance="equal")
    shards = [of_label(questions(30, seed=one), 0, LABELS) for one in range(3)]
    public = Inputs(np.random.default_rng(2).normal(size=(40, 4)))
    with pytest.raises(InvalidParameterError):
        ensemble.leads(public)
    ensemble.fit(shards, classes=2, rng=np.random.default_rng(0), public=public)
    assert ((ensemble.leads(public) > 0) == (ensemble.vote(public) == 1)).all()
    three = [replace(one, labels=np.arange(len(one)) % 3) for one in shards]
    ensemble.fit(three, classes=3, rng=np.random.default_rng(0), public=public)
    with pytest.raises(InvalidParameterError):
        ensemble.leads(public)

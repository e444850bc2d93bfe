"""Whole runs: exact sums, and a coordinator that tells parties different things."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import wire
from protocols.errors import HistoryError
from protocols.messages import MaskedVector
from protocols.plain import PlainSum
from protocols.rounds import CoordinatorState, PartyState
from tests.support.markers import more
from tests.support.rounds import EXPIRES_AT, NOW, MemoryRun, ready_run
from tests.support.walk import altered


@pytest.mark.parametrize("parties", [3, 4, 10, more(31)])
def test_a_run_opens_the_exact_sum_batch_after_batch(parties: int) -> None:
    run, numbers = ready_run(parties), np.random.default_rng(parties)
    for batch in range(3):
        words = int(numbers.integers(1, 500))
        vectors = list(numbers.integers(-(2**31), 2**31, size=(parties, words)))
        total = run.sum(vectors, batch=batch)
        assert np.array_equal(total, (np.sum(vectors, axis=0) + 2**31) % 2**32 - 2**31)
        run.settle()
    run.close()
    assert {party.state for party in run.parties.values()} == {PartyState.DONE}
    assert len({party.transcript.head for party in run.parties.values()}) == 1
    assert run.coordinator.state is CoordinatorState.DONE


@pytest.mark.exhaustive
@pytest.mark.parametrize("parties", [50, 100])
def test_a_run_of_very_many_parties_opens_the_exact_sum(parties: int) -> None:
    run = ready_run(parties)
    vectors = list(np.random.default_rng(1).integers(0, 250, size=(parties, 300)))
    assert np.array_equal(run.sum(vectors), np.sum(vectors, axis=0))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_run_over_either_form_equals_the_plain_sum(data: st.DataObject) -> None:
    row = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4)
    vectors = [np.array(r) for r in data.draw(st.lists(row, min_size=3, max_size=5))]
    totals = []
    for form in (None, PlainSum):
        run = MemoryRun(len(vectors)) if form is None else MemoryRun(len(vectors), form=form)
        run.set_up()
        totals.append(run.sum(vectors))
    assert np.array_equal(totals[0], totals[1])


def test_many_batches_use_a_fresh_y_each_time() -> None:
    run, vectors = ready_run(3), [np.arange(50)] * 3
    bodies = set()
    for batch in range(20):
        frames: list[bytes] = []
        run.tamper = lambda stage, to, frame, seen=frames: (
            seen.append(frame) or frame if stage == "vector" else frame
        )
        assert np.array_equal(run.sum(vectors, batch=batch), 3 * np.arange(50))
        run.settle()
        bodies |= {wire.expect(wire.decode(frame), MaskedVector).body for frame in frames}
    assert len(bodies) == 60


def test_y_is_not_the_vector_and_differs_between_runs_of_one_federation() -> None:
    vector, bodies = np.arange(64), []
    for _ in range(2):
        run = ready_run(3)
        plan = run.open_plan(64)
        party = run.parties[run.coordinator.seats[0]]
        party.receive(plan, now=NOW)
        (frame,) = party.contribute(vector)
        bodies.append(wire.expect(wire.decode(frame), MaskedVector).body)
    assert vector.astype("<u4").tobytes() not in bodies
    assert bodies[0] != bodies[1]


@pytest.mark.parametrize(
    "changed",
    [
        {"terms": b"ask something else"},
        {"batch": 5},
        {"expires_at": EXPIRES_AT - 1},
        {"epoch": 2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_two_plans_for_two_groups_open_nothing(changed: dict[str, object]) -> None:
    """A coordinator keeps the books of two stories itself: it adds what it got by hand."""
    run = ready_run(4)
    plan = run.open_plan(64)
    other = altered(plan, run.coordinator_identity, **changed)
    plans = [plan, plan, other, other]
    vectors = np.random.default_rng(3).integers(0, 9, size=(4, 64))
    ys = []
    for seat, vector, given_plan in zip(run.coordinator.seats, vectors, plans, strict=True):
        party = run.parties[seat]
        party.receive(given_plan, now=NOW)
        (frame,) = party.contribute(vector)
        ys.append(wire.expect(wire.decode(frame), MaskedVector).body)
    words = np.array([np.frombuffer(y, dtype="<u4") for y in ys])
    for group in ([0, 1, 2, 3], [0, 1], [2, 3], [0, 2], [0, 1, 2]):
        opened = words[group].sum(axis=0, dtype=np.uint32)
        expected = vectors[group].sum(axis=0)
        # Each word is right by chance once in 2^32.
        assert not np.any(opened == expected)


def test_parties_that_were_told_different_things_are_told_apart_at_the_next_plan() -> None:
    run = ready_run(3)
    plan = run.open_plan(4)
    seats = run.coordinator.seats
    for seat in seats[:2]:
        run.parties[seat].receive(plan, now=NOW)
        run.to_coordinator(
            "vector", seat, list(run.parties[seat].contribute(np.zeros(4, np.int64)))
        )
    deceived = run.parties[seats[2]]
    other = altered(plan, run.coordinator_identity, terms=b"another")
    deceived.receive(other, now=NOW)
    deceived.contribute(np.zeros(4, dtype=np.int64))
    settlement = run.coordinator.batch.settle(released=False, result=b"")
    for seat in seats[:2]:
        run.parties[seat].receive(settlement, now=NOW)
    # The coordinator goes on with each story as it told it.
    lie = altered(
        settlement,
        run.coordinator_identity,
        plan_digest=wire.decode(other).digest,
        contributions=(b"", b"", b""),
    )
    deceived.receive(lie, now=NOW)
    following = run.open_plan(4, batch=1)
    for seat in seats[:2]:
        assert run.parties[seat].receive(following, now=NOW).event is not None
    before = (deceived.state, deceived.epoch, deceived.transcript)
    with pytest.raises(HistoryError) as caught:
        deceived.receive(following, now=NOW)
    assert caught.value.peer == "coordinator"
    assert (deceived.state, deceived.epoch, deceived.transcript) == before


def test_a_result_told_differently_to_one_party_comes_out_at_the_end() -> None:
    run = ready_run(3)
    run.sum([np.zeros(2, dtype=np.int64)] * 3)
    true = run.coordinator.batch.settle(released=True, result=b"labels")
    lie = altered(true, run.coordinator_identity, result=b"other labels")
    seats = run.coordinator.seats
    for seat in seats:
        run.parties[seat].receive(lie if seat == seats[0] else true, now=NOW)
    closing = run.coordinator.closing.close()
    with pytest.raises(HistoryError):
        run.parties[seats[0]].receive(closing, now=NOW)
    assert run.parties[seats[0]].state is PartyState.STOPPED
    for seat in seats[1:]:
        run.to_coordinator(
            "closing", seat, list(run.parties[seat].receive(closing, now=NOW).replies)
        )
    assert run.coordinator.missing == (seats[0],)


def test_one_void_batch_leaves_the_next_one_whole() -> None:
    run = ready_run(3)
    plan = run.open_plan(5)
    for seat in run.coordinator.seats[:2]:
        run.parties[seat].receive(plan, now=NOW)
        run.to_coordinator("vector", seat, list(run.parties[seat].contribute(np.arange(5))))
    last = run.coordinator.seats[2]
    run.parties[last].receive(plan, now=NOW)
    run.parties[last].refuse("PF-301")
    run.settle(released=False)
    assert np.array_equal(run.sum([np.arange(5)] * 3, batch=1), 3 * np.arange(5))

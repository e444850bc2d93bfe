"""Two counters: never above a cap, whatever is called in whatever order."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from pate_fed.accounting.reservations import EntryState
from pate_fed.accounting.outcome_caps import OutcomeEntry, OutcomeLedger, Outcomes
from pate_fed.errors import InvalidParameterError, LedgerError, OutcomeCapError, PateFedError

DIGEST = bytes(range(32))
ASK = Outcomes(1, 1)


class LedgerMachine(RuleBasedStateMachine):
    """Keeps its own books: what was truly released, and what nobody can rule out."""

    opened: Bundle[str] = Bundle("opened")
    settled: Bundle[str] = Bundle("settled")

    @initialize(max_refusals=st.integers(1, 12), max_answers=st.integers(1, 12))
    def begin(self, max_refusals: int, max_answers: int) -> None:
        self.ledger = OutcomeLedger(max_refusals, max_answers)
        self.caps = (max_refusals, max_answers)
        self.released = [0, 0]
        self.held: dict[str, Outcomes] = {}
        self.lost = [0, 0]
        self.names = 0

    def _reserve(self, outcomes: Outcomes) -> str:
        self.names += 1
        name = f"batch {self.names}"
        self.ledger = self.ledger.reserve(name, outcomes)
        self.held[name] = outcomes
        return name

    @rule(target=opened)
    def reserve_an_ask(self) -> Any:
        before = self.ledger
        if before.is_over:
            with pytest.raises(OutcomeCapError):
                before.reserve("one more", ASK)
            return self._unknown()
        return self._reserve(ASK)

    @rule(target=opened, asks=st.integers(1, 9))
    def reserve_a_batch(self, asks: int) -> Any:
        outcomes = self.ledger.worst_case(asks)
        assert outcomes.refusals <= asks >= outcomes.answers
        if self.ledger.is_over:
            with pytest.raises(OutcomeCapError):
                self.ledger.reserve("one more", outcomes)
            return self._unknown()
        return self._reserve(outcomes)

    @rule(outcomes=st.builds(Outcomes, st.integers(0, 15), st.integers(0, 15)))
    def reserve_anything(self, outcomes: Outcomes) -> None:
        self.names += 1
        before, name = self.ledger, f"wild {self.names}"
        try:
            self.ledger = before.reserve(name, outcomes)
        except PateFedError:
            assert not outcomes.is_covered_by(before.left) or 0 in (
                outcomes.refusals,
                outcomes.answers,
            )
            assert self.ledger is before
        else:
            self.held[name] = outcomes
            self.ledger = self.ledger.cancel(name)
            del self.held[name]

    @rule(name=consumes(opened), data=st.data(), target=settled)
    def release(self, name: str, data: st.DataObject) -> str:
        if name not in self.held:
            return name
        held = self.held.pop(name)
        outcomes = Outcomes(
            data.draw(st.integers(0, held.refusals)), data.draw(st.integers(0, held.answers))
        )
        self.ledger = self.ledger.commit(name, outcomes, DIGEST)
        self.released[0] += outcomes.refusals
        self.released[1] += outcomes.answers
        return name

    @rule(name=consumes(opened), target=settled)
    def void(self, name: str) -> str:
        if name in self.held:
            held = self.held.pop(name)
            self.ledger = self.ledger.forfeit(name)
            self.lost[0] += held.refusals
            self.lost[1] += held.answers
        return name

    @rule(name=consumes(opened), target=settled)
    def cancel(self, name: str) -> str:
        if name in self.held:
            del self.held[name]
            self.ledger = self.ledger.cancel(name)
        return name

    @rule(name=settled)
    def nothing_is_settled_twice(self, name: str) -> None:
        before = self.ledger
        for settle in (
            before.cancel,
            before.forfeit,
            lambda entry: before.commit(entry, Outcomes(0, 0), DIGEST),
        ):
            with pytest.raises(LedgerError):
                settle(name)
        assert self.ledger is before

    @rule(name=opened)
    def more_than_reserved_is_refused(self, name: str) -> None:
        if name in self.held:
            too_many = replace(self.held[name], refusals=self.held[name].refusals + 1)
            with pytest.raises(LedgerError):
                self.ledger.commit(name, too_many, DIGEST)

    @rule()
    def the_ledger_is_stored_and_read(self) -> None:
        self.ledger = OutcomeLedger.from_record(json.loads(json.dumps(self.ledger.to_record())))

    @invariant()
    def caps_hold_and_nothing_is_forgotten(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for index, cap in enumerate(self.caps):
            open_ones = sum((h.refusals, h.answers)[index] for h in self.held.values())
            expected = self.released[index] + self.lost[index] + open_ones
            counted = (self.ledger.counted.refusals, self.ledger.counted.answers)[index]
            left = (self.ledger.left.refusals, self.ledger.left.answers)[index]
            assert counted == expected <= cap
            assert left == cap - counted
            # Even if all that is open or lost came to its worst, the cap holds.
            assert self.released[index] + open_ones + self.lost[index] <= cap

    def _unknown(self) -> str:
        return f"never reserved {self.names}"

    @rule(name=st.sampled_from(["", "nobody"]))
    def unknown_names_are_refused(self, name: str) -> None:
        with pytest.raises(LedgerError):
            self.ledger.forfeit(name)


TestOutcomeLedger = LedgerMachine.TestCase
TestOutcomeLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_run_of_single_asks_ends_at_its_first_full_cap() -> None:
    ledger = OutcomeLedger(max_refusals=2, max_answers=3)
    given_back = [Outcomes(0, 1), Outcomes(1, 0), Outcomes(0, 1), Outcomes(1, 0)]
    for number, outcome in enumerate(given_back):
        assert not ledger.is_over
        ledger = ledger.reserve(str(number), ASK).commit(str(number), outcome, DIGEST)
    assert ledger.is_over
    assert ledger.left == Outcomes(0, 1)
    with pytest.raises(OutcomeCapError) as caught:
        ledger.reserve("one more", ASK)
    assert caught.value.code == "PF-133"


def test_a_batch_holds_both_outcomes_of_every_ask() -> None:
    ledger = OutcomeLedger(max_refusals=5, max_answers=50)
    assert ledger.worst_case(20) == Outcomes(5, 20)
    held = ledger.reserve("batch", ledger.worst_case(20))
    assert held.left == Outcomes(0, 30)
    assert held.is_over
    done = held.commit("batch", Outcomes(2, 18), DIGEST)
    assert done.left == Outcomes(3, 32)


def test_a_void_batch_keeps_its_worst_case() -> None:
    ledger = OutcomeLedger(10, 10).reserve("batch", Outcomes(4, 4)).forfeit("batch")
    assert ledger.left == Outcomes(6, 6)
    assert ledger.reserve("next", ASK).cancel("next").left == Outcomes(6, 6)


@pytest.mark.parametrize("outcomes", [Outcomes(0, 1), Outcomes(1, 0), Outcomes(0, 0)])
def test_an_ask_must_hold_both_outcomes(outcomes: Outcomes) -> None:
    with pytest.raises(LedgerError):
        OutcomeLedger(5, 5).reserve("half an ask", outcomes)


def test_names_are_used_once() -> None:
    ledger = OutcomeLedger(5, 5).reserve("a", ASK).cancel("a")
    with pytest.raises(LedgerError):
        ledger.reserve("a", ASK)


@pytest.mark.parametrize(
    ("refusals", "answers"),
    [(0, 5), (5, 0), (-1, 5), (2.0, 5), (True, 5), (5, "5")],
)
def test_caps_out_of_range_are_refused(refusals: Any, answers: Any) -> None:
    with pytest.raises(InvalidParameterError):
        OutcomeLedger(refusals, answers)


@pytest.mark.parametrize("counts", [(-1, 0), (0, -1), (0.5, 0), (True, 0)])
def test_outcomes_are_whole_and_not_below_0(counts: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        Outcomes(*counts)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"state": EntryState.COMMITTED}, id="committed without a release"),
        pytest.param({"released": ASK, "release_digest": DIGEST}, id="open with a release"),
        pytest.param(
            {"state": EntryState.COMMITTED, "released": Outcomes(2, 0), "release_digest": DIGEST},
            id="more released than reserved",
        ),
        pytest.param(
            {"state": EntryState.COMMITTED, "released": ASK, "release_digest": b"short"},
            id="short digest",
        ),
        pytest.param({"entry_id": ""}, id="no name"),
    ],
)
def test_entries_that_contradict_themselves_are_refused(entry: dict[str, Any]) -> None:
    good: dict[str, Any] = {"entry_id": "a", "state": EntryState.RESERVED, "reserved": ASK}
    with pytest.raises(LedgerError):
        OutcomeEntry(**{**good, **entry})


def a_record() -> dict[str, Any]:
    ledger = OutcomeLedger(3, 3).reserve("a", ASK).commit("a", Outcomes(1, 0), DIGEST)
    record: dict[str, Any] = json.loads(json.dumps(ledger.reserve("b", ASK).to_record()))
    return record


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda r: r.update(outcome_ledger=2), id="other version"),
        pytest.param(lambda r: r.pop("max_answers"), id="no cap"),
        pytest.param(lambda r: r.update(max_answers=2.0), id="cap of another type"),
        pytest.param(lambda r: r.update(entries=None), id="no entries"),
        pytest.param(lambda r: r.update(max_refusals=1), id="entries above the cap"),
        pytest.param(lambda r: r["entries"][1].update(entry_id="a"), id="a name twice"),
        pytest.param(lambda r: r["entries"][0].update(state="open"), id="unknown state"),
        pytest.param(lambda r: r["entries"][0].pop("released"), id="lost release"),
        pytest.param(lambda r: r["entries"][0].update(released=None), id="emptied release"),
        pytest.param(lambda r: r["entries"][0].update(release_digest="xyz"), id="digest no hex"),
        pytest.param(lambda r: r["entries"][0].update(release_digest=5), id="digest a number"),
        pytest.param(lambda r: r["entries"][0]["reserved"].update(answers=True), id="yes, counted"),
        pytest.param(lambda r: r["entries"][0].update(reserved=[1, 1]), id="outcomes as a list"),
        pytest.param(lambda r: r["entries"].append(7), id="an entry that is none"),
    ],
)
def test_spoiled_records_are_refused(spoil: Any) -> None:
    record = a_record()
    assert OutcomeLedger.from_record(record).left == Outcomes(1, 2)
    spoil(record)
    with pytest.raises(LedgerError):
        OutcomeLedger.from_record(record)

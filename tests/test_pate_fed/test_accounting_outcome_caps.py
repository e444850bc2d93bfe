"""Two counters: never above a cap, whatever is called in whatever order."""

from __future__ import annotations

import json
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

from pate_fed.accounting.outcome_caps import NO_OUTCOMES, OutcomeLedger, Outcomes
from pate_fed.errors import InvalidParameterError, LedgerError, OutcomeCapError, PateFedError

DIGEST = bytes(range(32))
ASK = Outcomes(1, 1)


def counts_of(outcomes: Outcomes) -> tuple[int, int]:
    return outcomes.asks, outcomes.answers


@st.composite
def outcomes_of_asks(draw: st.DrawFn, *, least: int = 0, most: int = 15) -> Outcomes:
    asks = draw(st.integers(least, most))
    return Outcomes(asks, draw(st.integers(least, asks)))


class LedgerMachine(RuleBasedStateMachine):
    """Keeps its own books: what was truly released, and what nobody can rule out."""

    opened: Bundle[str] = Bundle("opened")
    settled: Bundle[str] = Bundle("settled")

    @initialize(caps=outcomes_of_asks(least=1, most=20))
    def begin(self, caps: Outcomes) -> None:
        self.ledger = OutcomeLedger(caps)
        self.caps = caps
        self.released = [0, 0]
        self.held: dict[str, Outcomes] = {}
        self.lost = [0, 0]
        self.names = 0

    @property
    def free(self) -> list[int]:
        """What no book of ours holds, cap by cap."""
        taken = [counts_of(held) for held in self.held.values()]
        return [
            cap - self.released[index] - self.lost[index] - sum(each[index] for each in taken)
            for index, cap in enumerate(counts_of(self.caps))
        ]

    @property
    def can_ask(self) -> bool:
        """Whether one more ask, and its answer, fits both caps by our own books."""
        return min(self.free) >= 1

    def _reserve(self, outcomes: Outcomes) -> str:
        self.names += 1
        name = f"batch {self.names}"
        self.ledger = self.ledger.reserve(name, outcomes)
        self.held[name] = outcomes
        return name

    @rule(target=opened)
    def reserve_an_ask(self) -> Any:
        before = self.ledger
        if not self.can_ask:
            with pytest.raises(OutcomeCapError):
                before.reserve("one more", ASK)
            return self._unknown()
        return self._reserve(ASK)

    @rule(target=opened, asks=st.integers(1, 9))
    def reserve_a_batch(self, asks: int) -> Any:
        if asks > self.free[0]:
            with pytest.raises(OutcomeCapError):
                self.ledger.worst_case(asks)
            return self._unknown()
        outcomes = self.ledger.worst_case(asks)
        if self.can_ask:  # it ends by itself with the last allowed answer, if before its last ask
            assert outcomes == Outcomes(asks, min(asks, self.free[1]))
        else:
            assert outcomes == NO_OUTCOMES
            with pytest.raises(OutcomeCapError):
                self.ledger.reserve("one more", outcomes)
            return self._unknown()
        return self._reserve(outcomes)

    @rule(outcomes=outcomes_of_asks())
    def reserve_anything(self, outcomes: Outcomes) -> None:
        self.names += 1
        fits = all(
            wanted <= free for wanted, free in zip(counts_of(outcomes), self.free, strict=True)
        )
        before, name = self.ledger, f"wild {self.names}"
        try:
            self.ledger = before.reserve(name, outcomes)
        except PateFedError:
            assert not (fits and outcomes.answers >= 1)
            assert self.ledger is before
        else:
            assert fits
            assert outcomes.answers >= 1
            self.ledger = self.ledger.cancel(name)

    @rule(name=consumes(opened), data=st.data(), target=settled)
    def release(self, name: str, data: st.DataObject) -> str:
        if name not in self.held:
            return name
        held = self.held.pop(name)
        asks = data.draw(st.integers(0, held.asks))
        answers = data.draw(st.integers(0, min(held.answers, asks)))
        self.ledger = self.ledger.commit(name, Outcomes(asks, answers), DIGEST)
        for index, number in enumerate((asks, answers)):
            self.released[index] += number
        return name

    @rule(name=consumes(opened), target=settled)
    def void(self, name: str) -> str:
        if name in self.held:
            held = self.held.pop(name)
            self.ledger = self.ledger.forfeit(name)
            for index, number in enumerate(counts_of(held)):
                self.lost[index] += number
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
            lambda entry: before.commit(entry, NO_OUTCOMES, DIGEST),
        ):
            with pytest.raises(LedgerError):
                settle(name)
        assert self.ledger is before

    @rule(name=opened)
    def more_than_reserved_is_refused(self, name: str) -> None:
        if name not in self.held:
            return
        held = self.held[name]
        for too_many in (
            Outcomes(held.asks + 1, 0),
            Outcomes(held.answers + 1, held.answers + 1),
        ):
            with pytest.raises(LedgerError):
                self.ledger.commit(name, too_many, DIGEST)

    @rule()
    def the_ledger_is_stored_and_read(self) -> None:
        read = OutcomeLedger.from_record(json.loads(json.dumps(self.ledger.to_record())))
        assert read == self.ledger
        self.ledger = read

    @invariant()
    def caps_hold_and_nothing_is_forgotten(self) -> None:
        if not hasattr(self, "ledger"):
            return
        counted = (self.ledger.asks, self.ledger.answers)
        # Even if all that is open or lost came to its worst, every cap holds.
        assert min(self.free) >= 0
        for number, cap, free in zip(counted, counts_of(self.caps), self.free, strict=True):
            assert number == cap - free
        assert self.ledger.is_over is not self.can_ask
        asks, answers = self.free
        # All that is left could truly be released: no more answers than asks.
        left = Outcomes(asks, min(answers, asks)) if self.can_ask else NO_OUTCOMES
        assert self.ledger.left == left

    def _unknown(self) -> str:
        return f"never reserved {self.names}"

    @rule(name=st.sampled_from(["", "nobody"]))
    def unknown_names_are_refused(self, name: str) -> None:
        with pytest.raises(LedgerError):
            self.ledger.forfeit(name)


TestOutcomeLedger = LedgerMachine.TestCase
TestOutcomeLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("caps", "given_back"),
    [
        pytest.param(Outcomes(9, 2), [(1, 0), (1, 1), (1, 0), (1, 1)], id="answers"),
        pytest.param(Outcomes(4, 4), [(1, 0), (1, 1), (1, 0), (1, 0)], id="asks"),
    ],
)
def test_a_run_of_single_asks_ends_at_its_first_full_cap(
    caps: Outcomes, given_back: list[tuple[int, int]]
) -> None:
    ledger = OutcomeLedger(caps)
    for number, outcome in enumerate(given_back):
        assert not ledger.is_over
        ledger = ledger.reserve(str(number), ASK).commit(str(number), Outcomes(*outcome), DIGEST)
    assert ledger.is_over
    assert ledger.left == NO_OUTCOMES
    with pytest.raises(OutcomeCapError) as caught:
        ledger.reserve("one more", ASK)
    assert caught.value.code == "PF-133"


def test_a_run_ends_after_its_last_allowed_ask() -> None:
    ledger = OutcomeLedger(Outcomes(4, 3))
    ledger = ledger.reserve("all", ledger.worst_case(4)).commit("all", Outcomes(4, 2), DIGEST)
    assert ledger.is_over
    with pytest.raises(OutcomeCapError):
        ledger.worst_case(1)


def test_a_batch_holds_an_answer_for_every_ask_that_may_get_one() -> None:
    ledger = OutcomeLedger(Outcomes(55, 15))
    assert ledger.worst_case(20) == Outcomes(20, 15)
    held = ledger.reserve("batch", ledger.worst_case(20))
    assert (held.asks, held.answers) == (20, 15)
    assert held.is_over, "no answer is left, as long as the batch is open"
    done = held.commit("batch", Outcomes(20, 9), DIGEST)
    assert done.left == Outcomes(35, 6)


def test_a_void_batch_keeps_its_worst_case() -> None:
    ledger = OutcomeLedger(Outcomes(10, 10)).reserve("batch", Outcomes(4, 4)).forfeit("batch")
    assert ledger.left == Outcomes(6, 6)
    assert ledger.reserve("next", ASK).cancel("next").left == Outcomes(6, 6)


@pytest.mark.parametrize("outcomes", [Outcomes(1, 0), Outcomes(0, 0)])
def test_an_ask_must_hold_an_answer(outcomes: Outcomes) -> None:
    with pytest.raises(LedgerError):
        OutcomeLedger(Outcomes(5, 5)).reserve("half an ask", outcomes)


def test_names_are_used_once() -> None:
    ledger = OutcomeLedger(Outcomes(5, 5)).reserve("a", ASK).cancel("a")
    with pytest.raises(LedgerError):
        ledger.reserve("a", ASK)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((5, 0), id="no answers"),
        pytest.param((-1, 5), id="negative asks"),
        pytest.param((5.0, 5), id="asks no whole number"),
        pytest.param((True, 1), id="yes, asked"),
        pytest.param((5, "5"), id="text"),
        pytest.param((4, 5), id="more answers than asks"),
    ],
)
def test_caps_out_of_range_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidParameterError):
        OutcomeLedger(Outcomes(*numbers))


@pytest.mark.parametrize("counts", [(-1, 0), (0, -1), (0.5, 0), (True, 0), (1, 2)])
def test_outcomes_are_whole_and_not_below_0(counts: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        Outcomes(*counts)


def a_record() -> dict[str, Any]:
    ledger = OutcomeLedger(Outcomes(3, 3)).reserve("a", ASK).commit("a", Outcomes(1, 0), DIGEST)
    record: dict[str, Any] = json.loads(json.dumps(ledger.reserve("b", ASK).to_record()))
    return record


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda r: r.update(outcome_ledger=2), id="other version"),
        pytest.param(lambda r: r["caps"].pop("answers"), id="no cap"),
        pytest.param(lambda r: r["caps"].update(answers=2.0), id="cap of another type"),
        pytest.param(lambda r: r.update(entries=None), id="no entries"),
        pytest.param(lambda r: r["caps"].update(asks=1, answers=1), id="entries above the cap"),
        pytest.param(lambda r: r["caps"].update(answers=4), id="more answers than asks"),
        pytest.param(lambda r: r["entries"][1].update(entry_id="a"), id="a name twice"),
        pytest.param(lambda r: r["entries"][0]["reserved"].update(answers=True), id="yes, counted"),
        pytest.param(lambda r: r["entries"][0].update(reserved=[1, 1]), id="outcomes as a list"),
        pytest.param(lambda r: r["caps"].update(asks=1.5), id="asks no whole number"),
    ],
)
def test_spoiled_records_are_refused(spoil: Any) -> None:
    record = a_record()
    assert OutcomeLedger.from_record(record).left == Outcomes(1, 1)
    spoil(record)
    with pytest.raises((LedgerError, InvalidParameterError)):
        OutcomeLedger.from_record(record)

"""Three counters: never above a cap, whatever is called in whatever order."""

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
from pate_fed.accounting.reservations import Entry, EntryState
from pate_fed.errors import InvalidParameterError, LedgerError, OutcomeCapError, PateFedError

DIGEST = bytes(range(32))
ASK = Outcomes(1, 1, 1)


def counts_of(outcomes: Outcomes) -> tuple[int, int, int]:
    return outcomes.refusals, outcomes.answers, outcomes.asks


@st.composite
def caps(draw: st.DrawFn, largest: int = 12) -> Outcomes:
    refusals, answers = draw(st.integers(0, largest)), draw(st.integers(1, largest))
    return Outcomes(
        refusals, answers, draw(st.integers(max(refusals, answers), refusals + answers))
    )


class LedgerMachine(RuleBasedStateMachine):
    """Keeps its own books: what was truly released, and what nobody can rule out."""

    opened: Bundle[str] = Bundle("opened")
    settled: Bundle[str] = Bundle("settled")

    @initialize(caps=caps())
    def begin(self, caps: Outcomes) -> None:
        self.ledger = OutcomeLedger(caps)
        self.caps = caps
        self.released = [0, 0, 0]
        self.held: dict[str, Outcomes] = {}
        self.lost = [0, 0, 0]
        self.names = 0

    @property
    def ask(self) -> Outcomes:
        """One ask: it may be refused only where there are refusals."""
        return ASK if self.caps.refusals else Outcomes(0, 1)

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
        """Whether every outcome of one more ask fits all caps, by our own books."""
        refusals, answers, asks = self.free
        return asks >= 1 and answers >= 1 and (refusals >= 1 or not self.caps.refusals)

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
                before.reserve("one more", self.ask)
            return self._unknown()
        return self._reserve(self.ask)

    @rule(target=opened, asks=st.integers(1, 9))
    def reserve_a_batch(self, asks: int) -> Any:
        if asks > self.free[2]:
            with pytest.raises(OutcomeCapError):
                self.ledger.worst_case(asks)
            return self._unknown()
        outcomes = self.ledger.worst_case(asks)
        assert outcomes.refusals <= outcomes.asks <= asks
        assert outcomes.answers <= outcomes.asks
        if not self.can_ask:
            assert outcomes == NO_OUTCOMES
            with pytest.raises(OutcomeCapError):
                self.ledger.reserve("one more", outcomes)
            return self._unknown()
        return self._reserve(outcomes)

    @rule(data=st.data())
    def reserve_anything(self, data: st.DataObject) -> None:
        self.names += 1
        refusals, answers = data.draw(st.integers(0, 15)), data.draw(st.integers(0, 15))
        asks = data.draw(st.integers(max(refusals, answers), refusals + answers))
        outcomes = Outcomes(refusals, answers, asks)
        fits = all(
            wanted <= free for wanted, free in zip(counts_of(outcomes), self.free, strict=True)
        )
        whole_ask = answers >= 1 and (refusals >= 1 or not self.caps.refusals)
        before, name = self.ledger, f"wild {self.names}"
        try:
            self.ledger = before.reserve(name, outcomes)
        except PateFedError:
            assert not (fits and whole_ask)
            assert self.ledger is before
        else:
            assert fits
            assert whole_ask
            self.ledger = self.ledger.cancel(name)

    @rule(name=consumes(opened), data=st.data(), target=settled)
    def release(self, name: str, data: st.DataObject) -> str:
        if name not in self.held:
            return name
        held = self.held.pop(name)
        refusals = data.draw(st.integers(0, held.refusals))
        answers = data.draw(st.integers(0, min(held.answers, held.asks - refusals)))
        self.ledger = self.ledger.commit(name, Outcomes(refusals, answers), DIGEST)
        for index, number in enumerate((refusals, answers, refusals + answers)):
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
            Outcomes(held.refusals + 1, 0),
            Outcomes(0, held.answers + 1),
            Outcomes(held.refusals, held.asks - held.refusals + 1),
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
        counted = (self.ledger.refusals, self.ledger.answers, self.ledger.asks)
        # Even if all that is open or lost came to its worst, every cap holds.
        assert min(self.free) >= 0
        for number, cap, free in zip(counted, counts_of(self.caps), self.free, strict=True):
            assert number == cap - free
        assert self.ledger.asks_left == self.free[2]
        assert self.ledger.is_over is not self.can_ask
        left = counts_of(self.ledger.left)
        if self.can_ask:
            # All that is left could truly be released: no more asks than outcomes, no more
            # outcomes than asks.
            asks = min(self.free[2], self.free[0] + self.free[1])
            assert left == (min(self.free[0], asks), min(self.free[1], asks), asks)
        else:
            assert left == (0, 0, 0)

    def _unknown(self) -> str:
        return f"never reserved {self.names}"

    @rule(name=st.sampled_from(["", "nobody"]))
    def unknown_names_are_refused(self, name: str) -> None:
        with pytest.raises(LedgerError):
            self.ledger.forfeit(name)


TestOutcomeLedger = LedgerMachine.TestCase
TestOutcomeLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_run_of_single_asks_ends_at_its_first_full_cap() -> None:
    ledger = OutcomeLedger(Outcomes(2, 3))
    given_back = [Outcomes(0, 1), Outcomes(1, 0), Outcomes(0, 1), Outcomes(1, 0)]
    for number, outcome in enumerate(given_back):
        assert not ledger.is_over
        ledger = ledger.reserve(str(number), ASK).commit(str(number), outcome, DIGEST)
    assert ledger.is_over
    assert ledger.left == NO_OUTCOMES
    with pytest.raises(OutcomeCapError) as caught:
        ledger.reserve("one more", ASK)
    assert caught.value.code == "PF-133"


def test_a_run_ends_after_its_last_allowed_ask() -> None:
    ledger = OutcomeLedger(Outcomes(3, 3, 4))
    ledger = ledger.reserve("all", ledger.worst_case(4)).commit("all", Outcomes(2, 2), DIGEST)
    assert ledger.is_over
    assert (ledger.asks_left, ledger.left) == (0, NO_OUTCOMES)
    with pytest.raises(OutcomeCapError):
        ledger.worst_case(1)


def test_a_mechanism_that_never_refuses_has_no_cap_on_refusals() -> None:
    ledger = OutcomeLedger(Outcomes(0, 5))
    assert ledger.worst_case(3) == Outcomes(0, 3)
    ledger = ledger.reserve("a", ledger.worst_case(3)).commit("a", Outcomes(0, 3), DIGEST)
    assert (ledger.is_over, ledger.left) == (False, Outcomes(0, 2))
    with pytest.raises(OutcomeCapError):
        ledger.reserve("b", ASK)


def test_a_batch_holds_both_outcomes_of_every_ask() -> None:
    ledger = OutcomeLedger(Outcomes(5, 50))
    assert ledger.worst_case(20) == Outcomes(5, 20, 20)
    held = ledger.reserve("batch", ledger.worst_case(20))
    assert (held.refusals, held.answers, held.asks) == (5, 20, 20)
    assert held.is_over
    done = held.commit("batch", Outcomes(2, 18), DIGEST)
    assert done.left == Outcomes(3, 32, 35)


def test_the_worst_case_of_a_batch_ends_the_run_once() -> None:
    # 2 refusals and 3 answers: after 4 asks one of the caps is reached, never after 5.
    assert OutcomeLedger(Outcomes(2, 3)).worst_case(5) == Outcomes(2, 3, 4)
    assert OutcomeLedger(Outcomes(1, 1)).worst_case(2) == Outcomes(1, 1, 1)


def test_a_void_batch_keeps_its_worst_case() -> None:
    ledger = OutcomeLedger(Outcomes(10, 10)).reserve("batch", Outcomes(4, 4, 4)).forfeit("batch")
    assert ledger.left == Outcomes(6, 6, 12)
    assert ledger.reserve("next", ASK).cancel("next").left == Outcomes(6, 6, 12)


@pytest.mark.parametrize("outcomes", [Outcomes(0, 1), Outcomes(1, 0), Outcomes(0, 0)])
def test_an_ask_must_hold_both_outcomes(outcomes: Outcomes) -> None:
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
        pytest.param((-1, 5), id="negative refusals"),
        pytest.param((2.0, 5), id="refusals no whole number"),
        pytest.param((True, 5), id="yes, refused"),
        pytest.param((5, "5"), id="text"),
        pytest.param((5, 5, 4), id="fewer asks than refusals"),
        pytest.param((5, 5, 11), id="more asks than outcomes"),
    ],
)
def test_caps_out_of_range_are_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidParameterError):
        OutcomeLedger(Outcomes(*numbers))


@pytest.mark.parametrize("counts", [(-1, 0), (0, -1), (0.5, 0), (True, 0)])
def test_outcomes_are_whole_and_not_below_0(counts: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        Outcomes(*counts)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"state": EntryState.COMMITTED}, id="committed without a release"),
        pytest.param({"spent": Outcomes(1, 0), "release_digest": DIGEST}, id="open with a release"),
        pytest.param(
            {"state": EntryState.COMMITTED, "spent": Outcomes(2, 0), "release_digest": DIGEST},
            id="more released than reserved",
        ),
        pytest.param(
            {"state": EntryState.COMMITTED, "spent": Outcomes(1, 1), "release_digest": DIGEST},
            id="two released of one ask",
        ),
        pytest.param(
            {"state": EntryState.COMMITTED, "spent": ASK, "release_digest": b"short"},
            id="short digest",
        ),
        pytest.param({"entry_id": ""}, id="no name"),
    ],
)
def test_entries_that_contradict_themselves_are_refused(entry: dict[str, Any]) -> None:
    good: dict[str, Any] = {"entry_id": "a", "state": EntryState.RESERVED, "reserved": ASK}
    with pytest.raises(LedgerError):
        Entry(**{**good, **entry})


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
        pytest.param(lambda r: r["caps"].update(refusals=1, asks=3), id="entries above the cap"),
        pytest.param(lambda r: r["entries"][1].update(entry_id="a"), id="a name twice"),
        pytest.param(lambda r: r["entries"][0].update(state="open"), id="unknown state"),
        pytest.param(lambda r: r["entries"][0].pop("spent"), id="lost release"),
        pytest.param(lambda r: r["entries"][0].update(spent=None), id="emptied release"),
        pytest.param(lambda r: r["entries"][0].update(release_digest="xyz"), id="digest no hex"),
        pytest.param(lambda r: r["entries"][0].update(release_digest=5), id="digest a number"),
        pytest.param(lambda r: r["entries"][0]["reserved"].update(answers=True), id="yes, counted"),
        pytest.param(lambda r: r["entries"][0].update(reserved=[1, 1, 1]), id="outcomes as a list"),
        pytest.param(lambda r: r["entries"].append(7), id="an entry that is none"),
        pytest.param(lambda r: r["caps"].update(asks=1.5), id="asks no whole number"),
    ],
)
def test_spoiled_records_are_refused(spoil: Any) -> None:
    record = a_record()
    assert OutcomeLedger.from_record(record).left == Outcomes(1, 2)
    spoil(record)
    with pytest.raises(LedgerError):
        OutcomeLedger.from_record(record)

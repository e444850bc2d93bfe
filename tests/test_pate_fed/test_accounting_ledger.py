"""The ledger: never above its budget, whatever is called in whatever order."""

from __future__ import annotations

import json
import math
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu_squared
from pate_fed.accounting.ledger import PrivacyLedger
from pate_fed.accounting.reservations import Entry, EntryState
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    LedgerError,
    PateFedError,
)

DIGEST = bytes(range(32))
RESERVED = ConfidentGaussianMaxEvent(asks=30, answers=30, sigma1=15.0, sigma2=8.0)
SPENT = ConfidentGaussianMaxEvent(asks=30, answers=12, sigma1=15.0, sigma2=8.0)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "commit", "commit less", "cancel", "forfeit"]),
        st.sampled_from(["a", "b", "c", "d"]),
        st.integers(0, 60),
        st.floats(3.0, 40.0),
    ),
    max_size=25,
)


def event(answers: int, sigma: float = 8.0) -> ConfidentGaussianMaxEvent:
    return ConfidentGaussianMaxEvent(answers, answers, sigma, sigma)


def taken(
    ledger: PrivacyLedger, step: str, entry_id: str, answers: int, sigma: float
) -> PrivacyLedger:
    if step == "reserve":
        return ledger.reserve(entry_id, event(answers, sigma))
    if step == "cancel":
        return ledger.cancel(entry_id)
    if step == "forfeit":
        return ledger.forfeit(entry_id)
    reserved = {entry.entry_id: entry.reserved for entry in ledger.entries}.get(entry_id)
    spent = reserved if reserved and step == "commit" else event(answers, sigma)
    return ledger.commit(entry_id, spent, DIGEST)


def held_mu_squared(ledger: PrivacyLedger) -> float:
    """Add up what counts, independently of the ledger's own sum."""
    held = [
        entry.spent if entry.state == "committed" else entry.reserved
        for entry in ledger.entries
        if entry.state != "cancelled"
    ]
    return math.fsum(gdp_mu_squared(charge) for charge in held if charge is not None)


@given(steps=STEPS)
def test_no_sequence_of_calls_exceeds_the_budget(
    steps: list[tuple[str, str, int, float]],
) -> None:
    ledger = PrivacyLedger(epsilon=3.0, delta=1e-5)
    for step in steps:
        before = ledger.to_record()
        try:
            ledger = taken(ledger, *step)
        except PateFedError:
            assert ledger.to_record() == before
        assert gdp_epsilon(math.sqrt(held_mu_squared(ledger)), 1e-5) <= 3.0
        assert ledger.charged_epsilon() <= 3.0


@given(steps=STEPS)
def test_charges_never_fall_below_what_was_released(
    steps: list[tuple[str, str, int, float]],
) -> None:
    ledger = PrivacyLedger(epsilon=3.0, delta=1e-5)
    released = 0.0
    for step in steps:
        try:
            after = taken(ledger, *step)
        except PateFedError:
            continue
        if step[0].startswith("commit"):
            spent = next(entry.spent for entry in after.entries if entry.entry_id == step[1])
            assert spent is not None
            released += gdp_mu_squared(spent)
        ledger = after
        assert held_mu_squared(ledger) >= released * (1 - 1e-12)


@given(steps=STEPS)
def test_storage_keeps_a_ledger_exactly(steps: list[tuple[str, str, int, float]]) -> None:
    ledger = PrivacyLedger(epsilon=3.0, delta=1e-5)
    for step in steps:
        try:
            ledger = taken(ledger, *step)
        except PateFedError:
            continue
    stored = json.loads(json.dumps(ledger.to_record()))
    assert PrivacyLedger.from_record(stored) == ledger


def test_the_order_of_entries_changes_nothing() -> None:
    charges = [event(1, 7.0), event(3, 11.3), event(2, 0.9 * 13), event(5, 17.1)]
    seen = set()
    for order in permutations(charges):
        ledger = PrivacyLedger(epsilon=5.0, delta=1e-5)
        for number, charge in enumerate(order):
            ledger = ledger.reserve(str(number), charge)
        seen.add(ledger.charged_epsilon())
    assert len(seen) == 1


def test_many_small_charges_do_not_drift() -> None:
    one = GaussianMaxEvent(1, 100.0)
    entries = tuple(Entry(str(n), EntryState.FORFEITED, one) for n in range(5000))
    ledger = PrivacyLedger(epsilon=10.0, delta=1e-5, entries=entries)
    # 5000 * 2 / 100^2 = 1: added one by one with plain floats this misses by 1e-13.
    assert ledger.charged_epsilon() == gdp_epsilon(1.0, 1e-5)


def test_a_worst_case_of_exactly_the_budget_is_allowed_and_nothing_more() -> None:
    budget = gdp_epsilon(math.sqrt(gdp_mu_squared(RESERVED)), 1e-5)
    ledger = PrivacyLedger(epsilon=budget, delta=1e-5)
    full = ledger.reserve("all", RESERVED)
    assert full.charged_epsilon() <= budget
    assert not full.can_afford(GaussianMaxEvent(1, 1e5))
    with pytest.raises(BudgetExhaustedError):
        full.reserve("more", GaussianMaxEvent(1, 1e5))
    assert full.can_afford(GaussianMaxEvent(0, 1.0))


def test_a_refusal_says_what_was_asked_for_and_what_the_budget_is() -> None:
    ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    with pytest.raises(BudgetExhaustedError) as refusal:
        ledger.reserve("a", RESERVED)
    assert refusal.value.budget == 1.0
    assert refusal.value.requested == gdp_epsilon(math.sqrt(gdp_mu_squared(RESERVED)), 1e-5)
    assert ledger == PrivacyLedger(epsilon=1.0, delta=1e-5)


def test_next_to_no_noise_is_refused_with_an_infinite_price() -> None:
    with pytest.raises(BudgetExhaustedError) as refusal:
        PrivacyLedger(epsilon=1.0, delta=1e-5).reserve("a", GaussianMaxEvent(1, 1e-9))
    assert refusal.value.requested == math.inf


def test_commit_charges_what_was_spent_and_frees_the_rest() -> None:
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-5).reserve("a", RESERVED)
    held = ledger.charged_epsilon()
    ledger = ledger.commit("a", SPENT, DIGEST)
    assert ledger.charged_epsilon() == gdp_epsilon(math.sqrt(gdp_mu_squared(SPENT)), 1e-5)
    assert ledger.charged_epsilon() < held
    assert ledger.entries == (Entry("a", EntryState.COMMITTED, RESERVED, SPENT, DIGEST),)


def test_cancel_gives_back_and_forfeit_does_not() -> None:
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-5).reserve("a", RESERVED)
    assert ledger.cancel("a").charged_epsilon() == 0
    assert ledger.forfeit("a").charged_epsilon() == ledger.charged_epsilon() > 0
    assert ledger.cancel("a").entries[0].state is EntryState.CANCELLED
    assert ledger.forfeit("a").entries[0].state is EntryState.FORFEITED


def test_open_reservations_count() -> None:
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-5).reserve("a", RESERVED)
    assert not ledger.can_afford(RESERVED)
    with pytest.raises(BudgetExhaustedError):
        ledger.reserve("b", RESERVED)
    assert ledger.cancel("a").can_afford(RESERVED)


@pytest.mark.parametrize("settle", ["commit", "cancel", "forfeit"])
@pytest.mark.parametrize("again", ["commit", "cancel", "forfeit", "reserve"])
def test_a_reservation_is_settled_once_and_its_name_never_used_again(
    settle: str, again: str
) -> None:
    ledger = PrivacyLedger(epsilon=50.0, delta=1e-5).reserve("a", RESERVED)
    settled = taken(ledger, settle, "a", 0, 8.0)
    with pytest.raises(LedgerError):
        taken(settled, again, "a", 0, 8.0)


@pytest.mark.parametrize("step", ["commit", "cancel", "forfeit"])
def test_an_unknown_reservation_is_refused(step: str) -> None:
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-5).reserve("a", RESERVED)
    with pytest.raises(LedgerError):
        taken(ledger, step, "b", 0, 8.0)


@pytest.mark.parametrize(
    ("spent", "digest"),
    [
        pytest.param(ConfidentGaussianMaxEvent(31, 12, 15.0, 8.0), DIGEST, id="more asks"),
        pytest.param(ConfidentGaussianMaxEvent(30, 12, 15.0, 7.0), DIGEST, id="less noise"),
        pytest.param(ConfidentGaussianMaxEvent(30, 12, 15.0, 8.0, 2.0), DIGEST, id="more weight"),
        pytest.param(GaussianMaxEvent(1, 8.0), DIGEST, id="another mechanism"),
        pytest.param(SPENT, DIGEST[:31], id="short digest"),
        pytest.param(SPENT, b"", id="no digest"),
    ],
)
def test_a_commit_that_the_reservation_does_not_cover_is_refused(
    spent: PrivacyEvent, digest: bytes
) -> None:
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-5).reserve("a", RESERVED)
    with pytest.raises(LedgerError):
        ledger.commit("a", spent, digest)
    assert ledger.entries == (Entry("a", EntryState.RESERVED, RESERVED),)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 1e-5), (-1.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 1e-5)],
)
def test_a_budget_out_of_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidParameterError):
        PrivacyLedger(epsilon=epsilon, delta=delta)


def committed_record() -> dict[str, Any]:
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-5).reserve("a", RESERVED)
    record: dict[str, Any] = ledger.commit("a", SPENT, DIGEST).to_record()
    return dict(json.loads(json.dumps(record)))


def test_the_record_that_the_spoiled_ones_come_from_is_read() -> None:
    assert PrivacyLedger.from_record(committed_record()).entries[0].spent == SPENT


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(["ledger"], 2, id="another version"),
        pytest.param(["note"], "x", id="extra part"),
        pytest.param(["epsilon"], 0.1, id="budget below what was spent"),
        pytest.param(["epsilon"], "5", id="budget as text"),
        pytest.param(["delta"], True, id="budget as yes"),
        pytest.param(["entries"], {}, id="entries are no list"),
        pytest.param(["entries", 0], [], id="entry is no record"),
        pytest.param(["entries", 0, "note"], "x", id="extra part of an entry"),
        pytest.param(["entries", 0, "entry_id"], 3, id="name is no text"),
        pytest.param(["entries", 0, "entry_id"], "", id="empty name"),
        pytest.param(["entries", 0, "state"], "refunded", id="unknown state"),
        pytest.param(["entries", 0, "state"], "reserved", id="open, but spent"),
        pytest.param(["entries", 0, "state"], [], id="state is no text"),
        pytest.param(["entries", 0, "spent"], None, id="committed, but nothing spent"),
        pytest.param(["entries", 0, "spent", "asks"], 31, id="spent more than reserved"),
        pytest.param(["entries", 0, "reserved"], 3, id="event is no record"),
        pytest.param(["entries", 0, "release_digest"], None, id="committed without a digest"),
        pytest.param(["entries", 0, "release_digest"], "zz", id="digest is no hexadecimal"),
        pytest.param(["entries", 0, "release_digest"], "00", id="short digest"),
    ],
)
def test_a_spoiled_record_is_refused(path: list[str | int], value: object) -> None:
    record: Any = committed_record()
    spoiled = record
    for key in path[:-1]:
        spoiled = spoiled[key]
    spoiled[path[-1]] = value
    with pytest.raises(LedgerError):
        PrivacyLedger.from_record(record)


def test_a_record_with_a_repeated_name_is_refused() -> None:
    record = committed_record()
    record["entries"] *= 2
    with pytest.raises(LedgerError):
        PrivacyLedger.from_record(record)

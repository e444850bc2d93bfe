"""The ledger: never above its budget, whatever is called in whatever order."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.conversion import epsilon_at_order
from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    LaplaceMaxEvent,
    PrivacyEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
)
from pate_fed.accounting.label_bounds import label_rdp, threshold_bit_rdp
from pate_fed.accounting.privacy_ledger import PrivacyLedger
from pate_fed.accounting.reservations import Entry, EntryState
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    LedgerError,
    PateFedError,
    UnsupportedEventError,
)
from tests.support.charged import charged_epsilon

DIGEST = bytes(range(32))
RESERVED = ConfidentGaussianMaxEvent(asks=30, answers=30, sigma1=15.0, sigma2=8.0)
SPENT = ConfidentGaussianMaxEvent(asks=30, answers=12, sigma1=15.0, sigma2=8.0)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "commit", "commit less", "cancel", "give back", "forfeit"]),
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
    if step == "give back":
        return ledger.give_back(entry_id)
    if step == "forfeit":
        return ledger.forfeit(entry_id)
    reserved = {entry.entry_id: entry.reserved for entry in ledger.entries}.get(entry_id)
    spent = reserved if reserved and step == "commit" else event(answers, sigma)
    return ledger.commit(entry_id, spent, DIGEST)


def held_rdp(ledger: PrivacyLedger) -> float:
    """Add up what counts, independently of the ledger's own sum."""
    held = [
        entry.spent if entry.state == "committed" else entry.reserved
        for entry in ledger.entries
        if entry.state not in ("cancelled", "returned")
    ]
    return math.fsum(public_rdp(charge, ledger.order) for charge in held if charge is not None)


@given(steps=STEPS)
def test_no_sequence_of_calls_exceeds_the_budget(
    steps: list[tuple[str, str, int, float]],
) -> None:
    ledger = PrivacyLedger.for_life(3.0, 1e-5)
    for step in steps:
        before = ledger.to_record()
        try:
            ledger = taken(ledger, *step)
        except PateFedError:
            assert ledger.to_record() == before
        assert epsilon_at_order(held_rdp(ledger), ledger.order, delta=1e-5) <= 3.0
        assert ledger.used_share() <= 1.0


@given(steps=STEPS)
def test_charges_never_fall_below_what_was_released(
    steps: list[tuple[str, str, int, float]],
) -> None:
    ledger = PrivacyLedger.for_life(3.0, 1e-5)
    released = 0.0
    for step in steps:
        try:
            after = taken(ledger, *step)
        except PateFedError:
            continue
        if step[0].startswith("commit"):
            spent = next(entry.spent for entry in after.entries if entry.entry_id == step[1])
            assert spent is not None
            released += public_rdp(spent, after.order)
        ledger = after
        assert held_rdp(ledger) >= released * (1 - 1e-12)


@given(steps=STEPS)
def test_storage_keeps_a_ledger_exactly(steps: list[tuple[str, str, int, float]]) -> None:
    ledger = PrivacyLedger.for_life(3.0, 1e-5)
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
        ledger = PrivacyLedger.for_life(5.0, 1e-5)
        for number, charge in enumerate(order):
            ledger = ledger.reserve(str(number), charge)
        seen.add(ledger.used_share())
    assert len(seen) == 1


def test_many_small_charges_do_not_drift() -> None:
    one = GaussianMaxEvent(1, 100.0)
    entries = tuple(Entry(str(n), EntryState.FORFEITED, one) for n in range(5000))
    ledger = replace(PrivacyLedger.for_life(10.0, 1e-5), entries=entries)
    # Added one by one with plain floats the sum misses by 1e-13.
    assert math.isclose(ledger.used_share(), 5000 * ledger.share_of(one), rel_tol=1e-14)


def test_a_worst_case_of_exactly_the_budget_is_allowed_and_nothing_more() -> None:
    budget = epsilon_at_order(public_rdp(RESERVED, 9.0), 9.0, delta=1e-5) * (1 + 1e-11)
    ledger = PrivacyLedger(budget, 1e-5, order=9.0)
    full = ledger.reserve("all", RESERVED)
    assert full.used_share() == pytest.approx(1.0, rel=1e-9)
    assert not full.can_afford(GaussianMaxEvent(1, 1e4))
    with pytest.raises(BudgetExhaustedError):
        full.reserve("more", GaussianMaxEvent(1, 1e4))
    assert full.can_afford(GaussianMaxEvent(0, 1.0))


def test_a_refusal_says_what_was_asked_for_and_what_the_budget_is() -> None:
    ledger = PrivacyLedger.for_life(1.0, 1e-5)
    with pytest.raises(BudgetExhaustedError) as refusal:
        ledger.reserve("a", RESERVED)
    assert refusal.value.budget == 1.0
    wanted = epsilon_at_order(public_rdp(RESERVED, ledger.order), ledger.order, delta=1e-5)
    assert refusal.value.requested == pytest.approx(wanted, rel=1e-11)
    assert ledger == PrivacyLedger.for_life(1.0, 1e-5)


def test_next_to_no_noise_is_refused_with_an_enormous_price() -> None:
    with pytest.raises(BudgetExhaustedError) as refusal:
        PrivacyLedger.for_life(1.0, 1e-5).reserve("a", GaussianMaxEvent(1, 1e-9))
    assert refusal.value.requested > 1e17


def test_commit_charges_what_was_spent_and_frees_the_rest() -> None:
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve("a", RESERVED)
    held = ledger.used_share()
    ledger = ledger.commit("a", SPENT, DIGEST)
    assert charged_epsilon(ledger) == pytest.approx(
        epsilon_at_order(public_rdp(SPENT, ledger.order), ledger.order, delta=1e-5), rel=1e-11
    )
    assert ledger.used_share() < held
    assert ledger.entries == (Entry("a", EntryState.COMMITTED, RESERVED, SPENT, DIGEST),)


def test_cancel_gives_back_and_forfeit_does_not() -> None:
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve("a", RESERVED)
    assert ledger.cancel("a").used_share() == 0
    assert ledger.forfeit("a").used_share() == ledger.used_share() > 0
    assert ledger.cancel("a").entries[0].state is EntryState.CANCELLED
    assert ledger.forfeit("a").entries[0].state is EntryState.FORFEITED


@pytest.mark.parametrize(
    "ledger",
    [
        pytest.param(PrivacyLedger(5.0, 1e-5, order=20.0), id="at another order"),
        pytest.param(PrivacyLedger.for_life(5.0, 1e-5), id="for life"),
        pytest.param(PrivacyLedger.for_life(0.5, 1e-6, additive_delta=1e-7), id="delta set aside"),
    ],
)
def test_parts_of_a_budget_add_up_to_one(ledger: PrivacyLedger) -> None:
    """Held against what the ledger itself accepts, one event after another."""
    one = event(1, 40.0)
    fits, events = ledger, 0
    while fits.can_afford(one):
        fits, events = fits.reserve(str(events), one), events + 1
    assert events > 5
    part = ledger.share_of(one)
    assert ledger.share_of() == 0
    full, over = (ledger.share_of(*[one] * number) for number in (events, events + 1))
    assert full == pytest.approx(events * part)
    assert full <= 1 < over * (1 + 1e-9)


def test_a_charge_that_is_given_back_is_told_from_one_that_is_cancelled() -> None:
    ledger = PrivacyLedger.for_life(50.0, 1e-5).reserve("a", RESERVED).reserve("b", RESERVED)
    ledger = ledger.give_back("a").cancel("b")
    assert ledger.used_share() == 0
    assert ledger.events_of(EntryState.RETURNED) == [RESERVED]
    assert PrivacyLedger.from_record(ledger.to_record()) == ledger
    with pytest.raises(LedgerError):
        ledger.forfeit("a")


def test_open_reservations_count() -> None:
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve("a", RESERVED)
    assert not ledger.can_afford(RESERVED)
    with pytest.raises(BudgetExhaustedError):
        ledger.reserve("b", RESERVED)
    assert ledger.cancel("a").can_afford(RESERVED)


@pytest.mark.parametrize("settle", ["commit", "cancel", "forfeit"])
@pytest.mark.parametrize("again", ["commit", "cancel", "forfeit", "reserve"])
def test_a_reservation_is_settled_once_and_its_name_never_used_again(
    settle: str, again: str
) -> None:
    ledger = PrivacyLedger.for_life(50.0, 1e-5).reserve("a", RESERVED)
    settled = taken(ledger, settle, "a", 0, 8.0)
    with pytest.raises(LedgerError):
        taken(settled, again, "a", 0, 8.0)


@pytest.mark.parametrize("step", ["commit", "cancel", "forfeit"])
def test_an_unknown_reservation_is_refused(step: str) -> None:
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve("a", RESERVED)
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
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve("a", RESERVED)
    with pytest.raises(LedgerError):
        ledger.commit("a", spent, digest)
    assert ledger.entries == (Entry("a", EntryState.RESERVED, RESERVED),)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 1e-5), (-1.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 1e-5)],
)
def test_a_budget_out_of_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidParameterError):
        PrivacyLedger(epsilon=epsilon, delta=delta, order=9.0)


def committed_record() -> dict[str, Any]:
    ledger = PrivacyLedger.for_life(5.0, 1e-5).reserve("a", RESERVED)
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
        pytest.param(["entries", 0, "release_digest"], 5, id="digest is a number"),
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


# At one Renyi order ----------------------------------------------------------------------------

MIXED = [
    GaussianMaxEvent(3, 40.0),
    ConfidentGaussianMaxEvent(5, 2, 50.0, 40.0),
    LaplaceMaxEvent(4, 0.01),
    DistributedGaussianMaxEvent(3, 40.0, 7),
    StableGaussianMaxEvent(3, 40.0, 1e-8),
    StableLaplaceMaxEvent(2, 0.02, 2e-8),
]
OWN_DELTA = 3 * 1e-8 + 2 * 2e-8

SIGMAS, GAMMAS = st.sampled_from([20.0, 40.0, 150.0]), st.sampled_from([1e-3, 0.01, 0.03])
events_at_an_order = st.one_of(
    st.builds(GaussianMaxEvent, st.integers(0, 9), SIGMAS),
    st.builds(
        lambda asks, sigma: ConfidentGaussianMaxEvent(asks, asks // 2, sigma, sigma),
        st.integers(0, 9),
        SIGMAS,
    ),
    st.builds(LaplaceMaxEvent, st.integers(0, 9), GAMMAS),
    st.builds(lambda asks: DistributedGaussianMaxEvent(asks, 40.0, 7), st.integers(0, 9)),
    st.builds(StableGaussianMaxEvent, st.integers(0, 9), SIGMAS, st.just(1e-8)),
    st.builds(StableLaplaceMaxEvent, st.integers(0, 9), GAMMAS, st.just(1e-8)),
)


def public_rdp(charge: PrivacyEvent, order: float) -> float:
    """Return what an event costs whoever sees labels, by another way than the ledger's."""
    if isinstance(charge, GaussianMaxEvent):
        return charge.asks * float(label_rdp([order], sigma=charge.sigma)[0])
    if isinstance(charge, ConfidentGaussianMaxEvent):
        checks = charge.asks * float(threshold_bit_rdp([order], sigma=charge.sigma1)[0])
        return checks + charge.answers * float(label_rdp([order], sigma=charge.sigma2)[0])
    accountant = RenyiAccountant()
    accountant.compose(charge)
    return float(accountant.get_rdp(np.array([order]))[0])


def exact_epsilon_at(charges: list[PrivacyEvent], order: float, delta: float) -> mpmath.mpf:
    """Add up at one order and convert by CKS, with 40 digits."""
    with mpmath.workdps(40):
        rdp = sum((mpmath.mpf(public_rdp(charge, order)) for charge in charges), mpmath.mpf(0))
        if rdp == 0:  # both worlds look alike
            return rdp
        at = mpmath.mpf(order)
        log_both = mpmath.log(mpmath.mpf(delta)) + mpmath.log(at)
        return rdp + mpmath.log1p(-1 / at) - log_both / (at - 1)


class TestAtAnOrder:
    def ledger(self, epsilon: float = 50.0, **changed: Any) -> PrivacyLedger:
        return PrivacyLedger(
            epsilon, 1e-5, **{"order": 9.0, "additive_delta": OWN_DELTA * (1 + 1e-9), **changed}
        )

    def mixed(self) -> PrivacyLedger:
        ledger = self.ledger()
        for number, charge in enumerate(MIXED):
            ledger = ledger.reserve(str(number), charge)
        return ledger

    def test_storage_keeps_it_exactly(self) -> None:
        ledger = self.mixed().cancel("0").forfeit("1").commit("2", LaplaceMaxEvent(1, 0.01), DIGEST)
        record = json.loads(json.dumps(ledger.to_record()))
        assert PrivacyLedger.from_record(record) == ledger
        assert record["order"] == 9.0
        assert record["additive_delta"] == ledger.additive_delta

    def test_events_of_every_kind_add_up(self) -> None:
        ledger = self.mixed()
        delta = 1e-5 - ledger.additive_delta
        expected = exact_epsilon_at(list(MIXED), 9.0, delta)
        charged = charged_epsilon(ledger)
        assert expected <= charged <= expected * (1 + mpmath.mpf("1e-11"))
        # At most what the accountant adds up, whose Gaussian curves are for everybody.
        accountant = RenyiAccountant()
        accountant.compose(*MIXED)
        rdp = float(accountant.get_rdp(np.array([9.0]))[0])
        assert sum(public_rdp(charge, 9.0) for charge in MIXED) <= rdp

    @settings(max_examples=40, deadline=None)
    @given(
        charges=st.lists(events_at_an_order, max_size=8),
        order=st.sampled_from([1.5, 4.0, 9.0, 17.38, 60.0]),
        epsilon=st.floats(0.05, 3.0),
        states=st.lists(st.sampled_from(list(EntryState)), min_size=8, max_size=8),
    )
    def test_no_list_of_events_exceeds_the_budget(
        self,
        charges: list[PrivacyEvent],
        order: float,
        epsilon: float,
        states: list[EntryState],
    ) -> None:
        counted: list[PrivacyEvent] = []
        ledger = self.ledger(epsilon, order=order, additive_delta=4e-6)
        for number, (charge, state) in enumerate(zip(charges, states, strict=False)):
            name = str(number)
            wanted = exact_epsilon_at([*counted, charge], order, 6e-6)
            if not ledger.can_afford(charge):
                assert wanted > epsilon * (1 - mpmath.mpf("1e-11"))
                with pytest.raises(BudgetExhaustedError):
                    ledger.reserve(name, charge)
                continue
            assert wanted <= epsilon
            ledger = ledger.reserve(name, charge)
            if state is EntryState.CANCELLED:
                ledger = ledger.cancel(name)
                continue
            counted.append(charge)
            if state is EntryState.FORFEITED:
                ledger = ledger.forfeit(name)
            if state is EntryState.COMMITTED:
                ledger = ledger.commit(name, charge, DIGEST)
        assert exact_epsilon_at(counted, order, 6e-6) <= epsilon
        assert math.isclose(
            charged_epsilon(ledger),
            max(0.0, float(exact_epsilon_at(counted, order, 6e-6))),
            rel_tol=1e-11,
            abs_tol=1e-13,
        )

    def test_it_refuses_at_the_edge(self) -> None:
        charge = MIXED[1]
        exact = float(exact_epsilon_at([charge], 9.0, 1e-5))
        enough = PrivacyLedger(exact * (1 + 1e-11), 1e-5, order=9.0)
        assert enough.reserve("a", charge).used_share() == pytest.approx(1.0, rel=1e-9)
        for epsilon in (exact, exact * (1 - 1e-9)):
            short = PrivacyLedger(epsilon, 1e-5, order=9.0)
            with pytest.raises(BudgetExhaustedError) as refusal:
                short.reserve("a", charge)
            assert refusal.value.requested > epsilon
            assert refusal.value.budget == epsilon

    def test_tests_of_stability_keep_to_the_delta_that_was_set_aside(self) -> None:
        charge = StableGaussianMaxEvent(3, 40.0, 1e-8)
        enough = self.ledger(additive_delta=6.5e-8)
        twice = enough.reserve("a", charge).reserve("b", charge)
        with pytest.raises(BudgetExhaustedError) as refusal:
            twice.reserve("c", charge)
        assert refusal.value.requested == math.inf
        # What is set aside is not there for the conversion, used or not.
        gaussian = GaussianMaxEvent(3, 40.0)
        none = charged_epsilon(PrivacyLedger(50.0, 1e-5, order=9.0).reserve("a", gaussian))
        some = charged_epsilon(self.ledger(additive_delta=9e-6).reserve("a", gaussian))
        assert some == pytest.approx(float(exact_epsilon_at([gaussian], 9.0, 1e-6)), rel=1e-9)
        assert some > none

    def test_an_event_that_has_no_cost_that_adds_up_is_refused(self) -> None:
        @dataclass(frozen=True, slots=True)
        class Unheard(PrivacyEvent):
            """An event that no ledger has heard of."""

        calls = (self.ledger().can_afford, lambda event: self.ledger().reserve("a", event))
        for call in calls:
            with pytest.raises(UnsupportedEventError):
                call(Unheard())

    def test_what_protects_nobody_fits_no_budget(self) -> None:
        with pytest.raises(BudgetExhaustedError) as refusal:
            self.ledger(1e6).reserve("a", ImmutableMaxEvent(1))
        assert refusal.value.requested == math.inf

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"order": 1.0}, id="order 1"),
            pytest.param({"order": 0.5}, id="order below 1"),
            pytest.param({"order": math.nan}, id="order no number"),
            pytest.param({"order": math.inf}, id="endless order"),
            pytest.param({"additive_delta": 1e-5}, id="nothing left of delta"),
            pytest.param({"additive_delta": -1e-9}, id="negative delta"),
            pytest.param({"additive_delta": math.nan}, id="delta no number"),
        ],
    )
    def test_what_is_fixed_beforehand_must_be_in_range(self, changed: dict[str, float]) -> None:
        with pytest.raises(InvalidParameterError):
            self.ledger(**changed)

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            pytest.param(["order"], "9", id="order as text"),
            pytest.param(["order"], True, id="order as yes"),
            pytest.param(["order"], 300.0, id="an order at which entries cost more"),
            pytest.param(["order"], None, id="no order"),
            pytest.param(["additive_delta"], 0.0, id="less delta than entries need"),
            pytest.param(["additive_delta"], None, id="delta as nothing"),
        ],
    )
    def test_spoiled_records_of_it_are_refused(self, path: list[str], value: object) -> None:
        ledger = self.ledger(1.6)
        for number, charge in enumerate(MIXED):
            ledger = ledger.reserve(str(number), charge)
        record: dict[str, Any] = json.loads(json.dumps(ledger.to_record()))
        record[path[0]] = value
        with pytest.raises((LedgerError, UnsupportedEventError)):
            PrivacyLedger.from_record(record)

"""One lying hospital, and what it can cost the others: batches without a label, set up again.

The liar has its true keys and does what it likes. The coordinator and all other hospitals are
honest. What a liar and a lying coordinator get together, `test_lying_schedules` has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.runs.queue import Run, RunState
from coordinator.runs.transport import Silence
from coordinator.runs.worker import MOST_LOST
from party.site.policy import SMALL_BATCH
from party.storage import LedgerStore
from pate_fed.accounting import EntryState, PrivacyLedger
from protocols import wire
from protocols.errors import KeysGoneError
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.messages import Inquiry, MaskedVector, Plan, Refusal
from tests.support.deployed import NAMES
from tests.support.mortal_hospital import MortalHospital
from tests.support.process_federation import process_federation
from tests.support.worked import QUERIES, Worked

pytestmark = pytest.mark.slow
EPSILON, DELTA = 5.0, 1e-5
LIAR = 2
LOST = (EntryState.RESERVED, EntryState.FORFEITED)

Frames = list[bytes]
Lie = Callable[[SigningIdentity, list[Message], Frames], Frames | None]
"""Given the liar's keys, the messages that came and the honest answer: what is sent instead."""


def y_in(frames: Frames) -> MaskedVector | None:
    return next((m for f in frames if isinstance(m := wire.decode(f).message, MaskedVector)), None)


def instead_of_y(make: Callable[[SigningIdentity, MaskedVector], Frames | None]) -> Lie:
    """A lie told in the place of every y."""

    def lie(identity: SigningIdentity, _: list[Message], frames: Frames) -> Frames | None:
        y = y_in(frames)
        return frames if y is None else make(identity, y)

    return lie


def of_length(change: Callable[[int], int]) -> Lie:
    """Send a y of another length."""

    def make(identity: SigningIdentity, y: MaskedVector) -> Frames:
        body = bytes(change(len(y.body)))
        return [wire.sign(MaskedVector(y.plan_digest, y.sender, body), identity).frame]

    return instead_of_y(make)


def other_y(identity: SigningIdentity, y: MaskedVector) -> bytes:
    """A y whose first row is off by one."""
    words = np.frombuffer(bytes(y.body), "<u4").copy()
    words[0] += 1
    return wire.sign(MaskedVector(y.plan_digest, y.sender, words.tobytes()), identity).frame


def lose_keys(identity: SigningIdentity, came: list[Message], frames: Frames) -> Frames:
    """Say that the keys are gone, whenever a batch is near."""
    for message in came:
        if isinstance(message, Inquiry | Plan):
            subject = wire.digest_of(message)
            refusal = Refusal(subject, identity.fingerprint, KeysGoneError.code)
            return [wire.sign(refusal, identity).frame]
    return frames


@dataclass(frozen=True)
class Case:
    """A lie, and what becomes of the others' charges.

    Attributes:
        lie: It.
        code: What the operator reads beside the liar's name.
        states: Of the others' charges.
        setups: How often the run is set up.
    """

    lie: Lie
    code: str
    states: tuple[EntryState, ...]
    setups: int = 1


RETURNED, FORFEITED = (EntryState.RETURNED,), (EntryState.FORFEITED,)
CASES = [
    pytest.param(Case(of_length(lambda _: 4), "PF-224", RETURNED), id="a short y"),
    pytest.param(Case(of_length(lambda n: n + 4), "PF-224", RETURNED), id="a word more"),
    pytest.param(Case(of_length(lambda n: n + 3), "PF-224", RETURNED), id="no whole words"),
    pytest.param(Case(of_length(lambda n: n + 2**21), "PF-224", RETURNED), id="a very long y"),
    pytest.param(
        Case(instead_of_y(lambda who, y: [other_y(who, y)]), "PF-419", FORFEITED),
        id="a wrong row",
    ),
    pytest.param(
        Case(
            instead_of_y(lambda who, y: [wire.sign(y, who).frame, other_y(who, y)]),
            "PF-223",
            FORFEITED,
        ),
        id="two y's",
    ),
    pytest.param(Case(instead_of_y(lambda who, y: [b"\0"]), "PF-221", FORFEITED), id="no message"),
    pytest.param(Case(lose_keys, "PF-242", (), MOST_LOST), id="keys gone"),
]


def federation_of(folder: Path, *, epsilon: float = EPSILON) -> Worked:
    """Three hospitals with a budget for life that one run can use up."""
    made = Worked(folder, approved=False)
    for one in made.hospitals.values():
        one.start_over(delta_for_tests=0.0)
        budget = PrivacyLedger.for_life(epsilon, DELTA)
        one.ledger = LedgerStore(one.journal._database, budget=budget)
    made.approve_pool(True)
    return made


def let_lie(federation: Worked, lie: Lie, *, place: int = LIAR) -> None:
    """Change what a hospital's node answers, on its way."""
    hospital = federation.hospitals[place]
    honest = hospital.receive

    def receive(packet: bytes) -> Any:
        answer = honest(packet)
        came = [wire.decode(f).message for f in wire.unpack(packet, max_bytes=2**30)]
        frames = lie(hospital.site.identity, came, wire.unpack(answer, max_bytes=2**30))
        return Silence("no answer") if frames is None else wire.pack(frames)

    hospital.receive = receive  # type: ignore[method-assign]


def ask(federation: Worked, name: str = "first", **changed: Any) -> Run:
    """Run a run that costs all of the budget for life, a batch a twelfth of it."""
    chosen = {"sigma2": None, "epsilon": 0.97 * EPSILON, "batch_size": 1, "delta": DELTA}
    federation.ask(name, **{**chosen, **changed})
    return federation.work(name)


def states(federation: Worked, place: int) -> list[EntryState]:
    return [entry.state for entry in federation.hospitals[place].ledger.load().entries]


def lost_share(federation: Worked, place: int) -> float:
    """The part of a hospital's budget for life that is gone without a label."""
    ledger = federation.hospitals[place].ledger.load()
    return float(ledger.share_of(*ledger.events_of(*LOST)))


def setups(federation: Worked, name: str = "first") -> int:
    attempt = federation.coordinator.queue.take_up(name)
    return len([*attempt.earlier(), attempt]) - (not attempt.run_id())


def test_the_run_uses_up_the_budget_without_a_liar(tmp_path: Path) -> None:
    """Otherwise the tests below would bound nothing."""
    federation = federation_of(tmp_path)
    run = ask(federation)
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)
    ledger = federation.hospitals[0].ledger.load()
    assert 0.9 < ledger.used_share() <= 1
    assert ledger.share_of(ledger.entries[0].reserved) == pytest.approx(1 / 12, rel=0.1)
    federation.coordinator.close()


@pytest.mark.parametrize("case", CASES)
def test_a_hospital_that_spoils_is_named_and_costs_one_small_batch_at_most(
    tmp_path: Path, case: Case
) -> None:
    federation = federation_of(tmp_path)
    let_lie(federation, case.lie)
    run = ask(federation)
    liar = federation.hospitals[LIAR].site.identity.fingerprint.hex()[:16]
    assert run.state is RunState.FAILED  # there is no label
    assert f"{NAMES[LIAR]} (fingerprint {liar})" in run.reason
    assert run.reason.count("(fingerprint") == 1
    assert case.code in run.reason
    assert setups(federation) == case.setups
    for place in (0, 1):
        assert tuple(states(federation, place)) == case.states
        assert lost_share(federation, place) <= SMALL_BATCH
        assert (lost_share(federation, place) > 0) == (EntryState.FORFEITED in case.states)
    federation.coordinator.close()


@pytest.mark.parametrize("then_sets_up", [False, True], ids=["one setup", "set up anew"])
def test_silence_after_a_yes_costs_one_small_batch_over_all_setups(
    tmp_path: Path, then_sets_up: bool
) -> None:
    """Nobody can prove silence, so nobody is named. Each hospital bounds what it loses itself."""
    federation = federation_of(tmp_path)
    told = {"silence": 0}
    lost = dict.fromkeys((0, 1, LIAR), then_sets_up)

    def lie(identity: SigningIdentity, came: list[Message], frames: Frames) -> Frames | None:
        if y_in(frames) is not None:
            told["silence"] += 1
            return None
        return after_it(LIAR, identity, came, frames)

    def after_it(
        place: int, identity: SigningIdentity, came: list[Message], frames: Frames
    ) -> Frames | None:
        """Before the second batch the liar has no keys, and no answer of the others arrives."""
        is_asked = any(isinstance(message, Inquiry) for message in came)
        if not (is_asked and told["silence"] and lost[place]):
            return frames
        lost[place] = False
        return lose_keys(identity, came, frames) if place == LIAR else None

    let_lie(federation, lie)
    for place in (0, 1):
        let_lie(federation, partial(after_it, place), place=place)
    run = ask(federation, patience_s=0.0)
    assert run.state is RunState.FAILED
    assert "PF-320" in run.reason
    assert (told["silence"], setups(federation)) == (1, 1 + then_sets_up)
    for place in (0, 1):
        assert states(federation, place) == [EntryState.FORFEITED]
        assert 0 < lost_share(federation, place) <= SMALL_BATCH
    federation.coordinator.close()


def test_small_batches_may_be_lost_until_they_are_a_small_part_together(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, epsilon=40.0)  # each batch is a hundredth of it
    let_lie(federation, instead_of_y(lambda who, y: None))
    run = ask(federation, patience_s=0.0)
    part = lost_share(federation, 0)
    assert run.progress.void == 2  # then the run is over at any rate
    assert 0 < part <= SMALL_BATCH
    federation.coordinator.close()


def test_a_liar_that_spoils_run_after_run_costs_each_run_one_small_batch(tmp_path: Path) -> None:
    """What a short y voids comes back, but not for ever: the first time, then within a tenth."""
    federation = federation_of(tmp_path)
    let_lie(federation, of_length(lambda _: 4))
    for number in range(3):
        run = ask(federation, f"run-{number}")
        assert NAMES[LIAR] in run.reason
        assert run.progress.void == 1
    for place in (0, 1):
        assert states(federation, place) == [*RETURNED, *FORFEITED, *FORFEITED]
        assert lost_share(federation, place) <= 2 * SMALL_BATCH
    federation.coordinator.close()


# Over real processes --------------------------------------------------------------------------


def lie_about_length() -> None:
    """Make a hospital's process send a short y for each plan, then say that its keys are gone."""
    honest = MortalHospital.receive
    has_lied: list[MaskedVector] = []

    def receive(self: MortalHospital, packet: bytes, federation: str | None = None) -> bytes:
        answer = honest(self, packet, federation)
        identity = self._site.identity
        came = [wire.decode(f).message for f in wire.unpack(packet, max_bytes=2**30)]
        frames = wire.unpack(answer, max_bytes=2**30)
        if has_lied and any(isinstance(message, Inquiry) for message in came):
            has_lied.clear()
            return wire.pack(lose_keys(identity, came, frames))
        y = y_in(frames)
        if y is None:
            return answer
        has_lied.append(y)
        return wire.pack(of_length(lambda _: 4)(identity, came, frames) or [])

    MortalHospital.receive = receive  # type: ignore[method-assign]


def test_over_real_processes_a_liar_burns_nothing_and_is_named(tmp_path: Path) -> None:
    with process_federation(tmp_path, "additive") as federation:
        federation.make_task("first", seed=1)
        federation.ask("first")
        federation.start_hospital(0)
        federation.start_hospital(1)
        federation.start_hospital(2, change=lie_about_length)
        assert not federation.work()
        seen = federation.look()
        [run] = seen.runs
        assert run.run.state is RunState.FAILED
        liar = federation.hospitals.sites[2].identity.fingerprint.hex()[:16]
        assert "West" in run.run.reason
        assert liar in run.run.reason
        assert "PF-224" in run.run.reason
        assert run.run.progress.void == 1
        for one in seen.hospitals[:2]:
            assert [entry.state for entry in one.ledger.entries] == [EntryState.RETURNED]
            assert one.ledger.used_share() == 0

"""Random schedules of both aggregators: late, repeated, lying, killed. One coin, one opening."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protocols import wire
from protocols.errors import ProtocolError
from protocols.fields import Message
from protocols.verified import CheckState
from protocols.vote_messages import SumShare, VoteAnswers
from tests.support.checking import SIGMA, Check, CrashError

ENDS = st.integers(0, 1)
HOSPITALS = st.integers(0, 3)
LEAST = 3


def another(value: Any, chance: int) -> Any:
    """Something like a field's value, but another."""
    if isinstance(value, tuple):
        place = chance % len(value)
        kinds = [
            value[:place] + value[place + 1 :],
            (*value, value[place]),
            (*value[:place], another(value[place], chance), *value[place + 1 :]),
            (*value[:place], b"", *value[place + 1 :]),
            value[::-1],
        ]
        return kinds[chance % len(kinds)]
    assert isinstance(value, bytes)
    if not value:
        return b"x"
    place = chance % len(value)
    return value[:place] + bytes([value[place] ^ (1 + chance % 255)]) + value[place + 1 :]


class ScheduleMachine(RuleBasedStateMachine):
    """A world of one batch: what each end was told, and what left it."""

    @initialize(lies=st.lists(st.booleans(), min_size=2, max_size=4), calls=st.integers(0, 4))
    def begin(self, lies: list[bool], calls: int) -> None:
        """Some hospitals report; both ends are already as far as some calls lead."""
        self.check = Check(3, 25, 40, 3, least=LEAST)
        self.reports: dict[int, bytes] = {}
        self.liars: set[int] = set()
        self.left: tuple[list[bytes], list[bytes]] = ([], [])
        self.is_honest = True
        for place, one_lies in enumerate(lies):
            self.report(place, one_lies)
        if calls:
            self.close()
        for _ in range(calls):
            self.call()

    def act(self, place: int, call: Any) -> None:
        """Let an end act: it answers, or has a coded error, or is killed and begins again."""
        try:
            frame = call(self.check.machine(place))
        except ProtocolError:
            return
        except CrashError:
            self.check.start(place)
            return
        if frame:
            self.left[place].append(frame)

    @rule(place=HOSPITALS, lies=st.booleans())
    def report(self, place: int, lies: bool) -> None:
        if place not in self.reports:
            make = self.check.lying_report if lies else self.check.report
            self.reports[place] = make(place)
            if lies:
                self.liars.add(place)
        self.act(0, lambda end: end.take_report(self.reports[place]))

    @rule(place=HOSPITALS)
    def second_report(self, place: int) -> None:
        if place in self.reports:
            self.act(0, lambda end: end.take_report(self.check.report(place)))

    @rule()
    def close(self) -> None:
        self.act(0, lambda end: end.close())

    @rule()
    def call(self) -> None:
        """The coordinator's last request, and the tally's answer."""
        if self.left[0]:
            self.act(1, lambda end: end.receive(self.left[0][-1]))
        if self.left[1]:
            self.act(0, lambda end: end.receive(self.left[1][-1]))

    @rule(place=ENDS, chance=st.integers(0, 2**16))
    def deliver(self, place: int, chance: int) -> None:
        """Anything that once left the other end, again or late."""
        frames = self.left[1 - place]
        if frames:
            self.act(place, lambda end: end.receive(frames[chance % len(frames)]))

    @rule(place=ENDS)
    def restart(self, place: int) -> None:
        self.check.start(place)
        self.act(place, lambda end: end.resend())

    @rule(place=ENDS, when=st.sampled_from(["crashes_before", "crashes_after"]))
    def kill_at_the_next_step(self, place: int, when: str) -> None:
        journal = self.check.journals[place]
        setattr(journal, when, len(journal.records))

    @precondition(lambda self: any(self.left))
    @rule(place=ENDS, chance=st.integers(0, 2**16), which=st.integers(0, 7), spares=st.booleans())
    def deviate(self, place: int, chance: int, which: int, spares: bool) -> None:
        """The other end says something else under its true signature."""
        frames = self.left[1 - place]
        if not frames or spares:  # rarely, so that batches also end well
            return
        message: Message = wire.decode(frames[-1]).message
        names = [each.name for each in fields(message)]  # type: ignore[arg-type]
        name = names[which % len(names)]
        with suppress(ProtocolError):
            message = replace(message, **{name: another(getattr(message, name), chance)})  # type: ignore[type-var]
            self.is_honest = False
            self.act(place, lambda end: end.receive(self.check.signed(1 - place, message)))

    # What must hold ---------------------------------------------------------------------------

    @invariant()
    def each_end_says_one_thing_of_a_kind(self) -> None:
        for frames in getattr(self, "left", ((), ())):
            kinds: dict[type[Message], bytes] = {}
            for frame in frames:
                assert kinds.setdefault(type(wire.decode(frame).message), frame) == frame

    @invariant()
    def what_left_is_noted_and_what_opens_is_charged_once(self) -> None:
        for place, frames in enumerate(getattr(self, "left", ((), ()))):
            journal = self.check.journals[place]
            noted = {values[-1] for word, values in journal.records if word == "exchange"}
            assert set(frames) <= noted
            has_shared = any(isinstance(wire.decode(frame).message, SumShare) for frame in noted
                             if frame)  # fmt: skip
            assert len(journal.charged) == has_shared
            assert [word for word, _ in journal.records].count("secrets") <= 1

    @invariant()
    def a_share_leaves_only_for_enough_hospitals_that_both_accepted(self) -> None:
        for place, frames in enumerate(getattr(self, "left", ((), ()))):
            if any(isinstance(wire.decode(frame).message, SumShare) for frame in frames):
                decision = self.check.machine(place).decision
                assert decision is not None
                assert len(decision.accepted) >= LEAST
                assert self.check.journals[place].charged == [decision.accepted]

    @invariant()
    def answers_depend_on_own_parts_and_the_coin_alone(self) -> None:
        for place, frames in enumerate(getattr(self, "left", ((), ()))):
            for frame in frames:
                message = wire.decode(frame).message
                if isinstance(message, VoteAnswers) and place == 1:
                    machine = self.check.tally
                    expected = machine._side.answers(machine._history.listed, machine._coin)
                    assert message == expected

    @invariant()
    def honest_ends_open_the_honest_hospitals_sum(self) -> None:
        if not getattr(self, "is_honest", False):
            return
        for place in range(2):
            machine = self.check.machine(place)
            assert machine.state is not CheckState.STOPPED or len(self.honest()) < LEAST
            if machine.opened is not None:
                names = [one.fingerprint for one in self.check.hospitals]
                assert machine.decision is not None
                accepted = [names.index(one) for one in machine.decision.accepted]
                assert not set(accepted) & self.liars
                assert abs(machine.opened - self.check.sum_of(*accepted)).max() < 20 * SIGMA

    def honest(self) -> set[int]:
        """Honest hospitals of the list."""
        names = [one.fingerprint for one in self.check.hospitals]
        listed = self.check.coordinator._history.reports
        return {place for place in self.reports if names[place] in listed} - self.liars


ScheduleMachine.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSchedules = ScheduleMachine.TestCase


@pytest.mark.parametrize(
    "number",
    [pytest.param(120, marks=pytest.mark.slow), pytest.param(1200, marks=pytest.mark.exhaustive)],
)
def test_more_schedules(number: int) -> None:
    run_state_machine_as_test(
        ScheduleMachine, settings=settings(ScheduleMachine.TestCase.settings, max_examples=number)
    )

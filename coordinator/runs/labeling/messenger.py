"""Frames to the parties of a run, and each one's result: heard, silent, refused, or broken.

A party that misses a settlement gets it with the next message: all histories must agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from coordinator.errors import PartyFailedError, PartyRefusedError
from coordinator.runs.labeling.job import RunContext
from coordinator.runs.stages import BatchStage
from coordinator.runs.transport import Silence
from protocols import wire
from protocols.errors import (
    LateMessageError,
    ProtocolError,
    RefusedError,
    UnexpectedMessageError,
)
from protocols.messages import Readiness, Refusal

SETUP_ANSWER_BYTES = 5 * 2**20
"""Largest answer while a run is set up: a bundle of envelopes."""

_MOST_TOLD = wire.MAX_PACKET_FRAMES - 3
"""Settlements that fit into a packet with the frames behind them."""

_NOTHING = "no answer"
"""The reason for an empty packet."""

CANNOT_STORE = "PF-326"
"""Code of a hospital whose disk is full: it can answer once there is room."""

UP_TO_PEOPLE = ("PF-311", "PF-314", "PF-322", "PF-323", "PF-325", "PF-328", "PF-329", CANNOT_STORE)
"""Codes of a hospital whose people have to act first: check peers, approve the pool or the run, end
a pause, decide on other pending runs, decide otherwise on a rejected one, make room on a disk.
"""

_ABSENT = Silence("not reached")
_CODE = re.compile(r"PF-\d{3}")

Failures = dict[bytes, PartyFailedError]
"""The failures by seat; those of one exchange in seat order."""


class SilenceError(Exception):
    """No packet came; `code` gives the reason."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


class Messenger:
    """Carries a run's frames to its parties, and gives their answers to the round.

    Attributes:
        words: Of the vectors that answers may hold now.
    """

    def __init__(self, context: RunContext) -> None:
        self._transport = context.job.transport
        self._round = context.round
        self._roster = context.roster
        self._on_stage = context.job.on_stage
        self.words = 1
        self._unheard = context.round.unheard()

    def exchange(self, frames: Mapping[bytes, list[bytes]]) -> Failures:
        """Send frames by party and take all answers; return the failures."""

        def take(answer: list[bytes], seat: bytes) -> str:
            for frame in answer:
                with suppress(LateMessageError):  # under way for too long: refused, and no fault
                    self._round.receive(frame, peer=seat)
            return _NOTHING if seat in self._round.missing else ""

        return self._carry(frames, take)

    def _carry(
        self, frames: Mapping[bytes, list[bytes]], take: Callable[[list[bytes], bytes], str]
    ) -> Failures:
        """Send frames by party; `take` tells why an answer counts as silence, if it does."""
        nodes = self._roster.nodes
        packets = {nodes[seat]: wire.pack(items) for seat, items in frames.items() if seat in nodes}
        answers = self._transport.exchange(packets) if packets else {}
        failures: Failures = {}
        for seat in frames:
            try:
                silence = take(self.read(answers.get(nodes.get(seat, -1), _ABSENT)), seat)
                if silence:
                    failures[seat] = self._silent(seat, silence)
            except ProtocolError as error:
                failures[seat] = self._failed(seat, error)
            except SilenceError as error:
                failures[seat] = self._silent(seat, error.code)
            self._on_stage(BatchStage.HEARD)
        return failures

    def tell(self, frame: bytes, *, only: Collection[bytes] | None = None) -> Failures:
        """Send a frame to all, or to some, behind the settlements that each may have missed.

        A party that missed more than a packet holds gets a part of it, and counts as silent until
        it has all. A party that missed a batch needs all its settlements; a repeated one changes
        nothing.
        """
        frames = {
            seat: told[:_MOST_TOLD] if len(told) > _MOST_TOLD else [*told, frame]
            for seat, told in self._unheard.items()
            if only is None or seat in only
        }
        failures = self.exchange(frames)
        for seat, sent in frames.items():
            # Part of its missed settlements is answered by nothing at all.
            heard = _NOTHING if sent[-1] is not frame else None
            cause = failures[seat].cause if seat in failures else None
            if cause == heard:
                del self._unheard[seat][: len(sent)]
        return failures

    def hand_over(self, settlements: Mapping[bytes, Sequence[bytes]]) -> Failures:
        """Send settlements of earlier setups by party, in parts; return who may lack them.

        A party answers them by an empty packet, or says that it could not store one.
        """

        def take(answer: list[bytes], _: bytes) -> str:
            said = [wire.decode(frame).message for frame in answer]
            is_full = any(isinstance(one, Refusal) and one.reason == CANNOT_STORE for one in said)
            return CANNOT_STORE if is_full else ""

        rest = {seat: list(frames) for seat, frames in settlements.items() if frames}
        failures: Failures = {}
        while rest and not failures:
            failures = self._carry({seat: told[:_MOST_TOLD] for seat, told in rest.items()}, take)
            rest = {seat: told[_MOST_TOLD:] for seat, told in rest.items() if told[_MOST_TOLD:]}
        return failures

    def inquire(self, inquiry: bytes) -> dict[bytes, Readiness | Refusal]:
        """Ask all parties whether they would serve a plan, behind the settlements they missed.

        It enters nobody's history, and nothing is charged. Returns each party's signed answer, by
        seat, without those that gave none.
        """
        seats = {self._roster.nodes[seat]: seat for seat in self._roster.nodes}
        told = {seat: self._unheard[seat][:_MOST_TOLD] for seat in seats.values()}
        packets = {
            node: wire.pack(
                [*told[seat], inquiry] if told[seat] == self._unheard[seat] else told[seat]
            )
            for node, seat in seats.items()
        }
        said: dict[bytes, Readiness | Refusal] = {}
        for node, answer in (self._transport.exchange(packets) if packets else {}).items():
            seat = seats[node]
            with suppress(ProtocolError, SilenceError):
                frames = self.read(answer)
                for frame in frames:
                    sender, message = self._round.inquiry.read(frame, inquiry=inquiry)
                    if sender == seat:
                        said[seat] = message
                if not frames or isinstance(said.get(seat), Readiness):  # it heard all it was told
                    del self._unheard[seat][: len(told[seat])]
        return said

    def note_settled(self, settlement: bytes) -> None:
        """Send a settlement to all parties, with the next message."""
        for told in self._unheard.values():
            told.append(settlement)

    def read(self, answer: bytes | Silence) -> list[bytes]:
        """Return the frames of an answer.

        Raises:
            SilenceError: there is none.
            ProtocolError: it is malformed or too long.
        """
        if isinstance(answer, Silence):
            raise SilenceError(answer.code)
        batch_bytes = 4 * self.words + 8 * 1024 + self._round.batch.most_bytes
        return wire.unpack(answer, max_bytes=max(SETUP_ANSWER_BYTES, batch_bytes))

    def _failed(self, seat: bytes, error: ProtocolError) -> PartyFailedError:
        """Put the party's name to a fault in its message."""
        name = self._roster.name(seat)
        if isinstance(error, RefusedError):
            cause = cause_of(error)
            if cause == CANNOT_STORE:  # it is asked again, as one that is silent
                return self._silent(seat, cause)
            return PartyRefusedError(error.must, "a refusal", party=name, cause=cause)
        return PartyFailedError(error.must, error.got or "another", party=name, cause=error.code)

    def _silent(self, seat: bytes, code: str) -> PartyFailedError:
        name = self._roster.name(seat)
        return PartyFailedError(
            "every party must answer", "none", party=name, cause=code, is_silent=True
        )


def require_no(failures: Failures) -> None:
    """Raise the first of the failures, if there is one."""
    for failure in failures.values():
        raise failure


def may_pass(failure: PartyFailedError) -> bool:
    """Tell whether a party that failed in a setup may take part in a later one."""
    if isinstance(failure, PartyRefusedError):
        return failure.cause in UP_TO_PEOPLE
    # Who was restarted in the middle of the setup knows nothing of it: it is offered anew.
    return failure.is_silent or failure.cause == UnexpectedMessageError.code


def require_agreement(failures: Failures) -> None:
    """Raise a failure, if there is one: the first that no waiting ends, or else the first.

    Otherwise people would decide in vain, perhaps over a day, on a run that one party refuses for
    good.
    """
    for failure in failures.values():
        if not (failure.is_silent or failure.cause in UP_TO_PEOPLE):
            raise failure
    require_no(failures)


def cause_of(error: RefusedError) -> str:
    """Code of a refusal: the text is the party's, and only a code may reach screens and reports."""
    return code_of(error.reason) or error.code


def code_of(reason: str) -> str:
    """Return a reason that is a code; any other text is left out, as it comes from the party."""
    return reason if _CODE.fullmatch(reason) else ""

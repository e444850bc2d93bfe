"""An aggregator's process is killed by SIGKILL after each of its steps, before anything is sent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from protocols import wire
from protocols.verified import CheckStep, Exchanged, check_step_from_record, check_step_to_record
from protocols.verified.check_journal import CheckJournal
from tests.support.checking import Check

FORK = multiprocessing.get_context("fork")


class FileJournal(CheckJournal):
    """Steps in a file, synced; with the charge in the same line. Kills its process once."""

    def __init__(self, path: Path, *, kills_after: int) -> None:
        self._path, self._kills_after = path, kills_after
        path.touch()

    def append(self, step: CheckStep) -> None:
        self._write(step, ())

    def append_charged(self, step: Exchanged, *, accepted: tuple[bytes, ...]) -> None:
        self._write(step, accepted)

    def steps(self) -> tuple[CheckStep, ...]:
        return tuple(check_step_from_record(*record) for record, _ in self.lines())

    def lines(self) -> list[tuple[tuple[str, tuple[bytes, ...]], tuple[bytes, ...]]]:
        return [
            pickle.loads(bytes.fromhex(line))  # noqa: S301 - of this test
            for line in self._path.read_text("ascii").splitlines()
        ]

    def _write(self, step: CheckStep, accepted: tuple[bytes, ...]) -> None:
        line = pickle.dumps((check_step_to_record(step), accepted)).hex() + "\n"
        with self._path.open("a", encoding="ascii") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if len(self.lines()) == self._kills_after + 1:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalEnd:
    """One end of a batch in a process that is begun again whenever it was killed."""

    def __init__(self, check: Check, place: int, path: Path, *, kills_after: int) -> None:
        self._check, self._place = check, place
        self.journal = FileJournal(path, kills_after=kills_after)
        self.deaths = 0
        self._begin()

    def ask(self, name: str, *given: bytes) -> bytes:
        while True:
            try:
                self._pipe.send((name, given))
                found: bytes = self._pipe.recv()
            except (EOFError, BrokenPipeError, ConnectionResetError):
                self._process.join()
                assert self._process.exitcode == -signal.SIGKILL
                self.deaths += 1
                self._begin()
            else:
                return found

    def end(self) -> None:
        self._pipe.close()
        self._process.join()
        assert self._process.exitcode == 0

    def _begin(self) -> None:
        self._pipe, other = FORK.Pipe()
        self._process = FORK.Process(target=self._serve, args=(other, self._pipe))
        self._process.start()
        other.close()

    def _serve(self, pipe: Connection, ours: Connection) -> None:
        ours.close()
        self._check.start(self._place, journal=self.journal)
        machine = self._check.machine(self._place)
        while True:
            try:
                name, given = pipe.recv()
            except EOFError:
                return
            pipe.send(getattr(machine, name)(*given) or b"")


def run_with(check: Check, place: int, end: MortalEnd, frames: list[bytes]) -> list[bytes]:
    """A whole batch with one end in its process; return what both told."""
    other: Any = check.machine(1 - place)

    def mortal(name: str) -> Callable[..., bytes]:
        return lambda *given: end.ask(name, *given)

    if place == 0:
        take, close, answered = map(mortal, ("take_report", "close", "receive"))
        tell = other.receive
    else:
        take, close, answered = other.take_report, other.close, other.receive
        tell = mortal("receive")
    for frame in frames:
        take(frame)
    request = close()
    told = []
    while request:
        told += [request, tell(request)]
        request = answered(told[-1])
    return told


@pytest.mark.slow
@pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
def test_one_coin_one_charge_and_one_share_whenever_the_process_is_killed(
    place: int, tmp_path: Path
) -> None:
    number, most = 0, 1
    while number < most:
        check = Check(3, 25, 3)
        frames = [check.report(one) for one in range(3)]
        end = MortalEnd(check, place, tmp_path / f"{number}", kills_after=number)
        told = run_with(check, place, end, frames)
        end.end()
        lines = end.journal.lines()
        assert end.deaths == 1
        assert [word for (word, _), _ in lines].count("secrets") == 1
        everyone = tuple(one.fingerprint for one in check.hospitals)
        assert [accepted for _, accepted in lines if accepted] == [everyone]
        check.start(place, journal=end.journal)
        machine, other = check.machine(place), check.machine(1 - place)
        assert machine.opened is not None
        assert (machine.opened == other.opened).all()
        # What left is what stands in the journal, frame by frame.
        sent = [values[1] for (word, values), _ in lines if word == "exchange" and values[1]]
        assert sent == told[place::2]
        assert len({wire.decode(frame).digest for frame in told}) == len(told) == 8
        number, most = number + 1, len(lines)
    assert number >= 5

"""A hospital's service that writes down what goes through its door, and can be told when to die.

Over SuperLink and SuperNode: ``python -m tests.support.mortal_hospital SITE WITNESS``, with the
name of a moment and a number behind it if it is to kill itself there.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from party.flower.serving import serve
from party.service import PartyService
from party.site.party_task import Vote
from party.site.site import Site
from pate_fed.data.task import LearningTask
from pate_fed.queries import QueryBatch
from protocols import wire
from protocols.messages import MaskedVector, Plan, Reveal
from protocols.vote_messages import VoteReport
from tests.support.deployed import true_class
from tests.support.invariants import messages_in

_HEAD = struct.Struct(">cI")


class Moment(StrEnum):
    """When a hospital can die."""

    RECEIVED = "received"  # a packet is here, nothing was done
    VOTING = "before sharing"  # a batch is charged and claimed, its y is not made
    SHARED = "after sharing"  # a y, or a report, is in the journal, nothing left
    ANSWERED = "after answering"  # it has left
    REVEALING = "before revealing"  # shares for lost parties are made, nothing left
    HANDLED = "handled"  # an answer is made, nothing left
    SENT = "sent"  # an answer has left


@dataclass(frozen=True, slots=True)
class Fate:
    """Death at the so many-th time that a moment comes in one life; never where it is 0.

    Attributes:
        moment: When.
        number: At which time.
        full_for: In place of death: for so many packets, this one among them, nothing can be
            written.
    """

    moment: Moment = Moment.SENT
    number: int = 0
    full_for: int = 0


class Witness:
    """What went through a hospital's door, in one file for each life.

    Killed while it writes, it leaves a last record that is cut: nothing followed from that one.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        path = folder / f"{len(list(folder.iterdir())):04d}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def note(self, kind: bytes, body: bytes) -> None:
        """Write one record: a packet that came or is about to go, or a plan that is voted on."""
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit[1], limit[1]))  # its disk is another one
        os.write(self._file, _HEAD.pack(kind, len(body)) + body)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


RECEIVED, SENT, VOTED = b"R", b"S", b"V"


def exchanges_in(folder: Path) -> tuple[tuple[bytes, bytes], ...]:
    """Return what came and what it was answered with, over all lives."""
    found: list[tuple[bytes, bytes]] = []
    for kind, body in records_in(folder):
        if kind == RECEIVED:
            found.append((body, b""))
        elif kind == SENT:
            found[-1] = found[-1][0], body
    return tuple(found)


def plans_voted_on(folder: Path) -> tuple[bytes, ...]:
    """Return the digests of the plans that teachers were asked for, over all lives."""
    return tuple(body for kind, body in records_in(folder) if kind == VOTED)


def records_in(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield what a witness noted, over all lives."""
    for path in sorted(folder.iterdir()):
        content, place = path.read_bytes(), 0
        while place + _HEAD.size <= len(content):
            kind, size = _HEAD.unpack_from(content, place)
            body = content[place + _HEAD.size : place + _HEAD.size + size]
            if len(body) == size:
                yield kind, body
            place += _HEAD.size + size


class MortalHospital(PartyService):
    """A hospital's service with a witness at its door."""

    def __init__(self, site: Site, *, witness: Path, fate: Fate) -> None:
        self._witness = Witness(witness)
        self._fate = fate
        self._passed: Counter[Moment] = Counter()
        self._plan = b""
        self._packets = 0
        self._full_until: int | None = None
        super().__init__(site, vote_of=self._teachers)

    def receive(self, packet: bytes, federation: str | None = None) -> bytes:
        if self._full_until is not None and self._packets >= self._full_until:
            self._let_write(resource.RLIM_INFINITY)
            self._full_until = None
        self._packets += 1
        self._witness.note(RECEIVED, packet)
        self.pass_by(Moment.RECEIVED)
        for message in messages_in(packet):
            if isinstance(message, Plan):
                self._plan = wire.digest_of(message)
        answer = super().receive(packet, federation)
        self._witness.note(SENT, answer)
        if _holds(answer, *_SHARES):
            self.pass_by(Moment.SHARED)
        if _holds(answer, Reveal):
            self.pass_by(Moment.REVEALING)
        self.pass_by(Moment.HANDLED)
        return answer

    def has_sent(self, answer: bytes) -> None:
        """Whoever carries an answer tells that it has left."""
        if _holds(answer, *_SHARES):
            self.pass_by(Moment.ANSWERED)
        self.pass_by(Moment.SENT)

    def pass_by(self, moment: Moment) -> None:
        """Die, if it is time."""
        self._passed[moment] += 1
        if moment is not self._fate.moment or self._passed[moment] != self._fate.number:
            return
        if not self._fate.full_for:
            os.kill(os.getpid(), signal.SIGKILL)
        self._full_until = self._packets + self._fate.full_for - 1
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write fails, as on a full disk
        self._let_write(0)

    def _let_write(self, size: int) -> None:
        """Bound how large a file may become that this process writes to."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def _teachers(self, site: Site, task: LearningTask) -> Vote:
        def vote(batch: QueryBatch) -> NDArray[np.int64]:
            self._witness.note(VOTED, self._plan)
            self.pass_by(Moment.VOTING)
            return np.tile(true_class(batch.inputs), (site.settings.teachers, 1))

        return vote


_SHARES = (MaskedVector, VoteReport)


def _holds(packet: bytes, *kinds: type) -> bool:
    return any(isinstance(message, kinds) for message in messages_in(packet))


def main(folder: Path, witness: Path, fate: Fate) -> None:
    """Serve until told to end."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    site = Site.open(folder)
    serve(MortalHospital(site, witness=witness, fate=fate), site, stopped=stopped)


if __name__ == "__main__":
    asked = Fate(Moment(sys.argv[3]), int(sys.argv[4])) if len(sys.argv) > 3 else Fate()
    main(Path(sys.argv[1]), Path(sys.argv[2]), asked)

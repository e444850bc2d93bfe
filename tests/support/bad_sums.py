"""The two state machines of the secure sum alone, driven as the nodes drive them, in a bad network.

Parties have random vectors for votes, drawn anew whenever they are asked: a party that computed a
second y for a plan would be seen. A sum that opens is a release.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.runs.transport import Silence
from party.storage import Journal
from protocols import wire
from protocols.errors import (
    LocalProtocolError,
    ProtocolError,
    RestoredJournalError,
    TooFewSharesError,
)
from protocols.identity import SigningIdentity
from protocols.messages import Plan, Refusal, RunOffer, RunRecord
from protocols.ring import Words
from protocols.rounds import CoordinatorRound, MemoryCoordinatorJournal, PartyRound, PartyState
from protocols.suites import SUITES
from tests.support.bad_network import BadNetwork, Clock, KilledError, Schedule, Snapshot
from tests.support.bad_network_witness import WATCHED, Witness
from tests.support.stores import CopiedPartyDatabase

NOW = 1_000.0
LIFETIME_S = 3_600
WORDS = 4
QUICK_SUITE = min(SUITES, key=len)
"""X25519 alone: what is sealed is not what is tried here."""
MOST_BYTES = 2**22
Coded = ProtocolError


class Stream:
    """Repeatable random bytes that a copy continues on its own."""

    def __init__(self, label: str) -> None:
        self._label = label.encode()
        self._count = 0

    def __call__(self, size: int) -> bytes:
        self._count += 1
        return hashlib.shake_128(self._label + b"\0%d" % self._count).digest(size)


def identities(count: int) -> list[SigningIdentity]:
    """The same people each time."""
    keys = (hashlib.sha256(b"bad network %d" % place).digest() for place in range(count))
    return [SigningIdentity.from_private_bytes(key) for key in keys]


class SumDoor:
    """A party with no guard: it agrees to every run and plan, as a node does to a good one."""

    def __init__(
        self, node: int, *, form: str, people: list[SigningIdentity], witness: Witness, clock: Clock
    ) -> None:
        self._node = node
        self._identity = people[node]
        self._coordinator = people[-1].public
        self._pins = {one.fingerprint: one.public for one in people[:-1]}
        self._forms = {form: WATCHED[form]().watched_by(witness, node)}
        self._journal = Journal(CopiedPartyDatabase.in_memory())
        self._random = Stream(f"party {node}")
        self._witness = witness
        self._clock = clock
        self.votes: Callable[[int], bytes] = Stream(f"votes {node}")
        self.round = self._new_round()

    @property
    def transcript_head(self) -> bytes:
        """Head of the run's chain as this party saw it."""
        return self.round.transcript.head

    def restart(self) -> None:
        """A new process: all that it knows is in its journal."""
        self.round = self._new_round()

    def receive(self, packet: bytes) -> bytes:
        replies: list[bytes] = []
        try:
            for frame in wire.unpack(packet, max_bytes=MOST_BYTES):
                replies.extend(self._take(frame))
        except ProtocolError as error:
            if isinstance(error, LocalProtocolError) and not isinstance(
                error, RestoredJournalError
            ):
                self._witness.complaints.append(f"a party erred: {error}")
            subject = self.round.run_id or bytes(32)
            refusal = Refusal(subject, self._identity.fingerprint, error.code)
            replies.append(wire.sign(refusal, self._identity).frame)
        return wire.pack(replies)

    def _take(self, frame: bytes) -> tuple[bytes, ...]:
        is_over = self.round.state in (PartyState.DONE, PartyState.STOPPED)
        if is_over and isinstance(wire.decode(frame).message, RunOffer):
            fresh = self._new_round()
            received = fresh.receive(frame, now=self._clock())
            self.round = fresh
        else:
            received = self.round.receive(frame, now=self._clock())
        match received.event:
            case RunRecord():
                return self.round.accept_run()
            case Plan(words=words):
                return self.round.contribute(self._draw(words))
        return received.replies

    def _draw(self, words: int) -> NDArray[np.int64]:
        """Any integers of the ring, the edges among them."""
        return np.frombuffer(self.votes(4 * words), dtype="<i4").astype(np.int64)

    def _new_round(self) -> PartyRound:
        return PartyRound(
            identity=self._identity,
            coordinator=self._coordinator,
            known_peers=self._pins,
            forms=self._forms,
            journal=self._journal,
            random_bytes=self._random,
            suites=frozenset({QUICK_SUITE}),
        )


class SumRun:
    """The coordinator's end of one run, driven as `LabelingRun` drives it."""

    def __init__(self, parties: BadSums) -> None:
        self._parties = parties
        self._network = parties.network
        people = parties.people
        self._form = WATCHED[parties.form]()
        self._journal = MemoryCoordinatorJournal()
        expires_at = int(parties.clock()) + LIFETIME_S
        self.round = CoordinatorRound(
            identity=people[-1],
            form=self._form,
            parties={one.fingerprint: one.public for one in people[:-1]},
            nonce=parties.random(32),
            expires_at=expires_at,
            simulated=True,
            suite=QUICK_SUITE,
            journal=self._journal,
        )
        self._form.opens_for(parties.witness, self.round)
        self._nodes = {one.fingerprint: node for node, one in enumerate(people[:-1])}
        self._expires_at = expires_at
        self._unheard: dict[bytes, list[bytes]] = {seat: [] for seat in self.round.seats}

    def resume(self) -> None:
        """A new process: all that it knows is in its journal."""
        people = self._parties.people
        self.round = CoordinatorRound.resumed(
            identity=people[-1],
            form=self._form,
            parties={one.fingerprint: one.public for one in people[:-1]},
            journal=self._journal,
        )
        self._form.opens_for(self._parties.witness, self.round)
        self._unheard = self.round.unheard()

    def set_up(self) -> None:
        seats = self.round.seats
        self._require(self._broadcast([self.round.setup.offer.frame]))
        dropouts = len(seats) - self._form.threshold(len(seats))
        record = self.round.setup.make_record(terms=b"", colluders=1, dropouts=dropouts)
        self._require(self._broadcast([record]))
        for frames in (self.round.setup.deliver, self.round.setup.close):
            self._require(self._exchange({seat: [frame] for seat, frame in frames().items()}))

    def ask(self, batch: int) -> None:
        """One batch: it opens, or is void. Goes on after `resume`."""
        for ended in self.round.settled:
            if ended.plan.batch == batch:
                if not ended.is_released:
                    raise SumPartyError("a batch must not be void already", "one before a restart")
                return
        try:
            self._open(batch)
        except ProtocolError:
            self._close_plan()
            self._settle(released=False)
            raise
        self._settle(released=True)

    def close(self) -> None:
        if not self.round.closing.heads_frame:
            self._require(self._tell(self.round.closing.frame or self.round.closing.close()))
        self._require(
            self._broadcast([self.round.closing.heads_frame or self.round.closing.compare()])
        )

    def _open(self, batch: int) -> Words:
        if not self.round.has_open_plan:
            self.round.batch.plan(
                batch=batch,
                words=WORDS,
                expires_at=self._expires_at,
                terms=b"",
            )
        if not self.round.open_plan.may_open:
            raise SumPartyError("a plan must not be closed already", "one before a restart")
        plan = self.round.open_plan.frame
        failures = self._tell(plan)
        if self._form.survives_dropouts:
            proposals = self.round.batch.propose()
            self._exchange({seat: [frame] for seat, frame in proposals.items()})
            self._exchange(self.round.batch.certify())
        else:
            self._require(failures)
        return self.round.batch.open_total()

    def _close_plan(self) -> None:
        """Try to close a plan that did not open."""
        if not self._form.survives_dropouts or self.round.open_plan.opens_a_set:
            return
        for frame in set(self.round.batch.propose_closing().values()):
            self._tell(frame)
        with suppress(TooFewSharesError):
            self.round.batch.certify()

    def _settle(self, *, released: bool) -> None:
        frame = self.round.batch.settle(released=released, result=b"labels" if released else b"")
        for told in self._unheard.values():
            told.append(frame)

    def _tell(self, frame: bytes) -> list[ProtocolError]:
        failures = self._exchange({seat: [*told, frame] for seat, told in self._unheard.items()})
        failed = {failure.got for failure in failures}
        for seat, told in self._unheard.items():
            if seat.hex() not in failed:
                told.clear()
        return failures

    def _broadcast(self, frames: list[bytes]) -> list[ProtocolError]:
        return self._exchange(dict.fromkeys(self.round.seats, frames))

    def _exchange(self, frames: Mapping[bytes, list[bytes]]) -> list[ProtocolError]:
        packets = {self._nodes[seat]: wire.pack(items) for seat, items in frames.items()}
        answers = self._network.exchange(packets)
        failures: list[ProtocolError] = []
        for seat in frames:
            try:
                answer = answers[self._nodes[seat]]
                if not isinstance(answer, Silence):
                    for frame in wire.unpack(answer, max_bytes=MOST_BYTES):
                        self.round.receive(frame, peer=seat)
                if seat in self.round.missing:
                    failures.append(SumPartyError("a party must answer", seat.hex()))
            except ProtocolError as error:
                failures.append(SumPartyError(error.code, seat.hex()))
        return failures

    @staticmethod
    def _require(failures: list[ProtocolError]) -> None:
        if failures:
            raise failures[0]


class SumPartyError(ProtocolError):
    """A party failed: its code, and who it is."""


class BadSums:
    """Parties, their coordinator, and the network between them; runs follow one another."""

    def __init__(self, parties: int, form: str) -> None:
        self.form = form
        self.people = identities(parties + 1)
        self.clock = Clock(NOW)
        self.random = Stream("coordinator")
        self.witness = Witness([one.public for one in self.people[:-1]])
        self.doors = [
            SumDoor(node, form=form, people=self.people, witness=self.witness, clock=self.clock)
            for node in range(parties)
        ]
        self.network = BadNetwork(self.doors, clock=self.clock, witness=self.witness)
        self.run = SumRun(self)
        self.outcomes: list[str] = []

    def attempt(self, name: str, act: Callable[[], Any]) -> bool:
        """Do something that may fail, but only with a code; note what became of it."""
        try:
            self.surviving(act)
        except Coded as error:
            self.outcomes.append(f"{name}: {error.code} {error}")
            return False
        self.outcomes.append(f"{name}: done")
        return True

    def surviving(self, act: Callable[[], Any]) -> Any:
        """Do something that goes on where it was when the coordinator's process has ended."""
        while True:
            try:
                return act()
            except KilledError:
                self.run.resume()

    def vote_otherwise(self) -> None:
        """From here on parties have other vectors."""
        for node, door in enumerate(self.doors):
            door.votes = Stream(f"other votes {node}")

    def restart_unfinished(self) -> None:
        """Give those parties a new process that are still in a run."""
        for door in self.doors:
            if door.round.state not in (PartyState.DONE, PartyState.STOPPED):
                door.restart()


@dataclass(frozen=True, slots=True)
class Sums:
    """A course of runs, through which schedules are played."""

    parties: int
    form: str = "additive"
    batches: int = 2
    runs: int = 1
    is_set_up: bool = True

    @property
    def exchanges(self) -> int:
        """At most so many, if all goes well."""
        each = 3 if self.form == "masked" else 1
        setup = 4 * (self.runs - self.is_set_up)
        return setup + self.runs * (self.batches * each + 2)

    def play(self, schedule: Schedule, *, other_votes: bool = False) -> BadSums:
        """Play one schedule to its end, and hold what happened against the rules."""
        sums = _prepared(self).copy()
        if other_votes:
            sums.vote_otherwise()
        sums.network.misbehave(schedule)
        for number in range(self.runs):
            if number:
                sums.restart_unfinished()
                sums.run = SumRun(sums)
            self._play_run(sums, is_set_up=self.is_set_up and not number)
        sums.witness.check()
        done = sum(outcome.startswith("batch") for outcome in sums.outcomes)
        assert done <= self.runs * self.batches
        return sums

    def _play_run(self, sums: BadSums, *, is_set_up: bool) -> None:
        run = sums.run
        if not is_set_up and not sums.attempt("setup", run.set_up):
            return
        for batch in range(self.batches):
            opened = len(sums.witness.opened)
            if sums.attempt("batch", lambda batch=batch: run.ask(batch)):
                assert len(sums.witness.opened) == opened + 1
            else:
                assert len(sums.witness.opened) == opened
        sums.attempt("closing", run.close)


@cache
def _prepared(course: Sums) -> Snapshot[BadSums]:
    sums = BadSums(course.parties, course.form)
    if course.is_set_up:
        sums.run.set_up()
    return Snapshot(sums)

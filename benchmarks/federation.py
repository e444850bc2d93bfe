"""A run in memory, coordinator and parties, each of whose steps is timed on its own.

The state machines of `protocols.rounds` as they are, with signatures, sealing and transcript. What
a benchmark leaves out is the disk: journals forget.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocols.identity import PublicIdentity, SigningIdentity
from protocols.rounds import CoordinatorRound, PartyRound, PlanClaim, RoundJournal, RunNote
from protocols.secure_sum import SecureSum

T = TypeVar("T")
NOW, EXPIRES_AT = 0.0, 1_000
Frames = tuple[bytes, ...]


class ForgetfulJournal(RoundJournal):
    """Keeps nothing: a benchmark begins no plan twice and sends no y again."""

    @property
    def counter(self) -> int:
        """See `RoundJournal.counter`."""
        return 0

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""

    def witnessed(self) -> Mapping[bytes, int]:
        """See `RoundJournal.witnessed`."""
        return {}

    def halt(self, counter: int) -> None:
        """See `RoundJournal.halt`."""

    def require_whole(self) -> None:
        """See `RoundJournal.require_whole`."""

    def require_room(self, size: int) -> None:
        """See `RoundJournal.require_room`."""

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""

    def enter(self, run: RunNote) -> None:
        """See `RoundJournal.enter`."""

    def run(self, run_id: bytes) -> RunNote | None:  # noqa: ARG002 - the contract's
        """See `RoundJournal.run`."""
        return None

    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.decide`."""

    def verdict_on(self, plan_digest: bytes) -> bytes:  # noqa: ARG002 - the contract's
        """See `RoundJournal.verdict_on`."""
        return b""

    def run_of(self, plan_digest: bytes) -> bytes:  # noqa: ARG002 - the contract's
        """See `RoundJournal.run_of`."""
        return b""

    def resolve(self, plan_digest: bytes, claim: PlanClaim) -> None:
        """See `RoundJournal.resolve`."""

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        """See `RoundJournal.abandon`."""

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""

    def sweep(self, *, now: float) -> None:
        """See `RoundJournal.sweep`."""

    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:  # noqa: ARG002 - the contract's
        """See `RoundJournal.find`."""
        return None

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""


@dataclass(slots=True)
class Batch:
    """What one batch took, CPU seconds and bytes; lists have an entry per party, in seat order.

    Attributes:
        answer: Parties' first answers: y, and shares in front of it.
        reveal: Parties' later answers: verdict and shares.
        take: The coordinator's taking of the first answers.
        settle: What else the coordinator did: survivors, shares for holders, joining, opening.
        answer_bytes: Bytes of a party's first answer.
        reveal_bytes: Bytes of its later ones.
        total: The opened sum.
    """

    answer: list[float] = field(default_factory=list)
    reveal: list[float] = field(default_factory=list)
    take: float = 0.0
    settle: float = 0.0
    answer_bytes: int = 0
    reveal_bytes: int = 0
    total: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def party(self) -> list[float]:
        """CPU seconds of each party."""
        return [sum(both) for both in zip(self.answer, self.reveal, strict=True)]

    @property
    def coordinator(self) -> float:
        """CPU seconds of the coordinator."""
        return self.take + self.settle

    @property
    def bytes_sent(self) -> int:
        """Bytes that a party sent."""
        return self.answer_bytes + self.reveal_bytes


class Federation:
    """A run in memory, ready for plans.

    Args:
        parties: How many.
        form: Makes the secure sum of the coordinator, and of each party.

    Attributes:
        party_seconds: CPU time that one party spent on its setup, but for the run record.
        reading_seconds: CPU time that it spent on the run record.
    """

    def __init__(self, parties: int, form: Callable[[], SecureSum]) -> None:
        operator = SigningIdentity.generate()
        identities = [SigningIdentity.generate() for _ in range(parties)]
        pins: dict[bytes, PublicIdentity] = {i.fingerprint: i.public for i in identities}
        self.form = form()
        self.parties = {
            identity.fingerprint: PartyRound(
                identity=identity,
                coordinator=operator.public,
                known_peers=pins,
                forms={self.form.name: form()},
                journal=ForgetfulJournal(),
                random_bytes=secrets.token_bytes,
            )
            for identity in identities
        }
        self.coordinator = CoordinatorRound(
            identity=operator,
            form=self.form,
            parties=pins,
            nonce=secrets.token_bytes(32),
            expires_at=EXPIRES_AT,
            simulated=True,
        )
        self.me = self.coordinator.seats[0]
        self.party_seconds = self.reading_seconds = 0.0
        self._batch = 0
        self._set_up()

    def _set_up(self) -> None:
        self._exchange(dict.fromkeys(self.parties, self.coordinator.setup.offer.frame))
        dropouts = len(self.parties) - self.form.threshold(len(self.parties))
        record = self.coordinator.setup.make_record(terms=b"", colluders=1, dropouts=dropouts)
        for fp, party in self.parties.items():
            seconds, _ = _cpu(partial(party.receive, record, now=NOW))
            self.reading_seconds += seconds if fp == self.me else 0.0
            self._answer(fp, self._timed(fp, party.accept_run))
        self._exchange(self.coordinator.setup.deliver())
        self._exchange(self.coordinator.setup.close())

    def _exchange(self, frames: dict[bytes, bytes]) -> None:
        for fp, frame in frames.items():
            self._answer(fp, self._timed(fp, partial(self._replies, fp, (frame,))))

    def _timed(self, fp: bytes, act: Callable[[], Frames]) -> Frames:
        start = time.process_time()
        replies = act()
        if fp == self.me:
            self.party_seconds += time.process_time() - start
        return replies

    def _replies(self, fp: bytes, frames: Sequence[bytes]) -> Frames:
        party = self.parties[fp]
        return tuple(reply for f in frames for reply in party.receive(f, now=NOW).replies)

    def _answer(self, fp: bytes, frames: Frames) -> None:
        for frame in frames:
            self.coordinator.receive(frame, peer=fp)

    def plan(self, words: int) -> None:
        """Open a plan and hand it to every party."""
        self._batch += 1
        frame = self.coordinator.batch.plan(
            batch=self._batch, words=words, expires_at=EXPIRES_AT, terms=b""
        )
        for party in self.parties.values():
            party.receive(frame, now=NOW)

    def collect(self, vectors: Sequence[Callable[[], NDArray[np.int64]]], words: int) -> Batch:
        """Run a batch up to the opened sum, one party after the other, and time its steps.

        Args:
            vectors: Each party's vector, made when it is asked; that is not timed.
            words: Their length.
        """
        batch, seats = Batch(), self.coordinator.seats
        self.plan(words)
        for fp, make in zip(seats, vectors, strict=True):
            vector = make()
            seconds, frames = _cpu(partial(self.parties[fp].contribute, vector))
            batch.answer.append(seconds)
            batch.answer_bytes = sum(map(len, frames))
            batch.take += _cpu(partial(self._answer, fp, frames))[0]
            del vector, frames  # else the next ones are made beside these
        batch.reveal = [0.0] * len(seats)
        if self.form.survives_dropouts:
            batch.settle, proposals = _cpu(self.coordinator.batch.propose)
            self._open(batch, {fp: [frame] for fp, frame in proposals.items()})
            seconds, shares = _cpu(self.coordinator.batch.certify)
            batch.settle += seconds
            self._open(batch, shares)
        seconds, batch.total = _cpu(self.coordinator.batch.open_total)
        batch.settle += seconds
        return batch

    def _open(self, batch: Batch, frames: dict[bytes, list[bytes]]) -> None:
        """Hand frames to each party and take its answer, and time both."""
        sent = 0
        for place, fp in enumerate(self.coordinator.seats):
            seconds, replies = _cpu(partial(self._replies, fp, frames.pop(fp)))
            batch.reveal[place] += seconds
            sent = sum(map(len, replies))
            batch.settle += _cpu(partial(self._answer, fp, replies))[0]
        batch.reveal_bytes += sent

    def settle(self) -> None:
        """Void the open plan."""
        frame = self.coordinator.batch.settle(released=False, result=b"")
        for party in self.parties.values():
            party.receive(frame, now=NOW)


def _cpu(act: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    result = act()
    return time.process_time() - start, result

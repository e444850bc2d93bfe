"""Hospitals and both aggregators' machines for one batch, with journals that outlive a crash."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from pate_fed.mechanisms.discrete_sampling import sample_discrete_gaussian
from protocols import wire
from protocols.envelope import SealingKey
from protocols.fields import Message
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.suites import SUITE_X25519
from protocols.verified import (
    Aggregator,
    CheckingCoordinator,
    CheckingTally,
    CheckJournal,
    CheckStep,
    Exchanged,
    VoteBatch,
    VoteLayout,
    check_step_from_record,
    check_step_to_record,
    make_report,
)
from protocols.verified.prime_field import Elements
from protocols.verified.vote_proof import ProvedVotes, prove_digits

QUERIES, COLUMNS, SIGMA = 6, 4, 9.0
P = 2**31 - 1
Rows = NDArray[np.int64]


class CrashError(Exception):
    """The process was killed."""


class OverspentError(Exception):
    """A ledger refuses."""


@dataclass
class PlainJournal(CheckJournal):
    """Steps as plain data, with a ledger in the same transaction, and crashes on demand.

    Attributes:
        records: What is on disk.
        charged: The hospitals of each charge on disk.
        crashes_before: Number of the step that is lost with its process.
        crashes_after: Number of the step after which the process is killed: nothing was sent.
        budget: Charges left.
    """

    records: list[tuple[str, tuple[bytes, ...]]] = field(default_factory=list)
    charged: list[tuple[bytes, ...]] = field(default_factory=list)
    crashes_before: int = -1
    crashes_after: int = -1
    budget: int = 1

    def append(self, step: CheckStep) -> None:
        self._write(step, ())

    def append_charged(self, step: Exchanged, *, accepted: tuple[bytes, ...]) -> None:
        if not self.budget:
            raise OverspentError
        self._write(step, accepted)

    def steps(self) -> tuple[CheckStep, ...]:
        return tuple(check_step_from_record(*record) for record in self.records)

    def _write(self, step: CheckStep, accepted: tuple[bytes, ...]) -> None:
        number = len(self.records)
        if number == self.crashes_before:
            self.crashes_before = -1
            raise CrashError
        self.records.append(check_step_to_record(step))
        if accepted:
            self.budget -= 1
            self.charged.append(accepted)
        if number == self.crashes_after:
            self.crashes_after = -1
            raise CrashError


def gaussian(shape: tuple[int, int], random_bytes: Callable[[int], bytes]) -> Rows:
    """The noise of these batches."""
    return sample_discrete_gaussian(shape, sigma=SIGMA, random_bytes=random_bytes)


Machine = CheckingCoordinator | CheckingTally


def hospitals_of(number: int) -> list[SigningIdentity]:
    """Hospitals in seat order."""
    made = (SigningIdentity.generate() for _ in range(number))
    return sorted(made, key=lambda one: one.fingerprint)


def voted(place: int, votes: int, *, queries: int, columns: int) -> Rows:
    """A hospital's votes, the same each time."""
    rng = np.random.default_rng(place)
    return rng.multinomial(votes, np.full(columns, 1 / columns), size=queries).astype(np.int64)


def end(
    identity: SigningIdentity,
    key: SealingKey,
    other: PublicIdentity,
    hospitals: Iterable[PublicIdentity],
    **changed: Any,
) -> dict[str, Any]:
    """The arguments of an end's machine."""
    return {
        "identity": identity,
        "key": key,
        "other": other,
        "hospitals": {one.fingerprint: one for one in hospitals},
        "least_parties": 3,
        "random_bytes": os.urandom,
        "draw_noise": gaussian,
        **changed,
    }


Change = Callable[[Rows], Mapping[int, int]]
"""What a liar adds to which of its numbers, row by row, given its honest rows."""


def prove_wrongly(
    layout: VoteLayout, rows: Rows, *, change: Change = lambda _: {0: 1}, **named: Any
) -> ProvedVotes:
    """Prove honestly, in the place of `prove`, wrong digits: such as a vote too many."""
    digits: Elements = layout.digits_of(rows)
    for at, more in change(rows).items():
        digits[at * layout.digits] = (int(digits[at * layout.digits]) + more) % P
    return prove_digits(layout, digits, **named)


class Ward:
    """Hospitals of one batch, what they vote and report, and both aggregators' keys."""

    def __init__(self, *votes: int) -> None:
        self.hospitals = hospitals_of(len(votes))
        self.identities = SigningIdentity.generate(), SigningIdentity.generate()
        self.keys = SealingKey(SUITE_X25519), SealingKey(SUITE_X25519)
        coordinator, tally = (
            Aggregator(identity.fingerprint, key.public_bytes)
            for identity, key in zip(self.identities, self.keys, strict=True)
        )
        numbers = {one.fingerprint: k for one, k in zip(self.hospitals, votes, strict=True)}
        self.batch = VoteBatch(
            os.urandom(32), QUERIES, COLUMNS, numbers, coordinator, tally, SUITE_X25519
        )
        self.pinned = {one.fingerprint: one.public for one in self.hospitals}

    def rows(self, place: int) -> Rows:
        """A hospital's votes."""
        votes = self.batch.votes[self.hospitals[place].fingerprint]
        return voted(place, votes, queries=QUERIES, columns=COLUMNS)

    def report(self, place: int, batch: VoteBatch | None = None) -> bytes:
        return make_report(
            batch or self.batch,
            self.rows(place),
            identity=self.hospitals[place],
            random_bytes=os.urandom,
        )

    def lying_report(self, place: int, change: Change = lambda _: {0: 1}) -> bytes:
        """A report whose proof is honestly made of wrong digits, such as a vote too many."""
        wrong = partial(prove_wrongly, change=change)
        with patch("protocols.verified.vote_report.prove", wrong):
            return self.report(place)

    def sum_of(self, *places: int) -> Rows:
        """Exact votes of these hospitals: what nobody may see."""
        total: Rows = np.sum([self.rows(place) for place in places], axis=0)
        return total


class Check(Ward):
    """One batch at both ends' machines, and what they told each other."""

    def __init__(self, *votes: int, least: int = 3) -> None:
        super().__init__(*votes)
        self.least = least
        self.journals = PlainJournal(), PlainJournal()
        self.start(0)
        self.start(1)

    def start(self, place: int, **changed: Any) -> None:
        """Begin an end's process, or begin it again after a crash."""
        other, hospitals = self.identities[1 - place].public, self.pinned.values()
        known = {"least_parties": self.least, "journal": self.journals[place]}
        given = end(self.identities[place], self.keys[place], other, hospitals, **known)
        given |= changed
        if place == 0:
            self.coordinator = CheckingCoordinator(self.batch, **given)
        else:
            self.tally = CheckingTally(self.batch, **given)

    def collect(self, *frames: bytes) -> bytes:
        """Let the coordinator take these reports, or one of each hospital, and close the list."""
        for frame in frames or [self.report(place) for place in range(len(self.hospitals))]:
            self.coordinator.take_report(frame)
        return self.coordinator.close()

    def run(self, *frames: bytes) -> list[bytes]:
        """Run the batch to its end; return all that both told, in order."""
        told, request = [], self.collect(*frames)
        while request:
            told += [request, self.tally.receive(request)]
            request = self.coordinator.receive(told[-1])
        return told

    def until(self, place: int, kind: type[Message]) -> bytes:
        """Run an honest batch until an end is about to be told a message of a kind; return it."""
        request = self.collect()
        while True:
            if place == 1 and isinstance(wire.decode(request).message, kind):
                return request
            answer = self.tally.receive(request)
            if place == 0 and isinstance(wire.decode(answer).message, kind):
                return answer
            request = self.coordinator.receive(answer)

    def machine(self, place: int) -> Machine:
        return (self.coordinator, self.tally)[place]

    def signed(self, place: int, message: Message) -> bytes:
        """A message under an end's true signature: what a deviating one could send."""
        return wire.sign(message, self.identities[place]).frame

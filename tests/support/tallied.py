"""A run with a tally: hospitals' keys and votes, the coordinator's machine, and packets by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.certificates import KeyedCertificate, make_pinned_certificate
from coordinator.tally.cards import TallyInvite
from coordinator.tally.served_run import ServedRun
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from pate_fed.charges import noise_of
from pate_fed.rule import Caps, Rule
from pate_fed.terms import NO_TASK, BatchTerms, RunTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.envelope import SealingKey
from protocols.fields import Message
from protocols.forms import Verified
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import KeyStatement, Plan, RunOffer, RunRecord
from protocols.suites import SUITE_X25519
from protocols.values import encode_value
from protocols.verified import (
    CheckingCoordinator,
    CheckJournal,
    MemoryCheckJournal,
    VoteBatch,
    make_report,
)
from tests.support.checking import end, hospitals_of, voted

NOW = 2_000_000_000
QUOTAS = (3, 25, 40)
CLASSES, SIGMA, POOL = 4, 9.0, 12
Rows = NDArray[np.int64]
Check = Callable[[bytes], bytes]


@dataclass
class TalliedRun:
    """One run, its keys, and who asks the tally: `state` and `check` are its two calls.

    Attributes:
        offer: Frame.
        statement: Frame of the tally's.
        record: Frame.
    """

    coordinator: SigningIdentity
    state: Check
    check: Check
    quotas: Sequence[int] = QUOTAS
    caps: tuple[int, int, int] = (POOL, POOL, 6)
    mechanism: str = "gnmax"
    terms_changed: dict[str, Any] = field(default_factory=dict)
    record_changed: dict[str, Any] = field(default_factory=dict)
    offer_changed: dict[str, Any] = field(default_factory=dict)
    now: int = NOW

    def __post_init__(self) -> None:
        self.hospitals = hospitals_of(len(self.quotas))
        self.key = SealingKey(SUITE_X25519)
        self.terms = RunTerms(
            name="lung",
            pool_digest=bytes(32),
            task_digest=NO_TASK,
            classes=CLASSES,
            weights=tuple(TeacherWeights.equal(number) for number in self.quotas),
            rule=Rule(
                self.mechanism,
                sigma2=SIGMA,
                noise_place="aggregators",
                vote_threshold=None if self.mechanism == "gnmax" else 30.0,
                confidence=0.9 if self.mechanism == "interactive-threshold" else None,
            ),
            unit="record",
            caps=Caps(*self.caps),
            budgets=(1e6,) * len(self.quotas),
            delta=1e-5,
        )
        self.terms = replace(self.terms, **self.terms_changed)
        self.set_up()

    def set_up(self) -> None:
        """Offer the run, let all state their keys, and fix it: again, it is another setup."""
        offer = RunOffer(
            coordinator_key=self.coordinator.public.key,
            nonce=os.urandom(32),
            form=Verified.name,
            ring_bits=31,
            suite=SUITE_X25519,
            expires_at=self.now + 1000,
            simulated=False,
        )
        signed = wire.sign(replace(offer, **self.offer_changed), self.coordinator)
        self.offer, self.offer_digest = signed.frame, signed.digest
        self.statement = self.state(self.offer)
        self.record = self.record_of()

    def statement_of(self, hospital: SigningIdentity, **changed: Any) -> bytes:
        """A hospital's keys for the run, signed."""
        told = KeyStatement(
            offer_digest=self.offer_digest,
            identity_key=hospital.public.key,
            sealing_key=SealingKey(SUITE_X25519).public_bytes,
            nonce=os.urandom(32),
            role="party",
            expires_at=self.now + 1000,
            journal_counter=1,
        )
        return wire.sign(replace(told, **changed), hospital).frame

    def record_of(self, *, by: SigningIdentity | None = None, **changed: Any) -> bytes:
        """The run's record, signed by the coordinator."""
        number = len(self.hospitals)
        record = RunRecord(
            offer_digest=self.offer_digest,
            coordinator=self.coordinator.fingerprint,
            statements=tuple(map(self.statement_of, self.hospitals)),
            form=Verified.name,
            ring_bits=31,
            suite=SUITE_X25519,
            threshold=Verified.threshold(number),
            colluders=number - 1,
            dropouts=number - Verified.threshold(number),
            expires_at=self.now + 1000,
            simulated=False,
            sealing_key=self.key.public_bytes,
            tally=self.statement,
            absent=(),
            terms=encode_value(self.terms.as_record()),
        )
        changes = {**self.record_changed, **changed}
        return wire.sign(replace(record, **changes), by or self.coordinator).frame

    def plan(
        self, *indices: int, record: bytes = b"", by: SigningIdentity | None = None, **changed: Any
    ) -> bytes:
        """A plan of the run, signed."""
        asked = BatchTerms(self.terms, indices)
        plan = Plan(
            run_id=wire.decode(record or self.record).digest,
            epoch=1,
            batch=0,
            previous_head=os.urandom(32),
            words=asked.words,
            expires_at=self.now + 500,
            terms=encode_value(asked.as_record()),
        )
        return wire.sign(replace(plan, **changed), by or self.coordinator).frame

    def rows(self, place: int, queries: int) -> Rows:
        """A hospital's votes."""
        return voted(place, self.quotas[place], queries=queries, columns=self.terms.classes)


class TalliedBatch:
    """One plan of a run at its coordinator, with a machine of its own.

    Attributes:
        plan: Frame.
    """

    def __init__(
        self,
        run: TalliedRun,
        *indices: int,
        plan: bytes = b"",
        journal: CheckJournal | None = None,
    ) -> None:
        self.run, self.indices = run, indices
        self.plan = plan or run.plan(*indices)
        self.journal = MemoryCheckJournal(lambda _: None) if journal is None else journal
        self.start()

    @property
    def digest(self) -> bytes:
        """Of the plan."""
        return wire.decode(self.plan).digest

    @property
    def batch(self) -> VoteBatch:
        """Of the plan."""
        record = wire.expect(wire.decode(self.run.record), RunRecord)
        votes = dict(
            zip((one.fingerprint for one in self.run.hospitals), self.run.quotas, strict=True)
        )
        return VoteBatch.of_record(
            record,
            plan_digest=self.digest,
            queries=len(self.indices),
            columns=self.run.terms.classes,
            votes=votes,
        )

    def start(self) -> None:
        """Begin the coordinator's process, or begin it again."""
        tally = wire.expect(wire.decode(self.run.statement), KeyStatement)
        noise = noise_of(self.run.terms)
        given = end(
            self.run.coordinator,
            self.run.key,
            PublicIdentity(tally.identity_key),
            (one.public for one in self.run.hospitals),
            journal=self.journal,
            draw_noise=lambda shape, source: noise.draw(*shape, random_bytes=source).counts,
        )
        self.machine = CheckingCoordinator(self.batch, **given)

    def report(self, place: int) -> bytes:
        """A hospital's report."""
        return make_report(
            self.batch,
            self.run.rows(place, len(self.indices)),
            identity=self.run.hospitals[place],
            random_bytes=os.urandom,
        )

    def collect(self, *frames: bytes) -> bytes:
        """Take these reports, or one of each hospital, and close the list."""
        for frame in frames or map(self.report, range(len(self.run.hospitals))):
            self.machine.take_report(frame)
        return self.machine.close()

    def packet(self, request: bytes) -> bytes:
        """What the tally is asked."""
        return wire.pack([self.run.record, self.plan, request])

    def ask(self, request: bytes) -> bytes:
        """Ask the tally; return its answer."""
        return self.run.check(self.packet(request))

    def open(self, *frames: bytes) -> list[bytes]:
        """Run the batch to its end; return all that both told."""
        return self.go_on(self.collect(*frames))

    def go_on(self, request: bytes) -> list[bytes]:
        """Run the batch from a request on."""
        told = []
        while request:
            told += [request, self.ask(request)]
            request = self.machine.receive(told[-1])
        return told

    def until(self, kind: type[Message]) -> bytes:
        """Run the batch until the tally is about to be asked with a message of a kind."""
        request = self.collect()
        while not isinstance(wire.decode(request).message, kind):
            request = self.machine.receive(self.ask(request))
        return request

    def signed(self, message: Message) -> bytes:
        """A message under the coordinator's true signature."""
        return wire.sign(message, self.run.coordinator).frame

    @property
    def exact(self) -> Rows:
        """Exact votes: what nobody may see."""
        places = range(len(self.run.quotas))
        rows = [self.run.rows(place, len(self.indices)) for place in places]
        total: Rows = np.sum(rows, axis=0)
        return total


def make_tally(
    folder: Path, *, port: int = 0, host: str = "127.0.0.1"
) -> tuple[TallyFolder, SigningIdentity, KeyedCertificate]:
    """A tally's folder, its coordinator's identity, and that one's key for TLS."""
    now = datetime.now(UTC)
    coordinator = SigningIdentity.generate()
    key = make_pinned_certificate("coordinator", now=now)
    invite = TallyInvite("lung study", coordinator.public.key, key.certificate.decode())
    settings = TallySettings(f"127.0.0.1:{port or 1}", host=host, port=port)
    return TallyFolder.create(folder, settings, invite, now=now), coordinator, key


def served(run: TalliedRun) -> ServedRun:
    """The run as its tally reads it."""
    return ServedRun.of(run.record, coordinator=run.coordinator.public)

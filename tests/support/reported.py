"""A run of reports in memory: hospitals, a coordinator, a tally, and what is lost between them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.envelope import SealingKey
from protocols.forms import Verified
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import KeyStatement, Plan, RunOffer, RunRecord
from protocols.rounds import CoordinatorRound, MemoryCoordinatorJournal, PartyRound
from protocols.verified import CheckingCoordinator, CheckingTally, VoteBatch, VoteLayout
from protocols.verified.vote_proof import prove
from tests.support.checking import PlainJournal, end, hospitals_of, prove_wrongly, voted
from tests.support.rounds import EXPIRES_AT, NOW, ListJournal

QUERIES, COLUMNS, VOTES = 4, 3, 5
LAYOUT = VoteLayout.of(queries=QUERIES, columns=COLUMNS, votes=VOTES)
Rows = NDArray[np.int64]


def no_noise(shape: tuple[int, int], _: Callable[[int], bytes]) -> Rows:
    """So that a sum can be compared; the machines' own tests have noise."""
    return np.zeros(shape, dtype=np.int64)


def some_rows(seat: int) -> Rows:
    """A hospital's votes."""
    return voted(seat, VOTES, queries=QUERIES, columns=COLUMNS)


class ReportedRun:
    """One run of `parties` hospitals, in seat order; `start_*` begins a process again."""

    def __init__(self, parties: int) -> None:
        self.operator, self.tally_identity = SigningIdentity.generate(), SigningIdentity.generate()
        self.hospitals = hospitals_of(parties)
        self.pins = {one.fingerprint: one.public for one in self.hospitals}
        self.keys = SealingKey(), SealingKey()
        self.journal = MemoryCoordinatorJournal()
        self.site_journals = [ListJournal() for _ in self.hospitals]
        self.check_journals: dict[tuple[bytes, int], PlainJournal] = {}
        self.parties = [self.start_party(seat) for seat in range(parties)]
        self.coordinator = CoordinatorRound(
            nonce=secrets.token_bytes(32), expires_at=EXPIRES_AT, simulated=True, **self._ends()
        )

    def _ends(self) -> dict[str, Any]:
        return {
            "identity": self.operator,
            "form": Verified(),
            "parties": self.pins,
            "journal": self.journal,
            "check": self.checking,
        }

    def start_party(self, seat: int, tally: PublicIdentity | None = None) -> PartyRound:
        return PartyRound(
            identity=self.hospitals[seat],
            coordinator=self.operator.public,
            known_peers=self.pins,
            forms={Verified.name: Verified()},
            journal=self.site_journals[seat],
            random_bytes=secrets.token_bytes,
            tally=tally or self.tally_identity.public,
        )

    def start_coordinator(self) -> None:
        self.coordinator = CoordinatorRound.resumed(**self._ends())

    def checking(self, record: RunRecord, plan: Plan) -> CheckingCoordinator:
        return CheckingCoordinator(**self._machine(record, plan, place=0))

    def start_tally(self) -> CheckingTally:
        record = wire.expect(self.coordinator.setup.signed_record, RunRecord)
        return CheckingTally(**self._machine(record, self.coordinator.open_plan.plan, place=1))

    def _machine(self, record: RunRecord, plan: Plan, *, place: int) -> dict[str, Any]:
        digest, ends = wire.digest_of(plan), (self.operator, self.tally_identity)
        votes = dict.fromkeys(self.pins, VOTES)
        shape = {"queries": QUERIES, "columns": COLUMNS}
        batch = VoteBatch.of_record(record, plan_digest=digest, votes=votes, **shape)
        journal = self.check_journals.setdefault((digest, place), PlainJournal())
        known = {"batch": batch, "journal": journal, "draw_noise": no_noise}
        other, hospitals = ends[1 - place].public, self.pins.values()
        return end(ends[place], self.keys[place], other, hospitals, **known)

    # Steps --------------------------------------------------------------------------------------

    def statement(self, **changed: Any) -> bytes:
        """The tally's answer to the offer."""
        offer = self.coordinator.setup.offer
        fields: dict[str, Any] = {
            "offer_digest": offer.digest,
            "identity_key": self.tally_identity.public.key,
            "sealing_key": self.keys[1].public_bytes,
            "nonce": bytes(32),
            "role": "tally",
            "expires_at": wire.expect(offer, RunOffer).expires_at,
            "journal_counter": 0,
        }
        return wire.sign(KeyStatement(**fields | changed), self.tally_identity).frame

    def record(self, **changed: bytes) -> bytes:
        """Offer the run; return its record."""
        self._tell(self.coordinator.setup.offer.frame)
        n = len(self.parties)
        keys = {"sealing_key": self.keys[0].public_bytes, "tally": self.statement()}
        least = Verified.threshold(n)
        return self.coordinator.setup.make_record(
            terms=b"", colluders=n - 1, dropouts=n - least, **keys | changed
        )

    def set_up(self) -> ReportedRun:
        record = self.record()
        for seat, party in enumerate(self.parties):
            party.receive(record, now=NOW)
            self._hear(seat, party.accept_run())
        return self

    def plan(self, batch: int = 0) -> bytes:
        words = QUERIES * COLUMNS
        return self.coordinator.batch.plan(
            batch=batch, words=words, expires_at=EXPIRES_AT, terms=b""
        )

    def report(self, seat: int, plan: bytes, *, lies: bool = False) -> tuple[bytes, ...]:
        """Let a hospital answer a plan, with a vote too many in its proof if it lies."""
        party = self.parties[seat]
        party.receive(plan, now=NOW)
        with patch("protocols.verified.vote_report.prove", prove_wrongly if lies else prove):
            return party.contribute(some_rows(seat).ravel(), layout=LAYOUT)

    def collect(self, *, absent: Collection[int] = (), liars: Collection[int] = ()) -> None:
        plan = self.plan()
        for seat in range(len(self.parties)):
            if seat not in absent:
                self._hear(seat, self.report(seat, plan, lies=seat in liars))
        self.coordinator.batch.close_reports()

    def check(self) -> Rows:
        """Let both aggregators open the sum of the reports that came."""
        machine, tally = self.coordinator.batch.reports.machine, self.start_tally()
        request = machine.close()
        while request:
            request = machine.receive(tally.receive(request))
        self.coordinator.batch.note_checked()
        assert machine.opened is not None
        return machine.opened

    def settle(self, *, released: bool = True) -> None:
        self._tell(self.coordinator.batch.settle(released=released, result=b""))

    def close(self) -> None:
        for frame in (self.coordinator.closing.close, self.coordinator.closing.compare):
            told = frame()
            for seat, party in enumerate(self.parties):
                self._hear(seat, party.receive(told, now=NOW).replies)

    def listed(self) -> list[int]:
        """Seats in the last settlement."""
        entries = self.coordinator.settled[-1].settlement.contributions
        return [seat for seat, entry in enumerate(entries) if entry]

    def _tell(self, frame: bytes) -> None:
        for seat, party in enumerate(self.parties):
            self._hear(seat, party.receive(frame, now=NOW).replies)

    def _hear(self, seat: int, frames: Collection[bytes]) -> None:
        for frame in frames:
            self.coordinator.receive(frame, peer=self.hospitals[seat].fingerprint)


def sum_of(seats: Collection[int]) -> Rows:
    """Votes of some hospitals."""
    total: Rows = np.sum([some_rows(seat) for seat in seats], axis=0)
    return total

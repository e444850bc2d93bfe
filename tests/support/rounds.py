"""A whole run of the secure sum in memory, with every message in the test's hands."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from party.storage import Journal, PartyDatabase
from protocols.additive import AdditiveSum
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.masked import MaskedSum
from protocols.plain import PlainSum
from protocols.rounds import CoordinatorRound, PartyRound, RoundJournal
from protocols.secure_sum import SecureSum
from protocols.suites import DEFAULT_SUITE
from tests.support.copied import Copies

NOW = 1_000.0
EXPIRES_AT = 10_000


class ListJournal(Journal):
    """A journal in memory that keeps the order of what was written."""

    def __init__(self) -> None:
        super().__init__(PartyDatabase.in_memory())
        self.steps: list[str] = []

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        super().begin(run_id=run_id, epoch=epoch, plan_digest=plan_digest)
        self.steps.append("begin")

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        super().abandon(plan_digest, run_id=run_id)
        self.steps.append("abandon")

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        super().keep(plan_digest, frames, expires_at=expires_at)
        self.steps.append("keep")

    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        super().decide(plan_digest, verdict_digest, run_id=run_id)
        self.steps.append("decide")

    def erase(self, plan_digest: bytes) -> None:
        super().erase(plan_digest)
        self.steps.append("erase")


class MemoryRun:
    """A coordinator and its parties; each step is a method, each message can be tampered with.

    `tamper(stage, receiver fingerprint or None for the coordinator, frame)` returns the frame to
    hand on instead.
    """

    def __init__(
        self,
        parties: int,
        *,
        form: Callable[[], SecureSum] = AdditiveSum,
        suite: str = DEFAULT_SUITE,
        journal: Callable[[int], RoundJournal] = lambda place: ListJournal(),
        tamper: Callable[[str, bytes | None, bytes], bytes] = lambda stage, to, frame: frame,
    ) -> None:
        self.tamper = tamper
        self.form = form()
        self._make_form = form
        self.suite = suite
        self.coordinator_identity = SigningIdentity.generate()
        self.identities = {
            identity.fingerprint: identity
            for identity in (SigningIdentity.generate() for _ in range(parties))
        }
        pins = {fp: identity.public for fp, identity in self.identities.items()}
        self.journals: dict[bytes, Any] = {fp: journal(place) for place, fp in enumerate(pins)}
        self.parties = {
            fp: self.new_party(identity, pins, self.journals[fp])
            for fp, identity in self.identities.items()
        }
        self.coordinator = self.new_coordinator({})

    def new_coordinator(self, known_statements: Mapping[bytes, bytes]) -> CoordinatorRound:
        return CoordinatorRound(
            identity=self.coordinator_identity,
            form=self._make_form(),
            parties={fp: identity.public for fp, identity in self.identities.items()},
            nonce=secrets.token_bytes(32),
            expires_at=EXPIRES_AT,
            simulated=True,
            suite=self.suite,
            known_statements=known_statements,
        )

    def new_party(
        self,
        identity: SigningIdentity,
        pins: dict[bytes, PublicIdentity],
        journal: RoundJournal,
    ) -> PartyRound:
        return PartyRound(
            identity=identity,
            coordinator=self.coordinator_identity.public,
            known_peers=pins,
            forms={
                **{form.name: form() for form in (AdditiveSum, MaskedSum, PlainSum)},
                self.form.name: self._make_form(),
            },
            journal=journal,
            random_bytes=secrets.token_bytes,
            suites=frozenset({self.suite}),
        )

    def restart(self, party: bytes, journal: RoundJournal | None = None) -> PartyRound:
        """Give a party a new process: all that it knows is in its journal."""
        if journal is not None:
            self.journals[party] = journal
        pins = {fp: identity.public for fp, identity in self.identities.items()}
        self.parties[party] = self.new_party(self.identities[party], pins, self.journals[party])
        return self.parties[party]

    def new_run(self) -> None:
        """Open another run with the same people; the coordinator remembers what they signed."""
        known = self.coordinator.statements
        for party in self.parties:
            self.restart(party)
        self.coordinator = self.new_coordinator(known)

    def to_party(self, stage: str, party: bytes, frame: bytes) -> list[bytes]:
        return list(self.parties[party].receive(self.tamper(stage, party, frame), now=NOW).replies)

    def to_coordinator(self, stage: str, party: bytes, frames: list[bytes]) -> None:
        for frame in frames:
            self.coordinator.receive(self.tamper(stage, None, frame), peer=party)

    def exchange(self, stage: str, frames: dict[bytes, bytes]) -> None:
        for party, frame in frames.items():
            self.to_coordinator(stage, party, self.to_party(stage, party, frame))

    def broadcast(self, stage: str, frame: bytes) -> None:
        self.exchange(stage, dict.fromkeys(self.parties, frame))

    @property
    def tolerance(self) -> dict[str, int]:
        """What the run record says of colluders and drop-outs."""
        parties = len(self.parties)
        dropouts = parties - self.form.threshold(parties)
        return {"colluders": self.form.most_colluders(parties), "dropouts": dropouts}

    def set_up(self, *, terms: bytes = b"") -> None:
        self.broadcast("offer", self.coordinator.setup.offer.frame)
        record = self.coordinator.setup.make_record(terms=terms, **self.tolerance)
        for fp, party in self.parties.items():
            self.to_party("record", fp, record)
            self.to_coordinator("record", fp, list(party.accept_run()))
        self.exchange("deliver", self.coordinator.setup.deliver())
        self.exchange("closing setup", self.coordinator.setup.close())

    def open_plan(
        self, words: int, *, batch: int = 0, terms: bytes = b"", row_words: int = 0
    ) -> bytes:
        return self.coordinator.batch.plan(
            batch=batch,
            words=words,
            expires_at=EXPIRES_AT,
            terms=terms,
            row_words=row_words,
        )

    def sum(
        self,
        vectors: list[NDArray[np.int64]],
        *,
        batch: int = 0,
        absent: Collection[int] = (),
        mute: Collection[int] = (),
        row_words: int = 0,
    ) -> NDArray[np.int64]:
        """Run one batch to its opened sum; vectors are given in seat order.

        Seats in `absent` are lost before they send y, those in `mute` after it.
        """
        plan = self.open_plan(len(vectors[0]), batch=batch, row_words=row_words)
        for seat, (fp, vector) in enumerate(zip(self.coordinator.seats, vectors, strict=True)):
            if seat not in absent:
                self.to_party("plan", fp, plan)
                frames = list(self.parties[fp].contribute(vector))
                self.to_coordinator("vector", fp, frames)
        if self.form.survives_dropouts:
            self.reveal(mute=mute)
        return self.coordinator.batch.open_total()

    def reveal(self, *, mute: Collection[int] = ()) -> None:
        """The two other exchanges of a form that survives drop-outs: verdicts, then shares."""
        silent = {self.coordinator.seats[seat] for seat in mute}
        self.agree(self.coordinator.batch.propose(), mute=silent)
        self.show(self.coordinator.batch.certify(), mute=silent)

    def agree(self, proposals: Mapping[bytes, bytes], *, mute: Collection[bytes] = ()) -> None:
        """Hand out proposals and take the verdicts."""
        for fp, frame in proposals.items():
            if fp not in mute:
                self.to_coordinator("verdict", fp, self.to_party("proposal", fp, frame))

    def show(self, told: Mapping[bytes, list[bytes]], *, mute: Collection[bytes] = ()) -> None:
        """Hand out the certificate and the shares, and take what is revealed."""
        for fp, frames in told.items():
            if fp not in mute:
                for frame in frames:
                    self.to_coordinator("reveal", fp, self.to_party("certificate", fp, frame))

    def close_plan(self, *, mute: Collection[bytes] = ()) -> None:
        """Have the open plan closed by enough parties."""
        self.agree(self.coordinator.batch.propose_closing(), mute=mute)
        assert self.coordinator.batch.certify() == {}

    def settle(self, *, released: bool = True, result: bytes = b"") -> None:
        frame = self.coordinator.batch.settle(released=released, result=result)
        for fp in self.parties:
            self.to_party("settlement", fp, frame)

    def close(self) -> None:
        self.broadcast("closing", self.coordinator.closing.close())
        self.broadcast("heads", self.coordinator.closing.compare())


_READY = Copies()


def ready_run(parties: int, *, form: Callable[[], SecureSum] = AdditiveSum) -> MemoryRun:
    """Set up a run, or copy one that was; see `Copies`."""
    name = next((name for name, known in _FORMS.items() if known is form), None)
    if name is None:
        return _set_up(parties, form)
    made: MemoryRun = _READY.of(
        lambda parties, form: _set_up(parties, _FORMS[form]), parties=parties, form=name
    )
    return made


def _set_up(parties: int, form: Callable[[], SecureSum]) -> MemoryRun:
    run = MemoryRun(parties, form=form)
    run.set_up()
    return run


_FORMS: dict[str, Callable[[], SecureSum]] = {
    form.name: form for form in (AdditiveSum, MaskedSum, PlainSum)
}

"""A run at its coordinator: its parties, its history, and the exchange that it is in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from protocols.errors import WrongStateError
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import Plan, RunRecord
from protocols.rounds.coordinator_journal import CoordinatorJournal, Step
from protocols.rounds.history import RunHistory, StepRules, unheard
from protocols.rounds.plans import OpenPlan, SettledPlan
from protocols.rounds.states import CoordinatorState
from protocols.secure_sum import RoundForm
from protocols.transcript import Transcript
from protocols.verified import CheckingCoordinator
from protocols.wire import Signed

MakeCheck: TypeAlias = Callable[[RunRecord, Plan], CheckingCoordinator]
"""Makes the coordinator's end of the check of a plan's reports, with its journal."""


class Exchange:
    """The exchange that the coordinator is in: which messages may come, and from whom."""

    def __init__(self, state: CoordinatorState, parties: tuple[bytes, ...]) -> None:
        self.state = state
        self._awaited = parties
        self._received: dict[bytes, Signed | None] = {}

    def begin(self, state: CoordinatorState, parties: tuple[bytes, ...] = ()) -> None:
        """Wait for a message of each of these parties; drop those of the exchange before."""
        self.state, self._awaited = state, parties
        self._received.clear()

    def leave_out(self, parties: Collection[bytes]) -> None:
        """Wait for these parties no more."""
        self._awaited = tuple(party for party in self._awaited if party not in parties)

    def take(self, sender: bytes, signed: Signed | None) -> None:
        """Note that a party answered, and keep its message unless it is None."""
        self._received[sender] = signed

    def collected(self) -> list[Signed]:
        """Hand over every party's message, in seat order; the same parties are awaited again.

        Raises `WrongStateError` where some message is missing.
        """
        if self.missing:
            raise WrongStateError("an exchange must be over, once", self.state.value)
        messages = [self._received.pop(party) for party in self._awaited]
        return [signed for signed in messages if signed is not None]

    def message_of(self, party: bytes) -> Signed | None:
        """Return the message of a party; None if none came or was kept."""
        return self._received.get(party)

    def frames_of(self, parties: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the frame that each party sent; empty where none came."""
        messages = (self._received.get(party) for party in parties)
        return tuple(b"" if signed is None else signed.frame for signed in messages)

    @property
    def missing(self) -> tuple[bytes, ...]:
        """Parties whose message has not come, in seat order."""
        return tuple(party for party in self._awaited if party not in self._received)

    @property
    def heard(self) -> int:
        """Parties whose message has come."""
        return len(self._awaited) - len(self.missing)

    def require(self, state: CoordinatorState) -> None:
        """Refuse a step in any other state, with `WrongStateError`."""
        if self.state is not state:
            raise WrongStateError(f"the state must be '{state.value}'", self.state.value)


class LiveRun:
    """State that all phases of a run share at its coordinator; parties are in seat order."""

    def __init__(
        self,
        identity: SigningIdentity,
        *,
        form: RoundForm,
        parties: Mapping[bytes, PublicIdentity],
        journal: CoordinatorJournal,
        check: MakeCheck | None = None,
    ) -> None:
        self.check = check
        self.identity = identity
        self.form = form
        self.parties = {seat: parties[seat] for seat in sorted(parties)}
        self.seats = tuple(self.parties)
        self.exchange = Exchange(CoordinatorState.OFFERED, self.seats)
        self.record: Signed | None = None
        self.history: RunHistory | None = None
        self._rules = StepRules(identity.public, self.parties, form)
        self._journal = journal
        self._transcript = Transcript()  # before there is a history

    def replay(self) -> RunHistory:
        """Read the journal back after a restart; see `StepRules.replay`."""
        self.history = known = self._rules.replay(self._journal.steps())
        self.record = known.record
        self.exchange.begin(known.state, self.seats)
        return known

    def do(self, step: Step) -> None:
        """Apply a step and journal it; nothing changed if either fails."""
        after = self._rules.apply(self.history, step)
        self._journal.append(step)
        self.history = after

    def extend(self, kind: str, digest: bytes) -> None:
        """Add to the transcript of a run that is not set up yet."""
        self._transcript = self._transcript.append(kind, digest)

    @property
    def run_id(self) -> bytes:
        """Digest of the run record; empty before it was made."""
        return b"" if self.record is None else self.record.digest

    @property
    def transcript(self) -> Transcript:
        """Chain of the run."""
        return self._transcript if self.history is None else self.history.transcript

    @property
    def known(self) -> RunHistory:
        """The journal's entries; `WrongStateError` where the run is not set up."""
        if self.history is None:
            raise WrongStateError("a run must be set up", self.exchange.state.value)
        return self.history

    @property
    def has_open_plan(self) -> bool:
        """Whether a plan waits to be settled."""
        return self.history is not None and self.history.plan is not None

    @property
    def open_plan(self) -> OpenPlan:
        """The open plan; `WrongStateError` where none is open."""
        if self.history is None or self.history.plan is None:
            raise WrongStateError("a plan must be open", self.exchange.state.value)
        return self.history.plan

    @property
    def settled(self) -> tuple[SettledPlan, ...]:
        """Every settled plan, in order."""
        return () if self.history is None else self.history.settled

    def unheard(self) -> dict[bytes, list[bytes]]:
        """Return the settlements that each party may not have heard of; see `history.unheard`."""
        return {seat: [] for seat in self.seats} | unheard(self._journal.steps())

    def require_settled(self) -> None:
        """Refuse, with `WrongStateError`, while a plan is open or an exchange goes on."""
        self.exchange.require(CoordinatorState.READY)
        if self.has_open_plan:
            raise WrongStateError("the last plan must be settled")

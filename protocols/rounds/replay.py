"""A coordinator's journal read back: each step is checked against those before it.

What the coordinator signed must bear its signature, what a party signed that party's, and every
plan, survivor set, settlement and closing must continue the chain. A journal with a step left out,
moved, repeated or changed is refused: it is never taken for another run's state.

A journal that lost its last steps reads like one of a run that had not come further. Its end is
known to whoever keeps the results (the store), and to the parties: a plan of an epoch that they
know, with other bytes, stops the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from protocols import wire
from protocols.errors import BrokenJournalError, ProtocolError, UnfinishedSetupError
from protocols.identity import PublicIdentity
from protocols.messages import (
    DIGEST_BYTES,
    Closing,
    Confirmations,
    HeadStatement,
    KeyStatement,
    Message,
    Plan,
    Ready,
    RunOffer,
    RunRecord,
    Settlement,
    SurvivorSet,
)
from protocols.rounds.contribution import Contribution, entry_of
from protocols.rounds.coordinator_journal import (
    HeadsCollected,
    PlanOpened,
    PlanSettled,
    RunClosed,
    RunFinished,
    SetupFinished,
    Step,
    SumOpened,
    SurvivorsFixed,
)
from protocols.rounds.party import least_heads, setup_digest
from protocols.rounds.states import CoordinatorState
from protocols.secure_sum import SecureSum
from protocols.signed_transcript import HeadSignature, HeadsRecord
from protocols.transcript import EntrySignature, Transcript
from protocols.wire import Signed


@dataclass(frozen=True, slots=True)
class SettledPlan:
    """A plan that came to its end.

    Attributes:
        plan: The plan.
        plan_digest: Its digest.
        settlement: What became of it.
        frame: The settlement as it is sent.
    """

    plan: Plan
    plan_digest: bytes
    settlement: Settlement = field(repr=False)
    frame: bytes = field(repr=False)

    @property
    def is_released(self) -> bool:
        """Whether its result was released."""
        return self.settlement.state == "released"


@dataclass(frozen=True, slots=True)
class RememberedRun:
    """All that a journal says of a run.

    Attributes:
        state: What the coordinator waits for.
        offer: The offer.
        record: The run record.
        transcript: Chain of the run.
        heads: What all parties signed of it.
        statements: The last statement of each party's journal counter, by fingerprint.
        epoch: Epoch of the last plan.
        plan: The open plan, if any.
        survivor_set: Its survivor set, if it was fixed.
        fixed: What each survivor signed for it until then, by fingerprint.
        opened: What each party in its sum signed for it, by fingerprint, if it was opened.
        settled: Every settled plan, in order.
        closing: Frame of the closing; empty before it.
        head_frames: Frames of the parties' heads, in seat order, empty for who was lost; none
            before the comparison.
    """

    state: CoordinatorState
    offer: Signed
    record: Signed
    transcript: Transcript
    heads: tuple[HeadsRecord, ...]
    statements: Mapping[bytes, Signed]
    epoch: int = 0
    plan: Signed | None = None
    survivor_set: Signed | None = None
    fixed: Mapping[bytes, Contribution] = field(default_factory=dict)
    opened: Mapping[bytes, Contribution] = field(default_factory=dict)
    settled: tuple[SettledPlan, ...] = ()
    closing: bytes = b""
    head_frames: tuple[bytes, ...] = ()


def replay(
    steps: Sequence[Step],
    *,
    coordinator: PublicIdentity,
    parties: Mapping[bytes, PublicIdentity],
    form: SecureSum,
) -> RememberedRun:
    """Read a journal back.

    Args:
        steps: What it holds, oldest first.
        coordinator: Who wrote it.
        parties: Pinned parties by fingerprint, all that took part.
        form: Secure sum of the run.

    Raises:
        UnfinishedSetupError: it holds nothing.
        BrokenJournalError: a step does not follow.
    """
    if not steps:
        raise UnfinishedSetupError("a run must have been set up to go on", "no step")
    reader = _Reader(coordinator, dict(parties), form)
    run: RememberedRun | None = None
    for step in steps:
        try:
            run = reader.take(run, step)
        except BrokenJournalError:
            raise
        except ProtocolError as error:
            raise BrokenJournalError(error.must, error.got) from error
    assert run is not None
    return run


@dataclass(frozen=True, slots=True)
class _Reader:
    """Adds one step after the other to what is known of a run."""

    coordinator: PublicIdentity
    parties: Mapping[bytes, PublicIdentity]
    form: SecureSum

    @property
    def seats(self) -> tuple[bytes, ...]:
        return tuple(sorted(self.parties))

    def take(self, run: RememberedRun | None, step: Step) -> RememberedRun:
        if run is None:
            _require("a journal must begin with a setup", isinstance(step, SetupFinished))
            assert isinstance(step, SetupFinished)
            return self._setup(step)
        match step:
            case PlanOpened():
                return self._plan(run, step)
            case SurvivorsFixed():
                return self._survivors(run, step)
            case SumOpened():
                return self._opened(run, step)
            case PlanSettled():
                return self._settled(run, step)
            case RunClosed():
                return self._closed(run, step)
            case HeadsCollected():
                return self._heads(run, step)
            case RunFinished():
                return self._finished(run, step)
            case SetupFinished():
                raise BrokenJournalError("a journal must have one setup", "a second")

    # One method per step ----------------------------------------------------------------------

    def _setup(self, step: SetupFinished) -> RememberedRun:
        offer, record = self._ours(step.offer), self._ours(step.record)
        self._require_record(wire.expect(offer, RunOffer), record, offer_digest=offer.digest)
        _require("every party must have confirmed", len(step.confirmations) == len(self.seats))
        signatures = []
        for seat, (digest, signature) in zip(self.seats, step.confirmations, strict=True):
            self.parties[seat].verify(
                purpose=Confirmations.PURPOSE, digest=digest, signature=signature
            )
            signatures.append(EntrySignature(seat, digest, signature))
        transcript = self._appended(Transcript(), "run record", record)
        digests = tuple(digest for digest, _ in step.confirmations)
        transcript = transcript.append("setup", setup_digest(digests), tuple(signatures))
        ready = self._all_ready(step.ready, "setup", record.digest, transcript.head)
        return RememberedRun(
            state=CoordinatorState.READY,
            offer=offer,
            record=record,
            transcript=transcript,
            heads=(_heads_record("setup", ready, transcript, epoch=0),),
            statements=ready,
        )

    def _require_record(self, offer: RunOffer, record: Signed, *, offer_digest: bytes) -> None:
        message = wire.expect(record, RunRecord)
        statements = [wire.expect(wire.decode(f), KeyStatement) for f in message.statements]
        seats = tuple(PublicIdentity(each.identity_key).fingerprint for each in statements)
        _require("the run must be of these parties", seats == self.seats)
        _require(
            "the run must be of this coordinator", offer.coordinator_key == self.coordinator.key
        )
        _require("a run record must keep to its offer", message.offer_digest == offer_digest)
        form = (message.form, message.ring_bits)
        _require("the run must be of this form", form == (self.form.name, self.form.ring.bits))

    def _plan(self, run: RememberedRun, step: PlanOpened) -> RememberedRun:
        signed = self._ours(step.plan)
        plan = wire.expect(signed, Plan)
        _require("a plan must follow a settled one", run.state is CoordinatorState.READY)
        _require("a plan must be of this run", plan.run_id == run.record.digest)
        _require("a plan must be of the next epoch", plan.epoch == run.epoch + 1)
        _require("a plan must continue the chain", plan.previous_head == run.transcript.head)
        return replace(
            run,
            state=CoordinatorState.COLLECTING,
            epoch=plan.epoch,
            plan=signed,
            transcript=self._appended(run.transcript, "plan", signed),
        )

    def _survivors(self, run: RememberedRun, step: SurvivorsFixed) -> RememberedRun:
        signed = self._ours(step.survivor_set)
        message = wire.expect(signed, SurvivorSet)
        plan = _open_plan(run)
        survives = self.form.survives_dropouts
        _require("survivors must be fixed once, if at all", survives and run.survivor_set is None)
        _require("survivors must be fixed before the sum is opened", not run.opened)
        _require("survivors must be of the open plan", message.plan_digest == plan.digest)
        chosen = tuple(seat for seat in self.seats if seat in message.survivors)
        _require("survivors must be seats, in order", message.survivors == chosen)
        self.form.require_survivors(len(chosen), parties=len(self.seats))
        fixed = self._by_seat(step.contributions)
        fits = all(each == each.without_reveal for each in fixed.values())
        _require("nothing must be revealed before survivors are fixed", fits)
        _require("survivors must have dealt", tuple(fixed) == chosen)
        return replace(run, survivor_set=signed, fixed=fixed)

    def _opened(self, run: RememberedRun, step: SumOpened) -> RememberedRun:
        _open_plan(run)
        _require("a sum must be opened once", not run.opened)
        opened = self._by_seat(step.contributions)
        survivors = self.seats
        if self.form.survives_dropouts:
            _require("survivors must be fixed before a sum", run.survivor_set is not None)
            assert run.survivor_set is not None
            survivors = wire.expect(run.survivor_set, SurvivorSet).survivors
            same = {seat: each.without_reveal for seat, each in opened.items()}
            _require("a sum must be of what the survivors signed", same == run.fixed)
        _require("a sum must be of the survivors' vectors", tuple(opened) == survivors)
        return replace(run, opened=opened)

    def _settled(self, run: RememberedRun, step: PlanSettled) -> RememberedRun:
        signed = self._ours(step.settlement)
        message = wire.expect(signed, Settlement)
        plan = _open_plan(run)
        listed = tuple(entry_of(run.opened.get(seat)) for seat in self.seats)
        _require("a settlement must be of the open plan", message.plan_digest == plan.digest)
        _require("a plan is released or void", message.state in ("released", "void"))
        _require("a release must follow an opened sum", message.state == "void" or bool(run.opened))
        fits = message.contributions == listed if run.opened else True
        _require("a settlement must list what was added", fits)
        transcript = run.transcript
        if message.state == "released" and run.survivor_set is not None:
            transcript = self._appended(transcript, "survivor set", run.survivor_set)
        settled = SettledPlan(wire.expect(plan, Plan), plan.digest, message, signed.frame)
        return replace(
            run,
            state=CoordinatorState.READY,
            plan=None,
            survivor_set=None,
            fixed={},
            opened={},
            settled=(*run.settled, settled),
            transcript=self._appended(transcript, "settlement", signed),
        )

    def _closed(self, run: RememberedRun, step: RunClosed) -> RememberedRun:
        message = wire.expect(self._ours(step.closing), Closing)
        _require("a run must be closed once, with no plan open", _is_settled(run))
        _require("a closing must be of this run", message.run_id == run.record.digest)
        _require("a closing must continue the chain", message.head == run.transcript.head)
        return replace(run, state=CoordinatorState.CLOSING, closing=step.closing)

    def _heads(self, run: RememberedRun, step: HeadsCollected) -> RememberedRun:
        _require("heads must follow a closing", run.state is CoordinatorState.CLOSING)
        signed = self._theirs(step.heads, may_be_lost=True)
        least = least_heads(self.form, parties=len(self.seats))
        _require("enough parties' heads must be there", len(signed) >= least)
        for seat, each in signed.items():
            message = wire.expect(each, HeadStatement)
            given = (message.sender, message.run_id, message.head, message.epoch)
            wanted = (seat, run.record.digest, run.transcript.head, run.epoch)
            _require("a head must be of this run", given == wanted)
        return replace(
            run,
            state=CoordinatorState.COMPARING,
            head_frames=step.heads,
            heads=(*run.heads, _heads_record("closing", signed, run.transcript, epoch=run.epoch)),
            statements={**run.statements, **signed},
        )

    def _finished(self, run: RememberedRun, step: RunFinished) -> RememberedRun:
        _require("a run must end after its comparison", run.state is CoordinatorState.COMPARING)
        record, head = run.record.digest, run.transcript.head
        ready = self._all_ready(step.ready, "closing", record, head, may_be_lost=True)
        heard = [seat for seat, frame in zip(self.seats, run.head_frames, strict=True) if frame]
        _require("all who showed their heads must have compared them", list(ready) == heard)
        return replace(run, state=CoordinatorState.DONE, statements={**run.statements, **ready})

    # Helpers ----------------------------------------------------------------------------------

    def _by_seat(self, listed: tuple[Contribution | None, ...]) -> dict[bytes, Contribution]:
        _require("every seat must be listed", len(listed) == len(self.seats))
        seats = zip(self.seats, listed, strict=True)
        signed = {seat: each for seat, each in seats if each is not None}
        fits = all(self._has_digests(each) for each in signed.values())
        _require("a contribution must have the digests of the form", fits)
        return signed

    def _has_digests(self, each: Contribution) -> bool:
        sizes = tuple(map(len, (each.vector, each.dealing, each.reveal)))
        if not self.form.survives_dropouts:
            return sizes == (DIGEST_BYTES, 0, 0)
        return sizes in ((DIGEST_BYTES,) * 3, (DIGEST_BYTES, DIGEST_BYTES, 0))

    def _ours(self, frame: bytes) -> Signed:
        signed = wire.decode(frame)
        signed.verify(self.coordinator)
        return signed

    def _theirs(
        self, frames: tuple[bytes, ...], *, may_be_lost: bool = False
    ) -> dict[bytes, Signed]:
        """Read a frame of each party; the place of one that was lost may be empty."""
        _require("every party's frame must be there", len(frames) == len(self.seats))
        found = {}
        for seat, frame in zip(self.seats, frames, strict=True):
            if may_be_lost and not frame:
                continue
            found[seat] = wire.decode(frame)
            found[seat].verify(self.parties[seat])
        return found

    def _all_ready(
        self,
        frames: tuple[bytes, ...],
        stage: str,
        run_id: bytes,
        head: bytes,
        *,
        may_be_lost: bool = False,
    ) -> dict[bytes, Signed]:
        signed = self._theirs(frames, may_be_lost=may_be_lost)
        for seat, each in signed.items():
            message = wire.expect(each, Ready)
            given = (message.sender, message.run_id, message.stage, message.head)
            _require("a party must be ready with this stage", given == (seat, run_id, stage, head))
        return signed

    def _appended(self, transcript: Transcript, kind: str, signed: Signed) -> Transcript:
        signature = EntrySignature(self.coordinator.fingerprint, signed.digest, signed.signature)
        return transcript.append(kind, signed.digest, (signature,))


def _open_plan(run: RememberedRun) -> Signed:
    if run.plan is None:
        raise BrokenJournalError("a plan must be open", "none")
    return run.plan


def _is_settled(run: RememberedRun) -> bool:
    return run.state is CoordinatorState.READY and run.plan is None


def _heads_record(
    stage: str, signed: Mapping[bytes, Signed], transcript: Transcript, *, epoch: int
) -> HeadsRecord:
    signatures = []
    for seat, each in signed.items():
        message: Message = each.message
        assert isinstance(message, Ready | HeadStatement)
        signatures.append(HeadSignature(seat, message.journal_counter, each.signature))
    return HeadsRecord(stage, len(transcript.entries), epoch, tuple(signatures))


def _require(must: str, holds: bool) -> None:
    if not holds:
        raise BrokenJournalError(must, "otherwise")

"""A run as its coordinator's journal tells it: one `apply` for each step, live and after a restart.

`StepRules.apply` is the only place that says how a step changes a run, and which step may follow
which. A live run applies a step before it journals it. `replay` reads a journal back: it verifies
every signature and applies the same rules, so a journal with a step left out, moved, repeated or
changed is refused.

A journal that lost its last steps looks like one of a run that stopped earlier. The results' store
and the parties notice: a second plan of one epoch, with other bytes, stops the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from protocols import wire
from protocols.errors import BrokenJournalError, ProtocolError, UnfinishedSetupError
from protocols.fields import DIGEST_BYTES, Message
from protocols.identity import PublicIdentity
from protocols.messages import (
    Certificate,
    Closing,
    Confirmations,
    HeadStatement,
    KeyStatement,
    Plan,
    Proposal,
    Ready,
    RunOffer,
    RunRecord,
    Settlement,
)
from protocols.rounds.contribution import Contribution, entry_of
from protocols.rounds.coordinator_journal import (
    HeadsCollected,
    PlanCertified,
    PlanOpened,
    PlanProposed,
    PlanSettled,
    RunClosed,
    RunFinished,
    SetupFinished,
    Step,
    SumOpened,
)
from protocols.rounds.plans import OpenPlan, SettledPlan
from protocols.rounds.seating import require_enough_heads, setup_digest
from protocols.rounds.states import CoordinatorState
from protocols.rounds.verdicts import require_certificate
from protocols.secure_sum import SecureSum
from protocols.signed_transcript import HeadSignature, HeadsRecord
from protocols.transcript import EntrySignature, Transcript
from protocols.wire import Signed


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The state of a run by its journal.

    Attributes:
        state: The message that the coordinator waits for.
        offer: The offer.
        record: The run record.
        transcript: Chain of the run.
        heads: All parties' signed heads.
        statements: The last statement of each party's journal counter, by fingerprint.
        epoch: Epoch of the last plan.
        plan: The open plan, if any.
        settled: Every settled plan, in order.
        closing: Frame of the closing; empty before it.
        head_frames: Frames of the parties' heads, in seat order, empty for a lost party; none
            before the comparison.
    """

    state: CoordinatorState
    offer: Signed
    record: Signed
    transcript: Transcript
    heads: tuple[HeadsRecord, ...]
    statements: Mapping[bytes, Signed]
    epoch: int = 0
    plan: OpenPlan | None = None
    settled: tuple[SettledPlan, ...] = ()
    closing: bytes = b""
    head_frames: tuple[bytes, ...] = ()


def unheard(steps: Sequence[Step]) -> dict[bytes, list[bytes]]:
    """Return the settlements of a run that a party may not have heard of, oldest first.

    A party that sent a y knew all settlements before that plan, and one whose head was compared
    knew all of them. A settlement that comes twice changes nothing.

    Args:
        steps: The run's journal. It is the coordinator's own: no signature is verified.

    Returns:
        Their frames, by party; no parties where the run was not set up.
    """
    frames: dict[bytes, list[bytes]] = {}
    for step in steps:
        match step:
            case SetupFinished():
                record = wire.expect(wire.decode(step.record), RunRecord)
                frames = {seat: [] for seat in _seats_of(record)}
            case PlanSettled():
                settlement = wire.expect(wire.decode(step.settlement), Settlement)
                for missed, sent in zip(frames.values(), settlement.contributions, strict=True):
                    if sent:
                        missed.clear()
                    missed.append(step.settlement)
            case HeadsCollected():
                for missed, head in zip(frames.values(), step.heads, strict=True):
                    if head:
                        missed.clear()
            case _:
                pass
    return frames


def _seats_of(record: RunRecord) -> list[bytes]:
    stated = [wire.expect(wire.decode(frame), KeyStatement) for frame in record.statements]
    return [PublicIdentity(each.identity_key).fingerprint for each in stated]


@dataclass(frozen=True)
class StepRules:
    """How each step changes a run.

    Attributes:
        coordinator: The coordinator, which signs plans, proposals, settlements and the closing.
        parties: Pinned parties in seat order, by fingerprint: all that take part.
        form: Secure sum of the run.
    """

    coordinator: PublicIdentity
    parties: Mapping[bytes, PublicIdentity]
    form: SecureSum

    @cached_property
    def seats(self) -> tuple[bytes, ...]:
        """Fingerprints of all parties, in seat order."""
        return tuple(self.parties)

    def replay(self, steps: Sequence[Step]) -> RunHistory:
        """Read a journal back.

        Args:
            steps: All its steps, oldest first.

        Raises:
            UnfinishedSetupError: it holds nothing.
            BrokenJournalError: a step does not follow, or a signature is wrong.
        """
        run: RunHistory | None = None
        for step in steps:
            try:
                self.verify(step)
                run = self.apply(run, step)
            except BrokenJournalError:
                raise
            except ProtocolError as error:
                raise BrokenJournalError(error.must, error.got) from error
        if run is None:
            raise UnfinishedSetupError("a run must have been set up to go on", "no step")
        return run

    def apply(self, run: RunHistory | None, step: Step) -> RunHistory:
        """Return the run after a step.

        Raises:
            BrokenJournalError: the step does not follow.
        """
        if run is None or isinstance(step, SetupFinished):
            _require("a journal must begin with a setup", isinstance(step, SetupFinished))
            _require("a journal must have one setup", run is None)
            assert isinstance(step, SetupFinished)
            return self._setup(step)
        match step:
            case PlanOpened():
                return self._plan(run, step)
            case PlanProposed():
                return self._proposed(run, step)
            case PlanCertified():
                return self._certified(run, step)
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

    def verify(self, step: Step) -> None:
        """Verify the signatures of a step that was read back.

        Raises:
            ProtocolError: one is wrong.
        """
        match step:
            case SetupFinished():
                self._require_ours(step.offer, step.record)
                _require("every party must have confirmed", self._is_whole(step.confirmations))
                for seat, (digest, signature) in zip(self.seats, step.confirmations, strict=True):
                    self.parties[seat].verify(
                        purpose=Confirmations.PURPOSE, digest=digest, signature=signature
                    )
                self._require_theirs(step.ready)
            case PlanOpened(plan=frame) | PlanSettled(settlement=frame) | RunClosed(closing=frame):
                self._require_ours(frame)
            case PlanProposed():
                self._require_ours(step.proposal)
            case PlanCertified():
                certificate = wire.expect(wire.decode(step.certificate), Certificate)
                threshold = self.form.threshold(len(self.seats))
                require_certificate(certificate, identities=self.parties, threshold=threshold)
            case HeadsCollected():
                self._require_theirs(step.heads)
            case RunFinished():
                self._require_theirs(step.ready)
            case SumOpened():
                pass  # digests alone

    # One method per step ----------------------------------------------------------------------

    def _setup(self, step: SetupFinished) -> RunHistory:
        offer, record = wire.decode(step.offer), wire.decode(step.record)
        self._require_record(wire.expect(offer, RunOffer), record, offer_digest=offer.digest)
        _require("every party must have confirmed", self._is_whole(step.confirmations))
        signatures = tuple(
            EntrySignature(seat, digest, signature)
            for seat, (digest, signature) in zip(self.seats, step.confirmations, strict=True)
        )
        transcript = self._appended(Transcript(), "run record", record)
        digests = tuple(digest for digest, _ in step.confirmations)
        transcript = transcript.append("setup", setup_digest(digests), signatures)
        stated = [wire.decode(frame) for frame in wire.expect(record, RunRecord).statements]
        ready = self._by_seat(step.ready)
        _require("every party must be ready", len(ready) == len(self.seats))
        self._require_ready(ready, "setup", record.digest, transcript.head)
        return RunHistory(
            state=CoordinatorState.READY,
            offer=offer,
            record=record,
            transcript=transcript,
            heads=(heads_record("setup", ready, transcript, epoch=0),),
            statements=newest(dict(zip(self.seats, stated, strict=True)), ready),
        )

    def _require_record(self, offer: RunOffer, record: Signed, *, offer_digest: bytes) -> None:
        message = wire.expect(record, RunRecord)
        seats = tuple(_seats_of(message))
        _require("the run must be of these parties", seats == self.seats)
        _require(
            "the run must be of this coordinator", offer.coordinator_key == self.coordinator.key
        )
        _require("a run record must keep to its offer", message.offer_digest == offer_digest)
        form = (message.form, message.ring_bits)
        _require("the run must be of this form", form == (self.form.name, self.form.ring.bits))

    def _plan(self, run: RunHistory, step: PlanOpened) -> RunHistory:
        signed = wire.decode(step.plan)
        plan = wire.expect(signed, Plan)
        _require("a plan must follow a settled one", run.state is CoordinatorState.READY)
        _require("a plan must be of this run", plan.run_id == run.record.digest)
        _require("a plan must be of the next epoch", plan.epoch == run.epoch + 1)
        _require("a plan must continue the chain", plan.previous_head == run.transcript.head)
        return replace(
            run,
            state=CoordinatorState.COLLECTING,
            epoch=plan.epoch,
            plan=OpenPlan(signed),
            transcript=self._appended(run.transcript, "plan", signed),
        )

    def _proposed(self, run: RunHistory, step: PlanProposed) -> RunHistory:
        signed = wire.decode(step.proposal)
        message, plan = wire.expect(signed, Proposal), _open_plan(run)
        _require("only a form that survives drop-outs proposes", self.form.survives_dropouts)
        _require("a proposal must come before a certificate", not plan.certificate_frame)
        _require("a proposal must be of this run", message.run_id == run.record.digest)
        _require("a proposal must be of the open plan", message.plan_digest == plan.signed.digest)
        fixed = self._contributions(step.contributions)
        if not message.survivors:
            _require("a plan must be closed once, of no parties", not (plan.closing or fixed))
            return replace(run, plan=replace(plan, closing=signed))
        is_first = plan.proposal is None and plan.closing is None
        _require("a set must be proposed once, before the plan is closed", is_first)
        chosen = tuple(seat for seat in self.seats if seat in message.survivors)
        _require("survivors must be seats, in order", message.survivors == chosen)
        self.form.require_survivors(len(chosen), parties=len(self.seats))
        fits = all(each == each.without_reveal for each in fixed.values())
        _require("nothing must be revealed before a set is certified", fits)
        _require("survivors must have dealt", tuple(fixed) == chosen)
        return replace(run, plan=replace(plan, proposal=signed, fixed=fixed))

    def _certified(self, run: RunHistory, step: PlanCertified) -> RunHistory:
        plan = _open_plan(run)
        certificate = wire.expect(wire.decode(step.certificate), Certificate)
        _require("a plan must be certified once", not plan.certificate_frame)
        _require(
            "a certificate must be of the open plan",
            certificate.plan_digest == plan.signed.digest,
        )
        follows = certificate.survivors == plan.last_proposed
        _require("a certificate must follow its proposal", follows)
        return replace(run, plan=replace(plan, certificate_frame=step.certificate))

    def _opened(self, run: RunHistory, step: SumOpened) -> RunHistory:
        plan = _open_plan(run)
        _require("a sum must be opened once", not plan.opened)
        opened = self._contributions(step.contributions)
        survivors = self.seats
        if self.form.survives_dropouts:
            certificate = plan.certificate
            _require("a set must be certified before its sum opens", certificate is not None)
            assert certificate is not None
            _require("a plan that is closed must not open", bool(certificate.survivors))
            survivors = certificate.survivors
            same = {seat: each.without_reveal for seat, each in opened.items()}
            _require("a sum must be of what the survivors signed", same == plan.fixed)
        _require("a sum must be of the survivors' vectors", tuple(opened) == survivors)
        return replace(run, plan=replace(plan, opened=opened))

    def _settled(self, run: RunHistory, step: PlanSettled) -> RunHistory:
        signed = wire.decode(step.settlement)
        message, plan = wire.expect(signed, Settlement), _open_plan(run)
        listed = tuple(entry_of(plan.opened.get(seat)) for seat in self.seats)
        _require("a settlement must be of this run", message.run_id == run.record.digest)
        _require("a settlement must be of the plan's length", message.words == plan.plan.words)
        _require("a settlement must be of the open plan", message.plan_digest == plan.signed.digest)
        _require("a plan is released or void", message.state in ("released", "void"))
        _require(
            "a release must follow an opened sum", message.state == "void" or bool(plan.opened)
        )
        fits = not plan.opened or message.contributions == listed
        _require("a settlement must list what was added", fits)
        _require(
            "a settlement must have the plan's certificate",
            message.certificate == plan.certificate_frame,
        )
        transcript = run.transcript
        certificate = plan.certificate
        if certificate is not None:
            transcript = _with_verdict(transcript, certificate)
        settled = SettledPlan(plan.plan, plan.signed.digest, message, signed.frame)
        return replace(
            run,
            state=CoordinatorState.READY,
            plan=None,
            settled=(*run.settled, settled),
            transcript=self._appended(transcript, "settlement", signed),
        )

    def _closed(self, run: RunHistory, step: RunClosed) -> RunHistory:
        message = wire.expect(wire.decode(step.closing), Closing)
        _require(
            "a run must be closed once, with no plan open", run.state is CoordinatorState.READY
        )
        _require("a closing must be of this run", message.run_id == run.record.digest)
        _require("a closing must continue the chain", message.head == run.transcript.head)
        return replace(run, state=CoordinatorState.CLOSING, closing=step.closing)

    def _heads(self, run: RunHistory, step: HeadsCollected) -> RunHistory:
        _require("heads must follow a closing", run.state is CoordinatorState.CLOSING)
        signed = self._by_seat(step.heads)
        require_enough_heads(step.heads, self.form)
        for seat, each in signed.items():
            message = wire.expect(each, HeadStatement)
            given = (message.sender, message.run_id, message.head, message.epoch)
            wanted = (seat, run.record.digest, run.transcript.head, run.epoch)
            _require("a head must be of this run", given == wanted)
        return replace(
            run,
            state=CoordinatorState.COMPARING,
            head_frames=step.heads,
            heads=(*run.heads, heads_record("closing", signed, run.transcript, epoch=run.epoch)),
            statements=newest(run.statements, signed),
        )

    def _finished(self, run: RunHistory, step: RunFinished) -> RunHistory:
        _require("a run must end after its comparison", run.state is CoordinatorState.COMPARING)
        ready = self._by_seat(step.ready)
        self._require_ready(ready, "closing", run.record.digest, run.transcript.head)
        heard = [seat for seat, frame in zip(self.seats, run.head_frames, strict=True) if frame]
        _require("all who showed their heads must have compared them", list(ready) == heard)
        return replace(run, state=CoordinatorState.DONE, statements=newest(run.statements, ready))

    # Helpers ----------------------------------------------------------------------------------

    def _is_whole(self, items: Sequence[object]) -> bool:
        return len(items) == len(self.seats)

    def _require_ours(self, *frames: bytes) -> None:
        for frame in frames:
            wire.decode(frame).verify(self.coordinator)

    def _require_theirs(self, frames: tuple[bytes, ...]) -> None:
        for seat, signed in self._by_seat(frames).items():
            signed.verify(self.parties[seat])

    def _by_seat(self, frames: tuple[bytes, ...]) -> dict[bytes, Signed]:
        """Read a frame of each party; the place of a lost one may be empty."""
        _require("every party's frame must be there", self._is_whole(frames))
        seats = zip(self.seats, frames, strict=True)
        return {seat: wire.decode(frame) for seat, frame in seats if frame}

    def _contributions(self, listed: tuple[Contribution | None, ...]) -> dict[bytes, Contribution]:
        _require("every seat must be listed", self._is_whole(listed))
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

    def _require_ready(
        self, signed: Mapping[bytes, Signed], stage: str, run_id: bytes, head: bytes
    ) -> None:
        for seat, each in signed.items():
            message = wire.expect(each, Ready)
            given = (message.sender, message.run_id, message.stage, message.head)
            _require("a party must be ready with this stage", given == (seat, run_id, stage, head))

    def _appended(self, transcript: Transcript, kind: str, signed: Signed) -> Transcript:
        signature = EntrySignature(self.coordinator.fingerprint, signed.digest, signed.signature)
        return transcript.append(kind, signed.digest, (signature,))


def newest(known: Mapping[bytes, Signed], signed: Mapping[bytes, Signed]) -> dict[bytes, Signed]:
    """Return each party's statement with the highest counter of its journal, by fingerprint."""
    later = {
        party: each
        for party, each in signed.items()
        if party not in known or counter_in(each) >= counter_in(known[party])
    }
    return {**known, **later}


def counter_in(signed: Signed) -> int:
    """Return the counter of its journal that a party stated."""
    assert isinstance(signed.message, KeyStatement | Ready | HeadStatement)
    return signed.message.journal_counter


def heads_record(
    stage: str, signed: Mapping[bytes, Signed], transcript: Transcript, *, epoch: int
) -> HeadsRecord:
    """Return the signed heads of a run, as the written transcript has them."""
    signatures = []
    for seat, each in signed.items():
        message: Message = each.message
        assert isinstance(message, Ready | HeadStatement)
        signatures.append(HeadSignature(seat, message.journal_counter, each.signature))
    return HeadsRecord(stage, len(transcript.entries), epoch, tuple(signatures))


def _with_verdict(transcript: Transcript, certificate: Certificate) -> Transcript:
    """Add a certified verdict, with the signatures that prove it."""
    digest = wire.digest_of(certificate.verdict)
    signed = zip(certificate.signers, certificate.signatures, strict=True)
    signatures = tuple(EntrySignature(signer, digest, signature) for signer, signature in signed)
    return transcript.append("verdict", digest, signatures, survivors=certificate.survivors)


def _open_plan(run: RunHistory) -> OpenPlan:
    if run.plan is None:
        raise BrokenJournalError("a plan must be open", "none")
    return run.plan


def _require(must: str, holds: bool) -> None:
    if not holds:
        raise BrokenJournalError(must, "otherwise")

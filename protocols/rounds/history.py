"""A run as its coordinator's journal tells it: one `apply` for each step, live and after a restart.

`StepRules.apply` is the only place that says how a step changes a run, which step may follow which,
and whose signatures it needs. A live run applies a step before it journals it, and `replay` applies
all of them again: a journal with a step left out, moved, repeated or changed is refused.

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
    Plan,
    Ready,
    RunOffer,
    RunRecord,
    SetProposal,
    Settlement,
)
from protocols.rounds.contribution import Contribution, entry_of
from protocols.rounds.coordinator_journal import (
    Contributions,
    ContributionsFixed,
    Frames,
    HeadsCollected,
    PlanCertified,
    PlanOpened,
    PlanProposed,
    PlanSettled,
    RunEnded,
    RunFinished,
    SetupFinished,
    Step,
)
from protocols.rounds.plans import OpenPlan, SettledPlan
from protocols.rounds.seating import require_enough_heads, seats_of, setup_digest
from protocols.rounds.states import CoordinatorState
from protocols.rounds.verdicts import require_certificate
from protocols.secure_sum import RoundForm
from protocols.transcript import EntrySignature, HeadsRecord, Transcript, counter_in
from protocols.wire import Signed


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The state of a run by its journal.

    `statements` are the last ones of each party's journal counter, by fingerprint. `closing` is its
    frame, empty before it, `head_frames` those of the parties' heads, empty for a lost party; none
    before.
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

    @property
    def absent(self) -> tuple[bytes, ...]:
        """Parties that were not ready in time, in seat order: the run was set up without them."""
        seats = seats_of(wire.expect(self.record, RunRecord))
        return tuple(seat for seat in seats if seat not in self.heads[0].signed)


def unheard(steps: Sequence[Step]) -> dict[bytes, list[bytes]]:
    """Return the settlements of a run that a party may not have heard of, oldest first, by party.

    A party that sent a y knew all settlements before that plan, and one whose head was compared
    knew all of them. A settlement that comes twice changes nothing. Parties without which the run
    was set up have none, and nobody where it was not set up. The journal is the coordinator's own:
    no signature is verified.
    """
    frames: dict[bytes, list[bytes]] = {}
    absent: set[bytes] = set()
    for step in steps:
        match step:
            case SetupFinished():
                record = wire.expect(wire.decode(step.record), RunRecord)
                seats = seats_of(record)
                frames = {seat: [] for seat in seats}
                absent = {seat for seat, ready in zip(seats, step.ready, strict=True) if not ready}
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
    return {seat: missed for seat, missed in frames.items() if seat not in absent}


@dataclass(frozen=True)
class StepRules:
    """How each step changes a run of a coordinator and its parties, these in seat order."""

    coordinator: PublicIdentity
    parties: Mapping[bytes, PublicIdentity]
    form: RoundForm

    @cached_property
    def seats(self) -> tuple[bytes, ...]:
        """Fingerprints of all parties, in seat order."""
        return tuple(self.parties)

    def replay(self, steps: Sequence[Step]) -> RunHistory:
        """Read a journal back, its oldest step first.

        Raises:
            UnfinishedSetupError: it holds nothing.
            BrokenJournalError: a step does not follow, or a signature is wrong.
        """
        run: RunHistory | None = None
        for step in steps:
            try:
                run = self.apply(run, step)
            except BrokenJournalError:
                raise
            except ProtocolError as error:
                raise BrokenJournalError(error.must, error.got) from error
        if run is None:
            raise UnfinishedSetupError("a run must have been set up to go on")
        return run

    def apply(self, run: RunHistory | None, step: Step) -> RunHistory:
        """Return the run after a step, which must follow; None before its setup."""
        if isinstance(step, SetupFinished):
            _require("a journal must have one setup", run is None)
            return self._setup(step)
        if run is None:
            raise BrokenJournalError("a journal must begin with a setup", type(step).__name__)
        match step:
            case PlanOpened():
                return self._plan(run, step)
            case PlanProposed():
                return self._proposed(run, step)
            case PlanCertified():
                return self._certified(run, step)
            case ContributionsFixed():
                return self._opened(run, step)
            case PlanSettled():
                return self._settled(run, step)
            case RunEnded():
                return self._ended(run, step)
            case HeadsCollected():
                return self._heads(run, step)
            case RunFinished():
                return self._finished(run, step)

    # One method per step ----------------------------------------------------------------------

    def _setup(self, step: SetupFinished) -> RunHistory:
        offer, record = self._ours(step.offer), self._ours(step.record)
        told, message = wire.expect(offer, RunOffer), wire.expect(record, RunRecord)
        _require("the run must be of these parties", seats_of(message) == self.seats)
        present = [seat for seat in self.seats if seat not in message.absent]
        stated = map(wire.decode, message.statements)
        keys = told.coordinator_key, message.offer_digest
        _require("a run must keep to its offer", keys == (self.coordinator.key, offer.digest))
        form = (message.form, message.ring_bits)
        _require("the run must be of this form", form == (self.form.name, self.form.ring_bits))
        transcript = self._appended(Transcript(), "run record", record)
        if self.form.has_pair_keys:
            confirmed = self._all_of(step.confirmations, Confirmations)
            transcript = transcript.append(
                "setup",
                setup_digest([each.digest for each in confirmed.values()]),
                tuple(map(_signature, confirmed, confirmed.values())),
            )
        ready = self._theirs(step.ready)
        least = self.form.fewest_present(len(self.seats))
        is_enough = len(ready) >= least and ready.keys() <= set(present)
        _require("enough parties must be ready", is_enough)
        self._require_ready(ready, "setup", record.digest, transcript.head)
        return RunHistory(
            state=CoordinatorState.READY,
            offer=offer,
            record=record,
            transcript=transcript,
            heads=(HeadsRecord("setup", len(transcript.entries), 0, ready),),
            statements=newest(dict(zip(present, stated, strict=True)), ready),
        )

    def _plan(self, run: RunHistory, step: PlanOpened) -> RunHistory:
        signed = self._ours(step.plan, run)
        plan = wire.expect(signed, Plan)
        _require("a plan must follow a settled one", run.state is CoordinatorState.READY)
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
        signed = self._ours(step.proposal, run)
        message = wire.expect(signed, SetProposal)
        plan = _open_plan(run, message.plan_digest)
        _require("only a form with verdicts proposes", self.form.is_certified)
        _require("a proposal must come before a certificate", not plan.certificate_frame)
        fixed = self._contributions(step.contributions)
        if not message.survivors:
            _require("a plan must be closed once, of no parties", not (plan.closing or fixed))
            return replace(run, plan=replace(plan, closing=signed))
        is_first = plan.proposal is None and plan.closing is None
        _require("a set must be proposed once, before the plan is closed", is_first)
        self.form.require_survivors(len(message.survivors), parties=len(self.seats))
        unrevealed = all(each == each.without_reveal for each in fixed.values())
        _require("nothing must be revealed before a set is certified", unrevealed)
        # `fixed` is in seat order, so the survivors are, too, and none comes twice.
        _require("survivors must have dealt", tuple(fixed) == message.survivors)
        return replace(run, plan=replace(plan, proposal=signed, fixed=fixed))

    def _certified(self, run: RunHistory, step: PlanCertified) -> RunHistory:
        certificate = wire.expect(wire.decode(step.certificate), Certificate)
        plan = _open_plan(run, certificate.plan_digest)
        _require("a plan must be certified once", not plan.certificate_frame)
        follows = certificate.survivors == plan.last_proposed
        _require("a certificate must follow its proposal", follows)
        threshold = self.form.threshold(len(self.seats))
        require_certificate(certificate, identities=self.parties, threshold=threshold)
        return replace(run, plan=replace(plan, certificate_frame=step.certificate))

    def _opened(self, run: RunHistory, step: ContributionsFixed) -> RunHistory:
        plan = _open_plan(run)
        _require("a sum must be opened once", not plan.opened)
        opened = self._contributions(step.contributions)
        survivors = self.seats
        if self.form.adds_noise:  # the reports that both aggregators accepted
            self.form.require_survivors(len(opened), parties=len(self.seats))
            survivors = tuple(opened)
        elif self.form.is_certified:
            _require("a set must be certified before its sum opens", plan.opens_a_set)
            survivors = plan.survivors
            same = {seat: each.without_reveal for seat, each in opened.items()}
            _require("a sum must be of what the survivors signed", same == plan.fixed)
        _require("a sum must be of the survivors' vectors", tuple(opened) == survivors)
        return replace(run, plan=replace(plan, opened=opened))

    def _settled(self, run: RunHistory, step: PlanSettled) -> RunHistory:
        signed = self._ours(step.settlement, run)
        message = wire.expect(signed, Settlement)
        plan = _open_plan(run, message.plan_digest)
        _require("a settlement must be of the plan's length", message.words == plan.plan.words)
        _require("a plan is released or void", message.state in ("released", "void"))
        follows = message.state == "void" or bool(plan.opened)
        _require("a release must follow an opened sum", follows)
        listed = tuple(entry_of(plan.opened.get(seat)) for seat in self.seats)
        fits = not plan.opened or message.contributions == listed
        _require("a settlement must list what was added", fits)
        proven = message.certificate == plan.certificate_frame
        _require("a settlement must have the plan's certificate", proven)
        transcript, certificate = run.transcript, plan.certificate
        if certificate is not None:
            transcript = _with_verdict(transcript, certificate)
        settled = SettledPlan(plan.plan, plan.digest, message, signed.frame)
        return replace(
            run,
            state=CoordinatorState.READY,
            plan=None,
            settled=(*run.settled, settled),
            transcript=self._appended(transcript, "settlement", signed),
        )

    def _ended(self, run: RunHistory, step: RunEnded) -> RunHistory:
        message = wire.expect(self._ours(step.closing, run), Closing)
        is_between = run.state is CoordinatorState.READY
        _require("a run must be closed once, with no plan open", is_between)
        _require("a closing must continue the chain", message.head == run.transcript.head)
        return replace(run, state=CoordinatorState.CLOSING, closing=step.closing)

    def _heads(self, run: RunHistory, step: HeadsCollected) -> RunHistory:
        _require("heads must follow a closing", run.state is CoordinatorState.CLOSING)
        signed = self._theirs(step.heads)
        require_enough_heads(step.heads, self.form)
        for seat, each in signed.items():
            message = wire.expect(each, HeadStatement)
            given = (message.sender, message.run_id, message.head, message.epoch)
            wanted = (seat, run.record.digest, run.transcript.head, run.epoch)
            _require("a head must be of this run", given == wanted)
        heads = HeadsRecord("closing", len(run.transcript.entries), run.epoch, signed)
        return replace(
            run,
            state=CoordinatorState.COMPARING,
            head_frames=step.heads,
            heads=(*run.heads, heads),
            statements=newest(run.statements, signed),
        )

    def _finished(self, run: RunHistory, step: RunFinished) -> RunHistory:
        _require("a run must end after its comparison", run.state is CoordinatorState.COMPARING)
        ready = self._theirs(step.ready)
        self._require_ready(ready, "closing", run.record.digest, run.transcript.head)
        heard = [seat for seat, frame in zip(self.seats, run.head_frames, strict=True) if frame]
        _require("all who showed their heads must have compared them", list(ready) == heard)
        return replace(run, state=CoordinatorState.DONE, statements=newest(run.statements, ready))

    # Helpers ----------------------------------------------------------------------------------

    def _ours(self, frame: bytes, run: RunHistory | None = None) -> Signed:
        """Read what the coordinator signed, after the setup for this run."""
        signed = wire.decode(frame)
        signed.verify(self.coordinator)
        if run is not None:
            of_run = getattr(signed.message, "run_id", b"") == run.record.digest
            _require("a message must be of this run", of_run)
        return signed

    def _theirs(self, frames: Frames) -> dict[bytes, Signed]:
        """Read what each party signed; the place of a lost one may be empty."""
        _require("every party must have its place", len(frames) == len(self.seats))
        signed = {
            seat: wire.decode(frame)
            for seat, frame in zip(self.seats, frames, strict=True)
            if frame
        }
        for seat, each in signed.items():
            each.verify(self.parties[seat])
        return signed

    def _all_of(self, frames: Frames, kind: type[Message]) -> dict[bytes, Signed]:
        signed = self._theirs(frames)
        _require(f"every party must have sent its {kind.PURPOSE}", len(signed) == len(self.seats))
        for each in signed.values():
            wire.expect(each, kind)
        return signed

    def _contributions(self, listed: Contributions) -> dict[bytes, Contribution]:
        _require("every party must have its place", len(listed) == len(self.seats))
        seats = zip(self.seats, listed, strict=True)
        signed = {seat: each for seat, each in seats if each is not None}
        fits = all(self._has_digests(each) for each in signed.values())
        _require("a contribution must have the digests of the form", fits)
        return signed

    def _has_digests(self, each: Contribution) -> bool:
        sizes = tuple(map(len, (each.vector, each.dealing, each.reveal)))
        if not self.form.is_certified:
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
        by = self.coordinator.fingerprint
        return transcript.append(kind, signed.digest, (_signature(by, signed),))


def _signature(sender: bytes, signed: Signed) -> EntrySignature:
    return EntrySignature(sender, signed.digest, signed.signature)


def newest(known: Mapping[bytes, Signed], signed: Mapping[bytes, Signed]) -> dict[bytes, Signed]:
    """Return each party's statement with the highest counter of its journal, by fingerprint."""
    later = {
        party: each
        for party, each in signed.items()
        if party not in known or counter_in(each) >= counter_in(known[party])
    }
    return {**known, **later}


def _with_verdict(transcript: Transcript, certificate: Certificate) -> Transcript:
    digest = wire.digest_of(certificate.verdict)
    signed = zip(certificate.signers, certificate.signatures, strict=True)
    signatures = tuple(EntrySignature(signer, digest, signature) for signer, signature in signed)
    return transcript.append("verdict", digest, signatures, survivors=certificate.survivors)


def _open_plan(run: RunHistory, digest: bytes | None = None) -> OpenPlan:
    if run.plan is None or digest not in (None, run.plan.digest):
        raise BrokenJournalError("a step must be of the open plan")
    return run.plan


def _require(must: str, holds: bool) -> None:
    if not holds:
        raise BrokenJournalError(must)

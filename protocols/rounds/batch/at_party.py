"""A batch at a party, from the plan to the settlement: its y, its verdict, its shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.errors import HistoryError, InvalidVectorError, KeyReuseError, UnexpectedMessageError
from protocols.messages import Certificate, Plan, SetProposal, Settlement, ShareBundle
from protocols.pair_keys import MAX_SKIPPED_EPOCHS
from protocols.prg import KEY_BYTES
from protocols.rounds.blame.at_party import PartyBlame, RowWitness
from protocols.rounds.bounds import PlanClaim, SetBound
from protocols.rounds.contribution import Contribution
from protocols.rounds.opening.at_party import ShareHolder
from protocols.rounds.party_plan import PartyPlan
from protocols.rounds.seating import COORDINATOR, SeatedRun, require_fresh
from protocols.rounds.settlement import (
    note_settled,
    proven_claim,
    require_settlement,
    y_bytes_of,
)
from protocols.rounds.verdicts import give_verdict
from protocols.secure_sum import SecureSum
from protocols.verified import VoteBatch, VoteLayout, make_report
from protocols.vote_messages import VoteReport
from protocols.wire import Signed


class PartyBatch:
    """A party's end: it answers one plan at a time, until the plan is settled.

    `wrong_dealers` are those whose shares did not fit their signed hashes, of the last plan that
    opened here. Each of them, or the coordinator that relayed the shares, is at fault.
    `reveal_was_lost` says that, by the last settlement, this party's shares did not come.
    """

    def __init__(self, run: SeatedRun, blame: PartyBlame) -> None:
        self._run = run
        self._blame = blame
        self.open: PartyPlan | None = None
        self.wrong_dealers: tuple[bytes, ...] = ()
        self.reveal_was_lost = False

    @property
    def known(self) -> PartyPlan:
        """The open plan, which came."""
        assert self.open is not None
        return self.open

    def take_plan(self, signed: Signed, plan: Plan, *, now: float) -> None:
        """Let a plan wait for a decision, if it continues this party's history within its run."""
        run = self._run
        run.journal.sweep(now=now)
        require_fresh(plan.expires_at, now=now)
        if plan.expires_at > run.known.record.expires_at:
            raise UnexpectedMessageError(
                "a plan must expire with its run at the latest", peer=COORDINATOR
            )
        if plan.previous_head != run.transcript.head:
            raise HistoryError(
                "a plan must continue the history that this party remembers", peer=COORDINATOR
            )
        if not run.epoch < plan.epoch <= run.epoch + MAX_SKIPPED_EPOCHS:
            raise UnexpectedMessageError(
                f"an attempt's epoch must be 1 to {MAX_SKIPPED_EPOCHS} ahead of {run.epoch}",
                plan.epoch,
                peer=COORDINATOR,
            )
        self.open = PartyPlan(signed.digest, plan)
        self._blame.witness = None
        self.wrong_dealers = ()

    def contribute(
        self, vector: NDArray[np.int64], *, bound: SetBound, layout: VoteLayout | None
    ) -> tuple[bytes, ...]:
        """Hide this party's vector; see `PartyRound.contribute`."""
        run, plan = self._run, self.known
        if not bound.leaves_room(run.known.fingerprints, threshold=run.known.threshold):
            raise KeyReuseError("a plan must leave a set that may open")
        try:
            if run.known.form.has_pair_keys:
                frames = self._hide(plan, vector)
            else:
                assert layout is not None
                frames = self._report(plan, vector, layout)
        finally:
            run.epoch = max(run.epoch, run.roots.epoch)
        plan.bound = bound
        run.extend("plan", plan.digest)
        return frames

    def _hide(self, open_plan: PartyPlan, vector: NDArray[np.int64]) -> tuple[bytes, ...]:
        """Turn x into y and the shares in front of it; store both before they leave (rule R4)."""
        run, seating, plan = self._run, self._run.known, open_plan.known
        form, digest = seating.form, open_plan.digest
        assert isinstance(form, SecureSum)
        if vector.shape != (plan.words,):
            raise InvalidVectorError(f"the vector must have {plan.words} words", str(vector.shape))
        answer = wire.VectorFrame(
            plan_digest=digest, sender=seating.me, size=form.ring.size_of(plan.words)
        )
        form.ring.encode(vector, out=form.ring.words_in(answer.body))  # or refused, before any key
        # The journal first: whatever stops here, the plan's keys never meet another vector.
        run.journal.begin(run_id=run.run_id, epoch=plan.epoch, plan_digest=digest)
        if plan.epoch > run.roots.epoch:
            run.roots.advance(plan.epoch)
        by_peer = run.roots.keys_for(digest)
        keys = {
            seat: by_peer[peer] for seat, peer in enumerate(seating.fingerprints) if peer in by_peer
        }
        self_key = run.random_bytes(KEY_BYTES) if form.is_certified else b""
        words = form.ring.words_in(answer.body)
        form.hide(words, seat=seating.seat, pair_keys=keys, self_key=self_key)
        del words  # signed bytes must not change any more
        frame, vector_digest = answer.sign(run.identity)
        frames: tuple[bytes, ...] = (frame,)
        sent = Contribution(vector_digest)
        if form.is_certified:
            open_plan.holder = holder = ShareHolder(run, plan_digest=digest)
            dealt = holder.deal(keys, self_key=self_key)
            frames, sent = (dealt, frame), replace(sent, dealing=holder.dealing.digest)
        run.journal.keep(digest, frames, expires_at=plan.expires_at)
        open_plan.sent = sent
        open_plan.witness = RowWitness(
            form, words=plan.words, seat=seating.seat, pair_keys=keys, self_key=self_key
        )
        return frames

    def _report(
        self, open_plan: PartyPlan, vector: NDArray[np.int64], layout: VoteLayout
    ) -> tuple[bytes, ...]:
        """Prove and seal x for both aggregators; store the report before it leaves (rule R4)."""
        run, plan, digest = self._run, open_plan.known, open_plan.digest
        shape = layout.queries, layout.columns
        if plan.words != layout.queries * layout.columns or vector.shape != (plan.words,):
            raise InvalidVectorError(f"the vector must have {plan.words} words", str(vector.shape))
        rows = vector.reshape(shape)
        layout.require_rows(rows)
        batch = VoteBatch.of_record(
            run.known.record,
            plan_digest=digest,
            queries=layout.queries,
            columns=layout.columns,
            votes={run.me: layout.votes},
        )
        run.journal.begin(run_id=run.run_id, epoch=plan.epoch, plan_digest=digest)
        run.move_to(plan.epoch)
        frame = make_report(batch, rows, identity=run.identity, random_bytes=run.random_bytes)
        run.journal.keep(digest, (frame,), expires_at=plan.expires_at)
        report = wire.expect(wire.decode(frame), VoteReport)
        open_plan.sent = Contribution(wire.decode(report.header).digest)
        return (frame,)

    def refuse(self, reason: str) -> tuple[bytes, ...]:
        """Promise never to send for the open plan; see `PartyRound.refuse`."""
        run, plan = self._run, self.known
        replies = (run.refusal(plan.digest, reason),)  # which may fail, and is not sent yet
        run.journal.abandon(plan.digest, run_id=run.run_id)
        run.move_to(plan.known.epoch)
        run.roots.advance(plan.known.epoch + 1)  # this plan's keys are gone
        plan.is_refused = True
        run.extend("plan", plan.digest)
        return replies

    def take_proposal(self, proposal: SetProposal, *, now: float) -> tuple[bytes, ...]:
        """Give this party's one verdict on the open plan; see `give_verdict`."""
        run = self._run
        if not run.known.form.is_certified:
            raise UnexpectedMessageError("a proposal must be for a form with verdicts")
        plan = self.open
        if plan is None and not proposal.survivors:
            plan = PartyPlan(proposal.plan_digest)  # it never came here, and never will
        if plan is None or proposal.plan_digest != plan.digest:
            raise UnexpectedMessageError("a message must be of the open plan")
        if plan.plan is not None:
            require_fresh(plan.plan.expires_at, now=now)
        replies = give_verdict(proposal, plan, run=run)
        self.open = plan
        return replies

    def require_open(self, plan_digest: bytes, *, now: float) -> None:
        """Check that a message is of the open plan, which has not expired: it may only be late."""
        plan = self.known
        if plan_digest != plan.digest:
            raise UnexpectedMessageError("a message must be of the open plan")
        if plan.plan is not None:
            require_fresh(plan.plan.expires_at, now=now)

    def reveal(self, bundle: ShareBundle) -> bytes:
        """Show this party's shares, once; return the frame. See `ShareHolder.reveal`."""
        plan = self.known
        assert plan.is_certified
        assert plan.verdict is not None
        assert plan.holder is not None
        assert plan.sent is not None
        reveal, self.wrong_dealers = plan.holder.reveal(plan.verdict, bundle)
        plan.holder = None
        signed = wire.sign(reveal, self._run.identity)
        plan.sent = replace(plan.sent, reveal=signed.digest)
        return signed.frame

    def settle(self, signed: Signed, settlement: Settlement) -> PlanClaim | None:
        """Learn the plan's outcome; return its settlement's proof, None if it proves nothing."""
        run, seating = self._run, self._run.known
        plan = self.open or PartyPlan(settlement.plan_digest)  # one that never came
        require_settlement(settlement, plan, run=run)
        came_here = plan.plan is not None
        claim = proven_claim(
            settlement,
            identities=seating.identities,
            form=type(seating.form),
            known=plan.verdict if plan.is_certified else None,
            y_bytes=y_bytes_of(seating.form, plan.known.words) if came_here else None,
        )
        note_settled(run.journal, plan.digest, claim, run_id=run.run_id, came_here=came_here)
        has_revealed = plan.sent is not None and bool(plan.sent.reveal)
        listed = settlement.contributions[seating.seat]
        self.reveal_was_lost = has_revealed and listed != plan.entries[0]
        self._extend(signed, settlement, plan)
        self._blame.witness = None
        if settlement.state == "void" and plan.witness is not None:
            expires_at = plan.known.expires_at
            self._blame.keep(plan.witness, plan_digest=plan.digest, expires_at=expires_at)
        # A plan that never came used an epoch, too, and so did one whose answer failed.
        run.move_to(plan.known.epoch if came_here else run.epoch + 1)
        self.open = None
        return claim

    def _extend(self, signed: Signed, settlement: Settlement, plan: PartyPlan) -> None:
        if not plan.is_answered:
            self._run.extend("plan", settlement.plan_digest)
        if settlement.certificate:
            certificate = wire.expect(wire.decode(settlement.certificate), Certificate)
            self._run.extend("verdict", wire.digest_of(certificate.verdict))
        self._run.extend("settlement", signed.digest)

    def forget(self) -> None:
        """Drop the open plan's secrets."""
        if self.open is not None:
            self.open.holder = self.open.witness = None

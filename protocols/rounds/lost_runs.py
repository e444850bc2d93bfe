"""Answers about an earlier run, from the journal alone. The keys of that run are gone.

A stored y is sent as it is (rule R4). Without one the party abandons the plan, so that the others
may go on without it (rule R3). Where it cannot promise that, it refuses the run and not the plan:
never is it silent, or it would be waited for. It repeats the verdict that it gave, or agrees to
close the plan. It notes the facts that a settlement proves about the plan.
"""

from __future__ import annotations

from protocols import wire
from protocols.errors import KeyReuseError, KeysGoneError
from protocols.messages import Inquiry, Plan, SetProposal, Settlement, Verdict
from protocols.rounds.bounds import PlanClaim
from protocols.rounds.round_journal import RunNote
from protocols.rounds.seating import SeatedRun
from protocols.rounds.settlement import note_settled, proven_claim
from protocols.rounds.verdicts import sign_verdict
from protocols.wire import Signed


class LostRuns:
    """The earlier runs of a party in this federation, whose keys it lost; it has their journal."""

    def __init__(self, run: SeatedRun) -> None:
        self._run = run
        self._journal = run.journal

    def answer(self, signed: Signed, *, now: float) -> tuple[bytes, ...] | None:
        """Answer a message of an earlier run, which the coordinator signed.

        Returns the frames to send. None if no earlier run can answer: it is unknown, the plan has
        expired, or its form takes no proposals. Raises as `sign_verdict` does.
        """
        message = signed.message
        if not isinstance(message, Plan | SetProposal | Inquiry):
            return None
        run = self._known(message.run_id)
        if run is None:
            return None
        match message:
            case Plan():
                return self._on_plan(signed, message, now=now)
            case SetProposal():
                return self._on_proposal(message, run)
            case Inquiry():
                return (self._refusal(signed.digest),)

    def learn(self, settlement: Settlement) -> tuple[bool, PlanClaim | None]:
        """Learn how a plan of an earlier run ended. No complaint: a plan may follow it.

        Returns whether that run is known here, and the claim that the settlement proves.
        """
        run = self._known(settlement.run_id)
        if run is None:
            return False, None
        claim = proven_claim(settlement, identities=run.identities, form=run.sum_form)
        note_settled(self._journal, settlement.plan_digest, claim, run_id=run.run_id)
        return True, claim

    def _known(self, run_id: bytes) -> RunNote | None:
        """Return a run of this party; of another federation's nothing is noted or promised."""
        run = self._journal.run(run_id)
        is_ours = run is not None and run.coordinator == self._run.coordinator.fingerprint
        return run if is_ours else None

    def _on_plan(self, signed: Signed, plan: Plan, *, now: float) -> tuple[bytes, ...] | None:
        self._journal.sweep(now=now)
        if now >= plan.expires_at:
            self._journal.erase(signed.digest)
            return None
        stored = self._journal.find(signed.digest)
        if stored is not None:
            return stored
        try:
            self._journal.abandon(signed.digest, run_id=plan.run_id)
        except KeyReuseError:  # a y was once sent, or there are too many such plans: no promise
            return (self._refusal(plan.run_id),)
        return (self._refusal(signed.digest),)

    def _on_proposal(self, proposal: SetProposal, run: RunNote) -> tuple[bytes, ...] | None:
        if not run.sum_form.is_certified:
            return None
        verdict = Verdict(proposal.plan_digest, proposal.survivors)
        is_given = self._journal.verdict_on(verdict.plan_digest) == wire.digest_of(verdict)
        if proposal.survivors and not is_given:  # it cannot check the set any more
            return (self._refusal(proposal.run_id),)
        run_id, journal = proposal.run_id, self._journal
        return (sign_verdict(verdict, run_id=run_id, identity=self._run.identity, journal=journal),)

    def _refusal(self, subject: bytes) -> bytes:
        return self._run.refusal(subject, KeysGoneError.code)

"""A batch at the coordinator, from the plan to the settlement, or on to who spoiled a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.errors import TooFewSharesError, WrongStateError
from protocols.fields import KIB
from protocols.messages import (
    MaskedVector,
    Plan,
    Reveal,
    RunRecord,
    SetProposal,
    Settlement,
    ShareBundle,
    Verdict,
    VerdictMacs,
)
from protocols.rounds.batch.report_collector import ReportCollector
from protocols.rounds.batch.running_total import RunningTotal
from protocols.rounds.blame.at_coordinator import Blame, BlameCase, require_rows
from protocols.rounds.bounds import PlanClaim
from protocols.rounds.contribution import Contribution, entry_of
from protocols.rounds.coordinator_journal import (
    ContributionsFixed,
    PlanCertified,
    PlanOpened,
    PlanProposed,
    PlanSettled,
)
from protocols.rounds.live_run import LiveRun
from protocols.rounds.opening.at_coordinator import ShareCollector, ShareFault
from protocols.rounds.plans import OpenPlan, SettledPlan
from protocols.rounds.settlement import proven_claim, y_bytes_of
from protocols.rounds.states import CoordinatorState
from protocols.secure_sum import SecureSum
from protocols.vote_messages import VoteReport
from protocols.wire import Signed


class CoordinatorBatch:
    """The coordinator's end: plans, proposes, opens and settles, one plan at a time."""

    def __init__(self, run: LiveRun, blame: CoordinatorBlame) -> None:
        self._run = run
        self._blame = blame
        self._last_faults: tuple[ShareFault, ...] = ()
        self.total: RunningTotal | ReportCollector | None = None

    @property
    def known_total(self) -> RunningTotal | ReportCollector:
        """The open plan's sum; `WrongStateError` where no plan is open."""
        if self.total is None:
            raise WrongStateError("a plan must be open", self._run.exchange.state.value)
        return self.total

    @property
    def reports(self) -> ReportCollector:
        """The open plan's reports; `WrongStateError` where the form has none."""
        if not isinstance(self.known_total, ReportCollector):
            raise WrongStateError("only a form with reports has them", self._run.form.name)
        return self.known_total

    @property
    def _vectors(self) -> RunningTotal:
        if not isinstance(self.known_total, RunningTotal):
            raise WrongStateError("only a form with vectors adds them", self._run.form.name)
        return self.known_total

    @property
    def _shares(self) -> ShareCollector | None:
        return self.total.shares if isinstance(self.total, RunningTotal) else None

    @property
    def most_bytes(self) -> int:
        """Most bytes of a party's message about the open plan; 0 where none is open."""
        if self.total is None:
            return 0
        if isinstance(self.total, ReportCollector):
            return self.total.most_bytes
        # A verdict with its MACs is smaller than shares for as many parties.
        return max(self.total.y_bytes + 4 * KIB, self.most_share_bytes)

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """Parties whose y's are in the total of the open plan, or whose reports came; in order."""
        return () if self.total is None else self.total.senders

    @property
    def most_share_bytes(self) -> int:
        """Most bytes that a party sends beside its y, or reveals; 0 where no plan needs it."""
        shares = self._shares
        return 0 if shares is None else shares.most_bytes

    @property
    def share_faults(self) -> tuple[ShareFault, ...]:
        """Shares of the open or the last settled plan that were dropped, and who is named."""
        shares = self._shares
        return self._last_faults if shares is None else shares.faults

    @property
    def nothing_was_shared(self) -> bool:
        """Whether every party signed a refusal of the open plan, and none sent a y."""
        total, plan = self.known_total, self._run.open_plan
        was_answered = total.senders or plan.opened or plan.proposal is not None
        return not was_answered and set(total.declined) == set(self._run.seats)

    def claim_of(self, plan: SettledPlan) -> PlanClaim | None:
        """Return the claim that a plan's settlement proves (rule R3); None if there is none."""
        run = self._run
        return proven_claim(
            plan.settlement,
            identities=run.parties,
            form=type(run.form),
            y_bytes=y_bytes_of(run.form, plan.plan.words),
        )

    def plan(
        self,
        *,
        batch: int,
        words: int,
        expires_at: int,
        terms: bytes,
        row_words: int = 0,
    ) -> bytes:
        """Open an attempt at a batch and return its plan, the same for every party.

        Rows of `row_words` are kept to trace who spoils one; 0: they are not. The rest is as in the
        `Plan`. Raises `WrongStateError` where the last plan is not settled, or rows do not fill the
        vector.
        """
        run = self._run
        run.require_settled()
        if row_words:
            require_rows(words, row_words)
        plan = Plan(
            run_id=run.run_id,
            epoch=run.known.epoch + 1,
            batch=batch,
            previous_head=run.transcript.head,
            words=words,
            expires_at=expires_at,
            terms=terms,
        )
        signed = wire.sign(plan, run.identity)
        run.do(PlanOpened(signed.frame))
        self.begin(run.open_plan, row_words=row_words)
        return signed.frame

    def begin(self, plan: OpenPlan, *, row_words: int = 0) -> None:
        """Wait for a plan's y's from the beginning, also after a restart; see `plan`."""
        run = self._run
        if isinstance(run.form, SecureSum):
            self.total = RunningTotal(
                run.form,
                identities=run.parties,
                plan=plan.plan,
                plan_digest=plan.signed.digest,
                row_words=row_words,
            )
            self._blame.case = self.total.case
        elif run.check is not None:  # who only reads a journal back has no machine
            assert run.record is not None
            machine = run.check(wire.expect(run.record, RunRecord), plan.plan)
            self.total = ReportCollector(machine, seats=run.seats)
        self._last_faults = ()
        # After a restart the same parties' y's have to come again.
        run.exchange.begin(CoordinatorState.COLLECTING, plan.survivors or run.seats)

    def take(self, signed: Signed, sender: bytes) -> None:
        """Check that a message about the open plan may come from this party now, and keep it."""
        if isinstance(signed.message, VoteReport):
            self.reports.take(signed.message, sender=sender)
            return
        total = self._vectors
        match signed.message:
            case MaskedVector():
                total.add(signed, before=self._signed_before(sender))
            case ShareBundle() as bundle:
                before = self._signed_before(sender)
                total.take_shares(bundle, sender=sender, before=before)
            case VerdictMacs() as macs:
                total.verdicts.take_macs(macs, sender)
            case Verdict():
                total.verdicts.take(signed, sender)
            case Reveal():
                assert total.shares is not None
                total.shares.take_reveal(signed)
            case _:
                raise AssertionError(type(signed.message).__name__)

    def _signed_before(self, party: bytes) -> Contribution | None:
        plan = self._run.open_plan
        return plan.opened.get(party) or plan.fixed.get(party)

    def propose(self) -> dict[bytes, bytes]:
        """Propose to open the parties whose y's are in, once; return the frame, by survivor.

        A y that comes later is refused. A set that was proposed before a restart stays, and needs
        the same parties' y's again.

        Raises:
            WrongStateError: the form needs all parties, no plan is open, it is to be closed, or its
                certificate is out already.
            TooFewSharesError: too few y's came: the sum cannot open.
        """
        run, total = self._run, self._vectors
        plan = run.open_plan
        if total.shares is None:
            raise WrongStateError("only a form that survives drop-outs proposes", run.form.name)
        if total.shares.is_fixed or not plan.may_open:
            raise WrongStateError("a set must be proposed before the plan is closed or opens")
        if plan.proposal is None:
            run.form.require_survivors(len(total.senders), parties=len(run.seats))
            proposal = SetProposal(run.run_id, plan.digest, total.senders)
            signed = total.contributions
            listed = tuple(signed.get(seat) for seat in run.seats)
            run.do(PlanProposed(wire.sign(proposal, run.identity).frame, listed))
            plan = run.open_plan
        elif set(plan.survivors) != set(total.senders):
            wanted = len(plan.survivors)
            raise TooFewSharesError(received=len(total.senders), threshold=wanted)
        assert plan.proposal is not None
        run.exchange.begin(CoordinatorState.AGREEING, plan.survivors)
        return dict.fromkeys(plan.survivors, plan.proposal.frame)

    def propose_closing(self) -> dict[bytes, bytes]:
        """Propose to close the plan; return the frame, by party that agreed to no set.

        With enough verdicts its queries may be asked again. Raises `WrongStateError` where the form
        needs all parties, no plan is open, or a set is certified.
        """
        run, plan = self._run, self._run.open_plan
        if not run.form.is_certified or plan.opens_a_set:
            raise WrongStateError("only a plan that has not opened can be closed")
        if plan.closing is None:
            proposal = SetProposal(run.run_id, plan.digest, ())
            frame = wire.sign(proposal, run.identity).frame
            run.do(PlanProposed(frame, (None,) * len(run.seats)))
            plan = run.open_plan
        assert plan.closing is not None
        agreed = self._vectors.verdicts.of(plan.survivors) if plan.survivors else ()
        asked = tuple(seat for seat in run.seats if seat not in agreed)
        run.exchange.begin(CoordinatorState.AGREEING, asked)
        return dict.fromkeys(asked, plan.closing.frame)

    def certify(self) -> dict[bytes, list[bytes]]:
        """End the verdicts: note the certificate, or raise `TooFewSharesError` without enough.

        Returns, by survivor, the proof that enough parties agreed and the shares that the others
        dealt to it. Nothing where the plan is closed.
        """
        run, total = self._run, self._vectors
        plan = run.open_plan
        survivors = plan.last_proposed
        if survivors is None:
            raise WrongStateError("a certificate must follow a proposal", run.exchange.state.value)
        if not plan.certificate_frame:
            certificate = total.verdicts.certificate(survivors)
            if certificate is None:
                raise TooFewSharesError(
                    received=len(total.verdicts.of(survivors)),
                    threshold=run.form.threshold(len(run.seats)),
                )
            run.do(PlanCertified(wire.contain(certificate)))
        certificate = run.open_plan.certificate
        assert certificate is not None
        if not certificate.survivors:
            run.exchange.begin(CoordinatorState.READY)
            return {}
        assert total.shares is not None
        bundles = total.shares.fix(certificate.verdict)
        run.exchange.begin(CoordinatorState.REVEALING, certificate.survivors)
        proofs = total.verdicts.proofs(certificate)
        return {holder: [proofs[holder], bundle] for holder, bundle in bundles.items()}

    def certify_by_signatures(self) -> dict[bytes, list[bytes]]:
        """Prove the certified set once more, to survivors that doubt their peers' MACs.

        The coordinator cannot check a MAC: one lying party would otherwise end the sum of all.
        Returns, by survivor whose shares have not come, the certificate and the shares dealt to it.
        """
        run, shares = self._run, self._vectors.shares
        certificate = run.open_plan.certificate_frame
        assert shares is not None
        return {holder: [certificate, shares.bundle_for(holder)] for holder in run.exchange.missing}

    def open_total(self) -> NDArray[np.int64]:
        """Open the sum of all survivors' vectors and forget the total. Secret.

        Raises:
            WrongStateError: a y or certificate is missing, or the sum was opened before.
            TooFewSharesError: a survivor's secrets have fewer good shares than open them.
            WrongShareError: a survivor's shares open something else than it signed; names it.
        """
        run, total = self._run, self._vectors
        if not total.can_open:
            raise WrongStateError(
                "every y must be in, and the sum opened once", run.exchange.state.value
            )
        streams = [] if total.shares is None else total.shares.streams()
        if not run.open_plan.opened:
            # The settlement lists the contributions signed before the sum opened, also after a
            # restart.
            opened = total.contributions
            run.do(ContributionsFixed(tuple(opened.get(seat) for seat in run.seats)))
        return total.open(streams)

    def close_reports(self) -> None:
        """End the exchange of reports: what comes later is late."""
        _ = self.reports
        self._run.exchange.begin(CoordinatorState.READY)

    def note_checked(self) -> None:
        """Note whose reports are in the sum that both aggregators opened.

        Raises `WrongStateError` where it is not open yet.
        """
        run, reports = self._run, self.reports
        if reports.machine.opened is None:
            raise WrongStateError("both aggregators must have opened the sum")
        if not run.open_plan.opened:
            opened = reports.contributions
            run.do(ContributionsFixed(tuple(opened.get(seat) for seat in run.seats)))

    def settle(self, *, released: bool, result: bytes) -> bytes:
        """Close the open plan, as released with a result or as void; return the frame that says so.

        Raises `WrongStateError` where a release comes before its sum was opened.
        """
        run, total = self._run, self.known_total
        plan = run.open_plan
        if released and not plan.opened:
            raise WrongStateError("a release must follow an opened sum", run.exchange.state.value)
        added = plan.opened or total.contributions
        settlement = Settlement(
            run_id=run.run_id,
            plan_digest=plan.digest,
            state="released" if released else "void",
            words=plan.plan.words,
            contributions=tuple(entry_of(added.get(seat)) for seat in run.seats),
            # A party that refuses after the sum was opened has sent all the same.
            refusals=() if plan.opened else total.refusals,
            certificate=plan.certificate_frame,
            result=result,
        )
        signed = wire.sign(settlement, run.identity)
        self._last_faults = self.share_faults
        run.do(PlanSettled(signed.frame))
        self.total = None
        if released:
            self._blame.case = None
        run.exchange.begin(CoordinatorState.READY)
        return signed.frame


class CoordinatorBlame:
    """The coordinator's questions about one wrong row of the plan that was settled as void.

    `case` is None if rows cannot be traced, as after a restart.
    """

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self.case: BlameCase | None = None
        self.request_digest = b""

    def ask(self, row: int) -> bytes:
        """Ask who spoiled a row of the plan that was settled as void, once; return the frame.

        It is for every party whose y was in the sum: those in `missing`. Raises `WrongStateError`
        where no such plan has this row to be traced.
        """
        self._run.require_settled()
        request = self.known_case.ask(row, run_id=self._run.run_id)
        self._run.exchange.begin(CoordinatorState.BLAMING, self.known_case.asked)
        signed = wire.sign(request, self._run.identity)
        self.request_digest = signed.digest
        return signed.frame

    def name(self, quotas: Sequence[int]) -> Blame:
        """Compare the parties' statements, and forget them; see `BlameCase.name`."""
        exchange = self._run.exchange
        if exchange.state is not CoordinatorState.BLAMING:  # where some party is silent
            exchange.require(CoordinatorState.READY)
        blame = self.known_case.name(quotas)
        self.case = None
        self._run.exchange.begin(CoordinatorState.READY)
        return blame

    @property
    def known_case(self) -> BlameCase:
        """The evidence; `WrongStateError` where there is none."""
        if self.case is None:
            raise WrongStateError("a row of a void plan must be asked about")
        return self.case

"""The question whether a hospital takes part in a run: what it says, and what it never says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.errors import ApprovalError, Reason, RefusalError, fault_line
from party.owner import open_records, refused_for_tally
from party.service import PartyService
from party.site.people_decisions import Approval, ApprovalState, Subject
from party.storage.site_audit_log import SiteAct
from pate_fed.prices import charged_price
from protocols import wire
from protocols.errors import BadSignatureError, SuiteError, UnexpectedMessageError, UnknownPeerError
from protocols.fields import MOST_WORDS_LETTERS
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.membership_messages import NamedTally
from protocols.messages import Refusal, RunInquiry, RunReadiness
from protocols.rounds import PartyState, read_run_answer
from protocols.suites import DEFAULT_SUITE
from protocols.values import encode_value
from tests.support.hospital_services import (
    TEACHERS,
    Hospitals,
    audit_of,
    make_hospitals,
    records_of,
)
from tests.support.hospital_site import membership_of
from tests.support.rules import with_other

NOW = 1_790_000_000.0
SECRET = "we distrust the operator"


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    made = make_hospitals(tmp_path, approval="each run")
    made.approve_all()
    return made


@contextmanager
def served(hospitals: Hospitals) -> Iterator[PartyService]:
    with PartyService(
        hospitals.sites[0],
        clock=lambda: NOW,
        vote_of=lambda site, task: lambda batch: np.zeros((TEACHERS, len(batch)), np.int64),
    ) as service:
        yield service


def inquiry_of(hospitals: Hospitals, **changed: Any) -> RunInquiry:
    members = tuple(sorted(hospitals.members, key=lambda one: one.identity.fingerprint))
    made = RunInquiry(
        coordinator=hospitals.coordinator.fingerprint,
        seats=tuple(one.identity.fingerprint for one in members),
        form="additive",
        ring_bits=32,
        suite=DEFAULT_SUITE,
        threshold=3,
        colluders=1,
        dropouts=0,
        simulated=False,
        tally=b"",
        terms=encode_value(hospitals.terms(members).as_record()),
    )
    return replace(made, **changed)


def asked(
    service: PartyService,
    hospitals: Hospitals,
    inquiry: RunInquiry | None = None,
    *,
    by: SigningIdentity | None = None,
) -> RunReadiness | Refusal:
    frame = wire.sign(inquiry or inquiry_of(hospitals), by or hospitals.coordinator).frame
    [answer] = wire.unpack(service.receive(wire.pack([frame])), max_bytes=2**20)
    parties = {one.identity.fingerprint: one.identity for one in hospitals.members}
    return read_run_answer(answer, inquiry=frame, parties=parties)


def decide(hospitals: Hospitals, state: ApprovalState, **more: str) -> None:
    with records_of(hospitals.sites[0]) as records:
        records._clock = lambda: NOW + 60
        [run] = [one for one in records.approvals() if one.subject is Subject.RUN]
        give = records.approve if state is ApprovalState.APPROVED else records.reject
        give(run.subject, run.digest, coordinator=run.coordinator, by="M. Curie", **more)


def test_a_hospital_says_undecided_rejected_and_approved_each_with_its_time(
    hospitals: Hospitals,
) -> None:
    with served(hospitals) as service:
        first = asked(service, hospitals)
        assert isinstance(first, RunReadiness)
        assert (first.reason, first.at) == (Reason.APPROVAL, int(NOW))
        decide(hospitals, ApprovalState.REJECTED, reason=SECRET, words="erst nach Ostern")
        second = asked(service, hospitals)
        assert isinstance(second, RunReadiness)
        assert (second.reason, second.at) == (Reason.REJECTED, int(NOW) + 60)
        assert second.words == "erst nach Ostern"
        assert SECRET not in repr(second)
        decide(hospitals, ApprovalState.APPROVED)
        third = asked(service, hospitals)
        assert isinstance(third, RunReadiness)
        assert (third.reason, third.at, third.words) == ("", int(NOW) + 60, "")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"max_asks": 40, "max_answers": 40}, Reason.BUDGET, id="too many queries"),
        pytest.param({"sigma2": 2.0}, Reason.BUDGET, id="too little noise"),
        pytest.param({"budgets": 0.1}, "", id="too small a budget of another hospital"),
        pytest.param({}, "", id="within its budget"),
    ],
)
def test_a_price_above_the_runs_budget_is_said_before_anything_is_asked(
    hospitals: Hospitals, changed: dict[str, Any], reason: str
) -> None:
    """At review, whatever the budget for life would hold; people are not asked about such a run."""
    me = hospitals.members[0].identity.fingerprint
    members = tuple(sorted(hospitals.members, key=lambda one: one.identity.fingerprint))
    terms = hospitals.terms(members)
    seat = [one.identity.fingerprint for one in members].index(me)
    if "budgets" in changed:
        others = changed["budgets"]
        changed = {"budgets": tuple(5.0 if place == seat else others for place in range(3))}
    terms = with_other(terms, **changed)
    assert (charged_price(terms, seat).epsilon > terms.budgets[seat]) == bool(reason)
    inquiry = inquiry_of(hospitals, terms=encode_value(terms.as_record()))
    with served(hospitals) as service:
        answer = asked(service, hospitals, inquiry)
        assert service.ledger.entries == ()
    assert isinstance(answer, RunReadiness)
    assert answer.reason == (reason or Reason.APPROVAL)
    kinds = [record.act for record in audit_of(hospitals.sites[0])]
    assert kinds.count(SiteAct.ASKED) == (1 if reason else 2)  # the pool, and this run


def test_an_answer_is_the_same_bytes_until_something_changes(hospitals: Hospitals) -> None:
    """So it is one row in the list of what left, however often a coordinator asks."""
    frame = wire.sign(inquiry_of(hospitals), hospitals.coordinator).frame
    with served(hospitals) as service:
        answers = {service.receive(wire.pack([frame])) for _ in range(3)}
        [left] = [one for one in service.sent.newest(10) if one.kind == "RunReadiness"]
    assert len(answers) == 1
    assert left.times == 3


def test_a_question_charges_nothing_enters_no_run_and_asks_people_once(
    hospitals: Hospitals,
) -> None:
    with served(hospitals) as service:
        ledger = service.ledger
        for _ in range(3):
            asked(service, hospitals)
        assert service.ledger == ledger
        assert service.federation().node.state is PartyState.NEW
        assert service.federation().node.run_id == b""
    kinds = [record.act for record in audit_of(hospitals.sites[0])]
    assert kinds.count(SiteAct.ASKED) == 2  # the pool, and this run
    assert kinds.count(SiteAct.RUN_REFUSED) == 1
    assert SiteAct.RUN_ACCEPTED not in kinds
    with records_of(hospitals.sites[0]) as records:
        pending = [one.subject for one in records.approvals(ApprovalState.PENDING)]
    assert pending == [Subject.RUN]


def test_a_pool_that_is_rejected_after_its_run_was_approved_rejects_the_run(
    hospitals: Hospitals,
) -> None:
    with served(hospitals) as service:
        asked(service, hospitals)
        decide(hospitals, ApprovalState.APPROVED)
        with records_of(hospitals.sites[0]) as records:
            digest, asking = hospitals.task.pool.digest, hospitals.coordinator.fingerprint
            records.reject(Subject.POOL, digest, coordinator=asking, by="M. Curie")
        answer = asked(service, hospitals)
        assert isinstance(answer, RunReadiness)
        assert answer.reason == Reason.REJECTED


def test_what_a_policy_forbids_is_refused_by_its_code_and_nobody_is_asked(
    hospitals: Hospitals,
) -> None:
    hospitals.changes = {"sigma2": 0.01, "budgets": (5000.0,) * 3}
    with served(hospitals) as service:
        answer = asked(service, hospitals)
    assert isinstance(answer, RunReadiness)
    assert answer.reason == Reason.MECHANISM
    assert (answer.at, answer.words) == (0, "")
    with records_of(hospitals.sites[0]) as records:
        assert not records.approvals(ApprovalState.PENDING)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        pytest.param({"coordinator": bytes(32)}, UnknownPeerError.code, id="another coordinator"),
        pytest.param({"form": "plain"}, UnexpectedMessageError.code, id="form"),
        pytest.param({"ring_bits": 16}, UnexpectedMessageError.code, id="ring"),
        pytest.param({"suite": "rot13"}, SuiteError.code, id="suite"),
        pytest.param("backwards", UnknownPeerError.code, id="order of seats"),
        pytest.param("without us", UnknownPeerError.code, id="without us"),
        pytest.param("a stranger", UnknownPeerError.code, id="a stranger"),
    ],
)
def test_a_run_that_this_hospital_cannot_be_in_asks_no_people(
    hospitals: Hospitals, changed: dict[str, Any] | str, code: str
) -> None:
    seats = inquiry_of(hospitals).seats
    me = hospitals.sites[0].identity.fingerprint
    changes: dict[str, Any] = (
        changed
        if isinstance(changed, dict)
        else {
            "backwards": {"seats": seats[::-1]},
            "without us": {"seats": tuple(one for one in seats if one != me)},
            "a stranger": {"seats": tuple(sorted((*seats, bytes(32))))},
        }[changed]
    )
    with served(hospitals) as service:
        answer = asked(service, hospitals, inquiry_of(hospitals, **changes))
    assert isinstance(answer, Refusal)
    assert answer.reason == code
    with records_of(hospitals.sites[0]) as records:
        assert not records.approvals(ApprovalState.PENDING)


def test_a_question_of_somebody_else_is_not_answered(hospitals: Hospitals) -> None:
    with served(hospitals) as service:
        answer = asked(service, hospitals, by=SigningIdentity.generate())
    assert isinstance(answer, Refusal)
    assert answer.reason == BadSignatureError.code


def test_only_a_partys_own_answer_to_this_question_is_read(hospitals: Hospitals) -> None:
    me, peer = (hospitals.sites[place].identity for place in (0, 1))
    frame = wire.sign(inquiry_of(hospitals), hospitals.coordinator).frame
    digest = wire.decode(frame).digest
    right = RunReadiness(digest, me.fingerprint, "", 0, "")
    parties = {me.fingerprint: me.public}
    for message, signer, error in (
        (replace(right, subject=bytes(32)), me, UnexpectedMessageError),
        (replace(right, sender=peer.fingerprint), peer, UnknownPeerError),
        (right, peer, BadSignatureError),
        (inquiry_of(hospitals), hospitals.coordinator, UnexpectedMessageError),
    ):
        bad = wire.sign(message, signer).frame
        with pytest.raises(error):
            read_run_answer(bad, inquiry=frame, parties=parties)
    good = wire.sign(right, me).frame
    assert read_run_answer(good, inquiry=frame, parties=parties) == right


@pytest.mark.parametrize("words", ["two\nlines", "\x1b[2J", "\u202eeht", "x" * 501])
def test_words_that_a_screen_could_misread_are_not_kept(hospitals: Hospitals, words: str) -> None:
    assert len("x" * 501) == MOST_WORDS_LETTERS + 1
    with served(hospitals) as service:
        asked(service, hospitals)
        with pytest.raises(ApprovalError):
            decide(hospitals, ApprovalState.REJECTED, words=words)
        answer = asked(service, hospitals)
    assert isinstance(answer, RunReadiness)
    assert answer.reason == Reason.APPROVAL


def another_key() -> PublicIdentity:
    """Another tally's key."""
    return SigningIdentity.generate().public


class TestVerified:
    """A run that needs a tally, at a node as its folder has it."""

    TALLY = NamedTally("Notary", SigningIdentity.generate().public)

    def inquiry(self, hospitals: Hospitals, **changed: Any) -> RunInquiry:
        hospitals.changes = {"noise_place": "aggregators", "sigma2": 60.0}
        numbers = {"threshold": 3, "colluders": 2, "dropouts": 0, **changed}
        tally = self.TALLY.identity.fingerprint
        return inquiry_of(hospitals, form="verified", ring_bits=31, **{"tally": tally, **numbers})

    def pin(self, hospitals: Hospitals, tally: NamedTally, *, operator: str = "South") -> None:
        site = hospitals.sites[0]
        pinned = site.settings.with_tally(site.membership().name, tally, body="North")
        known = pinned.with_setting(site.membership().name, operator_body=operator)
        hospitals.sites[0] = site.save(known)

    def reason(self, hospitals: Hospitals, inquiry: RunInquiry) -> str:
        with served(hospitals) as service:
            said = asked(service, hospitals, inquiry)
            assert service.federation().status.last_refusal == said.reason
        return str(said.reason)

    def pending(self, hospitals: Hospitals) -> list[Approval]:
        with records_of(hospitals.sites[0]) as records:
            found = records.approvals(ApprovalState.PENDING)
        return [one for one in found if one.subject is Subject.RUN]

    def faults(self, hospitals: Hospitals) -> list[str]:
        """The faults of the one run that waits, as its people see them; each bars an approval."""
        with open_records(hospitals.sites[0].folder) as opened:
            request = opened.request(self.pending(hospitals)[0], fetch=False)
            if request.faults:
                with pytest.raises(RefusalError):
                    request.require_no_fault()
        assert request.proposal.cost is not None  # what it costs is said all the same
        return [fault_line(one) for one in request.faults]

    def test_without_a_pin_it_is_refused_and_waits_with_this_fault(
        self, hospitals: Hospitals
    ) -> None:
        assert self.reason(hospitals, self.inquiry(hospitals)) == Reason.TALLY == "PF-329"
        [fault] = self.faults(hospitals)
        assert fault.startswith("PF-329: ")
        assert "pate-party tally" in fault
        self.pin(hospitals, self.TALLY)
        assert self.faults(hospitals) == []

    def test_a_run_that_people_rejected_says_so_though_nobody_pinned_its_tally(
        self, hospitals: Hospitals
    ) -> None:
        self.reason(hospitals, self.inquiry(hospitals))
        decide(hospitals, ApprovalState.REJECTED)
        assert self.reason(hospitals, self.inquiry(hospitals)) == Reason.REJECTED

    def test_a_node_that_runs_takes_a_pin_at_once_and_gives_it_up_at_once(
        self, hospitals: Hospitals
    ) -> None:
        inquiry = self.inquiry(hospitals)
        with served(hospitals) as service:
            reasons = [asked(service, hospitals, inquiry).reason]
            for pinned in (self.TALLY, replace(self.TALLY, identity=another_key()), self.TALLY):
                self.pin(hospitals, pinned)
                reasons.append(asked(service, hospitals, inquiry).reason)
            self.pin(hospitals, self.TALLY, operator="north")
            reasons.append(asked(service, hospitals, inquiry).reason)
        pin, approve = Reason.TALLY, Reason.APPROVAL
        assert reasons == [pin, approve, pin, approve, pin]

    def test_where_its_pool_was_approved_the_refused_run_is_told(
        self, hospitals: Hospitals
    ) -> None:
        site = hospitals.sites[0]
        hospitals.sites[0] = site.save(replace(site.settings, approval="pool"))
        self.reason(hospitals, self.inquiry(hospitals))
        assert self.pending(hospitals) == []
        [said] = refused_for_tally(hospitals.sites[0])
        assert "PF-329" in said
        self.pin(hospitals, self.TALLY)
        assert list(refused_for_tally(hospitals.sites[0])) == []

    @pytest.mark.parametrize("operator", ["", "north"])
    def test_a_pin_of_one_owner_is_not_enough(self, hospitals: Hospitals, operator: str) -> None:
        self.pin(hospitals, self.TALLY, operator=operator)
        assert self.reason(hospitals, self.inquiry(hospitals)) == Reason.TALLY
        assert len(self.faults(hospitals)) == 1

    def test_another_key_than_the_pinned_one_is_refused(self, hospitals: Hospitals) -> None:
        self.pin(hospitals, replace(self.TALLY, identity=SigningIdentity.generate().public))
        assert self.reason(hospitals, self.inquiry(hospitals)) == Reason.TALLY

    def test_with_the_pin_people_are_asked_about_this_tally(self, hospitals: Hospitals) -> None:
        self.pin(hospitals, self.TALLY)
        assert self.reason(hospitals, self.inquiry(hospitals)) == Reason.APPROVAL
        [one] = self.pending(hospitals)
        assert (one.form, one.tally) == ("verified", self.TALLY.identity.fingerprint)

    def test_an_approval_of_one_tally_is_none_of_another(self, hospitals: Hospitals) -> None:
        self.pin(hospitals, self.TALLY)
        assert self.reason(hospitals, self.inquiry(hospitals)) == Reason.APPROVAL
        decide(hospitals, ApprovalState.APPROVED)
        with served(hospitals) as service:
            said = asked(service, hospitals, self.inquiry(hospitals))
        assert said.reason == ""
        other = NamedTally("Notary", SigningIdentity.generate().public)
        self.pin(hospitals, other)
        changed = self.inquiry(hospitals, tally=other.identity.fingerprint)
        assert self.reason(hospitals, changed) == Reason.APPROVAL

    def test_another_form_with_a_tally_is_no_run(self, hospitals: Hospitals) -> None:
        with served(hospitals) as service:
            said = asked(service, hospitals, inquiry_of(hospitals, tally=bytes(32)))
        assert isinstance(said, Refusal)
        assert said.reason == UnexpectedMessageError.code

    def test_a_node_hears_of_another_key_and_keeps_its_pin(
        self, hospitals: Hospitals, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.pin(hospitals, self.TALLY)
        other = SigningIdentity.generate().public
        with served(hospitals) as service:
            one = service.federation()
            for key in (self.TALLY.identity.key, other.key, other.key):
                me = hospitals.sites[0].identity.public.fingerprint
                one.hear(membership_of(me, tally_name="Notary", tally_key=key))
            warned = [each for each in caplog.records if "tally" in each.getMessage()]
            changed = self.inquiry(hospitals, tally=other.fingerprint)
            refused = asked(service, hospitals, changed)
            served_still = asked(service, hospitals, self.inquiry(hospitals))
        assert len(warned) == 1
        assert refused.reason == Reason.TALLY
        assert served_still.reason == Reason.APPROVAL

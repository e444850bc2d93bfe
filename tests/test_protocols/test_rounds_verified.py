"""A run of reports: two exchanges set it up, a batch needs one, and whoever leaves is no loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    InvalidVectorError,
    LateMessageError,
    MalformedMessageError,
    ProtocolError,
    SuiteError,
    TooFewHeadsError,
    TooFewPartiesError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongStateError,
)
from protocols.identity import SigningIdentity
from protocols.messages import (
    KeyStatement,
    MaskedVector,
    Plan,
    Refusal,
    RunRecord,
    Settlement,
)
from protocols.rounds import CoordinatorState, PartyState
from protocols.rounds.coordinator_journal import step_from_record, step_to_record
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519
from protocols.transcript import transcript_lines
from protocols.transcript_verifier import verify_transcript
from protocols.verified import CheckState
from protocols.vote_messages import VoteReport
from tests.support.reported import LAYOUT, NOW, VOTES, ReportedRun, some_rows, sum_of
from tests.support.rounds import EXPIRES_AT


def test_a_run_from_offer_to_compared_heads() -> None:
    run = ReportedRun(4).set_up()
    for batch in range(2):
        plan = run.plan(batch)
        for seat in range(4):
            run._hear(seat, run.report(seat, plan))
        run.coordinator.batch.close_reports()
        assert (run.check() == sum_of(range(4))).all()
        run.settle()
        assert run.listed() == [0, 1, 2, 3]
    run.close()
    assert run.coordinator.state is CoordinatorState.DONE
    assert {party.state for party in run.parties} == {PartyState.DONE}
    assert len({party.transcript.head for party in run.parties}) == 1
    kinds = [entry.kind for entry in run.coordinator.transcript.entries]
    assert kinds == ["run record", *["plan", "settlement"] * 2]


def test_its_transcript_is_checked_by_the_verifier_that_stands_alone() -> None:
    run = ReportedRun(3).set_up()
    run.collect()
    run.check()
    run.settle()
    run.close()
    known = run.coordinator.known
    lines = transcript_lines(
        known.transcript, known.heads, coordinator=run.operator, parties=list(run.pins.values())
    )
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
    found = verify_transcript(text, coordinator=run.operator.fingerprint.hex())
    assert found.is_good, found
    assert len(found.heads_compared) == 3


@pytest.mark.parametrize(
    ("absent", "liars"),
    [((), (1,)), ((0,), ()), ((4,), (2, 3)), ((0, 1), (4,))],
    ids=["a liar", "one never comes", "both", "three are gone"],
)
def test_liars_and_absent_hospitals_are_no_loss_to_the_others(
    absent: tuple[int, ...], liars: tuple[int, ...]
) -> None:
    run = ReportedRun(6).set_up()
    run.collect(absent=absent, liars=liars)
    good = [seat for seat in range(6) if seat not in (*absent, *liars)]
    assert (run.check() == sum_of(good)).all()
    decision = run.coordinator.batch.reports.machine.decision
    assert decision is not None
    assert list(decision.rejected) == [run.hospitals[seat].fingerprint for seat in liars]
    run.settle()
    assert run.listed() == good


def test_too_few_good_reports_open_nothing_and_stay_charged() -> None:
    run = ReportedRun(4).set_up()
    run.collect(liars=(0, 1))
    with pytest.raises(TooFewPartiesError):
        run.check()
    assert run.coordinator.batch.reports.machine.state is CheckState.STOPPED
    with pytest.raises(WrongStateError):
        run.coordinator.batch.note_checked()
    with pytest.raises(WrongStateError):
        run.coordinator.batch.settle(released=True, result=b"")
    run.settle(released=False)
    claim = run.coordinator.batch.claim_of(run.coordinator.settled[-1])
    assert claim is None  # no evidence that it never opens: nothing comes back


def test_a_hospital_that_was_restarted_sends_its_report_again_and_makes_no_other() -> None:
    run = ReportedRun(3).set_up()
    plan = run.plan()
    (first,) = run.report(1, plan)
    assert run.parties[1].receive(plan, now=NOW).replies == (first,)
    run.parties[1] = run.start_party(1)
    assert run.parties[1].receive(plan, now=NOW).replies == (first,)


def test_a_coordinator_that_was_killed_anywhere_opens_the_same_sum() -> None:
    run = ReportedRun(3).set_up()
    plan = run.plan()
    run._hear(0, run.report(0, plan))
    run.start_coordinator()  # the report is in its journal; the others come now, the first again
    assert run.coordinator.batch.survivors == (run.hospitals[0].fingerprint,)
    for seat in range(3):
        frames = run.report(seat, plan) if seat else run.parties[0].receive(plan, now=NOW).replies
        run._hear(seat, frames)
    run.start_coordinator()
    run.coordinator.batch.close_reports()
    told = run.coordinator.batch.reports.machine.close()
    run.start_coordinator()
    assert run.coordinator.batch.reports.machine.close() == told
    first = run.check()
    run.start_coordinator()
    opened = run.coordinator.batch.reports.machine.opened
    assert opened is not None
    assert (opened == first).all()
    run.settle()
    assert run.listed() == [0, 1, 2]
    steps = run.journal.steps()
    assert [step_from_record(step_to_record(step)) for step in steps] == list(steps)


# What a coordinator could show a hospital ------------------------------------------------------


def strangers(run: ReportedRun) -> bytes:
    stranger = SigningIdentity.generate()
    message = wire.expect(wire.decode(run.statement()), KeyStatement)
    fields = {name: getattr(message, name) for name in KeyStatement.__dataclass_fields__}
    return wire.sign(KeyStatement(**fields | {"identity_key": stranger.public.key}), stranger).frame


def forged(run: ReportedRun) -> bytes:
    message = wire.decode(run.statement()).message
    return wire.sign(message, SigningIdentity.generate()).frame


WRONG: dict[str, tuple[Callable[[ReportedRun], dict[str, bytes]], type[ProtocolError]]] = {
    "no tally": (lambda run: {"tally": b""}, UnknownPeerError),
    "another tally": (lambda run: {"tally": strangers(run)}, UnknownPeerError),
    "a forged statement": (lambda run: {"tally": forged(run)}, BadSignatureError),
    "of another offer": (
        lambda run: {"tally": run.statement(offer_digest=bytes(32))}, UnexpectedMessageError,
    ),
    "of a party": (lambda run: {"tally": run.statement(role="party")}, UnexpectedMessageError),
    "of another time": (lambda run: {"tally": run.statement(expires_at=1)}, UnexpectedMessageError),
    "a short key of the tally": (
        lambda run: {"tally": run.statement(sealing_key=bytes(32))}, SuiteError,
    ),
    "no key of the coordinator": (lambda run: {"sealing_key": b""}, SuiteError),
    "no statement": (
        lambda run: {"tally": run.coordinator.setup.offer.frame}, MalformedMessageError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_record_without_the_pinned_tally_is_refused(name: str) -> None:
    changed, error = WRONG[name]
    run = ReportedRun(3)
    record = run.record(**changed(run))
    with pytest.raises(error):
        run.parties[0].receive(record, now=NOW)
    assert run.parties[0].state is PartyState.STATED


ABSENT: dict[str, tuple[int, Callable[[list[bytes]], tuple[bytes, ...]], type[ProtocolError]]] = {
    "one that stated its keys": (3, lambda seats: (seats[1], seats[3], seats[4]), UnknownPeerError),
    "our own": (3, lambda seats: (seats[0], seats[3], seats[4]), UnknownPeerError),
    "one twice": (3, lambda seats: (seats[3], seats[3], seats[4]), UnknownPeerError),
    "a stranger": (3, lambda seats: (seats[3], bytes([255]) * 32), UnknownPeerError),
    "not ascending": (3, lambda seats: (seats[4], seats[3]), UnknownPeerError),
    "all but two": (2, lambda seats: (*seats[2:],), TooFewPartiesError),
}


@pytest.mark.parametrize("name", ABSENT)
def test_a_record_of_wrong_absent_parties_is_refused(name: str) -> None:
    number, absent, error = ABSENT[name]
    run = ReportedRun(5)
    known = wire.expect(wire.decode(run.record()), RunRecord)
    seats = [one.fingerprint for one in run.hospitals]
    told = replace(known, statements=known.statements[:number], absent=absent(seats))
    with pytest.raises(error):
        run.parties[0].receive(wire.sign(told, run.operator).frame, now=NOW)
    assert run.parties[0].state is PartyState.STATED
    right = replace(known, statements=known.statements[:3], absent=(seats[3], seats[4]))
    run.parties[0].receive(wire.sign(right, run.operator).frame, now=NOW)
    assert run.parties[0].state is not PartyState.STATED


def told_without(run: ReportedRun, *absent: int) -> bytes:
    """A record that the coordinator signs, whoever stated its keys."""
    known = wire.expect(run.coordinator.setup.signed_record, RunRecord)
    seats = [one.fingerprint for one in run.hospitals]
    there = [frame for seat, frame in enumerate(known.statements) if seat not in absent]
    away = tuple(seats[seat] for seat in absent)
    return wire.sign(replace(known, statements=tuple(there), absent=away), run.operator).frame


@pytest.mark.parametrize(("parties", "fewest"), [(3, 3), (4, 3), (6, 4), (9, 5), (10, 6)])
def test_no_set_that_could_not_end_the_run_is_entered(parties: int, fewest: int) -> None:
    """So that any two setups of a run have a hospital in common, which answers a row once."""
    run = ReportedRun(parties)
    run.record()
    party = run.parties[0]
    with pytest.raises(TooFewHeadsError if fewest > 3 else TooFewPartiesError):
        party.receive(told_without(run, *range(fewest - 1, parties)), now=NOW)
    assert party.state is PartyState.STATED
    party.receive(told_without(run, *range(fewest, parties)), now=NOW)
    assert party.state is PartyState.REVIEWING_RUN


def test_a_run_set_up_with_the_fewest_comes_to_its_end_and_with_one_fewer_does_not_begin() -> None:
    run = ReportedRun(6)
    offer = run.coordinator.setup.offer.frame
    for seat in range(3):
        run._hear(seat, run.parties[seat].receive(offer, now=NOW).replies)
    with pytest.raises(TooFewHeadsError):
        run.coordinator.go_on_without_missing()
    run._hear(3, run.parties[3].receive(offer, now=NOW).replies)
    run.coordinator.go_on_without_missing()
    keys = {"sealing_key": run.keys[0].public_bytes, "tally": run.statement()}
    record = run.coordinator.setup.make_record(terms=b"", colluders=5, dropouts=3, **keys)
    for seat in range(4):
        run.parties[seat].receive(record, now=NOW)
        run._hear(seat, run.parties[seat].accept_run())
    plan = run.plan()
    for seat in range(4):
        run._hear(seat, run.report(seat, plan))
    run.coordinator.batch.close_reports()
    assert (run.check() == sum_of(range(4))).all()
    closing = run.coordinator.closing
    for told in (
        lambda: run.coordinator.batch.settle(released=True, result=b""), closing.close,
        closing.compare,
    ):  # fmt: skip
        frame = told()
        for seat in range(4):
            run._hear(seat, run.parties[seat].receive(frame, now=NOW).replies)
    assert run.coordinator.state is CoordinatorState.DONE


def test_one_that_answered_and_is_told_to_be_absent_enters_nothing_and_votes_on_nothing() -> None:
    run = ReportedRun(5)
    run.record()
    record = told_without(run, 0)
    for seat in (1, 2, 3, 4):
        run.parties[seat].receive(record, now=NOW)  # nobody else can know
        run.parties[seat].accept_run()
    before = tuple(run.site_journals[0].steps)
    with pytest.raises(UnknownPeerError):
        run.parties[0].receive(record, now=NOW)
    plan = Plan(wire.decode(record).digest, 1, 0, bytes(32), 12, EXPIRES_AT, b"")
    with pytest.raises(ProtocolError):
        run.parties[0].receive(wire.sign(plan, run.operator).frame, now=NOW)
    assert run.parties[0].state is PartyState.STATED
    assert tuple(run.site_journals[0].steps) == before


def test_hospitals_that_were_told_different_sets_are_in_no_sum_together() -> None:
    run = ReportedRun(6)
    shown = run.record()
    told = {seat: told_without(run, 5) if seat < 2 else shown for seat in range(6)}
    for seat, party in enumerate(run.parties):
        party.receive(told[seat], now=NOW)
        ready = party.accept_run()
        if seat < 2:
            with pytest.raises(UnexpectedMessageError):
                run._hear(seat, ready)
        else:
            run._hear(seat, ready)
    run.coordinator.go_on_without_missing()
    assert run.coordinator.absent == tuple(one.fingerprint for one in run.hospitals[:2])
    with pytest.raises(ProtocolError):
        run.parties[0].receive(run.plan(), now=NOW)


def test_another_set_between_batches_stops_the_run_at_each_hospital() -> None:
    run = ReportedRun(5).set_up()
    run.collect()
    run.check()
    run.settle()
    before = [tuple(journal.steps) for journal in run.site_journals]
    for party in run.parties[:4]:
        with pytest.raises(ProtocolError):
            party.receive(told_without(run, 4), now=NOW)
        assert party.state is PartyState.STOPPED
    assert [tuple(journal.steps) for journal in run.site_journals] == before


def test_a_coordinator_sets_up_without_no_more_than_the_form_allows() -> None:
    run = ReportedRun(5)
    for step in ("stated", "ready"):  # nobody is, in either exchange
        with pytest.raises(TooFewPartiesError):
            run.coordinator.go_on_without_missing()
        assert len(run.coordinator.missing) == 5, step
        run.record() if step == "stated" else None
    run = ReportedRun(3).set_up()
    assert run.coordinator.absent == ()
    with pytest.raises(WrongStateError):  # the setup is over
        run.coordinator.go_on_without_missing()


def test_a_hospital_that_pinned_nobody_enters_no_such_run() -> None:
    run = ReportedRun(3)
    run.parties[0] = run.start_party(0, tally=SigningIdentity.generate().public)
    with pytest.raises(UnknownPeerError):
        run.parties[0].receive(run.record(), now=NOW)


@pytest.mark.parametrize(
    "rows",
    [some_rows(0)[:2], some_rows(0) + 1, -some_rows(0), np.zeros((4, 3), dtype=np.int64)],
    ids=["short", "too many", "negative", "none"],
)
def test_rows_that_are_no_votes_are_refused_before_anything_is_noted(rows: Any) -> None:
    run = ReportedRun(3).set_up()
    plan = run.plan()
    run.parties[0].receive(plan, now=NOW)
    before = tuple(run.site_journals[0].steps)
    with pytest.raises(InvalidVectorError):
        run.parties[0].contribute(rows.ravel(), layout=LAYOUT)
    assert tuple(run.site_journals[0].steps) == before


# What a hospital could send --------------------------------------------------------------------


def test_a_report_of_another_plan_or_hospital_is_refused() -> None:
    run = ReportedRun(3).set_up()
    old = run.report(0, run.plan())
    run.settle(released=False)
    plan = run.plan(1)
    (report,) = run.report(1, plan)
    with pytest.raises(LateMessageError):
        run._hear(0, old)
    with pytest.raises(UnknownPeerError) as caught:
        run.coordinator.receive(report, peer=run.hospitals[0].fingerprint)
    assert caught.value.peer == run.hospitals[0].fingerprint.hex()
    assert run.coordinator.batch.survivors == ()


def test_a_second_report_and_one_after_the_list_is_closed() -> None:
    run = ReportedRun(4).set_up()
    plan = run.plan()
    reports = [run.report(seat, plan)[0] for seat in range(4)]
    for seat in range(3):
        run._hear(seat, [reports[seat]])
    run._hear(0, [reports[0]])  # the same again changes nothing
    read = wire.expect(wire.decode(reports[0]), VoteReport)
    other = wire.contain(VoteReport(read.header, b"x", read.tally_envelope))
    with pytest.raises(ConflictingMessageError):
        run._hear(0, [other])
    run.coordinator.batch.close_reports()
    with pytest.raises(LateMessageError):
        run._hear(3, [reports[3]])
    assert (run.check() == sum_of(range(3))).all()


def test_who_reported_cannot_refuse_the_plan_after_the_coordinators_restart() -> None:
    run = ReportedRun(3).set_up()
    plan = run.plan()
    run._hear(0, run.report(0, plan))
    run.start_coordinator()  # all are waited for again; the report is there
    refusal = Refusal(wire.decode(plan).digest, run.hospitals[0].fingerprint, "PF-300")
    with pytest.raises(ConflictingMessageError):
        run._hear(0, [wire.sign(refusal, run.hospitals[0]).frame])
    run.settle(released=False)
    assert run.coordinator.settled[-1].settlement.refusals == ()
    assert run.listed() == [0]
    assert run.parties[0].state is PartyState.READY


def test_a_vector_of_another_form_is_refused() -> None:
    run = ReportedRun(3).set_up()
    digest = wire.decode(run.plan()).digest
    vector = MaskedVector(digest, run.hospitals[0].fingerprint, bytes(4 * 12))
    with pytest.raises(WrongStateError):
        run._hear(0, [wire.sign(vector, run.hospitals[0]).frame])


def test_a_release_without_us_is_told_from_one_that_lists_what_we_never_sent() -> None:
    run = ReportedRun(4).set_up()
    run.collect()
    run.check()
    signed = wire.decode(run.coordinator.batch.settle(released=True, result=b""))
    told = wire.expect(signed, Settlement)
    fields = {name: getattr(told, name) for name in Settlement.__dataclass_fields__}
    entries = (b"x" * 32, *told.contributions[1:])
    forged = wire.sign(Settlement(**fields | {"contributions": entries}), run.operator).frame
    with pytest.raises(ProtocolError):
        run.parties[0].receive(forged, now=NOW)
    assert run.parties[0].state is PartyState.STOPPED


def test_keys_come_back_from_their_bytes() -> None:
    for suite in (SUITE_MLKEM768_X25519, SUITE_X25519):
        key = SealingKey(suite)
        again = SealingKey.from_private_bytes(suite, key.private_bytes)
        assert again.public_bytes == key.public_bytes
        with pytest.raises(SuiteError):
            SealingKey.from_private_bytes(suite, key.private_bytes[1:])
    assert LAYOUT.votes == VOTES

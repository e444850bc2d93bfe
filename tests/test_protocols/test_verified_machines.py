"""Both aggregators' machines: honest, deviating, killed, and asked again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import (
    BadSignatureError,
    BrokenJournalError,
    ConflictingMessageError,
    HistoryError,
    LateMessageError,
    MalformedMessageError,
    ProtocolError,
    TooFewPartiesError,
    UnexpectedMessageError,
    UnknownPeerError,
)
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.suites import SUITE_X25519
from protocols.verified import (
    CheckState,
    MemoryCheckJournal,
    VerifyingEnd,
    check_step_from_record,
    run_verified_sum,
)
from protocols.verified.prime_field import PrimeField
from protocols.verified.vote_side import coin_of, reports_in
from protocols.verified.vote_sum import noise_bytes
from protocols.vote_messages import (
    Acceptance,
    ListReceipt,
    ReportHeader,
    ReportList,
    SumShare,
    VoteAnswers,
    VoteReport,
)
from tests.support.checking import (
    COLUMNS,
    QUERIES,
    SIGMA,
    Check,
    CrashError,
    OverspentError,
    P,
    gaussian,
)

FIELD = PrimeField()
KINDS: tuple[type[Message], ...] = (
    *(ReportList, ListReceipt, VoteAnswers, VoteAnswers),
    *(Acceptance, Acceptance, SumShare, SumShare),
)
TO_TALLY = (ReportList, VoteAnswers, Acceptance, SumShare)
TO_COORDINATOR = (ListReceipt, VoteAnswers, Acceptance, SumShare)


@pytest.fixture
def check() -> Check:
    return Check(3, 25, 40, 3)


def said(frame: bytes) -> Any:
    return wire.decode(frame).message


def require_open(check: Check, *places: int) -> None:
    """Both ends opened one sum, that of these hospitals, off by noise that neither chose."""
    for place in range(2):
        machine = check.machine(place)
        assert machine.state is CheckState.OPENED
        assert machine.decision is not None
        assert machine.decision.accepted == tuple(
            check.hospitals[one].fingerprint for one in places
        )
        assert machine.opened is not None
        assert abs(machine.opened - check.sum_of(*places)).max() < 20 * SIGMA
        assert check.journals[place].charged == [machine.decision.accepted]
    assert (check.coordinator.opened == check.tally.opened).all()  # type: ignore[union-attr]


def require_stopped(check: Check, place: int) -> None:
    """Nothing of the batch leaves an end any more, also after a restart, and nothing was opened."""
    for _ in range(2):
        machine = check.machine(place)
        assert machine.state is CheckState.STOPPED
        assert machine.resend() == b""
        assert machine.opened is None
        for _, exchange in machine._history._exchanges:
            if exchange.received:
                with pytest.raises(UnexpectedMessageError):
                    machine.receive(exchange.received)
        check.start(place)


class TestHonest:
    def test_both_ends_open_the_noisy_sum_of_all(self, check: Check) -> None:
        told = check.run()
        assert [type(said(frame)) for frame in told] == list(KINDS)
        require_open(check, 0, 1, 2, 3)

    def test_the_sum_is_that_of_the_whole_protocol_in_one_function(self, check: Check) -> None:
        frames = [check.report(place) for place in (2, 0, 3, 1)]
        told = check.run(*frames)
        coin = coin_of(
            check.batch,
            reports_in(said(told[0])),
            coordinator_nonce=said(told[2]).nonce,
            tally_nonce=said(told[1]).nonce,
        )
        ends = []
        for place in range(2):
            machine = check.machine(place)
            secrets = machine._side.secrets
            stream = noise_bytes(
                secrets.noise_seed,
                plan_digest=check.batch.plan_digest,
                aggregator=check.identities[place].fingerprint,
                coin=coin,
            )
            noise = gaussian((QUERIES, COLUMNS), stream)
            ends.append(VerifyingEnd(check.keys[place], secrets.nonce, noise))
        found = run_verified_sum(
            check.batch,
            frames,
            identities=check.pinned,
            coordinator=ends[0],
            tally=ends[1],
            least_parties=2,
        )
        assert check.coordinator.opened is not None
        assert (found.counts == check.coordinator.opened).all()
        assert (found.counts - check.sum_of(0, 1, 2, 3) == ends[0].noise + ends[1].noise).all()

    def test_a_liar_and_one_that_never_comes_are_left_out(self) -> None:
        check = Check(3, 25, 40, 3, 3)
        check.run(check.report(0), check.lying_report(1), check.report(3), check.report(4))
        require_open(check, 0, 3, 4)
        for place in range(2):
            decision = check.machine(place).decision
            assert decision is not None
            liar = check.hospitals[1]
            assert list(decision.rejected) == [liar.fingerprint]
            wire.decode(decision.rejected[liar.fingerprint]).verify(liar.public)

    def test_noise_of_both_is_drawn_afresh_for_each_batch(self) -> None:
        noises = []
        for _ in range(2):
            check = Check(3, 3, 3)
            check.run()
            assert check.tally.opened is not None
            noises.append(check.tally.opened - check.sum_of(0, 1, 2))
        assert (noises[0] != noises[1]).any()


class TestReports:
    def test_the_same_report_again_changes_nothing_and_another_one_is_refused(
        self, check: Check
    ) -> None:
        first = check.report(0)
        check.coordinator.take_report(first)
        check.coordinator.take_report(first)
        with pytest.raises(ConflictingMessageError):
            check.coordinator.take_report(check.report(0))
        assert len(check.journals[0].records) == 1
        check.run(first, check.report(1), check.report(2))
        require_open(check, 0, 1, 2)

    def test_no_report_enters_a_closed_list(self, check: Check) -> None:
        late = check.report(3)
        check.collect(*map(check.report, range(3)))
        with pytest.raises(LateMessageError):
            check.coordinator.take_report(late)
        check.start(0)
        with pytest.raises(LateMessageError):
            check.coordinator.take_report(late)

    def test_a_list_of_too_few_stays_open(self, check: Check) -> None:
        for place in (0, 1):
            check.coordinator.take_report(check.report(place))
        with pytest.raises(TooFewPartiesError):
            check.coordinator.close()
        check.coordinator.take_report(check.report(2))
        assert check.coordinator.close() == check.coordinator.close()

    def test_nobodys_report_is_not_noted(self, check: Check) -> None:
        other = replace(check.batch, plan_digest=bytes(32))
        for frame in (b"", check.report(0, other), check.report(0)[:-1]):
            with pytest.raises(ProtocolError):
                check.coordinator.take_report(frame)
        assert check.journals[0].records == []

    def test_a_rejected_hospital_is_told_no_reason(self, check: Check) -> None:
        """Whatever the fault, both ends note the same: its signed header."""
        unfit = wire.expect(wire.decode(check.report(2)), VoteReport)
        other = wire.expect(wire.decode(check.report(2)), VoteReport)
        faults = [
            check.lying_report(2),
            wire.contain(replace(unfit, tally_envelope=other.tally_envelope)),
            wire.contain(replace(unfit, coordinator_envelope=other.coordinator_envelope)),
        ]
        for frame in faults:
            again = Check(3, 25, 40, 3)
            again.__dict__.update(
                hospitals=check.hospitals, identities=check.identities, keys=check.keys,
                batch=check.batch, pinned=check.pinned,
            )  # fmt: skip
            again.start(0)
            again.start(1)
            again.run(again.report(0), again.report(1), again.report(3), frame)
            require_open(again, 0, 1, 3)
            header = wire.expect(wire.decode(frame), VoteReport).header
            for place in range(2):
                decision = again.machine(place).decision
                assert decision is not None
                assert decision.rejected == {check.hospitals[2].fingerprint: header}


class TestKeys:
    @pytest.mark.parametrize(
        "changed",
        [
            {"identity": SigningIdentity.generate()},
            {"key": SealingKey(SUITE_X25519)},
            {"other": SigningIdentity.generate().public},
        ],
        ids=lambda changed: next(iter(changed)),
    )
    def test_an_end_has_the_keys_of_its_plan(self, check: Check, changed: dict[str, Any]) -> None:
        for place in range(2):
            with pytest.raises(UnknownPeerError):
                check.start(place, **changed)

    def test_a_sum_of_fewer_than_three_hospitals_never_opens(self, check: Check) -> None:
        for place in range(2):
            with pytest.raises(TooFewPartiesError):
                check.start(place, least_parties=2)


# What a deviating aggregator sends ---------------------------------------------------------------


def deviated(check: Check, place: int, frame: bytes, **changed: Any) -> bytes:
    """A message with other fields, under the true signature of the end that deviates."""
    return check.signed(1 - place, replace(said(frame), **changed))


class TestTheOtherEnd:
    """Each test deviates at one end; `place` is the honest one, 0 the coordinator."""

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_only_the_pinned_other_end_is_heard(self, check: Check, place: int) -> None:
        kinds = TO_COORDINATOR if place == 0 else TO_TALLY
        frame = check.until(place, kinds[1])
        before = list(check.journals[place].records)
        for stranger in (SigningIdentity.generate(), check.identities[place]):
            with pytest.raises(BadSignatureError):
                check.machine(place).receive(wire.sign(said(frame), stranger).frame)
        with pytest.raises(MalformedMessageError):
            check.machine(place).receive(frame[:-1])
        with pytest.raises(UnexpectedMessageError):
            check.machine(place).receive(deviated(check, place, frame, plan_digest=bytes(32)))
        with pytest.raises(UnexpectedMessageError):
            check.machine(place).receive(deviated(check, place, frame, sender=bytes(32)))
        assert check.journals[place].records == before

    def test_a_list_must_hold_each_hospital_once_with_its_own_header(self, check: Check) -> None:
        frame = check.collect()
        told = said(frame)
        stranger = wire.sign(
            replace(said(told.headers[0]), coordinator_binding=bytes(32)), check.hospitals[1]
        ).frame
        changes: list[tuple[dict[str, Any], type[ProtocolError]]] = [
            ({"headers": told.headers[::-1]}, MalformedMessageError),
            ({"headers": (told.headers[0], *told.headers[:3])}, MalformedMessageError),
            ({"envelopes": told.envelopes[:3]}, MalformedMessageError),
            ({"headers": (stranger, *told.headers[1:])}, BadSignatureError),
            ({"headers": told.headers[:1], "envelopes": told.envelopes[:1]}, TooFewPartiesError),
        ]
        for changed, error in changes:
            with pytest.raises(error):
                check.tally.receive(deviated(check, 1, frame, **changed))
        assert check.journals[1].records == []
        assert check.tally.receive(frame)

    def test_another_header_towards_the_tally_loses_its_report_alone(self, check: Check) -> None:
        """A hospital that lies with the coordinator signs two headers."""
        frame = check.collect()
        told = said(frame)
        second = wire.sign(
            replace(wire.expect(wire.decode(told.headers[1]), ReportHeader),
                    coordinator_binding=os.urandom(32)),
            check.hospitals[1],
        ).frame  # fmt: skip
        headers = (told.headers[0], second, *told.headers[2:])
        receipt = check.tally.receive(deviated(check, 1, frame, headers=headers))
        # An honest coordinator would not go on.
        with pytest.raises(UnexpectedMessageError):
            check.coordinator.receive(receipt)
        reports = reports_in(replace(told, headers=headers))
        nonce = check.coordinator._side.secrets.nonce
        coin = coin_of(
            check.batch, reports, coordinator_nonce=nonce, tally_nonce=said(receipt).nonce
        )
        own = check.coordinator._side.answers(check.coordinator._history.listed, coin)
        check.tally.receive(check.signed(0, own))
        decision = check.tally.decision
        assert decision is not None
        assert list(decision.rejected) == [check.hospitals[1].fingerprint]

    def test_a_receipt_of_another_list_is_refused(self, check: Check) -> None:
        frame = check.until(0, ListReceipt)
        with pytest.raises(UnexpectedMessageError):
            check.coordinator.receive(deviated(check, 0, frame, list_digest=bytes(32)))
        assert check.coordinator.receive(frame)

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_a_nonce_was_fixed_before_the_other_one_was_told(
        self, check: Check, place: int
    ) -> None:
        frame = check.until(place, VoteAnswers)
        with pytest.raises(UnexpectedMessageError):
            check.machine(place).receive(deviated(check, place, frame, nonce=os.urandom(32)))
        assert check.machine(place).receive(frame)

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    @pytest.mark.parametrize(
        "spoil",
        [
            pytest.param(lambda answers: answers[1:], id="one less"),
            pytest.param(lambda answers: (answers[0] + bytes(4), *answers[1:]), id="longer"),
            pytest.param(lambda answers: (answers[0][:-4], *answers[1:]), id="shorter"),
            pytest.param(
                lambda answers: (P.to_bytes(4, "little") + answers[0][4:], *answers[1:]),
                id="no element",
            ),
        ],
    )
    def test_answers_are_elements_of_the_list(
        self, check: Check, place: int, spoil: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
    ) -> None:
        frame = check.until(place, VoteAnswers)
        with pytest.raises(MalformedMessageError):
            check.machine(place).receive(
                deviated(check, place, frame, answers=spoil(said(frame).answers))
            )
        assert check.machine(place).receive(frame)

    def test_an_offset_of_any_element_rejects_its_report_at_both_and_changes_no_answer(
        self,
    ) -> None:
        """Which elements: w_m(t), each H_i(t), the sum; both parts of the extension."""
        length = Check(3, 3, 3).batch
        elements = 2 * length.layout_of(next(iter(length.votes))).answer_length
        for element in range(elements):
            check = Check(3, 3, 3)
            honest = check.until(1, VoteAnswers)
            answers = list(said(honest).answers)
            values = FIELD.from_bytes(answers[1], elements, MalformedMessageError)
            values[element] = (int(values[element]) + 1 + element) % P
            answers[1] = FIELD.to_bytes(values)
            answer = check.tally.receive(deviated(check, 1, honest, answers=tuple(answers)))
            # What the tally says of all reports is what it would have said.
            twin = check.tally._side.answers(check.tally._history.listed, check.tally._coin)
            assert said(answer) == twin
            decision = check.tally.decision
            assert decision is not None
            assert list(decision.rejected) == [check.hospitals[1].fingerprint]

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_an_end_that_says_nothing_of_a_report_leaves_it_out(
        self, check: Check, place: int
    ) -> None:
        frame = check.until(place, VoteAnswers)
        answers = said(frame).answers
        lying = deviated(check, place, frame, answers=(b"", *answers[1:]))
        answer = said(check.machine(place).receive(lying))
        if place == 1:  # whatever it was told, it says the same
            side, history = check.tally._side, check.tally._history
            assert answer == side.answers(history.listed, check.tally._coin)
            assert all(answer.answers)
        decision = check.machine(place).decision
        assert decision is not None
        assert list(decision.rejected) == [check.hospitals[0].fingerprint]

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_other_accepted_reports_stop_the_batch(self, check: Check, place: int) -> None:
        frame = check.until(place, Acceptance)
        with pytest.raises(HistoryError):
            check.machine(place).receive(deviated(check, place, frame, accepted=bytes(32)))
        require_stopped(check, place)
        assert check.journals[place].charged == []

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_a_smaller_set_that_would_single_a_hospital_out_does_not_open(self, place: int) -> None:
        check = Check(3, 25, 40)
        frame = check.until(place, VoteAnswers)
        answers = (b"", *said(frame).answers[1:])
        lying = deviated(check, place, frame, answers=answers)
        if place == 0:
            with pytest.raises(TooFewPartiesError) as caught:
                check.coordinator.receive(lying)
        else:
            check.tally.receive(lying)
            own = check.tally._side.acceptance(check.tally._decided(), check.tally._coin)
            theirs = replace(own, sender=check.identities[0].fingerprint)
            with pytest.raises(TooFewPartiesError) as caught:
                check.tally.receive(check.signed(0, theirs))
        assert (caught.value.received, caught.value.threshold) == (2, 3)
        require_stopped(check, place)
        assert check.journals[place].charged == []
        decision = check.machine(place).decision
        assert decision is not None
        assert list(decision.rejected) == [check.hospitals[0].fingerprint]

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_a_share_of_another_shape_opens_nothing(self, check: Check, place: int) -> None:
        frame = check.until(place, SumShare)
        charged = list(check.journals[place].charged)
        body = said(frame).body
        for spoiled in (body[4:], body + bytes(4), P.to_bytes(4, "little") + body[4:]):
            with pytest.raises(MalformedMessageError):
                check.machine(place).receive(deviated(check, place, frame, body=spoiled))
        assert check.journals[place].charged == charged


# Order, replays ----------------------------------------------------------------------------------


class TestOrder:
    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_a_message_out_of_its_turn_is_refused_and_changes_nothing(self, place: int) -> None:
        kinds = TO_COORDINATOR if place == 0 else TO_TALLY
        for turn in range(len(kinds)):
            check = Check(3, 25, 3)
            frame = check.until(place, kinds[turn])
            sender, plan = check.identities[1 - place].fingerprint, check.batch.plan_digest
            early: dict[type[Message], Message] = {
                ReportList: ReportList(plan, (b"x",), (b"x",), bytes(32), bytes(32)),
                ListReceipt: ListReceipt(plan, bytes(32), bytes(32), bytes(32)),
                VoteAnswers: VoteAnswers(plan, sender, bytes(32), (b"", b"", b"")),
                Acceptance: Acceptance(plan, sender, bytes(32)),
                SumShare: SumShare(plan, sender, bytes(4 * QUERIES * COLUMNS)),
            }
            before = list(check.journals[place].records)
            for kind, message in early.items():
                if kind not in kinds[: turn + 1]:
                    with pytest.raises(UnexpectedMessageError):
                        check.machine(place).receive(check.signed(1 - place, message))
            assert check.journals[place].records == before
            check.machine(place).receive(frame)

    def test_nothing_is_received_before_the_list_is_closed(self, check: Check) -> None:
        receipt = ListReceipt(check.batch.plan_digest, bytes(32), bytes(32), bytes(32))
        with pytest.raises(UnexpectedMessageError):
            check.coordinator.receive(check.signed(1, receipt))

    @pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
    def test_a_message_again_gets_the_same_bytes(self, check: Check, restarts: bool) -> None:
        told = check.run()
        noted = [list(journal.records) for journal in check.journals]
        if restarts:
            check.start(0)
            check.start(1)
        for request, answer, following in zip(
            told[::2], told[1::2], [*told[2::2], b""], strict=True
        ):
            assert check.tally.receive(request) == answer
            assert check.coordinator.receive(answer) == following
        assert [journal.records for journal in check.journals] == noted
        require_open(check, 0, 1, 2, 3)

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    @pytest.mark.parametrize("turn", range(4), ids=["list", "answers", "acceptance", "share"])
    @pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
    def test_a_second_message_in_the_place_of_an_answered_one_stops_the_batch(
        self, place: int, turn: int, restarts: bool
    ) -> None:
        """A second list is a second coin, a second share a second opening."""
        check = Check(3, 25, 3)
        kinds = TO_COORDINATOR if place == 0 else TO_TALLY
        frame = check.until(place, kinds[turn])
        check.machine(place).receive(frame)
        if restarts:
            check.start(place)
        changed: dict[type[Message], dict[str, Any]] = {
            ReportList: {"nonce_commitment": os.urandom(32)},
            ListReceipt: {"nonce": os.urandom(32)},
            VoteAnswers: {"answers": (b"", b"", b"")},
            Acceptance: {"accepted": bytes(32)},
            SumShare: {"body": bytes(4 * QUERIES * COLUMNS)},
        }
        other = deviated(check, place, frame, **changed[kinds[turn]])
        with pytest.raises(ConflictingMessageError):
            check.machine(place).receive(other)
        assert check.machine(place).state is CheckState.STOPPED
        check.start(place)
        for asked in (frame, other):
            with pytest.raises(UnexpectedMessageError):
                check.machine(place).receive(asked)
        assert check.machine(place).resend() == b""


# The ledger --------------------------------------------------------------------------------------


class TestLedger:
    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_nothing_opens_that_is_not_charged(self, check: Check, place: int) -> None:
        """Also a row that was opened before, in whichever plan: its ledger refuses."""
        kind = Acceptance if place == 0 else SumShare
        check.journals[place].budget = 0
        frame = check.until(place, kind)
        before = list(check.journals[place].records)
        for _ in range(2):
            with pytest.raises(OverspentError):
                check.machine(place).receive(frame)
            assert check.journals[place].records == before
            check.start(place)
        assert check.journals[place].charged == []
        check.journals[place].budget = 1
        answer = check.machine(place).receive(frame)
        assert len(check.journals[place].charged) == 1
        assert check.machine(place).receive(frame) == answer
        assert len(check.journals[place].charged) == 1

    def test_an_end_charges_before_its_share_leaves_and_not_sooner(self, check: Check) -> None:
        check.until(1, SumShare)
        assert [len(journal.charged) for journal in check.journals] == [1, 0]

    def test_a_journal_in_memory_charges_first(self) -> None:
        charged: list[tuple[bytes, ...]] = []

        def refuse(accepted: tuple[bytes, ...]) -> None:
            charged.append(accepted)
            raise OverspentError

        journal = MemoryCheckJournal(refuse)
        check = Check(3, 3, 3)
        check.start(1, journal=journal)
        frame = check.until(1, SumShare)
        steps = journal.steps()
        with pytest.raises(OverspentError):
            check.tally.receive(frame)
        assert charged == [tuple(one.fingerprint for one in check.hospitals)]
        assert journal.steps() == steps
        assert repr(journal) == f"MemoryCheckJournal(steps={len(steps)})"


# Crashes -----------------------------------------------------------------------------------------


def run_through(check: Check, frames: list[bytes]) -> list[bytes]:
    """Run a batch whose processes may be killed at any step; each is begun again by its journal."""
    told: list[bytes] = []

    def act(place: int, call: Callable[[], bytes | None]) -> bytes:
        while True:
            try:
                found = call()
            except CrashError:
                check.start(place)
            else:
                return found or b""

    for frame in frames:
        act(0, lambda frame=frame: check.coordinator.take_report(frame))  # type: ignore[misc]
    request = act(0, lambda: check.coordinator.close())  # noqa: PLW0108 - a new one after a crash
    while request:
        answer = act(1, lambda request=request: check.tally.receive(request))  # type: ignore[misc]
        told += [request, answer]
        request = act(0, lambda answer=answer: check.coordinator.receive(answer))  # type: ignore[misc]
    return told


class TestCrashes:
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_one_coin_one_charge_and_one_noise_whenever_an_end_is_killed(
        self, place: int, when: str
    ) -> None:
        """`after`: the step is on disk, and nothing was sent."""
        number = 0
        while True:
            check = Check(3, 25, 3)
            frames = [check.report(one) for one in range(3)]
            journal = check.journals[place]
            setattr(journal, f"crashes_{when}", number)
            told = run_through(check, frames)
            require_open(check, 0, 1, 2)
            assert said(told[3]).nonce == said(told[1]).nonce
            words = [word for word, _ in journal.records]
            assert words.count("secrets") == 1
            check.start(0)
            check.start(1)
            require_open(check, 0, 1, 2)
            if number >= len(journal.records):
                break
            number += 1
        assert number >= 5

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_what_left_an_end_is_in_its_journal_before(self, place: int) -> None:
        """So whichever bytes the other end saw, they are sent again after a crash."""
        kinds = TO_COORDINATOR if place == 0 else TO_TALLY
        for kind in kinds:
            check = Check(3, 25, 3)
            frame = check.until(place, kind)
            sent = check.machine(place).receive(frame)
            on_disk = [values[-1] for word, values in check.journals[place].records
                       if word == "exchange"]  # fmt: skip
            assert on_disk[-1] == sent

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_a_step_that_the_disk_refuses_changes_nothing(self, place: int) -> None:
        """The process goes on: what it would have sent must not leave it later either."""
        number = 0
        while True:
            check = Check(3, 25, 3)
            frames = [check.report(one) for one in range(3)]
            journal = check.journals[place]
            journal.crashes_before = number

            def act(call: Callable[[], bytes | None], journal: Any = journal) -> bytes:
                try:
                    found = call()
                except CrashError:
                    noted = list(journal.records)
                    found = call()
                    assert len(journal.records) > len(noted)
                return found or b""

            for frame in frames:
                act(lambda frame=frame, check=check: check.coordinator.take_report(frame))  # type: ignore[misc]
            request = act(check.coordinator.close)
            while request:
                answer = act(lambda request=request, check=check: check.tally.receive(request))  # type: ignore[misc]
                request = act(lambda answer=answer, check=check: check.coordinator.receive(answer))  # type: ignore[misc]
                told = {values[-1] for word, values in check.journals[place].records
                        if word == "exchange"}  # fmt: skip
                assert {answer if place else request} <= told
            require_open(check, 0, 1, 2)
            if number >= len(journal.records):
                break
            number += 1


class TestJournal:
    @pytest.mark.parametrize(
        ("word", "values"),
        [
            ("vote", (b"",)), ("report", ()), ("exchange", (b"",)), ("stop", (b"", b"", b"")),
            ("secrets", ("", "")),
        ],
    )  # fmt: skip
    def test_what_is_no_step_is_refused(self, word: str, values: tuple[Any, ...]) -> None:
        with pytest.raises(BrokenJournalError):
            check_step_from_record(word, values)

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_a_journal_that_contradicts_itself_is_refused(self, check: Check, place: int) -> None:
        check.run()
        journal = check.journals[place]
        whole = list(journal.records)
        places = {word: at for at, (word, _) in enumerate(whole)}
        spoiled = [
            [*whole, whole[places["secrets"]]],
            [*whole, whole[-1]],
            [*whole[:-2], whole[-1]],
            [*whole, ("report", (check.report(0),))],
            [*whole, ("exchange", (b"", b""))],
            [*whole, ("exchange", (b"no frame", b""))],
        ]
        for records in spoiled:
            journal.records = records
            with pytest.raises(BrokenJournalError):
                check.start(place)
        other = Check(3, 25, 40, 3)
        other.run()
        journal.records = other.journals[place].records
        with pytest.raises(BrokenJournalError):
            check.start(place)
        journal.records = other.journals[1 - place].records
        with pytest.raises(BrokenJournalError):
            check.start(place)

    def test_machines_and_steps_show_no_secret(self, check: Check) -> None:
        told = check.run()
        for place in range(2):
            side = check.machine(place)._side
            shown = repr([check.journals[place].steps(), side, side.secrets, said(told[6])])
            for secret in (side.secrets.nonce, side.secrets.noise_seed, said(told[6]).body):
                assert repr(secret)[2:-1] not in shown

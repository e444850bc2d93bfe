"""A coordinator's round that comes back from its journal: the very same bytes, or a clear error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import (
    BrokenJournalError,
    ConflictingMessageError,
    RefusedError,
    TooFewSharesError,
    UnexpectedMessageError,
    UnfinishedSetupError,
    WrongStateError,
)
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import (
    Certificate,
    Closing,
    MaskedVector,
    Plan,
    Refusal,
    SetProposal,
    Settlement,
    ShareBundle,
)
from protocols.rounds import (
    CoordinatorRound,
    CoordinatorState,
    MemoryCoordinatorJournal,
    PartyState,
)
from protocols.rounds.coordinator_journal import (
    ContributionsFixed,
    HeadsCollected,
    PlanCertified,
    PlanOpened,
    PlanProposed,
    PlanSettled,
    RunEnded,
    RunFinished,
    SetupFinished,
    Step,
    step_from_record,
    step_to_record,
)
from protocols.rounds.history import RunHistory
from protocols.rounds.live_run import LiveRun
from protocols.values import encode_value
from tests.support import rounds
from tests.support.copied import Copies
from tests.support.markers import sampled
from tests.support.rounds import NOW, MemoryRun, ready_run
from tests.support.walk import altered

WORDS, PARTIES = 4, 5
ONES = np.ones(WORDS, dtype=np.int64)
FORMS = [pytest.param(AdditiveSum, id="additive"), pytest.param(MaskedSum, id="masked")]


def ready(form: Any = AdditiveSum) -> MemoryRun:
    return ready_run(PARTIES, form=form)


def steps_of(run: MemoryRun) -> tuple[Step, ...]:
    return run.coordinator._journal.steps()


def resumed(
    run: MemoryRun, steps: tuple[Step, ...] | None = None, **changed: Any
) -> CoordinatorRound:
    """The round as a new process would have it."""
    journal = MemoryCoordinatorJournal()
    for step in steps_of(run) if steps is None else steps:
        journal.append(step_from_record(step_to_record(step)))
    arguments = {
        "identity": run.coordinator_identity,
        "form": run._make_form(),
        "parties": {fp: identity.public for fp, identity in run.identities.items()},
    }
    return CoordinatorRound.resumed(journal=journal, **{**arguments, **changed})


def crash(run: MemoryRun) -> None:
    run.coordinator = resumed(run)


def serve(run: MemoryRun, batch: int = 0, **lost: Any) -> None:
    run.sum([ONES] * PARTIES, batch=batch, **lost)
    run.settle()


def send_ys(
    run: MemoryRun, plan: bytes, *, absent: tuple[int, ...] = ()
) -> dict[bytes, list[bytes]]:
    """Hand a plan to all but some seats; a new one is contributed to, an old one answered again."""
    sent = {}
    for seat, party in enumerate(run.coordinator.seats):
        if seat in absent:
            continue
        received = run.parties[party].receive(plan, now=NOW)
        again = received.event is None
        frames = list(received.replies if again else run.parties[party].contribute(ONES))
        run.to_coordinator("y", party, frames)
        sent[party] = frames
    return sent


def agreed(run: MemoryRun, *, mute: tuple[int, ...] = ()) -> dict[bytes, list[bytes]]:
    """Have the set agreed to by all but some seats; what each party of it is told next."""
    run.agree(run.coordinator.batch.propose(), mute=[run.coordinator.seats[seat] for seat in mute])
    return run.coordinator.batch.certify()


def begun(run: MemoryRun) -> bytes:
    """Open a plan, and have every party send its y."""
    plan = run.open_plan(WORDS)
    send_ys(run, plan)
    return plan


def shown(run: MemoryRun) -> dict[bytes, list[bytes]]:
    """Go on to the shares, if there are any."""
    if run._make_form is AdditiveSum:
        return {}
    told = agreed(run)
    run.show(told)
    return told


def close(run: MemoryRun) -> None:
    run.close()
    assert {party.state for party in run.parties.values()} == {PartyState.DONE}


def place_of(kind: Any, steps: Sequence[Step]) -> int:
    return next(place for place, step in enumerate(steps) if isinstance(step, kind))


def is_damage(
    run: MemoryRun, *steps: tuple[Step, ...], match: str | None = None, **changed: Any
) -> None:
    with pytest.raises(BrokenJournalError, match=match):
        resumed(run, *steps, **changed)


def whole_run(form: Any) -> MemoryRun:
    """Two released batches and two void ones, of which one is closed where that can be; closed."""
    run = ready(form)
    serve(run, 0)
    plan = run.open_plan(WORDS, batch=1)
    send_ys(run, plan)
    if form is MaskedSum:
        agreed(run)
    run.settle(released=False)
    plan = run.open_plan(WORDS, batch=2)
    send_ys(run, plan, absent=(0, 1))
    if form is MaskedSum:
        run.close_plan()
    run.settle(released=False)
    serve(run, 3)
    run.close()
    return run


@pytest.fixture
def run() -> MemoryRun:
    return ready(MaskedSum)


class TestGoingOn:
    @sampled()
    @pytest.mark.parametrize("form", FORMS)
    def test_after_every_step_of_a_run_it_is_where_it_was(self, form: Any) -> None:
        run = whole_run(form)
        steps = steps_of(run)
        kinds = {type(step) for step in steps}
        assert len(kinds) == (9 if form is MaskedSum else 7)
        states = [resumed(run, steps[: number + 1]).state for number in range(len(steps))]
        assert states[0] is CoordinatorState.READY
        assert states[-3:] == [
            CoordinatorState.CLOSING, CoordinatorState.COMPARING, CoordinatorState.DONE,
        ]  # fmt: skip
        last = resumed(run)
        assert last.transcript == run.coordinator.transcript
        assert last.closing.signed_transcript() == run.coordinator.closing.signed_transcript()
        assert last.statements == run.coordinator.statements
        assert last.run_id == run.coordinator.run_id
        assert last.settled == run.coordinator.settled

    @pytest.mark.parametrize("form", FORMS)
    def test_a_plan_is_sent_again_as_it_was_and_gets_the_same_ys(self, form: Any) -> None:
        run = ready(form)
        serve(run, 0)
        plan = run.open_plan(WORDS, batch=1)
        first = send_ys(run, plan)
        crash(run)
        assert run.coordinator.open_plan.frame == plan
        assert run.coordinator.missing == run.coordinator.seats
        assert send_ys(run, plan) == first
        shown(run)
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)
        run.settle()
        serve(run, 2)
        close(run)

    @pytest.mark.parametrize("certified", [False, True], ids=["proposed", "certified"])
    def test_a_proposed_set_stays_and_so_does_every_bundle(self, certified: bool) -> None:
        run = ready(MaskedSum)
        plan = run.open_plan(WORDS)
        send_ys(run, plan, absent=(2,))
        proposals = run.coordinator.batch.propose()
        first = agreed(run) if certified else {}
        crash(run)
        absent = run.coordinator.seats[2]
        assert absent not in run.coordinator.missing
        # Who was not in it comes too late, for ever.
        run.to_party("plan", absent, plan)
        late = run.parties[absent].contribute(ONES)
        with pytest.raises(UnexpectedMessageError) as caught:
            run.to_coordinator("late", absent, list(late))
        assert caught.value.peer == absent.hex()
        send_ys(run, plan, absent=(2,))
        assert run.coordinator.batch.propose() == proposals
        told = shown(run)
        assert told == (first or told)
        assert np.array_equal(run.coordinator.batch.open_total(), (PARTIES - 1) * ONES)

    def test_a_survivor_that_does_not_come_back_cannot_be_left_out(self, run: MemoryRun) -> None:
        plan = begun(run)
        agreed(run)
        crash(run)
        send_ys(run, plan, absent=(1,))
        with pytest.raises(TooFewSharesError):
            run.coordinator.batch.propose()
        with pytest.raises(WrongStateError):
            run.coordinator.batch.open_total()
        run.settle(released=False)

    def test_revealed_shares_come_again_as_they_were(self, run: MemoryRun) -> None:
        plan = begun(run)
        first = shown(run)
        crash(run)
        send_ys(run, plan)
        assert shown(run) == first
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)

    @pytest.mark.parametrize("changed", ["dealing", "y"])
    def test_a_survivor_that_says_otherwise_after_a_restart_is_named_and_nobody_hears_of_it(
        self, changed: str, run: MemoryRun
    ) -> None:
        """Else honest holders, who used its first dealing, were told two, and stopped the run."""
        plan = begun(run)
        first = agreed(run)
        holder, liar = run.coordinator.seats[:2]
        for frame in first[holder]:
            run.to_party("certificate", holder, frame)  # what it reveals is lost with the process
        crash(run)
        shares, y = run.parties[liar].receive(plan, now=NOW).replies
        if changed == "y":
            body = wire.expect(wire.decode(y), MaskedVector).body
            other = altered(y, run.identities[liar], body=bytes([body[0] ^ 1]) + body[1:])
        else:
            [dealing] = wire.expect(wire.decode(shares), ShareBundle).dealings
            dealt = altered(dealing, run.identities[liar], salt=bytes(32))
            other = altered(shares, run.identities[liar], dealings=(dealt,))
        lie = [shares, other] if changed == "y" else [other, y]
        with pytest.raises(ConflictingMessageError) as caught:
            run.to_coordinator("otherwise", liar, lie)
        assert (caught.value.code, caught.value.peer) == ("PF-223", liar.hex())
        # What it said at first is still welcome, and every holder gets what it got.
        send_ys(run, plan)
        assert shown(run) == first
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_sum_that_was_opened_is_opened_from_the_same_ys_only(self, form: Any) -> None:
        run = ready(form)
        plan = begun(run)
        shown(run)
        run.coordinator.batch.open_total()
        crash(run)
        assert run.coordinator.open_plan.opened
        liar = run.coordinator.seats[1]
        frames = list(run.parties[liar].receive(plan, now=NOW).replies)
        body = wire.expect(wire.decode(frames[-1]), MaskedVector).body
        other = altered(frames[-1], run.identities[liar], body=bytes([body[0] ^ 1]) + body[1:])
        with pytest.raises(ConflictingMessageError) as caught:
            run.to_coordinator("another y", liar, [*frames[:-1], other])
        assert (caught.value.code, caught.value.peer) == ("PF-223", liar.hex())
        # The true one is still welcome, and the sum is what it was.
        send_ys(run, plan)
        shown(run)
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)
        assert sum(type(step) is ContributionsFixed for step in steps_of(run)) == 1

    @pytest.mark.parametrize("form", FORMS)
    def test_what_was_opened_can_be_settled_without_its_ys(self, form: Any) -> None:
        run = ready(form)
        begun(run)
        shown(run)
        run.coordinator.batch.open_total()
        crash(run)
        run.settle(result=b"result")
        close(run)

    def test_what_was_not_opened_cannot_be_released(self) -> None:
        run = ready()
        send_ys(run, run.open_plan(WORDS))
        crash(run)
        with pytest.raises(WrongStateError):
            run.coordinator.batch.settle(released=True, result=b"")

    def test_ys_that_were_opened_are_not_unsent_by_refusals(self) -> None:
        """Else everybody's budget could be given back for a sum that was seen."""
        run = ready()
        plan = begun(run)
        run.coordinator.batch.open_total()
        crash(run)
        for party, identity in run.identities.items():
            refusal = wire.sign(_refusal(wire.decode(plan).digest, party), identity).frame
            with pytest.raises(RefusedError):
                run.coordinator.receive(refusal, peer=party)
        assert not run.coordinator.batch.nothing_was_shared

    def test_who_may_not_have_heard_is_told_again(self, run: MemoryRun) -> None:
        first, second = run.coordinator.seats[:2]
        serve(run, 0)
        for batch in (1, 2):  # lost in both, and hears of neither
            plan = run.open_plan(WORDS, batch=batch)
            send_ys(run, plan, absent=(0,))
            shown(run)
            run.coordinator.batch.open_total()
            frame = run.coordinator.batch.settle(released=True, result=b"")
            for party in run.coordinator.seats[1:]:
                run.to_party("settlement", party, frame)
        crash(run)
        frames = [each.frame for each in run.coordinator.settled]
        assert len(frames) == 3
        assert run.coordinator.unheard()[first] == frames
        assert run.coordinator.unheard()[second] == frames[-1:]
        for frame in run.coordinator.unheard()[first]:
            run.to_party("settlement", first, frame)
        serve(run, 3)
        close(run)

    def test_a_closing_goes_on_wherever_it_stood(self) -> None:
        run = ready()
        serve(run)
        closing = run.coordinator.closing.close()
        some = run.coordinator.seats[:2]
        for party in some:
            run.to_coordinator("closing", party, run.to_party("closing", party, closing))
        crash(run)
        assert run.coordinator.closing.frame == closing
        run.broadcast("closing", closing)
        heads = run.coordinator.closing.compare()
        for party in some:
            run.to_coordinator("heads", party, run.to_party("heads", party, heads))
        crash(run)
        assert run.coordinator.closing.heads_frame == heads
        run.broadcast("heads", heads)
        assert run.coordinator.state is CoordinatorState.DONE
        assert {party.state for party in run.parties.values()} == {PartyState.DONE}

    def test_a_step_is_written_before_its_frame_is_handed_out(self) -> None:
        """A journal that cannot be written keeps the frame back, and changes nothing."""

        class Full(MemoryCoordinatorJournal):
            is_full = False

            def append(self, step: Step) -> None:
                if self.is_full:
                    raise OSError("no space")
                super().append(step)

        run = ready(MaskedSum)
        journal = Full()
        for step in steps_of(run):
            journal.append(step)
        run.coordinator._journal = journal

        def refused(call: Any) -> None:
            coordinator = run.coordinator
            before = (coordinator.state, coordinator.transcript, coordinator.has_open_plan)
            journal.is_full = True
            with pytest.raises(OSError, match="no space"):
                call()
            journal.is_full = False
            after = (coordinator.state, coordinator.transcript, coordinator.has_open_plan)
            assert before == after

        refused(lambda: run.open_plan(WORDS))
        begun(run)
        refused(run.coordinator.batch.propose)
        run.agree(run.coordinator.batch.propose())
        refused(run.coordinator.batch.certify)
        run.show(run.coordinator.batch.certify())
        refused(run.coordinator.batch.open_total)
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)
        refused(lambda: run.coordinator.batch.settle(released=True, result=b""))
        run.settle()
        run.open_plan(WORDS, batch=1)
        refused(run.coordinator.batch.propose_closing)
        run.agree(run.coordinator.batch.propose_closing())
        refused(run.coordinator.batch.certify)
        assert run.coordinator.batch.certify() == {}
        run.settle(released=False)
        refused(run.coordinator.closing.close)
        run.broadcast("closing", run.coordinator.closing.close())
        run.broadcast("heads", run.coordinator.closing.compare())
        assert run.coordinator.state is CoordinatorState.DONE

    @pytest.mark.parametrize("form", FORMS)
    def test_a_live_run_is_what_its_journal_says_after_every_step(
        self, form: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        honest, compared = LiveRun.do, 0

        def do(live: LiveRun, step: Step) -> None:
            nonlocal compared
            honest(live, step)
            read = live._rules.replay(live._journal.steps())
            assert read == live.history
            assert _signatures(read) == _signatures(live.history)
            compared += 1

        monkeypatch.setattr(LiveRun, "do", do)
        monkeypatch.setattr(rounds, "_READY", Copies())  # the set-up is watched, too
        run = whole_run(form)
        assert compared == len(steps_of(run)) > 10

    @sampled("verdicts", cases=2)
    @pytest.mark.parametrize("verdicts", range(PARTIES + 1))
    def test_verdicts_come_again_whoever_gave_them_before(self, verdicts: int) -> None:
        run = ready(MaskedSum)
        plan = begun(run)
        proposals = run.coordinator.batch.propose()
        said = {}
        for party in run.coordinator.seats[:verdicts]:
            said[party] = run.to_party("proposal", party, proposals[party])
            run.to_coordinator("verdict", party, said[party])
        crash(run)
        send_ys(run, plan)
        assert run.coordinator.batch.propose() == proposals
        for party, frames in said.items():
            assert run.to_party("proposal", party, proposals[party]) == frames
        shown(run)
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)
        run.settle()
        run.close()

    @pytest.mark.parametrize("again", [(), (4,)], ids=["all answer", "one is silent now"])
    def test_a_certificate_stays_as_it_was(self, again: tuple[int, ...], run: MemoryRun) -> None:
        """A party that was shown one proof may be shown another: both prove the same."""
        plan = begun(run)
        told = agreed(run)
        for party in run.coordinator.seats[:2]:
            run.show({party: told[party]})
        frames = [step.certificate for step in steps_of(run) if isinstance(step, PlanCertified)]
        crash(run)
        assert run.coordinator.open_plan.opens_a_set
        with pytest.raises(WrongStateError):
            run.coordinator.batch.propose_closing()  # whoever heard of it may show its shares
        send_ys(run, plan)
        told = agreed(run, mute=again)
        run.show(told)
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)
        settlement = wire.expect(
            wire.decode(run.coordinator.batch.settle(released=True, result=b"")), Settlement
        )
        assert [settlement.certificate] == frames

    def test_a_certificate_needs_no_verdict_after_a_restart(self, run: MemoryRun) -> None:
        """Nobody answers the proposal again: the certificate itself is shown."""
        plan = begun(run)
        told = agreed(run)
        run.show({party: told[party] for party in run.coordinator.seats[:2]})
        crash(run)
        send_ys(run, plan)
        run.coordinator.batch.propose()
        again = run.coordinator.batch.certify()
        kinds = {type(wire.decode(frames[0]).message) for frames in again.values()}
        assert kinds == {Certificate}
        run.show(again)
        assert np.array_equal(run.coordinator.batch.open_total(), PARTIES * ONES)

    @sampled()
    @pytest.mark.parametrize("certified", [False, True], ids=["proposed", "certified"])
    @pytest.mark.parametrize("tried", [False, True], ids=["at once", "after a set was proposed"])
    def test_a_closing_of_a_plan_goes_on(self, certified: bool, tried: bool) -> None:
        run = ready(MaskedSum)
        plan = run.open_plan(WORDS)
        send_ys(run, plan, absent=() if tried else (3, 4))
        agreed_before: tuple[bytes, ...] = ()
        if tried:
            proposals = run.coordinator.batch.propose()
            agreed_before = run.coordinator.seats[:1]
            run.agree({party: proposals[party] for party in agreed_before})
        closing = run.coordinator.batch.propose_closing()
        asked = tuple(seat for seat in run.coordinator.seats if seat not in agreed_before)
        assert tuple(closing) == asked
        said = {party: run.to_party("closing", party, closing[party]) for party in asked}
        if certified:
            for party, frames in said.items():
                run.to_coordinator("closing", party, frames)
            assert run.coordinator.batch.certify() == {}
        crash(run)
        assert not run.coordinator.open_plan.may_open
        assert run.coordinator.open_plan.is_closed == certified
        with pytest.raises(WrongStateError):
            run.coordinator.batch.propose()
        again = run.coordinator.batch.propose_closing()
        assert set(again.values()) == set(closing.values())
        for party in asked:
            assert run.to_party("closing", party, again[party]) == said[party]
            run.to_coordinator("closing", party, said[party])
        assert run.coordinator.batch.certify() == {}
        run.settle(released=False)
        assert run.coordinator.settled[-1].settlement.certificate
        serve(run, 1)
        close(run)

    @pytest.mark.parametrize("form", FORMS)
    def test_the_journal_holds_no_y_no_share_and_nothing_opened(self, form: Any) -> None:
        run = ready(form)
        sent = send_ys(run, run.open_plan(WORDS))
        shown(run)
        secret = [run.coordinator.batch.open_total().astype("<u4").tobytes()]
        run.settle()
        run.close()
        for frame in (frame for frames in sent.values() for frame in frames):
            match wire.decode(frame).message:
                case MaskedVector(body=body):
                    secret.append(body)
                case ShareBundle(dealings=dealings, envelopes=envelopes):
                    secret += [*dealings, *envelopes]
        written = [encode_value(step_to_record(step)) for step in steps_of(run)]
        assert len(secret) >= 1 + PARTIES
        assert not [one for one in secret if any(one in record for record in written)]


def _signatures(run: RunHistory | None) -> list[Any]:
    """What a transcript has beside its hashes, which its equality leaves out."""
    assert run is not None
    return [(entry.signatures, entry.survivors) for entry in run.transcript.entries]


def _refusal(subject: bytes, party: bytes) -> Any:
    return Refusal(subject, party, "PF-301")


class TestDamage:
    @sampled()
    @pytest.mark.parametrize("form", FORMS)
    def test_a_step_left_out_moved_or_repeated_is_an_error(self, form: Any) -> None:
        run = whole_run(form)
        steps = steps_of(run)
        for place in range(len(steps)):
            for spoiled in (
                steps[:place] + steps[place + 1 :],
                steps[: place + 1] + steps[place:],
                (*steps[:place], *reversed(steps[place : place + 2]), *steps[place + 2 :]),
            ):
                if spoiled == steps or spoiled == steps[:-1]:
                    continue  # nothing was moved, or the end is missing: see below
                with pytest.raises(BrokenJournalError) as caught:
                    resumed(run, spoiled)
                assert caught.value.code == "PF-248"

    def test_a_void_batch_needs_no_opened_sum_and_a_released_one_does(self) -> None:
        run = ready()
        serve(run)
        steps = steps_of(run)
        opened = [place for place, step in enumerate(steps) if isinstance(step, ContributionsFixed)]
        is_damage(run, steps[: opened[0]] + steps[opened[0] + 1 :])

    def test_one_share_revealed_before_a_set_is_certified_is_an_error(self, run: MemoryRun) -> None:
        send_ys(run, run.open_plan(WORDS))
        run.coordinator.batch.propose()
        *steps, proposed = steps_of(run)
        assert isinstance(proposed, PlanProposed)
        first, *others = proposed.contributions
        assert first is not None
        listed = (replace(first, reveal=bytes(32)), *others)
        with pytest.raises(BrokenJournalError, match="revealed"):
            resumed(run, (*steps, replace(proposed, contributions=listed)))

    def test_nothing_is_not_a_run(self) -> None:
        with pytest.raises(UnfinishedSetupError) as caught:
            resumed(ready(), ())
        assert caught.value.code == "PF-249"

    @sampled()
    @pytest.mark.parametrize(
        ("kind", "message_type", "changed"),
        [
            pytest.param(PlanOpened, Plan, {"words": 9}, id="plan"),
            pytest.param(PlanSettled, Settlement, {"result": b"other"}, id="settlement"),
            pytest.param(PlanProposed, SetProposal, {"survivors": (bytes(32),)}, id="proposal"),
            pytest.param(RunEnded, Closing, {"head": bytes(32)}, id="closing"),
        ],
    )
    def test_a_frame_that_the_coordinator_did_not_sign_is_an_error(
        self, kind: Any, message_type: Any, changed: dict[str, Any]
    ) -> None:
        run = whole_run(MaskedSum)
        steps = list(steps_of(run))
        place = place_of(kind, steps)
        name, *_ = kind.__dataclass_fields__
        frame = getattr(steps[place], name)
        assert isinstance(wire.decode(frame).message, message_type)
        forged = altered(frame, SigningIdentity.generate(), **changed)
        for other in (forged, frame[:-1] + bytes([frame[-1] ^ 1]), frame[:-1], b""):
            steps[place] = replace(steps[place], **{name: other})
            is_damage(run, tuple(steps))

    @sampled()
    @pytest.mark.parametrize(
        ("kind", "changed"),
        [
            pytest.param(PlanProposed, {"run_id": bytes(32)}, id="proposal of another run"),
            pytest.param(PlanSettled, {"run_id": bytes(32)}, id="settlement of another run"),
            pytest.param(PlanSettled, {"words": 9}, id="settlement of another length"),
        ],
    )
    def test_what_the_coordinator_signed_for_something_else_is_an_error(
        self, kind: Any, changed: dict[str, Any]
    ) -> None:
        run = whole_run(MaskedSum)
        steps = list(steps_of(run))
        place = place_of(kind, steps)
        name, *_ = kind.__dataclass_fields__
        signed = altered(getattr(steps[place], name), run.coordinator_identity, **changed)
        steps[place] = replace(steps[place], **{name: signed})
        is_damage(run, tuple(steps), match=r"run|length")

    def test_the_highest_counter_that_a_party_signed_is_kept_as_it_was_live(self) -> None:
        run = whole_run(AdditiveSum)
        steps = list(steps_of(run))
        party = run.identities[run.coordinator.seats[0]]
        place = place_of(RunFinished, steps)
        lower = altered(steps[place].ready[0], party, journal_counter=0)
        steps[place] = RunFinished((lower, *steps[place].ready[1:]))
        before = resumed(run, tuple(steps[:place])).statements
        assert (
            resumed(run, tuple(steps)).statements[party.fingerprint] == (before[party.fingerprint])
        )

    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            (SetupFinished, "confirmations"),
            (SetupFinished, "ready"),
            (HeadsCollected, "heads"),
            (RunFinished, "ready"),
        ],
    )
    def test_what_a_party_did_not_sign_is_an_error(self, kind: Any, name: str) -> None:
        run = whole_run(AdditiveSum)
        steps = list(steps_of(run))
        place = place_of(kind, steps)
        frames = getattr(steps[place], name)
        peer, other = (run.identities[party] for party in run.coordinator.seats[:2])
        for spoiled in (
            (frames[1], frames[0], *frames[2:]),
            frames[1:],
            (altered(frames[0], other), *frames[1:]),
            (altered(frames[0], peer, run_id=bytes(32)), *frames[1:]),
        ):
            changed = replace(steps[place], **{name: spoiled})
            is_damage(run, (*steps[:place], changed, *steps[place + 1 :]))

    @pytest.mark.parametrize("closed", [False, True], ids=["of a set", "of a closed plan"])
    def test_a_certificate_that_does_not_prove_its_proposal_is_an_error(self, closed: bool) -> None:
        run = ready(MaskedSum)
        plan = begun(run)
        if closed:
            run.close_plan()
        else:
            agreed(run)
        steps = list(steps_of(run))
        certificate = wire.expect(wire.decode(steps[-1].certificate), Certificate)  # type: ignore[union-attr]
        signers, signatures = certificate.signers, certificate.signatures
        last = run.coordinator.seats[-1]
        assert last not in signers
        for changed in (
            {"signers": signers[1:], "signatures": signatures[1:]},
            {
                "signers": (signers[0], *signers[:-1]),
                "signatures": (signatures[0], *signatures[:-1]),
            },
            {"signers": signers[::-1], "signatures": signatures[::-1]},
            {"signers": (*signers[:-1], last)},
            {"signers": (*signers[:-1], bytes(32))},
            {"signatures": signatures[1:]},
            {"signatures": (bytes(64), *signatures[1:])},
            {"plan_digest": bytes(32)},
            {"survivors": () if certificate.survivors else run.coordinator.seats},
            {"survivors": run.coordinator.seats[:4]},
        ):
            frame = wire.contain(replace(certificate, **changed))
            is_damage(run, (*steps[:-1], PlanCertified(frame)))
        for frame in (b"", b"junk", plan):
            is_damage(run, (*steps[:-1], PlanCertified(frame)))

    def test_what_is_proposed_after_a_closing_or_twice_is_an_error(self, run: MemoryRun) -> None:
        """Two sets for one plan, or a set after it is to be closed, were never told to anybody."""
        send_ys(run, run.open_plan(WORDS))
        run.coordinator.batch.propose()
        run.coordinator.batch.propose_closing()
        *before, opening, closing = steps_of(run)
        for spoiled in ((opening, opening), (closing, closing), (closing, opening)):
            is_damage(run, (*before, *spoiled))
        resumed(run, (*before, closing))
        run.agree(run.coordinator.batch.propose_closing())
        run.coordinator.batch.certify()
        certified = steps_of(run)[-1]
        for spoiled in ((certified,), (opening, certified), (opening, closing, certified, closing)):
            is_damage(run, (*before, *spoiled))

    @pytest.mark.parametrize(
        ("kind", "reveals"), [(PlanProposed, [bytes(32)]), (ContributionsFixed, [b"", b"short"])]
    )
    def test_digests_that_do_not_fit_are_an_error(
        self, run: MemoryRun, kind: Any, reveals: list[bytes]
    ) -> None:
        serve(run, absent=(1,))
        steps = list(steps_of(run))
        place = place_of(kind, steps)
        kept = steps[place].contributions  # type: ignore[union-attr]
        first = kept[0]
        for spoiled in (
            kept[1:],
            tuple(reversed(kept)),
            (None, *kept[1:]),
            (first, first, *kept[2:]),
            (replace(first, vector=bytes(32)), *kept[1:]),
            (replace(first, dealing=bytes(32)), *kept[1:]),
            (replace(first, dealing=b""), *kept[1:]),
            *((replace(first, reveal=reveal), *kept[1:]) for reveal in reveals),
        ):
            changed = replace(steps[place], contributions=spoiled)
            is_damage(run, (*steps[:place], changed, *steps[place + 1 :]))

    def test_the_journal_of_another_run_identity_form_or_party_is_refused(self) -> None:
        run, other = ready(), ready()
        is_damage(run, steps_of(other))
        is_damage(run, identity=SigningIdentity.generate())
        is_damage(run, form=MaskedSum())
        parties = {fp: identity.public for fp, identity in run.identities.items()}
        parties.popitem()
        is_damage(run, parties=parties)
        serve(run)
        serve(other)
        is_damage(run, (*steps_of(run)[:1], *steps_of(other)[1:]))

    def test_a_new_run_does_not_begin_with_an_old_journal(self) -> None:
        run = ready()
        journal = run.coordinator._journal
        with pytest.raises(WrongStateError):
            CoordinatorRound(
                identity=run.coordinator_identity,
                form=AdditiveSum(),
                parties={fp: identity.public for fp, identity in run.identities.items()},
                nonce=bytes(32),
                expires_at=10_000,
                simulated=True,
                journal=journal,
            )

    @pytest.mark.parametrize("form", FORMS)
    def test_a_journal_that_lost_its_end_stops_the_parties_not_their_keys(self, form: Any) -> None:
        """It reads like a younger run: what it would say anew contradicts what parties know."""
        run = ready(form)
        steps = steps_of(run)
        serve(run, 0)
        run.coordinator = resumed(run, steps)
        plan = run.open_plan(WORDS, batch=7)
        for party in run.parties.values():
            with pytest.raises(ConflictingMessageError):
                party.receive(plan, now=NOW)
            assert party.state is PartyState.STOPPED

    @pytest.mark.parametrize(
        "record",
        [
            [], ["dance"], ["plan"], ["plan", "text"], ["plan", b"a", b"b"], ["opened", b"x"],
            ["opened", ["x"]], ["proposal", b"s"], ["proposal", b"s", ["x"]],
            ["proposal", "s", []], ["certificate"], ["certificate", "c"], ["survivors", b"s", []],
            ["setup", b"o", b"r", [[b"d"]], []], ["setup", b"o", b"r", [], [1]],
            ["setup", b"o", b"r", [], [b"f", 1]], ["setup", b"o", b"r", []],
            ["opened", [[b"v", b"d"]]],
            ["heads", {}], [1],
        ],
        ids=str,
    )  # fmt: skip
    def test_what_is_no_step_is_an_error(self, record: list[Any]) -> None:
        with pytest.raises(BrokenJournalError):
            step_from_record(record)

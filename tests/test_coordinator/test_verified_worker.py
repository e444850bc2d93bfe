"""A queued run of verified votes: hospitals report once, the worker and a tally open the sums."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import select

from coordinator.errors import RunRequestError, TallyRefusedError, TallySetupError
from coordinator.runs.queue import RunState
from coordinator.runs.stages import BatchStage
from coordinator.runs.transport import Silence
from coordinator.tally.book_rows import run_standings
from coordinator.tally.served_run import noise_law
from coordinator.tally.tally_client import TallyClient
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from coordinator.tally.tally_schema import TallyOpenedRow, TallyRunRow
from pate_fed.accounting import EntryState
from pate_fed.errors import InvalidSettingError, PateFedError
from pate_fed.rule import Caps, Rule
from pate_fed.terms import NO_TASK, RunTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.envelope import SealingKey
from protocols.forms import Additive, Verified
from protocols.identity import SigningIdentity
from protocols.messages import (
    Closing,
    HeadBundle,
    KeyStatement,
    Refusal,
    RunInquiry,
    RunOffer,
    RunRecord,
)
from protocols.rounds.seating import seats_of
from protocols.run_scope import RunScope
from protocols.suites import DEFAULT_SUITE
from protocols.transcript_verifier import verify_transcript
from tests.support.deployed import CLASSES, NAMES, Hospital, true_class
from tests.support.hospital_site import tell_votes
from tests.support.invariants import messages_in
from tests.support.worked import QUERIES, KilledError, Worked, die_at
from tests.support.worked_tally import (
    WorkedWithTally,
    lying,
    require_one_charge,
    require_one_coin,
    require_told,
)

BATCHES = QUERIES // 4
TEN = tuple(f"Hospital {number}" for number in range(10))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[WorkedWithTally]:
    made = WorkedWithTally(tmp_path)
    yield made
    made.stop_tally()


@pytest.fixture
def ten(tmp_path: Path) -> Iterator[WorkedWithTally]:
    made = WorkedWithTally(tmp_path, names=TEN)
    yield made
    made.stop_tally()


def require_right(federation: Worked, *, answered: int = QUERIES) -> None:
    truth = true_class(federation.task.inputs)
    assert len(federation.labels()) == answered
    assert federation.labels() == {at: CLASSES[truth[at]] for at in federation.labels()}
    for one in federation.hospitals.values():
        assert set(Counter(one.asked).values()) <= {1}


def privacy_of(federation: Worked) -> dict[str, Any]:
    folder = federation.coordinator.home.results("first")
    found: dict[str, Any] = json.loads((folder / "privacy.json").read_text())
    return found


def test_a_run_goes_from_the_queue_to_its_directory(federation: WorkedWithTally) -> None:
    federation.ask()
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert run.progress.answered == QUERIES
    require_right(federation)
    require_one_coin(federation.coordinator, federation.tally)
    assert federation.charges() == [[EntryState.COMMITTED] * BATCHES] * len(NAMES)
    privacy = privacy_of(federation)
    assert privacy["noise"]["place"] == "aggregators"
    with closing(federation.tally.database()) as database, database.transaction() as connection:
        opened = connection.execute(select(TallyOpenedRow.place)).all()
    assert len(opened) == QUERIES


def usual_form(federation: Worked, **given: Any) -> str:
    """The form of a run for which nobody names one."""
    settings = federation.coordinator.settings_of(
        {"form": None, **given}, source="public.csv", label="sick"
    )
    return settings.form


def test_it_is_the_usual_form_where_a_tally_is_pinned(
    federation: WorkedWithTally, tmp_path: Path
) -> None:
    assert usual_form(federation) == Verified.name
    (tmp_path / "another").mkdir()
    assert usual_form(Worked(tmp_path / "another")) == Additive.name


@pytest.mark.parametrize("place", ["coordinator", "parties"])
def test_who_names_another_place_of_the_noise_has_another_form(
    federation: WorkedWithTally, place: str
) -> None:
    assert usual_form(federation, noise=place) == Additive.name


@pytest.mark.parametrize(
    "given",
    [
        *({"mechanism": "lnmax"}, {"evaluate": "private"}, {"colluders": 1}),
        {"teacher": "neighbors", "patient_votes": 2},
    ],
    ids=lambda given: " ".join(map(str, given.values())),
)
def test_what_two_aggregators_cannot_do_is_refused_and_not_done_another_way(
    federation: WorkedWithTally, given: dict[str, Any]
) -> None:
    coordinator = federation.coordinator
    settings = coordinator.settings_of({"form": None, **given}, source="public.csv", label="sick")
    assert settings.form == Verified.name
    with pytest.raises(InvalidSettingError):
        coordinator.draft("first", federation.task, settings, source="public.csv")


def test_more_votes_than_a_proof_takes_are_refused(federation: WorkedWithTally) -> None:
    tell_votes(
        federation.coordinator.enrollment, federation.hospitals[0].site, votes=1001, after_s=1
    )
    with pytest.raises(PateFedError):
        federation.ask()
    tell_votes(
        federation.coordinator.enrollment, federation.hospitals[0].site, votes=1000, after_s=2
    )
    federation.ask()


def test_without_a_tally_it_cannot_be_asked(tmp_path: Path) -> None:
    federation = Worked(tmp_path)
    with pytest.raises(RunRequestError, match="tally"):
        federation.ask(form=Verified.name, noise="aggregators", sigma2=2.0)


def test_one_leaves_one_never_comes_and_five_lie(ten: WorkedWithTally) -> None:
    ten.ask()

    def leave(stage: BatchStage) -> None:
        if stage is BatchStage.PLANNED:
            ten.away.add(8)  # it was there for the setup, and never comes
        if stage is BatchStage.ANSWERED:
            ten.away.add(9)  # its report is there

    ten.on_stage = leave
    with lying(*(ten.hospitals[node] for node in range(5))):
        run = ten.work()
    assert run.state is RunState.DONE, run.reason
    require_right(ten)
    require_one_coin(ten.coordinator, ten.tally)
    assert ten.coordinator.queue.find("first").progress.void == 0
    require_told(ten.coordinator, rejected=TEN[:5], lost=(TEN[8], TEN[9]))


@pytest.mark.parametrize("stage", ["offer", "between batches", "in a batch"])
def test_a_tally_that_is_away_is_waited_for_and_nothing_is_charged_for_it(
    federation: WorkedWithTally, stage: str
) -> None:
    federation.ask()
    if stage == "offer":
        federation.stop_tally()
        least = 0
    elif stage == "between batches":
        federation.on_stage = at(BatchStage.STORED, federation.stop_tally)
        least = 4
    else:
        federation.on_stage = at(BatchStage.ANSWERED, federation.stop_tally)
        least = 0
    run = federation.work()
    assert run.state is RunState.WAITING
    assert "PF-451" in run.reason
    assert federation.tally_standing.away_since is not None
    assert run.progress.answered == least
    if stage != "in a batch":
        assert all(len(charges) == least // 4 for charges in federation.charges())
    federation.on_stage = lambda _: None
    federation.start_tally()
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert federation.tally_standing.away_since is None
    assert federation.tally_standing.answered_at is not None
    require_right(federation)
    require_one_coin(federation.coordinator, federation.tally)


def at(wanted: BatchStage, call: Callable[[], None]) -> Callable[[BatchStage], None]:
    """Call something at the first passing of a stage."""
    passed: set[BatchStage] = set()

    def on_stage(stage: BatchStage) -> None:
        if stage is wanted and stage not in passed:
            passed.add(stage)
            call()

    return on_stage


@pytest.mark.parametrize(
    ("stage", "passes"),
    [
        *((stage, 1) for stage in (BatchStage.PLANNED, BatchStage.ANSWERED, BatchStage.PROPOSED)),
        *((BatchStage.AGREED, passes) for passes in range(1, 5)),
        *((stage, 1) for stage in (BatchStage.OPENED, BatchStage.DECIDED, BatchStage.STORED)),
        *((stage, 1) for stage in (BatchStage.CLOSING, BatchStage.COMPARING)),
    ],
    ids=lambda value: getattr(value, "value", str(value)),
)
def test_a_coordinator_killed_at_any_stage_goes_on(
    federation: WorkedWithTally, stage: BatchStage, passes: int
) -> None:
    federation.ask()
    federation.on_stage = die_at(stage, passes=passes)
    with pytest.raises(KilledError):
        federation.work()
    federation.on_stage = lambda _: None
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    require_right(federation)
    require_one_coin(federation.coordinator, federation.tally)
    assert federation.charges() == [[EntryState.COMMITTED] * BATCHES] * len(NAMES)


def test_a_tally_that_refuses_a_batch_ends_the_run_and_burns_no_other(
    federation: WorkedWithTally,
) -> None:
    federation.ask()
    with patch.object(TallyClient, "check", side_effect=refusal("PF-455")):
        run = federation.work()
    assert run.state is RunState.FAILED
    assert "PF-452" in run.reason
    assert federation.charges() == [[EntryState.FORFEITED]] * len(NAMES)


@pytest.mark.parametrize("what", ["a refusal", "another's statement", "no message"])
def test_a_tally_that_takes_no_part_costs_nothing(federation: WorkedWithTally, what: str) -> None:
    federation.ask()
    home = federation.coordinator.home
    stranger = SigningIdentity.generate()
    statement = KeyStatement(
        bytes(32), stranger.public.key, bytes(32), bytes(32), "tally", 2_000_000_000, 0
    )
    said: dict[str, Any] = {
        "a refusal": {"side_effect": refusal("PF-453")},
        "another's statement": {"return_value": wire.sign(statement, stranger).frame},
        "no message": {"return_value": b"?"},
    }
    assert home.tally is not None
    with patch.object(TallyClient, "state", **said[what]):
        run = federation.work()
    assert run.state is RunState.FAILED
    assert "PF-452" in run.reason
    assert federation.charges() == [[]] * len(NAMES)


def refusal(code: str) -> TallyRefusedError:
    return TallyRefusedError("the tally must agree", reason=code)


def test_a_tally_that_moved_is_pinned_at_its_new_address_and_no_other_is(
    federation: WorkedWithTally, tmp_path: Path
) -> None:
    home = federation.coordinator.home
    moved = replace(federation.tally.card, address="tally.example.org:8448")
    home.accept_tally(moved)
    assert home.tally == moved
    other = TallyFolder.create(
        tmp_path / "other",
        TallySettings("127.0.0.1:8448"),
        home.invite_tally(now=datetime.now(UTC)),
        now=datetime.now(UTC),
    )
    with pytest.raises(TallySetupError):
        home.accept_tally(other.card)


@pytest.mark.parametrize("mechanism", ["gnmax", "threshold"])
def test_one_aggregators_noise_is_the_full_amount(mechanism: str) -> None:
    terms = served_terms(mechanism)
    assert terms.rule.sigma2 is not None
    drawn = noise_law(terms)((4000, terms.classes), os.urandom)
    # Of 16,000 draws the deviation is known within 3 % but once in a million.
    assert abs(drawn.std() / terms.rule.sigma2 - 1) < 0.03
    assert abs(drawn.mean()) < 5 * terms.rule.sigma2 / math.sqrt(drawn.size)


FOUR = TEN[:4]
FAULTY, OTHERS = FOUR[1], [0, 2, 3]


@pytest.fixture
def four(tmp_path: Path) -> Iterator[WorkedWithTally]:
    made = WorkedWithTally(tmp_path, names=FOUR)
    yield made
    made.stop_tally()


def silent(one: Hospital, packet: bytes) -> Any:
    return Silence("PF-410")


def garbage(one: Hospital, packet: bytes) -> Any:
    return b"\xff\xff"


def another_run(one: Hospital, packet: bytes) -> Any:
    """What it must answer, of another run; signed."""
    frames = [wire.decode(frame) for frame in wire.unpack(one.honest(packet), max_bytes=2**30)]
    changed = []
    for signed in frames:
        names = {"offer_digest", "head", "run_id"} & {each.name for each in fields(signed.message)}
        other = replace(signed.message, **dict.fromkeys(names, bytes(32)))
        changed.append(wire.sign(other, one.site.identity).frame)
    return wire.pack(changed)


def other_keys_too(one: Hospital, packet: bytes) -> Any:
    """What it must answer, and the same once more with other keys."""
    [frame] = wire.unpack(one.honest(packet), max_bytes=2**30)
    message = wire.decode(frame).message
    if isinstance(message, KeyStatement):
        key = SealingKey(DEFAULT_SUITE).public_bytes
        message = replace(message, sealing_key=key, nonce=bytes(32))
    else:
        message = replace(message, journal_counter=2**20)
    return wire.pack([frame, wire.sign(message, one.site.identity).frame])


def refuses(one: Hospital, packet: bytes) -> Any:
    [asked] = [wire.decode(frame) for frame in wire.unpack(packet, max_bytes=2**30)][-1:]
    refusal = Refusal(asked.digest, one.site.identity.fingerprint, "PF-310")
    return wire.pack([wire.sign(refusal, one.site.identity).frame])


def spoil(one: Hospital, kind: type[Any], answer: Callable[[Hospital, bytes], Any]) -> None:
    """Let a hospital answer packets with a message of a kind otherwise."""
    one.honest = one.receive  # type: ignore[attr-defined]

    def receive(packet: bytes) -> Any:
        is_it = any(isinstance(message, kind) for message in messages_in(packet))
        return answer(one, packet) if is_it else one.honest(packet)  # type: ignore[attr-defined]

    one.receive = receive  # type: ignore[method-assign]


FAULTS = pytest.mark.parametrize(
    "answer",
    [silent, garbage, another_run, other_keys_too, refuses],
    ids=lambda answer: answer.__name__.replace("_", " "),
)


def require_right_without_one(federation: WorkedWithTally) -> None:
    """All queries are answered right, by the three others alone, each charged once a batch."""
    run = federation.coordinator.queue.find("first")
    assert run.state is RunState.DONE, run.reason
    require_right(federation)
    require_one_coin(federation.coordinator, federation.tally)
    require_one_charge(federation.coordinator, federation.tally)
    charges = federation.charges()
    assert [charges[node] for node in OTHERS] == [[EntryState.COMMITTED] * BATCHES] * 3


class TestOneThatIsNotReady:
    """A hospital agrees to a run, and then spoils each setup: the others do without it."""

    @pytest.mark.parametrize("kind", [RunOffer, RunRecord], ids=["offer", "record"])
    @FAULTS
    def test_the_others_go_on_without_it_and_it_is_named(
        self, four: WorkedWithTally, kind: type[Any], answer: Any
    ) -> None:
        spoil(four.hospitals[1], kind, answer)
        four.ask()
        run = four.work()
        if run.state is RunState.WAITING:  # the first time it may have been restarted
            assert FAULTY in run.reason
            assert four.charges() == [[]] * 4
            four.now += 60
            run = four.work()
        require_right_without_one(four)
        if answer is other_keys_too:  # its first ones count
            assert four.charges()[1] == [EntryState.COMMITTED] * BATCHES
            return
        assert four.charges()[1] == []
        assert four.hospitals[1].asked == []
        assert FAULTY in run.reason
        require_told(four.coordinator, rejected=(), lost=(FAULTY,))
        report = (four.coordinator.home.results("first") / "report.html").read_text("utf-8")
        assert f"without {FAULTY}" in report

    def test_one_that_comes_back_later_is_not_in_this_setup_and_is_in_the_next_run(
        self, four: WorkedWithTally
    ) -> None:
        """It gets record and plan, of a run that it is not in, and gives away nothing."""
        late = four.hospitals[1]
        spoil(late, RunOffer, silent)
        four.ask(queries=8)
        assert four.work().state is RunState.WAITING
        four.on_stage = at(
            BatchStage.STORED,
            lambda: setattr(late, "receive", late.honest),  # type: ignore[attr-defined]
        )
        four.now += 60
        assert four.work().state is RunState.DONE
        assert late.asked == []
        assert four.charges()[1] == []
        run = four.coordinator.queue.find("first")
        assert (run.progress.answered, run.progress.void) == (8, 0)
        four.on_stage = lambda _: None
        four.ask("second", select="random", seed=5)
        assert four.work("second").state is RunState.DONE
        assert set(late.asked) == set(four.labels("second")) - set(four.labels("first"))
        require_one_coin(four.coordinator, four.tally)
        require_one_charge(four.coordinator, four.tally)

    def test_with_fewer_than_a_sum_needs_nobody_goes_on_and_nothing_is_charged(
        self, federation: WorkedWithTally
    ) -> None:
        spoil(federation.hospitals[1], RunOffer, silent)
        federation.ask()
        for _ in range(3):
            run = federation.work()
            assert run.state is RunState.WAITING
            assert NAMES[1] in run.reason
            federation.now += 20
        assert federation.charges() == [[]] * 3

    def test_a_coordinator_killed_after_such_a_setup_goes_on_without_it(
        self, four: WorkedWithTally
    ) -> None:
        spoil(four.hospitals[1], RunRecord, garbage)
        four.ask()
        four.on_stage = die_at(BatchStage.STORED)
        with pytest.raises(KilledError):
            four.work()
        four.on_stage = lambda _: None
        run = four.work()
        require_right_without_one(four)
        assert FAULTY in run.reason
        require_told(four.coordinator, rejected=(), lost=(FAULTY,))

    def test_a_row_is_opened_once_whoever_is_there(self, four: WorkedWithTally) -> None:
        """A setup without one is of the same run: the tally has one account, as hospitals have."""
        four.ask()
        spoil(four.hospitals[1], RunOffer, silent)
        assert four.work().state is RunState.WAITING
        four.now += 60
        assert four.work().state is RunState.DONE
        with closing(four.tally.database()) as database, database.transaction() as connection:
            [run] = run_standings(connection, coordinator=four.coordinator.home.identity.public)
            frames = connection.scalars(select(TallyRunRow.record)).all()
        assert (run.hospitals, run.charged.asks) == (4, QUERIES)
        [record] = [wire.decode(frame).message for frame in frames if frame]
        assert isinstance(record, RunRecord)
        assert record.absent == (four.hospitals[1].site.identity.fingerprint,)
        inquiry = RunScope.of(record, seats=seats_of(record)).digest
        assert inquiry.hex()[:16] == approved_id(four)


def approved_id(federation: WorkedWithTally) -> str:
    """The id of the run that people approved: of the inquiry before any setup."""
    inquiry = next(
        message
        for packet, _ in federation.hospitals[0].exchanges
        for message in messages_in(packet)
        if isinstance(message, RunInquiry)
    )
    return RunScope.of(inquiry, seats=inquiry.seats).digest.hex()[:16]


@pytest.mark.parametrize("kind", [Closing, HeadBundle], ids=["heads", "comparison"])
@FAULTS
def test_one_that_spoils_the_closing_is_named_and_the_results_of_the_others_stand(
    four: WorkedWithTally, kind: type[Any], answer: Any
) -> None:
    spoil(four.hospitals[1], kind, answer)
    four.ask()
    run = four.work()
    assert run.state is RunState.DONE
    require_right(four)
    folder = four.coordinator.home.results("first")
    verdict = verify_transcript((folder / "transcript.jsonl").read_text("utf-8"))
    assert verdict.is_good, verdict
    heard = {one.site.identity.fingerprint.hex() for one in four.hospitals.values()}
    if kind is Closing and answer is not other_keys_too:
        heard.remove(four.hospitals[1].site.identity.fingerprint.hex())
    assert set(verdict.heads_compared) == heard
    if answer in (garbage, another_run):
        report = (folder / "report.html").read_text("utf-8")
        assert f"{FAULTY} broke the protocol" in report


def served_terms(mechanism: str) -> RunTerms:
    return RunTerms(
        name="lung",
        pool_digest=bytes(32),
        task_digest=NO_TASK,
        classes=4,
        weights=(TeacherWeights.equal(20),) * 3,
        rule=Rule(
            mechanism,
            sigma2=9.0,
            noise_place="aggregators",
            vote_threshold=None if mechanism == "gnmax" else 30.0,
        ),
        unit="record",
        caps=Caps(12, 12, 6),
        budgets=(1e6,) * 3,
        delta=1e-5,
    )


def test_hospitals_that_pinned_another_tally_take_no_part(federation: WorkedWithTally) -> None:
    federation.ask()
    one, *others = federation.hospitals.values()
    federation.open(one, others, tally=SigningIdentity.generate().public)
    run = federation.work()
    assert run.state is RunState.WAITING  # for its people, who compare the words
    assert "PF-329" in run.reason
    assert NAMES[0] in run.reason
    assert run.progress.answered == 0
    assert federation.charges() == [[]] * len(NAMES)

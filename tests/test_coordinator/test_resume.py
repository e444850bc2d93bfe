"""A coordinator that is killed at any moment goes on: nothing is lost, doubled or drawn twice."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from contextlib import closing
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete

from coordinator.database import Database, RunStore
from coordinator.database.federation_schema import StatementRow
from coordinator.errors import DatabaseError, SetupError, VoidBatchError
from coordinator.runs import stages
from coordinator.runs.stages import BatchStage
from party.errors import Reason
from pate_fed.charges import RunLedger
from pate_fed.errors import InvalidParameterError
from pate_fed.releases import NoisyRelease
from protocols import wire
from protocols.errors import UnfinishedSetupError
from protocols.messages import Certificate, Refusal, SetProposal, Verdict
from protocols.rounds import CoordinatorState, PartyState
from protocols.transcript_verifier import verify_transcript
from tests.support.federation import holds_vector, messages
from tests.support.killing import (
    BATCHES,
    KINDS,
    PARTIES,
    KilledError,
    MortalFederation,
    failing_commits,
)
from tests.support.marker import (
    MARKED_TEACHERS,
    MARKERS,
    findings,
    findings_in_files,
    marked_votes,
)
from tests.support.markers import more, sampled

VARIANTS = [
    pytest.param(kind, form, id=f"{form}, {kind}")
    for kind in KINDS
    for form in ("additive", "masked")
]
EVERY_STAGE = [pytest.param(stage, id=stage.value) for stage in BatchStage]


def started(folder: Path, kind: str, form: str, **more: Any) -> MortalFederation:
    federation = MortalFederation(folder, kind=kind, form=form, **more)
    federation.run.set_up()
    federation.passed.clear()
    federation._since = 0
    return federation


@lru_cache
def undisturbed(kind: str, form: str) -> MortalFederation:
    """A run that nobody killed."""
    with TemporaryDirectory() as folder:
        federation = started(Path(folder), kind, form)
        federation.work()
    return federation


def check(federation: MortalFederation, kind: str, form: str) -> None:
    """Hold a run that was killed against one that was not."""
    reference = undisturbed(kind, form)
    for place in range(PARTIES):
        assert federation.charged(place) == reference.charged(place)
        assert federation.votes_of(place) == reference.votes_of(place)
    assert federation.counted() == reference.counted()
    # No query was released twice, and what is stored is what the parties were told.
    asked = [index for indices in federation.released for index in indices]
    assert len(set(asked)) == len(asked) == sum(map(len, BATCHES))
    assert federation.results() == [r.as_record() for r in federation.released.values()]
    assert {indices: r.labels.tolist() for indices, r in federation.released.items()} == {
        indices: r.labels.tolist() for indices, r in reference.released.items()
    }
    # One y for a plan, one settlement for a plan, one history for all.
    assert all(len(bodies) == 1 for bodies in federation.ys().values())
    assert all(len(digests) == 1 for digests in federation.settlements().values())
    assert len(federation.ys()) == len(reference.ys())
    assert federation.run.round.state is CoordinatorState.DONE
    assert {node.state for node in federation.nodes} == {PartyState.DONE}
    verdict = verify_transcript(federation.transcript)
    assert (verdict.is_good, verdict.head) == (
        True,
        federation.nodes[0].transcript_head.hex(),
    )
    assert verdict.entries == verify_transcript(reference.transcript).entries


def places_of(stage: BatchStage, kind: str, form: str) -> list[int]:
    """Where a run passes a stage, counted in stages."""
    passed = enumerate(undisturbed(kind, form).passed, start=1)
    places = [number for number, each in passed if each is stage]
    never = {BatchStage.VOID_STORED, BatchStage.CLOSING_PROPOSED}
    if form == "additive":
        never |= {BatchStage.PROPOSED, BatchStage.AGREED, BatchStage.CERTIFIED}
    assert bool(places) != (stage in never)
    return places


def kill_once(federation: MortalFederation, place: int) -> None:
    federation.is_fatal = lambda number, _: federation.lives == 1 and number == place


def die_and_go_on(folder: Path, kind: str, form: str, place: int) -> None:
    """Kill a coordinator at one place, let it come back, and look at everything."""
    folder.mkdir()
    federation = started(folder, kind, form)
    kill_once(federation, place)
    federation.live()
    assert federation.lives == 2
    check(federation, kind, form)


def places_to_die() -> list[Any]:
    """Every stage in the masked form, every third in the additive one; kinds take turns."""
    cases = []
    for (turn, kind), form, (number, stage) in product(
        enumerate(KINDS), ("additive", "masked"), enumerate(BatchStage)
    ):
        if form == "masked":
            is_tried = turn == number % len(KINDS)
        else:
            is_tried = number % 3 == 0 and turn == number // 3 % len(KINDS)
        case = pytest.param if is_tried else more
        cases.append(case(kind, form, stage, id=f"{kind}-{form}-{stage.value}"))
    return cases


class TestEveryStage:
    @sampled()
    @pytest.mark.parametrize(("kind", "form", "stage"), places_to_die())
    def test_killed_there_the_run_ends_as_if_nothing_had_happened(
        self, tmp_path: Path, kind: str, form: str, stage: BatchStage
    ) -> None:
        for place in places_of(stage, kind, form)[-1:]:
            die_and_go_on(tmp_path / "one", kind, form, place)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(("kind", "form"), VARIANTS)
    def test_killed_anywhere_the_run_ends_as_if_nothing_had_happened(
        self, tmp_path: Path, kind: str, form: str
    ) -> None:
        for place in range(1, len(undisturbed(kind, form).passed) + 1):
            die_and_go_on(tmp_path / str(place), kind, form, place)

    @sampled()
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", list(KINDS))
    @pytest.mark.parametrize("form", ["additive", "masked"])
    def test_killed_again_and_again_it_gets_to_its_end(
        self, tmp_path: Path, kind: str, form: str
    ) -> None:
        chance = random.Random(f"{kind} {form}")  # noqa: S311 - picks where to die
        federation = started(tmp_path, kind, form)
        fate: dict[int, int] = {}

        def is_fatal(number: int, stage: BatchStage) -> bool:
            return number == fate.setdefault(federation.lives, chance.randrange(1, 25))

        federation.is_fatal = is_fatal
        federation.live()
        assert federation.lives > 3
        check(federation, kind, form)


def test_a_run_that_was_not_set_up_is_given_up(tmp_path: Path) -> None:
    federation = MortalFederation(tmp_path, kind="noise at the coordinator", form="additive")
    federation.is_fatal = lambda number, stage: number == 2 * PARTIES + 1
    with pytest.raises(KilledError):
        federation.run.set_up()
    federation.bury()
    with pytest.raises(UnfinishedSetupError) as caught:
        federation.resume()
    assert caught.value.code == "PF-249"


NOISE_AT_COORDINATOR = "noise at the coordinator"


def killed(
    folder: Path,
    stage: BatchStage,
    *,
    kind: str = NOISE_AT_COORDINATOR,
    form: str = "additive",
    **more: Any,
) -> MortalFederation:
    """A federation whose coordinator died in its first batch, and is buried."""
    federation = started(folder, kind, form, **more)
    federation.is_fatal = lambda number, each: federation.lives == 1 and each is stage
    with pytest.raises(KilledError):
        federation.ask(*BATCHES[0])
    federation.bury()
    return federation


class TestBatch:
    """What a restart does to the batch that was open."""

    def test_a_batch_whose_plan_never_left_is_asked_as_it_was_planned(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.PLANNED)
        federation.resume()
        plan = federation.run.round.open_plan.digest
        release = federation.run.finish()
        assert release is not None
        assert release.answered == 2
        assert federation.coordinator_states == ["committed"]
        assert {digest for digest, _ in federation.ys()} == {plan}

    def test_a_resumed_run_waits_until_its_hospitals_are_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation = killed(tmp_path, BatchStage.PLANNED)
        transport, back = federation.transport, list[int]()

        def wait() -> list[int]:
            back[:] = range(PARTIES)
            return back

        monkeypatch.setattr(transport, "nodes", wait)
        monkeypatch.setattr(transport, "nodes_now", lambda: back)
        federation.resume()
        assert federation.run.finish() is not None

    def test_a_batch_whose_plan_could_not_be_stored_was_never_asked(self, tmp_path: Path) -> None:
        federation = started(tmp_path, NOISE_AT_COORDINATOR, "additive")
        exchanges = federation.transport.traffic.exchanges
        with failing_commits(federation.database), pytest.raises(DatabaseError):
            federation.ask(*BATCHES[0])
        assert federation.transport.traffic.exchanges == exchanges
        federation.bury()
        federation.resume()
        assert federation.run.finish() is None
        assert federation.coordinator_states == []
        left = federation.store.ledger().left
        assert left == undisturbed(NOISE_AT_COORDINATOR, "additive").store.ledger().outcomes.caps
        assert federation.ask(*BATCHES[0]).answered == 2

    def test_a_stored_release_is_shown_as_it_is_and_no_noise_is_drawn(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.STORED)
        federation._noise = forbidden
        stored = releases_of(federation)
        federation.resume()
        exchanges = federation.transport.traffic.exchanges
        release = federation.run.finish()
        assert release is not None
        assert [release.as_record()] == [kept.as_record() for _, kept in stored]
        assert federation.transport.traffic.exchanges == exchanges  # nothing is asked again

    def test_what_was_not_stored_gets_noise_that_nobody_has_seen(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.DECIDED)
        drawn = []
        source = federation._noise

        def watched(size: int) -> bytes:
            drawn.append(size)
            return source(size)

        federation._noise = watched
        federation.resume()
        assert federation.run.finish() is not None
        assert drawn

    def test_counters_that_were_not_stored_come_back_from_the_journal(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.ANSWERED)
        with closing(Database(federation.url)) as database, database.session() as session:
            session.execute(delete(StatementRow))
        federation.resume()
        assert len(federation.store.statements.frames()) == PARTIES

    def test_nothing_else_is_asked_before_it_is_finished(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.ANSWERED)
        federation.resume()
        with pytest.raises(InvalidParameterError):
            federation.ask(7)
        federation.run.finish()
        federation.ask(7)
        with pytest.raises(InvalidParameterError, match="twice"):
            federation.ask(BATCHES[0][0])

    @sampled()
    @pytest.mark.parametrize("form", ["additive", "masked"])
    def test_a_void_batch_stays_void_and_keeps_its_charge(self, tmp_path: Path, form: str) -> None:
        federation = started(tmp_path, NOISE_AT_COORDINATOR, form)
        federation.is_fatal = lambda number, stage: stage is BatchStage.VOID_STORED
        # Nor do they say that they would never open it: masked queries stay closed, too.
        federation.transport.on_answer = lambda node, answer: None if node < 3 else answer
        with pytest.raises(KilledError):
            federation.ask(0)
        federation.bury()
        federation.transport.on_answer = lambda node, answer: answer
        federation.resume()
        assert federation.run.finish() is None
        assert federation.coordinator_states == ["forfeited"]
        with pytest.raises(InvalidParameterError, match="twice"):
            federation.ask(0)
        federation.is_fatal = lambda number, stage: False
        federation.ask(2)
        federation.run.close()
        for place in range(PARTIES):
            assert federation.party_states(place) == ["forfeited", "committed"]
        assert verify_transcript(federation.transcript).is_good

    def test_another_y_for_a_sum_that_was_opened_is_its_senders_fault(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.OPENED)
        federation.resume()
        federation.on_vectors_of(
            1,
            lambda answer: federation.resigned(
                answer, lambda body: bytes([body[0] ^ 1]) + body[1:], by=federation.identities[1]
            ),
        )
        with pytest.raises(VoidBatchError, match=r"hospital-1 \[PF-223\]"):
            federation.run.finish()
        assert federation.coordinator_states == ["forfeited"]

    def test_refusals_after_a_sum_was_opened_give_nothing_back(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.OPENED)
        federation.resume()
        plan = federation.run.round.open_plan.digest

        def refuse(node: int, answer: bytes) -> bytes:
            identity = federation.identities[node]
            message = Refusal(plan, identity.fingerprint, "PF-301")
            return wire.pack([wire.sign(message, identity).frame])

        federation.transport.on_answer = refuse
        with pytest.raises(VoidBatchError) as caught:
            federation.run.finish()
        assert caught.value.reservation == "forfeited"

    def test_an_expired_plan_is_void_and_keeps_its_charge(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.PLANNED)
        federation.now += 3601
        federation.resume()
        with pytest.raises(VoidBatchError) as caught:
            federation.run.finish()
        assert caught.value.reservation == "forfeited"
        federation.bury()
        federation.resume()
        assert federation.run.voids == 1

    def test_what_the_student_believed_is_asked_with_again(self, tmp_path: Path) -> None:
        interactive = {"mechanism": "interactive-threshold", "vote_threshold": 750.0}
        chances = np.full((2, 3), 1 / 3)
        federation = started(
            tmp_path,
            NOISE_AT_COORDINATOR,
            "additive",
            terms=interactive,
            policy={"mechanisms": frozenset({"interactive-threshold"})},
        )
        federation.is_fatal = lambda number, stage: stage is BatchStage.PLANNED
        with pytest.raises(KilledError):
            federation.run.ask((0, 2), predictions=chances)
        federation.bury()
        federation.is_fatal = lambda number, stage: False
        federation.resume()
        release = federation.run.finish()
        assert release is not None
        assert len(release) == 2
        assert len(set().union(*federation.ys().values())) == PARTIES

    def test_the_cost_on_the_votes_of_before_is_not_guessed(self, tmp_path: Path) -> None:
        federation = killed(tmp_path, BatchStage.STORED)
        federation.resume()
        federation.run.finish()
        assert federation.run.per_instance_cost is None

    def test_a_disk_that_is_full_leaves_the_batch_to_a_restart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        federation = started(tmp_path, NOISE_AT_COORDINATOR, "additive")

        def full(database: Database) -> None:
            raise DatabaseError("the database must be writable", "database or disk is full")

        def fill(number: int, stage: BatchStage) -> bool:
            if stage is BatchStage.DECIDED:
                monkeypatch.setattr(Database, "transaction", full)
            return False

        federation.is_fatal = fill
        with pytest.raises(DatabaseError):
            federation.ask(0)
        with pytest.raises(InvalidParameterError):
            federation.ask(1)
        monkeypatch.undo()
        federation.is_fatal = lambda number, stage: False
        federation.bury()
        federation.resume()
        assert federation.run.finish() is not None
        assert federation.coordinator_states == ["committed"]


class TestParties:
    """Hospitals that are not as they were when the coordinator comes back."""

    def test_one_that_was_restarted_too_sends_its_stored_y(self, tmp_path: Path) -> None:
        federation = started(tmp_path, NOISE_AT_COORDINATOR, "additive")
        federation.ask(0)
        federation.is_fatal = lambda number, stage: stage is BatchStage.ANSWERED
        with pytest.raises(KilledError):
            federation.ask(2)
        federation.bury()
        federation.is_fatal = lambda number, stage: False
        votes = federation.votes_of(1)
        federation.restart(1)
        federation.resume()
        release = federation.run.finish()
        assert release is not None
        assert release.labels.tolist() == [2]
        assert federation.votes_of(1) == votes
        assert all(len(bodies) == 1 for bodies in federation.ys().values())

    def test_one_that_cannot_be_reached_stops_the_form_that_needs_it_until_it_is_back(
        self, tmp_path: Path
    ) -> None:
        federation = killed(tmp_path, BatchStage.ANSWERED)
        federation.transport.on_query = lambda node, packet: None if node == 2 else packet
        with pytest.raises(SetupError, match="there"):
            federation.resume()
        assert states_of(federation) == ["reserved"]  # nothing was given up
        federation.transport.on_query = lambda node, packet: packet
        federation.resume()
        assert federation.run.finish() is not None

    def test_one_that_cannot_be_reached_is_lost_where_the_form_survives_it(
        self, tmp_path: Path
    ) -> None:
        federation = killed(tmp_path, BatchStage.PLANNED, form="masked")
        federation.transport.on_query = lambda node, packet: None if node == 2 else packet
        federation.resume()
        assert federation.run.finish() is not None
        assert federation.run.lost == (("hospital-2",),)
        federation.transport.on_query = lambda node, packet: packet
        federation.ask(*BATCHES[2])  # it is found as soon as it is back
        federation.run.close()
        assert federation.run.lost == (("hospital-2",), ())
        assert {node.state for node in federation.nodes} == {PartyState.DONE}

    def test_one_that_sent_no_y_is_named_after_a_restart_too(self, tmp_path: Path) -> None:
        federation = started(tmp_path, NOISE_AT_COORDINATOR, "masked")
        federation.transport.on_query = lambda node, packet: None if node == 2 else packet
        federation.ask(0)
        federation.transport.on_query = lambda node, packet: packet
        federation.bury()
        federation.resume()
        assert federation.run.lost == (("hospital-2",),)
        federation.run.finish()
        federation.ask(2)  # who was lost is told of the first batch with the second
        federation.run.close()
        assert {node.state for node in federation.nodes} == {PartyState.DONE}
        assert federation.run.lost == (("hospital-2",), ())

    def test_a_survivor_set_is_the_same_for_who_comes_late(self, tmp_path: Path) -> None:
        """Else two sums of one batch could be opened, and one party's votes from the two."""
        federation = started(tmp_path, NOISE_AT_COORDINATOR, "masked")
        federation.transport.on_query = lambda node, packet: None if node == 2 else packet
        federation.is_fatal = lambda number, stage: stage is BatchStage.PROPOSED
        with pytest.raises(KilledError):
            federation.ask(0)
        federation.bury()
        federation.transport.on_query = lambda node, packet: packet
        federation.is_fatal = lambda number, stage: False
        federation.resume()
        assert federation.run.finish() is not None
        survivors = {
            message.survivors
            for packet in federation.transport.packets
            for message in messages(packet)
            if isinstance(message, SetProposal)
        }
        [chosen] = survivors
        assert federation.identities[2].fingerprint not in chosen
        assert federation.run.lost == (("hospital-2",),)


class TestClosing:
    """A masked batch that does not open, and a coordinator that dies over it (rule R3)."""

    FREED = (BatchStage.PROPOSED, BatchStage.CLOSING_PROPOSED, BatchStage.VOID_STORED)
    SET_AGREED = (BatchStage.AGREED, BatchStage.CERTIFIED)
    """Here hospitals have agreed to open a set: nobody signs that the plan is closed."""

    def killed(self, folder: Path, stage: BatchStage) -> MortalFederation:
        """Let a coordinator die there; two hospitals' y's are lost, before it or after."""
        federation = started(folder, NOISE_AT_COORDINATOR, "masked")
        federation.is_fatal = lambda number, each: federation.lives == 1 and each is stage
        if stage in (BatchStage.CLOSING_PROPOSED, BatchStage.VOID_STORED):
            lose_ys(federation)
        with pytest.raises(KilledError):
            federation.ask(*BATCHES[0])
        lose_ys(federation)
        federation.bury()
        federation.resume()
        return federation

    def finish(self, federation: MortalFederation, stage: BatchStage) -> bool:
        """Bring the batch to its void end; tell whether its queries may be asked again."""
        if stage is BatchStage.VOID_STORED:
            assert federation.run.finish() is None
            return federation.run.asked.isdisjoint(BATCHES[0])
        with pytest.raises(VoidBatchError) as caught:
            federation.run.finish()
        assert caught.value.may_ask_again == federation.run.asked.isdisjoint(BATCHES[0])
        expected = "cancelled" if caught.value.may_ask_again else "forfeited"
        assert caught.value.reservation == expected
        return caught.value.may_ask_again

    @sampled()
    @pytest.mark.parametrize("stage", [pytest.param(each, id=each.value) for each in FREED])
    def test_what_was_closed_is_asked_again(self, tmp_path: Path, stage: BatchStage) -> None:
        federation = self.killed(tmp_path, stage)
        assert self.finish(federation, stage)
        [settled] = federation.run.round.settled
        certificate = wire.expect(wire.decode(settled.settlement.certificate), Certificate)
        assert certificate.survivors == ()
        federation.heal()
        assert federation.ask(*BATCHES[0]).answered == 2
        federation.run.close()
        for place in range(PARTIES):
            assert federation.party_states(place) == ["cancelled", "committed"]
            assert federation.nodes[place]._journal.queries.count() == len(BATCHES[0])
        assert federation.coordinator_states == ["cancelled", "committed"]
        assert {node.state for node in federation.nodes} == {PartyState.DONE}
        assert verify_transcript(federation.transcript).is_good
        assert len(verdicts_of(federation)) == 2 * PARTIES  # one by each on each plan

    @sampled()
    @pytest.mark.parametrize("stage", [pytest.param(each, id=each.value) for each in SET_AGREED])
    def test_what_hospitals_agreed_to_open_is_never_closed(
        self, tmp_path: Path, stage: BatchStage
    ) -> None:
        federation = self.killed(tmp_path, stage)
        assert not self.finish(federation, stage)
        federation.heal()
        with pytest.raises(InvalidParameterError, match="twice"):
            federation.ask(*BATCHES[0])
        federation.forget_asked()
        with pytest.raises(VoidBatchError, match=Reason.QUERIES):
            federation.ask(*BATCHES[0])
        assert {chosen for _, chosen in verdicts_of(federation).values()} == {
            federation.run.round.seats
        }

    @sampled()
    @pytest.mark.parametrize("stage", EVERY_STAGE)
    def test_a_coordinator_that_dies_over_a_batch_that_is_asked_again_goes_on(
        self, tmp_path: Path, stage: BatchStage
    ) -> None:
        federation = started(tmp_path, NOISE_AT_COORDINATOR, "masked")
        lose_ys(federation)
        with pytest.raises(VoidBatchError) as caught:
            federation.ask(*BATCHES[0])
        assert caught.value.may_ask_again
        federation.heal()
        federation.is_fatal = lambda number, each: federation.lives == 1 and each is stage
        federation.live(BATCHES[:1])
        never = stage in (BatchStage.CLOSING_PROPOSED, BatchStage.VOID_STORED)
        assert federation.lives == (1 if never else 2)
        assert list(federation.released) == [BATCHES[0]]
        assert federation.coordinator_states == ["cancelled", "committed"]
        for place in range(PARTIES):
            assert federation.party_states(place) == ["cancelled", "committed"]
        assert verify_transcript(federation.transcript).is_good

    @pytest.mark.slow
    def test_a_batch_that_is_to_be_closed_is_never_opened_after_a_restart(
        self, tmp_path: Path
    ) -> None:
        """All y's are there again, and nobody has signed anything: the proposal stands."""
        federation = started(tmp_path, NOISE_AT_COORDINATOR, "masked")
        federation.is_fatal = lambda number, each: each is BatchStage.CLOSING_PROPOSED
        lose_ys(federation)
        with pytest.raises(KilledError):
            federation.ask(*BATCHES[0])
        federation.bury()
        federation.heal()
        federation.is_fatal = lambda number, each: False
        federation.resume()
        with pytest.raises(VoidBatchError):
            federation.run.finish()
        proposals = {
            message.survivors
            for packet in federation.transport.packets
            for message in messages(packet)
            if isinstance(message, SetProposal)
        }
        assert proposals == {()}


def lose_ys(federation: MortalFederation) -> None:
    """From here on two hospitals' y's do not arrive; all else of theirs does."""
    federation.transport.on_answer = lambda node, answer: (
        None if node < 2 and holds_vector(answer) else answer
    )


def verdicts_of(federation: MortalFederation) -> dict[bytes, tuple[bytes, tuple[bytes, ...]]]:
    """Every verdict that a party gave: its plan and set, by its signature."""
    found = {}
    for _, answer in federation.transport.answers:
        for frame in wire.unpack(answer, max_bytes=2**24):
            signed = wire.decode(frame)
            if isinstance(signed.message, Verdict):
                verdict = signed.message
                found[signed.signature] = verdict.plan_digest, verdict.survivors
    return found


def killed_process(folder: Path, kind: str, form: str, seed: int) -> int:
    """Run a federation whose coordinator is killed whenever; return how often it lived."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_coordinator", folder, kind, form, str(seed)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    word, lives = ended.stdout.split()
    assert word == "lives"
    return int(lives)


class TestProcess:
    """The true thing: a process that gets SIGKILL at random moments, writes half done among them.

    `check` looks at the end of each as at those that were stopped at a stage.
    """

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("kind", "form"),
        [
            more("noise at the coordinator", "additive", id="additive, coordinator"),
            pytest.param("noise at the parties", "masked", id="masked, parties"),
        ],
    )
    def test_killed_whenever_it_gets_to_its_end(self, tmp_path: Path, kind: str, form: str) -> None:
        assert killed_process(tmp_path, kind, form, seed=1) > 1

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("seed", range(2, 8))
    @pytest.mark.parametrize(("kind", "form"), VARIANTS)
    def test_killed_whenever_many_times(
        self, tmp_path: Path, kind: str, form: str, seed: int
    ) -> None:
        killed_process(tmp_path, kind, form, seed)


class TestSecrets:
    @sampled()
    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["additive", "masked"])
    def test_no_file_of_the_coordinator_holds_votes_or_totals(
        self, tmp_path: Path, form: str
    ) -> None:
        """Searched at every stage: what a killed coordinator leaves is what a thief finds."""
        federation = MortalFederation(
            tmp_path,
            kind=NOISE_AT_COORDINATOR,
            form=form,
            teachers=MARKED_TEACHERS,
            votes=dict.fromkeys(range(PARTIES), marked_votes),
            terms={"sigma2": 20_000.0, "vote_threshold": 10.0},
        )
        totals = tuple(PARTIES * count for count in MARKERS)
        searched = []

        def search(number: int, stage: BatchStage) -> bool:
            searched.append(stage)
            assert findings_in_files(tmp_path, (*MARKERS, *totals)) == []
            for path in tmp_path.rglob("*"):
                if path.is_file():  # bytes stand in a record as hexadecimal digits
                    found = re.findall(rb"(?:[0-9a-f]{2}){16,}", path.read_bytes())
                    told = b"\n".join(bytes.fromhex(digits.decode()) for digits in found)
                    assert findings(told, (*MARKERS, *totals)) == []
            return False

        federation.is_fatal = search
        federation.run.set_up()
        federation.ask(0, 1)
        federation.ask(2)
        federation.run.close()
        assert {
            BatchStage.OPENED,
            BatchStage.DECIDED,
            BatchStage.STORED,
            BatchStage.FINISHED,
        } <= set(searched)
        files = {path.name for path in tmp_path.rglob("*")}
        assert files == {f"coordinator.db{end}" for end in ("", "-wal", "-shm")}
        # The search would find them: the number of teachers is public, and in the terms.
        assert findings_in_files(tmp_path, (MARKED_TEACHERS,))

    def test_nothing_from_outside_can_set_the_hook(self) -> None:
        """It is an argument of the program's own code: no option, setting or file names it."""
        passes_it_on = {
            "coordinator/runs/labeling/batches.py",
            "coordinator/runs/labeling/checked_collecting.py",
            "coordinator/runs/labeling/collecting.py",
            "coordinator/runs/labeling/job.py",
            "coordinator/runs/labeling/messenger.py",
            "coordinator/runs/labeling/labeling_run.py",
            "coordinator/runs/open_run.py",
            "coordinator/service.py",
            "coordinator/runs/stages.py",
            "coordinator/runs/worker_resources.py",
            "coordinator/simulation/labeling.py",
        }
        root = Path(__file__).parents[2]
        sources = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for package in ("coordinator", "party")
            for path in (root / package).rglob("*.py")
        }
        assert len(sources) > 20
        named = {path for path, text in sources.items() if re.search("on_?stage", text, re.I)}
        assert named == passes_it_on
        callers = [text for text in sources.values() if re.search(r"\b(serve|Service)\(", text)]
        given = [call for text in callers for call in re.findall(r"on_stage=([\w.]+)", text)]
        assert set(given) <= {"on_stage", "world.on_stage", "self._forgetting"}
        assert "environ" not in Path(stages.__file__).read_text(encoding="utf-8")


def forbidden(size: int) -> bytes:
    raise AssertionError("noise was drawn twice")


def store_of(federation: MortalFederation) -> RunStore:
    """The results of a coordinator that is dead."""
    return federation.stored(RunLedger.of(undisturbed(NOISE_AT_COORDINATOR, "additive").run.terms))


def releases_of(federation: MortalFederation) -> list[tuple[tuple[int, ...], NoisyRelease]]:
    return list(store_of(federation).releases().values())


def states_of(federation: MortalFederation) -> list[str]:
    return [state.value for state in store_of(federation).ledger().states]

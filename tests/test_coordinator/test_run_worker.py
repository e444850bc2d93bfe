"""A queued run on its way to labels: approvals, pauses, stops, and a kill at every stage."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from sqlalchemy import Connection, update

from coordinator.cli.pools import show_pool
from coordinator.database import Database
from coordinator.database.federation_schema import AnswerRow, AttemptRow, RunRow
from coordinator.errors import (
    AlteredResultsError,
    BrokenTranscriptError,
    DatabaseError,
    RunQueueError,
    RunRequestError,
)
from coordinator.federation.enrollment import NodeAtLink
from coordinator.operator import Coordinator
from coordinator.runs.labeling import deciding
from coordinator.runs.open_run import RUN_LIFETIME_S
from coordinator.runs.query_states import QueryState
from coordinator.runs.queue import PAUSE, Run, RunQueue, RunState
from coordinator.runs.request import RunRequest
from coordinator.runs.stages import BatchStage
from coordinator.runs.transcripts import check_transcript
from coordinator.runs.transport import Silence
from coordinator.runs.worker import MOST_FRUITLESS, MOST_LOST, OFFER_AGAIN_S
from party.decision.guard import Consent
from pate_fed.accounting import EntryState
from pate_fed.data.new_task import make_task
from pate_fed.errors import InvalidTermsError
from pate_fed.mechanisms import DEPLOYED_MECHANISMS, SPECS
from pate_fed.report import read_run, render_summary
from pate_fed.run_folder import EARLIER
from pate_fed.students import Lesson, Student, train_student
from pate_fed.terms import NO_TASK, RunTerms
from pate_fed.wording import delta_text, epsilon_text
from protocols import wire
from protocols.fields import Message
from protocols.messages import Plan, RunInquiry
from protocols.rounds import PlanClaim
from protocols.transcript_verifier import verify_transcript
from tests.support.deployed import CLASSES, LABEL, NAMES, true_class
from tests.support.invariants import messages_in
from tests.support.markers import sampled
from tests.support.worked import QUERIES, KilledError, Worked, die_at


def privacy_of(federation: Worked, name: str = "first") -> dict[str, Any]:
    folder = federation.coordinator.home.results(name)
    found: dict[str, Any] = json.loads((folder / "privacy.json").read_text())
    return found


def require_sound(federation: Worked, *, answered: int = QUERIES) -> None:
    """So many labels are there, each is right, and every query was voted on once."""
    truth = true_class(federation.task.inputs)
    assert len(federation.labels()) == answered
    assert federation.labels() == {index: CLASSES[truth[index]] for index in federation.labels()}
    for one in federation.hospitals.values():
        assert set(Counter(one.asked).values()) <= {1}
        assert set(federation.labels()) <= set(one.asked)


@pytest.mark.usefixtures("pictures")
def test_a_run_goes_from_the_queue_to_its_directory(federation: Worked) -> None:
    federation.ask()
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert run.progress.answered == QUERIES
    require_sound(federation)
    assert federation.charges() == [[EntryState.COMMITTED] * 3] * 3
    folder = federation.coordinator.home.results("first")
    metrics = json.loads((folder / "metrics.json").read_text())
    privacy = json.loads((folder / "privacy.json").read_text())
    assert (metrics["simulated"], privacy["simulated"]) == (False, False)
    assert metrics["queries"]["void"] == 0
    assert metrics["label_accuracy"] is None
    assert not any("simulated" in line.lower() for line in privacy["unprotected"])


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("mechanism", DEPLOYED_MECHANISMS)
def test_every_mechanism_with_a_price_can_be_deployed(federation: Worked, mechanism: str) -> None:
    """All that release labels at one price per ask; `test_run_mechanisms` has more of some."""
    assert set(SPECS) - set(DEPLOYED_MECHANISMS) == {
        "immutable",
        "counts",
        "confident",
        "interactive",
    }
    values: dict[str, Any] = {
        "sigma1": 3.0,
        "sigma2": 3.0,
        "vote_threshold": 1.0,
        "confidence": 0.8,
    }
    chosen = {name: value for name, value in values.items() if name in SPECS[mechanism].parameters}
    federation.ask(**{"sigma2": None, "mechanism": mechanism, **chosen})
    run = federation.work()
    assert run.state in {RunState.DONE, RunState.INCOMPLETE}, run.reason
    assert run.progress.answered + run.progress.refused > 0
    folder = federation.coordinator.home.results("first")
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["mechanism"]["name"] == mechanism
    assert SPECS[mechanism].title in (folder / "report.html").read_text(encoding="utf-8")
    for one in federation.hospitals.values():
        charged = one.ledger.load().used_share()
        assert 0 < charged < 1000
        assert set(Counter(one.asked).values()) <= {1}


def test_results_that_a_killed_life_left_half_written_are_written_anew(
    federation: Worked,
) -> None:
    federation.ask()
    place = federation.coordinator.home.results("first")
    place.mkdir(parents=True)  # as it is between the name and what takes its place
    left = place.with_name(f".{place.name}.partial-abc")
    left.mkdir()
    (left / "labels.csv").write_text("half a")
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    require_sound(federation)
    assert len(federation.labels()) == QUERIES
    assert not left.exists()
    again = place.stat()
    federation.work()
    assert place.stat() == again  # what is finished stays


def test_a_run_waits_for_approvals_and_says_whose(tmp_path: Path) -> None:
    federation = Worked(tmp_path, approved=False)
    federation.ask()
    run = federation.work()
    assert run.state is RunState.WAITING
    assert any(name in run.reason for name in NAMES)
    assert "PF-314" in run.reason
    assert not any(one.asked for one in federation.hospitals.values())
    federation.approve_pool(True)
    assert federation.work().state is RunState.DONE
    require_sound(federation)
    federation.coordinator.close()


def test_patience_has_an_end_over_all_restarts(tmp_path: Path) -> None:
    federation = Worked(tmp_path, approved=False)
    federation.ask(patience_s=1.5 * OFFER_AGAIN_S)
    for _ in range(2):
        assert federation.work().state is RunState.WAITING  # each time a fresh worker
    run = federation.work()
    assert run.state is RunState.FAILED
    assert all(f"{name} [PF-314]" in run.reason for name in NAMES)
    federation.coordinator.close()


def test_a_pause_is_no_waiting(tmp_path: Path) -> None:
    federation = Worked(tmp_path, approved=False)
    federation.ask(patience_s=24 * 3600.0)
    queue, worker = federation.coordinator.queue, federation.worker()
    assert federation.work(worker=worker).state is RunState.WAITING
    queue.pause("first")
    assert federation.work(worker=worker).state is RunState.PAUSED
    federation.now += 3 * 24 * 3600
    queue.resume("first")
    assert federation.work(worker=worker).state is RunState.WAITING
    federation.now += 2 * 24 * 3600
    assert federation.work(worker=worker).state is RunState.FAILED
    federation.coordinator.close()


@pytest.mark.slow
def test_a_run_that_went_on_has_all_its_patience_again(federation: Worked) -> None:
    federation.ask(patience_s=3600.0)
    for lost in (BatchStage.STORED, None):
        federation.away.add(1)
        assert federation.work().state is RunState.WAITING
        federation.now += 3000.0
        federation.away.clear()
        federation.on_stage = die_at(lost) if lost else lambda stage: None
        if lost:
            with pytest.raises(KilledError):
                federation.work()
    assert federation.work().state is RunState.DONE


def test_a_refusal_that_no_approval_changes_fails_the_run_with_code_and_hospital(
    federation: Worked,
) -> None:
    federation.ask(sigma2=0.5, epsilon=5000.0)  # below what hospitals' owners allow
    run = federation.work()
    assert run.state is RunState.FAILED
    assert "PF-413" in run.reason
    assert "PF-315" in run.reason
    assert any(name in run.reason for name in NAMES)
    assert not any(one.asked for one in federation.hospitals.values())


def test_nobody_is_asked_to_approve_what_another_refuses_for_good(tmp_path: Path) -> None:
    """The others would decide over a day on a run that cannot be."""
    federation = Worked(tmp_path, approved=False)
    everybody = list(federation.hospitals.values())
    last = everybody[-1]
    for one in everybody:
        others = [other for other in everybody if other is not one]
        rules = {} if one is last else {"least_sigma2": 0.1, "most_epsilon": 1e6}
        one.open(others, federation.task, approved=one is last, **rules)
    federation.ask(sigma2=0.5, epsilon=5000.0)  # below what the last one's owner allows
    run = federation.work()
    assert run.state is RunState.FAILED
    assert f"{NAMES[-1]} [PF-315]" in run.reason
    federation.coordinator.close()


def test_a_run_that_cannot_be_begun_fails_at_once(
    federation: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of this program asked for it: terms that this one does not know."""
    federation.ask()

    def refuse(terms: RunTerms) -> None:
        raise InvalidTermsError("terms must be known", "another")

    monkeypatch.setattr(deciding, "mechanism_of", refuse)
    run = federation.work()
    assert (run.state, "PF-104" in run.reason) == (RunState.FAILED, True)
    assert not any(one.asked for one in federation.hospitals.values())


class Door:
    """Lets nodes in under the numbers by which the transport knows them."""

    def register(self, public_key: bytes, *, name: str) -> int:
        return NAMES.index(name)

    def unregister(self, node_id: int) -> None:
        """Nobody is put out."""

    def nodes(self) -> list[NodeAtLink]:
        return []


@sampled()
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        pytest.param(
            lambda frame: frame[:1] + bytes([frame[1] + 1]) + frame[2:],
            "PF-2",
            id="another version",
        ),
        pytest.param(lambda frame: frame[:-1], "PF-2", id="cut"),
    ],
)
def test_a_hospital_whose_first_word_cannot_be_read_is_named(
    federation: Worked,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[bytes], bytes],
    said: str,
) -> None:
    federation.coordinator.enrollment.settle(Door())
    federation.ask(patience_s=0.0)
    culprit = federation.hospitals[1]
    answer = culprit.receive
    monkeypatch.setattr(
        culprit,
        "receive",
        lambda packet: wire.pack(
            [spoil(frame) for frame in wire.unpack(answer(packet), max_bytes=2**30)]
        ),
    )
    run = federation.work()
    assert f"{NAMES[1]}: " in run.reason
    assert said in run.reason
    assert "node" not in run.reason


@pytest.mark.parametrize(("code", "is_named"), [("PF-242", True), ("words", False)])
def test_a_node_that_is_there_and_cannot_answer_is_named_with_its_code(
    federation: Worked, monkeypatch: pytest.MonkeyPatch, code: str, is_named: bool
) -> None:
    federation.coordinator.enrollment.settle(Door())
    federation.ask(patience_s=0.0)
    monkeypatch.setattr(federation.hospitals[1], "receive", lambda packet: Silence(code))
    run = federation.work()
    assert NAMES[1] in run.reason
    assert (code in run.reason) is is_named


def test_a_silent_hospital_is_waited_for(federation: Worked) -> None:
    federation.ask()
    federation.away.add(1)
    assert federation.work().state is RunState.WAITING
    federation.away.clear()
    assert federation.work().state is RunState.DONE
    require_sound(federation)


def test_a_batch_that_waits_for_a_silent_hospital_says_for_whom(federation: Worked) -> None:
    federation.ask()
    said: list[tuple[RunState, str]] = []

    def leave(stage: BatchStage) -> None:
        if stage is BatchStage.PLANNED and not said:
            federation.away.add(1)

    def come_back(seconds: float) -> None:
        run = federation.coordinator.queue.find("first")
        said.append((run.state, run.reason))
        federation.away.clear()

    federation.on_stage, federation.on_wait = leave, come_back
    run = federation.work()
    assert said[0] == (RunState.WAITING, f"waits for {NAMES[1]}")
    assert (run.state, run.reason, run.progress.void) == (RunState.DONE, "", 0)
    require_sound(federation)


def pause_hospital(federation: Worked, place: int, *, paused: bool) -> None:
    """Do what `pate-party pause` and `resume` do at a hospital."""
    node = federation.hospitals[place].node
    assert node is not None
    consent = replace(node._guard.consent, is_paused=paused)
    guard = replace(node._guard, consent=consent)
    node.adopt(guard=guard, known_peers=node._known_peers, tasks=node._tasks)


def pause_after_a_batch(
    federation: Worked, place: int, *, at: BatchStage = BatchStage.STORED
) -> None:
    has_paused: list[bool] = []

    def pause(stage: BatchStage) -> None:
        if stage is at and not has_paused:
            has_paused.append(True)
            pause_hospital(federation, place, paused=True)

    federation.on_stage = pause


@pytest.mark.slow
def test_a_hospital_that_pauses_between_batches_is_waited_for_at_nobodys_charge(
    federation: Worked,
) -> None:
    """The next batch would be void, and charged to everybody else."""
    federation.ask()
    pause_after_a_batch(federation, 0)
    said: list[tuple[RunState, str]] = []

    def resume(seconds: float) -> None:
        run = federation.coordinator.queue.find("first")
        said.append((run.state, run.reason))
        if len(said) == 100:
            pause_hospital(federation, 0, paused=False)

    federation.on_wait = resume
    run = federation.work()
    [(state, reason)] = set(said)
    assert (state, reason.endswith(f" {NAMES[0]} [PF-323]")) == (RunState.WAITING, True)
    assert len(said) >= 100
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)
    assert run.progress.void == 0
    assert federation.charges() == [[EntryState.COMMITTED] * 3] * 3
    assert len(federation.labels()) == QUERIES


def test_a_hospital_that_pauses_is_waited_for_over_a_restart_and_at_no_charge(
    federation: Worked,
) -> None:
    federation.ask()
    pause_after_a_batch(federation, 0)

    def die(seconds: float) -> None:
        raise KilledError

    federation.on_wait = die
    with pytest.raises(KilledError):
        federation.work()
    before = federation.charges()
    with pytest.raises(KilledError):
        federation.work()
    assert federation.charges() == before
    pause_hospital(federation, 0, paused=False)
    run = federation.work()
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)
    assert run.progress.void == 0


def test_a_void_batch_is_no_reason_for_the_end_of_a_run_that_went_on(federation: Worked) -> None:
    """The hospital pauses between its word that it is ready and the batch."""
    federation.ask()
    pause_after_a_batch(federation, 0, at=BatchStage.PLANNED)

    def resume(seconds: float) -> None:
        pause_hospital(federation, 0, paused=False)

    federation.on_wait = resume
    run = federation.work()
    assert run.state is RunState.DONE
    assert run.progress.void == 1
    assert re.search(r"PF-411: .*North \[PF-323\]", run.reason)


def test_a_run_that_its_void_batches_ended_says_so_and_what_else_went_wrong(
    federation: Worked,
) -> None:
    federation.ask()
    pause_after_a_batch(federation, 0)

    def resume(seconds: float) -> None:
        """It is ready once more, and paused again before the next batch comes."""
        node = federation.hospitals[0].node
        assert node is not None
        pause_hospital(federation, 0, paused=False)
        paused = replace(node._guard, consent=Consent(is_paused=True))
        receive = node.receive
        node.receive = lambda packet: (
            (  # type: ignore[method-assign]
                node.adopt(guard=paused, known_peers=node._known_peers, tasks=node._tasks)
                if any(isinstance(one, Plan) for one in messages_in(packet))
                else None
            )
            or receive(packet)
        )

    federation.on_wait = resume
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.INCOMPLETE, 2)
    assert run.reason.startswith("PF-411: ")


def test_a_run_whose_hospital_stays_paused_rests_once_its_patience_is_over(
    federation: Worked,
) -> None:
    federation.ask(patience_s=3 * OFFER_AGAIN_S)
    pause_after_a_batch(federation, 0)
    run = federation.work()
    assert run.state is RunState.PAUSED
    assert f"{NAMES[0]} [PF-323]" in run.reason
    assert [len(one) for one in federation.charges()] == [1, 1, 1]
    pause_hospital(federation, 0, paused=False)
    federation.coordinator.queue.resume("first")
    run = federation.work()
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)


@pytest.mark.slow
def test_a_run_that_can_do_without_a_paused_hospital_waits_for_nobody(tmp_path: Path) -> None:
    federation = Worked(tmp_path, names=(*NAMES, "East", "Mid"))
    federation.ask(form="masked")
    pause_after_a_batch(federation, 0)
    federation.on_wait = lambda seconds: pytest.fail("nobody is to be waited for")
    run = federation.work()
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES), run.reason
    assert run.progress.void == 0
    federation.coordinator.close()


def test_a_void_batch_of_an_earlier_life_is_told_at_the_end(federation: Worked) -> None:
    federation.ask(patience_s=0.0)

    def leave_and_die(stage: BatchStage) -> None:
        if stage is BatchStage.PLANNED:
            federation.away.add(1)
        if stage is BatchStage.VOID_STORED:
            raise KilledError

    federation.on_stage = leave_and_die
    with pytest.raises(KilledError):
        federation.work()
    federation.away.clear()
    federation.on_stage = lambda stage: None
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 1)
    assert run.progress.answered < run.progress.queries
    assert "PF-" not in run.reason


@sampled("batches")
@pytest.mark.parametrize("batches", [1, 2], ids=["after one batch", "after two"])
def test_a_run_in_which_a_hospital_was_restarted_is_set_up_anew_and_ends_whole(
    federation: Worked, batches: int
) -> None:
    federation.ask(patience_s=0.0)
    stored = 0

    def restart(stage: BatchStage) -> None:
        nonlocal stored
        stored += stage is BatchStage.STORED
        if stage is BatchStage.STORED and stored == batches:
            others = list(federation.hospitals.values())
            others[1].open([others[0], others[2]], federation.task, approved=True)

    federation.on_stage = restart
    run = federation.work()
    assert (run.state, run.reason, run.progress.answered) == (RunState.DONE, "", 12)
    assert run.progress.void == 0
    for states in federation.charges():  # who never heard how its last batch ended was told
        assert states == [EntryState.COMMITTED] * 3
    folder = federation.coordinator.home.results("first")
    warnings = json.loads((folder / "metrics.json").read_text())["warnings"]
    [said] = [line for line in warnings if line.startswith("The run was set up anew")]
    assert NAMES[1] in said
    assert "PF-242" in said
    # Both setups have a transcript, and both are checked.
    assert check_transcript(folder).is_good
    [setup] = json.loads((folder / "manifest.json").read_text())["earlier_setups"]
    first = folder / EARLIER
    assert verify_transcript(first.read_text(), may_be_open=True).run_id == setup["run_id"]
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(lines[:-2]))
    with pytest.raises((BrokenTranscriptError, AlteredResultsError)):
        check_transcript(folder)


@pytest.mark.slow
def test_a_hospital_that_never_stays_up_ends_a_run_at_nobodys_charge(federation: Worked) -> None:
    federation.ask()

    def restart(stage: BatchStage) -> None:
        if stage is BatchStage.PLANNED:
            others = list(federation.hospitals.values())
            others[1].open([others[0], others[2]], federation.task, approved=True)

    federation.on_stage = restart
    run = federation.work()
    assert run.state is RunState.FAILED  # nothing was labelled
    assert f"{NAMES[1]} (fingerprint " in run.reason
    assert run.progress.void == MOST_LOST < MOST_FRUITLESS
    for states in federation.charges():
        assert set(states) <= {EntryState.CANCELLED, EntryState.RETURNED}


def test_a_queued_run_above_its_budget_is_refused_before_anybody_is_asked(
    federation: Worked,
) -> None:
    """Another version may have queued it, at another price: nothing looks at budgets later."""
    federation.ask()
    request = json.loads(federation.coordinator.queue.request("first"))
    request["settings"]["party_epsilons"][1] = 0.999 * request["epsilon"]
    with federation.coordinator._database.transaction() as connection:
        connection.execute(update(RunRow).values(request=json.dumps(request)))
    federation.on_exchange = lambda number: pytest.fail("a hospital was asked")
    run = federation.work()
    assert (run.state, "PF-131" in run.reason) == (RunState.FAILED, True)
    assert federation.charges() == [[]] * 3


def test_a_run_has_no_cap_on_answers(federation: Worked) -> None:
    """Every ask costs the same: hospitals would vote, and pay, for what nobody looks at."""
    with pytest.raises(RunRequestError, match="all its queries"):
        federation.ask(mechanism="threshold", vote_threshold=1.0, max_answers=5)
    assert federation.coordinator.queue.all() == []


def test_a_pause_comes_between_batches_and_a_resumed_run_goes_on(federation: Worked) -> None:
    federation.ask()

    def pause(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            federation.coordinator.queue.pause("first")

    federation.on_stage = pause
    run = federation.work()
    assert (run.state, "PF-" in run.reason) == (RunState.PAUSED, False)
    assert run.progress.answered == 4
    federation.on_stage = lambda stage: None
    federation.coordinator.queue.resume("first")
    assert federation.work().state is RunState.DONE
    require_sound(federation)


def test_a_run_that_is_resumed_in_the_moment_before_it_rests_goes_on(
    federation: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.ask()
    queue, has_paused = federation.coordinator.queue, []

    def pause(stage: BatchStage) -> None:
        if stage is BatchStage.STORED and not has_paused:
            has_paused.append(queue.pause("first"))

    look = queue.find

    def look_then_resume(name: str) -> Run:
        run = look(name)
        if run.wanted == PAUSE:
            queue.resume(name)
        return run

    federation.on_stage = pause
    with monkeypatch.context() as patch:
        patch.setattr(queue, "find", look_then_resume)
        run = federation.work()
    assert has_paused
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)


def test_a_pause_of_a_run_that_waits_is_heard_before_anybody_is_offered_it(tmp_path: Path) -> None:
    """The service was away when the operator said so, and the hospitals' people approved."""
    federation = Worked(tmp_path, approved=False)
    federation.ask()
    assert federation.work().state is RunState.WAITING
    federation.coordinator.queue.pause("first")
    federation.approve_pool(True)
    federation.on_exchange = lambda number: pytest.fail("a hospital was asked")
    assert federation.work().state is RunState.PAUSED
    federation.coordinator.close()


def test_what_a_stopped_run_released_is_kept(federation: Worked, tmp_path: Path) -> None:
    federation.ask()

    def stop(stage: BatchStage) -> None:
        state = federation.coordinator.queue.find("first").state
        if stage is BatchStage.STORED and state is RunState.RUNNING:
            federation.coordinator.queue.stop("first")

    federation.on_stage = stop
    assert federation.work().state is RunState.STOPPED
    require_sound(federation, answered=4)
    federation.coordinator.export("first", tmp_path / "out")
    assert (tmp_path / "out" / "labels.csv").is_file()
    with pytest.raises(RunQueueError):
        federation.coordinator.export("first", tmp_path / "out")


def test_a_run_that_is_stopped_before_it_began_asks_nobody(federation: Worked) -> None:
    federation.ask()
    federation.coordinator.queue.stop("first")
    assert federation.work().state is RunState.STOPPED
    assert not any(one.asked for one in federation.hospitals.values())
    with pytest.raises(RunQueueError, match="none"):
        federation.coordinator.export("first", Path("nowhere"))


def test_a_run_with_a_revoked_member_fails_before_it_begins(federation: Worked) -> None:
    federation.ask()
    federation.coordinator.enrollment.revoke("South")
    run = federation.work()
    assert (run.state, "South" in run.reason) == (RunState.FAILED, True)


def test_a_stopped_run_whose_hospital_is_gone_for_good_ends_with_what_it_gave(
    federation: Worked,
) -> None:
    federation.ask()
    federation.on_stage = die_at(BatchStage.STORED)
    with pytest.raises(KilledError):
        federation.work()
    federation.on_stage = lambda stage: None
    federation.away.add(1)
    assert federation.work().state is RunState.WAITING
    federation.coordinator.queue.stop("first")
    run = federation.work()
    assert run.state is RunState.STOPPED
    assert run.progress.answered == len(federation.labels()) == 4


def test_a_stopped_run_draws_no_noise_for_a_batch_that_an_earlier_life_left_open(
    federation: Worked,
) -> None:
    """Else a coordinator that was put back would draw twice what it drew and gave away before."""
    federation.ask()
    federation.on_stage = die_at(BatchStage.DECIDED)
    with pytest.raises(KilledError):
        federation.work()
    federation.on_stage = lambda stage: (
        pytest.fail("noise") if stage is BatchStage.DECIDED else None
    )
    federation.coordinator.queue.stop("first")
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.STOPPED, 1)
    assert (run.progress.answered, run.progress.epsilon > 0) == (0, True)
    assert federation.charges() == [[EntryState.FORFEITED]] * 3


def test_a_hospital_that_joins_after_a_run_was_asked_for_never_hears_of_it(
    federation: Worked,
) -> None:
    federation.ask()
    newcomer = federation.enroll("Newcomer")
    federation.approve_pool(True)
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert newcomer.exchanges == []
    federation.hospitals.popitem()
    require_sound(federation)


@sampled()
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff" * 99, id="garbage"),
        pytest.param(wire.pack([b"\xff" * 99]), id="a packet of garbage"),
    ],
)
def test_a_node_that_is_nobodys_of_a_run_cannot_stop_it_even_if_it_is_asked(
    federation: Worked, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """As by a way to nodes that knows no bounds."""
    federation.ask()
    stranger = federation.enroll("Stranger")
    monkeypatch.setattr(stranger, "receive", lambda packet: answer)
    everybody = range(len(federation.hospitals))
    opened = federation._open_transport
    monkeypatch.setattr(federation, "_open_transport", lambda nodes: opened(everybody))
    run = federation.work()
    assert (run.state, run.reason) == (RunState.DONE, "")
    federation.hospitals.popitem()
    require_sound(federation)


def test_a_run_waits_for_a_hospital_whose_node_was_not_let_in_yet(federation: Worked) -> None:
    """Its number is unknown until then: nobody else is asked in its place."""
    west = federation.hospitals[2].site.identity.fingerprint
    federation.ask()
    federation.coordinator.enrollment._note_node(west, None)
    run = federation.work()
    assert (run.state, run.reason.partition(": ")[2]) == (RunState.WAITING, "West")
    federation.coordinator.enrollment.settle(federation.door)
    assert federation.work().state is RunState.DONE
    require_sound(federation)


def test_a_hospital_that_is_put_out_under_way_ends_the_run(federation: Worked) -> None:
    federation.ask()

    def revoke(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            federation.on_stage = lambda stage: None
            federation.coordinator.enrollment.revoke("South")

    federation.on_stage = revoke
    federation.work()
    run = federation.work()
    assert (run.state, "South" in run.reason) == (RunState.FAILED, True)
    assert len(federation.labels()) == 4
    assert all(len(one.asked) == 4 for one in federation.hospitals.values())


@pytest.mark.slow
def test_rows_that_were_answered_keep_their_task(federation: Worked) -> None:
    """Hospitals would refuse them: a batch with one of them would be void."""
    federation.ask()
    other = make_task(federation.queries, label="dead", classes=CLASSES)
    task, federation.task = federation.task, other
    federation.ask("second")  # nothing was answered yet
    federation.task = task
    federation.work()
    federation.task = other
    with pytest.raises(RunRequestError, match=f"got {QUERIES} "):
        federation.ask("third")
    answered = federation.request().queries
    new = [place for place in range(len(other.rows)) if place not in answered]
    federation.task = replace(other, rows=other.rows.pick(new))
    federation.ask("third")


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize(
    "stage",
    # Each stage is tried by `test_resume`, in every kind of run.
    [BatchStage.PLANNED, BatchStage.ANSWERED, BatchStage.DECIDED, BatchStage.CLOSING],
)
def test_a_kill_loses_no_charge_doubles_none_and_asks_nothing_twice(
    tmp_path: Path, stage: BatchStage, form: str
) -> None:
    names = NAMES if form == "additive" else (*NAMES, "East", "Mid")
    federation = Worked(tmp_path, names=names)
    federation.ask(form=form)
    federation.on_stage = die_at(stage)
    with pytest.raises(KilledError):
        federation.work()
    before = federation.charges()
    federation.on_stage = lambda passed: None
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
    require_sound(federation)
    after = federation.charges()
    assert after == [[EntryState.COMMITTED] * 3] * len(names)
    federation.coordinator.close()
    assert all(len(first) <= len(second) for first, second in zip(before, after, strict=True))


@sampled()
@pytest.mark.parametrize("exchange", [0, 1, 2, 3, 4])
def test_a_run_whose_setup_was_cut_off_is_offered_anew(federation: Worked, exchange: int) -> None:
    federation.ask()

    def die(number: int) -> None:
        if number == exchange:
            raise KilledError

    federation.on_exchange = die
    with pytest.raises(KilledError):
        federation.work()
    federation.on_exchange = lambda number: None
    run = federation.work()
    if run.state is RunState.WAITING:
        assert "offered anew" in run.reason
        run = federation.work()
    assert run.state is RunState.DONE, run.reason
    require_sound(federation)


# Answers of earlier runs --------------------------------------------------------------------------


def ledgers(federation: Worked) -> list[float]:
    return [one.ledger.load().used_share() for one in federation.hospitals.values()]


@pytest.mark.slow
def test_what_was_answered_once_is_answered_from_the_store(federation: Worked) -> None:
    """The second run asks nobody: same labels, no exchange, no charge, whatever its noise."""
    federation.ask()
    federation.work()
    before = federation.charges(), ledgers(federation)

    def nobody_is_asked(number: int) -> None:
        raise AssertionError(number)

    federation.on_exchange = nobody_is_asked
    federation.away.update(federation.hospitals)
    federation.ask("second", sigma2=5.0, batch_size=3)
    run = federation.work("second")
    assert (run.state, run.reason) == (RunState.DONE, "")
    assert federation.labels("second") == federation.labels()
    assert (federation.charges(), ledgers(federation)) == before
    names = ("from_store", "asked", "answered", "batches", "exchanges", "epsilon")
    assert [getattr(run.progress, name) for name in names] == [QUERIES, QUERIES, QUERIES, 0, 0, 0.0]
    folder = federation.coordinator.home.results("second")
    with (folder / "labels.csv").open() as file:
        assert {row["drawn_in"] for row in csv.DictReader(file)} == {"first"}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["earlier_runs"] == {"first": QUERIES}
    assert metrics["queries"]["not_asked"] == metrics["queries"]["void"] == 0
    privacy, first = privacy_of(federation, "second"), privacy_of(federation)
    # The labels cost what the run that drew them cost.
    assert privacy["views"] == first["views"]
    assert (privacy["delta"], privacy["guarantee"]) == (first["delta"], first["guarantee"])
    assert [run["run"] for run in privacy["runs"]] == ["first"]
    assert [row["epsilon"] for row in privacy["parties"]] == [
        row["epsilon"] for row in first["parties"]
    ]
    assert (privacy["charged"], privacy["ledger"]) == (0.0, [])
    assert not (folder / "transcript.jsonl").exists()
    assert "first (12)" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_run_asks_only_what_no_earlier_run_asked(federation: Worked) -> None:
    federation.ask(queries=5, batch_size=5)
    federation.work()
    federation.ask("second", select="all", queries=None)
    run = federation.work("second")
    assert run.state is RunState.DONE, run.reason
    assert run.progress.void == 0
    known = federation.labels()
    assert federation.labels("second").items() > known.items()
    folder = federation.coordinator.home.results("second")
    with (folder / "labels.csv").open() as file:
        drawn = {int(row["query_id"]): row["drawn_in"] for row in csv.DictReader(file)}
    assert drawn == {
        index: "first" if index in known else "" for index in federation.labels("second")
    }
    for one in federation.hospitals.values():
        assert set(Counter(one.asked).values()) == {1}


@pytest.mark.slow
def test_the_number_counts_every_run_whose_labels_are_used(federation: Worked) -> None:
    """Each release about the same records adds to what is known of them, whoever keeps which."""
    federation.ask(queries=5, batch_size=5, delta=1e-6)
    federation.work()
    federation.ask("alone", queries=7, batch_size=7, sigma2=5.0)
    quiet: dict[str, Any] = {"mechanism": "threshold", "vote_threshold": 1.0, "sigma2": 40.0}
    federation.ask("second", select="all", queries=None, unit="party", **quiet)
    run = federation.work("second")
    assert run.state is RunState.DONE, run.reason
    first, second = privacy_of(federation), privacy_of(federation, "second")
    parts = {run["run"]: run for run in second["runs"]}
    assert set(parts) == {"first", "second"}  # of "alone" no label is used
    # The first run protects a record; the second a whole hospital: its votes may all change.
    assert parts["first"]["epsilon"] > first["views"]["public"]["epsilon"]
    total = sum(run["epsilon"] for run in second["runs"])
    formal = second["views"]["public"]
    assert formal["epsilon"] == pytest.approx(total, rel=1e-8)
    assert formal["epsilon"] >= total
    assert second["delta"] == pytest.approx(1e-6 + second["budget"]["delta"])
    epsilon, delta = epsilon_text(formal["epsilon"]), delta_text(second["delta"])
    folder = federation.coordinator.home.results("second")
    card = (folder / "student" / "model_card.md").read_text()
    assert f"| epsilon | {epsilon}, rounded up |\n| delta | {delta} |" in card
    report = (folder / "report.html").read_text()
    assert f"ε&nbsp;=&nbsp;{epsilon}</data>" in report
    assert f"<b>δ</b> {delta} " in report
    read = read_run(folder)
    said = " ".join(render_summary(read.metrics, read.privacy, folder).split())
    assert f"epsilon {epsilon} at delta {delta}, public view" in said


@pytest.mark.slow
def test_a_run_without_an_answer_says_so_and_a_later_student_learns_from_its_queries(
    federation: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons: list[Lesson] = []

    def train(name: str, kind: Any, lesson: Lesson, **named: Any) -> Student:
        lessons.append(lesson)
        return train_student(name, kind, lesson, **named)

    monkeypatch.setattr("pate_fed.students.train_student", train)
    chosen: dict[str, Any] = {"mechanism": "threshold", "vote_threshold": 1e3, "sigma2": 10.0}
    federation.ask(queries=5, batch_size=5, **chosen)
    run = federation.work()
    assert run.state is RunState.DONE
    assert run.reason.startswith("PF-109: ")
    assert not lessons
    record = read_run(federation.coordinator.home.results("first"))
    assert record.metrics.student is None
    assert "student/student.json" not in record.digests
    said = " ".join(render_summary(record.metrics, record.privacy, "first").split())
    assert "student none" in said
    assert privacy_of(federation)["views"]["public"]["epsilon"] is not None
    told = (federation.coordinator.home.results("first") / "report.html").read_text("utf-8")
    assert "Test the student" not in told
    refused = set(federation.labels())
    federation.ask("second", select="all", queries=None)
    run = federation.work("second")
    assert (run.state, run.reason) == (RunState.DONE, "")
    [lesson] = lessons
    np.testing.assert_array_equal(lesson.pool.features, federation.task.inputs)
    known = set(lesson.indices.tolist())
    assert known == {at for at, label in federation.labels("second").items() if label}
    assert len(refused) == 5
    assert refused == set(range(len(lesson.pool))) - known


@pytest.mark.slow
def test_no_answer_is_an_answer_that_is_not_asked_for_again(federation: Worked) -> None:
    """It was charged, and that it was refused is public."""
    chosen: dict[str, Any] = {"mechanism": "threshold", "vote_threshold": 1e3, "sigma2": 10.0}
    federation.ask(**chosen)
    run = federation.work()
    assert (run.state, run.progress.refused) == (RunState.DONE, QUERIES), run.reason
    before = ledgers(federation)
    federation.ask("second")
    federation.away.update(federation.hospitals)
    run = federation.work("second")
    assert (run.state, run.progress.refused) == (RunState.DONE, QUERIES)
    assert set(federation.labels("second").values()) == {""}
    assert ledgers(federation) == before


def test_who_was_taken_over_says_nothing_more(federation: Worked) -> None:
    """A second service on the same database goes on; the first neither stores nor fails the run."""
    federation.ask()

    def take_over(stage: BatchStage) -> None:
        if stage is BatchStage.PLANNED:
            federation.coordinator.queue.take_up("first")

    federation.on_stage = take_over
    assert federation.work().state is RunState.RUNNING
    # The plan that was stored went out; the later one goes on with it, and nobody votes again.
    before = [list(one.asked) for one in federation.hospitals.values()]
    with federation.coordinator._database.session() as session:
        assert session.query(AnswerRow).count() == 0
    federation.on_stage = lambda stage: None
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
    require_sound(federation)
    for one, asked in zip(federation.hospitals.values(), before, strict=True):
        assert 0 < len(asked) < QUERIES
        assert one.asked[: len(asked)] == asked


def test_an_offer_that_came_to_nothing_stays_on_record(federation: Worked) -> None:
    """A hospital pauses between its word that it takes part, and the offer."""
    federation.ask()

    def pause(number: int) -> None:
        if number == 2:
            pause_hospital(federation, 0, paused=True)

    federation.on_exchange = pause
    assert "North [PF-323]" in federation.work().reason
    pause_hospital(federation, 0, paused=False)
    federation.on_exchange = lambda number: None
    federation.work()
    with federation.coordinator._database.session() as session:
        attempts = session.query(AttemptRow).order_by(AttemptRow.number).all()
    assert ["PF-323" in (one.given_up or "") for one in attempts] == [True, False]
    assert [bool(one.run_id) for one in attempts] == [True, True]
    assert not federation.coordinator.home.path("journals").exists()


# One task for all ---------------------------------------------------------------------------------


@sampled()
@pytest.mark.parametrize("told_otherwise", [0, 2])
def test_hospitals_that_were_given_two_tasks_of_one_pool_never_vote_together(
    federation: Worked, told_otherwise: int
) -> None:
    """The attack: the same rows, two orders of classes, each approved where it was told.

    Their votes for class 0 would be added, and mean different diagnoses. Whichever task the run is
    of, somebody did not approve its pool, and all of them learn that before any vote.
    """
    swapped = make_task(federation.queries, label=LABEL, classes=CLASSES[::-1])
    assert swapped.rows.digests == federation.task.rows.digests
    assert swapped.pool.digest != federation.task.pool.digest
    everybody = list(federation.hospitals.values())
    victim = everybody[told_otherwise]
    victim.open([one for one in everybody if one is not victim], swapped, approved=True)
    federation.ask()
    run = federation.work()
    assert run.state is RunState.WAITING
    assert f"{NAMES[told_otherwise]} [PF-314]" in run.reason
    # The coordinator turns to the other task: now the others refuse.
    federation.task = swapped
    federation.ask("second")
    run = federation.work("second")
    assert (run.state, "PF-314" in run.reason) == (RunState.WAITING, True)
    assert NAMES[told_otherwise] not in run.reason
    assert not any(one.asked for one in everybody)
    assert federation.charges() == [[]] * 3


def test_a_run_without_a_task_is_none_for_a_hospital_that_keeps_one(
    federation: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.ask()
    honest = RunRequest.terms.fget
    monkeypatch.setattr(
        RunRequest, "terms", property(lambda run: replace(honest(run), task_digest=NO_TASK))
    )
    run = federation.work()
    assert (run.state, "PF-324" in run.reason) == (RunState.FAILED, True)
    assert not any(one.asked for one in federation.hospitals.values())


# What a database and a clock can do ---------------------------------------------------------------


def test_whatever_breaks_in_between_a_run_goes_on_from_disk(federation: Worked) -> None:
    """The SuperLink dies under an exchange: no batch is void for it."""
    federation.ask()

    def breaks(number: int) -> None:
        if number == 6:  # the first plan
            raise ConnectionError

    federation.on_exchange = breaks
    with pytest.raises(ConnectionError):
        federation.work()
    federation.on_exchange = lambda number: None
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 0)
    require_sound(federation)
    assert federation.charges() == [[EntryState.COMMITTED] * 3] * 3


@sampled()
@pytest.mark.parametrize(
    "lasts", [pytest.param(True, id="for a while"), pytest.param(False, id="once")]
)
@pytest.mark.parametrize(
    "stage",
    [
        BatchStage.PLANNED,
        BatchStage.ANSWERED,
        BatchStage.DECIDED,
        BatchStage.STORED,
        BatchStage.CLOSING,
    ],
)
def test_a_database_that_does_not_store_voids_no_batch(
    federation: Worked, stage: BatchStage, lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, a server that is away: the run rests where it is, and goes on when it can."""
    federation.ask()
    stores = Database.transaction

    @contextmanager
    def full(self: Database) -> Iterator[Connection]:
        if not lasts:
            patch.setattr(Database, "transaction", stores)
        raise DatabaseError("the database must store what it is given", "OperationalError")
        yield

    def fill(passed: BatchStage) -> None:
        if passed is stage:
            patch.setattr(Database, "transaction", full)

    federation.on_stage = fill
    with monkeypatch.context() as patch, pytest.raises(DatabaseError):
        federation.work()
    federation.on_stage = lambda passed: None
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
    require_sound(federation)
    assert federation.charges() == [[EntryState.COMMITTED] * 3] * 3


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("seconds", [-3600.0 * 24 * 365, 3600.0 * 24 * 6])
def test_a_clock_that_jumps_asks_nothing_twice(federation: Worked, seconds: float) -> None:
    federation.ask()
    jumps = [seconds]

    def jump(stage: BatchStage) -> None:
        if stage is BatchStage.STORED and jumps:
            federation.now += jumps.pop()

    federation.on_stage = jump
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.DONE, 0), run.reason
    require_sound(federation)


@sampled("batches")
@pytest.mark.parametrize("batches", [0, 1], ids=["with nothing", "with what it gave"])
def test_a_run_that_has_expired_ends_and_spends_nothing_more(
    federation: Worked, batches: int
) -> None:
    """Every hospital would refuse its batches, and be charged for what the others refused."""
    federation.ask()
    # Three exchanges of the setup follow the offer, and the ninth answer ends it.
    federation.on_stage = (
        die_at(BatchStage.STORED) if batches else die_at(BatchStage.HEARD, passes=9)
    )
    with pytest.raises(KilledError):
        federation.work()
    before = [list(one.asked) for one in federation.hospitals.values()]
    federation.on_stage = lambda stage: None
    late = federation.now = federation.now + RUN_LIFETIME_S
    for one in federation.hospitals.values():
        assert one.node is not None
        one.node._clock = lambda: late
    run = federation.work()
    assert run.state is (RunState.INCOMPLETE if batches else RunState.FAILED)
    assert run.reason.startswith("PF-447: ")
    assert "expired" in run.reason
    assert run.progress.void == 0
    assert federation.charges() == [[EntryState.COMMITTED] * batches] * 3
    assert [list(one.asked) for one in federation.hospitals.values()] == before
    if batches:
        folder = federation.coordinator.home.results("first")
        warnings = json.loads((folder / "metrics.json").read_text())["warnings"]
        assert warnings


def test_a_plan_that_never_left_is_void_when_its_run_has_expired(federation: Worked) -> None:
    """Its hospitals are charged nothing; the coordinator cannot know that, and keeps its charge."""
    federation.ask()
    federation.on_stage = die_at(BatchStage.PLANNED)
    with pytest.raises(KilledError):
        federation.work()
    federation.on_stage = lambda stage: None
    late = federation.now = federation.now + RUN_LIFETIME_S
    for one in federation.hospitals.values():
        assert one.node is not None
        one.node._clock = lambda: late
    run = federation.work()
    assert run.state is RunState.FAILED
    assert (run.reason[:6], run.progress.void) == ("PF-447", 1)
    assert federation.charges() == [[]] * 3
    assert not any(one.asked for one in federation.hospitals.values())


def test_runs_are_worked_on_in_their_order_whatever_the_clock_says(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'coordinator.db'}", is_new=True)
    times = iter([datetime(2026, 11, 21, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)])
    queue = RunQueue(database, clock=lambda: next(times))
    for name in ("first", "second"):
        queue.add(name, "{}")
    found = queue.next()
    assert found is not None
    assert found.name == "first"
    database.close()


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
def test_yesterdays_database_draws_nothing_twice_and_says_why_its_run_ended(
    tmp_path: Path, form: str
) -> None:
    """The copy knows the first batch; hospitals have answered the second, and heard of its end."""
    names = NAMES if form == "additive" else (*NAMES, "East", "Mid")
    federation = Worked(tmp_path, names=names)
    federation.ask(form=form)
    home, passed = federation.coordinator.home, Counter[BatchStage]()

    def copy_then_die(stage: BatchStage) -> None:
        passed[stage] += 1
        if stage is BatchStage.STORED and passed[stage] == 1:
            with sqlite3.connect(home.path("coordinator.db")) as connection:
                connection.execute("VACUUM INTO ?", (str(home.path("copy.db")),))
            connection.close()
        if stage is BatchStage.ANSWERED and passed[stage] == 3:
            raise KilledError

    federation.on_stage = copy_then_die
    with pytest.raises(KilledError):
        federation.work()
    asked = [list(one.asked) for one in federation.hospitals.values()]
    federation.coordinator.close()
    for path in home.folder.glob("coordinator.db*"):
        path.unlink()
    home.path("copy.db").rename(home.path("coordinator.db"))
    federation.coordinator = Coordinator(home)
    federation.on_stage = lambda stage: None
    run = federation.work()
    assert (run.state, run.progress.answered) == (RunState.INCOMPLETE, 4)
    assert "PF-317" in run.reason  # hospitals know what they gave
    assert [list(one.asked) for one in federation.hospitals.values()] == asked
    assert len(federation.labels()) == 4
    for one in federation.hospitals.values():
        assert set(Counter(one.asked).values()) == {1}
    federation.coordinator.close()


def test_who_is_there_is_asked_while_others_are_away_and_nothing_is_offered(
    federation: Worked,
) -> None:
    """An offer would be agreed to in vain, and each time put on record."""
    federation.ask()
    federation.away |= {0, 2}
    exchanges: list[int] = []
    federation.on_exchange = exchanges.append
    states = []

    def look(seconds: float) -> None:
        run = federation.coordinator.queue.find("first")
        states.append((run.state, run.reason))

    federation.on_wait = look
    worker = federation.worker()
    for _ in range(3):
        run = federation.work(worker=worker)
        assert (run.state, run.reason.partition(": ")[2]) == (RunState.WAITING, "North, West")
    assert set(states) == {(RunState.WAITING, run.reason)}  # never "running"
    assert exchanges == [0, 0, 0]
    south, others = federation.hospitals[1], [federation.hospitals[at] for at in (0, 2)]
    assert {kind for packet, _ in south.exchanges for kind in kinds_of(packet)} == {RunInquiry}
    assert len({answer for _, answer in south.exchanges}) == 1  # one row in its list of messages
    assert not any(one.exchanges for one in others)
    federation.away.clear()
    run = federation.work(worker=worker)
    assert (run.state, run.reason) == (RunState.DONE, "")
    require_sound(federation)


def kinds_of(packet: bytes) -> list[type[Message]]:
    return [type(one) for one in messages_in(packet)]


@pytest.mark.slow
def test_no_other_run_begins_while_one_rests_with_its_hospitals_in_it(
    federation: Worked,
) -> None:
    """They would leave it for the other one, and it would end with two void batches."""

    def pause(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            federation.coordinator.queue.pause("first")
            federation.on_stage = lambda stage: None

    federation.ask(queries=8)
    federation.on_stage = pause
    assert federation.work().state is RunState.PAUSED
    federation.ask("second")
    waits = federation.work("second")
    assert (waits.state, waits.reason.split()[0]) == (RunState.WAITING, "first")
    federation.coordinator.queue.resume("first")
    first = federation.work()
    assert (first.state, first.reason, first.progress.void) == (RunState.DONE, "", 0)
    assert federation.work("second").state is RunState.DONE
    require_sound(federation, answered=8)


# Queries that a hospital refuses ---------------------------------------------------------------


def answer_elsewhere(federation: Worked, place: int, indices: tuple[int, ...]) -> None:
    """Let a hospital have answered queries in another federation."""
    journal = federation.hospitals[place].journal
    batch = federation.task.pool.ask(indices)
    seats = [one.site.identity.fingerprint for one in federation.hospitals.values()]
    claim = PlanClaim.sent(seats, survives_dropouts=False)
    journal.queries.claim(batch.digests, plan_digest=bytes([7]) * 32, claim=claim)


@pytest.mark.slow
def test_queries_that_a_hospital_refuses_are_skipped_and_listed_and_the_rest_is_asked(
    federation: Worked, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.ask()
    asked = federation.request().queries
    burnt = (asked[1], asked[2], asked[9])
    answer_elsewhere(federation, 1, burnt)
    run = federation.work()
    assert (run.state, run.progress.void) == (RunState.INCOMPLETE, 0)
    assert run.reason.startswith("3 ")
    assert NAMES[1] in run.reason
    assert set(federation.labels()) == set(asked) - set(burnt)
    _, found = federation.coordinator.queries("first")
    refused = {one.query_id: one.refused_by for one in found if one.state is QueryState.REFUSED}
    assert refused == dict.fromkeys(sorted(burnt), (NAMES[1],))
    assert sum(one.state is QueryState.ANSWERED for one in found) == QUERIES - 3
    with click.Context(click.Command("show")):
        show_pool("first", home=federation.coordinator.home.folder)
    printed = capsys.readouterr().out
    assert f"{QUERIES} rows of public.csv: 9 answered, 3 refused." in printed
    for place in burnt:
        assert f"{place:>8}  refused: {NAMES[1]} " in printed
    # Nobody was charged for what was not asked, and another run skips the same.
    federation.ask("second")
    again = federation.work("second")
    assert again.state is RunState.INCOMPLETE
    assert [len(states) for states in federation.charges()] == [3, 3, 3]


def test_a_query_that_is_open_in_another_federation_is_tried_once_more_in_the_end(
    federation: Worked,
) -> None:
    federation.ask()
    asked = federation.request().queries
    answer_elsewhere(federation, 1, asked[:3])

    def close_elsewhere(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            journal = federation.hospitals[1].journal
            journal.resolve(bytes([7]) * 32, PlanClaim.certified(()))  # its sum never opens

    federation.on_stage = close_elsewhere
    run = federation.work()
    assert (run.state, run.reason, run.progress.void) == (RunState.DONE, "", 0)
    require_sound(federation)


def test_a_run_of_which_everything_is_refused_fails_and_costs_nothing(federation: Worked) -> None:
    federation.ask()
    answer_elsewhere(federation, 0, federation.request().queries)
    run = federation.work()
    assert run.state is RunState.FAILED
    assert run.reason.startswith(f"{QUERIES} ")
    assert federation.charges() == [[], [], []]


def test_what_a_void_batch_lost_is_listed(federation: Worked) -> None:
    federation.ask(patience_s=0.0)

    def lose(stage: BatchStage) -> None:
        if stage is BatchStage.PLANNED and BatchStage.VOID_STORED not in passed:
            federation.away.add(2)
        if stage is BatchStage.VOID_STORED:
            federation.away.clear()
        passed.add(stage)

    passed: set[BatchStage] = set()
    federation.on_stage = lose
    run = federation.work()
    assert run.progress.void == 1
    _, found = federation.coordinator.queries("first")
    states = Counter(one.state for one in found)
    assert states == {QueryState.LOST: 4, QueryState.ANSWERED: QUERIES - 4}


# A hospital and the coordinator die in one run -------------------------------------------------


def restart_hospital(federation: Worked, place: int) -> None:
    others = list(federation.hospitals.values())
    others.pop(place).open(others, federation.task, approved=True)


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("stage", [BatchStage.CLOSING, BatchStage.COMPARING, BatchStage.FINISHED])
def test_a_coordinator_that_dies_while_it_closes_a_lost_setup_goes_on(
    tmp_path: Path, stage: BatchStage
) -> None:
    federation = Worked(tmp_path, names=(*NAMES, "East"))  # enough are left to close it
    federation.ask()
    passed: Counter[BatchStage] = Counter()

    def on_stage(now: BatchStage) -> None:
        passed[now] += 1
        if now is BatchStage.STORED and passed[now] == 1:
            restart_hospital(federation, 1)
        if now is stage and passed[now] == 1:
            raise KilledError

    federation.on_stage = on_stage
    with pytest.raises(KilledError):
        federation.work()
    run = federation.work()
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)
    for states in federation.charges():
        assert states == [EntryState.COMMITTED] * 3
    federation.coordinator.close()


@sampled()
@pytest.mark.parametrize(
    "anew", [pytest.param(False, id="the first setup"), pytest.param(True, id="a setup anew")]
)
@pytest.mark.parametrize("exchange", [1, 2, 3])
def test_a_hospital_that_is_restarted_in_the_middle_of_a_setup_ends_nothing(
    federation: Worked, exchange: int, anew: bool
) -> None:
    federation.ask()
    stored, done = Counter[BatchStage](), []

    def on_stage(stage: BatchStage) -> None:
        stored[stage] += 1
        if anew and stage is BatchStage.STORED and stored[stage] == 1:
            restart_hospital(federation, 1)

    def on_exchange(number: int) -> None:
        if number == exchange and not done and (stored[BatchStage.STORED] or not anew):
            done.append(number)
            restart_hospital(federation, 2)

    federation.on_stage, federation.on_exchange = on_stage, on_exchange
    run = federation.work()
    while run.state is RunState.WAITING:
        run = federation.work()
    assert done
    assert (run.state, run.progress.answered) == (RunState.DONE, QUERIES)


def be_away_at_the_closing(federation: Worked, stage: BatchStage) -> None:
    """A hospital is gone when the last batch is settled, and comes back restarted."""
    if stage is BatchStage.CLOSING:
        federation.away.add(1)
    if stage is BatchStage.FINISHED:
        federation.away.clear()
        restart_hospital(federation, 1)


def be_put_out(federation: Worked, stage: BatchStage) -> None:
    """Nobody closes a run of which a member is gone: no hospital hears how its batch ended."""
    if stage is BatchStage.STORED:
        federation.coordinator.enrollment.revoke(NAMES[1])


@sampled()
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "state", "missed", "late"),
    [
        pytest.param(be_away_at_the_closing, RunState.DONE, [0, 1, 0, 0], [], id="away"),
        pytest.param(be_put_out, RunState.FAILED, [1, 1, 1, 1], [1], id="not closed"),
    ],
)
def test_hospitals_hear_in_the_next_run_how_the_last_batch_of_this_one_ended(
    tmp_path: Path,
    how: Callable[[Worked, BatchStage], None],
    state: RunState,
    missed: list[int],
    late: list[int],
) -> None:
    federation = Worked(tmp_path, names=(*NAMES, "East"))
    federation.ask(queries=4)
    federation.on_stage = lambda stage: how(federation, stage)
    while (run := federation.work()).state is RunState.RUNNING:
        pass
    assert run.state is state
    assert [states.count(EntryState.RESERVED) for states in federation.charges()] == missed
    federation.on_stage = lambda stage: None
    federation.ask("second", select="all", queries=None)
    assert federation.work("second").state in (RunState.DONE, RunState.INCOMPLETE)
    for place, states in enumerate(federation.charges()):
        kept = EntryState.RESERVED if place in late else EntryState.COMMITTED
        assert states[0] is kept
        assert set(states[1:]) <= {EntryState.COMMITTED}
    federation.coordinator.close()


@pytest.mark.exhaustive
def test_a_hospital_that_missed_many_batches_is_told_of_all_of_them(tmp_path: Path) -> None:
    federation = Worked(tmp_path, names=(*NAMES, "East", "Mid"))
    federation.ask(form="masked", queries=20, batch_size=1)
    stored = 0

    def on_stage(stage: BatchStage) -> None:
        nonlocal stored
        stored += stage is BatchStage.STORED
        if stage is BatchStage.STORED and stored in (2, 18):
            restart_hospital(federation, 0 if stored == 2 else 1)

    federation.on_stage = on_stage
    run = federation.work()
    assert (run.state, run.progress.answered) == (RunState.DONE, 20)
    federation.coordinator.close()


def test_what_a_setup_left_is_read_as_if_nothing_had_happened_since(federation: Worked) -> None:
    """Else a run that was given up just now has no setup to read what it gave from."""
    federation.ask(queries=8)

    def restart(stage: BatchStage) -> None:
        if stage is BatchStage.STORED:
            federation.on_stage = lambda stage: None
            restart_hospital(federation, 1)

    federation.on_stage = restart
    federation.worker().work(federation.coordinator.queue.find("first"))
    open_run, _ = federation.worker()._taken_up(federation.coordinator.queue.find("first"))
    open_run.give_up("for nothing")
    before = open_run.before()
    assert before is not None
    assert before.journal.steps()
    assert not before.is_unbegun
    assert before._labeling is None

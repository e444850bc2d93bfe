"""One process dies at one moment: a hospital around its share, a coordinator at every stage.

Where votes are verified the tally dies, too: at every step of a batch, and with its key.

Over SuperLink and SuperNodes the same is in exhaustive runs, in `test_deployed_marker` and
`tests/test_party/test_service_processes.py`: there each exchange takes seconds.
"""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from coordinator.runs.queue import RunState
from coordinator.runs.stages import BatchStage
from pate_fed.accounting import EntryState
from protocols.forms import FORMS, Verified
from tests.support.invariants import Seen, require_sound
from tests.support.markers import more
from tests.support.mortal_hospital import Fate, Moment
from tests.support.mortal_tally import MOMENTS
from tests.support.process_federation import DiesAt, ProcessFederation, process_federation
from tests.support.worked_tally import require_one_charge, require_one_coin

pytestmark = pytest.mark.slow


def states_of(seen: Seen, place: int) -> list[EntryState]:
    return [entry.state for entry in seen.hospitals[place].ledger.entries]


def given_back(place: int) -> EntryState:
    """A void batch's charge at a hospital: the first one knows that it sent nothing."""
    return EntryState.RETURNED if place else EntryState.CANCELLED


def started(federation: ProcessFederation, fate: Fate | None = None, **settings: Any) -> None:
    """All but the coordinator run, the first hospital with a fate, and a run is queued."""
    federation.make_task("first", seed=1)
    federation.ask("first", **settings)
    if federation.tally is not None:
        federation.start_tally()
    federation.start_hospital(0, fate)
    for place in range(1, len(federation.hospitals.sites)):
        federation.start_hospital(place)


def live_on(federation: ProcessFederation) -> None:
    """Let the coordinator work to the end, and start the hospital again that dies beside it."""
    federation.start_coordinator()
    revive(federation)
    federation.bury_coordinator()


def revive(federation: ProcessFederation) -> None:
    """Start hospitals again that die while the coordinator works."""
    while federation.is_working:
        for place in federation.dead_hospitals():
            federation.bury_hospital(place)
            federation.start_hospital(place)
        time.sleep(0.02)


@pytest.mark.parametrize("moment", [Moment.VOTING, Moment.SHARED, Moment.ANSWERED])
@pytest.mark.parametrize("form", ["additive", more("masked"), more(Verified.name)])
def test_a_hospital_that_is_killed_around_its_share_sends_it_once_or_never(
    tmp_path: Path, form: str, moment: Moment
) -> None:
    with process_federation(tmp_path, form) as federation:
        started(federation, Fate(moment, 1))
        live_on(federation)
        assert federation.kills == 1
        seen = federation.look()
        require_sound(seen)
        federation.require_true_labels(seen)
        [run] = seen.runs
        assert len(seen.said.releases()) == 3, run
        assert (run.run.state, run.run.progress.answered) == (RunState.DONE, 6)
        sent = [plan for plan, name in seen.said.vectors if name == seen.hospitals[0].name]
        if FORMS[form].survives_dropouts:  # the others go on without it
            assert len(states_of(seen, 0)) == 1
            assert len(sent) == (moment is not Moment.VOTING)
            return
        # The run is set up anew with it. What it could not send costs nobody anything.
        for place in range(len(seen.hospitals)):
            lost = [given_back(place)] if moment is Moment.VOTING else []
            assert states_of(seen, place) == [*lost, *[EntryState.COMMITTED] * 3]
        assert len(sent) == 3


def test_a_hospital_that_is_killed_before_it_reveals_is_done_without(tmp_path: Path) -> None:
    with process_federation(tmp_path, "masked") as federation:
        started(federation, Fate(Moment.REVEALING, 1))
        live_on(federation)
        assert federation.kills == 1
        seen = federation.look()
        require_sound(seen)
        federation.require_true_labels(seen)
        assert seen.runs[0].run.state is RunState.DONE
        assert len(seen.said.releases()) == 3


VERDICTS = (BatchStage.PROPOSED, BatchStage.AGREED, BatchStage.CERTIFIED)
STAGES = {
    "additive": [stage for stage in BatchStage if stage not in VERDICTS],
    "masked": list(BatchStage),
    Verified.name: [
        stage
        for stage in BatchStage
        if stage not in (BatchStage.CERTIFIED, BatchStage.REVEALED)
        for _ in range(4 if stage is BatchStage.AGREED else 1)  # the tally's answers
    ],
}
ELSEWHERE = (BatchStage.CLOSING_PROPOSED, BatchStage.VOID_STORED)
"""Of void batches: see below."""


THRESHOLD = {"mechanism": "threshold", "vote_threshold": 2.0}


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        pytest.param("additive", {**THRESHOLD, "noise": "parties"}, id="noise at the hospitals"),
        pytest.param("masked", THRESHOLD, id="masked"),
        pytest.param(Verified.name, {}, id="verified"),
        more("additive", {}, id="gnmax"),
        more("masked", {**THRESHOLD, "noise": "parties"}, id="masked, noise at the hospitals"),
    ],
)
def test_a_coordinator_that_is_killed_at_every_stage_of_one_run_ends_it_whole(
    tmp_path: Path, form: str, settings: dict[str, Any]
) -> None:
    with process_federation(tmp_path, form) as federation:
        started(federation, **settings)
        stages = [stage for stage in STAGES[form] if stage not in ELSEWHERE]
        for stage in stages:
            assert federation.work(DiesAt(stage)), f"it never came to {stage}"
        assert not federation.work()
        assert federation.kills == len(stages)
        seen = federation.look()
        require_sound(seen)
        federation.require_true_labels(seen)
        [run] = seen.runs
        assert (run.run.state, run.run.reason) == (RunState.DONE, "")
        assert run.run.progress.answered == run.run.progress.queries
        if federation.tally is not None:
            require_one_account(federation)
        # One sum a batch, a threshold or not, and no second draw of anybody's noise for it.
        assert len(seen.said.plans) == 3
        for place, hospital in enumerate(seen.hospitals):
            assert states_of(seen, place) == [EntryState.COMMITTED] * 3
            mine = [
                bodies for (_, name), bodies in seen.said.vectors.items() if name == hospital.name
            ]
            assert [len(bodies) for bodies in mine] == [1] * 3


@pytest.mark.parametrize(
    ("form", "exchange"),
    [
        ("additive", 0),
        *(more("additive", later) for later in range(1, 4)),
        *(more(Verified.name, each) for each in range(2)),
    ],
)
def test_a_coordinator_that_is_killed_while_it_sets_up_offers_the_run_anew(
    tmp_path: Path, form: str, exchange: int
) -> None:
    with process_federation(tmp_path, form) as federation:
        started(federation)
        heard = len(federation.hospitals.sites)
        assert federation.work(DiesAt(BatchStage.HEARD, heard * exchange + 2))
        assert not federation.work()
        seen = federation.look()
        require_sound(seen)
        assert seen.runs[0].run.state is RunState.DONE
        assert len(seen.runs[0].labels or ()) == 6


@pytest.mark.exhaustive
@pytest.mark.parametrize("moment", [each for each in Moment if each is not Moment.REVEALING])
def test_a_hospital_may_be_killed_each_time_that_a_moment_comes(
    tmp_path: Path, moment: Moment
) -> None:
    """Run after run, of which each kills it one time later than the one before, until none does."""
    with process_federation(tmp_path, Verified.name) as federation:
        federation.start_tally()
        for number in count(1):
            name, before = f"run-{number}", federation.kills
            federation.make_task(name, seed=number)
            federation.ask(name)
            for place in range(len(federation.hospitals.sites)):
                federation.start_hospital(place, None if place else Fate(moment, number))
            live_on(federation)
            assert federation.run(name).state is RunState.DONE, federation.run(name).reason
            assert federation.run(name).progress.answered == 6
            for place in tuple(federation.lives):
                federation.kill_hospital(place)
            if federation.kills == before + len(federation.hospitals.sites):
                break  # it never came to so many
        require_one_account(federation)
        assert number > 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("when", MOMENTS)
def test_a_tally_may_be_killed_at_each_of_its_steps(tmp_path: Path, when: str) -> None:
    """It begins again, and dies of the next step; hospitals and coordinator never know why."""
    with process_federation(tmp_path, Verified.name) as federation:
        started(federation)
        federation.end_tally()
        moments = [f"{when} {step}" for step in ("state", *range(STEPS_OF_A_TALLY))]
        federation.start_tally(moments.pop(0))
        federation.start_coordinator()
        while federation.is_working:
            if not federation.is_tallying:
                federation.bury_tally()
                federation.start_tally(moments.pop(0) if moments else "")
            time.sleep(0.02)
        federation.bury_coordinator()
        assert federation.kills == 1 + STEPS_OF_A_TALLY
        seen = require_one_account(federation)
        assert [states_of(seen, place) for place in range(4)] == [[EntryState.COMMITTED] * 3] * 4


STEPS_OF_A_TALLY = 5
"""Of a batch: its secrets, and an exchange with each of the four requests."""


def require_one_account(federation: ProcessFederation) -> Seen:
    """All runs are done and right, and both aggregators' books have each batch once."""
    seen = federation.look()
    require_sound(seen)
    federation.require_true_labels(seen)
    assert {one.run.state for one in seen.runs} == {RunState.DONE}
    assert federation.tally is not None
    require_one_coin(federation.coordinator, federation.tally)
    require_one_charge(federation.coordinator, federation.tally)
    return seen


def test_killed_at_a_void_batch_it_knows_what_that_cost(tmp_path: Path) -> None:
    """A hospital dies before it shares, which voids the batch; then the coordinator dies."""
    with process_federation(tmp_path, "additive") as federation:
        started(federation, Fate(Moment.VOTING, 1))
        federation.start_coordinator(DiesAt(BatchStage.VOID_STORED))
        revive(federation)
        assert federation.bury_coordinator()
        live_on(federation)
        assert federation.kills == 2
        seen = federation.look()
        require_sound(seen)
        [run] = seen.runs
        assert (run.run.state, run.run.progress.void) == (RunState.DONE, 1)
        assert run.run.progress.answered == 6
        for place in range(len(seen.hospitals)):
            assert states_of(seen, place) == [given_back(place), *[EntryState.COMMITTED] * 3]


def test_a_hospital_that_is_revoked_in_the_middle_of_a_run_ends_it_with_a_reason(
    tmp_path: Path,
) -> None:
    """The coordinator was down meanwhile: it does not go on with whoever is no member any more."""
    with process_federation(tmp_path, "additive") as federation:
        started(federation)
        assert federation.work(DiesAt(BatchStage.STORED))
        federation.coordinator.enrollment.revoke("West")
        assert not federation.work()
        seen = federation.look()
        require_sound(seen)
        [run] = seen.runs
        assert run.run.state is RunState.FAILED
        assert "West" in run.run.reason
        for place in range(len(seen.hospitals)):
            assert len(states_of(seen, place)) == 1  # nobody is asked again

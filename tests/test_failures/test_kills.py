"""One process dies at one moment: a hospital around its share, a coordinator at every stage.

Over SuperLink and SuperNodes the same is in exhaustive runs, in `test_deployed_marker` and
`tests/test_party/test_service_processes.py`: there each exchange takes seconds.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from coordinator.runs.queue import RunState
from coordinator.runs.stages import BatchStage
from pate_fed.accounting import EntryState
from tests.support.invariants import Seen, require_sound
from tests.support.markers import more
from tests.support.mortal_hospital import Fate, Moment
from tests.support.process_federation import DiesAt, ProcessFederation, process_federation

FORMS = ("additive", "masked")
pytestmark = pytest.mark.slow


def states_of(seen: Seen, place: int) -> list[EntryState]:
    return [entry.state for entry in seen.hospitals[place].ledger.entries]


def given_back(place: int) -> EntryState:
    """A void batch's charge at a hospital: the first one knows that it sent nothing."""
    return EntryState.RETURNED if place else EntryState.CANCELLED


def started(federation: ProcessFederation, fate: Fate | None = None, **settings: Any) -> None:
    """All hospitals run, the first with a fate, and a run of these settings is queued."""
    federation.make_task("first", seed=1)
    federation.ask("first", **settings)
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
@pytest.mark.parametrize("form", ["additive", more("masked")])
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
        if form == "masked":  # the others go on without it
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
}
ELSEWHERE = (BatchStage.CLOSING_PROPOSED, BatchStage.VOID_STORED)
"""Of void batches: see below."""


THRESHOLD = {"mechanism": "threshold", "vote_threshold": 2.0}


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        pytest.param("additive", {**THRESHOLD, "noise": "parties"}, id="noise at the hospitals"),
        pytest.param("masked", THRESHOLD, id="masked"),
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
        # One sum a batch, a threshold or not, and no second draw of anybody's noise for it.
        assert len(seen.said.plans) == 3
        for place, hospital in enumerate(seen.hospitals):
            assert states_of(seen, place) == [EntryState.COMMITTED] * 3
            mine = [
                bodies for (_, name), bodies in seen.said.vectors.items() if name == hospital.name
            ]
            assert [len(bodies) for bodies in mine] == [1] * 3


@pytest.mark.parametrize("exchange", [0, *(more(later) for later in range(1, 4))])
def test_a_coordinator_that_is_killed_while_it_sets_up_offers_the_run_anew(
    tmp_path: Path, exchange: int
) -> None:
    with process_federation(tmp_path, "additive") as federation:
        started(federation)
        assert federation.work(DiesAt(BatchStage.HEARD, 3 * exchange + 2))
        assert not federation.work()
        seen = federation.look()
        require_sound(seen)
        assert seen.runs[0].run.state is RunState.DONE
        assert len(seen.runs[0].labels or ()) == 6


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

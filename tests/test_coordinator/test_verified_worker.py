"""A queued run of verified votes: hospitals report once, the worker and a tally open the sums."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from coordinator.errors import RunRequestError
from coordinator.runs.queue import RunState
from coordinator.runs.stages import BatchStage
from coordinator.tally.tally_schema import TallyOpenedRow
from pate_fed.accounting import EntryState
from protocols.forms import Additive, Verified
from protocols.identity import SigningIdentity
from tests.support.deployed import CLASSES, NAMES, true_class
from tests.support.hospital_site import tell_votes
from tests.support.worked import QUERIES, KilledError, Worked, die_at
from tests.support.worked_tally import (
    WorkedWithTally,
    lying,
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


@pytest.mark.parametrize(
    "given",
    [{"noise": "coordinator"}, {"noise": "parties"}, {"mechanism": "laplace"}],
    ids=lambda given: " ".join(given.values()),
)
def test_what_two_aggregators_cannot_add_has_another_form(
    federation: WorkedWithTally, given: dict[str, Any]
) -> None:
    assert usual_form(federation, **given) == Additive.name


def test_more_votes_than_a_proof_takes_have_another_form(federation: WorkedWithTally) -> None:
    site = federation.hospitals[0].site
    many = replace(site.settings, data=replace(site.settings.data, patients=1001))
    alone = replace(site, settings=replace(many, records_per_teacher=1, held_out=0.0))
    assert alone.settings.teachers == 1001
    tell_votes(federation.coordinator.enrollment, alone, after_s=1)
    assert usual_form(federation) == Additive.name


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


def test_hospitals_that_pinned_another_tally_take_no_part(federation: WorkedWithTally) -> None:
    federation.ask()
    one, *others = federation.hospitals.values()
    federation.open(one, others, tally=SigningIdentity.generate().public)
    run = federation.work()
    assert run.state in {RunState.FAILED, RunState.WAITING}
    assert NAMES[0] in run.reason
    assert run.progress.answered == 0
    assert federation.charges() == [[]] * len(NAMES)

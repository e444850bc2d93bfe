"""A bad day at one hospital: what it costs the others, and whether the run ends with labels.

Real processes that are killed with -9. Over SuperLink and SuperNodes the same is in exhaustive
runs, in `test_deployed_marker`: there each exchange takes seconds.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from coordinator.runs.queue import RunState
from pate_fed.accounting import EntryState
from protocols.messages import Refusal
from tests.support.changed_pool import rewrite
from tests.support.invariants import Seen, require_sound
from tests.support.markers import more
from tests.support.mortal_hospital import Fate, Moment
from tests.support.process_federation import ProcessFederation, process_federation

pytestmark = pytest.mark.slow

QUERIES, BATCH, RESTARTS = 100, 10, 10
AT_ITS_VECTOR = (Moment.VOTING, Moment.SHARED, Moment.ANSWERED)
EVERY_STAGE = (Moment.RECEIVED, *AT_ITS_VECTOR, Moment.HANDLED, Moment.SENT)
MOST_EXTRA = 1.1


@dataclass
class BadDay:
    """One hospital that dies again and again, each time at the next moment."""

    federation: ProcessFederation
    fates: Iterator[Fate] = field(default_factory=lambda: iter(()))

    def live_through(self) -> Seen:
        """Start everybody, ask, and start the hospital again as often as it dies."""
        federation = self.federation
        federation.make_task("first", seed=1, rows=120)
        federation.ask("first", queries=QUERIES, batch_size=BATCH)
        federation.start_hospital(0, next(self.fates, None))
        for place in range(1, len(federation.hospitals.sites)):
            federation.start_hospital(place)
        federation.start_coordinator()
        while federation.is_working:
            for place in federation.dead_hospitals():
                federation.bury_hospital(place)
                federation.start_hospital(place, next(self.fates, None))
            time.sleep(0.02)
        federation.bury_coordinator()
        return federation.look()


def charged(seen: Seen) -> list[float]:
    """Epsilon that each hospital was charged for life."""
    return [one.ledger.used_share() for one in seen.hospitals]


@pytest.fixture(scope="module")
def quiet_day(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What each hospital pays where nobody dies."""
    with process_federation(tmp_path_factory.mktemp("quiet"), "additive") as federation:
        seen = BadDay(federation).live_through()
        assert seen.runs[0].run.state is RunState.DONE
        return charged(seen)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("stages", "packet"),
    [
        # Lost three times without a result between, it would be left out.
        pytest.param(AT_ITS_VECTOR, 0, id="at a plan"),
        more(EVERY_STAGE, 3, id="in the setup"),
        more(EVERY_STAGE, 5, id="at its end"),
    ],
)
def test_a_hospital_that_is_restarted_ten_times_costs_nobody_more(
    tmp_path: Path, quiet_day: list[float], stages: tuple[Moment, ...], packet: int
) -> None:
    fates = (Fate(each, 1 if each in AT_ITS_VECTOR else packet) for each in cycle(stages))
    with process_federation(tmp_path, "additive") as federation:
        seen = BadDay(federation, islice(fates, RESTARTS)).live_through()
        assert federation.kills == RESTARTS
        require_sound(seen)
        federation.require_true_labels(seen)
        [one] = seen.runs
        assert one.run.state is RunState.DONE, one.run.reason
        assert len(one.labels or ()) == QUERIES
        paid = charged(seen)
        assert sum(paid) <= MOST_EXTRA * sum(quiet_day), (paid, quiet_day)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(Moment.RECEIVED, id="before the charge"),
        pytest.param(Moment.VOTING, id="once it is charged"),
        more(Moment.HANDLED, id="once it is answered"),
    ],
)
@pytest.mark.parametrize("packet", [pytest.param(7, id="at a plan"), more(6, id="at an inquiry")])
def test_a_full_disk_costs_nothing_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path, quiet_day: list[float], moment: Moment, packet: int
) -> None:
    number = 1 if moment is Moment.VOTING else packet
    with process_federation(tmp_path, "additive") as federation:
        seen = BadDay(federation, iter([Fate(moment, number, full_for=4)])).live_through()
        require_sound(seen)
        federation.require_true_labels(seen)
        [one] = seen.runs
        assert (one.run.state, len(one.labels or ())) == (RunState.DONE, QUERIES)
        refused = {each.reason for each in seen.hospitals[0].sent if isinstance(each, Refusal)}
        assert "PF-326" in refused  # nothing could be written indeed
        for paid, quiet in zip(charged(seen), quiet_day, strict=True):
            assert paid <= quiet * (1 + 1e-9)


def test_one_restart_in_a_batch_gives_the_others_their_charge_back(tmp_path: Path) -> None:
    with process_federation(tmp_path, "additive") as federation:
        seen = BadDay(federation, iter([Fate(Moment.VOTING, 1)])).live_through()
        require_sound(seen)
        [one] = seen.runs
        assert (one.run.state, len(one.labels or ())) == (RunState.DONE, QUERIES)
        first = []
        for hospital in seen.hospitals:
            lost, *rest = (entry.state for entry in hospital.ledger.entries)
            assert rest == [EntryState.COMMITTED] * (QUERIES // BATCH)
            first.append(lost)
        # The restarted one knows that it sent nothing; the others take its word, within a bound.
        assert sorted(first) == [EntryState.CANCELLED] + [EntryState.RETURNED] * (len(first) - 1)


# The pool changes ------------------------------------------------------------------------------


def rows_of(path: Path) -> list[frozenset[float]]:
    """The rows of a table, as numbers, in whatever order and form its columns are written."""
    with path.open() as file:
        return [frozenset(map(float, row.values())) for row in csv.DictReader(file)]


def labels_by_row(seen: Seen, place: int, path: Path) -> dict[frozenset[float], int]:
    rows = rows_of(path)
    return {rows[index]: label for index, label in (seen.runs[place].labels or {}).items()}


@pytest.mark.parametrize(
    "changed",
    [
        more({"removed": 4}, id="rows removed"),
        more({"added": ["31.5,66.25", "70.125,52.0"]}, id="rows added"),
        more({"is_shuffled": True}, id="reordered"),
        pytest.param(
            {
                "removed": 4,
                "added": ["31.5,66.25"],
                "is_shuffled": True,
                "is_written_otherwise": True,
            },
            id="all of it, and written otherwise",
        ),
    ],
)
def test_a_changed_pool_asks_no_answered_row_again(tmp_path: Path, changed: dict[str, Any]) -> None:
    with process_federation(tmp_path, "additive") as federation:
        federation.make_task("first", seed=1)
        federation.ask("first", queries=20, batch_size=BATCH)
        federation.start_hospitals()
        assert not federation.work()
        first, second = (federation.folder / f"{name}.csv" for name in ("first", "second"))
        task = federation.publish("second", rewrite(first, second, **changed))
        assert task.digest == federation.tasks["first"].digest
        for place in range(len(federation.hospitals.sites)):  # which takes up what is approved
            federation.kill_hospital(place)
            federation.start_hospital(place)
        federation.ask("second", task="second", select="all", queries=len(rows_of(second)))
        assert not federation.work()
        seen = federation.look()
        federation.require_true_labels(seen)
        before, after = (
            labels_by_row(seen, place, path) for place, path in enumerate((first, second))
        )
        assert len(before) == 20
        assert set(after) == set(rows_of(second))
        kept = set(before) & set(after)
        assert kept
        assert {row: after[row] for row in kept} == {row: before[row] for row in kept}
        said, rows = seen.said, {}
        for one, path in (("first", first), ("second", second)):
            for place, row in enumerate(rows_of(path)):
                rows[federation.tasks[one].pool.digest, place] = row
        asked = [rows[query] for plan in said.plans for query in said.queries(plan)]
        assert len(asked) == len(set(asked)) == len(set(before) | set(after))

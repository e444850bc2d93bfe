"""What was answered once is not asked again, though the file of public inputs changed since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.errors import RunRequestError
from coordinator.runs.queue import Progress, RunState
from pate_fed.data.new_task import make_task
from pate_fed.data.table_features import NumberEncoder
from pate_fed.queries import QueryBatch
from tests.support.changed_pool import rewrite
from tests.support.command import Command, pate_fed
from tests.support.deployed import CLASSES, LABEL, TEACHERS, true_class
from tests.support.markers import sampled
from tests.support.worked import Worked

__all__ = ["pate_fed"]

ROWS = 60
NEW = ("19.5,55", "33.125,88.5", "1e2,61")


class Recorder:
    """Teachers that remember the rows that they voted on."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def __call__(self, batch: QueryBatch) -> Any:
        self.asked += batch.digests
        return np.tile(true_class(batch.inputs), (TEACHERS, 1))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Worked]:
    made = Worked(tmp_path)
    for one in made.hospitals.values():
        one.teachers = Recorder()
    yield made
    made.coordinator.close()


def ask_all(federation: Worked, name: str, queries: Path) -> Progress:
    """Run all of a file as an operator does, once every hospital approved it."""
    federation.task = federation.coordinator.read_queries(queries, label=LABEL, classes=CLASSES)
    federation.approve_pool(True)
    federation.ask(name, select="all", queries=None, batch_size=20)
    run = federation.work(name)
    assert (run.state, run.reason, run.progress.void) == (RunState.DONE, "", 0)
    return run.progress


def labels_of(federation: Worked, name: str) -> dict[bytes, str]:
    """The label of each public row that a run released."""
    digests = federation.task.rows.digests
    return {digests[query]: label for query, label in federation.labels(name).items()}


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"removed": 4}, id="rows removed"),
        pytest.param({"added": NEW}, id="rows added"),
        pytest.param({"is_shuffled": True}, id="reordered"),
        pytest.param({"is_written_otherwise": True}, id="written otherwise"),
        pytest.param(
            {"removed": 30, "added": NEW, "is_shuffled": True, "is_written_otherwise": True},
            id="all of it",
        ),
    ],
)
def test_a_changed_pool_asks_no_answered_row_again(
    federation: Worked, tmp_path: Path, changes: dict[str, Any]
) -> None:
    ask_all(federation, "first", federation.queries)
    before, task = labels_of(federation, "first"), federation.task.digest
    assert len(before) == ROWS

    changed = rewrite(federation.queries, tmp_path / "changed.csv", **changes)
    progress = ask_all(federation, "second", changed)
    after, new = labels_of(federation, "second"), len(changes.get("added", ()))
    kept = ROWS - changes.get("removed", 0)
    assert federation.task.digest == task
    assert (progress.from_store, progress.answered) == (kept, kept + new)
    assert {row: label for row, label in after.items() if row in before} == {
        row: label for row, label in before.items() if row in after
    }
    for one in federation.hospitals.values():
        assert isinstance(one.teachers, Recorder)
        assert set(Counter(one.teachers.asked).values()) == {1}
        assert len(one.teachers.asked) == ROWS + new


def test_a_later_pool_is_read_as_the_first_was(federation: Worked, tmp_path: Path) -> None:
    """Its own mean is another one; a label that was right stays right."""
    federation.ask()
    young = tmp_path / "young.csv"
    young.write_text("weight,age\n" + "\n".join(f"70.5,{20 + row}" for row in range(9)) + "\n")
    task = federation.coordinator.read_queries(young, label=LABEL, classes=CLASSES)
    assert task.schema.to_bytes() == federation.task.schema.to_bytes()
    assert true_class(task.inputs).tolist() == [0] * 9
    alone = make_task(young, label=LABEL, classes=CLASSES)
    assert alone.digest != task.digest
    mean = alone.schema.encoder.encoders[0]
    assert isinstance(mean, NumberEncoder)
    assert mean.mean == 24.0


def test_other_columns_or_classes_are_another_task(federation: Worked, tmp_path: Path) -> None:
    federation.ask()
    read = federation.coordinator.read_queries
    header, *lines = federation.queries.read_text("utf-8").splitlines()
    more = tmp_path / "more.csv"
    rows = [f"{line},{place % 7}" for place, line in enumerate(lines)]
    more.write_text("\n".join([f"{header},visits", *rows]) + "\n", encoding="utf-8")
    known = federation.task.digest
    assert read(more, label=LABEL, classes=CLASSES).digest != known
    assert read(more, label=LABEL, classes=CLASSES, ignored=("visits",)).digest == known
    assert read(federation.queries, label="other", classes=CLASSES).digest != known
    assert read(federation.queries, label=LABEL, classes=("no", "maybe")).digest != known
    assert (
        read(federation.queries, label=LABEL, classes=CLASSES, ignored=("weight",)).digest != known
    )
    # In another order they are the same classes, numbered as before.
    again = read(federation.queries, label=LABEL, classes=CLASSES[::-1])
    assert (again.digest, again.class_names) == (known, CLASSES)


def test_a_constant_column_more_is_the_same_task_and_the_same_questions(
    federation: Worked, tmp_path: Path
) -> None:
    federation.ask()
    header, *lines = federation.queries.read_text("utf-8").splitlines()
    constant = tmp_path / "constant.csv"
    constant.write_text("\n".join([f"land,{header}", *(f"CH,{line}" for line in lines)]) + "\n")
    task = federation.coordinator.read_queries(constant, label=LABEL, classes=CLASSES)
    assert task.pool.digest == federation.task.pool.digest


def test_a_task_that_was_refused_decides_nothing(federation: Worked, tmp_path: Path) -> None:
    small = rewrite(federation.queries, tmp_path / "small.csv", removed=30)
    federation.task = federation.coordinator.read_queries(small, label=LABEL, classes=CLASSES)
    with pytest.raises(RunRequestError):
        federation.ask("no name")
    task = federation.coordinator.read_queries(federation.queries, label=LABEL, classes=CLASSES)
    assert task.name == federation.queries.name
    assert task.digest != federation.task.digest


def test_a_damaged_pool_is_no_reason_to_begin_another_task(federation: Worked) -> None:
    federation.ask()
    path = federation.coordinator.home.path("pools", federation.task.pool.digest.hex())
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(RunRequestError, match="backup"):
        federation.coordinator.read_queries(federation.queries, label=LABEL, classes=CLASSES)


@pytest.mark.slow
def test_the_command_reads_a_changed_file_as_the_known_task(
    federation: Worked, pate_fed: Command, tmp_path: Path
) -> None:
    federation.ask()
    changed = rewrite(federation.queries, tmp_path / "changed.csv", removed=4, is_shuffled=True)
    options = (
        *("run", "--queries", changed, "--classes", ",".join(CLASSES)),
        *("--epsilon", "50", "--ask", "5", "--detach"),
        *("--home", federation.coordinator.home.folder),
    )
    ended = pate_fed(*options, "--label", LABEL, "--name", "second")
    assert ended.code == 0, ended.err
    assert "public.csv" in ended.err  # the known task's table
    other = pate_fed(*options, "--label", "other", "--name", "third")
    assert "public.csv" not in other.err
    assert federation.request("second").task == federation.task.digest
    assert federation.request("second").pool != federation.task.pool.digest

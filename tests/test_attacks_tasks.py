"""Attacks by a task's author: a document that costs memory, and public rows that hide a column.

The first were once documents of some hundred kB that took gigabytes at a hospital before anybody
approved them. The second crushed a column in which patients differ, so that one question could be
asked many times, and the sums of two sets of hospitals told one hospital's votes.
"""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.errors import TaskError
from party.site import document_child, limited_child
from party.site.document_child import require_readable
from party.site.limited_child import run_limited
from party.site.tasks import fetch_task
from pate_fed.cells import Cell
from pate_fed.data import task_schema
from pate_fed.data.csv_file import CsvTable, read_csv
from pate_fed.data.flat_columns import FlatColumn, flat_columns
from pate_fed.data.table_features import NumberEncoder
from pate_fed.data.task import MAGIC, MAX_TASK_BYTES, LearningTask
from pate_fed.data.task_schema import MOST_ROWS, TaskSchema, canonical_json, encoder_of
from pate_fed.errors import InvalidTaskError
from pate_fed.public_rows import PublicRows
from tests.support.hospital_site import LABEL, PATIENT, make_site, public_task, write_own_table

Rows = list[tuple[Cell, ...]]

SMALL = 2**29
"""Memory of a child that reads a bomb: far below what the bomb would take."""


def document(count: int, first: Rows, asked: Rows, **changes: Any) -> bytes:
    """A document by hand, past every check of ours."""
    header = canonical_json(
        {
            "version": task_schema.VERSION,
            "name": "bomb",
            "kind": "table",
            "label": LABEL,
            "data_set": "",
            "classes": [["no", []], ["yes", []]],
            "columns": [[f"c{place:05d}", "", [], []] for place in range(count)],
            "left_out": [],
            "rows": len(first),
            **changes,
        }
    )
    body = b"".join(canonical_json(list(row)) + b"\n" for row in (*first, *asked))
    return MAGIC + len(header).to_bytes(4, "big") + header + body


def categories(columns: int, rows: int) -> Rows:
    return [(f"k{row % 50}",) * columns for row in range(rows)]


def old_bomb() -> bytes:
    """As it was: one column, whose 8,000 categories the author wrote down."""
    names = sorted(f"c{place:05x}" for place in range(8000))
    header = canonical_json(
        {
            "version": 1,
            "name": "diabetes",
            "kind": "table",
            "label": "outcome",
            "classes": ["no", "yes"],
            "columns": [{"name": "ward", "categories": names}],
            "left_out": [],
        }
    )
    body = b"".join(canonical_json([names[row % 8000]]) + b"\n" for row in range(16_000))
    return MAGIC + len(header).to_bytes(4, "big") + header + body


BOMBS = {
    "categories that the author wrote down": old_bomb,
    "rows times features": lambda: document(60, categories(60, 100), categories(60, 2_900)),
    "features": lambda: document(250, categories(250, 100), []),
    "more rows than may be": lambda: document(1, [(1.0,), (2.0,)], [(1.0,)] * (MOST_ROWS + 1)),
    "a row of many cells": lambda: document(1, [(1.0,), (2.0,)], [(1.0,) * 2**19]),
    "rows that are said": lambda: document(1, [(1.0,), (2.0,)], [], rows=10**15),
    "columns that are left out": lambda: document(
        1, [(1.0,), (2.0,)], [], left_out=[f"x{place}" for place in range(20_000)]
    ),
    "categories that are listed": lambda: document(
        1,
        [("a",), ("b",)],
        [],
        **{
            "columns": [
                [f"c{n:05d}", "", [], [f"k{k:03d}" for k in range(100)]] for n in range(2_000)
            ]
        },
    ),
    "bytes": lambda: document(1, [(1.0,), (2.0,)], []) + bytes(MAX_TASK_BYTES),
}


class TestDocumentsThatCostMemory:
    @pytest.mark.slow
    @pytest.mark.parametrize("bomb", BOMBS)
    def test_a_document_beyond_the_bounds_is_refused_within_little_memory(self, bomb: str) -> None:
        said = run_limited(
            document_child.__name__,
            bytes(32).hex(),
            given=BOMBS[bomb](),
            must="it must be read",
            seconds=100,
            most_bytes=SMALL,
        )
        _, got = json.loads(said)
        assert got.startswith(InvalidTaskError.code)

    def test_reading_takes_a_small_multiple_of_the_document_and_of_its_inputs(self) -> None:
        content = document(
            20, categories(20, 100), [(f"z{row % 3000:04d}",) * 20 for row in range(500)]
        )
        tracemalloc.start()
        try:
            task = LearningTask.from_bytes(content)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert task.inputs.shape == (500, 1000)
        assert peak < 16 * len(content) + 3 * task.inputs.nbytes

    @pytest.mark.parametrize(
        ("bound", "least"),
        [("MOST_INPUT_BYTES", 60 * 3 * 8), ("MOST_ROWS", 60), ("MOST_FEATURES", 3)],
    )
    def test_an_operator_meets_the_bound_of_hospitals(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, least: int
    ) -> None:
        content = public_task(tmp_path).to_bytes()
        monkeypatch.setattr(task_schema, bound, least)
        assert public_task(tmp_path).to_bytes() == content
        monkeypatch.setattr(task_schema, bound, least - 1)
        with pytest.raises(InvalidTaskError) as made:
            public_task(tmp_path)
        with pytest.raises(InvalidTaskError) as read:
            LearningTask.from_bytes(content)
        assert (made.value.must, made.value.got) == (read.value.must, read.value.got)
        assert str(least - 1) in made.value.must

    def test_a_table_that_a_task_makes_too_large_is_refused_before_it_is_encoded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, own = public_task(tmp_path), read_csv(write_own_table(tmp_path / "own.csv"))
        rows = len(own.lines)
        monkeypatch.setattr(task_schema, "MOST_RECORD_BYTES", rows * 3 * 8)
        assert len(task.encode(own, patient_column=PATIENT)) == rows
        monkeypatch.setattr(task_schema, "MOST_RECORD_BYTES", rows * 3 * 8 - 1)
        with pytest.raises(InvalidTaskError):
            task.encode(own, patient_column=PATIENT)

    @pytest.mark.slow
    def test_a_child_that_dies_is_a_code_and_keeps_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, task = make_site(tmp_path / "site"), public_task(tmp_path)
        door = _Door(task.to_bytes())
        monkeypatch.setattr(limited_child.run_limited, "__kwdefaults__", {"most_bytes": 2**25})
        with pytest.raises(TaskError, match="32 MiB") as died:
            fetch_task(site, door, task.pool.digest)
        assert died.value.code == "PF-360"
        assert not list(site.path("pools").iterdir())
        monkeypatch.undo()
        assert fetch_task(site, door, task.pool.digest).digest == task.digest

    def test_a_child_that_takes_too_long_is_a_code(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = public_task(tmp_path)
        monkeypatch.setattr(document_child, "SECONDS", 0.001)
        with pytest.raises(TaskError, match="TimeoutExpired"):
            require_readable(task.to_bytes(), task.pool.digest)


class _Door:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def fetch_pool(self, digest: bytes) -> bytes:
        return self.content


# The encoder -------------------------------------------------------------------------------------


def rows_of(*ages: float | None) -> PublicRows:
    sexes = ("female", "female", "male", "male")
    return PublicRows(("age", "sex"), tuple((one, sexes[k % 4]) for k, one in enumerate(ages)))


def task_of(first: PublicRows, asked: PublicRows | None = None) -> LearningTask:
    """As a hospital reads it."""
    schema = TaskSchema("a task", "table", LABEL, ("no", "yes"), first)
    return LearningTask.from_bytes(LearningTask(schema, asked or first).to_bytes())


HONEST = rows_of(*np.linspace(20, 80, 40).tolist())
OFF_CENTER = rows_of(*(116.0 + k % 9 for k in range(40)))
FAR = rows_of(*(90.0 + 1.5 * (k % 4) for k in range(40)))


class TestTheEncoder:
    def test_an_encoder_that_the_author_wrote_is_refused(self) -> None:
        honest = canonical_json(["age", "", [], []])
        wrote = canonical_json(
            {"name": "age", "median": 200.0, "mean": 120.0, "deviation": 4.0, "unit": ""}
        )
        content = task_of(HONEST).to_bytes()
        start = len(MAGIC) + 4
        length = int.from_bytes(content[len(MAGIC) : start], "big")
        header = content[start : start + length].replace(honest, wrote)
        assert wrote in header
        with pytest.raises(InvalidTaskError):
            LearningTask.from_bytes(
                MAGIC + len(header).to_bytes(4, "big") + header + content[start + length :]
            )

    def test_it_is_the_same_in_any_order_and_the_exact_one(self) -> None:
        """Sums by machine would differ in the last bits, and so would features."""
        chance = np.random.default_rng(5)
        ages = (chance.uniform(-1, 1, 400) * 10.0 ** chance.integers(-3, 12, 400)).tolist()
        cells = [(age, f"k{row % 7}") for row, age in enumerate(ages)]
        found = set()
        for _ in range(20):
            shuffled = tuple(cells[place] for place in chance.permutation(len(cells)))
            found.add(encoder_of(PublicRows(("age", "sex"), shuffled), ("", ""), ((), ())).encoders)
        [(number, _)] = found
        assert isinstance(number, NumberEncoder)
        mean = sum(map(Fraction, ages)) / len(ages)
        variance = sum((Fraction(age) - mean) ** 2 for age in ages) / len(ages)
        assert math.isclose(number.mean, mean, rel_tol=1e-15)
        assert math.isclose(number.deviation, math.sqrt(variance), rel_tol=1e-15)

    def test_later_rows_do_not_move_it(self) -> None:
        known, far = task_of(HONEST).schema.encoder, task_of(FAR).schema.encoder
        assert task_of(HONEST, FAR).schema.encoder == known != far

    def test_a_column_of_first_rows_must_say_something(self) -> None:
        flat = replace(HONEST, cells=tuple((50.0, sex) for _, sex in HONEST.cells))
        with pytest.raises(InvalidTaskError, match="value"):
            task_of(flat)


@pytest.fixture
def own(tmp_path: Path) -> CsvTable:
    """Patients of 26 to 74 years."""
    return read_csv(write_own_table(tmp_path / "own.csv"))


def with_cells(table: CsvTable, name: str, cell: Callable[[int], str]) -> CsvTable:
    column = tuple(map(cell, range(len(table.lines))))
    place = table.header.index(name)
    columns = (*table.columns[:place], column, *table.columns[place + 1 :])
    return replace(table, columns=columns)


class TestColumnsInWhichPatientsLookAlike:
    """No rule forbids such rows: an author may know no better. The owner sees it."""

    @pytest.mark.parametrize(
        ("first", "asked", "why"),
        [
            pytest.param(OFF_CENTER, FAR, "beyond", id="another center than that of the questions"),
            pytest.param(FAR, None, "beyond", id="questions far from all patients"),
            pytest.param(
                rows_of(*np.linspace(20, 80, 40).tolist(), 1e9, -1e9),
                None,
                "crushed",
                id="outliers",
            ),
            pytest.param(HONEST, None, None, id="people like them"),
            pytest.param(HONEST, FAR, None, id="people like them and questions far from all"),
        ],
    )
    def test_a_column_of_numbers_is_named(
        self, own: CsvTable, first: PublicRows, asked: PublicRows | None, why: str | None
    ) -> None:
        task = task_of(first, asked)
        found = flat_columns(task.schema, own)
        assert found == (() if why is None else (FlatColumn("age", 1.0, why),))  # type: ignore[arg-type]
        features = task.encode(own, patient_column=PATIENT).features[:, 0]
        assert (np.ptp(features) < 1e-6) == (why is not None)

    @pytest.mark.parametrize(
        ("cell", "named"),
        [
            pytest.param(lambda row: f"w{row % 5}", ("unknown", 1.0), id="others"),
            pytest.param(lambda row: "MALE" if row % 40 == 0 else f"w{row}", ("unknown", 0.975)),
            pytest.param(lambda row: "male" if row % 10 == 0 else "w", None, id="some known"),
            pytest.param(lambda row: "male" if row % 40 else "female", None, id="a rare one"),
            pytest.param(lambda row: "Male" if row % 2 else "male", ("one value", 1.0)),
            pytest.param(lambda row: "" if row % 40 else "male", ("missing", 0.975)),
            pytest.param(lambda row: ("", "male", "female", "")[row % 4], None, id="half missing"),
        ],
    )
    def test_a_column_of_texts_is_named(
        self, own: CsvTable, cell: Callable[[int], str], named: tuple[str, float] | None
    ) -> None:
        found = flat_columns(task_of(HONEST).schema, with_cells(own, "sex", cell))
        assert [(one.column, one.why, one.share) for one in found] == (
            [] if named is None else [("sex", *named)]
        )
        assert all(one.is_by_task == (one.why == "unknown") for one in found)

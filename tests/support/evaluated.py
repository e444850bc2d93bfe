"""A federation in memory that is asked how good a student is on patients whom it held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from party.site.party_task import Evaluation, tasks_of
from pate_fed.data.dataset import Records
from pate_fed.data.task_schema import TaskSchema
from pate_fed.evaluation import CertaintyBins, EvaluationPlan
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.mechanisms import TALLIES
from pate_fed.public_rows import PublicRows
from tests.support.federation import Federation

PLACES, SIGMA = 500, 20.0
SCHEMA = TaskSchema(
    name="hearts",
    kind="table",
    label="ill",
    class_names=("no", "yes"),
    first=PublicRows(("age", "sex"), ((50.0, "f"), (70.0, "f"), (50.0, "m"), (70.0, "m"))),
)
BINS = CertaintyBins(np.array([0.7]), np.array([0.6, 0.9]))


def task_of(
    *by: str, student: bytes = b"{}", edge: float = 0.7, places: int = PLACES
) -> EvaluationTask:
    """An evaluation of some student."""
    bins = CertaintyBins(np.array([edge]), BINS.means)
    files = {"student.json": student, "model.safetensors": b""}
    return EvaluationTask(SCHEMA.digest, bytes(32), bins, by, files, places)


def patients(count: int, *, seed: int = 0) -> tuple[Records, NDArray[np.float64]]:
    """Held-out patients, and what the student says of them: it is right on about four of five."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=count)
    features = np.column_stack([rng.normal(size=count), np.eye(3)[rng.integers(3, size=count), :2]])
    said = np.where(rng.random(count) < 0.8, labels, 1 - labels)
    sure = 0.5 + rng.random(count) / 2
    chances = np.where(np.arange(2) == said[:, None], sure[:, None], 1 - sure[:, None])
    units = tuple(f"patient {one}" for one in range(count))
    return Records(features=features, labels=labels, unit_ids=units), chances


def plan_of(task: EvaluationTask, *, sigma: float = SIGMA) -> EvaluationPlan:
    """What is counted, with the noise that was seen."""
    return EvaluationPlan(task.groupings(SCHEMA), sigma, epsilon=1.0, delta=1e-5)


class Evaluated(Federation):
    """Hospitals with held-out patients, one evaluation ready at each.

    Args:
        task: The evaluation.
        counts: Held-out patients of each hospital.
        shares: Share of the patients whom some hospitals' settings hold out, by their place.
        rows: Another count of some hospitals, by their place.
        named: As for `Federation`.
    """

    def __init__(
        self,
        task: EvaluationTask,
        *,
        counts: tuple[int, ...] = (120, 80, 100),
        shares: Mapping[int, float] | None = None,
        terms: Mapping[str, Any] | None = None,
        rows: Mapping[int, Any] | None = None,
        **named: Any,
    ) -> None:
        self.task = task
        plan = plan_of(task)
        super().__init__(
            parties=len(counts),
            teachers=task.places,
            pool_inputs=task.pool.inputs,
            terms={
                "noise_place": "parties",
                "mechanism": TALLIES,
                "classes": plan.columns,
                "sigma2": SIGMA,
                "max_asks": len(task.pool),
                "max_answers": len(task.pool),
                "task_digest": task.digest,
                **(terms or {}),
            },
            **named,
        )
        for place, (node, count) in enumerate(zip(self.nodes, counts, strict=True)):
            records, chances = patients(count, seed=place)

            counted = (rows or {}).get(place, partial(task.rows_of, SCHEMA, records, chances))
            [kept] = node._tasks.values()
            own = Evaluation(task.by, (shares or {}).get(place, 0.2), task.places, counted)
            ready = replace(kept, digest=task.digest, classes=plan.columns, evaluation=own)
            node._tasks = tasks_of(ready)

    @property
    def true_rows(self) -> NDArray[np.int64]:
        """The clean sum, which exists nowhere but here."""
        found = [
            node._tasks[self.pool.digest].evaluation.rows()  # type: ignore[union-attr]
            for node in self.nodes
        ]
        return np.asarray(sum(found))

    def evaluate(self) -> NDArray[np.int64]:
        """Ask everything, in one batch; return the noisy rows."""
        release = self.ask(*range(len(self.task.pool)))
        assert release.tallies is not None
        return release.tallies

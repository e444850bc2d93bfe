"""Private evaluation in a simulation: hospitals score the student on patients kept back."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.simulation.chance import Chance
from pate_fed import wording
from pate_fed.data import Dataset, Inputs, Records
from pate_fed.data.preprocessing import TablePreprocessing
from pate_fed.errors import InvalidSettingError, InvalidTaskError, TooFewRecordsError
from pate_fed.evaluation import CLASS, CertaintyBins, EvaluationPlan, Grouping
from pate_fed.evaluation_task import groups_by, places_by
from pate_fed.planning import RunSettings
from pate_fed.record import Privacy
from pate_fed.record.metrics import EvaluationScores, OutcomeCounts
from pate_fed.record.privacy import EvaluationPrice, WithLabels
from pate_fed.releases import ABSTAIN
from pate_fed.report.held_out_scores import (
    answered_by_group,
    half_width,
    held_out_price,
    held_out_scores,
)
from pate_fed.students import Student
from protocols.secure_sum import run_secure_sum
from protocols.sums import SUMS

HELD_OUT: Final = 0.2
"""Share of the hospitals' patients who teach no teacher."""


def keep_back(
    settings: RunSettings, dataset: Dataset, *, rng: np.random.Generator
) -> tuple[Dataset, Records]:
    """Return the data set without the patients who are kept back, and these patients.

    Raises:
        InvalidSettingError: the student reads no column of a name in `--evaluate-by`.
        TooFewRecordsError: there are too few patients.
    """
    _by_column(settings, dataset)
    rest, kept = hold_out(dataset.private, rng=rng)
    return replace(dataset, private=rest), kept


def hold_out(records: Records, *, rng: np.random.Generator) -> tuple[Records, Records]:
    """Keep a fifth of the patients back, drawn by their ids alone.

    Returns all records of the others, and one record of each patient who was kept back.
    """
    units, first = np.unique(records.unit_ids, return_index=True)
    count = int(HELD_OUT * len(units))
    if not count:
        raise TooFewRecordsError(
            "--evaluate private must have 5 patients or more: it keeps a fifth of them back",
            len(units),
        )
    drawn = rng.permutation(len(units))[:count]
    kept = set(units[drawn])
    rest = [row for row, unit in enumerate(records.unit_ids) if unit not in kept]
    return records.select(rest), records.select(np.sort(first[drawn]))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PrivateEvaluation:
    """One evaluation: planned and priced, then carried out.

    Attributes:
        bins: The student's certainty on the public pool.
        hospitals: Each hospital's held-out patients. Secret.
        by: Columns whose groups are counted, too, and the way they are read.
    """

    plan: EvaluationPlan
    bins: CertaintyBins
    hospitals: tuple[Records, ...]
    unit: str
    pool: Inputs
    by: tuple[tuple[str, TablePreprocessing], ...] = ()

    @classmethod
    def planned(
        cls, settings: RunSettings, dataset: Dataset, held_out: Records, student: Student
    ) -> PrivateEvaluation:
        """Fix the counts and the noise from resolved settings, before anybody counts."""
        assert settings.parties is not None
        assert settings.unit is not None
        if settings.partition == "column" and held_out.hospitals is not None:
            names = sorted(set(dataset.private.hospitals or ()) | set(held_out.hospitals))
            owners = np.array(held_out.hospitals)
            rows = [np.flatnonzero(owners == name) for name in names]
        else:
            rows = list(np.array_split(np.arange(len(held_out)), settings.parties))
        by, groupings = _by_column(settings, dataset)
        bins = CertaintyBins.of(student.chances(dataset.pool.inputs))
        plan = EvaluationPlan.priced(
            (Grouping(CLASS, dataset.class_names), bins.grouping, *groupings),
            epsilon=settings.evaluation_epsilon or 0.0,
            delta=settings.delta,
            unit_patients=max(map(len, rows)) if settings.unit == "party" else 1,
        )
        hospitals = tuple(held_out.select(one) for one in rows)
        return cls(plan, bins, hospitals, settings.unit, dataset.pool.inputs, by)

    @property
    def patients(self) -> int:
        """Number of all held-out patients."""
        return sum(map(len, self.hospitals))

    def price_line(self) -> str:
        """Say the cost and what it buys, before it is spent."""
        half = half_width(self.plan, self.patients)
        return (
            f"Private evaluation on {wording.plural(self.patients, 'held-out patient')}: epsilon "
            f"{wording.epsilon_text(self.plan.epsilon)} at delta "
            f"{wording.delta_text(self.plan.delta)}, noise of {self.plan.sigma:.1f} patients in "
            f"each count; accuracy to about {100 * half:.1f} points."
        )

    def run(self, student: Student, *, form: str, chance: Chance) -> EvaluationScores:
        """Count at each hospital, add the counts by the secure sum, add noise, estimate."""
        vectors = []
        for records in self.hospitals:
            chances = student.chances(records.inputs) if len(records) else np.zeros((0, 2))
            places = {
                CLASS: records.labels,
                "certainty": self.bins.places(chances),
                **{name: places for name, (_, places) in self._groups(records.inputs).items()},
            }
            right = chances.argmax(axis=1) == records.labels
            vectors.append(self.plan.counts(places, right))
        total = run_secure_sum(SUMS[form](), vectors, seed=secrets.token_bytes(32))
        noise = chance.noise("noise of the evaluation")
        return held_out_scores(self.plan, self.plan.perturb(total, random_bytes=noise))

    def no_answer(
        self, student: Student, labels: Mapping[int, int]
    ) -> dict[str, dict[str, OutcomeCounts]]:
        """Count public queries with and without a label, in the groups of the evaluation."""
        asked = self.pool.select(list(labels))
        said = student.chances(asked).argmax(axis=1)
        groups = {CLASS: (self.plan.groupings[0].groups, said), **self._groups(asked)}
        return answered_by_group(groups, np.array(list(labels.values())) == ABSTAIN)

    def _groups(self, inputs: Inputs) -> dict[str, tuple[tuple[str, ...], NDArray[np.int64]]]:
        return {
            f"by {name}": (groups_by(read, name), places_by(read, name, inputs.features))
            for name, read in self.by
        }

    def privacy(self, privacy: Privacy) -> EvaluationPrice:
        """Return its entry of `privacy.json`, whose other content is given."""
        labels, delta = privacy.views.public.epsilon, privacy.delta
        both = "A patient taught a teacher or was kept back, never both."
        whole = None if labels is None else max(labels, self.plan.epsilon)
        if self.unit == "party":
            delta += self.plan.delta
            both = "A hospital's patients are in both: the numbers add up."
            whole = None if labels is None else labels + self.plan.epsilon
        return held_out_price(
            self.plan,
            self.unit,
            view="public",
            method="exact cost of Gaussian noise (GDP)",
            trust="The coordinator sees the sums before the noise is added: you must trust it.",
            with_labels=WithLabels(epsilon=whole, delta=delta, method=both),
        )


def _by_column(
    settings: RunSettings, dataset: Dataset
) -> tuple[tuple[tuple[str, TablePreprocessing], ...], list[Grouping]]:
    """Return the columns of `--evaluate-by`, with their groups."""
    read = dataset.preprocessing
    if not settings.evaluate_by:
        return (), []
    if not isinstance(read, TablePreprocessing):
        raise InvalidSettingError("--evaluate-by needs a table", dataset.kind)
    try:
        groupings = [Grouping(f"by {one}", groups_by(read, one)) for one in settings.evaluate_by]
    except InvalidTaskError as error:
        raise InvalidSettingError(
            "--evaluate-by must name a column that the student reads", error.got
        ) from error
    return tuple((one, read) for one in settings.evaluate_by), groupings

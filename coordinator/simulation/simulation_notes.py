"""Notes of a simulation for its user: whose records were public, and what a deployment lacks."""

from __future__ import annotations

from pate_fed.data import Dataset
from pate_fed.planning import RunSettings
from pate_fed.report.guarantee_words import delta_warning
from pate_fed.students import LabelFacts


def public_patients(settings: RunSettings, dataset: Dataset) -> list[str]:
    """Report whose records were treated as public where they are the user's own patients'."""
    if settings.data.name not in ("csv", "images"):
        return []
    own, pool, test = (part.unit_count for part in dataset.parts)
    patients = own + pool + test
    return [
        f"{100 * pool / patients:.0f} % of the patients (pool) and "
        f"{100 * test / patients:.0f} % (test) were treated as public: labels.csv, the student "
        "and its scores may show them."
    ]


def large_delta(settings: RunSettings, dataset: Dataset, runs: int) -> list[str]:
    """Warn where the delta of the whole series is large for so many units."""
    units = settings.parties if settings.unit == "party" else dataset.private.unit_count
    deltas = runs + (runs > 1)  # `delta_of_series`
    warning = delta_warning(deltas * settings.delta, units=units or 0)
    return [] if warning is None else [warning]


def known_prevalence(settings: RunSettings, facts: LabelFacts) -> list[str]:
    """Report that the student knows facts that nobody would tell it in a deployment."""
    known = [one.prevalence for one in (facts, *facts.by_label.values())]
    if settings.prevalence is not None or not any(known):
        return []
    return [
        "The student was told how common each class is in the public pool, from labels that "
        "only a simulation has. For the same in a deployment, give --prevalence."
    ]

"""Notes on choices that were made for people."""

from __future__ import annotations

from pate_fed.data import Dataset
from pate_fed.planning.outlook import evidence, outlook
from pate_fed.planning.run_settings import RunSettings


def unit_notes(asked: RunSettings, resolved: RunSettings) -> list[str]:
    """Report that small hospitals turned the privacy unit into a whole hospital."""
    if resolved.partition != "column" or asked.teachers is not None:
        return []
    notes = [
        "The number of teachers follows from the smallest hospital's number of patients. That "
        "number is private, and no epsilon covers this choice: give --teachers yourself."
    ]
    if resolved.teachers != 1 or asked.unit is not None:
        return notes
    return [
        *notes,
        "The smallest hospital has few patients: every hospital has one teacher, and the privacy "
        "unit is a whole hospital. Choose --teachers and --unit to have it otherwise.",
    ]


def outlook_of(settings: RunSettings, dataset: Dataset) -> str:
    """Say whether the student of a table is likely to beat a hospital's own model.

    Of the records only the public pool and the number of all others are looked at.

    Returns:
        A sentence; empty for images, and where no noise is known.
    """
    sigma, asks = settings.rule.sigma2, settings.caps.max_asks
    if dataset.kind != "table" or not (sigma and asks and settings.parties):
        return ""
    answers = min(asks, settings.caps.max_answers or asks)
    found = evidence(
        dataset.pool.features,
        votes=settings.votes,
        queries=answers,
        sigma=sigma,
        classes=dataset.classes,
    )
    records = len(dataset.private) / settings.parties
    return outlook(found, queries=answers, records=records)

"""Notes on choices that were made for people."""

from __future__ import annotations

from pate_fed.data import Dataset
from pate_fed.planning.outlook import evidence, outlook
from pate_fed.planning.run_settings import RunSettings


def unit_notes(asked: RunSettings, resolved: RunSettings) -> list[str]:
    """Report what the hospitals' sizes decided."""
    if resolved.partition != "column" or asked.teachers is not None or asked.unit == "party":
        return []
    if resolved.do_records_vote:
        return [
            "A hospital's number of votes is that of its patients. No epsilon covers that number: "
            "it covers what the records of a patient are."
        ]
    notes = [
        "A hospital of few patients changes nobody else's teachers, unit or price. "
        "A hospital's number of teachers tells about how many patients it has. No epsilon covers "
        "that number: it covers what the records of a patient are."
    ]
    if resolved.unit == "party":
        notes.append(
            "Hospitals have few patients: each has one teacher, and the privacy unit is a whole "
            "hospital. Choose --records-per-teacher and --unit to have it otherwise."
        )
    return notes


def outlook_of(settings: RunSettings, dataset: Dataset) -> str:
    """Say whether the student of a table is likely to beat a hospital's own model.

    Of the records only the public pool and the number of all others are looked at.

    Returns:
        A sentence; empty for images, and where no noise is known.
    """
    sigma, asks = settings.rule.sigma2, settings.caps.max_asks
    if dataset.kind != "table" or not (sigma and asks and settings.parties):
        return ""
    labels = dataset.label_count
    answers = min(asks, settings.caps.max_answers or asks) // labels
    found = evidence(
        dataset.pool.features[::labels],
        votes=settings.likely_votes,
        queries=answers,
        sigma=sigma,
        classes=dataset.classes,
    )
    records = dataset.sizes[0] / settings.parties
    return outlook(found, queries=answers, records=records)

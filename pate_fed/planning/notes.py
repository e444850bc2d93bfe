"""Notes on choices that were made for people: the unit, the threshold."""

from __future__ import annotations

from pate_fed.charging import noise_of
from pate_fed.data import Dataset
from pate_fed.federation import RunTerms
from pate_fed.mechanisms import Size, flat_row, pass_chances, usual_vote_threshold
from pate_fed.planning.settings import RunSettings
from pate_fed.planning.worth import evidence, outlook


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

    Args:
        settings: Resolved.
        dataset: Its records; only the public pool and the number of all others are looked at.

    Returns:
        A sentence; empty for images, and where no noise is known.
    """
    if dataset.kind != "table" or not (settings.sigma2 and settings.queries and settings.parties):
        return ""
    answers = min(settings.queries, settings.max_answers or settings.queries)
    found = evidence(
        dataset.pool.features,
        votes=settings.votes,
        queries=answers,
        sigma=settings.sigma2,
        classes=dataset.classes,
    )
    records = len(dataset.private) / settings.parties
    return outlook(found, queries=answers, records=records)


def threshold_notes(asked: RunSettings, terms: RunTerms) -> list[str]:
    """Describe the bias of the two-phase check: upward, unlike the coordinator's."""
    threshold = terms.vote_threshold
    if not terms.at_parties or threshold is None:
        return []
    noise, spec = noise_of(terms), terms.spec
    votes = 0 if spec.learns else terms.total_votes
    flat = flat_row(votes, terms.classes)

    def passing(at: float) -> str:
        return f"{pass_chances([flat], vote_threshold=at, noise=noise)[0]:.1%}"

    check = (
        f"The check with noise at the parties looks at the largest of {terms.classes} noisy counts"
    )
    usual = usual_vote_threshold(votes=votes, classes=terms.classes, noise=noise)
    if asked.vote_threshold is None:
        size = Size(terms.total_votes, terms.unit_votes, terms.delta)
        other = spec.usual(size)["vote_threshold"]
        if threshold == other:
            return []
        return [
            f"{check}, so --vote-threshold is {threshold:g} instead of {other:g}, the usual one "
            "with noise at the coordinator. A query without any agreement passes "
            f"{threshold:g} with a chance of {passing(threshold)}, and {other:g} with "
            f"{passing(other)}."
        ]
    if threshold >= usual:
        return []
    return [
        f"{check}. A query without any agreement passes --vote-threshold {threshold:g} with a "
        f"chance of {passing(threshold)}, and {usual} with {passing(usual)}."
    ]

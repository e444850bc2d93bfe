"""Warnings of a run, for its metrics: its early end, its lost parties, its repeated draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pate_fed.record import Privacy
from pate_fed.record.privacy import Booked
from pate_fed.terms import MOST_VOID_BATCHES, RunTerms


def slack_warnings(privacy: Privacy) -> list[str]:
    """Warn where the computer's noise could add noticeably to delta."""
    slack = privacy.noise.delta_slack
    if slack is None or slack <= privacy.delta / 10:
        return []
    return [
        f"The computer's noise could add up to {slack:.1e} to delta: choose a larger delta "
        "or less noise."
    ]


def end_warnings(
    terms: RunTerms,
    *,
    is_over: bool,
    ledger: Sequence[Booked],
    queries: int,
    void: int,
    voids: int,
) -> list[str]:
    """Tell why the run ended if nobody chose that, and whether nothing is protected.

    `void` queries were used up by `voids` void batches, over all setups.
    """
    if not terms.spec.is_private:
        return ["This mechanism protects nobody: no finite epsilon holds. For comparison only."]
    asked, answered = sum(row.asked for row in ledger), sum(row.answered for row in ledger)
    if asked + void >= queries or not is_over:
        return []
    most = terms.caps.most
    if voids and asked < most.asks and answered < most.answers:
        return [
            f"The run ended after {asked} of {queries} queries because {voids} of its batches "
            "were void: the worst case of a void batch counts against the caps, unless its sum "
            f"can never open, and after {MOST_VOID_BATCHES} void ones a run is over."
        ]
    return [
        f"The run ended at a cap, after {asked} of {queries} queries: at most {most.asks} "
        f"queries and {most.answers} answers were allowed, fixed before the run."
    ]


def earlier_warnings(earlier_runs: Mapping[str, int]) -> list[str]:
    """Tell that answers were drawn in earlier runs, whose cost counts too."""
    if not earlier_runs:
        return []
    named = ", ".join(f"{name} ({count})" for name, count in earlier_runs.items())
    return [
        f"{sum(earlier_runs.values())} queries had been asked before: their answers were drawn in "
        f"{named}. Epsilon and delta count those runs too; no budget was charged for them again."
    ]


def setup_warnings(reasons: Iterable[str]) -> list[str]:
    """Report how often a run was set up anew, and why."""
    return [f"The run was set up anew: {reason}." for reason in reasons]


def party_warnings(
    *,
    lost: Iterable[tuple[str, ...]],
    share_faults: Iterable[tuple[str, ...]],
    not_heard: tuple[str, ...],
    parties: int,
) -> list[str]:
    """Name the hospitals that were lost, in a batch or at the closing, and those of wrong shares.

    `share_faults` names, for each share that did not fit, the hospitals that may be at fault.
    """
    found = [
        f"{count} of its batches went on without {', '.join(names)}."
        for names, count in Counter(lost).items()
        if names
    ]
    found += [
        f"A share differed from its dealer's signed hashes: {' or '.join(names)} is at fault."
        for names in dict.fromkeys(share_faults)
    ]
    if not_heard:
        found.append(
            f"Heads of {parties - len(not_heard)} of {parties} hospitals agree; not heard: "
            f"{', '.join(not_heard)}."
        )
    return found

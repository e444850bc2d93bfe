"""The charges of a run, step by step and batch by batch, from released facts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pate_fed.accounting import EntryState, Outcomes
from pate_fed.charging import charge_of, ledger_of, outcomes_of, run_share
from pate_fed.releases import Outcome

if TYPE_CHECKING:
    from pate_fed.report.tables import EndedRun


def charged_steps(ended: EndedRun, seat: int) -> list[dict[str, Any]]:
    """Return the share of this run's cost that was charged after each step, for one party.

    It adds up linearly, and ends at 1 or less: epsilon is stated for the whole run only. A step is
    a query that was looked at (with noise at the parties a batch), or a void batch whose
    reservation was forfeited.
    """
    terms = ended.terms
    if terms.pricing == "none":
        return []
    rows: list[dict[str, Any]] = []
    weight, releases = terms.unit_votes_at(seat), ended.releases
    ledger = ledger_of(terms, seat)
    asked = answered = 0

    def note(looked_at: int, answers: int) -> None:
        share = run_share(terms, seat, ledger)
        rows.append({"asked": asked + looked_at, "answered": answered + answers, "share": share})

    for batch, state in enumerate(ended.ledger.states):
        name, held = f"batch {batch}", ended.ledger.outcomes.entries[batch].reserved
        if state is EntryState.FORFEITED:
            charge = charge_of(terms, held, weight=weight)
            ledger = ledger.reserve(name, charge).forfeit(name)
            note(0, 0)
        if batch not in releases:
            continue
        release = releases[batch]
        before = ledger
        if terms.at_parties:  # all rows of a batch are opened at once
            paid = ended.ledger.paid_for(name, outcomes_of(release))
            ledger = before.reserve(name, charge_of(terms, paid, weight=weight))
            note(release.asked, release.answered)
        for place in range(0 if terms.at_parties else release.asked):
            looked_at = release.outcomes[: place + 1]
            answers = int((looked_at == Outcome.ANSWERED).sum())
            charge = charge_of(terms, Outcomes(place + 1 - answers, answers), weight=weight)
            ledger = before.reserve(name, charge)
            note(place + 1, answers)
        asked, answered = asked + release.asked, answered + release.answered
    return rows


def booked_batches(ended: EndedRun) -> list[dict[str, Any]]:
    """List the batches of a run, each with the state of its reservation."""
    rows = []
    for batch, state in enumerate(ended.ledger.states):
        release = ended.releases.get(batch)
        # The possible cost of a void batch stays charged, but nothing of it was released.
        rows.append(
            {
                "batch": batch,
                "state": state.value,
                "asked": 0 if release is None else release.asked,
                "answered": 0 if release is None else release.answered,
            }
        )
    return rows

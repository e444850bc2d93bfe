"""A waiting run in plain words, for the command line and the page: names and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from party.decision.proposals import Cost, Proposal
from party.site.document_child import AskedTask
from party.site.records import Subject
from pate_fed.data.flat_columns import NEARLY_ALL, FlatColumn
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.federation import RunTerms
from pate_fed.nodes import printable
from pate_fed.wording import percent

Line = tuple[str, str]
"""A name and a text; an empty name goes on with the one before."""


def words_of(
    found: Proposal, task: AskedTask | None, flat: Sequence[FlatColumn] = ()
) -> Iterator[Line]:
    """Describe a run or pool that waits.

    Args:
        found: The proposal.
        task: Its task; None if it could not be fetched.
        flat: Columns in which this hospital's own rows look alike to its teachers.
    """
    approval, terms = found.approval, found.terms
    yield "Federation", found.federation
    if isinstance(task, EvaluationTask):
        by = "".join(f", by {printable(one)}" for one in task.by)
        yield "Evaluation", "of a student, on the patients whom you held out: counts of right and"
        yield "", f"wrong by class, by its certainty{by}"
    elif task is not None:
        yield "Task", f"{task.name}: {task.label}, one of {', '.join(task.class_names)}"
        yield "Pool", f"{len(task.inputs)} public inputs, from {len(task.columns)} columns:"
        yield "", printable(", ".join(task.columns))
        yield from _words_of_flat(flat)
    if terms is not None and approval.subject is Subject.RUN:
        yield (
            "Run",
            f"{terms.name}; the operator's `pate-fed status {terms.name}` shows the first 16 "
            "digits of the same id",
        )
    if terms is not None:
        sigmas = ", ".join(f"{sigma:g}" for sigma in (terms.sigma1, terms.sigma2) if sigma)
        kind = "counts" if terms.is_evaluation else "queries"
        yield (
            "Mechanism",
            f"{terms.mechanism}, noise of standard deviation {sigmas or 'none'} "
            f"added by the {terms.noise_place}; at most {terms.max_asks} {kind}{_others(terms)}",
        )
    if approval.form:
        yield "Secure sum", f"{approval.form}, sealed with {approval.suite}"
    if found.cost is not None:
        cost = found.cost
        unit = "patient" if terms is not None and terms.unit == "record" else "hospital"
        yield (
            "Cost",
            f"of this run: epsilon {cost.run_epsilon:.4g} at most, at delta {cost.delta:g}, "
            f"for one {unit}",
        )
        yield "", cost.neighbors
        yield "", f"view: {cost.view}; method (for specialists): {cost.method}"
        yield from _budget_lines(cost)
        yield from _tests_lines(cost)
    for seat, name in found.peers:
        yield "With", name or seat.hex()[:16] + "...: NOBODY HERE CHECKED IT"


def _words_of_flat(flat: Sequence[FlatColumn]) -> Iterator[Line]:
    """Name the columns in which own rows look alike to teachers; nothing where there is none."""
    by_task = [one for one in flat if one.is_by_task]
    own = [one.name for one in flat if not one.is_by_task]
    if by_task:
        yield (
            "Your table",
            f"{percent(NEARLY_ALL)} or more of its rows LOOK ALIKE TO YOUR TEACHERS in:",
        )
        for one in by_task:
            yield "", f"{printable(one.name)}: {percent(one.share)}, {_WHY[one.why]}"
        yield "", "Questions that differ only there get the same votes, so one can be asked often."
        yield "", "Reject it, and ask the operator for public inputs that resemble your patients."
    if own:
        yield (
            "" if by_task else "Your table",
            "has one value, or hardly any, in: " + printable(", ".join(own)),
        )


_WHY: Final[Mapping[str, str]] = {
    "beyond": "beyond the range that the public rows give",
    "crushed": "too close together beside the spread of the public rows",
    "unknown": "categories that are none of the public rows'",
}


def _others(terms: RunTerms) -> str:
    """Name the mechanism's other parameters, if it has any."""
    values = {name: getattr(terms, name) for name in ("vote_threshold", "confidence", "test_delta")}
    known = [f"{name} {value:g}" for name, value in values.items() if value is not None]
    return f"; {', '.join(known)}" if known else ""


def _tests_lines(cost: Cost) -> Iterator[Line]:
    """Tell a run's effect on the part of delta for tests of stability, if it has any."""
    if cost.tests_after <= cost.tests_before:
        return
    yield (
        "Tests",
        f"of stability: before: {cost.tests_before:.3g} of delta {cost.delta_for_tests:.3g} for "
        "life is spent",
    )
    over = cost.tests_after > cost.delta_for_tests
    yield (
        "",
        f"after: at most {cost.tests_after:.3g} is spent"
        f"{': THE RUN WOULD BE STOPPED BEFORE ITS END' if over else ''}",
    )


def _budget_lines(cost: Cost) -> Iterator[Line]:
    """Tell a run's effect on the budget for life: before, by this run, after."""
    yield (
        "Budget",
        f"before: {cost.spent_before:.4g} of epsilon {cost.lifetime_epsilon:g} for life is spent, "
        f"{cost.lifetime_epsilon - cost.spent_before:.4g} is left",
    )
    if cost.spent_after > cost.lifetime_epsilon:
        yield (
            "",
            f"after: {cost.spent_after:.4g} would be spent, more than {cost.lifetime_epsilon:g}: "
            "THE RUN WOULD BE STOPPED BEFORE ITS END",
        )
        yield (
            "",
            "(Perhaps before its first label. Reject it, and ask the operator for a run with a "
            "smaller --epsilon.)",
        )
        return
    yield (
        "",
        f"after: at most {cost.spent_after:.4g} is spent, at least "
        f"{cost.lifetime_epsilon - cost.spent_after:.4g} is left; this run takes "
        f"{cost.spent_after - cost.spent_before:.4g} at most",
    )
    if cost.spent_after - cost.spent_before > cost.run_epsilon:
        first = "" if cost.spent_before else " A first run pays most of this extra."
        yield (
            "",
            "(A little more than the run's own cost: the budget adds up many runs by a method that "
            f"is less exact for a single one.{first})",
        )

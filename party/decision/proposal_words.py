"""A waiting run in plain words, for the command line and the page: names and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from party.decision.proposals import Cost, Request, RunProposal
from party.errors import fault_line
from party.site.document_child import AskedTask
from party.site.people_decisions import Subject
from party.site.task_review import TaskReview
from pate_fed.data.flat_columns import NEARLY_ALL, FlatColumn
from pate_fed.data.image_schema import ImageSchema
from pate_fed.data.task import LearningTask
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.nodes import printable
from pate_fed.prices import READERS
from pate_fed.rule import Rule
from pate_fed.wording import epsilon_text, percent, plural, room_words
from protocols.forms import FORMS

Line = tuple[str, str]
"""A name and a text; an empty name goes on with the one before."""

RECORDS: Final = "Your data"
"""Name of the lines that say how the own table or images fit."""

FAULT: Final = "Fault"
"""Name of the lines that say why a request cannot be approved."""


def words_of(request: Request) -> Iterator[Line]:
    """Describe a run or pool that waits."""
    found, task = request.proposal, request.task
    approval, terms = found.approval, found.terms
    yield "Federation", found.federation
    if terms is not None:
        yield "Purpose", printable(terms.purpose) or "none stated: ask the operator for it"
    for number, fault in enumerate(request.faults):
        yield FAULT if not number else "", fault_line(fault)
    if isinstance(task, EvaluationTask):
        by = "".join(f", by {printable(one)}" for one in task.by)
        yield "Evaluation", "of a student, on the patients whom you held out: counts of right and"
        yield "", f"wrong by class, by its certainty{by}"
    elif task is not None:
        yield "Task", f"{task.name}: {task.label}, one of {', '.join(task.class_names)}"
        if task.data_set:
            yield "", f"it asks for your data set {task.data_set}"
        yield from _pool_lines(task)
    if request.review is not None:
        yield from _own_lines(request.review, task)
    if terms is not None and approval.subject is Subject.RUN:
        yield (
            "Run",
            f"{terms.name}; the operator's `pate-fed status {terms.name}` shows the first 16 "
            "digits of the same id",
        )
    if terms is not None:
        rule = terms.rule
        sigmas = ", ".join(f"{sigma:g}" for sigma in (rule.sigma1, rule.sigma2) if sigma)
        kind = "counts" if terms.is_evaluation else "queries"
        yield (
            "Mechanism",
            f"{rule.mechanism}, noise of standard deviation {sigmas or 'none'} "
            f"added by the {rule.noise_place}; at most {terms.caps.max_asks} {kind}{_others(rule)}",
        )
    if approval.form:
        yield "Secure sum", f"{approval.form}, sealed with {approval.suite}"
        yield from _sight_lines(found)
    if found.cost is not None:
        cost = found.cost
        unit = "patient" if terms is not None and terms.unit == "record" else "hospital"
        yield (
            "Cost",
            f"of this run: epsilon {epsilon_text(cost.run_epsilon)} at most, at delta "
            f"{cost.delta:g}, for one {unit}",
        )
        yield "", cost.neighbors
        yield "", f"view: {cost.view}; method (for specialists): {cost.method}"
        if cost.charged_view != READERS:
            yield "", f"against {cost.charged_view}: epsilon {epsilon_text(cost.charged_epsilon)}"
        yield from _budget_lines(cost)
        yield from _tests_lines(cost)
    unchecked = "not checked, and need not be" if approval.tally else "NOBODY HERE CHECKED IT"
    for seat, name in found.peers:
        votes = f", {plural(found.votes[seat], 'vote')}" if seat in found.votes else ""
        yield "With", (name or f"{seat.hex()[:16]}...: {unchecked}") + votes


def _pool_lines(task: LearningTask) -> Iterator[Line]:
    if isinstance(task.schema, ImageSchema):
        yield "Pool", f"{len(task.inputs)} public images. They and yours are read as"
        yield "", task.schema.reading.words
        return
    yield "Pool", f"{len(task.inputs)} public inputs, from {len(task.columns)} columns:"
    yield "", printable(", ".join(task.columns))


def _sight_lines(found: RunProposal) -> Iterator[Line]:
    """Say who would have to work together to see this hospital's votes."""
    approval, rule = found.approval, None if found.terms is None else found.terms.rule
    form = FORMS.get(approval.form)
    if rule is None or form is None:
        return
    coordinator, tally = found.aggregators
    if form.adds_noise:
        yield SIGHT, f"can be seen by {coordinator} and {tally} together; by neither alone"
        yield (
            "",
            "(each alone, even with all other hospitals, sees them with the other's noise only)",
        )
        return
    others = len(found.peers)
    helpers = min(others, form.most_colluders(others + 1) + 1)
    counted = "all" if helpers == others else f"{helpers} of the {others}"
    both = f"{coordinator} and {counted} other hospitals together"
    if rule.at_parties:
        yield SIGHT, f"can be seen by {both}, with your own part of the noise"
        yield (
            "",
            f"(with more than {rule.colluders} of them it sees the sum with less noise than the "
            "cost below counts)",
        )
    else:
        yield (
            SIGHT,
            f"can be seen by {coordinator} alone, if it breaks your trust: it has exact sums",
        )
        yield "", f"(on a single question: by {both})"
    unchecked = sum(name is None for _, name in found.peers)
    if unchecked:
        checked = f"NOBODY HERE CHECKED {unchecked} of the {others}"
        yield "", f"{checked}: they may be the coordinator's own"


SIGHT: Final = "Your votes"
"""Name of the lines that say who could see them."""


def _own_lines(review: TaskReview, task: AskedTask | None) -> Iterator[Line]:
    fit = review.fit
    if fit is None or not isinstance(task, LearningTask):
        return
    columns, read = len(fit.columns), sum(one.fault is None for one in fit.columns)
    same = "the task's" if review.label == task.label else f"NOT the task's, {task.label}"
    if task.kind == "image":
        read_words = "images cannot be read" if fit.faults else "all images can be read"
        yield RECORDS, f"label {review.label}: {same}; {read_words}"
    else:
        yield (
            RECORDS,
            f"label {review.label}: {same}; columns that can be read: {read} of {columns}",
        )
    if fit.has_labels:
        yield "", "classes: all values of your label are classes of the task"
    if fit.unseen:
        yield "", f"none of yours is of class {', '.join(fit.unseen)}"
    if fit.unread:
        yield "", f"columns that the task does not know: {printable(', '.join(fit.unread))}"
    yield from _flat_lines(review.flat)


def _flat_lines(flat: Sequence[FlatColumn]) -> Iterator[Line]:
    """Name the columns in which own rows look alike to teachers; nothing where there is none."""
    by_task = [one for one in flat if one.is_by_task]
    own = [one.column for one in flat if not one.is_by_task]
    if by_task:
        yield "", f"{percent(NEARLY_ALL)} or more of yours LOOK ALIKE TO YOUR TEACHERS in:"
        for one in by_task:
            yield "", f"{printable(one.column)}: {percent(one.share)}, {_WHY[one.why]}"
        yield "", "Questions that differ only there get the same votes, so one can be asked often."
        yield "", "Reject it, and ask the operator for public inputs that resemble your patients."
    if own:
        yield "", f"it has one value, or hardly any, in: {printable(', '.join(own))}"


_WHY: Final[Mapping[str, str]] = {
    "beyond": "beyond the range that the public rows give",
    "crushed": "too close together beside the spread of the public rows",
    "unknown": "categories that are none of the public rows'",
}


def _others(rule: Rule) -> str:
    values = {name: getattr(rule, name) for name in ("vote_threshold", "confidence", "test_delta")}
    known = [f"{name} {value:g}" for name, value in values.items() if value is not None]
    return f"; {', '.join(known)}" if known else ""


def _tests_lines(cost: Cost) -> Iterator[Line]:
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
    yield (
        "Budget",
        f"for life: epsilon {cost.lifetime_epsilon:g}; other runs have used {percent(cost.used)} "
        f"of it. This run takes {percent(cost.share)} of it at most, by its epsilon against "
        f"{cost.charged_view}",
    )
    if cost.used + cost.share > 1:  # of epsilon, not of delta for tests
        yield "", "That is more than is left: THE RUN WOULD BE STOPPED BEFORE ITS END"
        yield (
            "",
            "(Perhaps before its first label. Reject it, and ask the operator for a run with a "
            "smaller --epsilon.)",
        )
        return
    if cost.fits:
        yield "", f"after it there is {room_words(cost.room - 1)}"

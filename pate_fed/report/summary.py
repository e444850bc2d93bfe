"""The result of a run on one terminal screen: at most 24 lines of 80 columns, no color."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath

from rich.cells import cell_len, chop_cells

from pate_fed import wording
from pate_fed.record import Metrics, Privacy
from pate_fed.report import price_words, quality_words
from pate_fed.report.voter_words import voter_words
from pate_fed.run_folder import REPORT

LINES = 24
COLUMNS = 80

_NAME_WIDTH = 14


def render_summary(metrics: Metrics, privacy: Privacy, run_dir: str | os.PathLike[str]) -> str:
    """Write the result of a run.

    Returns:
        Plain text of at most `LINES` lines and `COLUMNS` columns, without a line end at the end
        and without control characters. Print it as it is, not as markup.
    """
    end = _place(run_dir)
    head: list[str] = []
    body: list[str] = []
    held_out = quality_words.held_out_text(metrics, privacy)
    room = 0
    for most in (3, 2, 1):  # texts are cut only where the screen is full
        head = _alarms(metrics, most=most) + _head(metrics, privacy)
        body = _learned(metrics, most=most)
        body += _row("held-out", held_out, lines=2) if held_out else []
        body += _cost(privacy, most=most)
        room = LINES - len(head) - len(body) - len(end)
        if room >= bool(metrics.warnings):
            break
    return "\n".join(head + body + _warnings(metrics.warnings, room) + end)


def _head(metrics: Metrics, privacy: Privacy) -> list[str]:
    queries, simulated = metrics.queries, metrics.simulated or privacy.simulated
    noun = voter_words(records_vote=privacy.do_records_vote).noun
    text = (
        f"{wording.plural(metrics.parties, 'hospital')} with "
        f"{wording.plural(metrics.teachers, noun)} labeled {queries.answered:,} of "
        f"{wording.plural(queries.asked, 'public query', 'public queries')}. "
        f"{price_words.secrecy_text(privacy, simulated=simulated)}"
    )
    lines = ["SIMULATED RUN"] if simulated else []
    return [*lines, *_wrap(text, COLUMNS), ""]


def _alarms(metrics: Metrics, *, most: int) -> list[str]:
    said = list(quality_words.alarms(metrics))[: 1 if most == 1 else None]
    return [line for each in said for line in _row("!", each, lines=most)]


def _learned(metrics: Metrics, *, most: int) -> list[str]:
    queries = metrics.queries
    counts = [f"{queries.answered:,} answered", f"{queries.refused:,} without an answer"]
    rare = (
        (queries.reinforced, "of these labeled by the student"),
        (queries.not_asked, "not asked"),
        (queries.void, "lost in void batches"),
    )
    counts += [f"{count:,} {name}" for count, name in rare if count]
    compared: tuple[tuple[str, quality_words.Model], ...] = (
        ("average hospital", "average_hospital"),
        ("best one", "best_hospital"),
        ("noisy gradients", "private_baseline"),
        ("all records, no privacy", "pooled"),
    )
    lines = _row("Queries", ", ".join(counts))
    is_left_out = metrics.simulated and metrics.data is None and metrics.scores.student is None
    known = "in the private edition only" if is_left_out else quality_words.accuracy_text(metrics)
    lines += _row("Accuracy", f"student {known}", lines=min(most, 2))
    if sets := quality_words.sets_text(metrics):
        lines += _row("Sets", sets, lines=most)
    labels = metrics.label_accuracy
    said = [] if labels is None else [f"labels {wording.percent(labels)}"]
    said += [
        f"{name} {quality_words.score_text(metrics, key)}"
        for name, key in compared
        if quality_words.accuracy_of(metrics, key).share is not None
    ]
    if said:
        lines += _row("compare", ", ".join(said))
    return lines


def _cost(privacy: Privacy, *, most: int) -> list[str]:
    operator = privacy.views.coordinator
    lines = _row(
        "Privacy cost",
        f"{_epsilon(privacy)}, public view; method: {price_words.headline_method(privacy)}",
        lines=max(most, 2),
    )
    if said := price_words.series_text(privacy):
        lines += _row("series", said, lines=most)
    if said := price_words.removal_text(privacy):
        lines += _row("no vote cast", said, lines=min(most, 2))
    if privacy.views.public.not_covered is not None:
        lines += _row("not covered", _DEALT, lines=1)
    votes = wording.plural(privacy.unit_votes, "vote")
    asks = price_words.asks_text(privacy)
    lines += _row("unit", f"{price_words.short_unit(privacy)}, at most {votes} on {asks}")
    lines += _row("neighbors", privacy.neighboring_definition, lines=most)
    if operator.epsilon is None:
        lines += _row("coordinator", "no guarantee against it: you must trust it")
    else:
        lines += _row(
            "coordinator",
            f"epsilon {wording.epsilon_text(operator.epsilon)} in its view, same delta, unit "
            f"and neighbors; method: {operator.method}",
            lines=max(most, 2),
        )
    if (tally := privacy.views.tally) is not None:
        said = "no number" if tally.epsilon is None else wording.epsilon_text(tally.epsilon)
        lines += _row("tally", f"epsilon {said} in its view, all else as the coordinator's")
    lines += _row("budget", _budget(privacy))
    void = [entry for entry in privacy.ledger if entry.state != "committed"]
    if void:
        states = ", ".join(f"{entry.batch} {entry.state}" for entry in void)
        lines += _row("void batches", states)
    return lines


def _epsilon(privacy: Privacy) -> str:
    epsilon = privacy.views.public.epsilon
    if epsilon is None:
        return "epsilon without a bound"
    most = " where it is largest" if price_words.differ(privacy.epsilons) else ""
    delta = wording.delta_text(privacy.delta)
    return f"epsilon {wording.epsilon_text(epsilon)}{most} at delta {delta}"


_DEALT = "dealing records out by their class (--partition dirichlet)"


def _budget(privacy: Privacy) -> str:
    if privacy.protects_nobody:
        return "none is kept: this mechanism protects nobody"
    budget = privacy.budget
    epsilon = wording.epsilon_text(budget.epsilon)
    if price_words.differ(privacy.budgets):
        epsilon = price_words.spread(privacy.budgets)
    delta = wording.delta_text(budget.delta)
    if privacy.opens_noisy:
        return f"epsilon {epsilon} at delta {delta} in the coordinator's view, same unit, neighbors"
    if budget.kept_for_tests is not None:
        kept = wording.delta_text(budget.kept_for_tests)
        delta += f" ({kept} kept for tests of stability)"
    return f"epsilon {epsilon} at delta {delta}, same unit, neighbors and view"


def _warnings(warnings: Sequence[str], room: int) -> list[str]:
    """Show as many warnings as fit, and say how many more there are."""
    lines: list[str] = []
    for number, warning in enumerate(warnings):
        entry = _row("Warning", warning)
        left = len(warnings) - number - 1
        if len(lines) + len(entry) + (1 if left else 0) > room:
            more = wording.plural(len(warnings) - number, "more warning")
            return [*lines, *_row("", f"{more}: see {REPORT}")]
        lines += entry
    return lines


def _place(run_dir: str | os.PathLike[str]) -> list[str]:
    place = _printable(str(PurePath(run_dir) / REPORT))
    room = COLUMNS - _NAME_WIDTH - 1
    if cell_len(place) > room:  # the end of a path is the most telling
        while cell_len(place) > room - 3:
            place = place[1:]
        place = f"...{place}"
    return ["", f"{'Report':<{_NAME_WIDTH}} {place}"]


def _row(name: str, text: str, *, lines: int = 2) -> list[str]:
    room = COLUMNS - _NAME_WIDTH - 1
    shown = _wrap(text, room)
    if len(shown) > lines:
        shown = shown[:lines]
        shown[-1] = (chop_cells(shown[-1], room - 4) or [""])[0] + " ..."
    first, *rest = shown
    return [f"{name:<{_NAME_WIDTH}} {first}", *(f"{'':<{_NAME_WIDTH}} {line}" for line in rest)]


def _wrap(text: str, columns: int) -> list[str]:
    """Break a text into lines by the columns that its letters take on a terminal."""
    lines = [""]
    for word in _printable(text).split():
        for piece in chop_cells(word, columns):
            longer = f"{lines[-1]} {piece}".lstrip()
            if cell_len(longer) <= columns:
                lines[-1] = longer
            else:
                lines.append(piece)
    return lines


def _printable(text: str) -> str:
    """Replace control characters, which could steer the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

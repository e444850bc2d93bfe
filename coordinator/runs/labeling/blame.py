"""Who spoiled a row of a void batch: the traceable rows, and the parties' answers."""

from __future__ import annotations

import logging

from coordinator.runs.labeling.job import RunContext
from coordinator.runs.labeling.messenger import Messenger

_MOST_TRACED_BYTES = 4 * 2**20
"""Most row sums of parties kept to find out who spoiled a row; with more, it is not found out."""

_log = logging.getLogger(__name__)


def traced_row_words(words: int, context: RunContext) -> int:
    """Return the words of a row, if its spoiler is to be found out; otherwise 0.

    With noise at the parties a row's sum is secret. The plain form has no streams to compare. More
    row sums than fit the coordinator's memory are not kept.
    """
    form, terms, parties = context.job.form, context.terms, len(context.round.seats)
    kept = parties * words // terms.classes * form.ring.bits // 8
    is_fit = kept <= _MOST_TRACED_BYTES and form.hides_vectors
    return terms.classes if is_fit and not terms.at_parties else 0


def who_spoiled(row: int, context: RunContext, messenger: Messenger) -> tuple[str, ...]:
    """Find out who spoiled the row; one exchange. Returns a line for each party at fault."""
    run, roster = context.round, context.roster
    request = run.blame.ask(row)
    failures = messenger.tell(request, only=run.missing)
    blame = run.blame.name(context.terms.quotas)
    named = [f"{roster.name(seat)}: its row is not its votes" for seat in blame.parties]
    named += [
        f"{roster.name(one)} and {roster.name(two)}: one of them lies" for one, two in blame.pairs
    ]
    for seat in blame.silent:
        cause = failures[seat].cause if seat in failures else "PF-412"
        named.append(f"{roster.name(seat)}: it does not say [{cause}]")
    for line in named:
        _log.warning("a batch is void; %s", line)
    return tuple(named)

"""Who spoiled a void batch: by its own message, or by a row that the parties are asked about."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from coordinator.errors import PartyFailedError, PartyRefusedError
from coordinator.runs.labeling.job import RunContext
from coordinator.runs.labeling.messenger import Messenger
from protocols.errors import RemoteProtocolError
from protocols.secure_sum import SecureSum

_MOST_TRACED_BYTES = 4 * 2**20
"""Most row sums of parties kept to find out who spoiled a row; with more, it is not found out."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spoilers:
    """The parties that may have spoiled a batch.

    Attributes:
        proven: Those of them that are at fault alone.
    """

    named: tuple[str, ...] = ()
    seats: tuple[bytes, ...] = ()
    proven: tuple[bytes, ...] = ()


def who_broke_the_protocol(error: Exception, context: RunContext) -> Spoilers:
    """Return who made a batch void by a message against the protocol; silence is none."""
    roster, seats = context.roster, context.round.seats
    match error:
        case PartyRefusedError():
            return Spoilers()
        case PartyFailedError(is_silent=False):
            found = tuple(seat for seat in seats if roster.name(seat) == error.party)
            cause = error.cause
        case RemoteProtocolError():
            words = error.pair or (error.peer,)
            found = tuple(seat for seat in seats if seat.hex() in words)
            cause = error.code
        case _:
            return Spoilers()
    if not found:
        return Spoilers()
    names = " or ".join(roster.names(found))
    line = f"{names}: against the protocol [{cause}]"
    _log.warning("a batch is void; %s", line)
    return Spoilers((line,), found, found if len(found) == 1 else ())


def traced_row_words(words: int, context: RunContext) -> int:
    """Return the words of a row, if its spoiler is to be found out; otherwise 0.

    With noise at the parties a row's sum is secret. The plain form has no streams to compare, and
    whoever reports no votes is found at once. More row sums than fit the coordinator's memory are
    not kept.
    """
    form, terms, parties = context.job.form, context.terms, len(context.round.seats)
    if not isinstance(form, SecureSum):
        return 0
    kept = parties * words // terms.columns * form.ring.bits // 8
    is_fit = kept <= _MOST_TRACED_BYTES and form.hides_vectors
    return terms.columns if is_fit and not terms.rule.at_parties else 0


def who_spoiled(row: int, context: RunContext, messenger: Messenger) -> Spoilers:
    """Find out who spoiled the row; one exchange."""
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
    in_pairs = {seat for pair in blame.pairs for seat in pair}
    at_fault = in_pairs.union(blame.parties, blame.silent)
    return Spoilers(
        tuple(named), tuple(seat for seat in run.seats if seat in at_fault), blame.parties
    )

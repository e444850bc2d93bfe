"""Where each hospital stands toward a run: one record, shown the same everywhere.

It joins what the hospital said with what the federation knows: who is a member, suspended, away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from coordinator.errors import SuspendedError
from coordinator.federation.enrollment import INSIDE, EnrolledParty
from coordinator.runs.run_hospitals import HospitalAnswer, HospitalState
from pate_fed import wording

QUIET: Final = timedelta(minutes=10)
"""A hospital that asked nothing for so long is away: it asks about once a minute."""

BACK_AFTER: Final = timedelta(minutes=3)
"""A hospital that asked so long after it was found away is back, though no run has looked since."""


@dataclass(frozen=True, slots=True)
class HospitalStanding:
    """Where one hospital stands toward one run.

    Attributes:
        fingerprint: Of its identity: names may come again.
        state: What the run has of it, or misses.
        since: When it decided, was asked, or was last heard; None where nobody knows.
        code: Public code of its refusal, or of its suspension; empty if there is none.
        answer: What it said when it was asked last; None before. Its decision differs from `state`
            where the hospital went away after that, or was suspended.
        votes: Its votes in the run and those that its node has now, if they differ: it refuses a
            run with others than it has.
    """

    fingerprint: bytes
    hospital: str
    state: HospitalState
    since: datetime | None = None
    code: str = ""
    answer: HospitalAnswer | None = None
    votes: tuple[int, int] | None = None

    @property
    def votes_words(self) -> str:
        """How its votes differ from those of the run; empty if they do not."""
        return "" if self.votes is None else "{} votes in this run, {} now".format(*self.votes)

    @property
    def no_votes(self) -> int:
        """How many of its reports in the run held no votes."""
        return 0 if self.answer is None else self.answer.no_votes

    @property
    def no_votes_words(self) -> str:
        """The same, as a sentence without its end; empty if there are none."""
        return f"{wording.plural(self.no_votes, 'report')} held no votes" if self.no_votes else ""

    @property
    def said(self) -> str:
        """Its standing in one line, without its name."""
        said = _dated(self.state, self.since)
        if self.code:
            said += f" [{self.code}]"
        if self.votes_words:
            said += f"; {self.votes_words}"
        if self.answer is None:
            return said
        if self.answer.decision is not self.state:
            said += f"; before that {_dated(self.answer.decision, self.answer.decided_at)}"
        if self.answer.words:
            said += f": “{self.answer.words}”"
        return f"{said}; {self.no_votes_words}" if self.no_votes else said

    def as_table(self) -> dict[str, object]:
        """Return the values that `status` shows."""
        return {
            "hospital": self.hospital,
            "state": self.state.value,
            "since": _stated(self.since),
            "code": self.code,
            "words": self.answer.words if self.answer else "",
            "decision": self.answer.decision.value if self.answer else None,
            "decided_at": _stated(self.answer.decided_at) if self.answer else None,
            "votes": list(self.votes) if self.votes else None,
            "no_votes": self.no_votes,
        }


def offline_since(party: EnrolledParty, *, now: datetime) -> datetime | None:
    """Return since when nothing was heard of a hospital; None while it is there, or never was.

    Either a run finds that its node does not answer, or it has asked nothing for `QUIET`. A
    hospital that asked well after a run last looked is back.
    """
    seen = party.seen_at
    if party.away_since is not None and party.away_at is not None:
        if seen is None:
            return party.away_since
        if seen <= party.away_at + BACK_AFTER:
            return min(seen, party.away_since)
    return seen if seen is not None and now - seen > QUIET else None


def standings_of(
    hospitals: Mapping[bytes, str],
    *,
    is_ended: bool,
    parties: Iterable[EnrolledParty],
    answers: Mapping[bytes, HospitalAnswer],
    votes: Mapping[bytes, int],
    now: datetime,
) -> tuple[HospitalStanding, ...]:
    """Return where all hospitals of a run stand, in the order of their names.

    `hospitals` has their names, `answers` what they said last, and `votes` those that they have in
    the run, by fingerprint. Of a run that has ended only the answers count.
    """
    known = {one.identity.fingerprint: one for one in parties}
    found = [
        _standing(
            party,
            name,
            answers.get(party),
            known=known.get(party),
            votes=votes.get(party, 0),
            is_ended=is_ended,
            now=now,
        )
        for party, name in hospitals.items()
    ]
    return tuple(sorted(found, key=lambda one: one.hospital))


def _standing(
    fingerprint: bytes,
    name: str,
    answer: HospitalAnswer | None,
    *,
    known: EnrolledParty | None,
    votes: int,
    is_ended: bool,
    now: datetime,
) -> HospitalStanding:
    standing = HospitalStanding(fingerprint, name, HospitalState.NOT_ASKED)
    if answer is not None:
        said, at = answer.decision, answer.decided_at
        standing = HospitalStanding(fingerprint, name, said, at, answer.code, answer)
    if is_ended:
        return standing
    # Of a run about a named data set the number is one of these.
    is_known = known is None or votes in known.named_votes.values()
    if known is not None and not is_known and 0 < votes != known.votes > 0:
        standing = replace(standing, votes=(votes, known.votes))
    state, since, code = _obstacle(known, now=now)
    # A rejection stands, whether or not the node is there.
    if state is None or (
        state is HospitalState.OFFLINE and standing.state is HospitalState.REJECTED
    ):
        return standing
    return replace(standing, state=state, since=since, code=code)


def _obstacle(
    party: EnrolledParty | None, *, now: datetime
) -> tuple[HospitalState | None, datetime | None, str]:
    """Return why a hospital cannot be asked now, since when, and a code; None if it can."""
    if party is None or party.state not in INSIDE:
        return HospitalState.REVOKED, None, ""
    if party.state == "suspended":
        return HospitalState.SUSPENDED, None, SuspendedError.code
    if party.node_id is None:
        return HospitalState.NOT_LET_IN, None, ""
    since = offline_since(party, now=now)
    return (None if since is None else HospitalState.OFFLINE), since, ""


_SINCE: Final = frozenset({HospitalState.OFFLINE, HospitalState.UNDECIDED})


def _dated(state: HospitalState, at: datetime | None) -> str:
    if at is None:
        return state.value
    since = "since " if state in _SINCE else ""
    return f"{state.value} {since}{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _stated(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")

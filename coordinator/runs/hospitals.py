"""Where each hospital stands toward a run: one record, shown the same everywhere.

A hospital says what its people decided when it is asked about the run; that its node is there, any
run notes that looks for it. The rest is the federation's: who is a member, who is suspended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import select, update

from coordinator.database import Database, MemberRow, RunHospitalRow, RunRow, in_utc
from coordinator.errors import SuspendedError
from coordinator.federation.enrollment import INSIDE, EnrolledParty

UNDECIDED_CODES: Final = ("PF-314", "PF-322", "PF-325")
"""Codes of a hospital whose people have not decided on the pool or the run yet."""

REJECTED_CODE: Final = "PF-328"
"""Code of a hospital whose people rejected the pool or the run."""


class HospitalState(StrEnum):
    """Where a hospital stands toward a run."""

    APPROVED = "approved"
    UNDECIDED = "undecided"
    REJECTED = "rejected"
    REFUSES = "refuses"  # by its rules, a pause, a full disk: the code says why
    NOT_ASKED = "not asked"
    OFFLINE = "offline"
    NOT_LET_IN = "not let in"
    SUSPENDED = "suspended"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class HospitalAnswer:
    """What a hospital said when it was asked about a run.

    Attributes:
        code: Public code of its refusal; empty if it takes part.
        decided_at: When its people decided, or were asked; None where nobody was.
        words: What they wrote for the operator.
        is_signed: Whether it said so itself; else its answer could not be read.
    """

    code: str = ""
    decided_at: datetime | None = None
    words: str = ""
    is_signed: bool = True

    @property
    def decision(self) -> HospitalState:
        """What it comes to."""
        if not self.code:
            return HospitalState.APPROVED
        if self.code in UNDECIDED_CODES:
            return HospitalState.UNDECIDED
        return HospitalState.REJECTED if self.code == REJECTED_CODE else HospitalState.REFUSES


@dataclass(frozen=True, slots=True)
class HospitalStanding:
    """Where one hospital stands toward one run.

    Attributes:
        fingerprint: Of its identity: names may come again.
        hospital: Its name.
        state: What the run has of it, or misses.
        since: When it decided, was asked, or was last heard; None where nobody knows.
        code: Public code of its refusal, or of its suspension; empty if there is none.
        words: What its people wrote for the operator.
        decision: What it said when it was asked last; None before. It differs from `state` where
            the hospital went away after that, or was suspended.
        decided_at: When that was decided, or asked.
    """

    fingerprint: bytes
    hospital: str
    state: HospitalState
    since: datetime | None = None
    code: str = ""
    words: str = ""
    decision: HospitalState | None = None
    decided_at: datetime | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a run that is open waits for it."""
        return self.state is not HospitalState.APPROVED

    @property
    def said(self) -> str:
        """Its standing in one line, without its name."""
        said = _dated(self.state, self.since)
        if self.code:
            said += f" [{self.code}]"
        if self.decision not in (None, self.state):
            assert self.decision is not None
            said += f"; before that {_dated(self.decision, self.decided_at)}"
        return f"{said}: “{self.words}”" if self.words else said

    def as_table(self) -> dict[str, Any]:
        """Return the values that `status` shows."""
        return {
            "hospital": self.hospital,
            "state": self.state.value,
            "since": _stated(self.since),
            "code": self.code,
            "words": self.words,
            "decision": None if self.decision is None else self.decision.value,
            "decided_at": _stated(self.decided_at),
        }


class RunHospitals:
    """What hospitals said of each run, and whether their nodes are there.

    Args:
        database: The federation's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def answers(self, runs: Collection[int]) -> dict[int, dict[bytes, HospitalAnswer]]:
        """Return the last answers to the question about some runs.

        Args:
            runs: The runs' numbers.

        Returns:
            For each of these runs the answers of the hospitals that gave one, by fingerprint.
        """
        answers: dict[int, dict[bytes, HospitalAnswer]] = {run: {} for run in runs}
        # Compared here: databases bound the number of values in a statement.
        found = select(RunHospitalRow).where(
            RunHospitalRow.run.between(min(runs, default=0), max(runs, default=0))
        )
        with self._database.session() as session:
            for row in session.scalars(found):
                if row.run in answers:
                    at = None if row.decided_at is None else in_utc(row.decided_at)
                    answers[row.run][row.party] = HospitalAnswer(row.code, at, row.words)
        return answers

    def note_answers(self, name: str, answers: Mapping[bytes, HospitalAnswer]) -> None:
        """Keep answers of hospitals to a question about a run.

        Args:
            name: The run.
            answers: By fingerprint.
        """
        with self._database.session() as session:
            run = session.scalars(select(RunRow.number).where(RunRow.name == name)).one()
            for party, answer in answers.items():
                row = session.get(RunHospitalRow, (run, party))
                if row is None:
                    row = RunHospitalRow(run=run, party=party)
                    session.add(row)
                row.code, row.words = answer.code, answer.words
                row.decided_at = answer.decided_at

    def note_presence(
        self, *, there: Collection[bytes], away: Collection[bytes], now: datetime
    ) -> None:
        """Note whose nodes answer now, and whose do not.

        Args:
            there: Fingerprints of hospitals that are there.
            away: Fingerprints of those that are not.
            now: The time, with its zone.
        """
        is_back = MemberRow.fingerprint.in_(there) & MemberRow.away_at.is_not(None)
        with self._database.session() as session:
            session.execute(update(MemberRow).where(is_back).values(away_since=None, away_at=None))
            for row in session.scalars(select(MemberRow).where(MemberRow.fingerprint.in_(away))):
                row.away_since, row.away_at = row.away_since or now, now


def standings_of(
    hospitals: Mapping[bytes, str],
    *,
    is_ended: bool,
    parties: Iterable[EnrolledParty],
    answers: Mapping[bytes, HospitalAnswer],
    now: datetime,
) -> tuple[HospitalStanding, ...]:
    """Return where all hospitals of a run stand, in the order of their names.

    Args:
        hospitals: Names of its hospitals, by fingerprint.
        is_ended: Whether the run has ended: then only what they said counts.
        parties: All hospitals that ever asked to join.
        answers: Their last answers, by fingerprint.
        now: The time, with its zone.
    """
    known = {one.identity.fingerprint: one for one in parties}
    found = [
        _standing(
            party,
            name,
            answers.get(party),
            known=known.get(party),
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
    is_ended: bool,
    now: datetime,
) -> HospitalStanding:
    decision = None if answer is None else answer.decision
    decided_at = None if answer is None else answer.decided_at
    standing = HospitalStanding(
        fingerprint,
        name,
        decision or HospitalState.NOT_ASKED,
        decided_at,
        "" if answer is None else answer.code,
        "" if answer is None else answer.words,
        decision,
        decided_at,
    )
    if is_ended:
        return standing
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
    since = party.offline_since(now=now)
    return (None if since is None else HospitalState.OFFLINE), since, ""


_SINCE: Final = frozenset({HospitalState.OFFLINE, HospitalState.UNDECIDED})


def _dated(state: HospitalState, at: datetime | None) -> str:
    if at is None:
        return state.value
    since = "since " if state in _SINCE else ""
    return f"{state.value} {since}{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _stated(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")

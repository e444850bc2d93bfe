"""What hospitals said when they were asked about a run, and whether their nodes are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sqlalchemy import select, update

from coordinator.database import Database
from coordinator.database.federation_schema import MemberRow, RunHospitalRow, RunRow

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
        is_signed: Whether it said so itself; else its answer could not be read.
        no_votes: How many of its reports in the run held no votes.
    """

    code: str = ""
    decided_at: datetime | None = None
    words: str = ""
    is_signed: bool = True
    no_votes: int = 0

    @property
    def decision(self) -> HospitalState:
        """What it comes to."""
        if not self.code:
            return HospitalState.APPROVED
        if self.code in UNDECIDED_CODES:
            return HospitalState.UNDECIDED
        return HospitalState.REJECTED if self.code == REJECTED_CODE else HospitalState.REFUSES


class RunHospitals:
    """What hospitals said of each run, and whether their nodes are there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def answers(self, runs: Collection[int]) -> dict[int, dict[bytes, HospitalAnswer]]:
        """Return the last answers to the question about some runs, by run and fingerprint."""
        answers: dict[int, dict[bytes, HospitalAnswer]] = {run: {} for run in runs}
        # Compared here: databases bound the number of values in a statement.
        found = select(RunHospitalRow).where(
            RunHospitalRow.run.between(min(runs, default=0), max(runs, default=0))
        )
        with self._database.session() as session:
            for row in session.scalars(found):
                if row.run in answers:
                    answer = HospitalAnswer(
                        row.code, row.decided_at, row.words, no_votes=row.no_votes
                    )
                    answers[row.run][row.party] = answer
        return answers

    def note_answers(self, name: str, answers: Mapping[bytes, HospitalAnswer]) -> None:
        """Keep answers of hospitals, by fingerprint, to the question about a run."""
        with self._database.session() as session:
            run = session.scalars(select(RunRow.number).where(RunRow.name == name)).one()
            for party, answer in answers.items():
                row = session.get(RunHospitalRow, (run, party))
                if row is None:
                    row = RunHospitalRow(run=run, party=party)
                    session.add(row)
                row.code, row.words = answer.code, answer.words
                row.decided_at = answer.decided_at

    def note_no_votes(self, name: str, counts: Mapping[bytes, int]) -> None:
        """Keep how many reports of hospitals in a run held no votes, by fingerprint."""
        run = select(RunRow.number).where(RunRow.name == name).scalar_subquery()
        with self._database.session() as session:
            for party, count in counts.items():
                session.execute(
                    update(RunHospitalRow)
                    .where(RunHospitalRow.run == run, RunHospitalRow.party == party)
                    .values(no_votes=count)
                )

    def note_presence(
        self, *, there: Collection[bytes], away: Collection[bytes], now: datetime
    ) -> None:
        """Note whose nodes answer now, and whose do not, by fingerprint."""
        is_back = MemberRow.fingerprint.in_(there) & MemberRow.away_at.is_not(None)
        with self._database.session() as session:
            session.execute(update(MemberRow).where(is_back).values(away_since=None, away_at=None))
            for row in session.scalars(select(MemberRow).where(MemberRow.fingerprint.in_(away))):
                row.away_since, row.away_at = row.away_since or now, now

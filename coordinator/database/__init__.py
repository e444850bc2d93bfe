"""The coordinator's own database: SQLite in its folder, or PostgreSQL by URL.

Apart from Flower's: what must not be lost is here, and here alone.
"""

from coordinator.database.answers import Answer, ReleasedAnswers
from coordinator.database.engine import Database
from coordinator.database.run_attempt import RunAttempt
from coordinator.database.run_journal import SqlCoordinatorJournal
from coordinator.database.run_store import SqlRunStore
from coordinator.database.schema import (
    AttemptRow,
    Base,
    InvitationRow,
    MemberRow,
    RunRow,
    RunStepRow,
)

__all__ = [
    "Answer",
    "AttemptRow",
    "Base",
    "Database",
    "InvitationRow",
    "MemberRow",
    "ReleasedAnswers",
    "RunAttempt",
    "RunRow",
    "RunStepRow",
    "SqlCoordinatorJournal",
    "SqlRunStore",
]

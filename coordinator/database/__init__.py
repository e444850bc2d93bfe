"""The coordinator's own database: SQLite in its folder, or PostgreSQL by URL.

Apart from Flower's: the data that must not be lost are here, and here alone.
"""

from coordinator.database.answers import Answer, ReleasedAnswers
from coordinator.database.federation_audit_log import Actor, FederationAct, FederationAuditLog
from coordinator.database.federation_database import Database
from coordinator.database.run_attempt import RunAttempt
from coordinator.database.run_checks import (
    check_journal_of,
    erase_checks,
    sealing_key_of,
    stored_check,
)
from coordinator.database.run_journal import SqlCoordinatorJournal, unclosed_setups
from coordinator.database.run_store import RunStore

__all__ = [
    "Actor",
    "Answer",
    "Database",
    "FederationAct",
    "FederationAuditLog",
    "ReleasedAnswers",
    "RunAttempt",
    "RunStore",
    "SqlCoordinatorJournal",
    "check_journal_of",
    "erase_checks",
    "sealing_key_of",
    "stored_check",
    "unclosed_setups",
]

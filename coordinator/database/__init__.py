"""The coordinator's own database: SQLite in its folder, or PostgreSQL by URL.

Apart from Flower's: what must not be lost is here, and here alone.
"""

from coordinator.database.engine import Database
from coordinator.database.schema import Base, InvitationRow, MemberRow, QueuedRunRow

__all__ = ["Base", "Database", "InvitationRow", "MemberRow", "QueuedRunRow"]

"""A hospital's own database: what it answered, what it was charged, what its owner decided.

SQLite, in one file that nobody else reads. Nothing in it is a vote or a key.
"""

from party.storage.engine import PartyDatabase
from party.storage.journal import SqlJournal
from party.storage.ledger import SqlLedgerStore

__all__ = ["PartyDatabase", "SqlJournal", "SqlLedgerStore"]

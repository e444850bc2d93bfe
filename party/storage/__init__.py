"""A hospital's own database: its answers, its charges, its owner's decisions.

SQLite, in one file that nobody else reads. Nothing in it is a vote or a key.
"""

from party.storage.audit_log import SiteAuditLog
from party.storage.engine import PartyDatabase, has_node
from party.storage.journal import Journal
from party.storage.ledger import LedgerStore, charges_in, charges_of, is_budget_fixed, read_ledger
from party.storage.run_costs import RunCosts
from party.storage.sent import SentLog

__all__ = [
    "Journal",
    "LedgerStore",
    "PartyDatabase",
    "RunCosts",
    "SentLog",
    "SiteAuditLog",
    "charges_in",
    "charges_of",
    "has_node",
    "is_budget_fixed",
    "read_ledger",
]

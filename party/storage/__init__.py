"""A hospital's own database: its answers, its charges, its owner's decisions.

SQLite, in one file that nobody else reads. Nothing in it is a key. Of votes there
is, where records vote, how many each patient cast: `patient_votes`.
"""

from party.storage.journal import Journal
from party.storage.ledger_store import (
    LedgerStore,
    charges_in,
    charges_of,
    is_budget_fixed,
    read_ledger,
)
from party.storage.party_database import PartyDatabase, has_node
from party.storage.run_prices import RunPrices
from party.storage.sent import SentLog
from party.storage.site_audit_log import SiteAuditLog

__all__ = [
    "Journal",
    "LedgerStore",
    "PartyDatabase",
    "RunPrices",
    "SentLog",
    "SiteAuditLog",
    "charges_in",
    "charges_of",
    "has_node",
    "is_budget_fixed",
    "read_ledger",
]

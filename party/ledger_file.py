"""What a hospital was charged, for life, in one file of its own.

Every charge is on disk before what it pays for leaves. A ledger only goes on: no entry is lost or
settled twice, and its budget is the one of its first day.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from party.errors import LedgerFileError
from party.ledger_store import LedgerStore
from pate_fed.accounting import EntryState, LedgerEntry, PrivacyLedger
from pate_fed.errors import PateFedError
from protocols.chained_log import write_file


class FileLedgerStore(LedgerStore):
    """A party's ledger in a file. One process may have it open: the journal's lock sees to that.

    Args:
        path: The file; its folder must be there.
        budget: An empty ledger with the owner's budget, from which the first start makes it.

    Raises:
        LedgerFileError: it cannot be read or written, or it has another budget.
    """

    def __init__(self, path: Path, *, budget: PrivacyLedger) -> None:
        self._path = path
        if not path.exists():
            self._write(budget)
        self._ledger = read_ledger(path)
        if _budget_of(self._ledger) != _budget_of(budget):
            raise LedgerFileError(
                "a ledger must keep its budget for life: put the settings back",
                "another lifetime_epsilon or delta",
            )

    def load(self) -> PrivacyLedger:
        """See `LedgerStore.load`."""
        return self._ledger

    def save(self, ledger: PrivacyLedger) -> None:
        """See `LedgerStore.save`.

        Raises:
            LedgerFileError: a charge would be lost, or it cannot be written. The old one stays.
        """
        _require_continued(self._ledger, ledger)
        self._write(ledger)
        self._ledger = ledger

    def _write(self, ledger: PrivacyLedger) -> None:
        content = json.dumps(ledger.to_record(), indent=1, allow_nan=False) + "\n"
        try:
            write_file(self._path, content.encode())
        except OSError as error:
            raise LedgerFileError("a ledger must be writable", error.strerror) from error

    def __repr__(self) -> str:
        return f"FileLedgerStore(entries={len(self._ledger.entries)})"


def read_ledger(path: Path) -> PrivacyLedger:
    """Read a ledger, whoever has it open.

    Raises:
        LedgerFileError: it is not there, or not as it was written.
    """
    try:
        record: Any = json.loads(path.read_text("utf-8"))
        if not isinstance(record, dict):
            raise LedgerFileError("a ledger must be as it was written", "another kind")
        return PrivacyLedger.from_record(record)
    except OSError as error:
        raise LedgerFileError("a ledger must be readable", error.strerror) from error
    except (ValueError, TypeError, LookupError, RecursionError, PateFedError) as error:
        raise LedgerFileError("a ledger must be as it was written", type(error).__name__) from error


def _require_continued(before: PrivacyLedger, after: PrivacyLedger) -> None:
    if _budget_of(before) != _budget_of(after):
        raise LedgerFileError("a ledger must keep its budget for life", "another")
    if len(after.entries) < len(before.entries):
        raise LedgerFileError("a ledger must keep every entry", "fewer")
    for old, new in zip(before.entries, after.entries, strict=False):
        if old is not new and old != new and not _is_settled_by(old, new):
            raise LedgerFileError("an entry must be settled once", "a settled one changed")


def _is_settled_by(old: LedgerEntry, new: LedgerEntry) -> bool:
    is_same = (old.entry_id, old.reserved) == (new.entry_id, new.reserved)
    return old.state is EntryState.RESERVED and is_same


def _budget_of(ledger: PrivacyLedger) -> tuple[float, float, float | None, float]:
    return ledger.epsilon, ledger.delta, ledger.order, ledger.additive_delta

"""A hospital's charges in its database: the budget, and a row for each entry.

A charge and its record in the audit log are one transaction, and so are its end and the record of
that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select

from party.errors import RecordError, StorageDamagedError, StorageError
from party.storage.party_database import PartyDatabase
from party.storage.site_audit_log import SiteAct, SiteAuditLog
from party.storage.site_schema import (
    ClaimRow,
    EntryRow,
    LedgerBudgetRow,
    RunChargesRow,
    RunSetupRow,
)
from pate_fed.accounting import EntryState, LedgerEntry, PrivacyLedger
from pate_fed.charges import RunLedger
from pate_fed.errors import PateFedError
from pate_fed.nodes.database import put
from pate_fed.terms import RunTerms
from protocols.errors import ProtocolError
from protocols.values import decode_value, encode_value

_BUDGET = select(LedgerBudgetRow.record)
_NEW_BUDGET = insert(LedgerBudgetRow).values(number=1)
_ENTRIES = select(EntryRow.record).order_by(EntryRow.number)
_CHARGES = select(RunChargesRow).where(RunChargesRow.scope == bindparam("scope"))
_SCOPE = select(RunSetupRow.scope).where(RunSetupRow.run_id == bindparam("run"))
_ANY_CLAIM = select(ClaimRow.query).limit(1)


@dataclass(frozen=True, slots=True)
class RunCharges:
    """The charges of one run here, over all times that it was set up, within its caps.

    `scope` is the `RunScope.digest` of the run, `seat` this party's place among all, from 0.
    """

    scope: bytes
    seat: int
    ledger: RunLedger


class LedgerStore:
    """A party's ledger, for life. A charge is on disk when `save` returns.

    Anybody of the site may read it; only the node writes it, and no charge is ever lost from it.

    The first start makes it from `budget`, an empty ledger with the owner's, which is fixed then;
    None to read one that is there. Raises `RecordError` where there is none, though one is read or
    queries were answered; or it has another budget.
    """

    def __init__(
        self,
        database: PartyDatabase,
        *,
        budget: PrivacyLedger | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._log = SiteAuditLog(database)
        self._clock = clock
        self._saved: PrivacyLedger | None = None
        self._charges: dict[bytes, RunCharges] = {}
        with database.transaction() as connection:
            stored = connection.scalar(_BUDGET)
        if stored is None and budget is not None:
            with database.transaction() as connection:
                _require_nothing_answered(connection)
                connection.execute(_NEW_BUDGET, {"record": _budget_of(budget)})
            stored = _budget_of(budget)
            if budget.entries:
                self.save(budget)
        if stored is None:
            raise RecordError("a site must have a ledger: its first start makes one")
        if budget is not None and stored != _budget_of(budget):
            raise RecordError("a ledger must keep its budget for life")

    def load(self) -> PrivacyLedger:
        """Return the newest ledger for life."""
        if self._saved is None:
            ledger = self._read()
            if not self._database.is_node:  # another process may write it meanwhile
                return ledger
            self._saved = ledger
        return self._saved

    def charges(self, scope: bytes) -> RunCharges | None:
        """Return the charges of a run; None if it was never set up."""
        return self._charges.get(scope) or charges_in(self._database, scope)

    def charges_of(self, run_id: bytes) -> RunCharges | None:
        """Return the same of the run that was once set up under an id."""
        scope = _scope_of(self._database, run_id)
        return None if scope is None else self.charges(scope)

    def save(self, ledger: PrivacyLedger) -> None:
        """Replace the ledger for life; raises as `save_run` does."""
        self._save(ledger, {})

    def save_run(self, ledger: PrivacyLedger, charges: RunCharges, *, run_id: bytes) -> None:
        """Replace the ledger for life and a run's, in one step, unless a charge would be lost."""
        self._save(ledger, {run_id: charges})

    def _save(self, ledger: PrivacyLedger, runs: Mapping[bytes, RunCharges]) -> None:
        if not self._database.is_node:
            raise StorageError("only the node may charge", "another process")
        before = self.load()
        _require_continued(before, ledger)
        changed = ledger.changed_since(before)
        self._saved = None  # if this fails, the state on disk counts
        self._charges.clear()
        used = repr(ledger.used_share())
        with self._database.transaction() as connection:
            for place, record in changed.items():
                entry, text = ledger.entries[place], json.dumps(record, sort_keys=True)
                row = {"number": place, "entry_id": entry.entry_id, "record": text}
                put(connection, EntryRow, row)
                self._note(connection, entry, is_new=place >= len(before.entries), used=used)
            for run_id, charges in runs.items():
                put(connection, RunChargesRow, _row_of(charges))
                put(connection, RunSetupRow, {"run_id": run_id, "scope": charges.scope})
        self._saved = ledger
        self._charges.update({charges.scope: charges for charges in runs.values()})

    def _note(self, connection: Connection, entry: LedgerEntry, *, is_new: bool, used: str) -> None:
        at = self._clock()
        if is_new:
            charge = {"charge": entry.entry_id, "price": repr(entry.reserved)}
            charged = {**charge, "lifetime_share": used}
            self._log.append(SiteAct.CHARGED, charged, at=at, connection=connection)
        if entry.state is not EntryState.RESERVED:
            charge = {"charge": entry.entry_id, "state": entry.state.value}
            settled = {**charge, "lifetime_share": used}
            self._log.append(SiteAct.SETTLED, settled, at=at, connection=connection)

    def _read(self) -> PrivacyLedger:
        with self._database.transaction() as connection:
            budget = connection.scalar(_BUDGET)
            entries = connection.scalars(_ENTRIES).all()
        if budget is None:
            raise StorageDamagedError("a ledger must have its budget")
        try:
            record = {**json.loads(budget), "entries": [json.loads(each) for each in entries]}
            return PrivacyLedger.from_record(record)
        except (ValueError, TypeError, LookupError, PateFedError) as error:
            raise StorageDamagedError("a ledger must be readable") from error


def is_budget_fixed(database: PartyDatabase) -> bool:
    """Tell whether a start has fixed the budget for life."""
    with database.transaction() as connection:
        return connection.scalar(_BUDGET) is not None


def read_ledger(database: PartyDatabase, *, budget: PrivacyLedger) -> PrivacyLedger:
    """Return the charges, for a reader beside the node; `budget` where the node never started."""
    with database.transaction() as connection:
        if connection.scalar(_BUDGET) is None:
            _require_nothing_answered(connection)
            return budget
    return LedgerStore(database).load()


def charges_of(database: PartyDatabase, run_id: bytes) -> RunCharges | None:
    """Return the charges of the run that was set up under an id, for a reader beside the node."""
    scope = _scope_of(database, run_id)
    return None if scope is None else charges_in(database, scope)


def charges_in(database: PartyDatabase, scope: bytes) -> RunCharges | None:
    """Return the charges of a run of this scope; None if it was never set up."""
    with database.transaction() as connection:
        row = connection.execute(_CHARGES, {"scope": scope}).one_or_none()
    return None if row is None else _charges_of(row)


def _scope_of(database: PartyDatabase, run_id: bytes) -> bytes | None:
    with database.transaction() as connection:
        return connection.scalar(_SCOPE, {"run": run_id})


def _row_of(charges: RunCharges) -> dict[str, object]:
    ledger = charges.ledger
    return {
        "scope": charges.scope,
        "seat": charges.seat,
        "terms": encode_value(ledger.terms.as_record()),
        "record": json.dumps(ledger.to_record(), sort_keys=True),
    }


def _charges_of(row: Row[Any]) -> RunCharges:
    try:
        terms = RunTerms.from_record(decode_value(row.terms))
        ledger = RunLedger.of(terms, at_party=True).with_record(json.loads(row.record))
    except (ValueError, TypeError, LookupError, PateFedError, ProtocolError) as error:
        raise StorageDamagedError("a run's charges must be readable") from error
    return RunCharges(row.scope, row.seat, ledger)


def _require_nothing_answered(connection: Connection) -> None:
    """A new ledger would forget the charges of the answered queries."""
    if connection.scalar(_ANY_CLAIM) is not None:
        raise RecordError("the ledger must be there: queries were answered")


def _require_continued(before: PrivacyLedger, after: PrivacyLedger) -> None:
    """A ledger goes on from the stored one: entries are added, and open ones are settled."""
    if _budget_of(before) != _budget_of(after):
        raise RecordError("a ledger must keep its budget for life")
    if len(after.entries) < len(before.entries):
        raise RecordError("a ledger must keep every entry")
    for old, new in zip(before.entries, after.entries, strict=False):
        if old is new or old == new:
            continue
        is_same = (old.entry_id, old.reserved) == (new.entry_id, new.reserved)
        if old.state is not EntryState.RESERVED or not is_same:
            raise RecordError("an entry must be settled once")


def _budget_of(ledger: PrivacyLedger) -> str:
    record: dict[str, object] = {**ledger.to_record(), "entries": []}
    return json.dumps(record, sort_keys=True)

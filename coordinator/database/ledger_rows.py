"""A run's ledger as rows: its caps once, and one row for each entry.

A change writes the entries that it changes. Rows that do not fit are a `RunDamagedError`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select

from coordinator.database.federation_schema import RunCapsRow, RunEntryRow
from coordinator.errors import RunDamagedError
from pate_fed.accounting import OutcomeLedger
from pate_fed.charges import RunLedger
from pate_fed.errors import LedgerError
from pate_fed.nodes.database import put

_CAPS = select(RunCapsRow.record).where(RunCapsRow.run == bindparam("run"))
_NEW_CAPS = insert(RunCapsRow)
_ENTRIES = (
    select(RunEntryRow).where(RunEntryRow.run == bindparam("run")).order_by(RunEntryRow.number)
)


def read_ledger(connection: Connection, run: int, *, empty: RunLedger) -> RunLedger:
    """Return the stored ledger of a run, of the same caps as an empty one; store a new run's."""
    caps = json.dumps(empty.outcomes.to_record(), sort_keys=True)
    stored = connection.scalar(_CAPS, {"run": run})
    if stored is None:
        connection.execute(_NEW_CAPS, {"run": run, "record": caps})
    elif stored != caps:
        raise RunDamagedError("a run's results must be of its terms")
    entries: list[Any] = []
    for row in connection.execute(_ENTRIES, {"run": run}):
        if row.number != len(entries):
            raise RunDamagedError("a ledger must have all its entries")
        entries.append(json.loads(row.record))
    record = {**empty.outcomes.to_record(), "entries": entries}
    return replace(empty, outcomes=OutcomeLedger.from_record(record))


def write_ledger(connection: Connection, run: int, *, before: RunLedger, after: RunLedger) -> None:
    """Write the entries that differ from the stored ones."""
    try:
        changed = after.outcomes.changed_since(before.outcomes)
    except LedgerError as error:
        raise RunDamagedError(error.must, error.got) from error
    for place, record in changed.items():
        row = {"run": run, "number": place, "record": json.dumps(record, sort_keys=True)}
        put(connection, RunEntryRow, row)

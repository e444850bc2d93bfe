"""A run's ledger as rows: its budgets once, and one row for each entry of each part.

A change writes the entries that it changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from sqlalchemy import Connection, bindparam, insert, select

from coordinator.database.schema import RunBudgetRow, RunEntryRow
from coordinator.errors import RunDamagedError
from pate_fed.accounting import OutcomeLedger, PrivacyLedger
from pate_fed.charging import RunLedger
from pate_fed.nodes.database import put

_OUTCOMES_PART = -1

_BUDGETS = select(RunBudgetRow).where(RunBudgetRow.run == bindparam("run"))
_NEW_BUDGET = insert(RunBudgetRow)
_ENTRIES = (
    select(RunEntryRow)
    .where(RunEntryRow.run == bindparam("run"))
    .order_by(RunEntryRow.part, RunEntryRow.number)
)

_Part: TypeAlias = PrivacyLedger | OutcomeLedger


def read_ledger(connection: Connection, run: int, *, empty: RunLedger) -> RunLedger:
    """Return the stored ledger of a run, of the same budgets as an empty one; store a new run's.

    Raises:
        RunDamagedError: it is of other terms, or has a gap.
    """
    budgets = {part: _budget_of(each) for part, each in _parts(empty)}
    stored = {row.part: row.record for row in connection.execute(_BUDGETS, {"run": run})}
    if not stored:
        new = [{"run": run, "part": part, "record": record} for part, record in budgets.items()]
        connection.execute(_NEW_BUDGET, new)
    elif stored != budgets:
        raise RunDamagedError("a run's results must be of its terms", "others")
    entries: dict[int, list[Any]] = {part: [] for part in budgets}
    for row in connection.execute(_ENTRIES, {"run": run}):
        if row.number != len(entries[row.part]):
            raise RunDamagedError("a ledger must have all its entries", "a gap")
        entries[row.part].append(json.loads(row.record))
    return replace(
        empty,
        costs=tuple(
            PrivacyLedger.from_record({**cost.to_record(), "entries": entries[part]})
            for part, cost in enumerate(empty.costs)
        ),
        outcomes=OutcomeLedger.from_record(
            {**empty.outcomes.to_record(), "entries": entries[_OUTCOMES_PART]}
        ),
    )


def write_ledger(connection: Connection, run: int, *, before: RunLedger, after: RunLedger) -> None:
    """Write the entries that differ from the stored ones.

    Raises:
        RunDamagedError: it lacks an entry of the stored one.
    """
    stored = dict(_parts(before))
    for part, ledger in _parts(after):
        for place, record in _changed_entries(stored[part], ledger):
            row = {"run": run, "part": part, "number": place, "record": record}
            put(connection, RunEntryRow, row)


def _parts(ledger: RunLedger) -> Iterable[tuple[int, _Part]]:
    yield from enumerate(ledger.costs)
    yield _OUTCOMES_PART, ledger.outcomes


def _budget_of(part: _Part) -> str:
    return json.dumps({**part.to_record(), "entries": []}, sort_keys=True)


def _changed_entries(before: _Part, after: _Part) -> Iterator[tuple[int, str]]:
    """Return place and record of each entry that is new or was settled."""
    if len(after.entries) < len(before.entries):
        raise RunDamagedError("a ledger must keep every entry", "fewer")
    # An unchanged entry is the same object, so this compares few.
    places = [
        place
        for place, entry in enumerate(after.entries)
        if place >= len(before.entries) or entry != before.entries[place]
    ]
    if not places:
        return
    entries: Any = tuple(after.entries[place] for place in places)
    records = replace(after, entries=entries).to_record()["entries"]
    assert isinstance(records, list)
    for place, record in zip(places, records, strict=True):
        yield place, json.dumps(record, sort_keys=True)

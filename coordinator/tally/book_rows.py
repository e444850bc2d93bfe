"""A tally's runs, batches and charges in its database. Keys and steps are erased in time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from coordinator.database.check_rows import steps_in
from coordinator.errors import OpenedRowError, RunDamagedError, UnknownOfferError
from coordinator.tally.heads import extend_head, forget_heads
from coordinator.tally.served_run import ServedRun
from coordinator.tally.tally_database import TallyDatabase
from coordinator.tally.tally_schema import (
    TallyBatchRow,
    TallyLedgerRow,
    TallyOpenedRow,
    TallyRunRow,
    TallyStepRow,
)
from pate_fed.accounting import Outcomes
from pate_fed.charges import RunLedger
from pate_fed.errors import PateFedError
from pate_fed.nodes.database import parts_of, put
from protocols.envelope import SealingKey
from protocols.errors import SuiteError
from protocols.identity import PublicIdentity
from protocols.verified import CheckStep

_RUN = select(TallyRunRow).where(TallyRunRow.offer == bindparam("offer"))
_LEDGER = select(TallyLedgerRow.record).where(TallyLedgerRow.scope == bindparam("scope"))
_RUN_OF_PLAN = (
    select(TallyRunRow.suite, TallyRunRow.key, TallyRunRow.record, TallyBatchRow.plan)
    .join(TallyBatchRow, TallyBatchRow.offer == TallyRunRow.offer)
    .where(TallyBatchRow.plan_digest == bindparam("plan_digest"))
)


@dataclass(frozen=True, slots=True)
class StatedRun:
    """A run for which the tally stated a key.

    Attributes:
        statement: Frame of its `KeyStatement`.
        key: None once it is erased.
    """

    statement: bytes
    suite: str
    expires_at: int
    key: SealingKey | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class NotedBatch:
    """A plan's frames and steps, as an audit needs them."""

    record: bytes
    plan: bytes
    key: SealingKey | None = field(repr=False)
    steps: tuple[CheckStep, ...] = field(repr=False)


def stated_run(connection: Connection, offer: bytes) -> StatedRun | None:
    """Return what was stated for an offer, by its digest."""
    row = connection.execute(_RUN, {"offer": offer}).one_or_none()
    if row is None:
        return None
    return StatedRun(row.statement, row.suite, row.expires_at, _key_of(row))


def note_statement(
    connection: Connection, offer: bytes, *, statement: bytes, key: SealingKey, expires_at: int
) -> None:
    """Note a statement before it is sent."""
    row = {
        "offer": offer,
        "statement": statement,
        "key": key.private_bytes,
        "suite": key.suite,
        "expires_at": expires_at,
    }
    connection.execute(insert(TallyRunRow), row)


def note_plan(connection: Connection, run: ServedRun, plan_digest: bytes, frame: bytes) -> None:
    """Note a plan, and its run's record: no other record of its offer is served any more."""
    known = connection.execute(_RUN, {"offer": run.record.offer_digest}).one()
    if known.run_id not in (None, run.run_id):
        raise UnknownOfferError("an offer must lead to one record", "another one")
    values = {"run_id": run.run_id, "scope": run.scope, "record": run.frame}
    connection.execute(
        update(TallyRunRow).where(TallyRunRow.offer == run.record.offer_digest).values(**values)
    )
    row = {"plan_digest": plan_digest, "offer": run.record.offer_digest, "plan": frame}
    connection.execute(insert(TallyBatchRow), row)


def note_rejected(connection: Connection, plan_digest: bytes, hospitals: Iterable[bytes]) -> None:
    """Note whose reports of a plan hold no votes, for the status."""
    connection.execute(
        update(TallyBatchRow)
        .where(TallyBatchRow.plan_digest == plan_digest)
        .values(rejected=json.dumps([one.hex() for one in hospitals]))
    )


def read_charges(connection: Connection, run: ServedRun) -> RunLedger:
    """Return what a run was charged over all its setups; `RunDamagedError` if unreadable."""
    empty = RunLedger.of(run.terms)
    stored = connection.scalar(_LEDGER, {"scope": run.scope})
    try:
        return empty if stored is None else empty.with_record(json.loads(stored))
    except (ValueError, LookupError, TypeError, PateFedError) as error:
        raise RunDamagedError("a run's charges must be readable") from error


def require_unopened(connection: Connection, run: ServedRun, places: tuple[int, ...]) -> None:
    """Refuse, with `OpenedRowError`, rows of which one was opened before."""
    for some in parts_of(places):
        found = connection.scalar(
            select(TallyOpenedRow.place)
            .where(TallyOpenedRow.scope == run.scope, TallyOpenedRow.place.in_(some))
            .limit(1)
        )
        if found is not None:
            raise OpenedRowError("a row must be opened once in a run", f"row {found} again")


def note_opened(
    connection: Connection,
    run: ServedRun,
    plan_digest: bytes,
    *,
    places: tuple[int, ...],
    charges: RunLedger,
) -> None:
    """Note the opened rows of a plan with the charges after it, in the transaction that opens."""
    require_unopened(connection, run, places)
    rows = [{"scope": run.scope, "place": one, "plan_digest": plan_digest} for one in places]
    connection.execute(insert(TallyOpenedRow), rows)
    record = json.dumps(charges.to_record(), sort_keys=True)
    put(connection, TallyLedgerRow, {"scope": run.scope, "record": record})


def noted_batch(connection: Connection, plan_digest: bytes) -> NotedBatch | None:
    """Return a plan that was noted; without key and steps once they are erased."""
    row = connection.execute(_RUN_OF_PLAN, {"plan_digest": plan_digest}).one_or_none()
    if row is None:
        return None
    steps = steps_in(connection, TallyStepRow, plan_digest)
    return NotedBatch(row.record, row.plan, _key_of(row), steps)


@dataclass(frozen=True, slots=True)
class RunStanding:
    """What a tally's people see of a run, over all its setups.

    Attributes:
        name: The coordinator's for it.
        hospitals: Their number.
        expires_at: Unix seconds; of its last setup.
        plans: Digest of each plan that came, and whether it was opened.
        rejected: By a hospital's fingerprint: number of its reports without votes.
        charged: Against its caps.
        caps: The caps.
    """

    name: str
    hospitals: int
    expires_at: int
    plans: dict[bytes, bool]
    rejected: Counter[str]
    charged: Outcomes
    caps: Outcomes


def run_standings(
    connection: Connection, *, coordinator: PublicIdentity
) -> tuple[RunStanding, ...]:
    """Return each run's standing, in the order in which they came."""
    found: dict[bytes, list[Any]] = {}
    every = (
        select(
            TallyRunRow.scope,
            TallyRunRow.record,
            TallyBatchRow.plan_digest,
            TallyBatchRow.rejected,
        )
        .join(TallyBatchRow, TallyBatchRow.offer == TallyRunRow.offer)
        .order_by(TallyRunRow.expires_at)
    )
    for row in connection.execute(every):
        found.setdefault(row.scope, []).append(row)
    opened = set(connection.scalars(select(TallyOpenedRow.plan_digest).distinct()))
    return tuple(
        _standing_of(connection, rows, opened, coordinator=coordinator) for rows in found.values()
    )


def _standing_of(
    connection: Connection, rows: list[Any], opened: set[bytes], *, coordinator: PublicIdentity
) -> RunStanding:
    run = ServedRun.of(rows[-1].record, coordinator=coordinator)
    ledger = read_charges(connection, run).outcomes
    rejected = Counter(one for row in rows for one in json.loads(row.rejected or "[]"))
    return RunStanding(
        run.terms.name,
        len(run.votes),
        run.record.expires_at,
        {row.plan_digest: row.plan_digest in opened for row in rows},
        rejected,
        Outcomes(ledger.asks, ledger.answers),
        ledger.caps,
    )


def plans_named(connection: Connection, digits: str) -> tuple[bytes, ...]:
    """Return the digests of noted plans that begin with these hexadecimal digits."""
    every = connection.scalars(select(TallyBatchRow.plan_digest))
    return tuple(one for one in every if one.hex().startswith(digits.lower()))


def erase_ended(database: TallyDatabase, *, ended_before: int) -> int:
    """Erase keys and steps of runs that expired before a moment, in Unix seconds.

    What was opened and charged stays. Returns the number of keys.
    """
    ended = select(TallyRunRow.offer).where(TallyRunRow.expires_at < ended_before)
    plans = select(TallyBatchRow.plan_digest).where(TallyBatchRow.offer.in_(ended))
    with database.transaction() as connection:
        connection.execute(delete(TallyStepRow).where(TallyStepRow.plan_digest.in_(plans)))
        erased = connection.execute(
            update(TallyRunRow)
            .where(TallyRunRow.expires_at < ended_before, TallyRunRow.key.is_not(None))
            .values(key=None)
        ).rowcount
        if erased:
            extend_head(connection)
    if erased:
        database.forget_erased()
    return erased


def take_restored(database: TallyDatabase, *, ends_runs: bool) -> int:
    """Go on from the head that the coordinator carries next; return the number of ended runs.

    Where this database is the older copy it `ends_runs`: their keys are erased, so that no report
    meets a second coin.
    """
    with database.transaction() as connection:
        forget_heads(connection)
        if not ends_runs:
            return 0
        ended = connection.execute(
            update(TallyRunRow).where(TallyRunRow.key.is_not(None)).values(key=None)
        ).rowcount
    database.forget_erased()
    return ended


def _key_of(row: Any) -> SealingKey | None:
    if row.key is None:
        return None
    try:
        return SealingKey.from_private_bytes(row.suite, row.key)
    except SuiteError as error:
        raise RunDamagedError("the key of a run's votes must be readable") from error

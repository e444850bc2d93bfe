"""The steps of a batch's check in a database: the coordinator's and the tally's have one form.

A step is on disk when `append` returns. Steps are erased with their keys once nobody may ask about
them any more: what was released, and its charge, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeAlias

from sqlalchemy import Connection, LargeBinary, bindparam, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from coordinator.errors import RunDamagedError
from protocols.errors import ProtocolError
from protocols.values import decode_value, encode_value
from protocols.verified import (
    CheckJournal,
    CheckStep,
    Exchanged,
    check_step_from_record,
    check_step_to_record,
)

Transaction: TypeAlias = Callable[[], AbstractContextManager[Connection]]
Charge: TypeAlias = Callable[[Connection, Exchanged, tuple[bytes, ...]], None]
"""Charges in the transaction of the step that opens a sum; raises to refuse."""


class CheckStepColumns:
    """Columns of a table of steps, from 0: each a `check_step_to_record` as canonical CBOR."""

    __tablename__ = "check_steps"

    plan_digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class SqlCheckJournal(CheckJournal):
    """The steps of one plan.

    Args:
        transaction: Of the database, or of the one who may write a run in it.
        table: With the columns of `CheckStepColumns`.
        plan_digest: Of the plan.
        more: Values of further columns of a row.
        along: Called with each step's number, in its transaction; raises to refuse.
        charge: Called before the sum opens. None where its ledger holds the batch already.

    Raises:
        RunDamagedError: steps are missing, or cannot be read.
    """

    def __init__(
        self,
        transaction: Transaction,
        table: type[DeclarativeBase],
        plan_digest: bytes,
        *,
        more: Mapping[str, object] | None = None,
        along: Callable[[Connection, int], None] | None = None,
        charge: Charge | None = None,
    ) -> None:
        self._transaction, self._table, self._plan = transaction, table, plan_digest
        self._more, self._along, self._charge = dict(more or {}), along, charge
        with transaction() as connection:
            self._steps = list(steps_in(connection, table, plan_digest))

    def append(self, step: CheckStep) -> None:
        """See `CheckJournal.append`."""
        with self._transaction() as connection:
            self._write(connection, step)
        self._steps.append(step)

    def append_charged(self, step: Exchanged, *, accepted: tuple[bytes, ...]) -> None:
        """See `CheckJournal.append_charged`."""
        with self._transaction() as connection:
            if self._charge is not None:
                self._charge(connection, step, accepted)
            self._write(connection, step)
        self._steps.append(step)

    def steps(self) -> tuple[CheckStep, ...]:
        """See `CheckJournal.steps`."""
        return tuple(self._steps)

    def _write(self, connection: Connection, step: CheckStep) -> None:
        number = len(self._steps)
        if self._along is not None:
            self._along(connection, number)
        word, values = check_step_to_record(step)
        body = encode_value([word, list(values)])
        row = {"plan_digest": self._plan, "number": number, "body": body, **self._more}
        # A key that is there: another process wrote this step, and its bytes may have left.
        connection.execute(insert(self._table), row)


def steps_in(
    connection: Connection, table: type[DeclarativeBase], plan_digest: bytes
) -> tuple[CheckStep, ...]:
    """Return the steps of a plan, oldest first; raises as `SqlCheckJournal` does."""
    columns = table.__table__.c
    found = connection.execute(
        select(columns.number, columns.body)
        .where(columns.plan_digest == bindparam("plan"))
        .order_by(columns.number),
        {"plan": plan_digest},
    ).all()
    if [row.number for row in found] != list(range(len(found))):
        raise RunDamagedError("the steps of a check must all be there")
    return tuple(_step(row.body) for row in found)


def _step(body: bytes) -> CheckStep:
    try:
        word, values = decode_value(body)
        return check_step_from_record(word, tuple(values))
    except (ProtocolError, TypeError, ValueError) as error:
        raise RunDamagedError("the steps of a check must be readable") from error

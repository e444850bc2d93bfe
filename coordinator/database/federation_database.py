"""A federation's database: SQLite in its folder, or PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator.database.federation_schema import CoordinatorRow
from coordinator.errors import DatabaseError, DatabaseVersionError
from pate_fed.nodes.database import PATIENCE_S, NodeDatabase

_LET_IN = (
    "the database's server must let us in: correct user and password in PATE_FED_DATABASE_URL or "
    "~/.pgpass, or the server's own rules"
)
_LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's code for a lock that another transaction held for too long."""

_TRANSACTION_LOCK = 0x66656431
"""Any number, the same for all who use one database."""

_WHOLE: ContextVar[tuple[object, Connection] | None] = ContextVar("_WHOLE", default=None)
"""The database and transaction of `Database.as_one`, if this thread is in one."""


class Database(NodeDatabase):
    """A federation's database; see `NodeDatabase`.

    Takes "sqlite:///..." or "postgresql://...". Upgrades only where its caller says so. Raises
    `DatabaseError`, and `DatabaseVersionError` where another version of this program wrote it.
    """

    package = "coordinator.database"
    newest = "0001"
    tables = CoordinatorRow.metadata
    fault = damage_fault = DatabaseError
    version_fault = DatabaseVersionError
    emptied = "the database must hold its earlier data: restore a backup"
    pragmas = ("secure_delete=ON",)  # keys of votes are erased
    outdated = (
        "the database must be brought up to date: back it up, then `pate-fed upgrade`, or "
        "`pate-fed serve`, which does so when it starts"
    )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the body as a whole, or as a part of the open `as_one`; see `NodeDatabase`."""
        whole = _WHOLE.get()
        if whole is not None and whole[0] is self:
            yield whole[1]
            return
        with super().transaction() as connection:
            yield connection

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Run the body as a whole: all transactions that this thread makes in it are one.

        After an error in one of them, let the error pass: nothing of the body is stored.
        """
        with self.transaction() as connection:
            token = _WHOLE.set((self, connection))
            try:
                yield
            finally:
                _WHOLE.reset(token)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Run the body as a whole, as `transaction` does, on mapped rows."""
        with self.transaction() as connection, Session(connection) as session:
            yield session
            session.flush()

    def _connected(self, url: URL, *, is_new: bool) -> Engine:
        if url.get_backend_name() == "sqlite":
            return super()._connected(url, is_new=is_new)
        if url.drivername == "postgresql":  # as everybody writes it; the driver is ours
            url = url.set(drivername="postgresql+psycopg")
        try:
            engine = create_engine(url)
        except SQLAlchemyError as error:
            raise DatabaseError("a database must have a URL") from error
        except ImportError as error:  # only now is the driver looked for
            raise DatabaseError(
                "the driver of a database must be installed: pate-fed[postgres] has PostgreSQL's",
            ) from error
        event.listen(engine, "begin", _wait_for_disk_and_others)
        return engine

    def _refusal_of(self, error: BaseException | None) -> tuple[str, str] | None:
        """See `NodeDatabase`. A server's text is read, never repeated: any language, any values."""
        busy = getattr(error, "sqlite_errorname", ""), getattr(error, "sqlstate", "")
        if busy[0] == "SQLITE_BUSY" or busy[1] == _LOCK_NOT_AVAILABLE:
            return f"the database must be free within {PATIENCE_S} seconds: try again", "a busy one"
        connection = getattr(error, "pgconn", None)
        if connection is None or getattr(error, "sqlstate", None) is not None:
            return None  # no server's, or of one that had let us in
        text = str(error)
        if "FATAL" not in text and not (connection.used_password or connection.needs_password):
            must = "the database's server must be reachable: does it run, and at this address?"
            return must, "none"
        if "does not exist" in text and "database" in text:
            return "the database must be there: make it on its server, empty", "none of this name"
        if connection.needs_password:
            return _LET_IN, "no password, which the server asks for"
        if "password authentication failed" in text or connection.used_password:
            return _LET_IN, "a user or a password that it refuses"
        return _LET_IN, "a refusal of this user, from this machine"


def _wait_for_disk_and_others(connection: Connection) -> None:
    """Begin a transaction: its commit waits for the disk, and it waits for all others.

    A server may be set up to lose the last moments: a charge must not be among them. Transactions
    are one after the other, as SQLite has them: a value read must hold when the change is written.
    So have those who upgrade it. All is one message to the server, which every transaction pays.
    """
    connection.exec_driver_sql(
        f"SET LOCAL synchronous_commit TO ON; SET LOCAL lock_timeout = '{PATIENCE_S}s'; "
        f"SELECT pg_advisory_xact_lock({_TRANSACTION_LOCK})"
    )

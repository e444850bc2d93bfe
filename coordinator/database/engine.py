"""Opens the database, brings it up to date where that is wanted, runs transactions in it."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    create_engine,
    event,
    inspect,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator.errors import DatabaseError, DatabaseVersionError

NEWEST: Final = "0001"
"""The newest migration in `migrations/versions`."""

_OWNER_ONLY = 0o600
_PUT_BACK = "the database must hold what it held: put a backup of it back"
_LET_IN = (
    "the database's server must let us in: correct user and password in PATE_FED_DATABASE_URL or "
    "~/.pgpass, or the server's own rules"
)
_UPGRADE_LOCK = 0x70617465
"""Any number, the same for all who upgrade one database."""

_TRANSACTION_LOCK = 0x66656431
"""Any other number, the same for all who use one database."""


class Database:
    """A federation's database, of this version.

    Args:
        url: As SQLAlchemy takes it, "sqlite:///..." or "postgresql://...". Secret: it may hold a
            password, which is in no error.
        is_new: Make its tables: once, with the federation. One without them was emptied, and would
            know no member, and nothing that was answered or charged.
        upgrades: Bring one of an older version up to date; only who says so does, since there is
            no way back but a backup.

    Raises:
        DatabaseVersionError: it is of a newer version of this program, or of an older one and
            nobody said that it may be upgraded.
        DatabaseError: it cannot be opened or written; it holds nothing, or holds something and is
            to be new.
    """

    def __init__(self, url: str, *, is_new: bool = False, upgrades: bool = False) -> None:
        self._engine = _open(url, is_new=is_new)
        try:
            there = _reported("the database must be there and writable")
            with there, self._engine.begin() as connection:
                _bring_up_to_date(connection, is_new=is_new, upgrades=upgrades)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run what follows as a whole: all of it is on disk at the end, or nothing is.

        Raises:
            DatabaseError: it could not be stored: nothing was.
        """
        with (
            _reported("the database must store what it is given"),
            Session(self._engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    def try_to_write(self) -> None:
        """Write as a transaction would, and take it back: nothing is changed.

        Raises:
            DatabaseError: it could not be written.
        """
        with _reported("the database must store what it is given"), self._engine.connect() as one:
            one.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
            one.rollback()

    def close(self) -> None:
        """Let go of its connections."""
        self._engine.dispose()

    def __repr__(self) -> str:
        return f"Database({self._engine.dialect.name})"


def _open(url: str, *, is_new: bool) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":  # as everybody writes it; the driver is ours
            parsed = parsed.set(drivername="postgresql+psycopg")
        is_sqlite = parsed.get_backend_name() == "sqlite"
        if is_sqlite:
            _find_file(parsed, is_new=is_new)
        engine = create_engine(parsed)
    except (ArgumentError, SQLAlchemyError) as error:
        raise DatabaseError("a database must have a URL", "another text") from error
    except ImportError as error:  # only now is the driver looked for
        raise DatabaseError(
            "the driver of a database must be installed: pate-fed[postgres] has PostgreSQL's",
            "none",
        ) from error
    if is_sqlite:
        event.listen(engine, "connect", _make_durable)
        event.listen(engine, "begin", _lock_at_once)
        event.listen(engine, "handle_error", _open_anew)
    else:
        event.listen(engine, "begin", _wait_for_the_disk)
        event.listen(engine, "begin", _lock_for_others)
    return engine


def _find_file(url: URL, *, is_new: bool) -> None:
    """Look for the file, and never open one that is there.

    Closing a file drops the locks that SQLite has on it in this process: the next process would
    take itself for the last one, and remove what is written ahead.
    Source: https://www.sqlite.org/howtocorrupt.html, section 2.2.
    """
    if url.database in (None, "", ":memory:"):
        return
    assert url.database is not None
    file = Path(url.database)
    try:
        if is_new:
            _make_file(file)
        elif not file.exists():
            raise DatabaseError(_PUT_BACK, "no file")
        if not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise DatabaseError("the database must be writable", error.strerror) from error


def _make_file(path: Path) -> None:
    """Make it here, so that it and the files beside it are its owner's alone."""
    with suppress(FileExistsError):  # what it holds is looked at later
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))


def _make_durable(connection: Any, _: object) -> None:
    # The driver must not open transactions of its own: ours begin as `_lock_at_once` says.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _lock_at_once(connection: Connection) -> None:
    # Else two that read and then write would meet in the middle, and one of them fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _open_anew(context: ExceptionContext) -> None:
    # SQLite opens a file that it may not write for reading, and stays so after the file is mended.
    if isinstance(context.original_exception, sqlite3.OperationalError):
        context.is_disconnect = True


def _wait_for_the_disk(connection: Connection) -> None:
    # A server may be set up to lose the last moments: a charge must not be among them.
    connection.exec_driver_sql("SET LOCAL synchronous_commit TO ON")


def _lock_for_others(connection: Connection) -> None:
    # One after the other, as SQLite has them: what was read must hold when it is written.
    connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TRANSACTION_LOCK})")


def _bring_up_to_date(connection: Connection, *, is_new: bool, upgrades: bool) -> None:
    if connection.dialect.name == "postgresql":  # SQLite's transactions wait for each other
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})")
    found = _version_of(connection, is_new=is_new)
    if found is not None and found < NEWEST and not upgrades:
        raise DatabaseVersionError(
            "the database must be brought up to date: back it up, then `pate-fed upgrade`, or "
            "`pate-fed serve`, which does so when it starts",
            f"version {found} where this program has {NEWEST}",
        )
    if found != NEWEST:
        from coordinator.database.upgrade import (  # noqa: PLC0415 - every command would wait for it
            upgrade,
        )

        upgrade(connection, found=found)


def _version_of(connection: Connection, *, is_new: bool) -> str | None:
    """Return a database's newest migration; None of one that is to be new."""
    tables = inspect(connection).get_table_names()
    if is_new:
        if tables:
            raise DatabaseError("a new federation's database must be empty", "one with tables")
        return None
    if "alembic_version" not in tables:
        raise DatabaseError(_PUT_BACK, "an empty one")
    versions = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars().all()
    if len(versions) != 1:
        raise DatabaseError("the database must be of one version", f"{len(versions)} versions")
    return str(versions[0])


@contextmanager
def _reported(must: str) -> Iterator[None]:
    """Turn what a driver says into our errors: its text may hold the URL, hence a password."""
    try:
        yield
    except DBAPIError as error:
        refused = _refusal_of(error.orig)
        if refused is not None:
            raise DatabaseError(*refused) from error
        raise DatabaseError(must, type(error.orig).__name__) from error
    except SQLAlchemyError as error:
        raise DatabaseError(must, type(error).__name__) from error


def _refusal_of(error: BaseException | None) -> tuple[str, str] | None:
    """Return what must hold where a server let nobody in, and what came; None where it is not that.

    A server's text is read, never repeated: it may be in its people's language.
    """
    connection = getattr(error, "pgconn", None)
    if connection is None or getattr(error, "sqlstate", None) is not None:
        return None  # no server's, or of one that had let us in
    text = str(error)
    if "FATAL" not in text and not (connection.used_password or connection.needs_password):
        return "the database's server must be reachable: does it run, and at this address?", "none"
    if "does not exist" in text and "database" in text:
        return "the database must be there: make it on its server, empty", "none of this name"
    if connection.needs_password:
        return _LET_IN, "no password, which the server asks for"
    if "password authentication failed" in text or connection.used_password:
        return _LET_IN, "a user or a password that it refuses"
    return _LET_IN, "a refusal of this user, from this machine"

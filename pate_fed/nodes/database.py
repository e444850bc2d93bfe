"""A node's own database: opened, brought up to date, written by whole transactions.

Loaded by itself: `pate_fed.nodes` does not load SQLAlchemy. Commands without a database start fast.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    Insert,
    LargeBinary,
    MetaData,
    QueuePool,
    create_engine,
    event,
    inspect,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import PoolProxiedConnection
from sqlalchemy.util import LRUCache

from pate_fed.nodes.owner_files import OWNER_ONLY, as_fault

if TYPE_CHECKING:
    from alembic.config import Config

PATIENCE_S: Final = 10
"""Longest wait for the transactions of others."""

_SOON_S: Final = 0.02
_MOST_VALUES: Final = 500

_PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",  # a commit returns when it is on disk
    "foreign_keys=ON",
    f"busy_timeout={1000 * PATIENCE_S}",
)
_COMPILED: Final = LRUCache[Any, Any](500)
_MUST: Final = "the database must be there and writable"


class AuditColumns:
    """Columns of a node's table of entries."""

    __tablename__ = "audit"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    body: Mapped[bytes] = mapped_column(LargeBinary)
    link: Mapped[bytes] = mapped_column(LargeBinary(32))


class NodeDatabase:
    """A node's database, of this version: one SQLite file, unless the node knows other kinds.

    A node's own class adds its differences, and names its errors. Those hold neither the URL, which
    may have a password, nor a driver's message, which may have paths and values.

    Args:
        is_new: Make its tables, once. Without them, a database was emptied and has lost its
            content.
        upgrades: Bring an older version up to date. Only a backup leads back.

    Raises:
        Exception: a `version_fault`: a newer version of this program wrote it, or an older one did
            and no upgrade is allowed.
        Exception: a `damage_fault`: it is damaged, or was emptied.
        Exception: a `fault`: it is absent, or cannot be opened or written; or a new one would
            replace content.
    """

    package: ClassVar[str]
    """The Python package that holds its `migrations`."""

    newest: ClassVar[str]
    """The newest migration there."""

    tables: ClassVar[MetaData]
    """The tables after it."""

    fault: ClassVar[type[Exception]]
    version_fault: ClassVar[type[Exception]]
    damage_fault: ClassVar[type[Exception]]

    emptied: ClassVar[str]
    """The rule of a fault where the database is gone or was emptied."""

    outdated: ClassVar[str] = "the database must be brought up to date"
    """The rule of a fault where an older version may not be upgraded."""

    pragmas: ClassVar[tuple[str, ...]] = ()
    """Pragmas of each connection to its file, besides those of every node."""

    def __init__(self, url: str, *, is_new: bool = False, upgrades: bool = False) -> None:
        self._process = os.getpid()
        self._engine = self._connected(self._url_of(url), is_new=is_new)
        try:
            with self._reported(), self._engine.begin() as connection:
                self._bring_up_to_date(connection, is_new=is_new, upgrades=upgrades)
                self._require_whole(connection)
        except BaseException:
            self.close()
            raise

    @classmethod
    def in_memory(cls) -> Self:
        """Make one in memory, gone when it is closed: for simulations and tests."""
        first, empty = _first_in_memory(cls.tables, cls.pragmas)
        database = cls.__new__(cls)
        database._process = os.getpid()
        # One dialect and one store of statements: they are compiled once, not in each database.
        database._engine = engine = Engine(first.pool.recreate(), first.dialect, first.url)
        engine.update_execution_options(compiled_cache=_COMPILED)
        with closing(engine.raw_connection()) as connection:
            assert connection.driver_connection is not None
            connection.driver_connection.deserialize(empty)
        weakref.finalize(database, engine.dispose)
        return database

    # Calls ------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the body as a whole: all of it is on disk, or nothing is and a `fault` is raised."""
        # A connection shared over a fork would garble the file.
        if os.getpid() != self._process:
            raise self.fault("a database must be opened by the process that uses it", "another")
        with self._reported(), self._engine.begin() as connection:
            yield connection

    def try_to_write(self) -> None:
        """Write, and change nothing; raise a `fault` if nothing can be stored now."""
        with self._reported(), self._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")

    def forget_erased(self) -> None:
        """Empty SQLite's write-ahead log, so that nothing erased is left in it.

        While another process reads, the log stays until the next time.
        """
        if self._engine.dialect.name != "sqlite" or self._is_in_memory:
            return
        with self._reported():
            connection = self._engine.raw_connection()  # in no transaction: a checkpoint wants none
            try:
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            finally:
                connection.close()

    @property
    def _is_in_memory(self) -> bool:
        return self._engine.url.database is None

    def close(self) -> None:
        """Let go of its connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._engine.dialect.name})"

    # Overridden by a node --------------------------------------------------------------------

    def _connected(self, url: URL, *, is_new: bool) -> Engine:
        """Return an engine for a URL; make the file of a new database."""
        if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
            raise self.fault("a database must be a SQLite file", "another URL")
        assert url.database is not None
        file = Path(url.database).absolute()
        self._find(file, is_new=is_new)
        engine = create_engine(url.set(database=str(file)))
        event.listen(engine, "connect", _make_durable(self.pragmas))
        event.listen(engine, "begin", _lock_at_once)
        event.listen(engine, "handle_error", _open_anew)
        return engine

    def _require_whole(self, connection: Connection) -> None:
        """Look for damage, in the transaction that opens the database."""

    def _refusal_of(
        self,
        error: BaseException | None,  # noqa: ARG002 - for those who know servers
    ) -> tuple[str, str] | None:
        """Return rule and value of the fault where a server let nobody in; None otherwise."""
        return None

    # Opening ----------------------------------------------------------------------------------

    def _url_of(self, text: str) -> URL:
        try:
            return make_url(text)
        except (ArgumentError, ValueError) as error:  # a port that is no number
            raise self.fault("a database must have a URL", "another text") from error

    def _find(self, file: Path, *, is_new: bool) -> None:
        """Look for the file, and never open an existing one.

        Closing a file drops the locks that SQLite has on it in this process: the next process would
        take itself for the last one, and remove the write-ahead log. Source:
        https://www.sqlite.org/howtocorrupt.html, section 2.2.
        """
        with as_fault(self.fault, "the database must be writable"):
            if is_new:
                _make_file(file)
            elif not file.exists():
                raise self.fault(self.emptied, "no file")
            if not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def _bring_up_to_date(self, connection: Connection, *, is_new: bool, upgrades: bool) -> None:
        found = self._version_in(connection, is_new=is_new)
        if found == self.newest:
            return
        if found is not None and found < self.newest and not upgrades:
            raise self.version_fault(
                self.outdated, f"version {found} where this program has {self.newest}"
            )
        self._upgrade(connection, found=found)

    def _version_in(self, connection: Connection, *, is_new: bool) -> str | None:
        """Return the newest migration in it; None if it is to be new."""
        tables = inspect(connection).get_table_names()
        if is_new:
            if tables:
                raise self.fault("a new database must be empty", "one with tables")
            return None
        if "alembic_version" not in tables:
            raise self.damage_fault(self.emptied, "an empty one")
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version")
        versions = found.scalars().all()
        if len(versions) != 1:  # emptied, or written by another program
            raise self.damage_fault(self.emptied, f"{len(versions)} versions of it")
        return str(versions[0])

    def _upgrade(self, connection: Connection, *, found: str | None) -> None:
        """Run the missing migrations, in the connection's transaction."""
        from alembic import command  # noqa: PLC0415 - every command would wait for Alembic
        from alembic.script import ScriptDirectory  # noqa: PLC0415
        from alembic.util.exc import CommandError  # noqa: PLC0415

        config = self.migrations()
        try:
            if found is not None:
                ScriptDirectory.from_config(config).get_revision(found)
        except CommandError as error:
            raise self.version_fault(
                "the database must be of this version or older", f"version {found}"
            ) from error
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise self.fault(_MUST, type(error).__name__) from error

    @classmethod
    def migrations(cls) -> Config:
        """Return where Alembic finds its migrations."""
        from alembic.config import Config  # noqa: PLC0415 - every command would wait for Alembic

        config = Config()
        config.set_main_option("script_location", str(files(__package__) / "migrations"))
        config.set_main_option("version_locations", str(files(cls.package) / "migrations"))
        config.set_main_option("path_separator", "os")
        config.attributes["tables"] = cls.tables
        return config

    # Faults -----------------------------------------------------------------------------------

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn a driver's exceptions into the node's errors, without URL, paths or values."""
        try:
            yield
        except (DBAPIError, sqlite3.Error) as error:
            said = error.orig if isinstance(error, DBAPIError) else error
            if type(said) is sqlite3.DatabaseError:  # "malformed", "not a database": no own class
                raise self.damage_fault("the database must fit itself", "damage") from error
            must, got = self._refusal_of(said) or (_MUST, type(said).__name__)
            raise self.fault(must, got) from error
        except SQLAlchemyError as error:
            raise self.fault(_MUST, type(error).__name__) from error


def parts_of(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Return items in parts of a size that one statement can name: databases bound the number."""
    for start in range(0, len(items), _MOST_VALUES):
        yield items[start : start + _MOST_VALUES]


def put(connection: Connection, table: type[DeclarativeBase], *rows: Mapping[str, object]) -> None:
    """Add rows; where a key is known, change these columns of its row.

    All rows have the same columns.
    """
    if rows:
        statement = _put(table, tuple(rows[0]), connection.dialect.name)
        connection.execute(statement, list(map(dict, rows)))


@cache
def _put(table: type[DeclarativeBase], names: tuple[str, ...], dialect: str) -> Insert:
    """Return the statement of `put`; each kind of database has its own."""
    statement = import_module(f"sqlalchemy.dialects.{dialect}").insert(table)
    keys = [column.name for column in table.__table__.primary_key]
    changed = {name: statement.excluded[name] for name in names if name not in keys}
    done: Insert = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    return done


@cache
def _first_in_memory(tables: MetaData, pragmas: tuple[str, ...]) -> tuple[Engine, bytes]:
    """Return an engine like that of each database in memory, and the image of an empty one."""
    engine = create_engine(
        "sqlite://",
        poolclass=QueuePool,  # of the one connection that has it; threads wait for each other
        pool_size=1,
        max_overflow=0,
        connect_args={"check_same_thread": False},
    )
    event.listen(engine, "connect", _make_durable(pragmas))
    # No event of the engine: with one, each statement would look for listeners.
    engine.dialect.do_begin = _lock_memory  # type: ignore[method-assign]
    with engine.begin() as connection:
        tables.create_all(connection)
    with closing(engine.raw_connection()) as connection:
        assert connection.driver_connection is not None
        image = bytes(connection.driver_connection.serialize())
    engine.dispose()
    return engine, image


def _make_file(path: Path) -> None:
    """Make the file here, so that it and the files beside it are its owner's alone."""
    with suppress(FileExistsError):  # a later step checks whether it is empty
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY))


def _make_durable(pragmas: tuple[str, ...]) -> Callable[[Any, object], None]:
    """Return the set-up of a new connection; it keeps no database alive."""

    def set_up(connection: Any, _: object) -> None:
        # The driver must not open transactions of its own: ours begin in `_lock_at_once`.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (*_PRAGMAS, *pragmas):
            _execute_when_free(cursor, f"PRAGMA {pragma}")
        cursor.close()

    return set_up


def _execute_when_free(cursor: Any, statement: str) -> None:
    """Execute what SQLite refuses at once while another connection recovers the file, or closes it.

    Its own patience is for transactions.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            cursor.execute(statement)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_SOON_S)
        else:
            return


def _lock_at_once(connection: Connection) -> None:
    # Otherwise two transactions that read and then write would meet, and one of them fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _lock_memory(dbapi_connection: PoolProxiedConnection) -> None:
    # Past the wrapper of errors, for speed: no such failure has to be opened anew.
    assert dbapi_connection.driver_connection is not None
    dbapi_connection.driver_connection.execute("BEGIN IMMEDIATE")


def _open_anew(context: ExceptionContext) -> None:
    # SQLite opens an unwritable file for reading only, and stays so after the file is mended.
    error = context.original_exception
    name = getattr(error, "sqlite_errorname", "") if isinstance(error, sqlite3.Error) else ""
    if name.startswith("SQLITE_READONLY"):
        context.is_disconnect = True

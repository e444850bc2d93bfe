"""Opens a hospital's database, brings it up to date, and runs transactions in it.

The coordinator has an engine of its own, much like this one: the two nodes do not know each other,
and the libraries that both know have no database. What they need differs, too. A hospital's is one
SQLite file, its node alone may write the journal, and what is erased there must be gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import Connection, Engine, ExceptionContext, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from party.errors import JournalLockedError, StorageDamagedError, StorageError

NEWEST: Final = "0001"
"""The newest migration in `migrations/versions`."""

_OWNER_ONLY = 0o600
_ROOM_FILE = ".room"
_ROOM_BYTES = 2**20
"""More than one batch of usual size takes."""

_PRAGMAS = (
    "journal_mode=WAL",
    "synchronous=FULL",  # a commit returns when it is on disk
    "secure_delete=ON",  # what is deleted is overwritten
    "foreign_keys=ON",
    "busy_timeout=10000",
)


class PartyDatabase:
    """A hospital's database, up to date. Several processes may have it open; one is its node.

    Args:
        url: "sqlite:///..." with the path of its file, on a disk of this machine.
        is_new: Make it: once, with the site. A second one would have forgotten all.

    Raises:
        StorageVersionError: it was written by a newer version of this program.
        StorageDamagedError: it does not fit itself, or holds nothing.
        StorageError: it is not there, or cannot be opened or written; it is there, and is to be
            new.
    """

    def __init__(self, url: str, *, is_new: bool = False) -> None:
        self._path = _file_of(url)
        self._process = os.getpid()
        self._node_lock = -1
        try:
            if is_new:
                _make_file(self._path)
            else:
                _require_writable(self._path)
        except OSError as error:
            must = f"{self._path.name} must be {'made' if is_new else 'there, and writable'}"
            raise StorageError(must, error.strerror) from error
        self._engine = _engine(url)
        try:
            with _reported(), self._engine.begin() as connection:
                _bring_up_to_date(connection, is_new=is_new)
                _require_whole(connection)
        except BaseException:
            self.close()
            raise

    @classmethod
    def at(cls, path: Path) -> PartyDatabase:
        """Open the database in a file; see `PartyDatabase`."""
        return cls(f"sqlite:///{path}")

    @classmethod
    def create(cls, path: Path) -> PartyDatabase:
        """Make one in a new file; see `PartyDatabase`."""
        return cls(f"sqlite:///{path}", is_new=True)

    # Calls ------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run what follows as a whole: all of it is on disk at the end, or nothing is.

        Raises:
            StorageError: it could not be stored: nothing was.
        """
        # A connection that a fork shares would garble the file.
        if os.getpid() != self._process:
            raise StorageError("a database must be opened by the process that uses it", "another")
        with (
            _reported(),
            Session(self._engine, expire_on_commit=False) as session,
            session.begin(),
        ):
            yield session

    def become_node(self) -> None:
        """Claim the journal and the ledger for this process, until `close`; again is nothing.

        Raises:
            JournalLockedError: another process (or object) has them.
            StorageError: the lock cannot be made.
        """
        if self._node_lock >= 0:
            return
        # A file of its own: closing one that SQLite locks would drop SQLite's locks.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            lock = os.open(f"{self._path}.lock", flags, _OWNER_ONLY)
        except OSError as error:
            raise StorageError("the node's lock must be made", error.strerror) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise JournalLockedError(
                "one process must be a site's node", "a second one: the node runs already"
            ) from error
        self._node_lock = lock

    @property
    def is_node(self) -> bool:
        """Whether this process may write journal and ledger."""
        return self._node_lock >= 0 and os.getpid() == self._process

    def require_room(self) -> None:
        """Store something, as a decision would be stored, and take it back.

        Raises:
            StorageError: nothing can be stored now.
        """
        room = self._path.with_name(_ROOM_FILE)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            held = os.open(room, flags, _OWNER_ONLY)
            try:
                os.posix_fallocate(held, 0, _ROOM_BYTES)
            finally:
                os.close(held)
                room.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError("the disk must have room", error.strerror) from error
        with _reported(), self._engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA user_version = 0")  # written, though it is the same

    def forget_erased(self) -> None:
        """Empty the write-ahead log, so that nothing erased is left in it.

        While another process reads, the log stays until the next time.
        """
        with _reported():
            connection = self._engine.raw_connection()  # in no transaction: a checkpoint wants none
            try:
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            finally:
                connection.close()

    def close(self) -> None:
        """Let go of the file, and of the node's lock."""
        self._engine.dispose()
        if self._node_lock >= 0:
            os.close(self._node_lock)
            self._node_lock = -1

    @property
    def path(self) -> Path:
        """Its file."""
        return self._path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PartyDatabase({self._path.name})"


def has_node(path: Path) -> bool:
    """Tell whether a process is the node of the database in a file.

    Only where its status is in doubt: for a moment it holds what a node that starts would take.
    """
    try:
        lock = os.open(f"{path}.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _file_of(url: str) -> Path:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StorageError("a database must have a URL", "another text") from error
    if parsed.get_backend_name() != "sqlite" or parsed.database in (None, "", ":memory:"):
        raise StorageError("a hospital's database must be a SQLite file", "another URL")
    assert parsed.database is not None
    return Path(parsed.database).absolute()


def _make_file(path: Path) -> None:
    """Make it here, so that it and the files beside it are its owner's alone."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))


def _require_writable(path: Path) -> None:
    """Look, and never open: closing a file drops the locks that SQLite has on it in this process.

    The next process would take itself for the last one, and remove what is written ahead.
    Source: https://www.sqlite.org/howtocorrupt.html, section 2.2.
    """
    path.stat()
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _engine(url: str) -> Engine:
    engine = create_engine(make_url(url))
    event.listen(engine, "connect", _make_durable)
    event.listen(engine, "begin", _lock_at_once)
    event.listen(engine, "handle_error", _open_anew)
    return engine


def _make_durable(connection: Any, _: object) -> None:
    # The driver must not open transactions of its own: ours begin as `_lock_at_once` says.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _lock_at_once(connection: Connection) -> None:
    # Else two that read and then write would meet in the middle, and one of them fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _open_anew(context: ExceptionContext) -> None:
    # SQLite opens a file that it may not write for reading, and stays so after the file is mended.
    if isinstance(context.original_exception, sqlite3.OperationalError):
        context.is_disconnect = True


def _bring_up_to_date(connection: Connection, *, is_new: bool) -> None:
    found = None if is_new else _version_of(connection)
    if found != NEWEST:
        from party.storage.upgrade import upgrade  # noqa: PLC0415 - every command would wait for it

        upgrade(connection, found=found)


def _version_of(connection: Connection) -> str:
    versions: Sequence[str] = ()
    if inspect(connection).has_table("alembic_version"):
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version")
        versions = found.scalars().all()
    if len(versions) != 1:  # emptied, or written by another's hand
        raise StorageDamagedError(
            "the database must hold what was made with the site", f"{len(versions)} versions of it"
        )
    return versions[0]


def _require_whole(connection: Connection) -> None:
    """Only the owner can know what a damaged journal has lost."""
    if connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok":
        raise StorageDamagedError("the database must fit itself", "damage")


@contextmanager
def _reported() -> Iterator[None]:
    """Turn what a driver says into our errors: its text may hold paths and values."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        said = type(error.orig if isinstance(error, DBAPIError) else error)
        if said is sqlite3.DatabaseError:  # "malformed" and "not a database" have no class
            raise StorageDamagedError("the database must fit itself", "damage") from error
        raise StorageError("the database must be there and writable", said.__name__) from error
    except SQLAlchemyError as error:
        raise StorageError(
            "the database must be there and writable", type(error).__name__
        ) from error

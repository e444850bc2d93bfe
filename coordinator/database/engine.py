"""Opens the database, brings it up to date, and runs transactions in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from coordinator.errors import DatabaseError


class Database:
    """A database that is up to date.

    Args:
        url: As SQLAlchemy takes it, "sqlite:///..." or "postgresql+psycopg://...".

    Raises:
        DatabaseError: it cannot be opened, or is of a newer version than this program.
    """

    def __init__(self, url: str) -> None:
        try:
            self._engine = _open(url)
            self._upgrade()
        except (SQLAlchemyError, CommandError) as error:
            # A driver's text may hold the URL, hence a password.
            raise DatabaseError(
                "the database must be there, and of this version", type(error).__name__
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run what follows as a whole: all of it is on disk at the end, or nothing is.

        Raises:
            DatabaseError: it could not be stored: nothing was.
        """
        try:
            with Session(self._engine, expire_on_commit=False) as session, session.begin():
                yield session
        except DBAPIError as error:
            raise DatabaseError(
                "the database must store what it is given", type(error.orig).__name__
            ) from error

    def close(self) -> None:
        """Let go of its connections."""
        self._engine.dispose()

    def _upgrade(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(files("coordinator.database") / "migrations"))
        with self._engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @property
    def version(self) -> str:
        """Name of the newest migration that this program knows."""
        config = Config()
        config.set_main_option("script_location", str(files("coordinator.database") / "migrations"))
        return str(ScriptDirectory.from_config(config).get_current_head())

    def __repr__(self) -> str:
        return f"Database({self._engine.dialect.name})"


def _open(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise DatabaseError("a database must have a URL", "another text") from error
    engine = create_engine(parsed)
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _make_durable)
        event.listen(engine, "begin", _lock_at_once)
    return engine


def _make_durable(connection: Any, _: object) -> None:
    # The driver must not open transactions of its own: ours begin as `_lock_at_once` says.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _lock_at_once(connection: Any) -> None:
    # Else two that read and then write would meet in the middle, and one of them fail.
    connection.exec_driver_sql("BEGIN IMMEDIATE")

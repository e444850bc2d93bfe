"""Brings the database to the newest schema, by the migrations that are not in it yet."""

from __future__ import annotations

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection

from coordinator.errors import DatabaseError, DatabaseVersionError


def upgrade(connection: Connection, *, found: str | None) -> None:
    """Run what is missing, in the transaction that the connection is in.

    Args:
        connection: To the database.
        found: Its newest migration; None if it is empty.

    Raises:
        DatabaseVersionError: it was written by a newer version of this program.
        DatabaseError: a migration does not fit.
    """
    config = migrations()
    if found is not None:
        try:
            ScriptDirectory.from_config(config).get_revision(found)
        except CommandError as error:
            raise DatabaseVersionError(
                "the database must be of this version or older", f"version {found}"
            ) from error
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise DatabaseError(
            "the database must be there and writable", type(error).__name__
        ) from error


def migrations() -> Config:
    """Return where Alembic finds them."""
    config = Config()
    config.set_main_option("script_location", str(files("coordinator.database") / "migrations"))
    return config

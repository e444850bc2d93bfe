"""Databases for tests: SQLite, and PostgreSQL where the machine has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from coordinator.database import Database
from tests.support import postgres

NEEDS_POSTGRES = "PATE_FED_NEEDS_POSTGRES"
"""Where it is set, a machine without PostgreSQL fails: else CI could skip it, and nobody know."""


OpenDatabase = Callable[..., Database]


@pytest.fixture(scope="session")
def cluster() -> Iterator[postgres.Cluster]:
    folder = postgres.binaries()
    if folder is None or find_spec("psycopg") is None:
        missing = "initdb and postgres" if folder is None else "psycopg"
        why = f"PostgreSQL is not tested: this machine has no {missing}"
        if os.environ.get(NEEDS_POSTGRES):
            pytest.fail(why)
        pytest.skip(why)
    with postgres.running(folder) as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'coordinator.db'}"
    started: postgres.Cluster = request.getfixturevalue("cluster")
    return started.new_database()


@pytest.fixture
def open_database() -> Iterator[OpenDatabase]:
    """Opens databases, and closes them when the test is over."""
    with ExitStack() as stack:

        def open_one(url: str, *, is_new: bool = False, upgrades: bool = False) -> Database:
            database = Database(url, is_new=is_new, upgrades=upgrades)
            stack.callback(database.close)
            return database

        yield open_one


@pytest.fixture
def database(database_url: str, open_database: OpenDatabase) -> Database:
    return open_database(database_url, is_new=True)

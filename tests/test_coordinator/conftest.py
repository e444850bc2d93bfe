"""Databases for tests: SQLite, and PostgreSQL where it is. Reports of runs without pictures."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import escape
from importlib.util import find_spec
from pathlib import Path

import pytest

from coordinator.database import Database
from pate_fed.report import plots
from tests.support import postgres
from tests.support.worked import Worked

NEEDS_POSTGRES = "PATE_FED_NEEDS_POSTGRES"
"""Where it is set, a machine without PostgreSQL fails: else CI could skip it, and nobody know."""


OpenDatabase = Callable[..., Database]
PICTURES = {name: getattr(plots, name) for name in ("classes_plot",)}


@pytest.fixture(autouse=True, scope="module")
def _no_pictures() -> Iterator[None]:
    """Leave a report's pictures at their words: to draw them takes as long as a small run."""

    def said(*_: object, summary: str, **__: object) -> str:
        return f"<svg>{escape(summary)}</svg>"

    with pytest.MonkeyPatch.context() as patch:
        for name in PICTURES:
            patch.setattr(plots, name, said)
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the pictures of this test's reports."""
    for name, draw in PICTURES.items():
        monkeypatch.setattr(plots, name, draw)


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
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'coordinator.db'}"
    started: postgres.Cluster = request.getfixturevalue("cluster")
    return started.new_schema()


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


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Worked]:
    """One whose hospitals work in this process; some files have others."""
    made = Worked(tmp_path)
    yield made
    made.coordinator.close()


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Every record of every logger, at the lowest level."""
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, logger=name)
    return caplog

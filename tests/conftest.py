"""Settings that hold for all tests."""

import gc
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterator
from functools import lru_cache
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Connection, Dialect, Engine, event

import pate_fed.lab.mechanisms  # noqa: F401 - tests try all that are in `SPECS`
from pate_fed.nodes import database
from pate_fed.nodes.database import NodeDatabase
from protocols import wire
from protocols.identity import PublicIdentity
from tests.support.forks import load_before_forking
from tests.support.markers import has_mark, leave_to_exhaustive_runs

# A slow machine is no reason to fail: speed is measured in benchmarks/, never here.
settings.register_profile(
    "pate_fed", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("pate_fed")

# Parties run side by side; more threads below them would only fight for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# ONNX Runtime, which reads exported students here, tells its maker that it is used.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def _memory_holds_files(folder: str = "/dev/shm") -> bool:  # noqa: S108 - pytest makes its own in it
    """Say whether tests may keep their files in memory, and run programs from there."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > 2**32


def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of fast tests in memory; slow ones break real disks, and need one."""
    are_fast = _only_fast_run(config)
    load_before_forking(federations=not are_fast)
    if are_fast:
        settings.register_profile("fast", settings.get_profile("pate_fed"), max_examples=40)
        settings.load_profile("fast")
    # Every commit waits for the disk, which no test measures.
    if are_fast and _memory_holds_files():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")  # noqa: S108


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Load no file without a test that is asked for: of slow ones alone, or of fast ones."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    if _only_slow_run(config) and "slow" not in collection_path.read_text("utf-8"):
        return True
    if _only_fast_run(config) and _IS_LONG.search(collection_path.read_text("utf-8")):
        return True
    return None


_LONG = ("slow", "exhaustive")
_IS_LONG = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.(slow|exhaustive)\b", re.MULTILINE)
"""All tests of such a file take long."""


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Nor make the many cases of a test that is left out as a whole."""
    if not (name.startswith("test_") and isfunction(obj)):
        return None
    if _only_slow_run(collector.config):
        is_asked = collector.get_closest_marker("slow") is not None or has_mark(obj, "slow")
        return None if is_asked else []
    if _only_fast_run(collector.config):
        own = {mark.name for mark in getattr(obj, "pytestmark", ())}
        return (
            [] if own.intersection(_LONG) or any(map(collector.get_closest_marker, _LONG)) else None
        )
    return None


def _only_slow_run(config: pytest.Config) -> bool:
    expression: str = config.getoption("markexpr")
    return expression.startswith("slow and ")


def _only_fast_run(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == "not slow and not exhaustive")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage among thousands of cases, which stay to the end."""
    _measure_imports_alone(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 10)  # tests make many objects, and few circles
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cases that only exhaustive runs try, before tests are chosen by their marks.

    Of slow tests the files that take longest come first.
    """
    leave_to_exhaustive_runs(items)
    if _only_slow_run(config):
        places = {f"test_{name}": place for place, name in enumerate(_LONGEST)}
        items.sort(key=lambda item: places.get(item.path.stem, len(places)))


_LONGEST = (
    *("federation_demo", "bad_day", "simulation", "door", "random_kills", "kills"),
    *("service_log", "serving", "run_worker", "cli", "cli_plan"),
)
"""Files of slow tests; some of their tests share processes."""


@pytest.fixture(autouse=True, scope="session")
def _verified_once() -> Iterator[None]:
    """Verify each good signature once: many hospitals of one process are shown the same."""
    verify, good = PublicIdentity.verify, set[tuple[bytes, str, bytes, bytes]]()

    def verify_once(self: PublicIdentity, *, purpose: str, digest: bytes, signature: bytes) -> None:
        shown = (self.key, purpose, digest, signature)
        if shown not in good:
            verify(self, purpose=purpose, digest=digest, signature=signature)
            good.add(shown)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublicIdentity, "verify", verify_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def _decoded_once() -> Iterator[None]:
    """Decode each small frame once, for the same reason: messages are frozen."""
    decode = wire.decode
    known = lru_cache(2**12)(decode)

    def decode_once(frame: bytes) -> wire.Signed:
        # Large ones are read in two ways, which tests compare.
        is_small = type(frame) is bytes and len(frame) < 2**12
        return known(frame) if is_small else decode(frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "decode", decode_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def _migrated_once() -> Iterator[None]:
    """Migrate one new database of each kind; make the others' empty tables by its statements."""
    upgrade = NodeDatabase._upgrade
    made: dict[tuple[type, str, str], list[str]] = {}

    def copied(self: NodeDatabase, connection: Connection, *, found: str | None) -> None:
        kind = (type(self), self.newest, connection.dialect.name)
        if found is None and kind in made:
            cursor = connection.connection.cursor()
            for statement in made[kind]:
                cursor.execute(statement)
            cursor.close()
            return
        statements: list[str] = []

        def note(*arguments: Any) -> None:
            statement = arguments[2].strip()
            if statement.startswith(("CREATE ", "INSERT ")):
                assert not arguments[3], statement
                statements.append(statement)

        event.listen(connection, "before_cursor_execute", note)
        try:
            upgrade(self, connection, found=found)
        finally:
            event.remove(connection, "before_cursor_execute", note)
        if found is None:
            made[kind] = statements

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeDatabase, "_upgrade", copied)
        yield


@pytest.fixture(autouse=True, scope="session")
def _compiled_once() -> Iterator[None]:
    """Compile each statement once for all SQLite files, as for those in memory."""
    create = database.create_engine
    dialects: list[Dialect] = []

    def sharing(*arguments: Any, **named: Any) -> Engine:
        engine = create(*arguments, **named)
        if named:  # in memory, where the product does so
            return engine
        dialects.extend([] if dialects else [engine.dialect])
        shared = Engine(engine.pool, dialects[0], engine.url)
        shared.update_execution_options(compiled_cache=database._COMPILED)
        return shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", sharing)
        yield


_FLOOR = {
    *("accounting_privacy_ledger", "audit_log", "charges", "database", "delta_for_tests", "guard"),
    *("federation_evaluation", "journal", "node", "nodes_audit_log", "restart", "run_queue"),
    *("run_scope", "sent", "run_spending", "storage", "store"),
    *("rounds_blame", "rounds_coordinator", "rounds_inquiry", "rounds_opening", "rounds_party"),
    *("rounds_resumed", "rounds_states", "rounds_verified", "vectors_runs"),
    *("check_rows", "tally_book", "patient_votes", "guard_verified"),
}
"""Tests that hold the floor of coverage: the nearest to its modules, of those the cheapest."""


def _coverage(config: pytest.Config) -> Any:
    """Return what measures coverage in chosen tests; None where nothing or all is measured.

    A record of each test's own lines, which `make mutants` makes, is of all tests. A process whose
    workers run the tests measures none.
    """
    module = sys.modules.get("coverage")
    is_record = config.getoption("cov_context", None) is not None
    has_workers = bool(config.getoption("numprocesses", None)) and not hasattr(
        config, "workerinput"
    )
    return None if module is None or is_record or has_workers else module.Coverage.current()


def _measure_imports_alone(config: pytest.Config) -> None:
    """Load the measured modules while they are measured, and no test: that takes twice as long."""
    measured = _coverage(config)
    if measured is not None:
        for pattern in measured.get_option("run:include"):
            for path in sorted(config.rootpath.glob(pattern)):
                import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))
        config.stash[_MEASURED] = measured
        # Below a worker's own there is another one, which goes on once that is stopped.
        while (started := _coverage(config)) is not None:
            started.stop()


_MEASURED = pytest.StashKey[Any]()


@pytest.fixture(autouse=True, scope="module")
def _near_to_coverage(request: pytest.FixtureRequest) -> Iterator[None]:
    """Measure coverage in some tests alone: all would take half as long again."""
    measured = request.config.stash.get(_MEASURED, None)
    name = request.module.__name__.rpartition(".test_")[2]
    if measured is None or name not in _FLOOR:
        yield
        return
    measured.start()
    yield
    measured.stop()

"""Mutants: small faults in the code that must not be wrong. A test must fail for each.

    python -m tests.mutants --seed 1 --number 3

mutmut makes the faults. Two are ours: a call left out, and `any` for `all`. Texts, arguments of
errors, assertions, logging and code outside functions are not changed.

First, all tests run once: a record says which lines each test runs, and how long it takes. Then a
process imports all tests. Each mutant is a fork of it with one function's code replaced. It tries
only tests that run the changed lines, quickest first.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import inspect
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import _lru_cache_wrapper
from itertools import chain, zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, Literal, TypeAlias

import libcst as cst
import pytest
from coverage import CoverageData
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators
from scipy.stats import binomtest

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / ".mutants"
EQUIVALENT: Final = Path(__file__).with_name("equivalent_mutants.toml")
"""Mutants that no test can notice, each with the reason."""
LEAST_KILLED: Final = 0.92

MODULES: Final = (
    "protocols/**/*.py",
    "pate_fed/accounting/privacy_ledger.py",
    "pate_fed/accounting/reservations.py",
    "pate_fed/charges.py",
    "coordinator/database/ledger_rows.py",
    "coordinator/database/run_*.py",
    "coordinator/database/statements.py",
    "coordinator/database/check_rows.py",
    "coordinator/tally/book*.py",
    "coordinator/tally/served_run.py",
    "coordinator/runs/labeling/*.py",
    "party/storage/*journal.py",
    "party/storage/ledger_store.py",
    "party/decision/guard.py",
    "party/decision/run_account.py",
    "party/decision/run_spending.py",
)
TESTS: Final = (
    "tests/test_protocols",
    "tests/test_federation*.py",
    "tests/test_pate_fed/test_accounting_privacy_ledger.py",
    "tests/test_pate_fed/test_charges.py",
    "tests/test_party/test_enrollment.py",
    "tests/test_party/test_guard.py",
    "tests/test_party/test_journal.py",
    "tests/test_party/test_memberships.py",
    "tests/test_party/test_node.py",
    "tests/test_party/test_peers.py",
    "tests/test_party/test_restart.py",
    "tests/test_party/test_run_spending.py",
    "tests/test_party/test_storage.py",
    "tests/test_coordinator/test_asking.py",
    "tests/test_coordinator/test_database.py",
    "tests/test_coordinator/test_enrollment.py",
    "tests/test_coordinator/test_resume.py",
    "tests/test_coordinator/test_store.py",
)
"""Tests without processes of their own."""
CHOICE: Final = ("-m", "not slow and not exhaustive", "-k", "not postgresql")

MOST_TEST_S: Final = 90.0
"""Recorded seconds of tests that one mutant is shown."""


# The mutants of a module ----------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A changed function.

    Attributes:
        path: The module, from the root.
        first: First line of the changed expression.
        last: Its last line.
        before: The changed lines as they are.
        after: The same lines in the mutant.
    """

    path: str
    first: int
    last: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.first}\n    - {self.before}\n    + {self.after}"


class Finder(cst.CSTVisitor):
    """Finds all changes in the functions of a module."""

    METADATA_DEPENDENCIES = (PositionProvider,)
    SKIPPED = (cst.Annotation, cst.Assert, cst.BaseString, cst.Decorator, cst.Parameters, cst.Raise)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int, cst.CSTNode, cst.CSTNode]] = []
        self._functions = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, self.SKIPPED) or _is_text(node):
            return False
        place = self.get_metadata(PositionProvider, node, None) if self._functions else None
        if place is not None:
            lines = place.start.line, place.end.line
            self.found += [(*lines, node, new) for new in _changes_of(node)]
        self._functions += isinstance(node, cst.FunctionDef)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._functions -= isinstance(original_node, cst.FunctionDef)


def _changes_of(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            yield from (new for new in operator(node) if not _changes_text(node, new))
    match node:
        case cst.Expr(value=cst.Call()):
            yield cst.Pass()
        case cst.Call(func=cst.Name(value="any" | "all" as name)):
            yield node.with_changes(func=cst.Name("all" if name == "any" else "any"))


def _changes_text(node: cst.CSTNode, new: cst.CSTNode) -> bool:
    if not isinstance(node, cst.Call) or not isinstance(new, cst.Call):
        return False
    kept = {id(each.value) for each in new.args}
    changed = [each.value for each in node.args if id(each.value) not in kept]
    return any(isinstance(each, cst.BaseString) for each in changed)


def _is_text(node: cst.CSTNode) -> bool:
    """Tell whether this logs, or makes the words of an error."""
    match node:
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value="_log")))):
            return True
        case cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Call(func=cst.Name("super"))))):
            return True
    return False


class Module:
    """A module, and the mutants that can be made of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._source = (ROOT / path).read_text()
        tree = MetadataWrapper(cst.parse_module(self._source))
        finder = Finder()
        tree.visit(finder)
        self._tree, self._found = tree.module, finder.found

    def __len__(self) -> int:
        return len(self._found)

    def mutant(self, number: int) -> tuple[Mutant, CodeType]:
        """Return a mutant, and the code of the whole changed module."""
        first, last, node, new = self._found[number]
        changed = self._tree.deep_replace(node, new)
        assert isinstance(changed, cst.Module)
        lines = self._source.splitlines(), changed.code.splitlines()
        matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
        blocks = [each for each in matcher.get_opcodes() if each[0] != "equal"]
        before, after = (
            " ".join(
                line.strip() for _, *at in blocks for line in side[at[2 * one] : at[2 * one + 1]]
            )
            for one, side in enumerate(lines)
        )
        code = compile(changed.code, str(ROOT / self.path), "exec")
        return Mutant(self.path, first, last, before, after), code


def _functions_in(code: CodeType) -> Iterator[CodeType]:
    """Return the code of every function that is in no other function."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & inspect.CO_NEWLOCALS:
                yield each
            else:  # the body of a class
                yield from _functions_in(each)


# What the tests run -----------------------------------------------------------------------------


class Record:
    """The lines that each test runs, and the time that it takes."""

    def __init__(self) -> None:
        data = CoverageData(str(FOLDER / "coverage"))
        data.read()
        self._lines = {path: data.contexts_by_lineno(str(ROOT / path)) for path in module_paths()}
        self._seconds: dict[str, float] = json.loads((FOLDER / "seconds.json").read_text())

    def tests_of(self, mutant: Mutant) -> list[str] | None:
        """Return the tests that run a changed line, quickest first; None if only an import does."""
        lines = self._lines[mutant.path]
        names = {
            context.rpartition("|")[0]
            for line in range(mutant.first, mutant.last + 1)
            for context in lines.get(line, ())
        }
        if names == {""}:
            return None
        return sorted(names & self._seconds.keys(), key=lambda name: (self._seconds[name], name))

    def seconds_of(self, name: str) -> float:
        return self._seconds[name]


class _Seconds:
    def __init__(self) -> None:
        self.of: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.of[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


def record(processes: int) -> None:
    """Run all tests once, in a process of its own."""
    FOLDER.mkdir(exist_ok=True)
    rules = FOLDER / "coveragerc"
    traced = "".join(f"    {ROOT / path}\n" for path in module_paths())
    rules.write_text(f"[run]\ninclude =\n{traced}data_file = {FOLDER / 'coverage'}\n")
    if os.fork():
        os.wait()
        return
    seconds = _Seconds()
    options = ["--cov", "--cov-context=test", f"--cov-config={rules}", "--cov-report="]
    options += ["-q", "-p", "no:cacheprovider", "-n", str(processes), "--dist", "worksteal"]
    pytest.main([*options, *CHOICE, *test_paths()], plugins=[seconds])
    passed = {name: taken for name, taken in seconds.of.items() if name not in seconds.failed}
    (FOLDER / "seconds.json").write_text(json.dumps(passed))
    os._exit(0)


def module_paths() -> list[str]:
    found = chain.from_iterable(ROOT.glob(pattern) for pattern in MODULES)
    return sorted(str(path.relative_to(ROOT)) for path in found)


def test_paths() -> list[str]:
    found = chain.from_iterable(ROOT.glob(pattern) for pattern in TESTS)
    return sorted(str(path.relative_to(ROOT)) for path in found)


# Trying mutants ---------------------------------------------------------------------------------

Outcome: TypeAlias = Literal["killed", "timed out", "survived", "not run"]


@dataclass(frozen=True)
class _Attempt:
    mutant: Mutant
    code: CodeType
    tests: list[str]
    output: int = -1


class Trial:
    """A pytest plugin: instead of running the tests, it tries mutants on them."""

    def __init__(
        self, mutants: Iterator[tuple[Mutant, CodeType]], *, processes: int, until: float
    ) -> None:
        self._mutants = mutants
        self._processes = processes
        self._until = until
        self._record = Record()
        self._verified: dict[str, bool] = {}
        self.outcomes: dict[Mutant, Outcome] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        from hypothesis import Phase, settings  # noqa: PLC0415 - pytest rewrites it first

        # Nothing is searched for twice, and nothing is left to chance.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutants",
            settings.get_profile("pate_fed"),
            database=None,
            derandomize=True,
            phases=phases,
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        self._base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        self._caches = []
        gc.unfreeze()  # conftest.py hides from it what was collected
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                code = each.__code__
                place = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self._functions[place].append(each)
            elif isinstance(each, _lru_cache_wrapper):
                self._caches.append(each)
        self._try_all()
        return True

    def _try_all(self) -> None:
        running: dict[int, _Attempt] = {}
        for mutant, code in self._mutants:
            if time.time() >= self._until:
                break
            tests = self._record.tests_of(mutant)
            if tests is None or not self._changed(code):
                continue
            while len(running) >= self._processes:
                self._end_one(running)
            self._start(_Attempt(mutant, code, tests), running)
        while running:
            self._end_one(running)

    def _start(self, attempt: _Attempt, running: dict[int, _Attempt]) -> None:
        shown, left = [], MOST_TEST_S
        for name in attempt.tests:
            left -= self._record.seconds_of(name)
            if (left > 0 or not shown) and self._verified.get(name, name in self._items):
                shown.append(name)
        if shown:
            pid, output = self._fork(shown, attempt.code)
            running[pid] = replace(attempt, output=output)
        else:
            self._say(attempt.mutant, "not run", "")

    def _end_one(self, running: dict[int, _Attempt]) -> None:
        pid, status = os.wait()
        attempt = running.pop(pid)
        with os.fdopen(attempt.output) as pipe:
            killer = pipe.read()
        shutil.rmtree(self._base / str(pid), ignore_errors=True)
        if os.WIFSIGNALED(status):
            self._say(attempt.mutant, "timed out", killer)
        elif os.WEXITSTATUS(status) == 0:
            self._say(attempt.mutant, "survived", "")
        elif not killer or self._passes_alone(killer):  # without a killer, pytest itself ended
            self._say(attempt.mutant, "killed", killer)
        else:  # it fails in a fork without a mutant, too
            self._start(attempt, running)

    def _passes_alone(self, name: str) -> bool:
        if name not in self._verified:
            pid, output = self._fork([name], None)
            _, status = os.waitpid(pid, 0)
            os.close(output)
            shutil.rmtree(self._base / str(pid), ignore_errors=True)
            self._verified[name] = status == 0
            if status:
                print(f"left out: {name}", flush=True)
        return self._verified[name]

    def _say(self, mutant: Mutant, outcome: Outcome, killer: str) -> None:
        self.outcomes[mutant] = outcome
        print(f"{outcome}: {mutant}\n    {killer}", flush=True)
        with (FOLDER / "outcomes.jsonl").open("a") as file:
            file.write(json.dumps({**asdict(mutant), "outcome": outcome, "by": killer}) + "\n")

    # In a fork ----------------------------------------------------------------------------------

    def _changed(self, code: CodeType) -> list[tuple[FunctionType, CodeType]]:
        """Return the functions whose code differs in the mutant, each with its new code."""
        pairs = []
        for new in _functions_in(code):
            for function in self._functions[code.co_filename, new.co_qualname, new.co_firstlineno]:
                old = function.__code__
                if new != old and new.co_freevars == old.co_freevars:
                    pairs.append((function, new))
        return pairs

    def _fork(self, tests: list[str], code: CodeType | None) -> tuple[int, int]:
        """Run tests in a fork until one fails; return its id, and a pipe with the failed test."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid:
            os.close(theirs)
            return pid, ours
        try:
            seconds = 20 + 10 * sum(map(self._record.seconds_of, tests))
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(60 + 10 * int(seconds))
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            base = self._base / str(os.getpid())
            base.mkdir()
            self._session.config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]
            for function, new in [] if code is None else self._changed(code):
                function.__code__ = new
            for cache in self._caches:
                cache.cache_clear()
            items = [self._items[name] for name in tests]
            for item, following in zip_longest(items, items[1:]):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self._session.testsfailed:
                    os.write(theirs, item.nodeid.encode())
                    os._exit(1)
            os._exit(0)
        finally:
            os._exit(2)


# The sample --------------------------------------------------------------------------------------


def sample(seed: int, number: int) -> Iterator[tuple[Mutant, CodeType]]:
    """Return `number` mutants of each module in random order, one module after the other."""
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    modules = [Module(path) for path in module_paths()]
    print(f"seed {seed}: {number} of each module, of {sum(map(len, modules))} mutants", flush=True)
    orders = [rng.sample(range(len(module)), min(number, len(module))) for module in modules]
    for row in zip_longest(*orders):
        for module, place in zip(modules, row, strict=True):
            if place is not None:
                with suppress(SyntaxError):
                    yield module.mutant(place)


def equivalent() -> dict[tuple[str, str, str], str]:
    """Return the reasons of mutants that no test can notice, by path, before and after."""
    listed = tomllib.loads(EQUIVALENT.read_text())["mutant"]
    return {(each["path"], each["before"], each["after"]): each["reason"] for each in listed}


def report(outcomes: dict[Mutant, Outcome]) -> bool:
    """Print the counts and every survivor; tell whether enough mutants were killed."""
    known = equivalent()
    same = [each for each in outcomes if (each.path, each.before, each.after) in known]
    alive = [
        mutant
        for mutant, outcome in outcomes.items()
        if outcome in ("survived", "not run") and mutant not in same
    ]
    counts = Counter(outcomes.values())
    tried = len(outcomes) - len(same)
    if not tried:
        print("no mutant was tried")
        return False
    rate = binomtest(tried - len(alive), tried).proportion_ci(0.95, method="exact")
    print("\nsurvivors:", *alive, sep="\n")
    print(f"\n{len(outcomes)} tried: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    print(f"{len(same)} equivalent; of the others {tried - len(alive)} of {tried} were noticed:")
    share = 1 - len(alive) / tried
    print(f"{share:.1%}, 95 % interval {rate.low:.1%} to {rate.high:.1%} (Clopper, Pearson)")
    return share >= LEAST_KILLED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--number", type=int, default=2, help="mutants of each module")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600.0, help="start no mutant after them")
    parser.add_argument("--keep-record", action="store_true", help="use the last run's record")
    options = parser.parse_args()
    os.nice(19)
    os.chdir(ROOT)
    if not options.keep_record:
        record(options.processes)
    trial = Trial(
        sample(options.seed, options.number),
        processes=options.processes,
        until=time.time() + 60 * options.minutes,
    )
    plugins_off = [f"-pno:{name}" for name in ("cacheprovider", "xdist", "faulthandler", "timeout")]
    pytest.main(["-q", "-s", *plugins_off, *CHOICE, *test_paths()], plugins=[trial])
    return 0 if report(trial.outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Hidden rules: what of the product only exhaustive tests reach, which run before a release.

    python -m tests.hidden_rules                            # all suites: hours, on all cores
    python -m tests.hidden_rules tests/test_party           # its tests alone, into the same record
    python -m tests.hidden_rules --suite exhaustive --timeout 60 tests/test_party
    python -m tests.hidden_rules --no-run                   # compare what is recorded

Each suite runs with a record of lines and branches, of its child processes, too. Then every line
and branch that the exhaustive suite reaches must be reached by the quick or the slow one. What a
process does before it is killed is in no record.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from coverage import Coverage, CoverageData

ROOT: Final = Path(__file__).parents[1]
RECORDS: Final = ROOT / ".hidden_rules"
EXCEPTIONS: Final = Path(__file__).with_name("hidden_rules.toml")
"""Lines that only exhaustive tests need to reach, each with the reason."""
PRODUCT: Final = ("coordinator", "party", "pate_fed", "protocols")
SUITES: Final = {
    "quick": "not slow and not exhaustive",
    "slow": "slow and not exhaustive",
    "exhaustive": "exhaustive",
}
SETTINGS: Final = """
[run]
branch = true
relative_files = true
parallel = true
data_file = {file}
source = {product}
patch = subprocess,_exit,fork
sigterm = true
disable_warnings = no-data-collected,module-not-imported,module-not-measured,couldnt-parse
"""


def record(suite: str, tests: list[str], timeout_s: float) -> None:
    """Run tests of a suite, and keep one file of what they reach; it replaces their last one."""
    name = re.sub(r"\W+", "-", " ".join(tests))
    RECORDS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hidden-rules-") as folder:
        file = Path(folder, "coverage")
        settings = Path(folder, "settings")
        settings.write_text(SETTINGS.format(file=file, product=",".join(PRODUCT)), "utf-8")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}"]
        # With a context of each test, `conftest` leaves the measuring alone.
        command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--cov-context=test"]
        command += ["-n", "auto", "--dist", "loadfile"]
        command += [f"--timeout={timeout_s}", "-m", SUITES[suite], *tests]
        subprocess.run(command, cwd=ROOT, check=False)
        combined = Coverage(data_file=RECORDS / f"{suite}.{name}", config_file=str(settings))
        combined.combine([str(path) for path in Path(folder).glob("coverage.*")])
        combined.save()


def reached(folder: Path, *suites: str) -> Coverage:
    """Return what all records of some suites hold, kept in a folder meanwhile."""
    files = [str(path) for suite in suites for path in RECORDS.glob(f"{suite}.*")]
    if not files:
        sys.exit(f"hidden_rules: {' and '.join(suites)} tests must be recorded first")
    settings = folder / "settings"
    settings.write_text("[run]\nbranch = true\nrelative_files = true\n", "utf-8")
    found = Coverage(data_file=folder / "-".join(suites), config_file=str(settings))
    found.combine(files, keep=True)
    found.load()
    return found


def hidden(often: Coverage, ever: Coverage) -> list[tuple[str, int, str]]:
    """Return path, line and kind of what the one does not reach and the other one does."""
    found = []
    often_data, ever_data = often.get_data(), ever.get_data()
    for path in sorted(each for each in ever_data.measured_files() if each.endswith(".py")):
        missing = set(often.analysis2(path)[3])
        missing -= set(ever.analysis2(path)[3])
        found += [(path, line, "line") for line in missing]
        taken = often.branch_stats(path)
        for line, (_, number) in ever.branch_stats(path).items():
            if line not in missing and number > taken[line][1]:
                to = targets(ever_data, path, line) - targets(often_data, path, line)
                found.append((path, line, f"branch to {', '.join(map(str, sorted(to)))}"))
    return found


def targets(data: CoverageData, path: str, line: int) -> set[int]:
    """Return the lines to which a line has led; a negative one is the end of a function."""
    return {to for start, to in data.arcs(path) or () if start == line}


def places(path: str, line: str, reason: str) -> set[tuple[str, int]]:
    """Return where an exception holds: lines of its text, with the body of what they define."""
    text = Path(path).read_text("utf-8")
    lines = text.splitlines()
    found = {number for number, each in enumerate(lines, 1) if each.strip() == line}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.lineno in found:
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return {(path, number) for number in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders")
    parser.add_argument("--suite", choices=SUITES, action="append", help="all, if none is named")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds of each test")
    parser.add_argument("--no-run", action="store_true", help="compare what is recorded")
    options = parser.parse_args()
    os.chdir(ROOT)
    for suite in [] if options.no_run else options.suite or SUITES:
        record(suite, options.tests, options.timeout)
    listed = tomllib.loads(EXCEPTIONS.read_text("utf-8")).get("exception", [])
    excused = {place for each in listed if each["reason"] for place in places(**each)}
    found = []
    with tempfile.TemporaryDirectory(prefix="hidden-rules-") as folder:
        often, ever = reached(Path(folder), "quick", "slow"), reached(Path(folder), *SUITES)
        for path, line, kind in hidden(often, ever):
            text = Path(path).read_text("utf-8").splitlines()[line - 1].strip()
            if (path, line) not in excused:
                found.append(f"{path}:{line}: {kind}: {text}")
    print(*found, f"{len(found)} hidden lines and branches", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

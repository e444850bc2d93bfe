"""How much of our code a program reaches: the lines that whoever trusts it must read.

    python -m tests.reach                         # lines of each program
    python -m tests.reach party.decision.guard    # each module, and who imports it
    python -m tests.reach --write                 # renew the page

A module reaches all that it imports anywhere, within functions, too, and for types alone. A name
that a package only passes on leads to the module that defines it. A name in a string leads to a
program that is started as a process of its own, and to the migrations of a package's database.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("pate_fed", "protocols", "party", "coordinator")
PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"

PAGES: Final = "pate_fed.report.pages"
"""Draws a finished run's report for a hospital: a process of its own that holds nothing else."""

PROGRAMS: Final = {
    "party.decision.guard": ("a hospital's guard", 14_000),
    "party.cli.node": ("`pate-party start`", 40_000),
    "party.cli": ("every command of `pate-party`, but for the report", 44_000),
    "coordinator.tally.tally_service": ("`pate-fed tally serve`", 16_000),
    PAGES: ("the report of a finished run", 8_000),
}
"""Module where a program begins: its name, and the most lines that it may reach."""

_TABLE: Final = re.compile(r"(?<=<!-- python -m tests.reach --write -->\n).*?(?=\n\n)", re.DOTALL)


@dataclass(frozen=True)
class House:
    """All our modules.

    Attributes:
        trees: Syntax tree of each, by name.
        lines: Its number of lines.
        packages: Names of those that are a package's own file.
    """

    trees: dict[str, ast.Module]
    lines: dict[str, int]
    packages: frozenset[str]

    @classmethod
    def read(cls, root: Path = ROOT) -> House:
        trees, lines, packages = {}, {}, set()
        for path in (path for package in PACKAGES for path in (root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            if path.name == "__init__.py":
                name = name.removesuffix(".__init__")
                packages.add(name)
            text = path.read_text(encoding="utf-8")
            trees[name], lines[name] = ast.parse(text), len(text.splitlines())
        return cls(trees, lines, frozenset(packages))

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each module imports."""
        return {name: set(self._imported_by(tree)) for name, tree in self.trees.items()}

    def reach(self, start: str) -> dict[str, list[str]]:
        """Return every module that one reaches, itself included, each with those that import it."""
        found: dict[str, list[str]] = defaultdict(list, {start: []})
        waiting = [start]
        while waiting:
            name = waiting.pop()
            for each in self.imports[name]:
                if each not in found:
                    waiting.append(each)
                found[each].append(name)
        return found

    def lines_from(self, start: str) -> int:
        """Return the lines of all modules that one reaches."""
        return sum(self.lines[name] for name in self.reach(start))

    def _imported_by(self, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names if each.name in self.trees)
            elif isinstance(node, ast.ImportFrom) and node.module in self.trees:
                yield from (self._home(node.module, each.name) for each in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from self._started_by(node.value)

    def _started_by(self, text: str) -> Iterator[str]:
        if text in self.packages:
            yield from (name for name in self.trees if name.startswith(f"{text}.migrations."))
        elif text in self.trees and text != PAGES:
            yield text

    def _home(self, module: str, name: str) -> str:
        """Return the module that defines a name of another."""
        if f"{module}.{name}" in self.trees:
            return f"{module}.{name}"
        if module in self.packages:
            for node in ast.walk(self.trees[module]):
                if isinstance(node, ast.ImportFrom) and node.module in self.trees:
                    for each in node.names:
                        if name == (each.asname or each.name):
                            return self._home(node.module, each.name)
        return module


def table(house: House) -> str:
    """Return the page's table, in thousands of lines."""
    rows = [
        f"| {name} | `{start}` | {house.lines_from(start) / 1000:.1f} | {most // 1000} |"
        for start, (name, most) in PROGRAMS.items()
    ]
    head = "| program | begins in | thousand lines | at most |\n|---|---|---|---|\n"
    return head + "\n".join(rows)


def shown() -> str:
    """Return the table that the page shows."""
    [found] = _TABLE.findall(PAGE.read_text(encoding="utf-8"))
    return str(found)


def main() -> None:
    """Print lines, or modules; or renew the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="?", help="list all that it reaches")
    parser.add_argument("--write", action="store_true", help="renew the page")
    asked, house = parser.parse_args(), House.read()
    if asked.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_TABLE.sub(lambda _: table(house), text), encoding="utf-8")
    elif asked.module:
        found = house.reach(asked.module)
        for name in sorted(found, key=house.lines.__getitem__, reverse=True):
            print(f"{house.lines[name]:6} {name}  <- {', '.join(sorted(found[name]))}")
    else:
        for start, (name, most) in PROGRAMS.items():
            print(f"{house.lines_from(start):6} of at most {most}  {name}")


if __name__ == "__main__":
    main()

"""The findings of a doctor: name, state, and advice for each check."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from importlib.metadata import PackageNotFoundError
from typing import Final, Literal, TypeVar

T = TypeVar("T")
Around = TypeVar("Around")

State = Literal["ok", "warn", "fail"]

OK: State = "ok"
WARN: State = "warn"
FAIL: State = "fail"

_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", re.MULTILINE)

_EXIT_CODES: Final[Mapping[State, int]] = {OK: 0, WARN: 1, FAIL: 4}
_MARKS: Final[Mapping[State, str]] = {OK: "ok  ", WARN: "WARN", FAIL: "FAIL"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        state: "ok", "warn" or "fail".
        said: One plain sentence; no secret, no cell.
        advice: The next step; empty where all is well.
    """

    state: State
    said: str
    advice: str = ""


ok: Final = partial(Finding, OK)
warn: Final = partial(Finding, WARN)
fail: Final = partial(Finding, FAIL)


@dataclass(frozen=True, slots=True)
class Check:
    """One check that was made.

    Attributes:
        name: The subject of the check, stable for programs.
        state, said, advice: See `Finding`.
        federation: Name of its membership; empty if it concerns the whole site, and at a
            coordinator.
    """

    name: str
    state: State
    said: str
    advice: str = ""
    federation: str = ""


def unlocked_libraries(version_of: Callable[[str], str]) -> tuple[str, ...]:
    """Return the installed libraries of another version than `requirements.txt` has."""
    text = resources.files("pate_fed").joinpath("requirements.txt").read_text("utf-8")
    locked: dict[str, set[str]] = {}
    for name, version in _LOCKED.findall(text):
        locked.setdefault(name, set()).add(version)
    differing = []
    for name, versions in locked.items():
        with suppress(PackageNotFoundError):  # for another Python, or another system
            if version_of(name) not in versions:
                differing.append(name)
    return tuple(differing)


def made_check(name: str, check: Callable[[], Finding]) -> Check:
    """Make a check; its failure must not hide the others."""
    try:
        found = check()
    except Exception as error:
        said = f"This check could not be made ({type(error).__name__})."
        found = fail(said, "If program and folder are as they were made, report it.")
    return Check(name, found.state, found.said, found.advice)


def made_checks(
    checks: Iterable[tuple[str, Callable[[T, Around], Finding]]], looked_at: T, around: Around
) -> Iterator[Check]:
    """Make checks by name; one that finds a fault does not stop the rest."""
    for name, check in checks:
        yield made_check(name, partial(check, looked_at, around))


def exit_code(checks: Iterable[Check]) -> int:
    """Return 0 where all is well, 1 where there are warnings only, 4 where something fails."""
    return max((_EXIT_CODES[check.state] for check in checks), default=0)


def table_of_checks(checks: Iterable[Check]) -> dict[str, object]:
    """Return a doctor's findings, for programs."""
    found = list(checks)
    return {"exit": exit_code(found), "checks": [asdict(one) for one in found]}


def lines_of_checks(checks: Iterable[Check], *, with_federations: bool = False) -> Iterator[str]:
    """Write a doctor's findings, a line for each check, perhaps with its federation."""
    for one in checks:
        of = f"{one.federation}: " if with_federations and one.federation else ""
        advice = f" {one.advice}" if one.advice else ""
        yield f"{_MARKS[one.state]}  {one.name:14} {of}{one.said}{advice}"

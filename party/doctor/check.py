"""One finding: what was looked at, how it stands, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]

OK: State = "ok"
WARN: State = "warn"
FAIL: State = "fail"

_EXIT_CODES = {OK: 0, WARN: 1, FAIL: 4}


@dataclass(frozen=True, slots=True)
class Check:
    """One check that was made.

    Attributes:
        name: What was looked at, stable for programs.
        state: "ok", "warn" or "fail".
        said: One plain sentence; no secret, no cell.
        advice: What to do; empty where all is well.
        federation: Name of the membership that it is about; empty if about the whole site.
    """

    name: str
    state: State
    said: str
    advice: str = ""
    federation: str = ""


def exit_code(checks: Iterable[Check]) -> int:
    """Return 0 where all is well, 1 where there are warnings only, 4 where something fails."""
    return max((_EXIT_CODES[check.state] for check in checks), default=0)

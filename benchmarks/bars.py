"""How a benchmark reports: bars that are held or missed, as a table or as JSON."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing measured, and the bar that it has to reach.

    Attributes:
        name: What was measured, with its unit.
        value: What came out.
        bar: The least, or where `is_most` the most, that is allowed.
        is_most: On which side of the bar to be.
    """

    name: str
    value: float
    bar: float
    is_most: bool = False

    @property
    def holds(self) -> bool:
        """Tell whether the bar is reached."""
        return self.value <= self.bar if self.is_most else self.value >= self.bar


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing measured that has no bar: it depends on the machine."""

    name: str
    value: float
    unit: str = ""


def report(bars: Sequence[Bar], *, as_json: bool, figures: Sequence[Figure] = ()) -> None:
    """Print the figures and the bars: JSON alone, or a table."""
    if as_json:
        rows = [
            {"name": bar.name, "value": bar.value, "bar": bar.bar, "holds": bar.holds}
            for bar in bars
        ]
        seen = [{"name": one.name, "value": one.value, "unit": one.unit} for one in figures]
        print(json.dumps({"bars": rows, "figures": seen}, indent=1))
        return
    for one in figures:
        print(f"{one.name:80} {one.value:14,.2f}  {one.unit}")
    for bar in bars:
        sign = "<=" if bar.is_most else ">="
        verdict = "holds" if bar.holds else "MISSED"
        print(f"{bar.name:80} {bar.value:10.2f}  {sign} {bar.bar:<8g} {verdict}")


def arguments(description: str | None) -> argparse.Namespace:
    """Read `--format` and `--quick` from the command line."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n", 1)[0])
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    return parser.parse_args()


def cpu_seconds(*actions: Callable[[], object], rounds: int) -> list[float]:
    """Return the median CPU time of each action.

    They take turns, so that a noisy machine meets all alike.
    """
    taken: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    gc.disable()
    for _ in range(rounds):
        for action, times in zip(actions, taken, strict=True):
            start = time.process_time()
            action()
            times.append(time.process_time() - start)
    gc.enable()
    return [median(times) for times in taken]

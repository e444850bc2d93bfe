"""Time of each page of the operator's console, with 100 hospitals, 1,000 runs, 100,000 entries.

Every page is asked through the whole app: guard, session, queries, template; no network. The first
request of each page is left out: it compiles the template. On a busy machine look at the processor
time: a page uses one core.

    python -m benchmarks.console --format json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Final

from coordinator.operator import Coordinator
from coordinator.people import Role
from coordinator.runs.queue import RunState
from tests.support.console import (
    add_entries,
    add_hospitals,
    add_results,
    add_runs,
    browser,
    opened,
)

GOAL_S: Final = 0.3
PAGES: Final = (
    "/",
    "/hospitals",
    "/runs",
    "/runs?before=500",
    "/new-run",
    "/runs/run-1",
    "/privacy",
    "/privacy?run=run-1",
    "/results",
    "/runs/run-1/results",
    "/audit",
    "/audit?before=50000",
    "/audit?search=North5&act=run+paused",
    "/audit?search=nothing-of-this-name",
    "/audit/vote-leak",
    "/people",
    "/health",
)


def filled(coordinator: Coordinator, *, hospitals: int, runs: int, entries: int) -> None:
    """Write a large federation into the database."""
    names = tuple(f"Hospital {number}" for number in range(hospitals))
    add_hospitals(coordinator, *names)
    add_runs(coordinator, *(f"run-{number}" for number in range(1, runs + 1)), hospitals=names)
    add_runs(coordinator, "open", hospitals=names, state=RunState.WAITING, reason="waits")
    add_results(coordinator, "run-1")
    add_entries(coordinator, entries)


def measure(coordinator: Coordinator, *, repeats: int) -> list[dict[str, Any]]:
    """Return the times of each page, in seconds."""
    client = browser(coordinator, Role.ADMINISTRATOR)
    rows = []
    for path in PAGES:
        times, work, answer = [], [], client.get(path)
        assert answer.status_code == 200, (path, answer.status_code)
        for _ in range(repeats):
            start, before = time.perf_counter(), time.process_time()
            client.get(path)
            times.append(time.perf_counter() - start)
            work.append(time.process_time() - before)
        rows.append(
            {
                "page": path,
                "median_s": round(statistics.median(times), 4),
                "most_s": round(max(times), 4),
                "processor_s": round(statistics.median(work), 4),
                "bytes": len(answer.content),
            }
        )
    return rows


def main() -> None:
    """Measure, and print a table or one JSON object."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hospitals", type=int, default=100)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    chosen = parser.parse_args()
    sizes = {name: getattr(chosen, name) for name in ("hospitals", "runs", "entries")}
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder, "federation")) as coordinator:
        filled(coordinator, **sizes)
        rows = measure(coordinator, repeats=chosen.repeats)
    if chosen.format == "json":
        print(json.dumps({"benchmark": "console", **sizes, "goal_s": GOAL_S, "pages": rows}))
        return
    for row in rows:
        mark = "" if row["median_s"] < GOAL_S else "  over the goal"
        print(
            f"{row['page']:40} {row['median_s']:7.3f} s, at most {row['most_s']:.3f} s; "
            f"processor {row['processor_s']:.3f} s{mark}"
        )


if __name__ == "__main__":
    main()

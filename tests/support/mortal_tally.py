"""A tally's process that kills itself: `python -m tests.support.mortal_tally FOLDER MOMENT`.

A moment is "before", "within" or "after" the writing of a number: a step of a check, or "state", a
run's key. "within" is before the transaction ends, "after" before anything is sent. "" is never.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator.database.check_rows import SqlCheckJournal
from coordinator.tally import book
from coordinator.tally.tally_service import serve_tally

MOMENTS = ("before", "within", "after")


def killed_at(moment: str, call: Callable[..., Any], place: Callable[..., object]) -> Any:
    """Return the call, in which the process dies if this is its moment."""
    when, _, where = moment.partition(" ")

    def run(*args: Any, **named: Any) -> Any:
        is_here = str(place(*args)) == where
        if is_here and when == "before":
            die()
        said = call(*args, **named)
        if is_here and when == "after":
            die()
        return said

    return run


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def live_as_tally(folder: Path, moment: str, log: Path) -> None:
    """Serve until the moment; a log has all that is printed."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    main(folder, moment)


def main(folder: Path, moment: str) -> None:
    """Serve until the moment."""
    when, _, where = moment.partition(" ")

    def number(journal: SqlCheckJournal, *_: object) -> int:
        return len(journal._steps)

    for name in ("append", "append_charged"):
        setattr(SqlCheckJournal, name, killed_at(moment, getattr(SqlCheckJournal, name), number))
    if when == "within":
        inner = SqlCheckJournal._write
        written = killed_at(f"after {where}", inner, number)
        SqlCheckJournal._write = written  # type: ignore[method-assign]
        moment = f"after {where}" if where == "state" else ""
        book.note_statement = killed_at(moment, book.note_statement, lambda *_: "state")
    else:
        state = killed_at(moment, book.TallyBook.state, lambda *_: "state")
        book.TallyBook.state = state  # type: ignore[method-assign]
    serve_tally(folder, on_ready=lambda port: print(port, flush=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

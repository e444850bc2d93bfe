"""A process that dies while it writes its journal: at a chosen step, or whenever it is killed.

``python -m tests.support.journal_victim FOLDER`` plays one life of a party for every step at which
the disk is touched, each in a forked process that ends there, and writes what that life was told
was done into ``FOLDER/<step>/acknowledged``.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from party.file_journal import FileJournal
from protocols.errors import KeyReuseError

RUN = b"r" * 32
PLANS = [bytes([number]) * 32 for number in range(1, 4)]
DIED, LIVED = 9, 0


def queries_of(place: int) -> list[bytes]:
    return [hashlib.sha256(bytes([place, number])).digest() for number in range(3)]


def y_of(place: int, life: str) -> bytes:
    """A y that would differ each time it is computed."""
    return hashlib.sha256(bytes([place]) + life.encode()).digest() * 400


def live(folder: Path, life: str, tell: Callable[[str], None]) -> None:
    """Serve all plans as a party does: send again what is stored, else begin, keep and send."""
    with FileJournal(folder) as journal:
        for place, plan in enumerate(PLANS):
            stored = journal.find(plan)
            if stored is not None:
                tell(f"sent {place} {stored[0].hex()}")
                continue
            try:
                if not journal.any_answered(queries_of(place)):
                    journal.claim(queries_of(place), plan_digest=plan)
                    tell(f"claimed {place}")
                journal.begin(run_id=RUN, epoch=place + 1, plan_digest=plan)
            except KeyReuseError:
                continue  # begun before, and no y kept: it stays silent for ever
            tell(f"begun {place}")
            frame = y_of(place, life)
            journal.keep(plan, (frame,), expires_at=10_000)
            tell(f"sent {place} {frame.hex()}")
            if place == 0:
                journal.witness({b"peer": 5})
                journal.erase(plan)
                tell(f"erased {place}")


def die_at(step: int) -> None:
    """Let this process end at its `step`-th touch of the disk, a write half done among them."""
    steps = count(1)

    def touch() -> None:
        if next(steps) == step:
            os._exit(DIED)

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def touched(*arguments: Any) -> Any:
            touch()
            done = call(*arguments)
            touch()
            return done

        return touched

    write = os.write

    def half_write(file: int, data: Any) -> int:
        touch()
        done = write(file, data[: len(data) // 2])
        touch()
        done += write(file, data[len(data) // 2 :])
        touch()
        return done

    os.write = half_write  # type: ignore[assignment]
    for name in ("fsync", "replace", "unlink", "ftruncate"):
        setattr(os, name, around(getattr(os, name)))


def acknowledging(path: Path) -> Callable[[str], None]:
    """Write lines past the victim's own hooks."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    write = os.write

    def tell(line: str) -> None:
        write(file, f"{line}\n".encode())

    return tell


def lives(folder: Path, steps: Iterator[int]) -> None:
    """Fork one life per step, until one lives to its end."""
    for step in steps:
        child = os.fork()
        if child == 0:
            place = folder / str(step)
            place.mkdir()
            tell = acknowledging(place / "acknowledged")
            die_at(step)
            live(place / "journal", f"first {step}", tell)
            os._exit(LIVED)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code not in (DIED, LIVED):
            raise SystemExit(f"step {step} ended with {code}")
        if code == LIVED:
            return


if __name__ == "__main__":
    if sys.argv[1] == "for-ever":
        target = Path(sys.argv[2])
        say = acknowledging(target / "acknowledged")
        with FileJournal(target / "journal") as endless:
            for number in count(1):
                digest = hashlib.sha256(number.to_bytes(4, "big")).digest()
                endless.begin(run_id=RUN, epoch=number, plan_digest=digest)
                say(f"begun {digest.hex()}")
                endless.keep(digest, (digest * 300,), expires_at=10_000)
                say(f"kept {digest.hex()}")
    else:
        lives(Path(sys.argv[1]), count(1))

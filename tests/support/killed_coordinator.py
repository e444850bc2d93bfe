"""A coordinator in a process of its own that is killed (SIGKILL) at random moments and comes back.

``python -m tests.support.killed_coordinator FOLDER KIND FORM SEED`` keeps the parties in this
process and forks one coordinator after the other, until one of them ends the run. What the two
processes have in common is what a network and a disk would give them. It prints what was found.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.runs.transport import Silence, Transport
from protocols.values import decode_value, encode_value
from tests.support.killing import PARTIES, MortalFederation

MOST_LIVES = 60
_LENGTH_BYTES = 4


class PipeTransport(Transport):
    """The coordinator's end: asks the process that has the parties."""

    def __init__(self, reading: int, writing: int) -> None:
        super().__init__()
        self._reading, self._writing = reading, writing

    def nodes(self) -> list[int]:
        return list(range(PARTIES))

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        write_message(self._writing, [[node, packet] for node, packet in packets.items()])
        answers = read_message(self._reading)
        assert answers is not None
        return {node: answer for node, answer in answers if answer is not None}


def write_message(file: int, content: list[Any]) -> None:
    body = encode_value(content)
    view = memoryview(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    while view:
        view = view[os.write(file, view) :]


def read_message(file: int) -> Any:
    """Read one message; None where its writer died."""
    head = _read(file, _LENGTH_BYTES)
    body = None if head is None else _read(file, int.from_bytes(head, "big"))
    return None if body is None else decode_value(body)


def _read(file: int, size: int) -> bytes | None:
    found = b""
    while len(found) < size:
        piece = os.read(file, size - len(found))
        if not piece:
            return None
        found += piece
    return found


def live(federation: MortalFederation, *, is_first: bool) -> None:
    """What a coordinator does from its start to its end."""
    federation._noise = secrets.token_bytes
    if is_first:
        federation.open()
        federation.run.set_up()
        write_message(federation.transport._writing, [])  # type: ignore[attr-defined]
        assert read_message(federation.transport._reading) == []  # type: ignore[attr-defined]
    else:
        federation.resume()
        federation.lives = 2
    federation.work()


def serve(federation: MortalFederation, *, span: float, is_first: bool) -> bool:
    """Let one coordinator live until it ends, or is killed; tell whether it ended.

    Args:
        federation: Its parties.
        span: Seconds that it may live; of the first one, from the end of the setup on.
        is_first: Whether it begins the run.
    """
    to_child, from_parent = os.pipe()[::-1]
    from_child, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        os.close(from_child)
        code = 1
        try:
            federation.transport = PipeTransport(from_parent, to_parent)  # type: ignore[assignment]
            live(federation, is_first=is_first)
            code = 0
        finally:
            os._exit(code)
    os.close(from_parent)
    os.close(to_parent)
    deadline = None if is_first else time.monotonic() + span
    try:
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready, _, _ = select.select([from_child], [], [], left)
            if not ready:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return False
            packets = read_message(from_child)
            if packets is None:
                _, status = os.waitpid(child, 0)
                if os.waitstatus_to_exitcode(status):
                    raise SystemExit("a coordinator failed")
                return True
            if not packets:  # the run is set up: from here on it may be killed
                deadline = time.monotonic() + span
            answers = federation.transport._carry(dict(packets)) if packets else {}
            write_message(to_child, [[node, answer] for node, answer in answers.items()])
    finally:
        os.close(to_child)
        os.close(from_child)


def main(folder: Path, kind: str, form: str, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - picks when to kill
    federation = MortalFederation(folder, kind=kind, form=form, opens=False)
    for number in range(MOST_LIVES):
        # Longer and longer, so that a slow machine gets to the end, too.
        span = chance.uniform(0.005, 0.1 * 1.2**number)
        if serve(federation, span=span, is_first=number == 0):
            break
    else:
        raise SystemExit(f"a coordinator did not end in {MOST_LIVES} lives")
    from tests.test_coordinator.test_resume import check  # noqa: PLC0415

    federation.resume()
    federation.run.finish()
    check(federation, kind, form)
    sys.stdout.write(f"lives {number + 1}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))

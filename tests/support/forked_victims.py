"""Processes that come to grief: forked from one that has loaded their programs, which is slow."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from tests.support.forks import FORKS

Victim = Callable[..., None]


def start_victim(victim: Victim, *arguments: object) -> ForkServerProcess:
    """Start a process that does what this function does."""
    process = FORKS.Process(target=victim, args=arguments, daemon=True)
    process.start()
    return process


def words_of(victim: Victim, *arguments: object) -> str:
    """Run such a process to its end; return what it printed."""
    ours, its = FORKS.Pipe(duplex=False)
    process = start_victim(_speak, its, victim, *arguments)
    its.close()
    with ours:
        said: str = ours.recv()  # ends with an error if the process ended without a word
    process.join()
    assert process.exitcode == 0
    return said


def _speak(listener: Connection, victim: Victim, *arguments: object) -> None:
    with redirect_stdout(io.StringIO()) as said:
        victim(*arguments)
    listener.send(said.getvalue())

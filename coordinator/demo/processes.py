"""People at their terminals: commands are typed, shown and run; what runs on is stopped in the end.

Every process is one that was started here, and is known by its own number.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from coordinator.errors import DemoError
from pate_fed.regular_files import read_regular

END_S = 40.0
"""How long a service may take to end by itself before it is killed."""

_POLL_S = 0.1
_LAST_LINES = 15


_IS_COUNTING = re.compile(r"Teacher (\d+) of (?!\1 )\d+ is trained\.")
"""Of a count the last line is shown."""


@dataclass
class Terminal:
    """One organization's terminal: its own folder, its own processes.

    Attributes:
        who: Shown before the prompt.
        folder: Where its people stand.
        say: Takes every line that is to be shown.
    """

    who: str
    folder: Path
    say: Callable[[str], None] = print
    _stage: Stage | None = field(default=None, repr=False)

    def type(self, *words: object, codes: Sequence[int] = (0,)) -> str:
        """Run a command to its end, show it and what it printed; return that.

        Raises:
            DemoError: it ended with another code.
        """
        command = [str(word) for word in words]
        self.say(f"{self.who}$ {shlex.join(command)}")
        process = self._start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        printed = process.communicate()[0].decode(errors="replace")
        for line in printed.splitlines():
            if not _IS_COUNTING.fullmatch(line):
                self.say(f"    {line}")
        if process.returncode not in codes:
            must = f"{self.who}: {shlex.join(command)} must succeed"
            raise DemoError(must, f"exit code {process.returncode}")
        return printed

    def leave_running(self, *words: object) -> LeftRunning:
        """Start a command that runs on; what it prints goes into a file beside it."""
        command = [str(word) for word in words]
        self.say(f"{self.who}$ {shlex.join(command)}")
        log = self.folder / f"{command[0]}-{command[1]}.log"
        with log.open("ab") as output:
            process = self._start(command, stdout=output, stderr=subprocess.STDOUT)
        return LeftRunning(f"{self.who}: {shlex.join(command)}", process, log)

    def _start(
        self, command: list[str], *, stdout: int | IO[bytes], stderr: int
    ) -> subprocess.Popen[bytes]:
        assert self._stage is not None
        return self._stage.start(command, self.folder, stdout=stdout, stderr=stderr)


@dataclass
class LeftRunning:
    """A process that runs on.

    Attributes:
        name: What was typed, and by whom.
        process: The process.
        log: What it prints.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def printed(self) -> str:
        """What it printed until now."""
        return read_regular(self.log).decode(errors="replace")

    def require_alive(self) -> None:
        """Make sure that it has not ended.

        Raises:
            DemoError: it has.
        """
        if self.process.poll() is not None:
            last = "\n    ".join(self.printed.splitlines()[-_LAST_LINES:])
            got = f"exit code {self.process.returncode}:\n    {last}"
            raise DemoError(f"{self.name} must run on", got)


class Stage:
    """All processes of a demonstration: started here, and stopped here whatever happens."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._is_over = False
        # A machine's proxy and its accelerator have no part in this.
        self._environment = {
            **os.environ,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self._path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))

    def terminal(self, who: str, folder: Path) -> Terminal:
        """Open a terminal in a new folder."""
        folder.mkdir(parents=True)
        return Terminal(who, folder, _stage=self)

    def start(
        self, command: list[str], folder: Path, *, stdout: int | IO[bytes], stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start a process, unless all is over.

        Raises:
            DemoError: the program is not installed, or all is over.
        """
        program = shutil.which(command[0], path=self._path)
        if program is None:
            raise DemoError("programs must stand beside Python", f"no {command[0]}")
        with self._lock:
            if self._is_over:
                raise DemoError("no command is typed once the demonstration is being stopped")
            process = subprocess.Popen(  # noqa: S603 - the commands of this demonstration
                [program, *command[1:]],
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # a Ctrl-C is ours, and we stop them in order
            )
            self._processes.append(process)
        return process

    def stop(self) -> None:
        """Stop whatever still runs: hospitals, then the coordinator, which was the first."""
        with self._lock:
            self._is_over = True
        running = [one for one in self._processes if one.poll() is None]
        for group in (running[1:], running[:1]):
            for process in group:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            for process in group:
                _wait_or_kill(process)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(what: str, is_true: Callable[[], bool], *, seconds: float) -> None:
    """Wait for something.

    Raises:
        DemoError: it did not come in time.
    """
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise DemoError(f"{what} must come within {seconds:g} seconds")
        time.sleep(_POLL_S)

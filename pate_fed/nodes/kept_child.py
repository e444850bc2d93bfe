"""A child process: started, watched, restarted when it ends, and ended with us."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from pate_fed.nodes.logs import pass_on, write_logs
from pate_fed.nodes.owner_files import OWNER_ONLY
from pate_fed.nodes.terminal import place_of

_END_S: Final = 20.0
_LAST_WORDS_S: Final = 5.0
"""How long to wait for its last lines: they name the reason of its end."""

_LOOK_S: Final = 0.1
_ASK_S: Final = 1.0
"""How often to ask whether it may start."""

_MOST_LOG_BYTES: Final = 2**20


class KeptChild:
    """Keeps a program of ours running until `stop`.

    Its standard input closes when we end for any reason: the program must end then. It ends at
    SIGTERM, too; one that does not is killed.

    Args:
        fault_code: Public code of a child that cannot be started.
        log: File for its output, with one older file beside it; without it, our own log.
        pauses: Seconds before it is started again: at first, and at most.
        backs_off: Given its life in seconds, tells whether the next pause doubles.
        may_start: Asked after a pause: while it says no, there is no start but for one each
            longest pause.

    Attributes:
        ends: How often it ended by itself.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        logger: logging.Logger,
        fault_code: str,
        pauses: tuple[float, float],
        backs_off: Callable[[float], bool],
        may_start: Callable[[], bool] = lambda: True,
        log: Path | None = None,
    ) -> None:
        self.starts = 0
        self.ends = 0
        self.ended_with: int | None = None
        self._name = name
        self._command = list(command)
        self._environment = dict(environment)
        self._logger = logger
        self._fault_code = fault_code
        self._log = log
        self._pauses = pauses
        self._backs_off = backs_off
        self._may_start = may_start
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    @property
    def pid(self) -> int | None:
        """Number of its process; None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def is_kept(self) -> bool:
        """Whether it is started again when it ends."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start it, and keep it running."""
        self._thread.start()

    def stop(self) -> None:
        """End it for good."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _END_S)

    def look(self) -> float:
        """Check its state, again and again while it lives; return seconds until the next check."""
        return _LOOK_S

    # Helpers ----------------------------------------------------------------------------------

    def _keep(self) -> None:
        first, longest = self._pauses
        pause = first / 2
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                self._live()
            except Exception as error:
                # No process, memory or file is available for now: nobody else would try again.
                self._logger.error(  # noqa: TRY400 - a traceback may hold secrets
                    "[%s] %s is tried again after %s",
                    self._fault_code,
                    self._name,
                    place_of(error),
                )
            else:
                if not self._stopped.is_set():
                    self.ends += 1
                    self._logger.warning(
                        "%s ended with %s; it is started again", self._name, self.ended_with
                    )
            backs_off = self._backs_off(time.monotonic() - started)
            pause = min(2 * pause, longest) if backs_off else first
            self._stopped.wait(pause)
            latest = time.monotonic() + longest
            while time.monotonic() < latest and not (self._stopped.is_set() or self._may_start()):
                self._stopped.wait(_ASK_S)

    def _live(self) -> None:
        """Start it, and watch it until it ends or must end."""
        self._process = process = self._spawn()
        self.starts += 1
        listener = threading.Thread(target=self._listen_to, args=(process,), daemon=True)
        listener.start()
        try:
            while process.poll() is None and not self._stopped.is_set():
                self._stopped.wait(self.look())
        finally:
            self._end(process)
            listener.join(_LAST_WORDS_S)
        self.ended_with = process.returncode

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._output() as output:
            return subprocess.Popen(  # noqa: S603 - a command line of our own
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C is ours to pass on
                umask=0o077,  # its output is for the owner alone
            )

    def _output(self) -> contextlib.AbstractContextManager[int | BinaryIO]:
        path = self._log
        if path is None:
            return contextlib.nullcontext(subprocess.PIPE)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _MOST_LOG_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, OWNER_ONLY), "ab")

    def _listen_to(self, process: subprocess.Popen[bytes]) -> None:
        """Write down its output until it ends: log lines and other text."""
        if process.stdout is not None:
            with process.stdout as lines:
                for line in lines:
                    pass_on(line.decode(errors="replace"), said_by=self._name)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._logger.error("%s did not end, and is killed", self._name)  # noqa: TRY400
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()


def become_child(ours: str) -> None:
    """Log as the parent does, and be told to end when the parent has ended."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # our parent blocks signals
    write_logs(ours)
    end_with_parent()


def end_with_parent() -> None:
    """Have this process told to end, by SIGTERM, when its parent has ended."""

    def follow() -> None:
        wait_for_parent_to_end()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def wait_for_parent_to_end() -> None:
    """Wait, in a child, until our parent has ended, however it was killed.

    Its end of our standard input closes then.
    """
    while os.read(sys.stdin.fileno(), 1):
        pass

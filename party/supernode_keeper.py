"""Keeps a SuperNode running beside us, and ends it with us.

A SuperNode that was killed is turned away by the coordinator for about a minute and gives up; one
whose key is not approved yet does the same. Both are ridden out: it is started again every few
seconds, whatever it ended with. Where the coordinator is known to have revoked the hospital, more
and more seldom: it would be turned away every time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

PAUSE_S = 5.0
_MOST_PAUSES = 12
_PATIENCE_S = 20.0
_MOST_LOG_BYTES = 2**20
_OWNER_ONLY = 0o600

_log = logging.getLogger(__name__)


class SuperNodeKeeper:
    """Starts a SuperNode again and again, until it is told to stop.

    Args:
        command: Its command line.
        environment: Its environment.
        log: File for what it prints; one older file is kept beside it.
        pause_s: Seconds between its end and its next start.
        is_revoked: Whether the coordinator said that it revoked this hospital.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        pause_s: float = PAUSE_S,
        is_revoked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._log_path = log
        self._pause_s = pause_s
        self._is_revoked = is_revoked
        self._stopped = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="supernode", daemon=True)
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Number of the process; None while there is none."""
        child = self._child
        return None if child is None or child.poll() is not None else child.pid

    def start(self) -> None:
        """Start it, and keep it running."""
        self._thread.start()

    def close(self) -> None:
        """End it: it says good-bye to the coordinator, so that it may come back at once."""
        self._stopped.set()
        child = self._child
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive() and child is not None:
            _log.error("the SuperNode did not end, and is killed")
            child.kill()
            self._thread.join(_PATIENCE_S)

    def _keep(self) -> None:
        pause_s = self._pause_s
        while not self._stopped.is_set():
            try:
                self._run_once()
            except OSError as error:
                _log.error("the SuperNode cannot be started: %s", error.strerror)
            self._stopped.wait(pause_s)
            longer = min(2 * pause_s, _MOST_PAUSES * self._pause_s)
            pause_s = longer if self._is_revoked() else self._pause_s

    def _run_once(self) -> None:
        with self._open_log() as log:
            self._child = subprocess.Popen(  # noqa: S603 - a command line of our own
                self._command,
                # It ends when this pipe closes, whatever killed us.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # a Ctrl-C is ours to pass on
                umask=0o077,  # what it writes is for the owner alone
            )
        self.starts += 1
        if self._stopped.is_set():  # told while it started
            self._child.terminate()
        ended_with = self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()
        _log.info("the SuperNode ended with %s", ended_with)

    def _open_log(self) -> BinaryIO:
        path = self._log_path
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _MOST_LOG_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, _OWNER_ONLY), "ab")

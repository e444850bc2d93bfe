"""Keeps the SuperLink's process alive: started, watched, started again, ended with us."""

from __future__ import annotations

import logging
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Final

import httpx

from coordinator.errors import SuperLinkError
from coordinator.home import LOOPBACK, FederationHome
from pate_fed.nodes import QUIET_FLOWER, pass_on, place_of

_NO_PROXY: Final[Mapping[str, str]] = {"NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}
"""Loopback goes through nobody's proxy."""

NO_PORT: Final = 75
"""Exit code of its process where a port is somebody else's."""

_PORT_TRIES: Final = 4
"""A service that was killed may leave its port behind for some seconds."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_IS_STEADY_S: Final = 60.0
_POLL_S: Final = 0.5
_END_S: Final = 15.0
_LAST_WORDS_S: Final = 5.0
"""How long its last lines are waited for: why it ended is written before that it did."""
_log = logging.getLogger(__name__)


def flower_variables(home: FederationHome) -> dict[str, str]:
    """Return what every process that runs Flower for a federation has in its environment."""
    flower = str(home.path("flower").absolute())
    return {**QUIET_FLOWER, **_NO_PROXY, "FLWR_HOME": flower}


class SuperLinkChild:
    """The SuperLink's process.

    Args:
        home: The federation.

    Attributes:
        restarts: How often it had to be started again.
        lacks_port: Whether it ended, the last time, because a port was somebody else's.
    """

    def __init__(self, home: FederationHome) -> None:
        self._home = home
        self.restarts = 0
        self.lacks_port = False
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._is_ready = False
        self._thread = threading.Thread(target=self._watch, name="superlink", daemon=True)
        context = ssl.create_default_context(cadata=home.ca_certificate.decode())
        self._client = httpx.Client(
            base_url=f"https://{LOOPBACK}:{home.settings.admin_port}",
            verify=context,
            timeout=5.0,
            trust_env=False,
        )

    @property
    def is_ready(self) -> bool:
        """Whether it answered when it was last asked."""
        return self._is_ready

    @property
    def is_kept(self) -> bool:
        """Whether it is started again when it ends."""
        return self._thread.is_alive()

    @property
    def pid(self) -> int | None:
        """Number of its process, if there is one."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        """Start it, and keep it alive from now on."""
        self._thread.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until it answers; tell whether it did. For a port it does not wait that long."""
        deadline = time.monotonic() + timeout_s
        while not self._is_ready and time.monotonic() < deadline and not self._stopped.is_set():
            if self.lacks_port and self.restarts >= _PORT_TRIES:
                break
            time.sleep(0.05)
        return self._is_ready

    def stop(self) -> None:
        """End it: its standard input closes; what does not end then is killed."""
        self._stopped.set()
        self._thread.join(_END_S + 10)
        self._client.close()

    def _watch(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            started = time.monotonic()
            try:
                ended = self._live()
            except Exception as error:
                # No process, no memory, no file to be had for now: nobody else would try again.
                ended = None
                code = SuperLinkError.code
                _log.error("[%s] the SuperLink is tried again after %s", code, place_of(error))
            if self._stopped.is_set():
                return
            if ended is not None:
                self.lacks_port = ended == NO_PORT
                self.restarts += 1
                _log.error("the SuperLink ended with %s; it is started again", ended)
            if time.monotonic() - started > _IS_STEADY_S:
                pause = _FIRST_PAUSE_S
            self._stopped.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _live(self) -> int:
        """Start it and watch it until it ends or has to; return its exit code."""
        self._process = process = self._spawn()
        listener = threading.Thread(target=_listen_to, args=(process,), daemon=True)
        listener.start()
        try:
            while process.poll() is None and not self._stopped.is_set():
                self._is_ready = self._answers()
                self._stopped.wait(_POLL_S if self._is_ready else 0.1)
        finally:
            self._is_ready = False
            self._end(process)
            listener.join(_LAST_WORDS_S)
        return process.returncode

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "coordinator.superlink_process"]
        return subprocess.Popen(  # noqa: S603 - our own program
            [*command, str(self._home.folder.absolute())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **flower_variables(self._home)},
        )

    def _answers(self) -> bool:
        try:
            return self._client.get("/health").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        pipe: IO[bytes] | None = process.stdin
        if pipe is not None:
            pipe.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listen_to(process: subprocess.Popen[bytes]) -> None:
    """Write down what it prints until it ends: its log lines, and what is none."""
    if process.stdout is None:
        return
    with process.stdout as lines:
        for line in lines:
            pass_on(line.decode(errors="replace"), said_by="the SuperLink")

"""Keeps the SuperLink's process alive, and knows whether it answers."""

from __future__ import annotations

import logging
import os
import ssl
import sys
import time
from collections.abc import Mapping
from typing import Final

import httpx

from coordinator.errors import SuperLinkError
from coordinator.federation.home import LOOPBACK, FederationHome
from pate_fed.nodes import QUIET_FLOWER, KeptChild

_NO_PROXY: Final[Mapping[str, str]] = {"NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}
"""Loopback goes through nobody's proxy."""

NO_PORT: Final = 75
"""Exit code of its process where another process has a port."""

_PORT_TRIES: Final = 4
"""A service that was killed may leave its port behind for some seconds."""

_PAUSES: Final = (1.0, 30.0)
_IS_STEADY_S: Final = 60.0
_READY_LOOK_S: Final = 0.5
_log = logging.getLogger(__name__)


def flower_variables(home: FederationHome) -> dict[str, str]:
    """Return the environment of every process that runs Flower for a federation."""
    flower = str(home.path("flower").absolute())
    return {**QUIET_FLOWER, **_NO_PROXY, "FLWR_HOME": flower}


class SuperLinkChild(KeptChild):
    """The SuperLink's process."""

    def __init__(self, home: FederationHome) -> None:
        program = [sys.executable, "-P", "-m", "coordinator.flower.superlink_process"]
        super().__init__(
            "the SuperLink",
            [*program, str(home.folder.absolute())],
            environment={**os.environ, **flower_variables(home)},
            logger=_log,
            fault_code=SuperLinkError.code,
            pauses=_PAUSES,
            backs_off=lambda lived_s: lived_s <= _IS_STEADY_S,
        )
        self._answered = 0
        context = ssl.create_default_context(cadata=home.ca_certificate.decode())
        self._client = httpx.Client(
            base_url=f"https://{LOOPBACK}:{home.settings.admin_port}",
            verify=context,
            timeout=5.0,
            trust_env=False,
        )

    @property
    def is_ready(self) -> bool:
        """Whether it answered the last question."""
        return self.pid is not None and self._answered == self.starts

    @property
    def lacks_port(self) -> bool:
        """Whether it last ended because another process had a port."""
        return self.ended_with == NO_PORT

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until it answers; tell whether it did. For a port it does not wait that long."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready and time.monotonic() < deadline and not self._stopped.is_set():
            if self.lacks_port and self.ends >= _PORT_TRIES:
                break
            time.sleep(0.05)
        return self.is_ready

    def stop(self) -> None:
        """See `KeptChild.stop`."""
        super().stop()
        self._client.close()

    def look(self) -> float:
        """Ask it for its health; see `KeptChild.look`."""
        answers = self._answers()
        self._answered = self.starts if answers else 0
        return _READY_LOOK_S if answers else super().look()

    def _answers(self) -> bool:
        try:
            return self._client.get("/health").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

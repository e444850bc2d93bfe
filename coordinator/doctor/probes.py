"""The machine and the service as the doctor meets them; tests put others in their place."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from coordinator.errors import CoordinatorError
from coordinator.federation.home import LOCK_FILE, LOOPBACK, FederationHome, utc_now
from coordinator.federation.readiness import readiness
from coordinator.operator import Coordinator
from coordinator.tally.tally_client import TallyClient
from pate_fed.nodes import free_disk, is_locked
from pate_fed.nodes.ports import why_not_ours

_TIMEOUT_S = 10.0
_ANY_HOST: Final[Mapping[str, str]] = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104 - no socket


def _is_served(home: FederationHome) -> bool:
    return is_locked(home.path(LOCK_FILE))


def _shown_certificate(home: FederationHome) -> bytes:
    host = _ANY_HOST.get(home.settings.host, home.settings.host)
    place = host, home.settings.port
    return ssl.get_server_certificate(place, timeout=_TIMEOUT_S).encode()


def _is_tally_there(home: FederationHome) -> bool:
    card = home.tally
    return card is not None and TallyClient(card, home.tally_key).is_there(timeout_s=_TIMEOUT_S)


def _nodes_online(home: FederationHome) -> frozenset[int] | None:
    with closing(Coordinator(home)) as coordinator:
        try:
            nodes = coordinator.superlink().nodes()
        except CoordinatorError:
            return None
    return frozenset(one.node_id for one in nodes if one.status == "online")


@dataclass(frozen=True, slots=True)
class CoordinatorProbes:
    """The doctor's questions to the world.

    Attributes:
        why_not_ours: Why a port of a host is not available; "" if it is.
        readiness: Which of the service's parts are ready; None where it does not say.
        certificate: The certificate at the public port, PEM; `OSError` if it does not answer.
        online: Numbers of the nodes that are connected; None if unknown.
        is_tally_there: Whether the pinned tally takes a connection.
    """

    clock: Callable[[], datetime] = utc_now
    user: int = field(default_factory=os.geteuid)
    free_disk: Callable[[Path], int] = free_disk
    why_not_ours: Callable[[str, int], str] = why_not_ours
    is_served: Callable[[FederationHome], bool] = _is_served
    readiness: Callable[[FederationHome], dict[str, bool] | None] = readiness
    certificate: Callable[[FederationHome], bytes] = _shown_certificate
    online: Callable[[FederationHome], frozenset[int] | None] = _nodes_online
    is_tally_there: Callable[[FederationHome], bool] = _is_tally_there

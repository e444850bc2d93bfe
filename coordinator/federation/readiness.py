"""Asks a federation's service, from another process, whether it can work on runs.

The database has the state of a run. It cannot tell that nobody works on it, or that nothing can be
written. The service says it on loopback, at `/readyz`, as `coordinator.monitoring` answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from typing import Final

from coordinator.errors import DatabaseError
from coordinator.federation.home import LOOPBACK, FederationHome

_PATIENCE_S: Final = 10.0

_WORDS: Final[Mapping[str, str]] = {
    "certificate": "the server's certificate has ended: the machine's administrator issues "
    "another, by `pate-fed renew`",
    "database": f"nothing can be stored [{DatabaseError.code}]: look at disk and rights",
    "superlink": "the SuperLink does not answer",
    "worker": "a part of it has ended: see its log",
}


def readiness(home: FederationHome) -> dict[str, bool] | None:
    """Ask the service which of its parts are ready; None without an answer."""
    connection = HTTPConnection(LOOPBACK, home.settings.metrics_port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/readyz")
        content = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError, RecursionError):
        return None
    finally:
        connection.close()
    if not isinstance(content, dict):
        return None
    return {part: content[part] is True for part in _WORDS if part in content}


def what_is_missing(parts: Mapping[str, bool] | None) -> list[str]:
    """List the faults that keep a service from working on runs, a line each."""
    if parts is None:
        return [
            "no service runs, so nobody works on runs: the machine's administrator starts it, by "
            "`pate-fed serve`"
        ]
    return [_WORDS[part] for part, is_ready in parts.items() if not is_ready]

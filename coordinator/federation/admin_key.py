"""The key that the admin port demands from every caller; it follows from the federation's secret.

The port is on loopback, where every user of the machine may call. Flower demands a secret for
taking a task, but none for letting a node in or starting a run. The key leaves a process only over
TLS, to a server with a checked certificate.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

KEY_HEADER: Final = "x-pate-fed-key"
"""Header of a request that holds the key."""

_DOMAIN: Final = b"pate-fed admin port"


def key_of(secret: bytes) -> str:
    """Return the admin key for the SuperLink's secret."""
    return hmac.new(secret, _DOMAIN, hashlib.sha256).hexdigest()


def is_known(headers: Iterable[tuple[bytes, bytes]], *, key: str) -> bool:
    """Tell whether a request's headers, their names in lower case, hold the key."""
    said = [value for name, value in headers if name == KEY_HEADER.encode()]
    return any(hmac.compare_digest(value, key.encode()) for value in said)

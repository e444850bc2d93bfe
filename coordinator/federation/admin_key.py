"""What the admin port asks of whoever calls: a key that follows from the federation's secret.

The port is on loopback, where every user of the machine may call. Flower asks whoever takes a task
for a secret, but not whoever lets a node in or starts a run. The key leaves a process only over
TLS to a server whose certificate was checked.
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
    """Return the key of whoever knows the SuperLink's secret."""
    return hmac.new(secret, _DOMAIN, hashlib.sha256).hexdigest()


def is_known(headers: Iterable[tuple[bytes, bytes]], *, key: str) -> bool:
    """Tell whether a request's headers, their names in lower case, hold the key."""
    said = [value for name, value in headers if name == KEY_HEADER.encode()]
    return any(hmac.compare_digest(value, key.encode()) for value in said)

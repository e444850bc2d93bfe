"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(holds: Callable[[], object], *, seconds: float = 120.0) -> None:
    """Wait until something holds, and fail if it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)

"""Numerical libraries on one thread: hospitals compute side by side; no result needs more cores."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


def one_thread() -> Any:
    """Return a context in which every numerical library that is loaded uses one thread."""
    return _loaded(len(sys.modules)).limit(limits=1)


@lru_cache(maxsize=1)
def _loaded(modules: int) -> ThreadpoolController:
    """Look for the libraries in this process, which takes a while, once modules were loaded."""
    del modules
    return ThreadpoolController()

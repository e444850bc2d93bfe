"""Cases that only exhaustive runs try: more of what the others of a test try, or minutes long."""

from __future__ import annotations

from typing import Any

import pytest


def more(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - as `pytest.param` has it
    """Return a case of a parametrized test, for `make test-exhaustive` alone.

    Args:
        values: What the test is given.
        id: The case's name.
    """
    return pytest.param(*values, id=id, marks=pytest.mark.exhaustive)

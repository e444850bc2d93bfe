"""Real data for tests, from the folder that the environment names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_data(relative: str) -> Path:
    """Return a file of the folder `PATE_FED_TEST_DATA`; skip the test where it is absent."""
    folder = os.environ.get("PATE_FED_TEST_DATA")
    if not folder:
        pytest.skip("PATE_FED_TEST_DATA is not set: no real data on this machine")
    path = Path(folder) / relative
    if not path.exists():
        pytest.skip(f"PATE_FED_TEST_DATA holds no {relative}")
    return path

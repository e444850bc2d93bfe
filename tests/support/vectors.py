"""Reads test vectors, the JSON files under `tests/vectors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_vectors(name: str) -> dict[str, Any]:
    """Return the content of one file, without its `.json`."""
    path = Path(__file__).parent.parent / "vectors" / f"{name}.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content

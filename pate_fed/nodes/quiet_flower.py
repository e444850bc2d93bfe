"""The environment in which Flower, and Ray below it, call nobody and install nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

QUIET_FLOWER: Final[Mapping[str, str]] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables of every process that Flower runs in, set before it is loaded."""

"""`pate-fed serve` with noise from a seed: ``python -m tests.support.seeded_service HOME SEED``."""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.logs import write_logs_as_json
from coordinator.service import serve
from pate_fed.mechanisms import RandomBytes, keyed_stream


def noise_of(seed: str) -> RandomBytes:
    """Return the source of a service's noise, from its first byte on."""
    return keyed_stream(seed.encode(), tag="served noise")


if __name__ == "__main__":
    write_logs_as_json()
    serve(Path(sys.argv[1]), noise_bytes=noise_of(sys.argv[2]))

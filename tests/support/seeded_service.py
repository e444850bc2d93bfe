"""`pate-fed serve` whose noise is a test's: ``python -m tests.support.seeded_service HOME KEY``.

The noise goes as an argument into the service's own object; KEY is 32 bytes, in hexadecimal.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coordinator.service import serve
from pate_fed.mechanisms import RandomBytes, keyed_stream
from pate_fed.nodes import write_logs


def noise_of(key: bytes) -> RandomBytes:
    """Return the source of a service's noise, from its first byte on."""
    return keyed_stream(key, tag="coordinator noise")


def main(home: Path, key: bytes) -> None:
    """Serve a federation with this noise."""
    write_logs("coordinator")
    serve(home, noise_bytes=noise_of(key))


if __name__ == "__main__":
    main(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))

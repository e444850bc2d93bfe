"""Writes all test vectors of formats again; the envelopes, which are drawn at random, are kept.

Run from the repository root: ``python -m tests.support.make_vectors``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.support import (
    make_format_vectors,
    make_protocol_vectors,
    make_run_vectors,
    make_share_vectors,
    make_terms_vectors,
    make_verified_vectors,
)
from tests.support.make_protocol_vectors import write_vectors

VECTORS: Mapping[str, Callable[[], dict[str, Any]]] = {
    **make_protocol_vectors.VECTORS,
    **make_format_vectors.VECTORS,
    **make_terms_vectors.VECTORS,
    **make_share_vectors.VECTORS,
    **make_run_vectors.VECTORS,
    **make_verified_vectors.VECTORS,
}
"""What writes each file, by its name without `.json`."""


def main() -> None:
    make_format_vectors.main()  # and the envelopes, should they be missing
    write_vectors(VECTORS)


if __name__ == "__main__":
    main()

"""Tags of a hospital's patients: keyed hashes, for `disjointness`."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from pate_fed.errors import InvalidParameterError

LEAST_KEY_BYTES: Final = 16
SCHEMA_VERSION: Final = 1
HASH: Final = "HMAC-SHA256, key shared by the hospitals"


def tag_shares(
    shares: Mapping[str, Sequence[Sequence[str]]], *, party: str, key: bytes
) -> dict[str, Any]:
    """Return a hospital's tags, for `json.dumps`."""
    if len(key) < LEAST_KEY_BYTES:
        raise InvalidParameterError(f"the key must have {LEAST_KEY_BYTES} bytes", len(key))
    return {
        "schema_version": SCHEMA_VERSION,
        "hash": HASH,
        "key_check": _tag(key, "check"),
        "party": party,
        "tasks": {
            task: [sorted(_tag(key, f"patient\0{one}") for one in share) for share in teachers]
            for task, teachers in shares.items()
        },
    }


def _tag(key: bytes, what: str) -> str:
    return hmac.digest(key, f"pate-fed tag\0{what}".encode(), sha256).hex()

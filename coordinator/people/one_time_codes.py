"""Time-based one-time codes: six digits that change every 30 seconds.

Source: RFC 6238, with the SHA-1 and the 30 seconds that every authenticator app takes.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final
from urllib.parse import quote

from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.twofactor.hotp import HOTP

KEY_BYTES: Final = 20
_DIGITS: Final = 6
_STEP_S: Final = 30
_SLACK: Final = 1
"""Steps by which a telephone's clock may differ."""


def code_at(key: bytes, step: int) -> str:
    """Return the code of a step."""
    return HOTP(key, _DIGITS, SHA1()).generate(step).decode()  # noqa: S303 - what apps take


def step_of(key: bytes, code: str, *, now: float, after: int) -> int | None:
    """Return the step, later than `after`, whose code somebody typed; None if there is none.

    Codes of `after` and before are used up; spaces do not count.
    """
    typed = "".join(code.split()).encode()
    current = int(now // _STEP_S)
    found = None
    for step in range(current - _SLACK, current + _SLACK + 1):
        if hmac.compare_digest(code_at(key, step).encode(), typed) and step > after:
            found = step
    return found


def app_address(key: bytes, *, person: str, federation: str) -> str:
    """Return a key as authenticator apps read it from a picture; secret, like the key."""
    text = base64.b32encode(key).decode().rstrip("=")
    who, where = quote(person, safe=""), quote(federation, safe="")
    return f"otpauth://totp/{where}:{who}?secret={text}&issuer={where}"


def shown_key(key: bytes) -> str:
    """Return a key as people type it into their app: groups of four letters and digits."""
    text = base64.b32encode(key).decode().rstrip("=")
    return " ".join(text[place : place + 4] for place in range(0, len(text), 4))

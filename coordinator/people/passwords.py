"""Passwords, stored as argon2id."""

from __future__ import annotations

import threading
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from coordinator.errors import PersonError

LEAST_LETTERS: Final = 12
MOST_LETTERS: Final = 256

_HASHER: Final = PasswordHasher()
"""Argon2id with the library's parameters: RFC 9106's second choice, 64 MiB."""

_AT_ONCE: Final = threading.BoundedSemaphore(2)
"""Each takes 64 MiB: strangers must not fill the memory."""


def hashed(password: str, *, name: str) -> str:
    """Return the stored form of a new password, which must be hard to guess."""
    if not LEAST_LETTERS <= len(password) <= MOST_LETTERS:
        raise PersonError(
            f"a password must have {LEAST_LETTERS} to {MOST_LETTERS} letters", len(password)
        )
    if name.casefold() in password.casefold() or len(set(password)) < LEAST_LETTERS // 3:
        raise PersonError("a password must be hard to guess", "your name, or one letter repeated")
    with _AT_ONCE:
        return _HASHER.hash(password)


def is_right(password: str, stored: str | None) -> bool:
    """Tell whether a password is the stored one; takes as long where none is stored."""
    with _AT_ONCE:
        try:
            _HASHER.verify(stored or _nobodys(), password[:MOST_LETTERS])
        except (Argon2Error, InvalidHashError):
            return False
    return stored is not None


@cache
def _nobodys() -> str:
    return _HASHER.hash("nobody's password, for names that do not exist")

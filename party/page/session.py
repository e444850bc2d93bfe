"""The one-time link of the page, and the session that it opens.

A browser keeps the session's cookie for every port of an address. So the cookie is bound to a path
that only the link names: another program's page on this machine never gets it.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LINK_LIFETIME_S: Final = 600.0
SESSION_LIFETIME_S: Final = 8 * 3600.0
IDLE_S: Final = 3600.0
COOKIE: Final = "pate-party"
_BYTES = 32
_ROOM_BYTES = 12


@dataclass(slots=True)
class PageSession:
    """One open session: each form must bring `csrf` back; times are Unix seconds."""

    csrf: str = field(repr=False)
    opened_at: float
    last_at: float


class PageSessions:
    """The link, which opens one session once; and this session.

    `room` is the first part of every path; secret, so that the cookie goes nowhere else.
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.room = secrets.token_bytes(_ROOM_BYTES).hex()
        self._made_at = clock()
        self._link = b""
        self._cookie = b""
        self._session: PageSession | None = None
        self._lock = threading.Lock()  # two requests with one link: one of them is late

    def make_link(self) -> str:
        """Return the token of a new link; an older one is good no more."""
        token = secrets.token_bytes(_BYTES).hex()
        self._link, self._made_at = _digest(token), self._clock()
        return token

    def open(self, token: str) -> str | None:
        """Return the cookie of a new session; None unless the token is the link's, for once."""
        now = self._clock()
        with self._lock:
            is_link = secrets.compare_digest(_digest(token), self._link or bytes(_BYTES))
            if not (self._link and is_link and 0 <= now - self._made_at < LINK_LIFETIME_S):
                return None
            self._link = b""
        cookie = secrets.token_bytes(_BYTES).hex()
        self._cookie = _digest(cookie)
        self._session = PageSession(secrets.token_bytes(_BYTES).hex(), now, now)
        return cookie

    def find(self, cookie: str) -> PageSession | None:
        """Return the session of a cookie; None where it is unknown or over."""
        session, now = self._session, self._clock()
        if session is None or not secrets.compare_digest(_digest(cookie), self._cookie):
            return None
        is_fresh = 0 <= now - session.last_at < IDLE_S
        if not (is_fresh and 0 <= now - session.opened_at < SESSION_LIFETIME_S):
            self.close()
            return None
        session.last_at = now
        return session

    def close(self) -> None:
        """End the session."""
        self._session, self._cookie = None, b""


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

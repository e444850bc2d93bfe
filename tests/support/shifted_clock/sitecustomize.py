"""Loaded by every Python process that finds this folder on PYTHONPATH: its clock can be set wrong.

SHIFTED_CLOCK names a file with the seconds that the clock is ahead; it is read at every look at the
clock, so that a clock jumps in a process that runs. What OpenSSL holds certificates against is the
machine's own clock.
"""

from __future__ import annotations

import datetime as dates
import os
import time
from typing import Any, Self

_FILE = os.environ.get("SHIFTED_CLOCK", "")
_true_time, _TrueDatetime = time.time, dates.datetime


def _ahead() -> float:
    try:
        with open(_FILE, encoding="ascii") as file:  # noqa: PTH123 - pathlib asks for the time
            return float(file.read() or 0)
    except OSError:
        return 0.0


def _time() -> float:
    return _true_time() + _ahead()


class _AnyDatetime(type):
    """What C code makes is a datetime, too."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _TrueDatetime)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _TrueDatetime)


class _Datetime(_TrueDatetime, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Self:
        return cls.fromtimestamp(_time(), tz)

    @classmethod
    def utcnow(cls) -> Self:
        return cls.now(dates.UTC).replace(tzinfo=None)


if _FILE:
    time.time = _time
    dates.datetime = _Datetime  # type: ignore[misc]

"""Logs as one JSON object a line: what happened, where, with codes and names; no values.

A traceback is never written: it could hold what was in memory. An exception is named by its kind.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from datetime import UTC, datetime

_CALM_S = 60.0
_MOST_KINDS = 100
_MOST_LETTERS = 300
_KIND_LETTERS = 80


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line, sort_keys=True)


class Calm(logging.Filter):
    """Lets a library say the same once a minute, and briefly.

    Whoever reaches the public port can make Flower write a line with every request, a node that
    waits to be let in does so every few seconds, and such a line holds a whole key.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        text = record.getMessage()
        if text.startswith("EXPERIMENTAL"):  # what we know, and hold by tests
            return False
        text = text.partition("-----BEGIN")[0][:_MOST_LETTERS]
        kind = "]".join(text.split("]")[:2])[:_KIND_LETTERS]
        if record.created - self._last.get(kind, -_CALM_S) < _CALM_S:
            self._unsaid[kind] += 1
            return False
        if len(self._last) >= _MOST_KINDS:
            self._last.clear()
            self._unsaid.clear()
        self._last[kind] = record.created
        unsaid = self._unsaid.pop(kind, 0)
        record.msg, record.args = text + (f" (and {unsaid} more like it)" if unsaid else ""), ()
        return True


def write_logs_as_json() -> None:
    """Send all logs of this process to standard error, one JSON object a line.

    Of Flower's and other libraries only warnings are kept.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("coordinator").setLevel(logging.INFO)
    flower = logging.getLogger("flwr")
    flower.handlers[:] = []
    flower.addFilter(Calm())
    flower.setLevel(logging.WARNING)
    flower.propagate = True

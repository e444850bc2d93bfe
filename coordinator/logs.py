"""Logs as one JSON object a line: what happened, where, with codes and names; no values.

A traceback is never written: it could hold what was in memory. An exception is named by its kind.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


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
    flower.setLevel(logging.WARNING)
    flower.propagate = True

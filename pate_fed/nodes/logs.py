"""Logs: a line of JSON, on a terminal of text, of event, place, codes and names; no values.

A traceback is never written: it could hold values from memory. An exception is named by its kind.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING

from pate_fed.nodes.terminal import one_line, place_of

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_CALM_S = 60.0
_MOST_KINDS = 100
_MOST_LETTERS = 300
_KIND_LETTERS = 80
_log = logging.getLogger(__name__)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with its facts."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        if getattr(record, "is_json", False):  # a child's line, written there
            return record.getMessage()
        return json.dumps(_table_of(record), sort_keys=True)


class TextFormatter(logging.Formatter):
    """Formats a record as one line for people, without its facts."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        is_json = getattr(record, "is_json", False)
        table = json.loads(record.getMessage()) if is_json else _table_of(record)
        names = ("time", "level", "message", "exception")
        texts = (text if isinstance(text := table.get(name), str) else "" for name in names)
        time, level, message, kind = map(one_line, texts)
        shown = f"{time[:19].replace('T', ' ')} UTC  {level:8}  {message}"
        return f"{shown} ({kind})" if kind else shown


class Calm(logging.Filter):
    """Limits a library's repeated messages to one short line a minute.

    Any client of the public port can make Flower write a line with every request. A node that waits
    to be let in does so every few seconds, and such a line holds a whole key.
    """

    def __init__(self, ours: str = "") -> None:
        """Make it."""
        super().__init__()
        self._ours = ours
        self._last: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        is_ours = record.name.partition(".")[0] in (self._ours, "__main__")
        if (self._ours and is_ours) or getattr(record, "is_json", False):
            return True
        text = _text_of(record)
        if text.startswith("EXPERIMENTAL"):  # our knowledge of it, held by tests
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


def facts(event: str, **known: str | float) -> Mapping[str, object]:
    """Return the `extra` of a log line: the event and its facts, for programs.

    Known are counts, codes and names; no value of a vote, no secret.
    """
    return {"facts": {"event": event, **known}}


def log_line(message: str, *, level: int, **known: str) -> str:
    """Return one log line, for a process without a log yet."""
    record = logging.LogRecord("pate_fed", level, "", 0, message, None, None)
    record.facts = known
    return _formatter().format(record)


def pass_on(line: str, *, said_by: str) -> None:
    """Write down a line that a child of this process printed: a log line of its own as it is."""
    try:
        is_json = isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        is_json = False
    if is_json:
        _log.warning("%s", line.strip(), extra={"is_json": True})
    elif line.strip():
        _log.warning("%s printed: %s", said_by, line.strip()[:_MOST_LETTERS])


def write_logs(ours: str) -> None:
    """Send all logs of this process to standard error, a line each: JSON, on a terminal text.

    So are Python's warnings and uncaught exceptions. Of Flower's and other libraries only warnings
    are kept. Call it after loading them: Flower brings a handler of its own.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter())
    handler.addFilter(Calm(ours))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(ours).setLevel(logging.INFO)
    flower = logging.getLogger("flwr")
    flower.handlers[:] = []
    flower.setLevel(logging.WARNING)
    flower.propagate = True
    logging.captureWarnings(True)
    sys.excepthook = _note_uncaught
    threading.excepthook = _note_in_thread
    sys.unraisablehook = _note_unraisable


def _formatter() -> logging.Formatter:
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return TextFormatter() if is_terminal else JsonFormatter()


def _table_of(record: logging.LogRecord) -> dict[str, object]:
    line = {
        **getattr(record, "facts", {}),
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _text_of(record),
    }
    if record.exc_info and record.exc_info[0] is not None:
        line["exception"] = record.exc_info[0].__name__
    return line


def _text_of(record: logging.LogRecord) -> str:
    """Return a record's message; of a malformed record, the unformatted one."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, LookupError):
        return str(record.msg)


def _note_uncaught(
    kind: type[BaseException],  # noqa: ARG001 - as Python calls it
    error: BaseException,
    trace: TracebackType | None,  # noqa: ARG001
) -> None:
    _log.critical("the process ends of an uncaught exception: %s", place_of(error))


def _note_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _log.error("a thread ended of an uncaught exception: %s", place_of(args.exc_value))


def _note_unraisable(args: UnraisableHookArgs) -> None:
    if args.exc_value is not None:
        _log.warning("something could not be cleared away: %s", place_of(args.exc_value))

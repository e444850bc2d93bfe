"""All that an error says, for tests that look for a secret in it."""

from __future__ import annotations

import logging
import traceback

from pate_fed.nodes import JsonFormatter


def everything_said(error: BaseException) -> str:
    """An error with all that is behind it, as logs and tracebacks may show it."""
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "%s", (error,), None)
    record.exc_info = (type(error), error, error.__traceback__)
    behind = [error.__cause__, error.__context__]
    return "\n".join(
        [
            *traceback.format_exception(error),
            repr(error),
            repr(vars(error)),
            JsonFormatter().format(record),
            logging.Formatter().format(record),
            *(everything_said(one) for one in behind if one is not None),
        ]
    )

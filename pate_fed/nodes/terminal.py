"""The forms of both command lines: a result as text or JSON, a fault in one line.

Nothing is printed here, and no argument is parsed: texts in, texts out.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pate_fed.errors import CodedError, said
from protocols.errors import ProtocolError


class Format(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


def wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether arguments, without the program's name, ask for JSON."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return any(
        one == "--format=json" or (one == "--format" and other == "json") for one, other in pairs
    )


def error_line(error: CodedError | ProtocolError, *, program: str, code: str, as_json: bool) -> str:
    """Say an error in one line."""
    if as_json:
        return json.dumps({"code": code, "must": error.must, "got": error.got})
    return f"{program}: {code}: {one_line(said(error.must, error.got))}"


def one_line(text: str) -> str:
    """Make one printable line of a text."""
    return " ".join(printable(text).split())


def printable(text: str) -> str:
    """Replace characters that could steer a terminal by spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def minute(at: float) -> str:
    """Say a moment, given Unix time in seconds, for people."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def place_of(error: BaseException) -> str:
    """Name an error's kind and place, never its text or values: they may be secret."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    return f"a {type(error).__name__} at {place}"

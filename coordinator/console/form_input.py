"""Forms of people: bounded, and read as text, numbers or one file; a fault is a `ConsoleError`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from starlette.datastructures import FormData, UploadFile

from coordinator.errors import ConsoleError

MOST_FORM_BYTES: Final = 64 * 1024
MOST_UPLOAD_BYTES: Final = 16 * 2**20
UPLOADS: Final = frozenset(
    {
        *("/new-run", "/new-run/rows", "/new-run/budgets", "/new-run/cost"),
        *("/api/v1/runs", "/api/v1/runs/cost"),
    }
)
"""Paths that take a file."""

MOST_ROWS: Final = 20_000
"""Lines of an uploaded file."""

MOST_FIELDS: Final = 60
_MOST_LETTERS: Final = 2_000

T = TypeVar("T", int, float)


def most_bytes(path: str) -> int:
    """Return the most bytes of a request to a path."""
    return MOST_FORM_BYTES + (MOST_UPLOAD_BYTES if path in UPLOADS else 0)


def text_of(form: FormData, name: str, *, label: str = "", most: int = _MOST_LETTERS) -> str:
    """Return a text that must be there."""
    found = optional_text(form, name, label=label, most=most)
    if not found:
        raise ConsoleError(f"{label or name} must be filled in")
    return found


def optional_text(form: FormData, name: str, *, label: str = "", most: int = _MOST_LETTERS) -> str:
    """Return a text; empty if none was sent. See `text_of`."""
    found = form.get(name, "")
    if not isinstance(found, str):
        raise ConsoleError(f"{label or name} must be text")
    if len(found) > most:
        raise ConsoleError(f"{label or name} must have at most {most} letters", len(found))
    return found.strip()


def number_of(form: FormData, name: str, kind: Callable[[str], T], *, label: str) -> T | None:
    """Return a number; None if the field was left empty."""
    text = optional_text(form, name, label=label, most=40)
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ConsoleError(f"{label} must be {what}", ascii(text)) from None


def file_of(form: FormData, name: str) -> UploadFile | None:
    """Return an uploaded file; None if none was chosen."""
    found = form.get(name)
    if not isinstance(found, UploadFile) or not found.filename:
        return None
    if (found.size or 0) > MOST_UPLOAD_BYTES:
        raise ConsoleError(f"a file must have at most {MOST_UPLOAD_BYTES // 2**20} MiB", status=413)
    return found

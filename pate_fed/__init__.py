"""The core of federated PATE: votes, mechanisms, accounting, teachers, students, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pate_fed.version import __version__

if TYPE_CHECKING:
    from pate_fed.students import load_student

__all__ = ["__version__", "load_student"]


def __getattr__(name: str) -> Any:
    # What learns is imported when it is used: it takes a second, and most commands need none of it.
    if name == "load_student":
        from pate_fed.students import load_student  # noqa: PLC0415

        return load_student
    raise AttributeError(name)

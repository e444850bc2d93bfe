"""The core of federated PATE: votes, mechanisms, accounting, teachers, students, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pate_fed.version import __version__

if TYPE_CHECKING:
    from pate_fed.students import load_student, load_students

__all__ = ["__version__", "load_student", "load_students"]


def __getattr__(name: str) -> Any:
    # What learns is imported when it is used: it takes a second, and most commands need none of it.
    if name in ("load_student", "load_students"):
        from pate_fed import students  # noqa: PLC0415

        return getattr(students, name)
    raise AttributeError(name)

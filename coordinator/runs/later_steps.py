"""What follows the last label: every step may fail, and none of them fails the run.

Labels are paid for by then. So a student that cannot be trained, or a plot that cannot be drawn, is
a note in the report and in the run's reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from coordinator.errors import CoordinatorError, DatabaseError, RunStateError
from pate_fed.errors import PateFedError
from pate_fed.nodes import place_of
from protocols.errors import ProtocolError

NO_STUDENT = "There is no student."
"""Begins the warning of a run that has none."""

T = TypeVar("T")


def attempt(notes: list[str], what: str, step: Callable[[], T]) -> T | None:
    """Take one step after the last label; None, and a line in `notes`, where it fails.

    Raises:
        RunStateError: another service took the run over, or its records do not fit.
        DatabaseError: the database does not answer; both are no fault of the step.
    """
    try:
        return step()
    except (RunStateError, DatabaseError):
        raise
    except Exception as error:  # whatever it is: the labels are there
        notes.append(f"{what} could not be made: {said(error)}")
        return None


def said(error: Exception) -> str:
    """Say an error in a line: ours by its code, another by kind and place, never by its text."""
    if isinstance(error, PateFedError | CoordinatorError | ProtocolError):
        return f"{error.code}: {error}"
    return f"PF-490: {place_of(error)}"


def another_student(run: str) -> str:
    """Say how a run, by its name or its simulation's directory, gets a student from its labels."""
    return f"`pate-fed student {run} --kind KIND` trains one from the stored labels"

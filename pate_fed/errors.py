"""Everything that can go wrong in `pate_fed`, each with a stable code.

What an error shows is said at `CodedError`.
"""

from __future__ import annotations

import math
from datetime import date
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

Shown: TypeAlias = str | int | float | date | Path | None
"""Types of a value that an error may show. No vote, share, record, key or array is of one."""


_LONGEST: Final = 10**20


def said(must: str, got: str) -> str:
    """Return a rule with what broke it, where that is shown."""
    return f"{must}, got {got}" if got else must


def _may_be_shown(got: object) -> bool:
    return isinstance(got, Shown)


def as_typed(got: Shown) -> str:
    """Write a value as a person types it: 0 is no 0.0, and None was not typed.

    Of any other type, as an entry of a spoiled file can be, only the type's name is written.
    """
    if not _may_be_shown(got):
        return f"a {type(got).__name__}"
    if got is None:
        return "nothing"
    if isinstance(got, int) and abs(got) >= _LONGEST:
        return "a longer number"
    is_whole = isinstance(got, float) and got.is_integer() and abs(got) < 10**15
    return f"{got:.0f}" if is_whole else str(got)


class CodedError(Exception):
    """Base of all errors of `pate_fed`, `coordinator` and `party`.

    One rule says what an error shows: what broke a rule, where that is public (an option, a
    setting, a cell of public rows, a size, a name, a code), and nothing where it may be private (a
    record, a vote, a key).

    Attributes:
        code: Stable code, for people and programs.
        must: The rule.
        got: What broke it; empty where that may be private, or says no more than the rule.
    """

    code: ClassVar[str]

    def __init__(self, must: str, got: Shown = "") -> None:
        self.must = must
        self.got = as_typed(got)
        super().__init__(said(must, self.got))


class PateFedError(CodedError):
    """Base of all errors of `pate_fed`; see `CodedError`."""

    code = "PF-100"


class InvalidParameterError(PateFedError, ValueError):
    """An argument is out of its range."""

    code = "PF-101"


class NoLabelError(InvalidParameterError):
    """No query was answered: a student has nothing to learn."""

    code = "PF-109"

    def __init__(self) -> None:
        super().__init__(
            "a student must have an answered query",
            "none; lower the vote threshold, or ask other inputs",
        )


class InvalidVotesError(PateFedError, ValueError):
    """Counts that no teachers can have cast."""

    code = "PF-102"


class RowSumError(PateFedError):
    """A row of the opened sum differs from the number of votes: the batch is void.

    Attributes:
        row: The first such row. It tells nothing about votes: honest rows never fail.
    """

    code = "PF-103"

    def __init__(self, must: str, got: Shown = "", *, row: int) -> None:
        self.row = row
        super().__init__(must, got)


class InvalidTermsError(PateFedError, ValueError):
    """The terms of a run cannot be read, or contradict themselves."""

    code = "PF-104"


class InvalidSettingError(PateFedError, ValueError):
    """Settings that contradict each other."""

    code = "PF-105"


class UnfitSumError(InvalidSettingError):
    """A secure sum that does not fit the number of hospitals, or those that may be lost."""

    code = "PF-106"


class NarrowNoiseError(InvalidSettingError):
    """Noise at the parties whose shares are too narrow to be priced."""

    code = "PF-107"


class InvalidAnswersError(PateFedError, ValueError):
    """Answers that an audit cannot use: no classes of the query, or too few."""

    code = "PF-108"


class InvalidDataError(PateFedError, ValueError):
    """A data set that cannot be used."""

    code = "PF-110"


class UnreadableFileError(InvalidDataError):
    """A file is missing, unreadable or not of its format."""

    code = "PF-111"


class MissingColumnError(InvalidDataError):
    """A table lacks a column that was asked for."""

    code = "PF-112"


class TooFewRecordsError(InvalidDataError):
    """There are too few records, patients or images for the settings."""

    code = "PF-113"


class RareClassError(InvalidDataError):
    """A class has too few records to be learned and tested."""

    code = "PF-114"


class InvalidCellError(InvalidDataError):
    """A cell of a table is outside its column's values."""

    code = "PF-115"


class InvalidTaskError(InvalidDataError):
    """The task document cannot be read, or contradicts itself."""

    code = "PF-116"


class DisjointnessError(PateFedError):
    """One privacy unit reached two teachers, or a record was lost or invented."""

    code = "PF-120"


class UnsupportedEventError(PateFedError, TypeError):
    """An event that an accountant has no bound for."""

    code = "PF-130"


class BudgetExhaustedError(PateFedError):
    """The worst case of the next step exceeds the remaining budget.

    Attributes:
        requested: Epsilon that the spent part and the next step would reach.
        budget: Epsilon that may not be exceeded.
    """

    code = "PF-131"

    def __init__(self, *, requested: float, budget: float, advice: str = "") -> None:
        self.requested = requested
        self.budget = budget
        # Rounded up: toward more privacy loss.
        shown = "infinity" if math.isinf(requested) else f"{math.ceil(requested * 1e4) / 1e4:g}"
        super().__init__(
            f"the cost must stay within epsilon {budget:.6g} at the run's delta",
            f"{shown}: {advice}" if advice else shown,
        )


class LedgerError(PateFedError):
    """A reservation that is unknown, or was settled before."""

    code = "PF-132"


class OutcomeCapError(PateFedError):
    """The worst case of the next step exceeds the rest of a cap on asks or answers."""

    code = "PF-133"


class RunDirectoryError(PateFedError):
    """A run directory that exists already, or cannot be written or read."""

    code = "PF-140"


class MissingExtraError(PateFedError, ImportError):
    """An optional part of the installation is absent."""

    code = "PF-150"

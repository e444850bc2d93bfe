"""The question of `pate-fed account`: votes, mechanism and caps; and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.costs import PrivacyUnit
from pate_fed.accounting.ranges import require_ranges
from pate_fed.data.vote_file import load_predictions, load_vote_counts
from pate_fed.errors import InvalidSettingError
from pate_fed.lab.compare import VoteCase, compare
from pate_fed.lab.mechanisms import ConfidentGaussianMax, InteractiveGaussianMax
from pate_fed.mechanisms import (
    CONFIDENCE,
    HearsStudent,
    StableMax,
    StudentPredictions,
    make_mechanism,
    spec_of,
)
from pate_fed.options import option_of
from pate_fed.rule import PARAMETERS, Rule

_BY_ANSWERS: Final = (ConfidentGaussianMax.name, InteractiveGaussianMax.name)
"""Mechanisms that draw new noise for a label, which costs on its own."""


@dataclass(frozen=True, slots=True)
class AccountRequest:
    """Which votes, asked how.

    Attributes:
        votes: A `.npy` file of counts; shape (queries, classes).
        rows: First row and the one after the last; None for all.
        predictions: A `.npy` file of a student's chances; shape (queries, classes).
        answers: Cap on answers, or their expected number; None for all queries. Only where an
            ask without an answer costs another price, or there is none.
        unit: The privacy unit: "record" or "party"; None for "record" where it moves one vote.
    """

    votes: Path
    rows: tuple[int, int] | None
    rule: Rule
    delta: float
    predictions: Path | None = None
    answers: float | None = None
    unit_votes: int = 1
    unit: PrivacyUnit | None = None

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """The named unit, or the one that this many votes suggest."""
        return self.unit or ("record" if self.unit_votes == 1 else "party")


def account(request: AccountRequest) -> dict[str, object]:
    """Price votes by every method, as `pate_fed.lab.compare.compare` does."""
    return compare(read_case(request), unit=request.privacy_unit)


def read_case(request: AccountRequest) -> VoteCase:
    """Check the options, load the files, make the mechanism.

    Raises:
        PateFedError: a file, its content or a parameter is no good.
        InvalidSettingError: an option is missing, or belongs to another mechanism.
    """
    _check_options(request)
    require_ranges(request)
    rule = request.rule
    if rule.confidence is None:
        rule = replace(rule, confidence=CONFIDENCE)
    # Nobody's records are at stake in a calculation.
    mechanism = make_mechanism(rule, unit_votes=request.unit_votes, simulated=True)
    votes = load_vote_counts(request.votes, rows=request.rows)
    queries = float(len(votes))
    answers = queries if request.answers is None else min(request.answers, queries)
    case = VoteCase(
        votes,
        mechanism.event(1, 1, weight=float(request.unit_votes)),
        asks=queries if spec_of(rule.mechanism).may_refuse else answers,
        answers=answers,
        delta=request.delta,
        vote_threshold=rule.vote_threshold,
    )
    if isinstance(mechanism, StableMax):
        return replace(case, answered=mechanism.answer_chances(votes))
    if not isinstance(mechanism, HearsStudent):
        return case
    chances = _predictions(votes, request)
    predictions = StudentPredictions.of(chances, total_votes=case.teachers)
    is_sure = chances.max(axis=1) >= mechanism.confidence
    return replace(case, offsets=predictions.votes, is_sure=is_sure)


def _check_options(request: AccountRequest) -> None:
    rule, spec = request.rule, spec_of(request.rule.mechanism)
    needed = [name for name in spec.parameters if name != "confidence"]
    needed += ["predictions"] * spec.learns
    given = [name for name in PARAMETERS if getattr(rule, name) is not None]
    given += ["predictions"] * (request.predictions is not None)
    given += ["max_answers"] * (request.answers is not None)
    missing = [name for name in needed if name not in given]
    if missing:
        raise InvalidSettingError(
            f"--mechanism {rule.mechanism} must come with {_flags(needed)}",
            f"no {_flags(missing)}",
        )
    optional = [name for name in ("confidence",) if name in spec.parameters]
    # Elsewhere an ask costs the same without an answer, so that a cap on answers changes nothing.
    optional += ["max_answers"] * (not spec.may_refuse or rule.mechanism in _BY_ANSWERS)
    if extra := [name for name in given if name not in (*needed, *optional)]:
        raise InvalidSettingError(
            f"--mechanism {rule.mechanism} must come with no other options than "
            f"{_flags([*needed, *optional])}",
            _flags(extra),
        )


def _flags(names: Sequence[str]) -> str:
    return ", ".join(map(option_of, names))


def _predictions(votes: NDArray[np.int64], request: AccountRequest) -> NDArray[np.float64]:
    assert request.predictions is not None
    chances = load_predictions(request.predictions, rows=request.rows)
    if chances.shape != votes.shape:
        raise InvalidSettingError(
            f"--predictions must hold {votes.shape[0]} queries by {votes.shape[1]} classes",
            " by ".join(map(str, chances.shape)),
        )
    return chances

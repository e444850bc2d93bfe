"""The vote-leak attack: who may repeat a query rebuilds its votes from the labels.

Noise is drawn afresh for every answer. So the frequencies of the labels converge to chances that
follow from the votes, and the votes that explain the frequencies best are the hospital's secret.
Larger noise helps: rare classes come up more often.

Label frequencies never tell one direction: adding the same number to every count changes no chance
(Theorem 2 of the paper). The attacker settles it by the number of teachers, which is public, or by
"no answer"s, whose rate grows as counts fall.

Here the votes are those of the highest likelihood, found by Fisher scoring. The paper descends
along a gradient: see `gradient_descent`.

Source:
    Wang, Schuster, Shumailov, Lie, Papernot 2022, In differential privacy, there is truth: on vote
    leakage in ensemble private learning. https://arxiv.org/abs/2209.10732
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.ranges import positive
from pate_fed.audit.win_chances import Noise, log_outcomes
from pate_fed.errors import InvalidAnswersError, InvalidParameterError

MOST_STEPS: Final = 60
_CLOSE: Final = 1e-2
"""A step of fewer votes than this in every class ends the search."""

_TINY: Final = 1e-300
_LOG_SQRT_TWO_PI: Final = 0.5 * float(np.log(2 * np.pi))


@dataclass(frozen=True, slots=True)
class ThresholdCheck:
    """A threshold: a query is answered if a noisy top count reaches it.

    Attributes:
        sigma: Standard deviation of the check's own noise on the top count, in votes; above 0
            (Confident-GNMax). None where it looks at the label's noisy counts (Threshold-GNMax).
    """

    vote_threshold: float
    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None:
            positive("sigma", self.sigma)
        if not np.isfinite(self.vote_threshold):
            raise InvalidParameterError("vote_threshold must be finite", self.vote_threshold)

    def log_outcomes(
        self, votes: NDArray[np.float64], noise: Noise
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return logs of all outcomes' chances, "no answer" last, and their slopes."""
        if self.sigma is None:
            return log_outcomes(votes, noise, self.vote_threshold)
        logs, slopes = log_outcomes(votes, noise)
        top = np.arange(len(votes)) == int(votes.argmax())
        score = float(votes.max() - self.vote_threshold) / self.sigma
        passes, fails = scipy.special.log_ndtr([score, -score])
        density = -0.5 * score * score - _LOG_SQRT_TWO_PI
        up, down = np.exp([density - passes, density - fails]) / self.sigma
        return np.append(logs + passes, fails), np.vstack([slopes + top * up, top * -down])


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What an attacker counted when it asked one query again and again."""

    labels: NDArray[np.int64]
    refusals: int = 0

    def __post_init__(self) -> None:
        given = np.asarray(self.labels)
        if given.ndim != 1 or len(given) < 2 or not np.issubdtype(given.dtype, np.integer):
            raise InvalidAnswersError(
                "answers must be whole numbers, one for each of at least 2 classes",
                str(given.shape),
            )
        labels = given.astype(np.int64)
        if (labels < 0).any() or self.refusals < 0:
            raise InvalidAnswersError("answers must not be negative")
        labels.flags.writeable = False
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "refusals", int(self.refusals))

    @classmethod
    def of(cls, outcomes: ArrayLike, *, classes: int) -> Answers:
        """Count released outcomes, -1 for "no answer"; refuse others than the classes."""
        given = np.asarray(outcomes)
        if given.ndim != 1 or not given.size or not np.issubdtype(given.dtype, np.integer):
            raise InvalidAnswersError("answers must be labels on one axis", str(given.shape))
        labels = given[given != -1]
        strange = labels[(labels < 0) | (labels >= classes)]
        if len(strange):
            raise InvalidAnswersError(f"labels must be in 0..{classes - 1}", int(strange[0]))
        return cls(np.bincount(labels, minlength=classes), len(given) - len(labels))

    @property
    def asked(self) -> int:
        """All answers and refusals."""
        return int(self.labels.sum()) + self.refusals


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LeakedVotes:
    """The votes as an attacker rebuilt them.

    Attributes:
        standard_errors: Of each class, in votes, by the Cramer-Rao bound with the information at
            `votes`. Infinite where these answers tell nothing. A count at 0 is known better than
            its error says.
        settled_by: What settles the sum of the votes, which no label frequencies can tell:
            "teachers", "refusals", or "both".
        converged: Whether its last step was below a hundredth of a vote.
    """

    votes: NDArray[np.float64]
    standard_errors: NDArray[np.float64]
    settled_by: str
    steps: int
    converged: bool

    def __repr__(self) -> str:
        return f"LeakedVotes(classes={len(self.votes)}, steps={self.steps})"


def normalized_error(found: ArrayLike, votes: ArrayLike) -> float:
    """Return the share of votes that have to move: sum |found - votes| / (2 sum votes)."""
    there, true = np.asarray(found, dtype=np.float64), np.asarray(votes, dtype=np.float64)
    if there.shape != true.shape or true.ndim != 1 or true.sum() <= 0:
        raise InvalidParameterError("both histograms must have the same classes", str(there.shape))
    return float(np.abs(there - true).sum() / (2 * true.sum()))


def rebuild_votes(
    answers: Answers,
    noise: Noise,
    *,
    teachers: int | None = None,
    check: ThresholdCheck | None = None,
    few_answers: bool = False,
) -> LeakedVotes:
    """Return the votes that explain repeated answers best.

    Args:
        teachers: Number of votes; None where it is unknown, which needs a check.
        few_answers: Whether to guess from fewer answers than classes, too.

    Raises:
        InvalidAnswersError: fewer answers than classes, refusals without a check, or all answers
            are refusals.
        InvalidParameterError: neither `teachers` nor `check`, or no teachers.
    """
    classes, labels = len(answers.labels), int(answers.labels.sum())
    if teachers is None and check is None:
        raise InvalidParameterError("teachers or a check must be given")
    if teachers is not None and teachers < 1:
        raise InvalidParameterError("there must be at least 1 teacher", teachers)
    if check is None and answers.refusals:
        raise InvalidAnswersError("without a check every answer must be a label")
    if labels < (1 if few_answers else classes):
        raise InvalidAnswersError(
            f"there must be at least {classes} labels, as many as classes; ask more often", labels
        )
    likelihood = _Likelihood(answers, noise, check)
    here = likelihood.at(_first_guess(answers, noise, teachers, check))
    steps, converged = 0, False
    gradient, information = likelihood.slope(here)
    while steps < MOST_STEPS and not converged:
        steps += 1
        aim = _constrained(here.votes, gradient, information, teachers)
        moved = _line_search(likelihood, here, aim)
        converged = bool(np.abs(moved.votes - here.votes).max() < _CLOSE)
        if not converged:
            here = moved
            gradient, information = likelihood.slope(here)
    errors = _standard_errors(information, knows_teachers=teachers is not None)
    settled = "both" if teachers and check else "teachers" if teachers else "refusals"
    return LeakedVotes(here.votes, errors, settled, steps, converged)


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """Votes, the logs of the chances that follow, their slopes, and the log likelihood."""

    votes: NDArray[np.float64]
    logs: NDArray[np.float64]
    slopes: NDArray[np.float64]
    height: float


@dataclass(frozen=True, slots=True, eq=False)
class _Likelihood:
    """The log likelihood of answers, as a function of the votes."""

    answers: Answers
    noise: Noise
    check: ThresholdCheck | None

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each outcome was seen."""
        labels = self.answers.labels
        return labels if self.check is None else np.append(labels, self.answers.refusals)

    def at(self, votes: NDArray[np.float64]) -> _Point:
        """Return the log likelihood of votes, and the chances that it is from."""
        if self.check is None:
            logs, slopes = log_outcomes(votes, self.noise)
        else:
            logs, slopes = self.check.log_outcomes(votes, self.noise)
        return _Point(votes, logs, slopes, float(self.counts @ logs))

    def slope(self, here: _Point) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return gradient and Fisher information."""
        chances = np.exp(here.logs)[:, np.newaxis]
        information = self.answers.asked * (chances * here.slopes).T @ here.slopes
        return self.counts @ here.slopes, information


def _first_guess(
    answers: Answers, noise: Noise, teachers: int | None, check: ThresholdCheck | None
) -> NDArray[np.float64]:
    """Return votes as if each class competed with the most frequent one alone.

    A class that was never seen begins at 0. Where another start is as likely, it stays there.
    """
    labels = answers.labels
    often = labels + 0.5
    votes = np.sqrt(2) * noise.sigma * scipy.special.ndtri(often / (often + often.max()))
    if teachers is not None:
        found = np.zeros(len(labels))
        found[labels > 0] = _on_simplex(votes[labels > 0], float(teachers))
        return found
    assert check is not None
    # As if the check had noise in the top count alone, whose rate of answers gives that count.
    rate = (labels.sum() + 0.5) / (answers.asked + 1)
    top = check.vote_threshold + (check.sigma or noise.sigma) * float(scipy.special.ndtri(rate))
    return np.asarray(np.maximum(votes + top, 0.0))


def _on_simplex(values: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return the closest values of at least 0 with this sum."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    shift = excess[np.flatnonzero(falling > excess)[-1]]
    return np.asarray(np.maximum(values - shift, 0.0))


def _constrained(
    votes: NDArray[np.float64],
    gradient: NDArray[np.float64],
    information: NDArray[np.float64],
    teachers: int | None,
) -> NDArray[np.float64]:
    """Return the top of the quadratic model under counts >= 0 and, where known, their sum.

    An active set: negative counts are fixed at 0, and freed where the model rises inward. It starts
    from the counts that are 0 now, which most often is the answer.
    """
    damped = information + np.eye(len(votes)) * max(1e-10 * np.trace(information), 1e-12)
    linear = gradient + damped @ votes
    free = votes > 0
    best = votes
    for _ in range(3 * len(votes)):
        best, price = _solve_free(damped, linear, free, teachers)
        negative = best < 0
        if negative.any():
            free &= ~negative
            if teachers is not None and not free.any():  # nothing is left to share their votes
                return votes
            continue
        pull = linear - damped @ best - price
        pull[free] = -np.inf
        worst = int(pull.argmax())
        if pull[worst] <= 1e-9 * max(1.0, float(np.abs(linear).max())):
            break
        free[worst] = True
    best = np.maximum(best, 0.0)
    if teachers is None:
        return best
    if not best.sum():  # contradictory answers, such as refusals that cannot be
        return votes
    return np.asarray(best * (teachers / best.sum()))  # rounding of a badly scaled system


def _solve_free(
    matrix: NDArray[np.float64],
    linear: NDArray[np.float64],
    free: NDArray[np.bool_],
    teachers: int | None,
) -> tuple[NDArray[np.float64], float]:
    """Solve for the free counts; return all counts, and the multiplier of the sum."""
    found = np.zeros(len(linear))
    inner = matrix[free][:, free]
    if teachers is None:
        found[free] = np.linalg.solve(inner, linear[free])
        return found, 0.0
    sides = np.ones((len(inner), 2))
    sides[:, 0] = linear[free]
    both = np.linalg.solve(inner, sides)
    price = (both[:, 0].sum() - teachers) / both[:, 1].sum()
    found[free] = both[:, 0] - price * both[:, 1]
    return found, float(price)


def _line_search(likelihood: _Likelihood, here: _Point, aim: NDArray[np.float64]) -> _Point:
    """Go as far toward the aim as the likelihood does not fall; stay where the aim is close."""
    if np.abs(aim - here.votes).max() < _CLOSE:
        return here
    share = 1.0
    for _ in range(30):
        moved = likelihood.at(here.votes + share * (aim - here.votes))
        if moved.height >= here.height:
            return moved
        share *= 0.5
    return here


def _standard_errors(
    information: NDArray[np.float64], *, knows_teachers: bool
) -> NDArray[np.float64]:
    """Return the Cramer-Rao bound's errors within the known sum; infinite without information."""
    classes = len(information)
    basis = _within_the_sum(classes) if knows_teachers else np.eye(classes)
    values, vectors = np.linalg.eigh(basis.T @ information @ basis)
    known = values > 1e-14 * max(float(values[-1]), _TINY)
    spread = basis @ vectors
    errors = np.sqrt((spread[:, known] ** 2 / values[known]).sum(axis=1))
    lost = (spread[:, ~known] ** 2).sum(axis=1) > 1e-12
    return np.where(lost, np.inf, errors)


@lru_cache(maxsize=8)
def _within_the_sum(classes: int) -> NDArray[np.float64]:
    """Return directions, orthogonal to the ones and each other, in which the sum cannot change."""
    start = np.column_stack([np.ones(classes), np.eye(classes)[:, :-1]])
    return np.asarray(np.linalg.qr(start)[0][:, 1:])

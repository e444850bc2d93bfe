"""How likely a query passes the check of Confident-GNMax with noise at the parties: to choose T.

The check looks at the largest of C noisy entries, each with noise of its own. So it passes more
often than Confident-GNMax's check, which adds noise to the largest count once. From public numbers
and simulated votes only: tried out on real votes, the choice would tell about them.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate_fed.accounting.distributed_law import distributed_pass_law
from pate_fed.accounting.ranges import in_range, probability
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.preview import Preview, right_chances

_FAR: Final = 40

FLAT_CHANCE: Final = 0.05
"""Chance that a query on which teachers do not agree at all passes, where nobody says otherwise."""


def flat_row(votes: int, classes: int) -> NDArray[np.int64]:
    """Return the votes of teachers who do not agree at all: as even as possible.

    Args:
        votes: On the query, at least 0.
        classes: At least 1.

    Returns:
        Counts, the larger first; int64, shape (classes,).
    """
    return row_of_top(-(-votes // classes), votes=votes, classes=classes)


def row_of_top(top: int, *, votes: int, classes: int) -> NDArray[np.int64]:
    """Return a row with this many votes for the first class, the rest spread evenly.

    Args:
        top: Votes of the first class, at most `votes`.
        votes: On the query.
        classes: At least 1; with 1, all votes are its.

    Returns:
        Counts; int64, shape (classes,).
    """
    others = max(classes - 1, 1)
    each, more = divmod(votes - top, others)
    rest = each + (np.arange(others) < more)
    return np.array([top, *rest], dtype=np.int64)[:classes]


def usual_vote_threshold(*, votes: int, classes: int, noise: DistributedNoise) -> int:
    """Return the threshold that a flat row passes with a chance of at most `FLAT_CHANCE`.

    Args:
        votes: On a query; 0 where a student's share is taken off, which leaves rows around 0.
        classes: At least 2.
        noise: Of the first phase.
    """
    return vote_threshold_for(flat_row(votes, classes), chance=FLAT_CHANCE, noise=noise)


def pass_chances(
    counts: ArrayLike, *, vote_threshold: float, noise: DistributedNoise, senders: int | None = None
) -> NDArray[np.float64]:
    """Return the chance that each query passes: 1 - prod over c of F(T - 1 - n_c).

    Args:
        counts: Simulated votes, less a student's where there is one: whole numbers of either sign;
            shape (queries, classes).
        vote_threshold: Largest noisy entry from which a query passes, in votes; finite.
        noise: Of the first phase.
        senders: Parties whose noise the sum holds; None for all. All of them add theirs, so the
            noise is larger than the sigma that the price counts on.

    Returns:
        Chances, exact for the summed discrete noise but for 1e-10; shape (queries,).

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    rows = _whole_rows(counts)
    needed = math.ceil(in_range("vote_threshold", vote_threshold)) - rows
    return np.asarray(-np.expm1(_log_all_below(needed, noise, senders).sum(axis=1)))


def preview_two_phases(
    counts: NDArray[np.int64],
    *,
    vote_threshold: float,
    first: DistributedNoise,
    second: DistributedNoise,
    senders: int | None = None,
) -> Preview:
    """Return the rates of answers and of right answers: `preview_confident` of this check.

    Args:
        counts: Simulated votes, the right class first; shape (queries, classes).
        vote_threshold: Largest noisy entry from which a query passes, in votes; finite.
        first: Noise of the check's rows.
        second: Noise of the labels' rows.
        senders: As for `pass_chances`.

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    passes = pass_chances(counts, vote_threshold=vote_threshold, noise=first, senders=senders)
    sigma = second.sum_sigma(second.parties if senders is None else senders)
    right = right_chances(counts, sigma=sigma)
    return Preview(
        answer_rate=float(passes.mean()),
        accuracy=float((passes * right).sum() / max(passes.sum(), 1e-12)),
    )


def vote_threshold_for(
    counts: ArrayLike, *, chance: float, noise: DistributedNoise, senders: int | None = None
) -> int:
    """Return the lowest whole threshold at which such queries pass with at most a chance.

    Args:
        counts: One query's simulated votes, one that should be refused, such as a flat row;
            shape (classes,).
        chance: Most chance that it passes, in (0, 1).
        noise: Of the first phase.
        senders: As for `pass_chances`.

    Raises:
        InvalidParameterError: an argument is out of its range.
    """
    row = _whole_rows(np.asarray(counts)[np.newaxis])[0]
    log_fail = math.log1p(-probability("chance", chance))
    sigma = noise.sum_sigma(noise.parties if senders is None else senders)
    # Beyond 10 sigma above all counts a pass is below any chance that matters; C is below e^20.
    reach = math.ceil(sigma * (10 + math.sqrt(2 * math.log(len(row) / chance))))
    low, high = int(row.min()) - reach, int(row.max()) + reach
    while low < high:  # the higher the threshold, the surer the refusal
        middle = (low + high) // 2
        if _log_all_below(middle - row, noise, senders).sum() >= log_fail:
            high = middle
        else:
            low = middle + 1
    return low


def _log_all_below(
    needed: NDArray[np.int64], noise: DistributedNoise, senders: int | None
) -> NDArray[np.float64]:
    """Return ln Pr[noise < needed], the same shape."""
    present = noise.parties if senders is None else senders
    sigma = noise.sum_sigma(present)
    # Farther out chances are 0 or 1 but for e^-800, and votes may be many.
    far = math.ceil(_FAR * sigma)
    within, places = np.unique(np.clip(needed, -far, far), return_inverse=True)
    _, below = distributed_pass_law(within, sigma=sigma, shares=present)
    return below[places].reshape(needed.shape)


def _whole_rows(counts: ArrayLike) -> NDArray[np.int64]:
    rows = np.asarray(counts)
    if rows.ndim != 2 or rows.shape[1] < 1 or not np.issubdtype(rows.dtype, np.integer):
        raise InvalidParameterError("counts must be whole numbers with 2 axes", rows.shape)
    return rows.astype(np.int64)

"""Local sensitivity at every distance by brute force: what lists of it are held against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.exact_argmax import one_vote_neighbors

Votes = tuple[int, ...]


def reached(start: Votes, most: int, weight: int) -> list[set[Votes]]:
    """Votes within 0, 1, ... units, each of at most `weight` one-vote changes."""
    within = [{start}]
    for _ in range(most):
        frontier = set(within[-1])
        for _ in range(weight):
            frontier |= {
                tuple(int(count) for count in moved)
                for votes in frontier
                for moved in one_vote_neighbors(np.array(votes))
            }
        within.append(frontier)
    return within


def definition(
    start: Votes, cost: Callable[[Votes], float], *, most: int, weight: int
) -> list[float]:
    """The largest local sensitivity within 0, 1, ... units of these votes."""
    costs: dict[Votes, float] = {}

    def cost_of(votes: Votes) -> float:
        if votes not in costs:
            costs[votes] = cost(votes)
        return costs[votes]

    return [
        max(
            abs(cost_of(votes) - cost_of(other))
            for votes in nearby
            for other in reached(votes, 1, weight)[1]
        )
        for nearby in reached(start, most, weight)
    ]

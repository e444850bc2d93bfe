"""The quota of near queries in a simulation: the queries that hospitals would answer.

A hospital answers few queries that lie close to earlier ones. A deployed run leaves the others out,
and so does a simulation: the student then learns from as many labels as it would get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from party.site.policy import Policy
from pate_fed.queries import QueryPool
from pate_fed.query_sketches import LEAST_NEAR_DISTANCE, near_queries, neighbors, sketch

MOST_NEAR: Final = Policy().most_near_queries or 0
"""Near queries that a hospital answers by default, in its life: in a simulation, in one run."""


def near_notes(left_out: int) -> list[str]:
    """Return the warning about queries that were left out, or none."""
    if not left_out:
        return []
    return [
        f"{left_out} of the chosen queries lie close to others and were not asked: a hospital "
        f"answers {MOST_NEAR} such queries in its life."
    ]


def within_quota(
    pool: QueryPool,
    chosen: Sequence[int],
    *,
    earlier: Sequence[int] = (),
    most: int = MOST_NEAR,
) -> tuple[int, ...]:
    """Return the chosen queries that hospitals answer, in order; `most` counts earlier ones."""
    sketches = sketch(pool.inputs[[*earlier, *chosen]])
    near = near_queries(sketches, sketches[:0], distance=LEAST_NEAR_DISTANCE)
    if int(near.sum()) <= most:
        return tuple(chosen)
    left = most - int(near[: len(earlier)].sum())
    served = list(range(len(earlier)))
    for place in range(len(earlier), len(near)):
        if near[place]:
            # Close to one that is asked, not only to one that was left out?
            [close] = neighbors(
                sketches[place : place + 1], sketches[served], distance=LEAST_NEAR_DISTANCE
            )
            if len(close) and left <= 0:
                continue
            left -= bool(len(close))
        served.append(place)
    both = [*earlier, *chosen]
    return tuple(both[place] for place in served[len(earlier) :])

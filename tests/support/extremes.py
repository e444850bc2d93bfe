"""Numbers and shapes at the ends of what files and messages can hold, in each place in turn."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, Final

NUMBERS: Final[tuple[Any, ...]] = (
    0, -0.0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**400,
    5e-324, 1e-300, -1e-300, 0.5, 1.0, 1e300, -1e308, math.inf, -math.inf, math.nan,
)  # fmt: skip
"""Also those that no format holds: then it is not written, and nothing is tried."""


def nested(depth: int) -> list[Any]:
    """Return a list in a list, so many times."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


OTHERS: Final[tuple[Any, ...]] = (
    True, "", "x", "x" * 500, [], [0] * 500, {}, {"x": 0}, nested(5), nested(150),
)  # fmt: skip

EXTREMES: Final = (*NUMBERS, *OTHERS)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in tables and lists, the tables and lists themselves too."""
    if place:
        yield place
    if isinstance(value, dict):
        for key, held in value.items():
            yield from places_in(held, (*place, key))
    elif isinstance(value, list):  # entries are alike
        for key, held in enumerate(value[:1]):
            yield from places_in(held, (*place, key))


def with_value(table: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a table with another value in a place."""
    *before, last = place
    changed = copy.deepcopy(table)
    inner = changed
    for key in before:
        inner = inner[key]
    inner[last] = value
    return changed


def extremes_of(table: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield a place and a table that is extreme there, for every place and every extreme."""
    for place in places_in(table):
        for value in EXTREMES:
            yield place, with_value(table, place, value)

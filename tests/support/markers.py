"""Cases that only exhaustive runs try, and cases that take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any
from zlib import crc32

import pytest


def more(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - as `pytest.param` has it
    """Return a case of a parametrized test, for `make test-exhaustive` alone.

    Args:
        values: What the test is given.
        id: The case's name.
    """
    return pytest.param(*values, id=id, marks=pytest.mark.exhaustive)


def sampled(cases: int) -> pytest.MarkDecorator:
    """Try so many cases of a parametrized test; exhaustive runs try all of them.

    Args:
        cases: How many, at least 1; see `leave_to_exhaustive_runs`.
    """
    return pytest.mark.sampled(cases)


def leave_to_exhaustive_runs(items: Sequence[pytest.Item]) -> None:
    """Leave cases of tests that are `sampled` to exhaustive runs.

    Cases are chosen one by one: the first of those that add most values of the test's parameters
    to the values already tried. Where to begin follows from the test's name, so that tests with
    the same parameters do not all leave out the same case.

    Args:
        items: All collected tests.
    """
    tests: dict[str, tuple[int, list[pytest.Function]]] = {}
    for item in items:
        sampling = item.get_closest_marker("sampled")
        if sampling is not None and item.get_closest_marker("exhaustive") is None:
            assert isinstance(item, pytest.Function)
            tests.setdefault(item.nodeid.partition("[")[0], (sampling.args[0], []))[1].append(item)
    for name, (number, cases) in tests.items():
        begin = crc32(name.encode()) % len(cases)
        cases[:] = cases[begin:] + cases[:begin]
        seen: set[tuple[str, int]] = set()
        for _ in range(min(number, len(cases))):
            chosen = max(cases, key=lambda case: len(_values(case) - seen))
            seen |= _values(chosen)
            cases.remove(chosen)
        for case in cases:
            case.add_marker("exhaustive")


def _values(case: pytest.Function) -> set[tuple[str, int]]:
    """Return the objects that a case is given, by their parameters' names."""
    return {(name, id(value)) for name, value in case.callspec.params.items()}


def has_mark(test: Callable[..., object], name: str) -> bool:
    """Whether a test, or one of its cases, has a mark of its own."""
    marks: list[pytest.Mark] = list(getattr(test, "pytestmark", []))
    for mark in tuple(marks):
        if mark.name == "parametrize" and isinstance(mark.args[-1], list | tuple):
            marks += [one for case in mark.args[-1] for one in getattr(case, "marks", ())]
    return any(mark.name == name for mark in marks)


def in_turn(
    *axes: tuple[str, Sequence[Any]], every: int = 2, indirect: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """Try so many of the cases that every value of an axis meets every value of each other one.

    Exhaustive runs try all of them. Cases are chosen by their places: a sum that `every` divides.
    An axis of `every` values thus takes turns over the cases of the others.

    Args:
        axes: Names and cases, each as `pytest.mark.parametrize` has them.
        every: Which part of the cases is tried: half of them, a third ...
        indirect: Names that are fixtures.
    """
    return _cases(axes, lambda places: sum(places) % every == 0, indirect)


def each_once(
    *axes: tuple[str, Sequence[Any]], indirect: Sequence[str] = ()
) -> pytest.MarkDecorator:
    """Try every value of the longest axis once, with the values of the others in turn.

    Exhaustive runs try all cases. Shorter axes take turns like digits: all pairs of two axes of two
    values meet within four values of the longest.

    Args:
        axes: Names and cases, each as `pytest.mark.parametrize` has them.
        indirect: Names that are fixtures.
    """
    longest = max(range(len(axes)), key=lambda place: len(axes[place][1]))

    def is_next(places: tuple[int, ...]) -> bool:
        turn = places[longest]
        for number, (place, (_, values)) in enumerate(zip(places, axes, strict=True)):
            if number != longest:
                if place != turn % len(values):
                    return False
                turn //= len(values)
        return True

    return _cases(axes, is_next, indirect)


def _cases(
    axes: Sequence[tuple[str, Sequence[Any]]],
    is_tried: Callable[[tuple[int, ...]], bool],
    indirect: Sequence[str],
) -> pytest.MarkDecorator:
    """Leave all cases whose places are not tried to exhaustive runs."""
    names = [name.strip() for axis, _ in axes for name in axis.split(",")]
    cases = []
    for places in product(*(range(len(values)) for _, values in axes)):
        chosen = [
            each if isinstance(each, type(pytest.param())) else pytest.param(*_as_tuple(each))
            for each in (values[place] for (_, values), place in zip(axes, places, strict=True))
        ]
        marks = [mark for each in chosen for mark in each.marks]
        if not is_tried(places):
            marks.append(pytest.mark.exhaustive)
        given = [value for each in chosen for value in each.values]
        said = [each.id or "-".join(map(_name, each.values)) for each in chosen]
        cases.append(pytest.param(*given, marks=marks, id="-".join(said)))
    return pytest.mark.parametrize(names, cases, indirect=list(indirect))


def _as_tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))

"""Cases that only exhaustive runs try: values of what other cases try, never a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pytest


def more(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - as `pytest.param` has it
    """Return a case of a parametrized test, for `make test-exhaustive` alone.

    Args:
        values: What the test is given: a size, a seed, never a rule.
        id: The case's name.
    """
    return pytest.param(*values, id=id, marks=pytest.mark.exhaustive)


def sampled(*values: str, cases: int = 1) -> pytest.MarkDecorator:
    """Try each row of each table of a test once; exhaustive runs try all combinations.

    A table is what one `parametrize`, or one fixture, gives. Rows of a refusal, a state or a code
    are rules, and none is left out.

    Args:
        values: Parameters that are values (sizes, seeds, settings): rows of their tables take
            turns, and only exhaustive runs try all of them.
        cases: How many to try at least, where that is more.
    """
    return pytest.mark.sampled(*values, cases=cases)


def leave_to_exhaustive_runs(items: Sequence[pytest.Item]) -> None:
    """Leave cases of tests that are `sampled` to exhaustive runs.

    Cases are chosen one by one: the first of those that add most rows of rules, then most rows of
    values. Where to begin follows from the test's name, so that tests with the same tables do not
    all leave out the same case.
    """
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("exhaustive"):
            assert isinstance(item, pytest.Function)
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in tests.items():
        begin = crc32(name.encode()) % len(cases)
        for case in _left_out(cases[begin:] + cases[:begin]):
            case.add_marker("exhaustive")


def _left_out(cases: list[pytest.Function]) -> list[pytest.Function]:
    sampling = cases[0].get_closest_marker("sampled")
    assert sampling is not None
    rows = {case: _rows(case) for case in cases}
    rules = {
        row
        for row in set().union(*rows.values())
        if not any(name in sampling.args for name, _ in row)
    }
    tried: set[_Row] = set()
    number = 0
    while cases and (number < sampling.kwargs["cases"] or not rules <= tried):
        new = {case: rows[case] - tried for case in cases}
        chosen = max(cases, key=lambda case: (len(new[case] & rules), len(new[case])))
        tried |= rows[chosen]
        cases.remove(chosen)
        number += 1
    return cases


_Row = frozenset[tuple[str, int]]
"""What a row of a table gives: each parameter's name, and which object."""


def _rows(case: pytest.Function) -> set[_Row]:
    """Return the rows that a case is made of, one of each table."""
    given = dict(case.callspec.params) if hasattr(case, "callspec") else {}
    tables = [mark.args[0] for mark in case.iter_markers("parametrize")]
    named = [names.split(",") if isinstance(names, str) else names for names in tables]
    rows = [
        frozenset((name.strip(), id(given.pop(name.strip()))) for name in names) for names in named
    ]
    return {*rows, *(frozenset([(name, id(value))]) for name, value in given.items())}


def has_mark(test: Callable[..., object], name: str) -> bool:
    """Whether a test, or one of its cases, has a mark of its own."""
    marks: list[pytest.Mark] = list(getattr(test, "pytestmark", []))
    for mark in tuple(marks):
        if mark.name == "parametrize" and isinstance(mark.args[-1], list | tuple):
            marks += [one for case in mark.args[-1] for one in getattr(case, "marks", ())]
    return any(mark.name == name for mark in marks)

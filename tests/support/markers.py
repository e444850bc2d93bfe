"""Cases that only exhaustive runs try, and cases that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def more(*values: Any, id: str | None = None) -> Any:  # noqa: A002 - as `pytest.param` has it
    """Return a case of a parametrized test, for `make test-exhaustive` alone.

    Args:
        values: What the test is given.
        id: The case's name.
    """
    return pytest.param(*values, id=id, marks=pytest.mark.exhaustive)


def in_turn(
    fixture: str, settings: Sequence[Any], *axes: tuple[str, Sequence[Any]]
) -> pytest.MarkDecorator:
    """Try every case in one setting, the settings by turns; exhaustive runs try each in all.

    With several axes, every value of each axis meets every setting.

    Args:
        fixture: The fixture that takes a setting.
        settings: The settings.
        axes: Names and cases, each as `pytest.mark.parametrize` has them.
    """
    names = [name.strip() for axis, _ in axes for name in axis.split(",")]
    cases = []
    for places in product(*(range(len(values)) for _, values in axes)):
        chosen = [
            each if isinstance(each, type(pytest.param())) else pytest.param(*_as_tuple(each))
            for each in (values[place] for (_, values), place in zip(axes, places, strict=True))
        ]
        for turn, setting in enumerate(settings):
            marks = [mark for each in chosen for mark in each.marks]
            if turn != sum(places) % len(settings):
                marks.append(pytest.mark.exhaustive)
            given = [value for each in chosen for value in each.values]
            said = [each.id or "-".join(map(_name, each.values)) for each in chosen]
            cases.append(
                pytest.param(setting, *given, marks=marks, id="-".join([str(setting), *said]))
            )
    return pytest.mark.parametrize((fixture, *names), cases, indirect=[fixture])


def _as_tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))

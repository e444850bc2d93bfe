"""Copies of whole runs: to set one up takes six times as long as to copy one that was."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from types import CellType, FunctionType, ModuleType
from typing import Any
from unittest import mock

from coordinator.database import Database
from party.storage import PartyDatabase
from pate_fed.nodes.database import NodeDatabase

_MOST_OF_A_TEST = 2
_PLAIN = (str, bytes, int, float, type(None))


class Copies:
    """Things of a kind that tests begin with, made once for all that ask for the same.

    A test that asks for the same again gets another one, made anew if it asks often. So do modules
    and fixtures, which may be there when a test asks.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Any] = {}
        self._times: Counter[tuple[str, str]] = Counter()

    def of(self, make: Callable[..., Any], **settings: Any) -> Any:
        """Return what `make` makes of some settings; made anew if they are more than values."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if not test.endswith(" (call)") or not _is_plain(settings):
            return make(**settings)
        key = repr(sorted(settings.items()))
        number, self._times[test, key] = self._times[test, key], self._times[test, key] + 1
        place = (key, number)
        if place in self._kept and self._kept[place] is not None:
            return copied(self._kept[place])
        made = make(**settings)
        if number < _MOST_OF_A_TEST:
            # Many settings are asked for once: their second use is soon enough to keep them.
            self._kept[place] = copied(made) if place in self._kept else None
        return made


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, tuple | list | frozenset):
        return all(map(_is_plain, value))
    return type(value) in (*_PLAIN, bool)


def copied(whole: Any) -> Any:
    """Copy an object and all that it holds: databases in memory, and what functions enclose."""
    special = {
        **dict.fromkeys((Database, PartyDatabase), _database),
        **{FunctionType: _function, ModuleType: _same},
    }
    with mock.patch.dict(copy._deepcopy_dispatch, special):  # type: ignore[attr-defined]
        return copy.deepcopy(whole)


def _same(module: ModuleType, memo: dict[int, Any]) -> ModuleType:
    return module


def _function(known: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Return what does the same with copies of the values that it encloses."""
    if known.__closure__ is None:
        return known
    cells = tuple(CellType() for _ in known.__closure__)
    made = FunctionType(
        known.__code__, known.__globals__, known.__name__, known.__defaults__, cells
    )
    made.__kwdefaults__ = known.__kwdefaults__
    memo[id(known)] = made
    for old, new in zip(known.__closure__, cells, strict=True):
        new.cell_contents = copy.deepcopy(old.cell_contents, memo)
    return made


def _database(known: NodeDatabase, memo: dict[int, Any]) -> NodeDatabase:
    made = type(known).in_memory()
    memo[id(known)] = made
    with closing(known._engine.raw_connection()) as old:
        assert old.driver_connection is not None
        image = old.driver_connection.serialize()
    with closing(made._engine.raw_connection()) as new:
        assert new.driver_connection is not None
        new.driver_connection.deserialize(image)
    for name, value in vars(known).items():
        if name not in vars(made):
            setattr(made, name, copy.deepcopy(value, memo))
    return made

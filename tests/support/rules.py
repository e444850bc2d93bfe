"""Terms and settings by flat names: those of `Rule` and `Caps` go into values of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from pate_fed.data import DataSource
from pate_fed.planning import PlanRequest, RunSettings
from pate_fed.rule import Caps, Rule
from pate_fed.terms import MOST_ASKED, RunTerms
from protocols.suites import DEFAULT_SUITE

T = TypeVar("T", RunTerms, RunSettings, PlanRequest)

_OPTIONS = {"queries": "max_asks", "noise": "noise_place"}
_RULE = {one.name for one in fields(Rule)}
_CAPS = {one.name for one in fields(Caps)}


def run_terms(**given: Any) -> RunTerms:
    """Return terms; their batches have no size of their own unless one is given."""
    flat = {"mechanism": "threshold", "batch_size": MOST_ASKED, **given}
    return RunTerms(**_nested(flat, Rule(flat["mechanism"]), Caps()))


def run_settings(*args: Any, **given: Any) -> RunSettings:
    """Return settings; `queries` and `noise` are spelled as their options."""
    flat = {"mechanism": "threshold", **given}
    return RunSettings(*args, **_nested(flat, Rule(flat["mechanism"]), Caps()))


def plan_request(**given: Any) -> PlanRequest:
    """Return the request of a plan, its settings as `run_settings` makes them."""
    own = {one.name for one in fields(PlanRequest)} & given.keys()
    asked = {name: given.pop(name) for name in own}
    return PlanRequest(run_settings(DataSource("digits"), DEFAULT_SUITE, **given), **asked)


def with_other(held: T, **given: Any) -> T:
    """Return terms or settings with other values."""
    if isinstance(held, PlanRequest):
        own = {one.name for one in fields(held)} & given.keys()
        asked = {name: given.pop(name) for name in own}
        return replace(held, settings=with_other(held.settings, **given), **asked)
    return replace(held, **_nested(given, held.rule, held.caps))


def changed_record(record: Mapping[str, Any], **given: Any) -> dict[str, Any]:
    """Return the record of terms with other values, each in the table that has it."""
    tables = {table: dict(record[table]) for table in ("rule", "caps")}
    for table in tables.values():
        table |= {name: given.pop(name) for name in table.keys() & given.keys()}
    return {**record, **tables, **given}


def _nested(given: Mapping[str, Any], rule: Rule, caps: Caps) -> dict[str, Any]:
    named = {_OPTIONS.get(name, name): value for name, value in given.items()}
    return {
        "rule": replace(rule, **{name: named.pop(name) for name in _RULE & named.keys()}),
        "caps": replace(caps, **{name: named.pop(name) for name in _CAPS & named.keys()}),
        **named,
    }

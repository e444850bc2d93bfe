"""The shape that the JSON files of a run must have, checked at the door.

Each table maps a dotted path to the rule for its value. Further keys may come; a key that is listed
may not be missing, but for those of `_PRIVACY_OPTIONAL`. A message names the place and the kind of
value, not the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pate_fed.errors import RunDirectoryError

SCHEMA_VERSION = 1


class Rule(NamedTuple):
    """A rule for a value, in words and as a test."""

    words: str
    holds: Callable[[object], bool]


def check_manifest(manifest: Mapping[str, object]) -> None:
    """Check the version of `manifest.json`; its tables are free.

    Raises:
        RunDirectoryError: another schema version.
    """
    _check_version("manifest.json", manifest)


def check_metrics(metrics: Mapping[str, object]) -> None:
    """Check `metrics.json`.

    Raises:
        RunDirectoryError: another schema version, or a value is missing or of another kind.
    """
    _check_version("metrics.json", metrics)
    _check("metrics.json", metrics, _METRICS)


def check_privacy(privacy: Mapping[str, object]) -> None:
    """Check `privacy.json`.

    Raises:
        RunDirectoryError: another schema version, or a value is missing or of another kind.
    """
    _check_version("privacy.json", privacy)
    _check("privacy.json", privacy, _PRIVACY)
    _check("privacy.json", privacy, _PRIVACY_OPTIONAL, optional=True)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= 0


def _or_null(rule: Rule) -> Rule:
    return Rule(f"{rule.words} or null", lambda value: value is None or rule.holds(value))


def _each(rules: Mapping[str, Rule], *, named: bool) -> Rule:
    def holds(value: object) -> bool:
        if not isinstance(value, dict if named else list):
            return False
        rows = value.values() if isinstance(value, dict) else value
        return all(
            isinstance(row, dict)
            and all(key in row and rule.holds(row[key]) for key, rule in rules.items())
            for row in rows
        )

    fields = ", ".join(f"{key} ({rule.words})" for key, rule in rules.items())
    return Rule(f"a {'table' if named else 'list'} of entries with {fields}", holds)


_TEXT = Rule("a text", lambda value: isinstance(value, str))
_TEXTS = Rule(
    "a list of texts",
    lambda value: isinstance(value, list) and all(isinstance(entry, str) for entry in value),
)
_YES_NO = Rule("true or false", lambda value: isinstance(value, bool))
_COUNT = Rule("a whole number from 0", _is_count)
_NUMBER = Rule("a number from 0", _is_number)
_SHARE = Rule(
    "a number from 0 to 1",
    lambda value: _is_number(value) and isinstance(value, int | float) and value <= 1,
)
_TABLE = Rule("a table", lambda value: isinstance(value, dict))
_NAME = Rule("a number or a text", lambda value: _is_count(value) or isinstance(value, str))

_METRICS: Mapping[str, Rule] = {
    "simulated": _YES_NO,
    "accuracy.student": _or_null(_SHARE),
    "accuracy.labels": _or_null(_SHARE),
    "accuracy.teacher_mean": _or_null(_SHARE),
    "accuracy.best_single_party": _or_null(_SHARE),
    "accuracy.pooled": _or_null(_SHARE),
    "queries.pool": _COUNT,
    "queries.asked": _COUNT,
    "queries.answered": _COUNT,
    "queries.refused": _COUNT,
    "queries.not_asked": _COUNT,
    "queries.void": _COUNT,
    "queries.reinforced": _or_null(_COUNT),
    "parties": _COUNT,
    "teachers": _COUNT,
    "exchanges": _TABLE,
    "per_class": _each({"answered": _COUNT, "refused": _COUNT}, named=True),
    "seconds": _TABLE,
    "bytes": _TABLE,
    "warnings": _TEXTS,
}

_PRIVACY: Mapping[str, Rule] = {
    "simulated": _YES_NO,
    "delta": _NUMBER,
    "unit": Rule('"record" or "party"', lambda value: value in ("record", "party")),
    "unit_weight": _COUNT,
    "neighbors": _TEXT,
    "mechanism.name": _TEXT,
    "mechanism.vote_threshold": _or_null(_NUMBER),
    "mechanism.sigma1": _or_null(_NUMBER),
    "mechanism.sigma2": _or_null(_NUMBER),
    "mechanism.max_asks": _or_null(_COUNT),
    "mechanism.max_answers": _or_null(_COUNT),
    "mechanism.max_refusals": _or_null(_COUNT),
    "mechanism.pricing": _TEXT,
    "noise.place": _TEXT,
    "noise.source": _TEXT,
    "noise.delta_slack": _or_null(_NUMBER),
    "budget.epsilon": _NUMBER,
    "budget.delta": _NUMBER,
    "budget.order": _or_null(_NUMBER),
    "views.public.formal.epsilon": _or_null(_NUMBER),
    "views.public.formal.method": _TEXT,
    "views.public.formal.holds_for": _TEXT,
    "views.public.bounds": _each({"epsilon": _or_null(_NUMBER), "method": _TEXT}, named=True),
    "views.coordinator.formal.epsilon": _or_null(_NUMBER),
    "views.coordinator.formal.method": _TEXT,
    "parties": _each(
        {
            "party": _NAME,
            "teachers": _COUNT,
            "votes": _COUNT,
            "unit_votes": _COUNT,
            "neighbors": _TEXT,
            "budget": _NUMBER,
            "epsilon": _or_null(_NUMBER),
            "method": _TEXT,
            "epsilon_without_trust": _or_null(_NUMBER),
        },
        named=False,
    ),
    "per_instance.epsilon": _or_null(_NUMBER),
    "per_instance.order": _or_null(_NUMBER),
    "per_instance.method": _TEXT,
    "per_instance.releasable": _YES_NO,
    "sanitized.epsilon": _or_null(_NUMBER),
    "sanitized.method": _TEXT,
    "sanitized.releasable": _YES_NO,
    "charged": _each({"asked": _COUNT, "answered": _COUNT, "epsilon": _NUMBER}, named=False),
    "ledger": _each(
        {"batch": _NAME, "state": _TEXT, "asked": _COUNT, "answered": _COUNT}, named=False
    ),
    "sum": _TEXT,
    "guarantee": _TEXT,
    "trust": _TEXT,
    "not_protected": _TEXTS,
}


_PRIVACY_OPTIONAL: Mapping[str, Rule] = {
    "views.public.formal.holds_if": _TEXT,
    "views.coordinator.formal.holds_for": _TEXT,
    "mechanism.shares": _COUNT,
    "mechanism.confidence": _or_null(_SHARE),
    "mechanism.test_delta": _or_null(_SHARE),
    "mechanism.unit_votes": _or_null(_COUNT),
    "mechanism.gamma": _or_null(_NUMBER),
    "budget.kept_for_tests": _NUMBER,
    "budget.spent_by_tests": _NUMBER,
    "mechanism.constant": _or_null(_NUMBER),
}
"""Keys of some mechanisms only, and of noise at the parties."""


def _check(
    file: str, content: Mapping[str, object], rules: Mapping[str, Rule], *, optional: bool = False
) -> None:
    for path, rule in rules.items():
        value: object = content
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                if optional:
                    break
                raise RunDirectoryError(f"{file}: {path} must be {rule.words}", "nothing")
            value = value[key]
        else:
            if not rule.holds(value):
                raise RunDirectoryError(
                    f"{file}: {path} must be {rule.words}", f"another {type(value).__name__}"
                )


def _check_version(file: str, content: Mapping[str, object]) -> None:
    version = content.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        came = version if isinstance(version, int) else type(version).__name__
        raise RunDirectoryError(f"{file}: schema_version must be {SCHEMA_VERSION}", came)

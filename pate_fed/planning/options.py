"""Options of the command line: their spelling by the names of settings, and their ranges."""

from __future__ import annotations

from typing import Any, Final, get_args

from pate_fed.accounting.ranges import broken_ranges, shown
from pate_fed.accounting.statement import NoisePlace
from pate_fed.errors import InvalidSettingError
from pate_fed.rule import Rule


def require_in_range(settings: Any) -> None:
    """Check every number of settings that has a range.

    Args:
        settings: A dataclass, its fields named as in `RANGES`.

    Raises:
        InvalidSettingError: one is out of its range.
    """
    for name, rule, number in broken_ranges(settings):
        raise InvalidSettingError(f"{option_of(name)} must be {rule}", shown(number))


def require_rule(rule: Rule) -> None:
    """Refuse an unknown place of the noise, colluders where the coordinator adds it, odd votes.

    Raises:
        InvalidSettingError: the rule has one.
    """
    if rule.noise_place not in get_args(NoisePlace):
        raise InvalidSettingError("--noise must be coordinator or parties", rule.noise_place)
    if rule.colluders is not None and not rule.at_parties:
        raise InvalidSettingError("--colluders is for --noise parties", rule.noise_place)
    if rule.vote_threshold is not None and rule.vote_threshold < 0:
        raise InvalidSettingError("--vote-threshold must be at least 0", rule.vote_threshold)


def option_of(setting: str) -> str:
    """Return the command line's name of a setting."""
    return _SPELLED.get(setting) or "--" + setting.removesuffix("_s").replace("_", "-")


_SPELLED: Final = {"max_asks": "--queries", "noise_place": "--noise", "form": "--sum"}

"""Options of the command line: their spelling by the names of settings, and their ranges."""

from __future__ import annotations

from typing import Any, Final

from pate_fed.accounting.ranges import broken_ranges, shown
from pate_fed.errors import InvalidSettingError


def require_in_range(settings: Any) -> None:
    """Check every number of settings that has a range.

    Args:
        settings: A dataclass, its fields named as in `RANGES`.

    Raises:
        InvalidSettingError: one is out of its range.
    """
    for name, rule, number in broken_ranges(settings):
        raise InvalidSettingError(f"{option_of(name)} must be {rule}", shown(number))


def option_of(setting: str) -> str:
    """Return the command line's name of a setting."""
    return _SPELLED.get(setting) or "--" + setting.removesuffix("_s").replace("_", "-")


_SPELLED: Final = {"max_asks": "--queries", "noise_place": "--noise", "form": "--sum"}

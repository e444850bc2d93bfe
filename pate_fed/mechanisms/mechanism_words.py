"""The words for a mechanism's numbers in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pate_fed.wording import count

NOBODY_IS_PROTECTED: Final = (
    "This mechanism protects nobody. An observer who knows the other votes can read the last one "
    "off a label. It is for comparison only"
)
"""The warning to show everywhere with a mechanism that has no finite price."""


def number(mechanism: Mapping[str, Any], name: str) -> str:
    """Format a parameter; reports of damaged files have none."""
    value = mechanism.get(name)
    return "an unknown number of" if value is None else count(value)


def noise_added(mechanism: Mapping[str, Any], *, kind: str = "noise") -> str:
    """Describe the noise in every count, at each place."""
    sigma, shares = number(mechanism, "sigma2"), mechanism.get("shares")
    if mechanism.get("aggregators") is not None:
        return (
            f"the coordinator and the tally each add {kind} of standard deviation {sigma} votes "
            "to every count"
        )
    if shares is not None:
        return (
            f"every hospital adds its part of {kind} to its own counts before they are added up; "
            f"any {count(shares)} parts together have a standard deviation of {sigma} votes in "
            "every count"
        )
    return f"{kind} of standard deviation {sigma} votes is added to every count"


def pick(mechanism: Mapping[str, object], *, kind: str = "noise") -> str:
    """Describe the choice of a label after noise in every count, at either place."""
    return (
        f"{noise_added(mechanism, kind=kind)}, and the class with the highest noisy count is "
        "released"
    )

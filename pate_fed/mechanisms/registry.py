"""Mechanisms by name. A new one is its own file and a line here."""

from __future__ import annotations

from typing import Final

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms import (
    gaussian_max,
    laplace_max,
    stable_max,
    tallies,
    threshold_max,
)
from pate_fed.mechanisms.mechanism import Mechanism, Spec
from pate_fed.rule import Rule

SPECS: Final[dict[str, Spec]] = {
    spec.name: spec
    for spec in (
        threshold_max.SPEC,
        gaussian_max.SPEC,
        threshold_max.INTERACTIVE_SPEC,
        laplace_max.SPEC,
        stable_max.GAUSSIAN_SPEC,
        stable_max.LAPLACE_SPEC,
    )
}
"""Every known mechanism, by its name; the first is the default.

`pate_fed.lab.mechanisms` adds those that are for simulations alone.
"""

TALLIES: Final = tallies.SPEC.name
"""The mechanism of a private evaluation, which nobody chooses for labels."""

DEPLOYED_MECHANISMS: Final = tuple(SPECS)
"""Mechanisms of a deployment: they release labels alone, at a finite price."""


def specs_with(noise_place: str) -> dict[str, Spec]:
    """Return the mechanisms that can have their noise added there, by name."""
    if noise_place == "coordinator":
        return dict(SPECS)
    return {name: spec for name, spec in SPECS.items() if spec.at_parties}


def spec_of(name: str) -> Spec:
    """Return the `Spec` of a mechanism; refuse an unknown name."""
    if name == TALLIES:
        return tallies.SPEC
    if name not in SPECS:
        raise InvalidParameterError(f"mechanism must be one of {', '.join(SPECS)}", name)
    return SPECS[name]


def make_mechanism(
    rule: Rule, *, parties: int = 0, unit_votes: int = 1, simulated: bool = False
) -> Mechanism:
    """Make the mechanism of a rule.

    A mechanism that protects nobody is made for a simulation only, where nobody's records are
    at stake.
    """
    spec = spec_of(rule.mechanism)
    if not (spec.is_private or simulated):
        raise InvalidParameterError(
            "a mechanism for real records must have a finite price; this one is for comparison "
            "in simulations (docs/explanation/immutable-argmax.md)",
            rule.mechanism,
        )
    if rule.opens_noisy and not spec.at_parties:
        possible = ", ".join(specs_with(rule.noise_place))
        raise InvalidParameterError(
            f"mechanism must be one of {possible} with noise at the {rule.noise_place}",
            rule.mechanism,
        )
    return spec.make(rule, parties, unit_votes)

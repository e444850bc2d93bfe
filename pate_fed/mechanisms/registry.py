"""Mechanisms by name: what terms and settings may ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.distributed_max import (
    DistributedConfidentMax,
    DistributedGaussianMax,
    DistributedInteractiveMax,
    DistributedMechanism,
)
from pate_fed.mechanisms.gaussian_max import ConfidentGaussianMax, GaussianMax
from pate_fed.mechanisms.immutable_max import ImmutableMax
from pate_fed.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.mechanisms.laplace_max import LaplaceMax
from pate_fed.mechanisms.mechanism import Mechanism
from pate_fed.mechanisms.stable_max import StableGaussianMax, StableLaplaceMax


@dataclass(frozen=True, slots=True)
class MechanismOptions:
    """Everything that a mechanism may be made from; each takes what it needs.

    Attributes:
        vote_threshold: Noisy top count from which a query is answered, in votes.
        sigma1: Standard deviation of the noise in the check or in the test, in votes or units.
        sigma2: Standard deviation of the noise in each count, in votes.
        confidence: From which an Interactive-GNMax student's own label is kept.
        test_delta: Of one test of stability.
        unit_votes: Votes that one neighboring change can move, for tests of stability.
    """

    vote_threshold: float | None = None
    sigma1: float | None = None
    sigma2: float | None = None
    confidence: float | None = None
    test_delta: float | None = None
    unit_votes: int = 1

    def need(self, mechanism: str, name: str) -> float:
        """Return an option that a mechanism cannot do without.

        Raises:
            InvalidParameterError: it is not given.
        """
        value = getattr(self, name)
        if value is None:
            raise InvalidParameterError(f"{mechanism} needs {name}", "none")
        return float(value)


def make_mechanism(
    name: str,
    *,
    vote_threshold: float | None = None,
    sigma1: float | None = None,
    sigma2: float | None = None,
    confidence: float | None = None,
    test_delta: float | None = None,
    unit_votes: int = 1,
    simulated: bool = False,
) -> Mechanism:
    """Make a mechanism by its name.

    Args:
        name: One of `MECHANISM_NAMES`.
        vote_threshold: As in `MechanismOptions`.
        sigma1: As there.
        sigma2: As there.
        confidence: As there.
        test_delta: As there.
        unit_votes: As there.
        simulated: Whether nobody's records are at stake. A mechanism that protects nobody is made
            for a simulation only.

    Raises:
        InvalidParameterError: the name is unknown or not for real records, or a parameter is
            missing or out of its range.
    """
    make = _MAKERS.get(name)
    if make is None:
        raise InvalidParameterError(f"mechanism must be one of {', '.join(MECHANISM_NAMES)}", name)
    options = MechanismOptions(vote_threshold, sigma1, sigma2, confidence, test_delta, unit_votes)
    mechanism = make(options)
    if not (mechanism.is_private or simulated):
        raise InvalidParameterError(
            "a mechanism for real records must have a finite price; this one is for comparison "
            "in simulations (docs/explanation/immutable-argmax.md)",
            name,
        )
    return mechanism


def make_distributed_mechanism(
    name: str,
    *,
    shares: int,
    sigma2: float,
    vote_threshold: float | None = None,
    sigma1: float | None = None,
    confidence: float | None = None,
) -> DistributedMechanism:
    """Make a mechanism whose noise the parties add, by its name.

    Args:
        name: One of `DISTRIBUTED_MECHANISM_NAMES`.
        shares: Honest shares that have to suffice: n - c - d.
        sigma2: Standard deviation that they add up to in each count of a labeled row, in votes.
        vote_threshold: Largest noisy entry from which a query passes, in votes.
        sigma1: The same of the rows of the check.
        confidence: From which an Interactive-GNMax student's own label is kept.

    Raises:
        InvalidParameterError: the name is unknown, or a parameter is missing or out of its range.
    """
    options = MechanismOptions(vote_threshold, sigma1, sigma2, confidence)
    if name == DistributedGaussianMax.name:
        return DistributedGaussianMax(options.need(name, "sigma2"), shares)
    if name not in DISTRIBUTED_MECHANISM_NAMES:
        names = ", ".join(DISTRIBUTED_MECHANISM_NAMES)
        raise InvalidParameterError(
            f"mechanism must be one of {names} with noise at the parties", name
        )
    threshold, first, second = (
        options.need(name, key) for key in ("vote_threshold", "sigma1", "sigma2")
    )
    if name == DistributedConfidentMax.name:
        return DistributedConfidentMax(threshold, first, second, shares)
    return DistributedInteractiveMax(
        threshold, first, second, shares, confidence=options.need(name, "confidence")
    )


def _gaussian(options: MechanismOptions) -> Mechanism:
    return GaussianMax(options.need(GaussianMax.name, "sigma2"))


def _confident(options: MechanismOptions) -> Mechanism:
    name = ConfidentGaussianMax.name
    return ConfidentGaussianMax(
        options.need(name, "vote_threshold"),
        options.need(name, "sigma1"),
        options.need(name, "sigma2"),
    )


def _interactive(options: MechanismOptions) -> Mechanism:
    name = InteractiveGaussianMax.name
    return InteractiveGaussianMax(
        options.need(name, "vote_threshold"),
        options.need(name, "sigma1"),
        options.need(name, "sigma2"),
        confidence=options.need(name, "confidence"),
    )


def _laplace(options: MechanismOptions) -> Mechanism:
    return LaplaceMax(_gamma_of(options.need(LaplaceMax.name, "sigma2")))


def _immutable(options: MechanismOptions) -> Mechanism:
    return ImmutableMax(_gamma_of(options.need(ImmutableMax.name, "sigma2")))


def _stable_gaussian(options: MechanismOptions) -> Mechanism:
    name = StableGaussianMax.name
    return StableGaussianMax(
        options.need(name, "test_delta"),
        options.need(name, "sigma1"),
        unit_votes=options.unit_votes,
    )


def _stable_laplace(options: MechanismOptions) -> Mechanism:
    name = StableLaplaceMax.name
    return StableLaplaceMax(
        options.need(name, "test_delta"),
        _gamma_of(options.need(name, "sigma1")),
        unit_votes=options.unit_votes,
    )


def _gamma_of(sigma: float) -> float:
    """Return the inverse scale of Laplace noise of this standard deviation."""
    return math.sqrt(2) / sigma if sigma else math.inf


_MAKERS: Final[Mapping[str, Callable[[MechanismOptions], Mechanism]]] = {
    GaussianMax.name: _gaussian,
    ConfidentGaussianMax.name: _confident,
    InteractiveGaussianMax.name: _interactive,
    LaplaceMax.name: _laplace,
    StableGaussianMax.name: _stable_gaussian,
    StableLaplaceMax.name: _stable_laplace,
    ImmutableMax.name: _immutable,
}

MECHANISM_NAMES: Final = tuple(_MAKERS)
"""Every mechanism, private or not."""

DISTRIBUTED_MECHANISM_NAMES: Final = (
    DistributedGaussianMax.name,
    DistributedConfidentMax.name,
    DistributedInteractiveMax.name,
)
"""Every mechanism that noise at the parties is possible with; the first is the default there."""

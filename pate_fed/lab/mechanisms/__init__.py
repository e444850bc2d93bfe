"""Mechanisms for simulations alone; importing this package adds them to `SPECS`."""

from typing import Final

from pate_fed.lab.mechanisms import confident_max, immutable_max, interactive_max, noisy_counts
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.lab.mechanisms.immutable_max import ImmutableMax
from pate_fed.lab.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.lab.mechanisms.noisy_counts import NoisyCounts
from pate_fed.mechanisms.registry import SPECS

__all__ = [
    "RESEARCH",
    "ConfidentGaussianMax",
    "ImmutableMax",
    "InteractiveGaussianMax",
    "NoisyCounts",
]

RESEARCH: Final = {
    one.SPEC.name: one.SPEC for one in (confident_max, interactive_max, noisy_counts, immutable_max)
}
"""They are in `SPECS` once this is imported: a node, which never does, knows none of them."""

SPECS.update(RESEARCH)

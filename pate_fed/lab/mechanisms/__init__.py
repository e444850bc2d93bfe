"""Mechanisms for simulations alone; importing this package adds them to `SPECS`."""

from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.lab.mechanisms.immutable_max import ImmutableMax
from pate_fed.lab.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.lab.mechanisms.lab_registry import RESEARCH
from pate_fed.lab.mechanisms.noisy_counts import NoisyCounts

__all__ = [
    "RESEARCH",
    "ConfidentGaussianMax",
    "ImmutableMax",
    "InteractiveGaussianMax",
    "NoisyCounts",
]

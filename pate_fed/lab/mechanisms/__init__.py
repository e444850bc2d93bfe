"""Mechanisms for simulations alone. Importing this package adds them to `SPECS`.

No node imports it, so that none can be asked to run one.
"""

from pate_fed.lab.mechanisms import confident_max, immutable_max, interactive_max, noisy_counts
from pate_fed.lab.mechanisms.confident_max import ConfidentGaussianMax
from pate_fed.lab.mechanisms.immutable_max import ImmutableMax
from pate_fed.lab.mechanisms.interactive_max import InteractiveGaussianMax
from pate_fed.lab.mechanisms.noisy_counts import NoisyCounts
from pate_fed.mechanisms.registry import SPECS

__all__ = ["ConfidentGaussianMax", "ImmutableMax", "InteractiveGaussianMax", "NoisyCounts"]

SPECS.update(
    (one.SPEC.name, one.SPEC)
    for one in (confident_max, interactive_max, noisy_counts, immutable_max)
)

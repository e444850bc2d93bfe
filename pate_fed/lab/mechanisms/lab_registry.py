"""Mechanisms for simulations alone, by name."""

from __future__ import annotations

from typing import Final

from pate_fed.lab.mechanisms import confident_max, immutable_max, interactive_max, noisy_counts
from pate_fed.mechanisms.registry import SPECS

RESEARCH: Final = {
    one.SPEC.name: one.SPEC for one in (confident_max, interactive_max, noisy_counts, immutable_max)
}
"""They are in `SPECS` once this is imported: a node, which never does, knows none of them."""

SPECS.update(RESEARCH)

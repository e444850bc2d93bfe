"""The randomness of a simulation: repeatable where a seed is given."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import numpy as np

from pate_fed.mechanisms import RandomBytes, keyed_stream


class Chance:
    """All randomness of a simulation that a seed makes repeatable; keys are not part of it."""

    def __init__(self, seed: int | None) -> None:
        self._seeded = seed is not None
        self._root = secrets.token_bytes(32) if seed is None else str(seed).encode()

    def bytes_of(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose."""
        return hashlib.sha256(
            b"pate-fed simulation\0" + purpose.encode() + b"\0" + self._root
        ).digest()

    def of(self, purpose: str) -> np.random.Generator:
        """Return a generator for one purpose: for splitting and training, never for noise."""
        return np.random.default_rng(list(self.bytes_of(purpose)))

    def noise_seeds(self, names: Iterable[str]) -> tuple[bytes, ...] | None:
        """Return the seed of each hospital's own noise; None where it is drawn afresh."""
        if not self._seeded:
            return None
        return tuple(self.bytes_of(f"noise of {name}") for name in names)

    def noise(self, purpose: str = "noise") -> RandomBytes:
        """Return the source of the noise for one purpose, each with a stream of its own."""
        if not self._seeded:
            return secrets.token_bytes
        return keyed_stream(self.bytes_of(purpose), tag="coordinator noise")

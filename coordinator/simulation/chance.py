"""The randomness of a simulation: repeatable where a seed is given."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

import numpy as np

from pate_fed.mechanisms import RandomBytes, keyed_stream


class Chance:
    """All randomness of a simulation that a seed makes repeatable; keys are not part of it.

    Without a seed all is drawn afresh. With the root of an earlier run, this one shares records
    out and trains as that did; fresh noise does not follow from it, and is each run's own.

    Attributes:
        root: Secret of all draws but fresh noise.
    """

    def __init__(self, seed: int | None, *, root: bytes | None = None, run_number: int = 1) -> None:
        self._seeded = seed is not None
        # "round": a seed gives the same bytes for ever.
        self._tag = "" if run_number == 1 else f"round {run_number}\0"
        fresh = secrets.token_bytes(32) if seed is None else str(seed).encode()
        self.root = fresh if root is None else root

    def bytes_of(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose."""
        return hashlib.sha256(
            b"pate-fed simulation\0" + purpose.encode() + b"\0" + self.root
        ).digest()

    def of(self, purpose: str) -> np.random.Generator:
        """Return a generator for one purpose: for splitting and training, never for noise."""
        return np.random.default_rng(list(self.bytes_of(purpose)))

    def noise_seeds(self, names: Iterable[str]) -> tuple[bytes, ...] | None:
        """Return the seed of each hospital's own noise; None where it is drawn afresh."""
        if not self._seeded:
            return None
        return tuple(self.bytes_of(f"{self._tag}noise of {name}") for name in names)

    def noise(self, purpose: str = "noise") -> RandomBytes:
        """Return the source of the noise for one purpose, each with a stream of its own."""
        if not self._seeded:
            return secrets.token_bytes
        return keyed_stream(self.bytes_of(self._tag + purpose), tag="coordinator noise")

"""The resources for working on runs: ways to nodes, randomness, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass

from coordinator.runs.labeling.job import MakeMeter
from coordinator.runs.stages import OnStage, pass_by
from coordinator.runs.transport import Transport
from pate_fed.mechanisms import RandomBytes

OpenTransport = Callable[[Collection[int]], AbstractContextManager[Transport]]
"""Opens a way to these nodes, and to no others."""


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """A worker's resources.

    Attributes:
        noise_bytes: Source of the noise; the operating system's, outside of tests.
        wait: Waits for so many seconds; returns early where the service ends.
    """

    open_transport: OpenTransport
    random_bytes: RandomBytes
    noise_bytes: RandomBytes
    clock: Callable[[], float] = time.time
    wait: Callable[[float], None] = time.sleep
    on_stage: OnStage = pass_by
    on_exchange: Callable[[float], None] = lambda _: None
    meter: MakeMeter | None = None

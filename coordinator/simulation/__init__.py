"""A whole federation on one machine: the same protocol, apps and guard as a deployment."""

from coordinator.simulation.outcome import Simulation
from coordinator.simulation.run import simulate
from pate_fed.lab import mechanisms as _  # noqa: F401 - a simulation knows them, too

__all__ = ["Simulation", "simulate"]

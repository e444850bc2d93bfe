"""A whole federation on one machine: the same protocol, apps and guard as a deployment."""

from coordinator.simulation.outcome import Simulation
from coordinator.simulation.run import simulate

__all__ = ["Simulation", "simulate"]

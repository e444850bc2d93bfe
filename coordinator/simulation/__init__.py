"""A whole federation on one machine: the same protocol, apps and guard as a deployment."""

from coordinator.simulation.run import Simulation, simulate

__all__ = ["Simulation", "simulate"]

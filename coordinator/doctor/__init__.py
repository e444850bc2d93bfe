"""What is in the way of a federation's service, found whether it runs or not: a list of checks."""

from coordinator.doctor.examination import examine
from coordinator.doctor.surroundings import Surroundings

__all__ = ["Surroundings", "examine"]

"""The faults in the way of a federation's service, as a list of checks."""

from coordinator.doctor.examination import examine
from coordinator.doctor.probes import CoordinatorProbes

__all__ = ["CoordinatorProbes", "examine"]

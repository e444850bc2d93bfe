"""The core of federated PATE: votes, mechanisms, accounting, teachers, students, reports."""

__version__ = "0.1.0"
__all__ = ["__version__"]

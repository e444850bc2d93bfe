"""A whole federation on this machine, typed as its people would type it."""

from coordinator.demo.federation import play

__all__ = ["play"]

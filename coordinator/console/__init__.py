"""The operator's console: a website on the coordinator's machine, for people in a browser."""

from coordinator.console.app import build
from coordinator.console.server import serve

__all__ = ["build", "serve"]

"""Flower at a hospital: its app, its SuperNodes, and their connection to the node."""

__all__: list[str] = []

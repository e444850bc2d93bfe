"""Flower at the coordinator: its app, its grids, its SuperLink, and the gate before that."""

__all__: list[str] = []

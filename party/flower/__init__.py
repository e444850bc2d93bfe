"""Flower at a hospital: its app, its SuperNode, and what keeps them in touch with a coordinator."""

__all__: list[str] = []

"""A run: its request, its worker, its labeling, and its directory."""

__all__: list[str] = []

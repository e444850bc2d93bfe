"""A run: what was asked, who works on it, its labeling, and the directory that it leaves."""

__all__: list[str] = []

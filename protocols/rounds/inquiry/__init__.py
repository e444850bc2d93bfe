"""Before a plan: the coordinator asks whether it would be served; both ends. Nothing changes."""

__all__: list[str] = []

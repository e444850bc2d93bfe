"""A hospital's decisions: its veto, its answers, and their charges."""

__all__: list[str] = []

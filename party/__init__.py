"""A hospital's node: its teachers, its votes, and its veto."""

__all__: list[str] = []

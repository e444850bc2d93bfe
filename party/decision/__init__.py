"""What a hospital decides: its veto, its answers, and what they were charged."""

__all__: list[str] = []

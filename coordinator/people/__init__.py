"""The people of the console: names, roles, passwords, one-time codes, sessions, the budget."""

__all__: list[str] = []

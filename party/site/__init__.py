"""A hospital: its folder, keys and memberships, its records, tasks and teachers."""

__all__: list[str] = []

"""The coordinator's node: runs labeling, charges the budget, releases labels; and simulations."""

__all__: list[str] = []

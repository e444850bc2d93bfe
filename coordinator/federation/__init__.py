"""The federation at its coordinator: its folder, keys and certificates, and who takes part."""

__all__: list[str] = []

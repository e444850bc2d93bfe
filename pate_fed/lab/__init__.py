"""What researchers need: experiments, prices side by side, audits by attack. No node imports it."""

__all__: list[str] = []

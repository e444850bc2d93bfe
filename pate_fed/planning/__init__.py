"""What a budget buys, before anything is spent: settings, affordable queries, previews."""

from pate_fed.planning.settings import (
    DEFAULTS,
    LEAST_PARTIES,
    RunSettings,
    usual_mechanism,
)

__all__ = [
    "DEFAULTS",
    "LEAST_PARTIES",
    "RunSettings",
    "usual_mechanism",
]

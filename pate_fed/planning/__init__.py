"""The queries that a budget affords, before anything is spent: settings, previews."""

from pate_fed.planning.defaults import DEFAULTS
from pate_fed.planning.plan import PlanRequest, plan
from pate_fed.planning.resolving import resolve, resolve_for, terms_of
from pate_fed.planning.run_settings import RunSettings
from pate_fed.planning.sum_advice import advised_sum

__all__ = [
    "DEFAULTS",
    "PlanRequest",
    "RunSettings",
    "advised_sum",
    "plan",
    "resolve",
    "resolve_for",
    "terms_of",
]

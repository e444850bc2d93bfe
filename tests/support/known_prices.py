"""Prices that every process of `process_federation` asks for: computed before the first fork."""

from __future__ import annotations

from pate_fed.accounting import order_for_life
from pate_fed.accounting.events import GaussianMaxEvent
from pate_fed.accounting.label_bounds import label_level_epsilon, label_rdp
from tests.support.process_federation import DELTA, LIFETIME_EPSILON, QUERIES, SIGMA2

# Both are cached; a process that asks for another price computes it.
label_level_epsilon(GaussianMaxEvent(QUERIES, SIGMA2), delta=DELTA)
label_rdp([order_for_life(LIFETIME_EPSILON, DELTA)], sigma=SIGMA2)

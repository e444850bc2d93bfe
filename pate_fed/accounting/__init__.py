"""The cost of a release: events, accountant, ledger, statement.

These arguments mean the same in all functions of `pate_fed`, if none says otherwise:

- `counts`: votes, whole numbers; shape (queries, classes), at least 2 classes
- `delta`: in (0, 1)
- `gamma`: inverse scale of Laplace noise in each count, per vote; above 0
- `orders`: Renyi orders, each above 1; shape (orders,)
- `sigma`: standard deviation of the total noise in each count, in votes; above 0
- `weight`: votes that one neighboring change can move; above 0

RDP is in nats at each order, shape (orders,). `ranges` lists the range of each number.
"""

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.conversion import convert_curve
from pate_fed.accounting.costs import FormalCost, PerInstanceCost, neighbors
from pate_fed.accounting.curves import (
    event_additive_delta,
    event_approximate_rdp,
    event_charged_rdp,
    event_label_rdp,
    event_public_rdp,
    event_rdp,
)
from pate_fed.accounting.distributed_bounds import distributed_label_rdp
from pate_fed.accounting.distributed_costs import distributed_labels_cost, rows_cost
from pate_fed.accounting.distributed_law import distributed_row_rdp
from pate_fed.accounting.events import (
    CappedGaussianMaxEvent,
    ConfidentGaussianMaxEvent,
    DistributedCountsEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    LaplaceMaxEvent,
    PrivacyEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
)
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu, gdp_mu_squared
from pate_fed.accounting.label_bounds import label_level_epsilon, label_rdp, threshold_bit_rdp
from pate_fed.accounting.outcome_caps import NO_OUTCOMES, OutcomeEntry, OutcomeLedger, Outcomes
from pate_fed.accounting.privacy_ledger import LedgerEntry, PrivacyLedger, order_for_life
from pate_fed.accounting.reservations import EntryState

__all__ = [
    "NO_OUTCOMES",
    "CappedGaussianMaxEvent",
    "ConfidentGaussianMaxEvent",
    "DistributedCountsEvent",
    "DistributedGaussianMaxEvent",
    "EntryState",
    "FormalCost",
    "GaussianMaxEvent",
    "ImmutableMaxEvent",
    "LaplaceMaxEvent",
    "LedgerEntry",
    "OutcomeEntry",
    "OutcomeLedger",
    "Outcomes",
    "PerInstanceCost",
    "PrivacyEvent",
    "PrivacyLedger",
    "RenyiAccountant",
    "StableGaussianMaxEvent",
    "StableLaplaceMaxEvent",
    "convert_curve",
    "distributed_label_rdp",
    "distributed_labels_cost",
    "distributed_row_rdp",
    "event_additive_delta",
    "event_approximate_rdp",
    "event_charged_rdp",
    "event_label_rdp",
    "event_public_rdp",
    "event_rdp",
    "gdp_epsilon",
    "gdp_mu",
    "gdp_mu_squared",
    "label_level_epsilon",
    "label_rdp",
    "neighbors",
    "order_for_life",
    "rows_cost",
    "threshold_bit_rdp",
]

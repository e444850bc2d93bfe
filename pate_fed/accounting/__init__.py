"""The cost of a release: events, accountant, ledger, statement."""

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.conversion import (
    DENSE_ORDERS,
    ConvertedEpsilon,
    convert_at_orders,
    convert_costly_curve,
    convert_curve,
)
from pate_fed.accounting.counts_composition import rows_epsilon
from pate_fed.accounting.curves import (
    event_additive_delta,
    event_approximate_rdp,
    event_charged_rdp,
    event_label_rdp,
    event_public_rdp,
    event_rdp,
)
from pate_fed.accounting.distributed_bounds import distributed_label_rdp
from pate_fed.accounting.distributed_costs import (
    DistributedCosts,
    charged_rows_cost,
    distributed_costs,
    rows_cost,
)
from pate_fed.accounting.distributed_law import distributed_row_rdp
from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    DistributedCountsEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    ImmutableMaxEvent,
    LaplaceMaxEvent,
    PrivacyEvent,
    StableGaussianMaxEvent,
    StableLaplaceMaxEvent,
    event_from_record,
)
from pate_fed.accounting.exact import (
    exact_epsilon,
    exact_label_rdp,
    exact_threshold_rdp,
)
from pate_fed.accounting.gaussian_dp import (
    gdp_epsilon,
    gdp_log_delta,
    gdp_mu,
    gdp_mu_squared,
)
from pate_fed.accounting.label_bounds import (
    LABEL_METHOD,
    label_level_epsilon,
    label_rdp,
    threshold_bit_rdp,
)
from pate_fed.accounting.laplace_bounds import laplace_log_q, laplace_rdp, pure_dp_rdp
from pate_fed.accounting.ledger import LedgerEntry, PrivacyLedger, order_for_life
from pate_fed.accounting.outcome_caps import NO_OUTCOMES, OutcomeEntry, OutcomeLedger, Outcomes
from pate_fed.accounting.pate_bounds import (
    gnmax_log_q,
    gnmax_total_rdp,
    rdp_from_log_q,
    threshold_log_q,
    threshold_rdp,
    threshold_total_rdp,
    total_rdp_from_log_q,
)
from pate_fed.accounting.per_instance import PerInstanceCost, PerInstanceMeter
from pate_fed.accounting.reservations import Entry, EntryState
from pate_fed.accounting.statement import (
    DEALT_BY_CLASS,
    NOT_PROTECTED,
    FormalCost,
    delta_warning,
    guarantee_sentence,
    neighbors,
    not_protected,
    trust_sentence,
)

__all__ = [
    "DEALT_BY_CLASS",
    "DENSE_ORDERS",
    "LABEL_METHOD",
    "NOT_PROTECTED",
    "NO_OUTCOMES",
    "ConfidentGaussianMaxEvent",
    "ConvertedEpsilon",
    "DistributedCosts",
    "DistributedCountsEvent",
    "DistributedGaussianMaxEvent",
    "Entry",
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
    "PerInstanceMeter",
    "PrivacyEvent",
    "PrivacyLedger",
    "RenyiAccountant",
    "StableGaussianMaxEvent",
    "StableLaplaceMaxEvent",
    "charged_rows_cost",
    "convert_at_orders",
    "convert_costly_curve",
    "convert_curve",
    "delta_warning",
    "distributed_costs",
    "distributed_label_rdp",
    "distributed_row_rdp",
    "event_additive_delta",
    "event_approximate_rdp",
    "event_charged_rdp",
    "event_from_record",
    "event_label_rdp",
    "event_public_rdp",
    "event_rdp",
    "exact_epsilon",
    "exact_label_rdp",
    "exact_threshold_rdp",
    "gdp_epsilon",
    "gdp_log_delta",
    "gdp_mu",
    "gdp_mu_squared",
    "gnmax_log_q",
    "gnmax_total_rdp",
    "guarantee_sentence",
    "label_level_epsilon",
    "label_rdp",
    "laplace_log_q",
    "laplace_rdp",
    "neighbors",
    "not_protected",
    "order_for_life",
    "pure_dp_rdp",
    "rdp_from_log_q",
    "rows_cost",
    "rows_epsilon",
    "threshold_bit_rdp",
    "threshold_log_q",
    "threshold_rdp",
    "threshold_total_rdp",
    "total_rdp_from_log_q",
    "trust_sentence",
]

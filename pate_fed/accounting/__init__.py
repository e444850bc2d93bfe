"""What a release costs: events, exact Gaussian and Renyi accountants, ledger, statement."""

from pate_fed.accounting.accountant import Accountant, GaussianAccountant, RenyiAccountant
from pate_fed.accounting.conversion import (
    DENSE_ORDERS,
    ConvertedEpsilon,
    convert_at_orders,
    convert_curve,
)
from pate_fed.accounting.curves import event_rdp
from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
    event_from_record,
)
from pate_fed.accounting.gaussian_dp import (
    gdp_epsilon,
    gdp_log_delta,
    gdp_mu,
    gdp_mu_squared,
    is_gdp_within,
)
from pate_fed.accounting.ledger import EntryState, LedgerEntry, PrivacyLedger
from pate_fed.accounting.pate_bounds import (
    gnmax_log_q,
    gnmax_rdp,
    rdp_from_log_q,
    threshold_log_q,
    threshold_rdp,
)
from pate_fed.accounting.per_instance import (
    PerInstanceCost,
    PerInstanceMeter,
    per_instance_epsilon,
)
from pate_fed.accounting.statement import (
    NOT_PROTECTED,
    FormalCost,
    delta_warning,
    formal_cost,
    guarantee_sentence,
    neighbors,
    not_protected,
    trust_sentence,
)

__all__ = [
    "DENSE_ORDERS",
    "NOT_PROTECTED",
    "Accountant",
    "ConfidentGaussianMaxEvent",
    "ConvertedEpsilon",
    "EntryState",
    "FormalCost",
    "GaussianAccountant",
    "GaussianMaxEvent",
    "LedgerEntry",
    "PerInstanceCost",
    "PerInstanceMeter",
    "PrivacyEvent",
    "PrivacyLedger",
    "RenyiAccountant",
    "convert_at_orders",
    "convert_curve",
    "delta_warning",
    "event_from_record",
    "event_rdp",
    "formal_cost",
    "gdp_epsilon",
    "gdp_log_delta",
    "gdp_mu",
    "gdp_mu_squared",
    "gnmax_log_q",
    "gnmax_rdp",
    "guarantee_sentence",
    "is_gdp_within",
    "neighbors",
    "not_protected",
    "per_instance_epsilon",
    "rdp_from_log_q",
    "threshold_log_q",
    "threshold_rdp",
    "trust_sentence",
]

"""The epsilon of a ledger's charges so far, for comparisons with exact losses: no page shows it."""

from pate_fed.accounting import PrivacyLedger
from pate_fed.accounting.conversion import epsilon_at_order, rdp_within


def charged_epsilon(ledger: PrivacyLedger) -> float:
    """Convert the used share of a budget, by the ledger's own way of adding up."""
    share = ledger.used_share()
    delta = ledger.delta - ledger.additive_delta
    rdp = share * rdp_within(ledger.epsilon, ledger.order, delta=delta)
    return epsilon_at_order(rdp, ledger.order, delta=delta)

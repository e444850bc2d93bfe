"""The formal cost of noise at the parties in both views, its ledger, and its words."""

from __future__ import annotations

import math

import pytest

from pate_fed.accounting.accountant import RenyiAccountant
from pate_fed.accounting.conversion import convert_costly_curve, convert_curve
from pate_fed.accounting.costs import ROWS_METHOD
from pate_fed.accounting.curves import event_label_rdp
from pate_fed.accounting.distributed_costs import (
    charged_rows_cost,
    distributed_labels_cost,
    rows_cost,
)
from pate_fed.accounting.events import (
    DistributedCountsEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
)
from pate_fed.accounting.gaussian_dp import gdp_epsilon, gdp_mu_squared
from pate_fed.accounting.label_bounds import label_level_epsilon
from pate_fed.accounting.privacy_ledger import PrivacyLedger
from pate_fed.errors import (
    BudgetExhaustedError,
    UnsupportedEventError,
)
from pate_fed.report.guarantee_words import (
    NOT_PROTECTED,
    NOT_PROTECTED_WITH_NOISE_AT_PARTIES,
    not_protected,
    trust_sentence,
)
from tests.support.markers import sampled

DELTA = 1e-5


def test_the_coordinator_pays_rows_and_the_public_labels() -> None:
    """100 rows, noise as in the reference setting, from 9 shares of variance."""
    event = DistributedGaussianMaxEvent(100, 8.0, 9)
    rows, public = rows_cost(event, delta=DELTA), distributed_labels_cost(event, delta=DELTA)
    gaussian = gdp_epsilon(math.sqrt(200) / 8.0, DELTA)
    by_order = charged_rows_cost(event, delta=DELTA)
    assert rows.epsilon == pytest.approx(gaussian, rel=1e-3)
    assert rows.epsilon < by_order.epsilon
    renyi = convert_curve(lambda orders: orders * 100 / 8.0**2, delta=DELTA, method="cks")
    assert by_order.epsilon == pytest.approx(renyi.epsilon, rel=1e-9)
    assert by_order.epsilon >= renyi.epsilon
    labels = label_level_epsilon(GaussianMaxEvent(100, 8.0), delta=DELTA).epsilon
    # By their divergences discrete labels cost up to 0.1 % more than Gaussian ones, not less.
    assert labels < public.epsilon < 1.002 * labels
    assert public.epsilon < 0.9 * rows.epsilon
    assert " 9 hospitals " in rows.holds_for


def test_counts_that_everybody_reads_cost_everybody_the_rows() -> None:
    counts = DistributedCountsEvent(3, 12.0, 9)
    rows = rows_cost(DistributedGaussianMaxEvent(3, 12.0, 9), delta=DELTA)
    public = distributed_labels_cost(counts, delta=DELTA)
    assert public.epsilon == rows_cost(counts, delta=DELTA).epsilon == rows.epsilon


@sampled("event")
@pytest.mark.parametrize(
    "event",
    [
        pytest.param(DistributedGaussianMaxEvent(100, 8.0, 9), id="much spent"),
        pytest.param(DistributedGaussianMaxEvent(20, 9.0, 9, 2), id="little spent"),
        pytest.param(DistributedGaussianMaxEvent(1, 12.0, 9), id="one row"),
    ],
)
def test_few_orders_are_enough_for_the_public(event: DistributedGaussianMaxEvent) -> None:
    rows, public = rows_cost(event, delta=DELTA), distributed_labels_cost(event, delta=DELTA)
    found = public.epsilon
    best = convert_costly_curve(
        lambda orders: event_label_rdp(event, orders), delta=DELTA, method="cks"
    )
    if found == rows.epsilon:  # the whole rows cost less by their composition
        assert found < best.epsilon
        assert public.method == ROWS_METHOD
        return
    # Any order is valid; the best of many is hardly better.
    assert found >= best.epsilon * (1 - 1e-4)
    assert found <= best.epsilon * (1 + 1e-3)


def test_the_public_never_pays_more_than_the_coordinator() -> None:
    for weight in (1, 4):
        event = DistributedGaussianMaxEvent(10, 4.0, 9, weight)
        rows, public = rows_cost(event, delta=DELTA), distributed_labels_cost(event, delta=DELTA)
        assert public.epsilon <= rows.epsilon
    assert "1 hospital " in (
        rows_cost(DistributedGaussianMaxEvent(3, 4.0, 1), delta=DELTA).holds_for
    )


def test_summed_discrete_noise_is_no_gaussian_noise_for_an_accountant() -> None:
    event = DistributedGaussianMaxEvent(3, 4.0, 4)
    with pytest.raises(UnsupportedEventError):
        gdp_mu_squared(event)
    accountant = RenyiAccountant()
    accountant.compose(event, event)
    twice = charged_rows_cost(DistributedGaussianMaxEvent(6, 4.0, 4), delta=DELTA)
    assert accountant.get_converted(DELTA).epsilon == pytest.approx(twice.epsilon, rel=1e-12)


def test_a_ledger_charges_every_opened_row_in_the_coordinators_view() -> None:
    worst = DistributedGaussianMaxEvent(50, 12.0, 9, 2)
    cost = charged_rows_cost(worst, delta=DELTA)
    ledger = PrivacyLedger(cost.epsilon * (1 + 1e-9), DELTA, order=cost.order)
    batch = DistributedGaussianMaxEvent(10, 12.0, 9, 2)
    for number in range(5):
        ledger = ledger.reserve(f"batch {number}", batch)
        # Void or not, what was sent stays charged (rule R13).
        ledger = ledger.forfeit(f"batch {number}")
    assert ledger.used_share() == pytest.approx(1.0, rel=1e-8)
    with pytest.raises(BudgetExhaustedError):
        ledger.reserve("one more", DistributedGaussianMaxEvent(1, 12.0, 9, 2))
    assert PrivacyLedger.from_record(ledger.to_record()) == ledger


def test_the_trust_that_noise_at_the_parties_needs_is_said() -> None:
    sentence = trust_sentence("parties")
    assert "threshold" in sentence
    said = not_protected(unit="party", simulated=False, noise_place="parties")
    assert said == NOT_PROTECTED_WITH_NOISE_AT_PARTIES
    assert any("colluders" in line for line in said)
    # The coordinator holds no exact sum there, and adds no noise.
    assert not {NOT_PROTECTED[0], NOT_PROTECTED[1]} & set(said)
    assert all(line.endswith(".") for line in said)

"""The veto over verified runs: a pinned tally of another owner, whatever the peers; the price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from party.decision.guard import Guard
from party.errors import Reason
from party.site.policy import Aggregators
from pate_fed.accounting import Outcomes
from pate_fed.accounting.curves import event_charged_rdp
from pate_fed.charges import RunLedger, lifelong_charge
from pate_fed.prices import charged_price
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights
from protocols.forms import Verified
from protocols.identity import SigningIdentity
from protocols.messages import RunInquiry
from protocols.run_scope import RunScope
from protocols.values import decode_value, encode_value
from tests.support.federation import ORDER, SIGMA, Federation, ready_federation
from tests.support.rules import with_other
from tests.test_party.test_guard import refused

NOTARY, STRANGER = (SigningIdentity.generate().public for _ in range(2))
TALLY = NOTARY.fingerprint
OPERATOR, OWNER = "South university", "North university"


class Asked:
    """A run of the verified form, before a hospital that checked nobody's words."""

    def __init__(self, parties: int = 5) -> None:
        self.federation: Federation = ready_federation(parties=parties)
        node = self.federation.nodes[0]
        record = node._round.record
        assert record is not None
        self.seats = self.federation.run.round.seats
        self.me = self.seats[0]
        told = RunTerms.from_record(decode_value(record.terms))
        self.terms = with_other(told, noise_place="aggregators")
        self.inquiry = RunInquiry(
            coordinator=record.coordinator,
            seats=self.seats,
            form=Verified.name,
            ring_bits=Verified.ring_bits,
            suite=record.suite,
            threshold=3,
            colluders=parties - 1,
            dropouts=parties - 3,
            simulated=record.simulated,
            tally=TALLY,
            terms=encode_value(self.terms.as_record()),
        )
        rules = node._guard.policy
        self.guard = replace(
            node._guard,
            policy=replace(rules, forms=rules.forms | {"verified"}),
            checked_peers={},
            aggregators=Aggregators(OPERATOR, NOTARY, OWNER),
        )

    def review(self, guard: Guard | None = None, **changed: Any) -> RunTerms:
        inquiry = replace(self.inquiry, **changed)
        return (guard or self.guard).review_run(inquiry, seats=self.seats, me=self.me)

    def ruled(self, **changed: Any) -> Guard:
        return replace(self.guard, policy=replace(self.guard.policy, **changed))

    def found(self, **changed: Any) -> Guard:
        return replace(self.guard, aggregators=replace(self.guard.aggregators, **changed))


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


class TestParties:
    def test_peers_that_nobody_checked_stop_no_verified_run(self, asked: Asked) -> None:
        assert asked.review() == asked.terms

    def test_neither_do_hospitals_of_the_operator(self, asked: Asked) -> None:
        everybody = dict.fromkeys(asked.seats, OPERATOR)
        asked.review(replace(asked.guard, checked_peers=everybody))

    def test_other_forms_still_need_checked_peers(self, asked: Asked) -> None:
        guard = asked.ruled(forms=frozenset({"masked"}))
        with refused(Reason.UNCHECKED_PEERS):
            asked.review(guard, form="masked", ring_bits=32, tally=b"", threshold=4, dropouts=1)

    @pytest.mark.parametrize(
        ("rules", "reason"),
        [
            pytest.param({"forms": frozenset({"masked"})}, Reason.FORM, id="no form"),
            pytest.param({"least_parties": 4}, Reason.TOO_FEW_PARTIES, id="three may open"),
            pytest.param({"least_colluders": 5}, Reason.FORM, id="more colluders than peers"),
            pytest.param({"least_sigma2": SIGMA * 1.01}, Reason.MECHANISM, id="one's noise"),
            pytest.param({"simulated": False}, Reason.SIMULATED, id="a simulation"),
            pytest.param({"most_epsilon": 0.1}, Reason.BUDGET, id="its cost"),
        ],
    )
    def test_every_other_rule_holds(
        self, asked: Asked, rules: dict[str, Any], reason: Reason
    ) -> None:
        with refused(reason):
            asked.review(asked.ruled(**rules))

    @pytest.mark.parametrize(
        "changed", [{"colluders": 3}, {"colluders": 5}, {"threshold": 5, "dropouts": 0}]
    )
    def test_other_numbers_of_the_form_are_refused(
        self, asked: Asked, changed: dict[str, int]
    ) -> None:
        """Of five: all four others may collude, and three reports are enough."""
        guard = replace(asked.guard, checked_peers={})
        with refused(Reason.FORM):
            asked.review(guard, **changed)

    @pytest.mark.parametrize(("votes", "fits"), [(1000, True), (1001, False)])
    def test_a_report_holds_so_many_votes(self, asked: Asked, votes: int, fits: bool) -> None:
        ours = TeacherWeights.equal(votes)
        terms = replace(asked.terms, weights=(ours,) * len(asked.seats))
        guard, told = replace(asked.guard, weights=ours), encode_value(terms.as_record())
        if fits:
            asked.review(guard, terms=told)
            return
        with refused(Reason.UNIT):
            asked.review(guard, terms=told)

    def test_an_owner_may_demand_the_form(self, asked: Asked) -> None:
        guard = asked.ruled(forms=frozenset({"verified"}))
        asked.review(guard)
        checked = {seat: f"body {place}" for place, seat in enumerate(asked.seats)}
        with refused(Reason.FORM):
            asked.review(
                replace(guard, checked_peers=checked),
                **{"form": "masked", "ring_bits": 32, "tally": b"", "colluders": 2},
                **{"threshold": 4, "dropouts": 1},
            )


class TestTally:
    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"tally": None, "tally_body": ""}, id="none pinned"),
            pytest.param({"tally": STRANGER}, id="another pinned"),
            pytest.param({"tally_body": OPERATOR}, id="the operator's own"),
            pytest.param(
                {"tally_body": "  south UNIVERSITY "}, id="the operator's, spelled otherwise"
            ),
            pytest.param({"operator_body": " "}, id="nobody said who runs the coordinator"),
        ],
    )
    def test_it_must_be_ours_and_another_organisation(
        self, asked: Asked, changed: dict[str, Any]
    ) -> None:
        with refused(Reason.TALLY):
            asked.review(asked.found(**changed))

    def test_a_run_that_names_none_is_refused(self, asked: Asked) -> None:
        with refused(Reason.TALLY):
            asked.review(tally=b"")

    def test_a_hospital_may_be_the_tally_itself(self, asked: Asked) -> None:
        """The coordinator sees our votes with our own noise, which nobody else knows."""
        asked.review(asked.ruled(own_body=OWNER))

    def test_an_approval_is_of_one_tally(self, asked: Asked) -> None:
        scopes = [
            RunScope.of(replace(asked.inquiry, tally=tally), seats=asked.seats)
            for tally in (TALLY, STRANGER.fingerprint)
        ]
        assert scopes[0].digest != scopes[1].digest


class TestNoise:
    @pytest.mark.parametrize("place", ["coordinator", "parties"])
    def test_no_one_elses_noise_goes_with_the_form(self, asked: Asked, place: str) -> None:
        numbers = {"colluders": 1, "dropouts": 0} if place == "parties" else {}
        terms = with_other(asked.terms, noise_place=place, **numbers)
        with refused(Reason.MECHANISM):
            asked.review(terms=encode_value(terms.as_record()))

    def test_the_owner_of_the_form_allows_its_noise(self, asked: Asked) -> None:
        asked.review(asked.ruled(noise_places=frozenset({"coordinator"})))


class TestPrice:
    """An aggregator knows its own noise: the other one's alone protects, and is charged for."""

    OUTCOMES = Outcomes(10, 10)

    def charge(self, terms: RunTerms) -> Any:
        return lifelong_charge(terms, self.OUTCOMES, weight=1)

    def share(self, asked: Asked, terms: RunTerms) -> float:
        return asked.federation.nodes[0].ledger.share_of(self.charge(terms))

    def test_the_charge_is_that_of_rows_with_one_aggregators_noise(self, asked: Asked) -> None:
        """Ten rows that move by one vote up and one down: order * 10 / sigma^2, at its order."""
        rdp = ORDER * 10 / SIGMA**2
        [charged] = event_charged_rdp(self.charge(asked.terms), [ORDER])
        assert rdp <= charged <= 1.001 * rdp

    def test_both_noises_together_are_charged_to_nobody(self, asked: Asked) -> None:
        both = with_other(asked.terms, sigma2=SIGMA * 2**0.5)
        ratio = self.share(asked, asked.terms) / self.share(asked, both)
        assert ratio == pytest.approx(2, rel=1e-3)

    def test_the_stated_price_is_of_the_same_view(self, asked: Asked) -> None:
        both = with_other(asked.terms, sigma2=SIGMA * 2**0.5)
        assert charged_price(asked.terms, 0).epsilon > 1.2 * charged_price(both, 0).epsilon

    def test_a_run_above_its_budget_at_that_price_is_refused(self, asked: Asked) -> None:
        price = charged_price(asked.terms, 0).epsilon
        for budget, is_enough in ((price * 1.001, True), (price * 0.999, False)):
            terms = replace(asked.terms, budgets=(budget,) * len(asked.seats))
            review = {"seat": 0, "ledger": asked.federation.nodes[0].ledger}
            if is_enough:
                asked.guard.review_price(RunLedger.of(terms), **review)
                continue
            with refused(Reason.BUDGET):
                asked.guard.review_price(RunLedger.of(terms), **review)

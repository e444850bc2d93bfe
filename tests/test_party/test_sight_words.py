"""A proposal says who would have to work together to see this hospital's votes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from party.decision.proposal_words import SIGHT, words_of
from party.decision.proposals import Request, RunProposal, proposal_of
from party.site.peers import Pin
from party.site.people_decisions import Approval, ApprovalState, Subject
from party.site.site import Site
from pate_fed.charges import whole_charge
from pate_fed.prices import charged_price, run_price
from pate_fed.terms import NO_TASK
from pate_fed.votes import TeacherWeights
from protocols.identity import SigningIdentity
from protocols.membership_messages import NamedTally
from protocols.suites import DEFAULT_SUITE
from protocols.values import encode_value
from tests.support.hospital_site import SLUG, make_site
from tests.support.rules import run_terms

OPERATOR, OWNER = "South university", "North university"
TALLY = NamedTally("Notary", SigningIdentity.generate().public)


@dataclass
class Waiting:
    """A site of two organisations, and runs that wait for its people."""

    site: Site
    others: list[SigningIdentity]

    def pins(self, checked: int) -> list[Pin]:
        return [
            Pin(f"Peer {place}", f"body {place}", one.public, "telephone", "M. Curie", 1.0)
            for place, one in enumerate(self.others[:checked])
        ]

    def proposal(
        self, form: str, place: str, *, checked: int = 9, tally: bytes = b"", **numbers: int
    ) -> RunProposal:
        seats = tuple(sorted(one.fingerprint for one in (self.site.identity, *self.others)))
        terms = run_terms(
            name="run",
            pool_digest=bytes(32),
            task_digest=NO_TASK,
            classes=2,
            weights=(TeacherWeights.equal(10),) * len(seats),
            mechanism="gnmax",
            sigma2=20.0,
            unit="record",
            max_asks=10,
            max_answers=10,
            budgets=(5.0,) * len(seats),
            delta=1e-5,
            noise_place=place,
            **numbers,
        )
        approval = Approval(
            Subject.RUN,
            bytes(32),
            self.site.membership().coordinator.fingerprint,
            ApprovalState.PENDING,
            1.0,
            encode_value(terms.as_record()),
            seats,
            form,
            DEFAULT_SUITE,
            tally,
        )
        return proposal_of(
            self.site,
            approval,
            ledger=self.site.settings.new_ledger(),
            pins=self.pins(checked),
            costs=run_price,
        )

    def said(self, *args: Any, **more: Any) -> list[str]:
        lines, name = [], ""
        for called, text in words_of(Request(self.proposal(*args, **more))):
            name = called or name
            if name == SIGHT:
                lines.append(text)
        return lines


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    site = make_site(tmp_path / "site")
    settings = site.settings.with_tally(SLUG, TALLY, body=OWNER)
    site = site.save(settings.with_setting(SLUG, operator_body=OPERATOR))
    return Waiting(site, [SigningIdentity.generate() for _ in range(4)])


class TestVerified:
    def test_both_organisations_are_named(self, waiting: Waiting) -> None:
        [first, *_] = waiting.said("verified", "aggregators", tally=TALLY.identity.fingerprint)
        for name in (OPERATOR, OWNER, TALLY.name):
            assert name in first

    def test_no_peer_counts(self, waiting: Waiting) -> None:
        said = [
            waiting.said(
                "verified", "aggregators", tally=TALLY.identity.fingerprint, checked=checked
            )
            for checked in (0, 4)
        ]
        assert said[0] == said[1]

    def test_another_tally_than_the_pinned_one_shows(self, waiting: Waiting) -> None:
        [first, *_] = waiting.said("verified", "aggregators", tally=bytes(32))
        assert TALLY.name not in first
        assert OWNER not in first

    def test_its_cost_is_of_one_aggregators_view(self, waiting: Waiting) -> None:
        found = waiting.proposal("verified", "aggregators", tally=TALLY.identity.fingerprint)
        assert found.cost is not None
        assert found.terms is not None
        assert found.cost.charged_epsilon == charged_price(found.terms, 0).epsilon
        assert found.cost.charged_epsilon > found.cost.run_epsilon
        charge = whole_charge(found.terms, 0)
        assert charge is not None
        assert found.cost.share == waiting.site.settings.new_ledger().share_of(charge)
        text = dict(words_of(Request(found)))["Budget"]
        assert text.endswith(found.cost.charged_view)


class TestOthers:
    @pytest.mark.parametrize(
        ("form", "helpers"), [("additive", "all other"), ("masked", "3 of the 4")]
    )
    @pytest.mark.parametrize(
        ("place", "numbers"),
        [("coordinator", {}), ("parties", {"colluders": 1, "dropouts": 0})],
    )
    def test_helpers_of_the_coordinator_are_counted(
        self, waiting: Waiting, form: str, helpers: str, place: str, numbers: dict[str, int]
    ) -> None:
        said = waiting.said(form, place, **numbers)
        assert [place == "parties", place == "coordinator"] == [helpers in one for one in said]
        assert OPERATOR in said[0]
        assert TALLY.name not in " ".join(said)

    def test_peers_that_nobody_checked_are_counted(self, waiting: Waiting) -> None:
        for checked in (4, 1):
            said = " ".join(waiting.said("masked", "coordinator", checked=checked))
            assert ("3 of the 4" in said.partition("CHECKED")[2]) is (checked == 1)

    def test_a_pool_alone_says_nothing(self, waiting: Waiting) -> None:
        found = waiting.proposal("masked", "coordinator")
        pool = replace(found, terms=None)
        assert SIGHT not in {name for name, _ in words_of(Request(pool))}

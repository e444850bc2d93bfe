"""A hospital's delta for tests of stability: one part for life, whatever federation asks."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from coordinator.errors import VoidBatchError
from party.errors import Reason
from party.site.people_decisions import Subject
from protocols.suites import DEFAULT_SUITE
from protocols.values import encode_value
from tests.support.hospital_services import ledger_of, records_of
from tests.test_party.test_cli import PateParty, pate_party
from tests.test_party.test_memberships import Both

__all__ = ["pate_party"]

TEST_DELTA: Final = 1e-8
STABLE: Final[dict[str, Any]] = {
    "mechanism": "stable-gaussian",
    "sigma1": 2.0,
    "sigma2": None,
    "test_delta": TEST_DELTA,
    "budgets": (200.0,) * 3,
}


def made(folder: Path, stack: ExitStack, *, tests: float) -> Both:
    """Three hospitals in two federations; all keep so many tests for life."""
    both = Both(folder, stack, approval="pool", budget=1000.0)
    for place, site in enumerate(both.sites):
        policy = {**site.settings.policy, "mechanisms": ["stable-gaussian"], "most_epsilon": 200.0}
        changed = replace(site.settings, policy=policy, delta_for_tests=tests * TEST_DELTA)
        both.lung.sites[place] = site.save(changed)
    both.heart = replace(both.heart, sites=both.lung.sites)
    for of in (both.lung, both.heart):
        of.changes |= STABLE
        of.approve_all()
    both.open()
    return both


def spent(both: Both) -> list[float]:
    return [round(ledger_of(site).charged_delta() / TEST_DELTA, 6) for site in both.sites]


@pytest.mark.slow
def test_two_federations_spend_one_delta_over_restarts(tmp_path: Path) -> None:
    with ExitStack() as stack:
        both = made(tmp_path, stack, tests=5.5)
        run = both.set_up(both.lung)
        run.ask((0, 1))
        assert spent(both) == [2.0] * 3
        for service in both.services:
            service.close()
        both.services.clear()
        both.open()
        run = both.set_up(both.heart)
        run.ask((2, 3))
        assert spent(both) == [4.0] * 3
        # Two more do not fit, whoever asks; one does.
        with pytest.raises(VoidBatchError, match=Reason.BUDGET):
            run.ask((4, 5))
        assert spent(both) == [4.0] * 3
        run.close()
        run = both.set_up(both.lung)
        with pytest.raises(VoidBatchError, match=Reason.BUDGET):
            run.ask((6, 7))
        run.ask((8,))
        assert spent(both) == [5.0] * 3
        with pytest.raises(VoidBatchError, match=Reason.BUDGET):
            run.ask((9,))
        ledger = ledger_of(both.sites[0])
        assert ledger.charged_delta() <= ledger.additive_delta == 5.5 * TEST_DELTA
        assert ledger.used_share() < 0.1


def test_people_see_the_delta_of_tests_before_they_decide_and_after(
    tmp_path: Path, pate_party: PateParty
) -> None:
    with ExitStack() as stack:
        both = made(tmp_path, stack, tests=15)
        run = both.set_up(both.lung)
        run.ask((0, 1))
        run.close()
        site = both.sites[0]
        ended = pate_party("budget", "--site", site.folder, "--format", "json")
        shown = json.loads(ended.out)
        assert shown["delta_for_tests"] == 15 * TEST_DELTA
        assert shown["tests_delta"] == pytest.approx(2 * TEST_DELTA)
        assert shown["runs"][0]["tests_delta"] == pytest.approx(2 * TEST_DELTA)
        said = pate_party("budget", "--site", site.folder).out
        assert (said.count("1.5e-07"), said.count("2e-08")) == (
            1,
            2,
        )  # kept; spent, and by which run
        with records_of(site) as records:
            records.ask(
                Subject.RUN,
                bytes(32),
                tally=b"",
                coordinator=both.lung.coordinator.public.fingerprint,
                terms=encode_value(run.terms.as_record()),
                seats=run.round.seats,
                form="additive",
                suite=DEFAULT_SUITE,
            )
        line = ("approve", "--site", site.folder)
        said = pate_party(*line).out
        assert "at most 12 queries; test_delta 1e-08" in said
        assert re.search("before: 2e-08 .* 1.5e-07 ", said)
        assert re.search("after: .* 1.4e-07 ", said)  # 12 asks
        assert "STOPPED" not in said
        run = both.set_up(both.heart)
        run.ask((2, 3))
        said = pate_party(*line).out
        assert re.search("after: .* 1.6e-07 .* STOPPED ", said)
        assert "STOPPED" not in said[said.index("Budget") : said.index("Tests")]  # epsilon would do
        [found] = [
            one
            for one in json.loads(pate_party(*line, "--format", "json").out)["approvals"]
            if one["subject"] == "run"
        ]
        assert found["tests_before"] == pytest.approx(4 * TEST_DELTA)
        assert found["tests_after"] > found["delta_for_tests"] == 15 * TEST_DELTA

"""Asking for a run: a refusal leaves nothing behind, neither a folder nor a published task."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import operator
from coordinator.errors import CoordinatorError, DatabaseError, RunRequestError
from coordinator.federation.home import FederationHome
from coordinator.operator import Coordinator
from party.site.site import SiteSettings
from pate_fed.charges import whole_charge
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from pate_fed.errors import BudgetExhaustedError
from pate_fed.planning.budgets import budget_share, share_for_life
from pate_fed.prices import run_price
from protocols.fingerprint_words import spoken
from tests.support.asking import drafted_run
from tests.support.command import Command, pate_fed
from tests.support.deployed import CLASSES, LABEL, NAMES, write_public_table
from tests.support.hospital_site import tell_votes
from tests.support.markers import sampled
from tests.support.worked import Worked

__all__ = ["pate_fed"]


@pytest.fixture
def federation(tmp_path: Path) -> Worked:
    return Worked(tmp_path)


def other_task(federation: Worked) -> LearningTask:
    """Other public inputs."""
    table = write_public_table(federation.queries.parent / "other.csv", rows=40)
    return make_task(table, label=LABEL, classes=CLASSES)


def files_of(federation: Worked) -> dict[str, bytes]:
    """All that is in the federation's folder besides its database."""
    folder = federation.coordinator.home.folder
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
        if not path.name.startswith("coordinator.db")
    }


def a_name_again(federation: Worked, monkeypatch: pytest.MonkeyPatch) -> str:
    federation.task, task = other_task(federation), federation.task
    federation.ask("first")
    federation.task = task
    return "first"


def a_name_that_is_none(federation: Worked, monkeypatch: pytest.MonkeyPatch) -> str:
    return "../first"


def the_results_of_another_run(federation: Worked, monkeypatch: pytest.MonkeyPatch) -> str:
    federation.coordinator.home.path("runs", "first").mkdir()
    return "first"


def a_database_that_fails(federation: Worked, monkeypatch: pytest.MonkeyPatch) -> str:
    def fails(*_: object) -> None:
        raise DatabaseError("the database must be writable", "a full disk")

    monkeypatch.setattr(federation.coordinator.queue, "add", fails)
    return "first"


def a_full_disk(federation: Worked, monkeypatch: pytest.MonkeyPatch) -> str:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    return "first"


@sampled()
@pytest.mark.parametrize(
    ("arrange", "code"),
    [
        (a_name_again, "PF-445"),
        (a_name_that_is_none, "PF-445"),
        (the_results_of_another_run, "PF-445"),
        (a_database_that_fails, "PF-440"),
        (a_full_disk, "PF-445"),
    ],
)
def test_a_refused_ask_leaves_nothing_behind(
    federation: Worked,
    monkeypatch: pytest.MonkeyPatch,
    arrange: Callable[[Worked, pytest.MonkeyPatch], str],
    code: str,
) -> None:
    name = arrange(federation, monkeypatch)
    files, runs = files_of(federation), federation.coordinator.queue.all()
    with pytest.raises(CoordinatorError) as caught:
        federation.ask(name)
    assert caught.value.code == code
    assert files_of(federation) == files
    assert federation.coordinator.queue.all() == runs


def test_the_form_of_simulations_is_asked_of_no_hospital(federation: Worked) -> None:
    with pytest.raises(RunRequestError) as refusal:
        federation.ask(form="plain")
    assert refusal.value.got == "plain"
    assert federation.coordinator.queue.all() == []


def test_a_member_whose_votes_nobody_knows_is_named(federation: Worked) -> None:
    site = federation.join("East")
    words = spoken(site.identity.fingerprint)
    federation.coordinator.approve("East", words=words)
    with pytest.raises(RunRequestError, match="votes") as refusal:
        federation.ask("first")
    assert "East" in refusal.value.got
    assert federation.coordinator.queue.all() == []
    operator.suspend(federation.coordinator, "East")
    federation.ask("first")
    assert [one.name for one in federation.request().parties] == list(NAMES)


def test_whoever_asks_sees_votes_that_changed_since_the_last_run(
    federation: Worked, pate_fed: Command
) -> None:
    enrollment, site = federation.coordinator.enrollment, federation.hospitals[0].site
    tell_votes(enrollment, site, votes=900, after_s=1)
    federation.ask("first")
    for later, votes in enumerate((901, 12, 40), start=2):  # not the last change: the last run
        tell_votes(enrollment, site, votes=votes, after_s=later)
    asked = drafted_run(federation.coordinator, "second", federation.task, queries=2)
    assert operator.changed_votes(federation.coordinator, asked) == {NAMES[0]: 900}
    ended = pate_fed(
        *("run", "--queries", federation.queries, "--label", LABEL, "--ask", 2, "--detach"),
        *("--classes", ",".join(CLASSES), "--name", "second", "--epsilon", 100),
        *("--mechanism", "gnmax", "--sigma2", 3, "--home", federation.coordinator.home.folder),
    )
    [line] = [one for one in ended.err.splitlines() if "900" in one]
    assert NAMES[0] in line
    assert re.findall(r"\d+", line) == ["40", "900"]
    assert not [one for one in ended.err.splitlines() if NAMES[1] in one]


def test_what_was_refused_can_be_asked_for_with_another_task(federation: Worked) -> None:
    """The label was mistyped: the inputs are not bound to it by an ask that failed."""
    right, queries = federation.task, federation.queries
    federation.task = make_task(queries, label="sik", classes=CLASSES)
    with pytest.raises(RunRequestError):
        federation.ask("no name")
    federation.task = right
    federation.ask("first")
    path = federation.coordinator.home.path("pools", right.pool.digest.hex())
    assert path.read_bytes() == right.to_bytes()


def test_a_task_that_an_earlier_run_published_stays_after_a_refusal(federation: Worked) -> None:
    federation.ask("first")
    files = files_of(federation)
    for task in (
        federation.task,
        make_task(federation.queries, label="other", classes=CLASSES),
    ):
        federation.task = task
        with pytest.raises(RunRequestError):
            federation.ask("first")
    assert files_of(federation) == files


def test_two_who_ask_at_once_do_not_undo_each_other(
    federation: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is refused after it published; the other one, with the same inputs, has to wait."""
    home, ask = federation.coordinator.home, federation.ask
    beside = Worked.__new__(Worked)
    beside.task = federation.task
    second = threading.Thread(target=lambda: ask_beside(home, beside))

    def fails(*_: object) -> None:
        second.start()
        second.join(0.3)
        assert second.is_alive()
        raise DatabaseError("the database must be writable", "a full disk")

    monkeypatch.setattr(federation.coordinator.queue, "add", fails)
    with pytest.raises(DatabaseError):
        ask("first")
    second.join(120)
    assert not second.is_alive()
    path = home.path("pools", federation.task.pool.digest.hex())
    assert path.read_bytes() == federation.task.to_bytes()
    assert [run.name for run in federation.coordinator.queue.all()] == ["second"]


def ask_beside(home: FederationHome, federation: Worked) -> None:
    """Ask as another process would, with a connection of its own."""
    with closing(Coordinator(home)) as federation.coordinator:
        federation.ask("second")


class TestABudgetForLife:
    """Hospitals add up all their runs at a fixed order; a run's own can hold a little more."""

    @sampled("queries")
    @pytest.mark.slow
    @pytest.mark.parametrize("queries", [1, 5, 20])
    def test_a_default_run_fits_that_of_a_new_hospital(
        self, federation: Worked, queries: int
    ) -> None:
        federation.task = other_task(federation)
        federation.ask(queries=queries, sigma2=None, epsilon=5.0, batch_size=20)
        terms = federation.request().terms
        ledger, charge = SiteSettings().new_ledger(), whole_charge(terms, 0)
        assert charge is not None
        assert ledger.can_afford(charge)
        # The noise is no larger than needed: nearly the whole budget is used.
        assert ledger.share_of(charge) > 0.99

    def test_a_run_that_it_cannot_hold_is_refused(self, federation: Worked) -> None:
        federation.task = other_task(federation)
        federation.ask(queries=20, sigma2=5.0, epsilon=50.0)
        terms = federation.request().terms
        epsilon = 1.0001 * run_price(terms).epsilon
        tight = replace(terms, budgets=(epsilon,) * len(terms.budgets))
        assert budget_share(tight) < 1 < share_for_life(tight)
        with pytest.raises(BudgetExhaustedError, match=r"\b18\b") as refusal:
            federation.ask("second", queries=20, sigma2=5.0, epsilon=epsilon)
        assert refusal.value.budget == epsilon
        assert [one.name for one in federation.coordinator.queue.all()] == ["first"]
        assert federation.ask("second", queries=18, sigma2=5.0, epsilon=epsilon).name == "second"


@pytest.mark.parametrize("mechanism", ["threshold", "gnmax"])
def test_a_run_above_its_budget_is_refused_before_anything_is_asked(
    federation: Worked, mechanism: str
) -> None:
    """All its queries must fit, and not a first batch alone: nothing ends it later."""
    rule = {"vote_threshold": 2.0} if mechanism == "threshold" else {}
    chosen: dict[str, Any] = {"mechanism": mechanism, "sigma2": 3.0, "batch_size": 1, **rule}
    federation.ask(queries=8, epsilon=100.0, **chosen)
    epsilon = 0.999 * run_price(federation.request().terms).epsilon
    with pytest.raises(BudgetExhaustedError, match=r"\b7\b") as refusal:
        federation.ask("second", queries=8, epsilon=epsilon, **chosen)
    assert refusal.value.requested > refusal.value.budget == epsilon
    assert [one.name for one in federation.coordinator.queue.all()] == ["first"]
    assert federation.ask("second", queries=7, epsilon=epsilon, **chosen).name == "second"


def test_a_pool_that_is_another_than_was_published_is_not_shown(federation: Worked) -> None:
    federation.ask("first")
    request, _ = federation.coordinator.queries("first")
    path = federation.coordinator.home.path("pools", request.pool.hex())
    path.write_bytes(other_task(federation).to_bytes())
    with pytest.raises(RunRequestError, match="published"):
        federation.coordinator.queries("first")
    path.write_bytes(b"no task")
    with pytest.raises(RunRequestError, match=r"task$"):
        federation.coordinator.queries("first")

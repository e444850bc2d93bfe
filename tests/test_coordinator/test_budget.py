"""The federation's budget: it holds every run, and no single person raises it by any trick."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, Event

import pytest

from coordinator.database import Actor, Database, FederationAct
from coordinator.database.federation_schema import RunState
from coordinator.errors import BudgetRuleError
from coordinator.operator import Coordinator
from coordinator.people.budget import CONSOLE, PROPOSAL_LIFETIME, FederationBudget
from coordinator.people.people import People, Role
from coordinator.runs.queue import RunQueue
from pate_fed.prices import run_price
from tests.support.command import Command, pate_fed
from tests.support.console import add_hospitals, add_runs, browser, form_token, newest_acts, opened
from tests.support.deployed import NAMES
from tests.support.worked import Worked

__all__ = ["pate_fed"]

START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Coordinator]:
    """A federation with a budget of 5 and four people who were added days ago."""
    with opened(tmp_path / "federation") as coordinator:
        for name, role in (
            ("Anna", Role.ADMINISTRATOR),
            ("Olga", Role.OPERATOR),
            ("Petra", Role.PRIVACY_OFFICER),
            ("Aldo", Role.AUDITOR),
        ):
            coordinator.people.add(name, role)
        later(coordinator, days=3)
        coordinator.budget.change(5.0)
        yield coordinator


def later(coordinator: Coordinator, *, days: float) -> None:
    """Let time pass for all people and proposals: what was changed, was changed earlier."""
    with coordinator._database.transaction() as connection:
        for table in ("people", "budgets"):
            moments = connection.exec_driver_sql(f"SELECT rowid, changed_at FROM {table}").all()  # noqa: S608
            for row, moment in moments:
                moved = datetime.fromisoformat(str(moment)) - timedelta(days=days)
                text = moved.strftime("%Y-%m-%d %H:%M:%S.%f")
                connection.exec_driver_sql(
                    f"UPDATE {table} SET changed_at = ? WHERE rowid = ?",  # noqa: S608
                    (text, row),
                )


def as_(coordinator: Coordinator, name: str) -> FederationBudget:
    """The budget in the console, where somebody is signed in."""
    return coordinator.on_behalf_of(name, door="console").budget


def proposed(coordinator: Coordinator, by: str, epsilon: float = 8.0) -> int:
    found = as_(coordinator, by).change(epsilon, reason="a second study")
    assert found is not None
    return found.number


@pytest.mark.parametrize("second", ["Anna", "Petra"])
def test_two_people_raise_it_and_both_are_on_record(fresh: Coordinator, second: str) -> None:
    number = proposed(fresh, "Olga")
    assert fresh.budget.epsilon() == 5.0
    as_(fresh, second).agree(number)
    assert (fresh.budget.epsilon(), fresh.budget.proposal()) == (8.0, None)
    agreed, asked, _ = newest_acts(fresh, words=["budget"], most=3)
    assert (agreed["act"], agreed["by"], agreed["after"]["proposed by"]) == (
        FederationAct.BUDGET_AGREED,
        second,
        "Olga",
    )
    assert (asked["act"], asked["after"]) == (
        FederationAct.BUDGET_PROPOSED,
        {"epsilon": "8", "reason": "a second study"},
    )
    as_(fresh, "Olga").change(2.0)  # down goes at once
    assert fresh.budget.epsilon() == 2.0


def promote(coordinator: Coordinator) -> None:
    coordinator.people.give_role("Olga", Role.ADMINISTRATOR)
    later(coordinator, days=2)


def invent(coordinator: Coordinator) -> None:
    coordinator.people.add("Eve", Role.PRIVACY_OFFICER)


def take_over(coordinator: Coordinator) -> None:
    coordinator.people.reset("Petra")  # who resets gets the setup code, and could sign in as her


def take_over_by_openid(coordinator: Coordinator) -> None:
    coordinator.people.give_subject("Petra", "anna-2", issuer="https://id.example.org")


def replace_another(coordinator: Coordinator) -> None:
    coordinator.people.remove("Petra")
    coordinator.people.add("Petra", Role.PRIVACY_OFFICER)


def promote_another(coordinator: Coordinator) -> None:
    coordinator.people.give_role("Aldo", Role.ADMINISTRATOR)


def nothing(coordinator: Coordinator) -> None:
    """No trick before."""


@pytest.mark.parametrize(
    ("by", "trick", "second", "said"),
    [
        pytest.param("Anna", nothing, "Anna", "person", id="a second session"),
        pytest.param("Olga", promote, "Olga", "person", id="another role of one's own"),
        pytest.param("Anna", promote_another, "Aldo", "day", id="another's new role"),
        pytest.param("Anna", invent, "Eve", "day", id="an invented person"),
        pytest.param("Anna", take_over, "Petra", "day", id="an account taken over"),
        pytest.param("Anna", take_over_by_openid, "Petra", "day", id="taken over by OpenID"),
        pytest.param("Anna", replace_another, "Petra", "day", id="removed and made anew"),
        pytest.param("Anna", nothing, "Olga", "role", id="an operator"),
        pytest.param("Anna", nothing, "Aldo", "role", id="an auditor"),
        pytest.param("Anna", nothing, "Nobody", "console", id="nobody"),
    ],
)
def test_one_person_cannot_be_two(
    fresh: Coordinator, by: str, trick: object, second: str, said: str
) -> None:
    trick(fresh)  # type: ignore[operator]
    number = proposed(fresh, by)
    with pytest.raises(BudgetRuleError, match=said):
        as_(fresh, second).agree(number)
    assert fresh.budget.epsilon() == 5.0
    assert not newest_acts(fresh, words=["budget agreed"])


def test_a_proposal_expires_and_another_takes_its_place(fresh: Coordinator) -> None:
    old = proposed(fresh, "Olga")
    new = proposed(fresh, "Olga", 6.0)
    with pytest.raises(BudgetRuleError, match="open"):
        as_(fresh, "Petra").agree(old)  # a form that was opened before
    later(fresh, days=7)
    with pytest.raises(BudgetRuleError, match="open"):
        as_(fresh, "Petra").agree(new)
    with pytest.raises(BudgetRuleError):
        as_(fresh, "Petra").withdraw()
    assert fresh.budget.epsilon() == 5.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), 5.0])
def test_what_is_no_budget_is_refused(fresh: Coordinator, epsilon: float) -> None:
    with pytest.raises(BudgetRuleError):
        as_(fresh, "Anna").change(epsilon)
    with pytest.raises(BudgetRuleError):
        as_(fresh, "Anna").change(6.0, reason="two\nlines")


def test_the_command_line_lowers_and_never_raises_or_agrees(
    fresh: Coordinator, pate_fed: Command
) -> None:
    home = ("--home", fresh.home.folder)
    assert pate_fed("budget", "4", *home).out.startswith("Budget: epsilon 4 ")
    assert pate_fed("budget", "6", *home).error_code == "PF-437"
    number = proposed(fresh, "Olga")
    with pytest.raises(BudgetRuleError, match="console"):
        fresh.budget.agree(number)
    shown = pate_fed("budget", *home, "--format", "json").json
    assert shown == {"epsilon": 4.0, "used": {}, "proposal": {"epsilon": 8.0, "by": "Olga"}}


def test_forms_of_the_console_do_it_for_the_roles_that_may(fresh: Coordinator) -> None:
    operator, officer = browser(fresh, Role.OPERATOR), browser(fresh, Role.PRIVACY_OFFICER)
    later(fresh, days=2)
    sent = {"form_token": form_token(operator, "/privacy"), "epsilon": "9", "reason": "<b>why</b>"}
    assert operator.post("/budget", data=sent).status_code == 303
    proposal = fresh.budget.proposal()
    assert proposal is not None
    sent["proposal"] = str(proposal.number)
    assert operator.post("/budget/agree", data=sent).status_code == 403
    page = officer.get("/privacy").text
    assert "&lt;b&gt;why" in page
    assert "Agree to 9" in page
    sent["form_token"] = form_token(officer, "/privacy")
    assert officer.post("/budget/agree", data=sent).status_code == 303
    assert fresh.budget.epsilon() == 9.0


def test_no_text_in_a_form_changes_the_budget(fresh: Coordinator) -> None:
    proposed(fresh, "Olga")
    client = browser(fresh, Role.PRIVACY_OFFICER)
    later(fresh, days=2)
    sent = {"form_token": form_token(client, "/privacy"), "epsilon": "5", "reason": ""}
    texts = ("", "nan", "1e999", "9" * 41, "\u0665", "\0")
    for changed in ({field: text} for field in ("epsilon", "proposal", "reason") for text in texts):
        for path in ("/budget", "/budget/agree"):
            answer = client.post(path, data=sent | changed)
            assert answer.status_code == 400, (path, changed)
    assert fresh.budget.epsilon() == 5.0


def test_a_hospital_that_joins_again_under_its_name_has_no_second_budget(
    fresh: Coordinator,
) -> None:
    add_hospitals(fresh, "North")
    add_runs(fresh, "first", hospitals=("North",))  # charged 2.345
    fresh.enrollment.revoke("North")
    add_hospitals(fresh, "North")
    with pytest.raises(BudgetRuleError, match=r"\b2\.655\b"):
        fresh.budget.require_room(["North"], 3.0, used=fresh.spending.committed)


def test_a_page_that_reads_the_spending_keeps_no_run_from_being_asked(
    fresh: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would wait for the lock that the other has, until the database gives up."""
    begun, requests = Event(), fresh.queue.requests

    def noted(*, after: int) -> list[tuple[int, str]]:
        begun.set()
        return requests(after=after)

    monkeypatch.setattr(fresh.queue, "requests", noted)
    with ThreadPoolExecutor(1) as pool:
        with fresh._database.as_one():  # as a run is asked for
            page = pool.submit(fresh.spending.by_hospital)
            assert begun.wait(60)
            assert fresh.spending.committed() == {}
            assert not page.done()
        assert page.result(60) == []


@dataclass
class Kept:
    """A budget and its people in a database of either kind; acts are not told."""

    database: Database
    now: datetime = START

    def of(self, name: str) -> FederationBudget:
        actor = Actor(name, CONSOLE)
        return FederationBudget(
            self.database, clock=lambda: self.now, actor=actor, tell=lambda *_: None
        )

    @property
    def people(self) -> People:
        return People(
            self.database,
            random_bytes=secrets.token_bytes,
            clock=lambda: self.now,
            tell=lambda *_: None,
        )


class TestBothDatabases:
    @pytest.fixture
    def kept(self, database: Database) -> Kept:
        made = Kept(database)
        made.people.add("Anna", Role.ADMINISTRATOR)
        made.people.add("Petra", Role.PRIVACY_OFFICER)
        made.now += timedelta(days=2)
        made.of("Anna").change(5.0)
        return made

    def test_it_takes_two_a_day_and_a_week_in_either(
        self, kept: Kept, database_url: str, open_database: Callable[..., Database]
    ) -> None:
        assert kept.of("Anna").change(8.0, reason="Ärztin: 'x'; --") is not None
        found = Kept(open_database(database_url), kept.now).of("Petra").proposal()
        assert found is not None
        assert (found.epsilon, found.by, found.reason) == (8.0, "Anna", "Ärztin: 'x'; --")
        assert found.until == kept.now + PROPOSAL_LIFETIME
        with pytest.raises(BudgetRuleError, match="person"):
            kept.of("Anna").agree(found.number)
        kept.now = found.until
        with pytest.raises(BudgetRuleError, match="open"):
            kept.of("Petra").agree(found.number)
        kept.now -= timedelta(microseconds=1)
        with ThreadPoolExecutor(2) as pool:  # two forms at once: one of them does it
            both = [pool.submit(kept.of("Petra").agree, found.number) for _ in range(2)]
            [failed] = [one.exception() for one in both if one.exception() is not None]
        assert isinstance(failed, BudgetRuleError)
        assert (kept.of("Anna").epsilon(), kept.of("Anna").proposal()) == (8.0, None)

    def test_of_two_runs_at_once_that_do_not_both_fit_one_is_refused(self, kept: Kept) -> None:
        queue, ready = RunQueue(kept.database, clock=lambda: kept.now), Barrier(2)

        def used() -> dict[str, float]:
            return {"North": 3.0 * len(queue.all())}

        def ask(name: str) -> None:
            ready.wait(60)
            with kept.database.as_one():
                kept.of("Anna").require_room(["North"], 3.0, used=used)
                queue.add(name, "{}")

        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(ask, name) for name in ("first", "second")]
            [failed] = [one.exception() for one in both if one.exception() is not None]
        assert isinstance(failed, BudgetRuleError)
        assert len(queue.all()) == 1


@pytest.mark.slow
def test_a_run_that_the_budget_does_not_hold_is_refused_before_it_is_stored(
    tmp_path: Path,
) -> None:
    federation = Worked(tmp_path)
    coordinator = federation.coordinator
    coordinator.budget.change(10.0)
    federation.ask("first", epsilon=100.0)  # open: what it costs at most is held
    cost = run_price(federation.request("first").terms).epsilon
    assert 5 < cost < 10
    assert coordinator.spending.committed() == dict.fromkeys(NAMES, cost)
    with pytest.raises(BudgetRuleError, match=f" {10 - cost:.4g} "):
        federation.ask("second", epsilon=51.0)
    assert [one.name for one in coordinator.queue.all()] == ["first"]
    coordinator.stop("first")
    coordinator.queue.enter("first", RunState.STOPPED)  # ended: what it charged, nothing
    federation.ask("second", epsilon=51.0)
    add_runs(coordinator, "third", hospitals=(NAMES[0],))  # done, with 2.345
    assert coordinator.spending.committed()[NAMES[0]] == pytest.approx(cost + 2.345)
    coordinator.close()

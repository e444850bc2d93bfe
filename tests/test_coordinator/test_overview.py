"""The overview: every hospital and request is counted, and an empty federation has a start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import operator
from coordinator.operator import Coordinator
from coordinator.people.people import Role
from tests.support.console import add_hospitals, add_runs, browser, opened

NOTHING = "Nothing needs you now"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with opened(tmp_path / "federation") as made:
        yield made


def overview(coordinator: Coordinator) -> str:
    return browser(coordinator, Role.ADMINISTRATOR).get("/").text


def first_step(page: str) -> str:
    """Where it sends people first; empty if it does not."""
    found = re.search(r'id="first-step".*?href="([^"]*)"', page, re.DOTALL)
    return "" if found is None else found[1]


def figure(page: str, card: str) -> list[int]:
    """The numbers of a card."""
    [text] = re.findall(rf'<h2 id="{card}">.*?</section>', page, re.DOTALL)
    return [int(number) for number in re.findall(r">[^<]*?(\d+)", text)]


def test_an_empty_federation_is_told_where_to_begin(coordinator: Coordinator) -> None:
    page = overview(coordinator)
    assert first_step(page) == "/hospitals"
    assert NOTHING not in page
    for name in ("North", "South", "West"):
        coordinator.invite(name)
    invited = overview(coordinator)
    assert first_step(invited) == "/hospitals"
    assert "First invite" not in invited
    add_hospitals(coordinator, "North", "South", "West")
    assert first_step(overview(coordinator)) == "/new-run"
    add_runs(coordinator, "first", hospitals=("North", "South", "West"))
    assert first_step(overview(coordinator)) == ""


def test_the_first_step_of_a_federation_with_two_hospitals_is_a_third(
    coordinator: Coordinator,
) -> None:
    add_hospitals(coordinator, "North", "South")
    assert "First invite 1 hospital:" in overview(coordinator)
    add_hospitals(coordinator, "West", state="requested")
    assert first_step(overview(coordinator)) == "/hospitals"
    assert ": West." in overview(coordinator)


def test_a_suspended_hospital_is_counted_and_named(coordinator: Coordinator) -> None:
    add_hospitals(coordinator, "North", "South", "West", "East")
    assert figure(overview(coordinator), "hospitals")[0] == 4
    operator.suspend(coordinator, "South")
    page = overview(coordinator)
    assert figure(page, "hospitals")[0] == 4
    assert "Suspended: South." in page


@pytest.mark.parametrize(("count", "others"), [(3, ""), (4, " and 1 more"), (9, " and 6 more")])
def test_every_request_is_named_or_counted(
    coordinator: Coordinator, count: int, others: str
) -> None:
    names = [f"Hospital {letter}" for letter in "ABCDEFGHI"[:count]]
    add_hospitals(coordinator, *names, state="requested")
    page = overview(coordinator)
    assert f": Hospital A, Hospital B, Hospital C{others}." in page
    assert f"{count} requests" in page

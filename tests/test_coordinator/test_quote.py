"""What a run costs before it is asked for: rows that are answered already are free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.runs.quote import Quote, answered_in, price_line, quote_of
from coordinator.runs.request import RunRequest, source_of
from pate_fed.planning import RunSettings
from protocols.envelope import DEFAULT_SUITE
from tests.support.deployed import LABEL
from tests.support.worked import Worked

FIRST, ALL = 12, 20


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """One whose first rows were answered."""
    made = Worked(tmp_path_factory.mktemp("quote"))
    made.ask(queries=FIRST, select="all")
    assert made.work().progress["answered"] == FIRST
    yield made
    made.coordinator.close()


def draft(federation: Worked, queries: int, **changed: Any) -> RunRequest:
    chosen: dict[str, Any] = {
        "suite": DEFAULT_SUITE,
        "mechanism": "gnmax",
        "sigma2": 3.0,
        "epsilon": 100.0,
        "valid_votes": False,
        "batch_size": 4,
        **changed,
    }
    settings = RunSettings(data=source_of("public.csv", LABEL), queries=queries, **chosen)
    return federation.coordinator.draft(
        "second", federation.task, settings, source="public.csv", select="all"
    )


def quote(federation: Worked, request: RunRequest, *, blind: bool = False) -> Quote:
    answered = answered_in(request, federation.task, answers=federation.coordinator.answers)
    inputs = federation.task.pool.inputs
    return quote_of(request, pool=inputs, answered=0 if blind else answered)


def test_a_run_of_answered_rows_alone_is_free(federation: Worked) -> None:
    request = draft(federation, FIRST)
    found = quote(federation, request)
    assert (found.answered, found.public.epsilon) == (FIRST, 0.0)
    assert [one.reserved for one in found.hospitals] == [0.0] * 3
    assert found.free_words == f"{FIRST} of {FIRST} rows are answered already: free"
    assert price_line(request, answered=FIRST).endswith(found.free_words)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, id="every query is answered"),
        pytest.param(
            {"mechanism": "confident", "vote_threshold": 15.0, "sigma1": 4.0}, id="with a check"
        ),
        pytest.param({"noise": "parties", "sigma2": 6.0}, id="noise at the parties"),
    ],
)
def test_only_new_rows_cost_something(federation: Worked, changed: dict[str, Any]) -> None:
    request = draft(federation, ALL, **changed)
    found, whole = quote(federation, request), quote(federation, request, blind=True)
    alone = quote(federation, draft(federation, ALL - FIRST, **changed), blind=True)
    assert found.answered == FIRST
    assert whole.free_words == ""
    assert found.public.epsilon is not None
    assert whole.public.epsilon is not None
    assert 0 < found.public.epsilon < whole.public.epsilon
    # As much as a run of as many rows, all of them new.
    assert found.public.epsilon == pytest.approx(alone.public.epsilon, rel=1e-6)
    for one, other in zip(found.hospitals, whole.hospitals, strict=True):
        assert 0 < one.reserved < other.reserved


def test_a_run_charges_no_more_than_its_quote(federation: Worked) -> None:
    """Last in this file: it answers more rows."""
    found = quote(federation, draft(federation, ALL))
    federation.ask("second", queries=ALL, select="all")
    run = federation.work("second")
    assert run.progress["from_store"] == FIRST
    charged = run.progress["epsilon"]
    assert 0 < charged <= max(one.reserved for one in found.hospitals) * (1 + 1e-9)
    assert quote(federation, draft(federation, ALL)).public.epsilon == 0.0


def test_members_that_others_joined_since_have_answered_nothing(federation: Worked) -> None:
    """The last of all: other hospitals would answer otherwise."""
    federation.enroll("East")
    assert quote(federation, draft(federation, FIRST)).answered == 0

"""What a run costs before it is asked for: rows that are answered already are free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from coordinator.database.federation_schema import AnswerRow
from coordinator.runs.queue import RunState
from coordinator.runs.request import RunRequest
from coordinator.runs.run_price import RunPrice, price_line, price_of_run
from pate_fed.prices import run_price
from pate_fed.report import read_run
from tests.support.asking import drafted_run
from tests.support.rules import with_other
from tests.support.worked import Worked

FIRST, ALL = 12, 20
CAPS = ("max_asks", "max_answers")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """One whose first rows were answered."""
    made = Worked(tmp_path_factory.mktemp("quote"))
    made.ask(queries=FIRST, select="all")
    assert made.work().progress.answered == FIRST
    yield made
    made.coordinator.close()


def draft(federation: Worked, queries: int, **changed: Any) -> RunRequest:
    chosen = {"queries": queries, "batch_size": 4, "select": "all", **changed}
    return drafted_run(federation.coordinator, "second", federation.task, **chosen)


def quote(federation: Worked, request: RunRequest) -> RunPrice:
    return price_of_run(request, pool=federation.task.pool.inputs)


def test_a_run_of_answered_rows_alone_is_free(federation: Worked) -> None:
    request = draft(federation, FIRST)
    found = quote(federation, request)
    assert (request.answered, request.epsilon, found.public.epsilon) == (FIRST, 0.0, 0.0)
    assert found.epsilons == (0.0,) * 3
    assert re.findall(r"\d+", found.request.free_words) == [str(FIRST)] * 2
    assert price_line(request).endswith(found.request.free_words)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, id="every query is answered"),
        pytest.param({"mechanism": "threshold", "vote_threshold": 15.0}, id="with a threshold"),
        pytest.param({"noise": "parties", "sigma2": 6.0}, id="noise at the parties"),
    ],
)
def test_only_new_rows_cost_something(federation: Worked, changed: dict[str, Any]) -> None:
    request = draft(federation, ALL, **changed)
    found = quote(federation, request)
    assert (request.answered, request.terms.caps.most.asks) == (FIRST, ALL - FIRST)
    whole = run_price(with_other(request.terms, **dict.fromkeys(CAPS, ALL)))
    assert 0 < found.public.epsilon == request.epsilon < whole.epsilon
    assert found.epsilons == (request.epsilon,) * 3


def test_a_budget_is_spent_on_new_rows_alone(federation: Worked) -> None:
    """Less noise for the same epsilon than if answered rows were paid for again."""
    with_answered = draft(federation, ALL, sigma2=None, epsilon=3.0)
    alone = draft(federation, FIRST + 1, sigma2=None, epsilon=3.0)
    assert (with_answered.new_queries, alone.new_queries) == (ALL - FIRST, 1)
    assert alone.terms.rule.sigma2 < with_answered.terms.rule.sigma2
    assert with_answered.epsilon <= 3.0


def test_a_run_states_no_other_number_than_its_quote(federation: Worked) -> None:
    """Last in this file: it answers more rows."""
    found = quote(federation, draft(federation, ALL))
    federation.ask("second", queries=ALL, select="all")
    run = federation.work("second")
    assert run.progress.from_store == FIRST
    assert run.progress.epsilon == found.public.epsilon
    assert run.progress.share == pytest.approx(1.0)
    privacy = read_run(federation.coordinator.home.results("second")).privacy
    assert privacy.runs[-1].epsilon == found.public.epsilon
    assert quote(federation, draft(federation, ALL)).public.epsilon == 0.0


def test_a_free_row_whose_answer_is_gone_is_not_asked_at_another_price(tmp_path: Path) -> None:
    """An operator restored an older database: the run says epsilon 0, so it may charge nothing."""
    federation = Worked(tmp_path)
    federation.ask(queries=FIRST, select="all")
    federation.work()
    federation.ask("again", queries=FIRST, select="all")
    assert federation.request("again").epsilon == 0
    charged = [one.ledger.load().used_share() for one in federation.hospitals.values()]
    with federation.coordinator._database.session() as session:
        session.execute(delete(AnswerRow))
    run = federation.work("again")
    assert (run.state, "PF-447" in run.reason) == (RunState.FAILED, True)
    assert [one.ledger.load().used_share() for one in federation.hospitals.values()] == charged
    federation.coordinator.close()


def test_members_that_others_joined_since_have_answered_nothing(federation: Worked) -> None:
    """The last of all: other hospitals would answer otherwise."""
    federation.enroll("East")
    assert draft(federation, FIRST).answered == 0

"""An approval is of one run: its digest depends on every fact that a person approves."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from protocols.run_scope import RunScope
from protocols.values import digest_of_values
from tests.support.rounds import ready_run

COORDINATOR = bytes(range(32))
SCOPE = RunScope(COORDINATOR, b"terms", (b"a" * 32, b"b" * 32), "masked", 32, "suite", 5, 2, 1, b"")
OTHERS: dict[str, Any] = {
    "coordinator": bytes(32), "terms": b"other", "seats": (b"a" * 32,), "form": "additive",
    "ring_bits": 16, "suite": "other", "threshold": 4, "colluders": 1, "dropouts": 2,
    "tally": b"t" * 32,
}  # fmt: skip


def test_the_digest_is_of_all_its_facts_under_a_label_of_its_own() -> None:
    facts = [getattr(SCOPE, field.name) for field in fields(SCOPE)]
    assert SCOPE.digest == digest_of_values("approved run", facts)


@pytest.mark.parametrize("name", [field.name for field in fields(RunScope)])
def test_another_fact_is_another_run(name: str) -> None:
    assert replace(SCOPE, **{name: OTHERS[name]}).digest != SCOPE.digest


def test_a_scope_has_the_facts_of_its_record() -> None:
    run = ready_run(4)
    record, seats = run.parties[run.coordinator.seats[0]].record, run.coordinator.seats
    assert record is not None
    scope = RunScope.of(record, seats=seats)
    assert scope.seats == seats
    for field in fields(scope):
        if field.name != "seats":
            assert getattr(scope, field.name) == getattr(record, field.name)


def test_a_scope_without_a_word_on_its_tally_cannot_be_made() -> None:
    facts = asdict(SCOPE)
    assert RunScope(**facts) == SCOPE
    del facts["tally"]
    with pytest.raises(TypeError):
        RunScope(**facts)

"""A coordinator that comes back as it was yesterday: its hospitals remember, and refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.runs.queue import RunState
from coordinator.runs.stages import BatchStage
from pate_fed.accounting import EntryState
from tests.support.invariants import Seen, require_sound
from tests.support.markers import more
from tests.support.process_federation import DiesAt, ProcessFederation, process_federation

pytestmark = pytest.mark.slow


def vectors(seen: Seen) -> int:
    """How many y's left the hospitals, each counted once."""
    return len(seen.said.vectors)


def charges(seen: Seen) -> list[int]:
    return [len(one.ledger.entries) for one in seen.hospitals]


@pytest.mark.parametrize("form", [more("additive"), "masked"])
def test_what_was_asked_after_the_backup_is_not_answered_again(tmp_path: Path, form: str) -> None:
    with process_federation(tmp_path, form) as federation:
        federation.make_task("first", seed=1)
        federation.make_task("second", seed=2)
        federation.start_hospitals()
        federation.ask("first")
        federation.work()
        yesterday, known = federation.back_up("yesterday"), plans(federation)
        federation.ask("second")
        federation.work()
        before = federation.look()
        require_sound(before)

        federation.restore(yesterday)
        assert [run.name for run in federation.coordinator.queue.all()] == ["first"]
        federation.start_hospitals()
        federation.ask("second")
        federation.work()
        seen = replace(federation.look(), forgotten=frozenset(before.said.plans.keys() - known))
        require_sound(seen)
        run = federation.run("second")
        assert run.state is RunState.FAILED
        assert "PF-317" in run.reason
        assert vectors(seen) == vectors(before)
        assert charges(seen) == charges(before)
        assert federation_labels(seen, "second") is None


@pytest.mark.parametrize("form", ["additive", more("masked")])
def test_a_run_that_ended_since_the_backup_does_not_go_on_from_it(
    tmp_path: Path, form: str
) -> None:
    """The copy is of the middle of a run, with one batch released."""
    with process_federation(tmp_path, form) as federation:
        federation.make_task("first", seed=1)
        federation.start_hospitals()
        federation.ask("first", patience_s=0.2)
        assert federation.work(DiesAt(BatchStage.STORED))
        yesterday, known = federation.back_up("yesterday"), plans(federation)
        federation.work()
        assert federation.run("first").state is RunState.DONE
        made = plans(federation)
        assert len(made) == 3
        assert len(known) == 1

        federation.restore(yesterday)
        federation.work()
        seen = replace(federation.look(), forgotten=frozenset(made - known))
        require_sound(seen)
        run = federation.run("first")
        assert run.state is RunState.INCOMPLETE
        assert "PF-317" in run.reason  # hospitals know what they gave, and that nothing is left
        assert plans(federation) == made  # no teacher was asked for anything else
        assert len(federation_labels(seen, "first")) == 2
        for one in seen.hospitals:
            assert [entry.state for entry in one.ledger.entries] == [EntryState.COMMITTED] * 3


def plans(federation: ProcessFederation) -> set[bytes]:
    """The plans that teachers were asked for so far."""
    return set(federation.voted(0))


def federation_labels(seen: Seen, name: str) -> Any:
    [found] = [one for one in seen.runs if one.run.name == name]
    return found.labels

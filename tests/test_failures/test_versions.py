"""One hospital has another version: what speaks otherwise is refused before any charge."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import protocols.wire
from coordinator.runs.queue import RunState
from pate_fed import version
from pate_fed.errors import InvalidTermsError
from pate_fed.terms import RunTerms
from tests.support.invariants import require_sound
from tests.support.process_federation import ProcessFederation, process_federation

pytestmark = pytest.mark.slow


# Each changes the process of one hospital, before it opens its folder.


def another_wire() -> None:
    protocols.wire.PROTOCOL_VERSION += 1  # type: ignore[misc]


def other_terms() -> None:
    """A version whose terms have a field more."""

    def read(record: Any) -> RunTerms:
        raise InvalidTermsError("a record must have all fields", "others")

    RunTerms.from_record = staticmethod(read)  # type: ignore[assignment, method-assign]


def another_package() -> None:
    version.__version__ = "9.9.9"


def started(federation: ProcessFederation, change: Callable[[], None]) -> None:
    federation.make_task("first", seed=1)
    federation.start_hospital(0, change=change)
    for place in (1, 2):
        federation.start_hospital(place)
    federation.ask("first", patience_s=0.2)
    federation.work()


def codes_in(reason: str) -> list[str]:
    """The coordinator's own code, then the hospital's."""
    return re.findall(r"PF-\d+", reason)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(another_wire, "PF-221", id="another wire version"),
        pytest.param(other_terms, "PF-313", id="other terms"),
    ],
)
def test_a_hospital_that_speaks_otherwise_stops_the_run_with_a_reason(
    tmp_path: Path, change: Callable[[], None], code: str
) -> None:
    with process_federation(tmp_path, "additive") as federation:
        started(federation, change)
        seen = federation.look()
        require_sound(seen)
        run = federation.run("first")
        assert run.state is RunState.FAILED
        assert codes_in(run.reason)[-1] == code
        assert not any(one.ledger.entries for one in seen.hospitals)
        assert not seen.said.plans


def test_a_package_of_another_version_that_speaks_the_same_takes_part(tmp_path: Path) -> None:
    with process_federation(tmp_path, "additive") as federation:
        started(federation, another_package)
        seen = federation.look()
        require_sound(seen)
        assert federation.run("first").state is RunState.DONE

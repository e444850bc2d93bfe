"""What waits for a person, and what they decided; two processes write, nothing is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from party.approvals import Approvals, Pause, State, Subject
from party.errors import ApprovalError

TERMS, SEATS = b"terms", (bytes([1]) * 32, bytes([2]) * 32)


def digest(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


@pytest.fixture
def approvals(tmp_path: Path) -> Approvals:
    return Approvals(tmp_path / "approvals.json")


def ask(approvals: Approvals, number: int, subject: Subject = Subject.RUN):  # type: ignore[no-untyped-def]
    return approvals.ask(subject, digest(number), terms=TERMS, seats=SEATS, at=float(number))


def test_what_was_asked_waits_until_it_is_decided_and_is_kept_with_who_decided(
    approvals: Approvals, tmp_path: Path
) -> None:
    one = ask(approvals, 1)
    assert approvals.pending() == (one,)
    assert approvals.approved(Subject.RUN) == frozenset()
    approvals.decide(one, State.APPROVED, by="M. Curie", at=7.0)
    [kept] = Approvals(tmp_path / "approvals.json").all()
    assert (kept.state, kept.by, kept.decided_at) == (State.APPROVED, "M. Curie", 7.0)
    assert (kept.terms, kept.seats, kept.asked_at) == (TERMS, SEATS, 1.0)
    assert approvals.approved(Subject.RUN) == {digest(1)}
    assert approvals.approved(Subject.POOL) == frozenset()


def test_asking_again_changes_no_decision(approvals: Approvals) -> None:
    approvals.decide(ask(approvals, 1), State.REJECTED, by="M. Curie", at=7.0)
    assert ask(approvals, 1).state is State.REJECTED
    assert approvals.pending() == ()


def test_node_and_people_write_at_once_and_nothing_is_lost(
    approvals: Approvals, tmp_path: Path
) -> None:
    first = [ask(approvals, number) for number in range(10)]

    def people() -> None:
        own = Approvals(tmp_path / "approvals.json")
        for one in first:
            own.decide(one, State.APPROVED, by="M. Curie", at=1.0)

    thread = threading.Thread(target=people)
    thread.start()
    for number in range(10, 20):
        ask(approvals, number)
    thread.join()
    assert len(approvals.approved(Subject.RUN)) == 10
    assert len(approvals.pending()) == 10


@pytest.mark.parametrize("by", ["", " ", "two\nlines"])
def test_a_decision_is_somebodys(approvals: Approvals, by: str) -> None:
    one = ask(approvals, 1)
    with pytest.raises(ApprovalError):
        approvals.decide(one, State.APPROVED, by=by, at=1.0)
    assert approvals.pending() == (one,)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param('{"schema_version": 2, "approvals": []}', id="another version"),
        pytest.param('{"schema_version": 1}', id="no list"),
        pytest.param('{"schema_version": 1, "approvals": [{}]}', id="an empty one"),
        pytest.param('{"schema_version": 1, "approvals": [1]}', id="a number"),
    ],
)
def test_a_file_that_cannot_be_read_approves_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "approvals.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ApprovalError):
        Approvals(path).approved(Subject.RUN)


def test_few_digits_mean_nothing_and_many_one_thing(approvals: Approvals) -> None:
    one = ask(approvals, 1)
    assert approvals.find(one.digest.hex()[:8]) == one
    assert approvals.find(one.digest.hex().upper()) == one
    for digits in ("", one.digest.hex()[:7], "ffffffff"):
        with pytest.raises(ApprovalError):
            approvals.find(digits)


def test_a_pause_lasts_until_somebody_ends_it(tmp_path: Path) -> None:
    pause = Pause(tmp_path / "pause.json")
    assert pause.state().is_paused is False
    pause.set(True, by="M. Curie", at=3.0)
    assert Pause(tmp_path / "pause.json").state() == pause.state()
    assert pause.state().is_paused
    pause.set(False, by="P. Curie", at=4.0)
    assert (pause.state().is_paused, pause.state().by) == (False, "P. Curie")

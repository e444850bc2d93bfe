"""The ledger for life on disk: it only goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from party.errors import LedgerFileError
from party.ledger_file import FileLedgerStore, read_ledger
from pate_fed.accounting import GaussianMaxEvent, PrivacyLedger

DIGEST = bytes(32)


def event(queries: int = 1) -> GaussianMaxEvent:
    return GaussianMaxEvent(queries, 40.0)


@pytest.fixture
def budget() -> PrivacyLedger:
    return PrivacyLedger.for_life(5.0, 1e-5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


def test_what_was_saved_is_read_again_by_whoever_comes(path: Path, budget: PrivacyLedger) -> None:
    store = FileLedgerStore(path, budget=budget)
    store.save(store.load().reserve("a", event(3)))
    store.save(store.load().commit("a", event(2), DIGEST).reserve("b", event()))
    again = FileLedgerStore(path, budget=budget)
    assert again.load() == store.load() == read_ledger(path)
    assert [entry.state.value for entry in again.load().entries] == ["committed", "reserved"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_no_charge_is_ever_lost(path: Path, budget: PrivacyLedger) -> None:
    store = FileLedgerStore(path, budget=budget)
    charged = budget.reserve("a", event()).commit("a", event(), DIGEST)
    store.save(budget.reserve("a", event()))
    store.save(charged)
    for worse in (
        budget,
        budget.reserve("b", event()),
        budget.reserve("a", event()).cancel("a"),
        budget.reserve("a", event()).forfeit("a"),
        PrivacyLedger.for_life(6.0, 1e-5).reserve("a", event()).commit("a", event(), DIGEST),
    ):
        with pytest.raises(LedgerFileError):
            store.save(worse)
        assert store.load() == read_ledger(path) == charged


def test_another_budget_is_not_taken_for_life(path: Path, budget: PrivacyLedger) -> None:
    FileLedgerStore(path, budget=budget)
    with pytest.raises(LedgerFileError, match="for life"):
        FileLedgerStore(path, budget=PrivacyLedger.for_life(6.0, 1e-5))


def test_a_write_that_fails_leaves_the_old_ledger(
    path: Path, budget: PrivacyLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileLedgerStore(path, budget=budget)
    store.save(budget.reserve("a", event()))

    def no_room(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_room)
    with pytest.raises(LedgerFileError, match="No space"):
        store.save(store.load().reserve("b", event()))
    assert [entry.entry_id for entry in read_ledger(path).entries] == ["a"]
    assert store.load() == read_ledger(path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("{}", id="no parts"),
        pytest.param("[]", id="a list"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(json.dumps({"ledger": 2}), id="another version"),
        pytest.param("null", id="nothing"),
    ],
)
def test_what_is_no_ledger_is_never_taken_for_an_empty_one(
    path: Path, budget: PrivacyLedger, content: str
) -> None:
    path.write_text(content, encoding="utf-8")
    with pytest.raises(LedgerFileError):
        FileLedgerStore(path, budget=budget)
    assert path.read_text("utf-8") == content

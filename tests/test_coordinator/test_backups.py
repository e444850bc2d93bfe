"""A run of which a part was put back to what it was; hospitals whose journals were."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Table

from coordinator.database.schema import (
    AnswerRow,
    RunBatchRow,
    RunBudgetRow,
    RunEntryRow,
    RunStepRow,
)
from coordinator.errors import RunDamagedError, SetupError, VoidBatchError
from coordinator.labeling import LabelingRun, LabelingSettings, Member
from coordinator.stages import Stage
from coordinator.store import MemoryStore
from party.journal import MemoryJournal
from protocols.additive import AdditiveSum
from protocols.errors import RestoredJournalError
from tests.support.federation import Federation, kinds
from tests.support.killing import MortalFederation

TABLES: Mapping[str, tuple[Any, ...]] = {
    "steps": (RunStepRow,),
    "results": (RunBudgetRow, RunEntryRow, RunBatchRow, AnswerRow),
}
"""The two halves of a run in the database: what parties were told, and what came of it."""

Kept: TypeAlias = list[tuple[Table, list[dict[str, Any]]]]


def kept(federation: MortalFederation, half: str) -> Kept:
    """Copy one half of the run."""
    with federation.database.transaction() as session:
        return [
            (table, [dict(row) for row in session.execute(table.select()).mappings()])
            for table in (kind.__table__ for kind in TABLES[half])
        ]


def put_back(federation: MortalFederation, copies: Kept) -> None:
    """Put one half of the run in the place of what is there."""
    with federation.database.transaction() as session:
        for table, rows in copies:
            session.execute(table.delete())
            if rows:
                session.execute(table.insert(), rows)


class TestBackups:
    """One half of a run put back to what it was: nobody may go on from that."""

    @pytest.fixture
    def federation(self, tmp_path: Path) -> MortalFederation:
        federation = MortalFederation(tmp_path, kind="noise at the coordinator", form="additive")
        federation.run.set_up()
        return federation

    @pytest.mark.parametrize("half", TABLES)
    @pytest.mark.parametrize("batches", [1, 2])
    def test_a_half_of_an_earlier_batch_is_refused(
        self, federation: MortalFederation, half: str, batches: int
    ) -> None:
        federation.ask(0)
        copies = kept(federation, half)
        for index in range(1, 1 + batches):
            federation.ask(index)
        put_back(federation, copies)
        federation.bury()
        packets = len(federation.transport.packets)
        with pytest.raises(RunDamagedError) as caught:
            federation.resume()
        assert caught.value.code == "PF-417"
        assert len(federation.transport.packets) == packets  # nobody was asked anything

    def test_both_halves_as_they_are_go_on(self, federation: MortalFederation) -> None:
        federation.ask(0)
        for half in TABLES:
            put_back(federation, kept(federation, half))
        federation.bury()
        federation.resume()
        federation.run.finish()
        federation.ask(2)

    def test_results_of_another_run_are_refused(
        self, federation: MortalFederation, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        other = MortalFederation(
            tmp_path / "other", kind="noise at the coordinator", form="additive"
        )
        other.run.set_up()
        other.ask(0)
        put_back(federation, kept(other, "results"))
        federation.bury()
        with pytest.raises(RunDamagedError):
            federation.resume()

    def test_other_terms_are_refused(self, federation: MortalFederation) -> None:
        federation.bury()
        federation.terms["sigma1"] = 21.0
        with pytest.raises(RunDamagedError):
            federation.resume()

    def test_a_void_batch_that_the_journal_knows_cannot_be_open_again(
        self, federation: MortalFederation
    ) -> None:
        """Else its queries, which are lost, would be asked once more."""
        copies: list[Kept] = []

        def note(number: int, stage: Stage) -> bool:
            if stage is Stage.RESERVED:
                copies.append(kept(federation, "results"))
            return False

        federation.is_fatal = note
        federation.on_vectors_of(1, lambda answer: None)
        with pytest.raises(VoidBatchError):
            federation.ask(0)
        put_back(federation, copies[0])
        federation.bury()
        with pytest.raises(RunDamagedError):
            federation.resume()


class TestStatements:
    """Rule R4, the coordinator's half: it keeps what a party signed, and shows it."""

    @pytest.fixture
    def federation(self) -> Federation:
        federation = Federation()
        federation.run.set_up()
        federation.ask(0)
        federation.run.close()
        return federation

    def another_run(self, federation: Federation) -> LabelingRun:
        members = zip(federation.names, federation.identities, federation.weights, strict=True)
        return LabelingRun(
            transport=federation.transport,
            identity=federation.identity,
            form=AdditiveSum(),
            members=[Member(name, each.public, weights) for name, each, weights in members],
            pool=federation.pool,
            settings=LabelingSettings(federation.run_terms, simulated=True),
            store=lambda ledger: MemoryStore(ledger, statements=federation.store.statements()),
            random_bytes=secrets.token_bytes,
            noise_bytes=secrets.token_bytes,
            clock=lambda: federation.now,
        )

    def test_every_party_sees_its_own_before_it_judges_the_run(
        self, federation: Federation
    ) -> None:
        assert set(federation.store.statements()) == set(federation.pins)
        before = len(federation.transport.packets)
        self.another_run(federation).set_up()
        shown = [kinds(packet) for packet in federation.transport.packets[before:]]
        assert shown.count(["Ready", "RunRecord"]) == len(federation.nodes)

    def test_a_restored_journal_is_stopped_for_good(self, federation: Federation) -> None:
        true, restored = federation.nodes[0]._journal, MemoryJournal()
        federation.nodes[0]._journal = federation.nodes[0]._round._journal = restored
        assert restored.counter < true.counter
        with pytest.raises(SetupError, match="PF-229"):
            self.another_run(federation).set_up()
        assert 0 < restored._halted_at <= true.counter
        with pytest.raises(RestoredJournalError):
            restored.begin(run_id=bytes(32), epoch=1, plan_digest=bytes(32))
        for node in federation.nodes[1:]:
            assert not node._journal._halted_at  # type: ignore[attr-defined]

"""A run on disk: cut, damaged, of other terms, restored from a backup."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator import run_files
from coordinator.errors import (
    RunDamagedError,
    RunLockedError,
    RunStateError,
    RunStorageError,
    SetupError,
    VoidBatchError,
)
from coordinator.labeling import LabelingRun, LabelingSettings, Member
from coordinator.run_files import STEPS, FileCoordinatorJournal, FileStore
from coordinator.stages import Stage
from coordinator.store import AskedBatch, BatchState, MemoryStore, RunStore
from party.journal import MemoryJournal
from pate_fed.accounting import Outcomes
from pate_fed.charging import RunLedger
from pate_fed.mechanisms import FirstPhase
from pate_fed.releases import NoisyRelease, Outcome
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import RestoredJournalError
from protocols.rounds.contribution import Contribution
from protocols.rounds.coordinator_journal import PlanOpened, RunClosed, SumOpened
from tests.support.federation import Federation, kinds
from tests.support.killing import MortalFederation

EMPTY = RunLedger.of(Federation().run.terms)
PREDICTIONS = np.array([[0.1, 0.7, 0.2], [1 / 3, 1 / 3, 1 / 3]])
OPENED = Contribution(b"y" * 32, b"d" * 32, b"r" * 32)
STEPS_WRITTEN = [PlanOpened(b"p" * 40), SumOpened((OPENED, None)), RunClosed(b"c" * 99)]


def release(*labels: int) -> NoisyRelease:
    return NoisyRelease(np.array(labels), np.array([Outcome.ANSWERED] * len(labels), dtype=np.int8))


def opened(folder: Path, ledger: RunLedger = EMPTY) -> FileStore:
    return FileStore(folder / "run", ledger, statements=folder / "statements")


def filled(store: RunStore) -> RunStore:
    """One released batch of two phases, one void, one open with predictions."""
    store.save_run_id(b"r" * 32)
    for number, indices in enumerate([(3, 1), (4, 5)]):
        ledger = store.ledger()
        asked = AskedBatch(number, indices, ledger.left)
        store.save_asked(ledger.reserve(asked.entry_id, ledger.worst_case(2)), asked)
        store.save_first_phase(number, FirstPhase(release(0, 0).outcomes))
        if number == 0:
            settled = store.ledger().commit(asked.entry_id, Outcomes(0, 2), release(1, 2).digest)
            store.save_release(settled, batch=0, indices=indices, release=release(1, 2))
        else:
            forfeited = store.ledger().forfeit(asked.entry_id)
            store.save_failure(forfeited, batch=1, state=BatchState.VOID)
    ledger = store.ledger()
    asked = AskedBatch(2, (6, 7), ledger.left, PREDICTIONS)
    store.save_asked(ledger.reserve(asked.entry_id, ledger.worst_case(2)), asked)
    store.save_statements({b"party" * 6: b"frame"})
    return store


def content(store: RunStore) -> list[Any]:
    asked = [
        replace(each, predictions=None) if each.predictions is None else each
        for each in store.asked().values()
    ]
    return [
        store.ledger(),
        store.run_id(),
        store.statements(),
        [(each.number, each.indices, each.left, each.state) for each in asked],
        [None if each.predictions is None else each.predictions.tolist() for each in asked],
        [(i, kept.as_record()) for i, kept in store.releases().values()],
        [
            None if first is None else first.as_record()
            for first in (store.first_phase(number) for number in range(3))
        ],
    ]


class TestResults:
    def test_everything_is_there_again(self, tmp_path: Path) -> None:
        before = content(filled(opened(tmp_path)))
        assert content(opened(tmp_path)) == before == content(filled(MemoryStore(EMPTY)))

    def test_what_the_student_believed_goes_with_its_batch(self, tmp_path: Path) -> None:
        store = filled(opened(tmp_path))
        assert np.array_equal(opened(tmp_path).asked()[2].predictions, PREDICTIONS)  # type: ignore[arg-type]
        withdrawn = store.ledger().withdraw("batch 2")
        store.save_failure(withdrawn, batch=2, state=BatchState.WITHDRAWN)
        again = opened(tmp_path)
        assert again.asked()[2].predictions is None
        assert again.ledger().left == filled(MemoryStore(EMPTY)).asked()[2].left

    def test_a_change_is_on_disk_whole_or_not_at_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed at every touch of the disk: the old document is there, or the new one."""

        class DeadError(BaseException):
            pass

        def calls(step: int) -> bool:
            seen = [0]

            def around(call: Any) -> Any:
                def touched(*arguments: Any) -> Any:
                    seen[0] += 1
                    if seen[0] == step:
                        raise DeadError
                    return call(*arguments)

                return touched

            folder = tmp_path / str(step)
            folder.mkdir()
            store = filled(opened(folder))
            before = content(store)
            with monkeypatch.context() as patch:
                for name in ("open", "write", "fsync", "replace", "close"):
                    patch.setattr(os, name, around(getattr(os, name)))
                try:
                    store.save_failure(
                        store.ledger().forfeit("batch 2"), batch=2, state=BatchState.VOID
                    )
                    died = False
                except DeadError:
                    died = True
            after = content(opened(folder))
            assert after in (before, content(store))
            assert died or after == content(store)
            return died

        assert sum(calls(step) for step in range(1, 12)) >= 6

    def test_every_changed_or_missing_byte_is_damage(self, tmp_path: Path) -> None:
        filled(opened(tmp_path))
        for name in ("run/results", "statements"):
            file = tmp_path / name
            data = file.read_bytes()
            for place in range(0, len(data), 7):
                for spoiled in (
                    data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :],
                    data[:place],
                ):
                    file.write_bytes(spoiled)
                    with pytest.raises(RunDamagedError) as caught:
                        opened(tmp_path)
                    assert caught.value.code == "PF-417"
            file.write_bytes(data)
        opened(tmp_path)

    def test_results_of_other_budgets_or_caps_are_refused(self, tmp_path: Path) -> None:
        filled(opened(tmp_path))
        for changed in ({"max_answers": 99}, {"budgets": (4.0,) * 3}):
            other = RunLedger.of(replace(EMPTY.terms, **changed))
            with pytest.raises(RunDamagedError):
                opened(tmp_path, other)

    def test_a_whole_document_of_something_else_is_damage(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        for record in (
            {},
            {"costs": []},
            {"costs": 1, "outcomes": {}, "run_id": "", "batches": []},
        ):
            run_files._write(tmp_path / "run" / "results", run_files._RESULTS, record)
            with pytest.raises(RunDamagedError):
                opened(tmp_path)

    def test_statements_outlive_a_run(self, tmp_path: Path) -> None:
        filled(opened(tmp_path))
        other = FileStore(tmp_path / "another run", EMPTY, statements=tmp_path / "statements")
        assert other.statements() == {b"party" * 6: b"frame"}
        assert not other.asked()

    def test_nobody_else_may_read_it(self, tmp_path: Path) -> None:
        mask = os.umask(0)
        try:
            filled(opened(tmp_path))
            FileCoordinatorJournal(tmp_path / "run").close()
        finally:
            os.umask(mask)
        for path in tmp_path.rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path

    def test_every_fault_is_a_coded_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(RunStorageError):
            opened(tmp_path / "no" / "parent")
        (tmp_path / "run" / "results").mkdir(parents=True)
        with pytest.raises(RunStateError):
            opened(tmp_path)
        (tmp_path / "run" / "results").rmdir()
        store = opened(tmp_path)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(RunStorageError) as caught:
            store.save_run_id(b"r")
        assert caught.value.code == "PF-418"


class TestSteps:
    def test_they_are_there_again_in_order(self, tmp_path: Path) -> None:
        with FileCoordinatorJournal(tmp_path / "run") as journal:
            for step in STEPS_WRITTEN:
                journal.append(step)
        with FileCoordinatorJournal(tmp_path / "run") as again:
            assert list(again.steps()) == STEPS_WRITTEN
            assert repr(again) == "FileCoordinatorJournal(steps=3)"

    def test_a_file_cut_anywhere_is_the_journal_of_its_whole_steps(self, tmp_path: Path) -> None:
        with FileCoordinatorJournal(tmp_path / "run") as journal:
            for step in STEPS_WRITTEN:
                journal.append(step)
        file = tmp_path / "run" / "steps"
        data = file.read_bytes()
        found = []
        for size in range(len(data)):
            file.write_bytes(data[:size])
            with FileCoordinatorJournal(tmp_path / "run") as again:
                found.append(len(again.steps()))
                assert list(again.steps()) == STEPS_WRITTEN[: found[-1]]
        assert found == sorted(found)
        assert set(found) == {0, 1, 2}

    def test_every_changed_byte_is_damage(self, tmp_path: Path) -> None:
        with FileCoordinatorJournal(tmp_path / "run") as journal:
            for step in STEPS_WRITTEN:
                journal.append(step)
        file = tmp_path / "run" / "steps"
        data = file.read_bytes()
        for place in range(len(data)):
            file.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
            with pytest.raises(RunDamagedError):
                FileCoordinatorJournal(tmp_path / "run")

    def test_a_record_that_is_no_step_is_damage(self, tmp_path: Path) -> None:
        with FileCoordinatorJournal(tmp_path / "run") as journal:
            head = journal._log.head
        record, _ = STEPS.record(head, wire.encode_value(["dance"]))
        with (tmp_path / "run" / "steps").open("ab") as file:
            file.write(record)
        with pytest.raises(RunDamagedError):
            FileCoordinatorJournal(tmp_path / "run")

    def test_a_partys_journal_is_not_taken_for_it(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "steps").write_bytes(b"pate-fed journal 1\n")
        with pytest.raises(RunDamagedError):
            FileCoordinatorJournal(tmp_path / "run")

    def test_it_is_open_once_at_a_time(self, tmp_path: Path) -> None:
        with (
            FileCoordinatorJournal(tmp_path / "run"),
            pytest.raises(RunLockedError) as caught,
        ):
            FileCoordinatorJournal(tmp_path / "run")
        assert caught.value.code == "PF-416"


class TestBackups:
    """One of a run's two files put back to what it was: nobody may go on from that."""

    @pytest.fixture
    def federation(self, tmp_path: Path) -> MortalFederation:
        federation = MortalFederation(tmp_path, kind="noise at the coordinator", form="additive")
        federation.run.set_up()
        return federation

    @pytest.mark.parametrize("name", ["results", "steps"])
    @pytest.mark.parametrize("batches", [1, 2])
    def test_a_file_of_an_earlier_batch_is_refused(
        self, federation: MortalFederation, name: str, batches: int
    ) -> None:
        file, kept = federation.folder / "run" / name, federation.folder / "kept"
        federation.ask(0)
        shutil.copyfile(file, kept)
        for index in range(1, 1 + batches):
            federation.ask(index)
        federation.bury()
        shutil.copyfile(kept, file)
        packets = len(federation.transport.packets)
        with pytest.raises(RunDamagedError) as caught:
            federation.resume()
        assert caught.value.code == "PF-417"
        assert len(federation.transport.packets) == packets  # nobody was asked anything

    def test_results_of_another_run_are_refused(
        self, federation: MortalFederation, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        other = MortalFederation(
            tmp_path / "other", kind="noise at the coordinator", form="additive"
        )
        other.run.set_up()
        federation.bury()
        shutil.copyfile(other.folder / "run" / "results", tmp_path / "run" / "results")
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
        kept: list[bytes] = []

        def note(number: int, stage: Stage) -> bool:
            if stage is Stage.RESERVED:
                kept.append((federation.folder / "run" / "results").read_bytes())
            return False

        federation.is_fatal = note
        federation.on_vectors_of(1, lambda answer: None)
        with pytest.raises(VoidBatchError):
            federation.ask(0)
        federation.bury()
        (federation.folder / "run" / "results").write_bytes(kept[0])
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

"""A hospital's database: killed, full, read-only, of another version, shared, restored."""

from __future__ import annotations

import gc
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, event, insert, select, text, update

from party.errors import (
    JournalDamagedError,
    JournalLockedError,
    JournalStorageError,
    RecordError,
    StorageDamagedError,
    StorageError,
    StorageVersionError,
)
from party.storage import Journal, LedgerStore, PartyDatabase
from party.storage.site_schema import EntryRow, PlanRow, SiteRow, VectorRow
from pate_fed.accounting import PrivacyLedger
from protocols.errors import KeyReuseError
from tests.support.federation import Federation, holds_vector
from tests.support.forked_victims import start_victim, words_of
from tests.support.markers import more
from tests.support.storage_victim import (
    BUDGET,
    CHARGE,
    RUN,
    SENT,
    become_second_node,
    charge_for_ever,
    open_without_rights,
    plan_of,
    run_out_of_disk,
    y_of,
)

PLAN, OTHER_PLAN = b"1" * 32, b"2" * 32
MARKER = b"the y that must be forgotten"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "party.db"


@pytest.fixture
def database(path: Path) -> Iterator[PartyDatabase]:
    with PartyDatabase.create(path) as opened:
        yield opened


def files_beside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}*"))


def told(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "acknowledged").read_text().splitlines()]


class TestOpening:
    def test_the_tables_are_those_that_the_program_expects(self, path: Path) -> None:
        PartyDatabase.create(path).close()
        with create_engine(f"sqlite:///{path}").connect() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, SiteRow.metadata) == []
            assert (
                context.get_current_revision() == PartyDatabase.newest
            )  # else every start would look for more

    def test_nobody_else_may_read_its_files(self, database: PartyDatabase, path: Path) -> None:
        Journal(database).begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        names = [file.name for file in files_beside(path)]
        assert names == ["party.db", "party.db-shm", "party.db-wal", "party.db.lock"]
        assert {stat.S_IMODE(file.stat().st_mode) for file in files_beside(path)} == {0o600}

    def test_every_connection_waits_for_the_disk_and_overwrites_what_is_deleted(
        self, database: PartyDatabase
    ) -> None:
        with database.transaction() as connection:
            found = {
                name: connection.execute(text(f"PRAGMA {name}")).scalar()
                for name in ("journal_mode", "synchronous", "secure_delete", "foreign_keys")
            }
        expected = {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "foreign_keys": 1}
        assert found == expected

    def test_a_file_that_could_not_be_written_is_opened_anew(self, database: PartyDatabase) -> None:
        """A connection that was opened meanwhile only reads, for as long as it is kept."""
        with database.transaction() as connection:
            connection.execute(text("PRAGMA query_only = ON"))
        with pytest.raises(StorageError):
            database.require_room()
        database.require_room()

    @pytest.mark.parametrize(
        "url",
        [
            pytest.param("sqlite://", id="in memory"),
            pytest.param("sqlite:///:memory:", id="in memory, by name"),
            pytest.param("postgresql+psycopg://user:secret@host/db", id="another kind"),
            pytest.param("no URL", id="no URL"),
        ],
    )
    def test_it_is_a_file_and_nothing_else(self, url: str) -> None:
        with pytest.raises(StorageError) as caught:
            PartyDatabase(url)
        assert "secret" not in str(caught.value)

    def test_a_folder_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError) as caught:
            PartyDatabase.at(tmp_path / "none" / "party.db")
        assert caught.value.code == "PF-350"
        assert str(tmp_path) not in str(caught.value)

    def test_a_newer_version_is_refused_and_left_as_it_is(self, path: Path) -> None:
        PartyDatabase.create(path).close()
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        engine.dispose()
        before = path.read_bytes()
        with pytest.raises(StorageVersionError) as caught:
            PartyDatabase.at(path)
        assert (caught.value.code, caught.value.got) == ("PF-351", "version 9999")
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        "statements",
        [
            pytest.param([], id="a file of no length"),
            pytest.param(["DROP TABLE alembic_version"], id="without its version"),
            pytest.param(["DELETE FROM alembic_version"], id="with no version"),
            pytest.param(["INSERT INTO alembic_version VALUES ('0000')"], id="with two"),
        ],
    )
    def test_one_that_was_emptied_is_not_made_anew(self, path: Path, statements: list[str]) -> None:
        """It would have forgotten what was answered, and answer it again."""
        PartyDatabase.create(path).close()
        engine = create_engine(f"sqlite:///{path}")
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()
        if not statements:
            path.write_bytes(b"")
        for _ in range(2):  # nor is it at the second try
            with pytest.raises(StorageDamagedError) as caught:
                PartyDatabase.at(path)
            assert caught.value.code == "PF-352"

    def test_a_new_one_takes_nobodys_place(self, database: PartyDatabase, path: Path) -> None:
        with pytest.raises(StorageError) as caught:
            PartyDatabase.create(path)
        assert "tables" in caught.value.got

    def test_a_file_of_something_else_is_refused(self, path: Path) -> None:
        path.write_bytes(b"name,age\n" * 2_000)
        with pytest.raises(StorageDamagedError) as caught:
            PartyDatabase.at(path)
        assert caught.value.code == "PF-352"

    def test_damage_is_found_when_it_is_opened(self, path: Path) -> None:
        with PartyDatabase.create(path) as opened:
            Journal(opened).queries.claim(
                tuple(plan_of(n) for n in range(2_000)), plan_digest=PLAN, claim=SENT
            )
        content = bytearray(path.read_bytes())
        middle = len(content) // 2 // 4096 * 4096
        content[middle : middle + 4096] = os.urandom(4096)
        path.write_bytes(content)
        with pytest.raises(StorageDamagedError):
            PartyDatabase.at(path)

    def test_a_child_that_was_forked_may_not_use_it(
        self, database: PartyDatabase, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = Journal(database)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(JournalStorageError):
            journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        with pytest.raises(StorageError), database.transaction():
            pytest.fail("a transaction was begun")


class TestJournal:
    def test_what_is_erased_is_in_no_file(self, database: PartyDatabase, path: Path) -> None:
        journal = Journal(database)
        ends = {PLAN: 10_000, OTHER_PLAN: 20_000}
        for epoch, (plan, end) in enumerate(ends.items(), start=1):
            journal.begin(run_id=RUN, epoch=epoch, plan_digest=plan)
            journal.keep(plan, ((MARKER + plan) * 2_000,), expires_at=end)
        assert any(MARKER + PLAN in file.read_bytes() for file in files_beside(path))
        journal.erase(PLAN)
        assert not any(MARKER + PLAN in file.read_bytes() for file in files_beside(path))
        assert any(MARKER + OTHER_PLAN in file.read_bytes() for file in files_beside(path))
        journal.sweep(now=20_000)
        assert not any(MARKER in file.read_bytes() for file in files_beside(path))

    def test_what_a_reader_held_back_is_gone_after_the_next_start(
        self, database: PartyDatabase, path: Path
    ) -> None:
        journal = Journal(database)
        journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.keep(PLAN, (MARKER * 2_000,), expires_at=10_000)
        reader = create_engine(f"sqlite:///{path}").connect()
        reader.exec_driver_sql("BEGIN")
        assert reader.exec_driver_sql("SELECT count(*) FROM vectors").scalar() == 1
        with database.transaction() as connection:  # a checkpoint waits for it as long as this says
            connection.execute(text("PRAGMA busy_timeout=50"))
        journal.erase(PLAN)
        assert journal.find(PLAN) is None
        reader.close()
        Journal(database)
        assert not any(MARKER in file.read_bytes() for file in files_beside(path))

    def test_a_y_that_was_changed_is_damage(self, database: PartyDatabase) -> None:
        journal = Journal(database)
        journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)
        journal.keep(PLAN, (b"y",), expires_at=10_000)
        with database.transaction() as connection:
            connection.execute(update(VectorRow).values(frame=b"z"))
        with pytest.raises(JournalDamagedError):
            journal.find(PLAN)

    def test_it_is_open_once_and_the_next_is_told(
        self, database: PartyDatabase, path: Path
    ) -> None:
        Journal(database)
        with PartyDatabase.at(path) as other:
            with pytest.raises(JournalLockedError):
                Journal(other)
            database.close()
            Journal(other)

    def test_a_closed_journal_writes_nothing(self, path: Path) -> None:
        with PartyDatabase.create(path) as opened:
            journal = Journal(opened)
        with pytest.raises(JournalStorageError):
            journal.begin(run_id=RUN, epoch=1, plan_digest=PLAN)


class TestLedger:
    def test_it_is_there_again(self, database: PartyDatabase, path: Path) -> None:
        Journal(database)
        store = LedgerStore(database, budget=BUDGET)
        for number in range(5):
            store.save(store.load().reserve(str(number), CHARGE))
        ledger = store.load().commit("1", CHARGE, bytes(32)).forfeit("3")
        store.save(ledger)
        database.close()
        with PartyDatabase.at(path) as again:
            assert LedgerStore(again).load() == ledger
            assert LedgerStore(again, budget=BUDGET).load() == ledger

    def test_a_charge_writes_its_own_row_alone(self, database: PartyDatabase) -> None:
        Journal(database)
        store = LedgerStore(database, budget=BUDGET)
        for number in range(10):
            store.save(store.load().reserve(str(number), CHARGE))
        written: list[int] = []

        def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
            if " entries " in statement and not statement.startswith("SELECT"):
                written.append(parameters[0])

        with database.transaction() as connection:
            event.listen(connection.engine, "before_cursor_execute", note)
        store.save(store.load().commit("4", CHARGE, bytes(32)).reserve("new", CHARGE))
        assert written == [4, 10]

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda ledger: BUDGET, id="a charge is left out"),
            pytest.param(
                lambda ledger: BUDGET.reserve("kept", CHARGE).cancel("kept"), id="a charge is freed"
            ),
            pytest.param(lambda ledger: BUDGET.reserve("other", CHARGE), id="another charge"),
            pytest.param(
                lambda ledger: PrivacyLedger.for_life(51.0, 1e-6), id="a budget that grew"
            ),
        ],
    )
    def test_no_charge_is_lost_and_no_budget_changed(
        self, database: PartyDatabase, change: Any
    ) -> None:
        Journal(database)
        store = LedgerStore(database, budget=BUDGET)
        ledger = BUDGET.reserve("kept", CHARGE).forfeit("kept")
        store.save(ledger)
        with pytest.raises(RecordError) as caught:
            store.save(change(ledger))
        assert caught.value.code == "PF-354"
        assert store.load() == ledger == LedgerStore(database).load()

    def test_another_budget_at_the_next_start_is_refused(self, database: PartyDatabase) -> None:
        LedgerStore(database, budget=BUDGET)
        with pytest.raises(RecordError):
            LedgerStore(database, budget=PrivacyLedger.for_life(500.0, 1e-6))

    def test_there_is_none_before_the_first_start(self, database: PartyDatabase) -> None:
        with pytest.raises(RecordError):
            LedgerStore(database)

    def test_only_the_node_charges_and_others_see_the_newest(
        self, database: PartyDatabase, path: Path
    ) -> None:
        Journal(database)
        store = LedgerStore(database, budget=BUDGET)
        with PartyDatabase.at(path) as other:
            reader = LedgerStore(other)
            with pytest.raises(StorageError):
                reader.save(BUDGET.reserve("by another", CHARGE))
            for number in range(2):
                store.save(store.load().reserve(str(number), CHARGE))
                assert reader.load() == store.load()

    @pytest.mark.parametrize(
        "record", [pytest.param("{}", id="no record"), pytest.param("[", id="no JSON")]
    )
    def test_an_entry_that_cannot_be_read_is_damage(
        self, database: PartyDatabase, record: str
    ) -> None:
        LedgerStore(database, budget=BUDGET)
        with database.transaction() as connection:
            connection.execute(insert(EntryRow).values(number=0, entry_id="odd", record=record))
        with pytest.raises(StorageDamagedError):
            LedgerStore(database).load()


class KilledError(BaseException):
    """The node's process ends here."""


class MortalDatabase(PartyDatabase):
    """A database whose process dies at one of its transactions, before it is stored or after."""

    passed = 0
    fatal = -1
    stores_it = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        self.passed += 1
        dies = self.passed == self.fatal
        with super().transaction() as connection:
            yield connection
            if dies and not self.stores_it:
                raise KilledError
        if dies:
            raise KilledError


def move_in(federation: Federation, place: int, database: PartyDatabase) -> None:
    """Give a party its journals in a database."""
    node = federation.nodes[place]
    node._journal = Journal(database)
    node._ledger = LedgerStore(database, budget=PrivacyLedger.for_life(5.0, 1e-5))
    node._round = node._new_round()


class TestKilled:
    @pytest.mark.slow
    def test_a_node_that_dies_between_any_two_writes_sent_nothing_uncharged(
        self, tmp_path: Path
    ) -> None:
        deaths, answered = 0, 0
        for number in range(100):
            for stores_it in (False, True):
                folder = tmp_path / f"{number} {stores_it}"
                folder.mkdir()
                died, sent = self._die_at(number, folder / "party.db", stores_it=stores_it)
                deaths += died
                answered += sent
                if not died:
                    break
            if not died:
                break
        assert not died  # every place was tried, up to a batch that nobody disturbed
        assert deaths >= 10
        assert answered >= 1  # and some had stored a y that went out again, charged

    def _die_at(self, number: int, path: Path, *, stores_it: bool) -> tuple[bool, bool]:
        federation = Federation()
        mortal = MortalDatabase.create(path)
        move_in(federation, 0, mortal)
        federation.run.set_up()
        plans: list[bytes] = []

        def on_query(node: int, packet: bytes) -> bytes:
            if node == 0:
                plans.append(packet)
            return packet

        federation.transport.on_query = on_query
        mortal.fatal, mortal.stores_it = mortal.passed + 1 + number, stores_it
        died = False
        try:
            federation.ask(0, 1)
        except KilledError:
            died = True
        if not died:
            return False, False
        assert not any(
            node == 0 and holds_vector(answer) for node, answer in federation.transport.answers
        )
        mortal.close()
        with PartyDatabase.at(path) as again:
            move_in(federation, 0, again)
            federation.restart(0)
            answer = federation.nodes[0].receive(plans[0])
            with again.transaction() as connection:
                plans = connection.execute(select(PlanRow)).all()
                begun = {row.plan_digest for row in plans if row.epoch}
                kept = {row.plan_digest for row in connection.execute(select(VectorRow))}
                claims = {row.plan_digest for row in plans if row.claim}
            charged = {
                bytes.fromhex(entry.entry_id)
                for entry in federation.nodes[0].ledger.entries
                if entry.charged is not None
            }
            assert kept <= begun <= charged
            assert claims <= charged
            assert not holds_vector(answer) or kept
            return True, holds_vector(answer)

    @pytest.mark.parametrize("life", [0, more(1), more(2)])
    def test_a_process_killed_in_a_stream_of_charges_loses_nothing(
        self, tmp_path: Path, life: int
    ) -> None:
        child = start_victim(charge_for_ever, tmp_path)
        file = tmp_path / "acknowledged"
        while not file.exists() or not file.stat().st_size:
            time.sleep(0.01)
            assert child.is_alive()
        time.sleep(0.031 * life)
        child.kill()
        child.join()
        steps = told(tmp_path)
        assert steps
        with PartyDatabase.at(tmp_path / "party.db") as database:
            journal, ledger = Journal(database), LedgerStore(database, budget=BUDGET).load()
            charged = {entry.entry_id for entry in ledger.entries}
            for word, number in steps:
                plan = plan_of(int(number))
                assert plan.hex() in charged
                if word == "kept":
                    assert journal.find(plan) == (y_of(int(number)),)
                if word != "charged":
                    assert journal.queries.claims_of([plan]) == [SENT]
                    with pytest.raises(KeyReuseError):
                        journal.begin(run_id=RUN, epoch=10**6, plan_digest=plan)
            # What the last step had not been told of is whole or not there.
            last = plan_of(len({number for _, number in steps}) + 1)
            assert journal.find(last) in (None, (y_of(len({number for _, number in steps}) + 1),))

    def test_a_second_process_may_look_but_not_be_the_node(self, tmp_path: Path) -> None:
        with PartyDatabase.create(tmp_path / "party.db") as database:
            Journal(database)
            store = LedgerStore(database, budget=BUDGET)
            store.save(store.load().reserve("one", CHARGE))
            assert words_of(become_second_node, tmp_path).split() == ["True", "PF-331"]

    @pytest.mark.parametrize("stays_open", [False, True])
    def test_a_second_opening_in_one_process_loses_no_commit(
        self, database: PartyDatabase, path: Path, *, stays_open: bool
    ) -> None:
        """SQLite's locks are a process's: closing any descriptor of the file drops them all."""
        Journal(database)
        store = LedgerStore(database, budget=BUDGET)
        with closing(PartyDatabase.at(path)) as second:
            if not stays_open:
                second.close()
            assert words_of(become_second_node, path.parent).split() == ["False", "PF-331"]
            store.save(store.load().reserve("kept", CHARGE))
            assert words_of(become_second_node, path.parent).split() == ["True", "PF-331"]

    def test_a_full_disk_stops_a_write_and_not_what_was_written(self, tmp_path: Path) -> None:
        words_of(run_out_of_disk, tmp_path)
        *steps, failed, last = told(tmp_path)
        assert (failed, last) == (["failed", "PF-333"], ["begun", "10000"])
        assert len(steps) > 10
        with PartyDatabase.at(tmp_path / "party.db") as database:
            journal = Journal(database)
            for word, number in steps:
                with pytest.raises(KeyReuseError):
                    journal.begin(run_id=RUN, epoch=10**6, plan_digest=plan_of(int(number)))
                if word == "kept":
                    assert journal.find(plan_of(int(number))) == (y_of(int(number)),)
            assert journal.counter == len(steps) + 1

    def test_a_read_only_database_is_refused(self) -> None:
        # A folder that everybody may enter: who may write everything becomes somebody else.
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            PartyDatabase.create(folder / "party.db").close()
            for file in (*files_beside(folder / "party.db"), folder):
                file.chmod(0o555 if file.is_dir() else 0o444)
            said = words_of(open_without_rights, folder)
            folder.chmod(0o755)
        assert said.startswith("PF-350 ")
        assert name not in said


def test_a_database_in_memory_is_gone_with_its_last_user() -> None:
    database = PartyDatabase.in_memory()
    with database.transaction() as connection:
        connection.execute(text("SELECT 1"))
    left = weakref.ref(database)
    del database, connection
    gc.collect()
    assert left() is None

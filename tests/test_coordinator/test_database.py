"""A coordinator's database, of two kinds: killed, full, read-only, taken over, too new."""

from __future__ import annotations

import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, select, text

from coordinator.database import (
    Database,
    ReleasedAnswers,
    RunAttempt,
    RunStore,
    SqlCoordinatorJournal,
    ledger_rows,
)
from coordinator.database import federation_database as engine_module
from coordinator.database.federation_schema import (
    AnswerRow,
    CoordinatorRow,
    InvitationRow,
    RunBatchRow,
    RunEntryRow,
    RunStepRow,
)
from coordinator.database.run_store import StoredBatch
from coordinator.errors import (
    CoordinatorError,
    DatabaseError,
    DatabaseVersionError,
    RunDamagedError,
    RunLockedError,
)
from coordinator.runs.queue import RunQueue
from coordinator.runs.stages import BatchStage
from pate_fed.charges import RunLedger
from pate_fed.nodes import database as node_database
from pate_fed.nodes.database import put
from pate_fed.queries import QueryPool
from pate_fed.releases import ABSTAIN, NoisyRelease, Outcome
from protocols.rounds.contribution import Contribution
from protocols.rounds.coordinator_journal import (
    ContributionsFixed,
    PlanCertified,
    PlanOpened,
    PlanProposed,
    PlanSettled,
    RunEnded,
    Step,
)
from tests.support import postgres
from tests.support.database_victim import (
    MEMBERS,
    ONE,
    POOL,
    TASK,
    TERMS,
    empty_ledger,
    label_of,
    open_without_rights,
    opened,
    release_for_ever,
    release_next,
    release_of,
    run_out_of_disk,
    store_of,
)
from tests.support.federation import Federation
from tests.support.forked_victims import start_victim, words_of
from tests.support.killing import NOON, KilledError, MortalFederation, failing_commits
from tests.support.markers import more, sampled
from tests.test_coordinator.test_resume import check

SENT = (Contribution(b"d" * 32), None)
STEPS = [
    PlanOpened(b"p" * 40),
    PlanProposed(b"s" * 50, SENT),
    PlanCertified(b"v" * 60),
    ContributionsFixed(SENT),
    RunEnded(b"c" * 99),
]
OpenDatabase = Callable[..., Database]


@pytest.fixture
def runs(database: Database) -> RunQueue:
    minutes = count()
    return RunQueue(database, clock=lambda: NOON + timedelta(minutes=next(minutes)))


@pytest.fixture
def run(runs: RunQueue) -> RunAttempt:
    runs.add("run", "{}")
    return runs.take_up("run")


@pytest.fixture
def store(run: RunAttempt) -> RunStore:
    return store_of(run)


class TestOpening:
    @sampled()
    def test_the_tables_are_those_that_the_program_expects(
        self, database: Database, database_url: str
    ) -> None:
        engine = create_engine(database_url)
        with engine.connect() as connection:
            context = MigrationContext.configure(connection)
            assert compare_metadata(context, CoordinatorRow.metadata) == []
            assert (
                context.get_current_revision() == Database.newest
            )  # else every start would look for more
        engine.dispose()

    def test_many_that_open_it_at_once_upgrade_it_once(
        self, database_url: str, open_database: OpenDatabase
    ) -> None:
        with as_it_was(database_url, "0001"):
            pass
        with ThreadPoolExecutor(4) as threads:
            opened_ones = list(
                threads.map(partial(open_database, upgrades=True), [database_url] * 4)
            )
        for each in opened_ones:
            RunQueue(each, clock=lambda: NOON).add(secrets.token_hex(4), "{}")
        assert len(RunQueue(opened_ones[0], clock=lambda: NOON).all()) == 4

    def test_one_of_an_older_version_is_brought_up_to_date_by_nobody_who_only_reads(
        self, database: Database, database_url: str, open_database: OpenDatabase
    ) -> None:
        with database.session() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '0000'"))
        for _ in range(2):
            with pytest.raises(DatabaseVersionError, match="upgrade") as caught:
                open_database(database_url)
            assert caught.value.code == "PF-441"
            assert "version 0000" in caught.value.got

    def test_that_it_can_be_written_is_tried_without_a_trace(
        self, database: Database, database_url: str
    ) -> None:
        RunQueue(database, clock=lambda: NOON).add("run", "{}")
        database.try_to_write()
        engine = create_engine(database_url)
        with engine.connect() as connection:
            [version] = connection.execute(
                text("SELECT version_num FROM alembic_version")
            ).scalars()
            assert version == Database.newest
        engine.dispose()

    def test_one_that_others_hold_for_long_is_said_to_be_busy_and_is_free_again(
        self,
        database: Database,
        database_url: str,
        open_database: OpenDatabase,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(node_database, "_PRAGMAS", ("busy_timeout=50",))
        monkeypatch.setattr(engine_module, "PATIENCE_S", 0.05)
        other = open_database(database_url)
        with database.transaction(), pytest.raises(DatabaseError, match="free"):  # noqa: SIM117
            with other.transaction():
                pytest.fail("two at once")
        other.try_to_write()

    def test_a_row_that_is_put_again_keeps_its_other_columns(self, database: Database) -> None:
        row = {"token_digest": bytes(32), "party": "north", "made_at": NOON, "expires_at": NOON}
        other = {**row, "token_digest": bytes([1]) * 32}
        with database.transaction() as connection:
            put(connection, InvitationRow, {**row, "used_at": NOON}, {**other, "used_at": NOON})
            put(connection, InvitationRow, {**row, "party": "west"})
            put(connection, InvitationRow)
            found = {each.party: each for each in connection.execute(select(InvitationRow))}
        assert set(found) == {"north", "west"}
        assert all(each.used_at is not None for each in found.values())

    def test_a_newer_version_is_refused(self, database: Database, database_url: str) -> None:
        with database.session() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(DatabaseVersionError) as caught:
            Database(database_url)
        assert (caught.value.code, caught.value.got) == ("PF-441", "version 9999")

    @sampled()
    @pytest.mark.parametrize(
        "statement",
        [
            pytest.param("DROP TABLE alembic_version", id="without its version"),
            pytest.param("DELETE FROM alembic_version", id="with no version"),
            pytest.param("INSERT INTO alembic_version VALUES ('0000')", id="with two"),
        ],
    )
    def test_one_that_was_emptied_is_not_taken_for_a_new_one(
        self, database: Database, database_url: str, statement: str
    ) -> None:
        """It would know no member, and nothing that was answered or charged."""
        database.close()
        engine = create_engine(database_url)
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()
        for _ in range(2):  # nor is it at the second try
            with pytest.raises(DatabaseError) as caught:
                Database(database_url)
            assert caught.value.code == "PF-440"

    def test_one_without_tables_is_not_taken_for_a_new_one(
        self, database_url: str, tmp_path: Path
    ) -> None:
        if database_url.startswith("sqlite"):
            (tmp_path / "coordinator.db").touch()
        for _ in range(2):
            with pytest.raises(DatabaseError, match="earlier"):
                Database(database_url)

    def test_a_file_that_is_gone_is_not_made_anew(self, tmp_path: Path) -> None:
        with pytest.raises(DatabaseError, match="earlier"):
            Database(f"sqlite:///{tmp_path / 'coordinator.db'}")
        assert not any(tmp_path.iterdir())

    def test_a_new_federation_takes_nobodys_database(
        self, database: Database, database_url: str
    ) -> None:
        RunQueue(database, clock=lambda: NOON).add("run", "{}")
        with pytest.raises(DatabaseError, match="empty"):
            Database(database_url, is_new=True)
        assert [run.name for run in RunQueue(database, clock=lambda: NOON).all()] == ["run"]

    def test_a_file_is_its_owners_alone(self, tmp_path: Path, open_database: OpenDatabase) -> None:
        open_database(f"sqlite:///{tmp_path / 'c.db'}", is_new=True)
        modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        assert modes == {0o600}

    def test_a_commit_is_on_disk_when_it_returns(
        self, database: Database, database_url: str
    ) -> None:
        with database.session() as session:
            if database_url.startswith("sqlite"):
                found = [
                    session.execute(text(f"PRAGMA {name}")).scalar()
                    for name in ("journal_mode", "synchronous", "foreign_keys")
                ]
                assert found == ["wal", 2, 1]
            else:
                assert session.execute(text("SHOW synchronous_commit")).scalar() == "on"

    @pytest.mark.parametrize(
        "url",
        [
            pytest.param("no URL", id="no URL"),
            pytest.param("sqlite:////no/such/folder/secret.db", id="no folder"),
            pytest.param("postgresql+psycopg://a:secret@127.0.0.1:1/db", id="nobody listens"),
            pytest.param("unknown+driver://a:secret@host/db", id="unknown kind"),
        ],
    )
    def test_what_cannot_be_opened_is_one_coded_line_without_the_url(self, url: str) -> None:
        with pytest.raises(DatabaseError) as caught:
            Database(url)
        assert caught.value.code == "PF-440"
        assert "secret" not in str(caught.value)


class TestAServerThatLetsNobodyIn:
    """A wrong password is no server that is away: who reads that looks in the wrong place."""

    @pytest.mark.parametrize(
        ("user", "database", "said"),
        [
            pytest.param(f"{postgres.ASKED}:wrong-7", "postgres", "refuses", id="another password"),
            pytest.param(postgres.ASKED, "postgres", "no password", id="no password"),
            pytest.param("unknown:wrong-7", "postgres", "refus", id="a user it does not know"),
            pytest.param(f"{postgres.SHUT_OUT}:wrong-7", "postgres", "refus", id="turned away"),
            pytest.param(f"{postgres.ASKED}:right-7", "none", "name", id="no such"),
        ],
    )
    def test_it_is_said_plainly_and_without_the_password(
        self,
        cluster: postgres.Cluster,
        user: str,
        database: str,
        said: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.delenv("PGPASSWORD", raising=False)
        monkeypatch.setenv("PGPASSFILE", "/no/such/file")
        cluster.let_in(postgres.ASKED, password="right-7")
        cluster.let_in(postgres.SHUT_OUT, password="right-7")
        with pytest.raises(DatabaseError) as caught:
            Database(cluster.url(database).replace("pate@", f"{user}@"))
        error = caught.value
        assert (error.code, said in error.got) == ("PF-440", True), error
        assert "reachable" not in error.must
        assert "-7" not in str(error)

    def test_one_that_is_away_is_said_to_be_away(self, tmp_path: Path) -> None:
        pytest.importorskip("psycopg")
        for place in (f"/db?host={tmp_path}", "127.0.0.1:1/db"):
            with pytest.raises(DatabaseError, match="reachable") as caught:
                Database(f"postgresql://a:secret@{place}")
            assert "secret" not in str(caught.value)


class TestTakingOver:
    """Two processes that work on one run: the later one counts."""

    def test_who_opened_it_before_can_store_nothing(
        self, runs: RunQueue, run: RunAttempt, store: RunStore
    ) -> None:
        journal = SqlCoordinatorJournal(run)
        journal.append(STEPS[0])
        release_next(store, 0)
        ledger, asked = store.ledger(), StoredBatch(1, (1,), store.ledger().left)
        reserved = ledger.reserve(asked.entry_id, ONE)
        later = runs.take_up("run")
        newer = store_of(later)
        for write in (
            lambda: journal.append(STEPS[1]),
            lambda: store.save_asked(reserved, asked),
            lambda: store.save_run_id(b"r" * 32),
            lambda: store.statements.save({b"p" * 32: b"f"}),
            lambda: store.save_release(ledger, batch=0, release=release_of(0)),
        ):
            with pytest.raises(RunLockedError):
                write()
        # Nothing of it is stored, and it does not believe that it were.
        assert store.ledger() == newer.ledger() == ledger
        again = store_of(runs.take_up("run"))
        assert again.ledger() == ledger
        assert (again.run_id(), again.statements.frames()) == (b"", {})
        assert list(again.releases()) == list(again.asked()) == [0]
        assert SqlCoordinatorJournal(runs.take_up("run")).steps() == (STEPS[0],)

    def test_the_later_one_has_the_day_on_which_the_first_began(self, database: Database) -> None:
        day = iter(range(9))
        runs = RunQueue(database, clock=lambda: NOON + timedelta(days=next(day)))
        runs.add("run", "{}")
        begun = runs.take_up("run").begun_on()
        assert begun == (NOON + timedelta(days=1)).date()
        assert runs.take_up("run").begun_on() == begun

    def test_the_later_one_goes_on(self, runs: RunQueue, store: RunStore) -> None:
        release_next(store, 0)
        newer = store_of(runs.take_up("run"))
        release_next(newer, 1)
        assert list(newer.releases()) == [0, 1]


class TestSteps:
    def test_they_are_there_again_in_order(self, run: RunAttempt, runs: RunQueue) -> None:
        journal = SqlCoordinatorJournal(run)
        for step in STEPS:
            journal.append(step)
        assert SqlCoordinatorJournal(runs.take_up("run")).steps() == tuple(STEPS) == journal.steps()
        runs.add("another", "{}")
        assert SqlCoordinatorJournal(runs.take_up("another")).steps() == ()

    def test_a_step_that_is_missing_or_unreadable_is_damage(
        self, run: RunAttempt, database: Database
    ) -> None:
        for step in STEPS:
            SqlCoordinatorJournal(run).append(step)
        with database.session() as session:
            row = session.get(RunStepRow, (run.attempt, 1))
            assert row is not None
            body, row.body = row.body, b"\xff"
        with pytest.raises(RunDamagedError):
            SqlCoordinatorJournal(run)
        with database.session() as session:
            row = session.get(RunStepRow, (run.attempt, 1))
            assert row is not None
            row.body = body
            session.delete(session.get(RunStepRow, (run.attempt, 0)))
        with pytest.raises(RunDamagedError):
            SqlCoordinatorJournal(run)


class TestResults:
    def test_a_release_that_cannot_be_stored_leaves_its_charge_open(
        self, store: RunStore, runs: RunQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = StoredBatch(0, (0,), store.ledger().left)
        store.save_asked(store.ledger().reserve(asked.entry_id, ONE), asked)
        charged = store.ledger().commit(asked.entry_id, ONE, release_of(0).digest)

        def fail(*_: object) -> Any:
            raise DatabaseError("the database must store what it is given", "a full disk")

        # The last thing that the transaction does: ledger and batch are written already.
        monkeypatch.setattr(RunStore, "_answers", fail)
        with pytest.raises(DatabaseError):
            store.save_release(charged, batch=0, release=release_of(0))
        monkeypatch.undo()
        again = store_of(runs.take_up("run"))
        for each in (store, again):
            assert each.releases() == {}
            assert [state.value for state in each.ledger().states] == ["reserved"]

    def test_a_change_writes_its_own_rows_alone(
        self, store: RunStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(5):
            release_next(store, number)
        written: list[int] = []

        def noted(connection: Any, table: Any, row: dict[str, Any]) -> None:
            written.append(row["number"])
            put(connection, table, row)

        monkeypatch.setattr(ledger_rows, "put", noted)
        release_next(store, 5)
        assert written == [5] * 2  # reserved, then charged

    def test_an_entry_is_never_lost(self, store: RunStore) -> None:
        release_next(store, 0)
        with pytest.raises(RunDamagedError):
            store.save_void(empty_ledger(), batch=0, is_freed=False)
        assert len(store.ledger().states) == 1

    def test_results_of_other_caps_are_refused(self, store: RunStore, runs: RunQueue) -> None:
        release_next(store, 0)
        other = RunLedger.of(
            Federation(terms={**TERMS, "max_asks": 9_999, "max_answers": 9_999}).run.terms
        )
        with pytest.raises(RunDamagedError):
            RunStore(runs.take_up("run"), other, pool=POOL, task_digest=TASK, members=MEMBERS)

    @sampled()
    @pytest.mark.parametrize("harm", ["gap", "unreadable"])
    def test_a_ledger_that_does_not_fit_is_damage(
        self, store: RunStore, runs: RunQueue, database: Database, harm: str
    ) -> None:
        for number in range(2):
            release_next(store, number)
        with database.session() as session:
            row = session.get(RunEntryRow, (1, 0))
            assert row is not None
            if harm == "gap":
                session.delete(row)
            else:
                row.record = "{}"
        with pytest.raises(RunDamagedError):
            store_of(runs.take_up("run"))

    def test_runs_do_not_mix_and_statements_are_shared(
        self, store: RunStore, runs: RunQueue
    ) -> None:
        release_next(store, 0)
        store.statements.save({b"a" * 32: b"frame"})
        runs.add("another", "{}")
        other = store_of(runs.take_up("another"))
        assert (other.releases(), other.asked()) == ({}, {})
        assert other.ledger() == empty_ledger()
        assert other.statements.frames() == {b"a" * 32: b"frame"}


class TestAnswers:
    """A query that was answered once is answered from the store."""

    def test_labels_and_no_answers_are_known_apart_and_what_nobody_looked_at_is_not(
        self, store: RunStore, database: Database
    ) -> None:
        outcomes = [Outcome.ANSWERED, Outcome.REFUSED, Outcome.NOT_ASKED]
        release = NoisyRelease(np.array([2, ABSTAIN, ABSTAIN]), np.array(outcomes, dtype=np.int8))
        indices = (7, 3, 5)
        store.save_asked(store.ledger(), StoredBatch(0, indices, store.ledger().left))
        store.save_release(store.ledger(), batch=0, release=release)
        queries = POOL.ask((3, 5, 7, 9)).digests
        found = ReleasedAnswers(database).find(queries, task_digest=TASK, members=MEMBERS[::-1])
        known = {query: each.label for query, each in found.items()}
        assert known == {
            queries[0]: None,
            queries[2]: 2,
        }
        assert {(answer.run, answer.batch) for answer in found.values()} == {("run", 0)}

    def test_other_members_and_other_tasks_have_other_answers(
        self, store: RunStore, database: Database
    ) -> None:
        release_next(store, 0)
        answers, queries = ReleasedAnswers(database), POOL.ask((0,)).digests
        assert answers.find(queries, task_digest=TASK, members=MEMBERS)
        for members in (MEMBERS[:1], (*MEMBERS, b"c" * 32)):
            assert not answers.find(queries, task_digest=TASK, members=members)
        assert not answers.find(queries, task_digest=b"u" * 32, members=MEMBERS)
        other = QueryPool(POOL.inputs[3::-1])  # rows removed, and in another order
        assert answers.find(other.ask((3,)).digests, task_digest=TASK, members=MEMBERS)

    def test_the_first_answer_of_all_runs_counts(
        self, store: RunStore, runs: RunQueue, database: Database
    ) -> None:
        release_next(store, 4)
        runs.add("another", "{}")
        other = store_of(runs.take_up("another"))
        release_next(other, 4)
        release_next(other, 5)
        queries = POOL.ask((4, 5)).digests
        found = ReleasedAnswers(database).find(queries, task_digest=TASK, members=MEMBERS)
        assert [found[query].run for query in queries] == ["run", "another"]

    def test_many_queries_are_looked_up_at_once(self, store: RunStore, database: Database) -> None:
        indices = tuple(range(2_000))
        labels = np.arange(2_000) % 3
        release = NoisyRelease(labels, np.full(2_000, Outcome.ANSWERED, dtype=np.int8))
        store.save_asked(store.ledger(), StoredBatch(0, indices, store.ledger().left))
        store.save_release(store.ledger(), batch=0, release=release)
        queries = POOL.ask(tuple(range(3_000))).digests
        found = ReleasedAnswers(database).find(queries, task_digest=TASK, members=MEMBERS)
        assert [found[query].label for query in queries[:2_000]] == labels.tolist()
        assert len(found) == 2_000


def told(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "acknowledged").read_text().splitlines()]


def check_releases(store: RunStore, database: Database, released: list[int]) -> None:
    """Every release that was acknowledged is there, charged; nothing is there by half."""
    kept = store.releases()
    assert set(released) <= set(kept)
    for number, (_, release) in kept.items():
        assert release.digest == release_of(number).digest
    states = [state.value for state in store.ledger().states]
    assert states[: len(kept)] == ["committed"] * len(kept)
    assert states[len(kept) :] in ([], ["reserved"])
    found = ReleasedAnswers(database).find(
        POOL.ask(tuple(kept)).digests, task_digest=TASK, members=MEMBERS
    )
    assert [answer.label for answer in found.values()] == [label_of(number) for number in kept]
    with database.session() as session:
        assert session.query(AnswerRow).count() == len(kept)


class TestKilled:
    @pytest.mark.parametrize("life", [0, more(1)])
    def test_a_process_killed_in_a_stream_of_releases_loses_nothing(
        self, database: Database, database_url: str, tmp_path: Path, life: int
    ) -> None:
        RunQueue(database, clock=lambda: NOON).add("run", "{}")
        child = start_victim(release_for_ever, database_url, tmp_path)
        file = tmp_path / "acknowledged"
        while not file.exists() or not file.stat().st_size:
            time.sleep(0.01)
            assert child.is_alive()
        time.sleep(0.1 + 0.037 * life)
        child.kill()
        child.join()
        released = [int(number) for _, number in told(tmp_path)]
        assert released
        check_releases(opened(database), database, released)

    def test_a_full_disk_stops_a_release_and_not_what_was_released(
        self, tmp_path: Path, open_database: OpenDatabase
    ) -> None:
        url = f"sqlite:///{tmp_path / 'coordinator.db'}"
        database = open_database(url, is_new=True)
        RunQueue(database, clock=lambda: NOON).add("run", "{}")
        words_of(run_out_of_disk, url, tmp_path)
        *steps, failed = told(tmp_path)
        assert failed == ["failed", "PF-440"]
        assert len(steps) > 3
        store = opened(database)
        check_releases(store, database, [int(number) for _, number in steps])
        assert store.run_id() == b"there is room again"

    def test_a_read_only_database_is_refused(self) -> None:
        # A folder that everybody may enter: who may write everything becomes somebody else.
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = folder / "coordinator.db"
            Database(f"sqlite:///{file}", is_new=True).close()
            file.chmod(0o444)
            folder.chmod(0o555)
            said = words_of(open_without_rights, f"sqlite:///{file}")
            folder.chmod(0o755)
        assert said.startswith("PF-440 ")
        assert name not in said


class TestFederation:
    """Whole runs whose coordinator dies and comes back from its database alone."""

    @sampled()
    def test_a_coordinator_on_postgresql_goes_on(self, database: Database, tmp_path: Path) -> None:
        self._live(database, tmp_path, BatchStage.CERTIFIED)

    def _live(self, database: Database, folder: Path, stage: BatchStage) -> None:
        kind = "noise at the coordinator"
        url = database._engine.url.render_as_string(hide_password=False)
        federation = MortalFederation(folder, kind=kind, form="masked", url=url)
        federation.run.set_up()
        federation.passed.clear()
        federation._since = 0
        deaths: list[BatchStage] = []

        def dies(number: int, passed: BatchStage) -> bool:
            if passed is stage and not deaths:
                deaths.append(passed)
                return True
            return False

        federation.is_fatal = dies
        federation.live()
        check(federation, kind, "masked")
        members = [each.fingerprint for each in federation.identities]
        for indices, release in federation.released.items():
            found = ReleasedAnswers(database).find(
                federation.pool.ask(indices).digests,
                task_digest=TASK,
                members=members,
            )
            labels = [None if label == ABSTAIN else label for label in release.labels.tolist()]
            assert [answer.label for answer in found.values()] == labels


class TestTogether:
    """A charge and the step of the protocol that it is for are one transaction, or none."""

    TABLES = (RunEntryRow, RunBatchRow, RunStepRow, AnswerRow)

    @pytest.fixture
    def federation(self, database: Database, tmp_path: Path) -> MortalFederation:
        return self.begun(database, tmp_path, "noise at the coordinator")

    def begun(self, database: Database, folder: Path, kind: str) -> MortalFederation:
        url = database._engine.url.render_as_string(hide_password=False)
        federation = MortalFederation(folder, kind=kind, form="additive", url=url)
        federation.run.set_up()
        federation.ask(0)
        return federation

    def rows(self, database: Database) -> list[list[tuple[Any, ...]]]:
        """All that is stored of the run: charges, batches, steps, released answers."""
        with database.session() as session:
            tables = [kind.__table__ for kind in self.TABLES]
            return [sorted(map(tuple, session.execute(each.select())), key=repr) for each in tables]

    def fail_after(
        self, federation: MortalFederation, stage: BatchStage, indices: list[int]
    ) -> None:
        """Ask a batch; from a stage on nothing can be stored."""
        with ExitStack() as stack:

            def fill(number: int, passed: BatchStage) -> bool:
                if passed is stage:
                    stack.enter_context(failing_commits(federation.database))
                return False

            federation.is_fatal = fill
            with pytest.raises(DatabaseError):
                federation.ask(*indices)
        federation.is_fatal = lambda number, passed: False

    def go_on(self, federation: MortalFederation) -> NoisyRelease | None:
        """What a process does that starts where the database can be written again."""
        federation.bury()
        federation.resume()
        return federation.run.finish()

    def steps_of(self, federation: MortalFederation) -> list[type[Step]]:
        return [type(step) for step in federation.journal.steps()]

    @sampled()
    def test_a_charge_is_there_with_its_plan(
        self, federation: MortalFederation, database: Database
    ) -> None:
        before = self.rows(database)
        with failing_commits(federation.database), pytest.raises(DatabaseError):
            federation.ask(2)
        assert self.rows(database) == before
        assert self.go_on(federation) is not None  # the batch before
        assert federation.coordinator_states == ["committed"]
        assert self.steps_of(federation)[-1] is PlanSettled
        assert federation.ask(2).answered == 1
        assert federation.coordinator_states == ["committed"] * 2
        federation.bury()

    @sampled()
    def test_both_are_there_before_anybody_is_asked(self, federation: MortalFederation) -> None:
        federation.is_fatal = lambda number, stage: stage is BatchStage.PLANNED
        with pytest.raises(KilledError):
            federation.ask(2)
        federation.is_fatal = lambda number, stage: False
        federation.bury()
        federation.resume()
        assert federation.coordinator_states == ["committed", "reserved"]
        assert federation.run.round.open_plan.plan.batch == 1
        federation.run.finish()
        federation.bury()

    @sampled()
    def test_a_release_is_there_with_its_settlement(
        self, federation: MortalFederation, database: Database
    ) -> None:
        before = self.rows(database)
        self.fail_after(federation, BatchStage.DECIDED, [2])
        after = self.rows(database)
        assert after[3] == before[3]  # no answer is there
        assert list(federation.stored(federation_ledger(federation)).releases()) == [0]
        release = self.go_on(federation)
        assert release is not None
        assert federation.coordinator_states == ["committed"] * 2
        assert self.steps_of(federation).count(PlanSettled) == 2
        assert [each.is_released for each in federation.run.round.settled] == [True, True]
        federation.bury()

    @sampled()
    def test_a_release_that_was_not_stored_has_no_settlement(
        self, federation: MortalFederation
    ) -> None:
        self.fail_after(federation, BatchStage.DECIDED, [2])
        federation.bury()
        federation.resume()
        assert self.steps_of(federation)[-2:] == [PlanOpened, ContributionsFixed]
        assert federation.coordinator_states == ["committed", "reserved"]
        assert [each.plan.batch for each in federation.run.round.settled] == [0]
        federation.run.finish()
        federation.bury()

    @sampled()
    def test_a_void_batch_is_there_with_its_settlement(self, federation: MortalFederation) -> None:
        federation.on_vectors_of(1, lambda answer: None)
        self.fail_after(federation, BatchStage.ANSWERED, [2])
        federation.bury()
        federation.transport.on_answer = lambda node, answer: answer
        federation.resume()
        assert self.steps_of(federation)[-1] is PlanOpened
        assert federation.coordinator_states == ["committed", "reserved"]
        release = federation.run.finish()  # nothing of it was void yet
        assert release is not None
        assert federation.coordinator_states == ["committed"] * 2
        federation.bury()

    @sampled()
    def test_an_error_inside_takes_everything_back(
        self, run: RunAttempt, store: RunStore, runs: RunQueue
    ) -> None:
        journal, ledger = SqlCoordinatorJournal(run), store.ledger()
        asked = StoredBatch(0, (0,), ledger.left)

        def write_both() -> None:
            with store.together():
                store.save_asked(ledger.reserve(asked.entry_id, ONE), asked)
                journal.append(STEPS[0])
                raise RunLockedError("a step must fit", "none")

        with pytest.raises(RunLockedError):
            write_both()
        later = runs.take_up("run")
        again = store_of(later)
        assert (again.asked(), again.ledger()) == ({}, ledger)
        assert SqlCoordinatorJournal(later).steps() == ()


def federation_ledger(federation: MortalFederation) -> RunLedger:
    """The run's ledger, empty."""
    return RunLedger.of(federation.run.terms)


class TestRestored:
    """Yesterday's copy in the place of the coordinator's database."""

    @sampled()
    @pytest.mark.parametrize("form", ["additive", "masked"])
    def test_hospitals_give_a_coordinator_that_went_back_nothing_new(
        self, tmp_path: Path, form: str
    ) -> None:
        federation = MortalFederation(tmp_path, kind="noise at the coordinator", form=form)
        federation.run.set_up()
        federation.ask(0)
        url = copied(federation.database, tmp_path / "copy.db")
        for query in (2, 6):  # with the second plan they hear of the first one's end
            federation.ask(query)
        votes = [federation.votes_of(place) for place in range(len(federation.nodes))]
        sent, charged = len(federation.ys()), federation.nodes[0].ledger
        federation.bury()
        federation.url = url
        federation.resume()
        federation.run.finish()
        assert list(federation.store.releases()) == [0]  # it knows nothing of the second
        for query in (2, 4):  # the one that was answered, and another
            with pytest.raises(CoordinatorError):
                federation.ask(query)
        assert list(federation.store.releases()) == [0]
        assert [federation.votes_of(place) for place in range(len(federation.nodes))] == votes
        assert len(federation.ys()) == sent
        assert federation.nodes[0].ledger.used_share() >= charged.used_share()


def copied(database: Database, file: Path) -> str:
    """Copy a database that is in use, as the how-to says; return the copy's URL."""
    engine = create_engine(f"sqlite:///{database._engine.url.database}")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"VACUUM INTO '{file}'")
    engine.dispose()
    return f"sqlite:///{file}"


@contextmanager
def as_it_was(url: str, revision: str) -> Iterator[Connection]:
    """Make a database as an older version left it."""
    made = create_engine(url)
    with made.begin() as connection:
        config = Database.migrations()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        yield connection
    made.dispose()

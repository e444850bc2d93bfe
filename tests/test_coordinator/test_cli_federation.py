"""The operator's commands of a federation: words, invitations, runs, exit codes."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sqlite3
import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from coordinator.cli import following
from coordinator.database import Database
from coordinator.database.federation_schema import InvitationRow
from coordinator.federation.home import FederationHome
from coordinator.monitoring import Monitor
from coordinator.operator import Coordinator
from coordinator.runs.queue import Progress, RunState
from protocols.fingerprint_words import spoken
from protocols.invitation import Invitation
from tests.support import postgres
from tests.support.command import Command, pate_fed
from tests.support.deployed import CLASSES, LABEL, TEACHERS, write_public_table
from tests.support.loopback_home import free_ports
from tests.support.markers import sampled
from tests.support.worked import Worked
from tests.test_coordinator.test_monitoring import Asked

__all__ = ["pate_fed"]


@pytest.fixture
def home(pate_fed: Command, tmp_path: Path) -> Path:
    folder = tmp_path / "federation"
    ended = pate_fed(
        *("init", "--name", "lung study", "--address", "coordinator.example.org:8443"),
        *("--home", folder),
    )
    assert ended.code == 0, ended.err
    return folder


def test_init_shows_the_words_of_the_federation_and_keeps_keys_to_itself(
    pate_fed: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "fed"
    shown = pate_fed(
        *("init", "--name", "x", "--address", "h.example.org:9000", "--home", folder),
        *("--format", "json"),
    ).json
    made = FederationHome.open(folder)
    assert shown["words"] == spoken(made.fingerprint)
    assert made.settings.port == 9000
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("ca.key", "server.key", "identity.key", "superlink.secret"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_init_refuses_to_overwrite(pate_fed: Command, home: Path) -> None:
    before = (home / "identity.key").read_bytes()
    ended = pate_fed("init", "--name", "other", "--address", "h.org:1", "--home", home)
    assert (ended.code, ended.error_code) == (5, "PF-432")
    assert (home / "identity.key").read_bytes() == before


def test_an_invitation_is_a_secret_file_with_the_federations_words(
    pate_fed: Command, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "north.json"
    shown = pate_fed("invite", "North", "--out", out, "--home", home, "--format", "json").json
    invitation = Invitation.from_json(out.read_text())
    assert shown["words"] == spoken(invitation.fingerprint)
    assert shown["words"] == spoken(FederationHome.open(home).fingerprint)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_an_invitation_that_is_out_stays_good_where_its_file_is_in_the_way(
    pate_fed: Command, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "east.json"
    assert pate_fed("invite", "East", "--out", out, "--home", home).code == 0
    before = out.read_bytes()
    again = pate_fed("invite", "East", "--out", out, "--home", home)
    assert (again.code, again.error_code) == (2, "PF-105")
    assert "choose --out" in again.err
    assert out.read_bytes() == before
    with (
        closing(Database(FederationHome.open(home).database_url)) as database,
        database.session() as session,
    ):
        (row,) = session.scalars(select(InvitationRow)).all()
        assert row.expires_at - row.made_at == timedelta(days=7)


def test_invitations_are_listed_and_one_that_takes_anothers_place_says_so(
    pate_fed: Command, tmp_path: Path
) -> None:
    federation = Worked(tmp_path, names=("North",))  # who used its invitation
    federation.coordinator.close()
    home = ("--home", federation.coordinator.home.folder)
    first = pate_fed("invite", "East", "--out", tmp_path / "1.json", *home, "--format", "json").json
    assert first["replaces"] is None
    assert pate_fed("invite", "East", "--out", tmp_path / "2.json", *home).code == 0
    third = pate_fed("invite", "East", "--out", tmp_path / "3.json", *home, "--format", "json").json
    listed = pate_fed("members", *home, "--format", "json").json["invitations"]
    assert [(one["name"], one["is_open"], bool(one["used_at"])) for one in listed] == [
        *(("North", False, True), ("East", False, False), ("East", False, False)),
        ("East", True, False),
    ]
    assert third["replaces"] == listed[2]["made_at"]
    shown = pate_fed("members", *home).out.partition("Invitations:\n")[2].splitlines()
    assert [line.split()[0] for line in shown] == [one["name"] for one in listed]


def test_an_invitation_is_withdrawn_before_anybody_used_it(
    pate_fed: Command, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "east.json"
    pate_fed("invite", "Östra", "--out", out, "--home", home)
    decomposed = unicodedata.normalize("NFD", "Östra")
    shown = pate_fed("revoke", decomposed, "--home", home, "--format", "json").json
    assert shown["state"] == "withdrawn"
    again = pate_fed("revoke", "Östra", "--home", home)
    assert (again.code, again.error_code) == (3, "PF-433")
    [listed] = pate_fed("members", "--home", home, "--format", "json").json["invitations"]
    assert not listed["is_open"]
    other = ("--out", tmp_path / "again.json", "--home", home, "--format", "json")
    assert pate_fed("invite", "Östra", *other).json["replaces"] is None


@pytest.mark.parametrize("days", ["nan", "0", "-1", "30.5", "1e9", "inf"])
def test_an_invitation_lasts_a_while_and_not_for_ever(
    pate_fed: Command, home: Path, tmp_path: Path, days: str
) -> None:
    out = tmp_path / "east.json"
    ended = pate_fed("invite", "East", "--days", days, "--out", out, "--home", home)
    assert (ended.code, ended.error_code) == (2, "PF-105")
    assert not out.exists()


def test_the_certificate_is_renewed_with_the_key_from_the_safe_alone(
    pate_fed: Command, home: Path, tmp_path: Path
) -> None:
    key, away = home / "ca.key", tmp_path / "safe"
    key.rename(away)
    ended = pate_fed("renew", "--home", home)
    assert (ended.code, ended.error_code) == (5, "PF-432")
    assert "ca.key" in ended.err
    for content in (b"no key", FederationHome.open(home).server_key):
        key.write_bytes(content)
        key.chmod(0o644)
        others = pate_fed("renew", "--home", home)
        assert (others.error_code, "chmod 600" in others.err) == ("PF-432", True)
        key.chmod(0o600)
        assert pate_fed("renew", "--home", home).error_code == "PF-431"
    key.write_bytes(away.read_bytes())
    before = FederationHome.open(home).fingerprint
    assert pate_fed("renew", "--home", home, "--format", "json").json["days"] > 390
    assert FederationHome.open(home).fingerprint == before


def test_a_database_of_the_environment_that_is_another_is_refused_before_anything_is_made(
    pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATE_FED_DATABASE_URL", "postgresql://db.example.org/other")
    ended = pate_fed(
        *("init", "--name", "lung study", "--address", "h.example.org:8443"),
        *("--database", "postgresql://db.example.org/mine", "--home", tmp_path / "fed"),
    )
    assert (ended.code, ended.error_code) == (5, "PF-432")
    assert not (tmp_path / "fed").exists()


def test_other_words_approve_nobody_and_the_right_ones_do(
    pate_fed: Command, tmp_path: Path
) -> None:
    federation = Worked(tmp_path)
    folder = federation.coordinator.home.folder
    federation.join("East")
    federation.coordinator.close()
    words = {
        one["name"]: one["words"]
        for one in pate_fed("members", "--home", folder, "--format", "json").json["members"]
    }
    ended = pate_fed("approve", "East", "--words", words["North"], "--home", folder)
    assert (ended.code, ended.error_code) == (3, "PF-433")
    fewer = pate_fed(
        "approve", "East", "--words", words["East"].rsplit(maxsplit=1)[0], "--home", folder
    )
    assert (fewer.code, fewer.error_code) == (3, "PF-433")
    assert "must be 12" in fewer.err
    spelled = words["East"].upper().replace("  ", ", ")
    approved = pate_fed(
        "approve", "East", "--words", spelled, "--home", folder, "--format", "json"
    ).json
    # Nobody serves here: its node is let in later.
    assert (approved["state"], approved["votes"], approved["is_let_in"]) == ("member", 0, False)
    again = pate_fed("approve", "East", "--words", spelled, "--home", folder)
    assert (again.code, again.error_code) == (3, "PF-433")
    assert "East" in again.err
    shown = pate_fed("members", "--home", folder, "--format", "json").json["members"]
    assert {one["name"]: one["votes"] for one in shown} == {
        **dict.fromkeys(("North", "South", "West"), TEACHERS),
        "East": 0,
    }
    assert f"member, {TEACHERS} votes" in pate_fed("members", "--home", folder).out
    revoked = pate_fed("revoke", "East", "--home", folder, "--format", "json").json
    assert revoked["state"] == "revoked"


def test_a_run_without_members_is_refused(pate_fed: Command, home: Path, tmp_path: Path) -> None:
    table = write_public_table(tmp_path / "public.csv")
    ended = pate_fed(
        *("run", "--queries", table, "--label", LABEL, "--classes", ",".join(CLASSES)),
        *("--name", "first", "--home", home),
    )
    assert (ended.code, ended.error_code) == (3, "PF-240")
    assert pate_fed("status", "--home", home, "--format", "json").json == {
        "missing": [],
        "runs": [],
    }


def test_status_says_what_keeps_a_service_from_an_open_run(
    pate_fed: Command, tmp_path: Path
) -> None:
    """Where nothing can be stored, no run can say so itself."""
    metrics, health = free_ports(2)
    home = ("--home", tmp_path / "federation")
    pate_fed(
        *("init", "--name", "lung study", "--address", "coordinator.example.org:8443", *home),
        *("--metrics-port", metrics, "--health-port", health),
    )
    federation = Worked(tmp_path, home=FederationHome.open(home[1]))
    federation.ask()

    def missing() -> list[str]:
        shown: list[str] = pate_fed("status", *home, "--format", "json").json["missing"]
        lines = [one for one in pate_fed("status", *home).out.splitlines() if one[0] != " "]
        assert lines[1:] == shown  # below the run's own
        return shown

    assert ["pate-fed serve" in one for one in missing()] == [True]
    asked = Asked(parts=dict.fromkeys(("certificate", "database", "superlink", "worker"), True))
    monitor = Monitor(asked.probe, metrics_port=metrics, health_port=health)
    monitor.start()
    try:
        assert missing() == []
        asked.parts["database"] = False
        assert ["[PF-440]" in one for one in missing()] == [True]
        asked.parts.update(superlink=False, worker=False, certificate=False)
        assert len(missing()) == 4
        pate_fed("stop", "first", *home)
        federation.work()
        assert missing() == []  # nothing is left to be done
    finally:
        monitor.stop()
        federation.coordinator.close()


def test_a_run_is_queued_paused_resumed_and_stopped_without_a_service(
    pate_fed: Command, tmp_path: Path
) -> None:
    federation = Worked(tmp_path)
    folder = federation.coordinator.home.folder
    federation.coordinator.close()
    asked = pate_fed(
        *("run", "--queries", federation.queries, "--label", LABEL, "--ask", 8),
        *("--classes", ",".join(CLASSES), "--name", "first", "--home", folder, "--detach"),
        *("--epsilon", 100, "--mechanism", "gnmax", "--sigma2", 3, "--format", "json"),
    )
    assert asked.json["state"] == "queued"
    with closing(Coordinator.open(folder)) as coordinator:
        request = json.loads(coordinator.queue.request("first"))
    assert len(request["queries"]) == 8
    assert [one["teachers"] for one in request["parties"]] == [10, 10, 10]
    assert (folder / "pools" / request["pool"]).read_bytes() == federation.task.to_bytes()
    for command, state in (("pause", "paused"), ("resume", "queued"), ("stop", "stopping")):
        shown = pate_fed(command, "first", "--home", folder, "--format", "json").json
        assert shown["state"] == state
    again = pate_fed("resume", "first", "--home", folder)
    assert (again.code, again.error_code) == (2, "PF-446")
    export = pate_fed("export", "first", "--out", tmp_path / "out", "--home", folder)
    assert (export.code, export.error_code) == (2, "PF-446")


def test_a_run_above_its_budget_is_refused_with_what_fits_and_nothing_is_queued(
    pate_fed: Command, tmp_path: Path
) -> None:
    federation = Worked(tmp_path)
    asked = (
        *("run", "--queries", federation.queries, "--label", LABEL, "--name", "first", "--detach"),
        *("--classes", ",".join(CLASSES), "--home", federation.coordinator.home.folder),
        *("--epsilon", 2, "--vote-threshold", 15, "--sigma2", 8, "--batch-size", 1),
    )
    ended = pate_fed(*asked, "--ask", 30)
    assert (ended.code, ended.out, ended.error_code) == (3, "", "PF-131")
    found = re.search(r"at most (\d+) quer", ended.err)
    assert found is not None
    assert federation.coordinator.queue.all() == []
    assert list(federation.coordinator.home.path("pools").iterdir()) == []
    assert pate_fed(*asked, "--ask", found[1]).code == 0
    request = federation.request()
    assert (request.settings.rule.mechanism, len(request.queries)) == ("threshold", int(found[1]))
    federation.coordinator.close()


class TestFollowing:
    """Who follows a run sees how far it is, and nothing twice."""

    @pytest.fixture
    def shown(
        self, pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[], str]:
        """Ask for a run, and follow it while somebody works on it."""
        federation = Worked(tmp_path)
        queue, home = federation.coordinator.queue, federation.coordinator.home.folder
        done = Progress(queries=8, epsilon=1.25)
        further = replace(done, batches=2, void=1, answered=4, share=0.5)
        steps: Iterator[Callable[[], object]] = iter(
            [
                lambda: queue.enter("first", RunState.RUNNING),
                lambda: queue.note("first", done),
                lambda: queue.note("first", replace(done, exchanges=5)),
                lambda: queue.note("first", further),
                lambda: queue.note("first", replace(further, exchanges=9)),
                lambda: queue.enter("first", RunState.WAITING, "waits for North"),
                lambda: queue.enter("first", RunState.RUNNING),
                lambda: queue.enter("first", RunState.WAITING, "waits for North"),
                lambda: queue.enter("first", RunState.DONE),
            ]
        )

        def work(_: float) -> None:
            next(steps)()

        monkeypatch.setattr(following, "follow", partial(following.follow, sleep=work))

        def show() -> str:
            ended = pate_fed(
                *("run", "--queries", federation.queries, "--label", LABEL, "--ask", 8),
                *("--classes", ",".join(CLASSES), "--name", "first", "--home", home),
                *("--epsilon", 100, "--mechanism", "gnmax", "--sigma2", 3, "--format", "json"),
            )
            federation.coordinator.close()
            assert ended.code == 0
            assert ended.json["state"] == "done"
            return ended.err

        return show

    def test_a_file_has_a_line_for_each_change(self, shown: Callable[[], str]) -> None:
        task, price, service, *rest = shown().splitlines()
        assert "public.csv" in task
        assert "epsilon" in price
        assert "pate-fed serve" in service
        none, far = ["0", "0", "0", "8", "1.25", "0.0"], ["2", "1", "4", "0", "8", "1.25", "50.0"]
        assert [re.findall(r"[a-z]+", line)[2] for line in rest] == [
            *("queued", "running", "running", "running", "waiting", "done")
        ]
        assert [re.findall(r"[\d.]+", line) for line in rest] == [[], [], none, far, far, far]
        assert rest[4].endswith(": waits for North")

    def test_a_terminal_has_one_line_that_changes(
        self, shown: Callable[[], str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coordinator.cli.terminal._is_terminal", lambda stream: True)
        monkeypatch.setenv("COLUMNS", "60")
        _, _, *lines = shown().splitlines(keepends=True)
        said = "".join(lines[1:]).split("\r\x1b[K")
        assert [one.split()[-1:] for one in said[:3]] == [[], ["queued"], ["running"]]
        assert [one.endswith("…") for one in said[3:]] == [True] * 3 + [False]
        assert all(len(one.rstrip("\n")) < 60 for one in said)
        assert said[-1].endswith("\n")
        assert said[-1].count("\n") == 1


class TestExportAfterARestore:
    """The folder `runs` was not in the backup: the database and the pools were."""

    @pytest.fixture
    def federation(self, tmp_path: Path) -> Iterator[Worked]:
        made = Worked(tmp_path)
        made.ask()
        assert made.work().state is RunState.DONE
        made.ask("second")
        assert made.work("second").progress.from_store == 12
        yield made
        made.coordinator.close()

    @pytest.mark.slow
    @sampled()
    @pytest.mark.parametrize("name", ["first", "second"])
    def test_it_is_written_anew_and_what_is_lost_is_said(
        self, pate_fed: Command, federation: Worked, tmp_path: Path, name: str
    ) -> None:
        folder = federation.coordinator.home.folder
        before, after = tmp_path / "before", tmp_path / "after"
        shown = pate_fed(
            "export", name, "--out", before, "--home", folder, "--format", "json", "--private"
        )
        assert shown.json["written_anew"] is False
        shutil.rmtree(folder / "runs")
        known = federation.coordinator.queue.find(name)
        shown = pate_fed("export", name, "--out", after, "--home", folder, "--private")
        assert shown.code == 0, shown.err
        assert federation.coordinator.queue.find(name).as_table() | {"updated_at": ""} == (
            known.as_table() | {"updated_at": ""}
        )
        parts = {path.relative_to(before) for path in before.rglob("*") if path.is_file()}
        parts -= {Path("sent.csv")}  # the database does not hold it
        assert {path.relative_to(after) for path in after.rglob("*") if path.is_file()} == parts
        same = {"labels.csv", "privacy.json", "manifest.json", "run.toml", "transcript.jsonl"}
        for file in same & {str(path) for path in parts}:
            assert (before / file).read_bytes() == (after / file).read_bytes(), file
        warnings = json.loads((after / "metrics.json").read_text())["warnings"]
        assert any("database" in one for one in warnings)
        if name == "first":  # the other one asked nobody
            sent = [row.split(",") for row in (before / "sent.csv").read_text().splitlines()[1:]]
            votes = {row[0] for row in sent if row[2] == "MaskedVector"}
            assert votes == {one.name for one in federation.coordinator.enrollment.parties()}
            assert pate_fed("transcript", "verify", after).code == 0
        again = tmp_path / "again"
        shown = pate_fed("export", name, "--out", again, "--home", folder, "--format", "json")
        assert (shown.json["written_anew"], shown.json["edition"]) == (False, "public")
        written = "".join(one.read_text() for one in again.iterdir() if one.is_file())
        assert not any(one.name in written for one in federation.coordinator.enrollment.parties())
        assert "PUBLIC EDITION" in written

    @pytest.mark.slow
    def test_without_the_pool_it_is_said_what_is_missing(
        self, pate_fed: Command, federation: Worked, tmp_path: Path
    ) -> None:
        folder = federation.coordinator.home.folder
        shutil.rmtree(folder / "runs")
        shutil.rmtree(folder / "pools")
        ended = pate_fed("export", "first", "--out", tmp_path / "out", "--home", folder)
        assert (ended.code, ended.error_code) == (2, "PF-445")
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_a_run_that_goes_on_is_not_written(
        self, pate_fed: Command, federation: Worked, tmp_path: Path
    ) -> None:
        federation.ask("third", queries=4)
        folder = federation.coordinator.home.folder
        ended = pate_fed("export", "third", "--out", tmp_path / "out", "--home", folder)
        assert (ended.code, ended.error_code) == (2, "PF-446")
        assert ended.err.endswith(" queued\n")


def test_a_folder_that_is_no_federation_is_said_to_be_none(
    pate_fed: Command, tmp_path: Path
) -> None:
    for command in (("status",), ("members",), ("invite", "North"), ("serve",), ("renew",)):
        ended = pate_fed(*command, "--home", tmp_path)
        assert (ended.code, "PF-432" in ended.err) == (5, True)


def test_only_who_says_so_brings_an_older_database_up_to_date(
    pate_fed: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "coordinator.db"

    def version() -> str:
        with closing(sqlite3.connect(file)) as opened:
            return str(opened.execute("SELECT version_num FROM alembic_version").fetchone()[0])

    upgraded: list[str | None] = []
    monkeypatch.setattr(Database, "_upgrade", lambda *_, found: upgraded.append(found))
    with closing(sqlite3.connect(file)) as opened, opened:
        opened.execute("UPDATE alembic_version SET version_num = '0000'")
    for command in (
        *(["members"], ["status"], ["invite", "North", "--out", tmp_path / "north.json"]),
        *(["revoke", "North"], ["stop", "first"], ["export", "first", "--out", tmp_path / "out"]),
    ):
        ended = pate_fed(*command, "--home", home)
        assert (ended.code, ended.error_code) == (1, "PF-441"), ended.err
        assert "pate-fed upgrade" in ended.err
    assert (version(), upgraded) == ("0000", [])
    assert pate_fed("upgrade", "--home", home).code == 0
    assert upgraded == ["0000"]


class TestPostgresql:
    """A federation on a PostgreSQL server, whose password nobody gets to see."""

    PASSWORD = "correct-horse-7"
    INIT = ("init", "--name", "lung study", "--address", "coordinator.example.org:8443")

    def with_password(self, url: str) -> str:
        return url.replace("pate@", f"pate:{self.PASSWORD}@").replace("+psycopg", "")

    def test_a_password_on_the_command_line_is_refused(
        self, pate_fed: Command, tmp_path: Path
    ) -> None:
        url = self.with_password("postgresql+psycopg://pate@db.example.org/pate")
        ended = pate_fed(*self.INIT, "--home", tmp_path / "fed", "--database", url)
        assert (ended.code, "PF-105" in ended.err) == (2, True)
        assert "PATE_FED_DATABASE_URL" in ended.err
        assert self.PASSWORD not in ended.err + ended.out
        assert not (tmp_path / "fed").exists()

    def test_a_file_beside_the_folder_is_refused(self, pate_fed: Command, tmp_path: Path) -> None:
        ended = pate_fed(*self.INIT, "--home", tmp_path / "fed", "--database", "sqlite:///x.db")
        assert (ended.code, ended.error_code) == (2, "PF-105")
        assert not (tmp_path / "fed").exists()

    def test_a_server_that_is_not_there_leaves_no_folder_behind(
        self, pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("psycopg")
        url = self.with_password(f"postgresql+psycopg://pate@/none?host={tmp_path}")
        monkeypatch.setenv("PATE_FED_DATABASE_URL", url)
        ended = pate_fed(*self.INIT, "--home", tmp_path / "fed")
        assert "PF-440" in ended.err
        assert self.PASSWORD not in ended.err + ended.out
        assert not (tmp_path / "fed").exists()

    @pytest.mark.slow
    def test_a_run_goes_through_on_it_and_the_password_is_kept_nowhere(
        self,
        pate_fed: Command,
        tmp_path: Path,
        cluster: postgres.Cluster,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        url = self.with_password(cluster.new_database())
        monkeypatch.setenv("PATE_FED_DATABASE_URL", url)
        folder = tmp_path / "federation"
        said = [pate_fed(*self.INIT, "--home", folder)]
        federation = Worked(tmp_path, home=FederationHome.open(folder))
        federation.ask()
        run = federation.work()
        assert (run.state.value, run.progress.answered) == ("done", 12), run.reason
        federation.ask("second")
        assert federation.work("second").progress.from_store == 12
        for command in ("status", "members"):
            said.append(pate_fed(command, "--home", folder))
        federation.coordinator.close()
        assert [one.code for one in said] == [0, 0, 0]
        assert "second" in said[1].out
        assert not list(folder.glob("*.db"))
        written = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        shown = "".join(one.out + one.err for one in said) + caplog.text
        shown += repr(federation.coordinator.home.settings)
        assert self.PASSWORD not in shown
        assert not any(self.PASSWORD.encode() in content for content in written)
        monkeypatch.setenv("PATE_FED_DATABASE_URL", cluster.new_database())
        ended = pate_fed("status", "--home", folder)
        assert (ended.code, ended.error_code) == (5, "PF-432")

"""What goes wrong at a hospital: nothing leaves, no charge is lost, none doubled, it says why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from sqlalchemy import event

from coordinator.errors import CoordinatorError, VoidBatchError
from party.doctor import FAIL, OK, WARN, PartyProbes, examine_standing
from party.errors import JoinError, NodeStartError, Reason, StorageError
from party.site.site import DATABASE_FILE, Site
from party.site.status_file import FILE as STATUS_FILE
from party.site.status_file import FRESH_S, read_status, write_status
from protocols.membership_messages import Membership
from tests.support.federation import holds_vector
from tests.support.hospital_services import audit_of, make_hospitals
from tests.support.hospital_site import SLUG, make_site, with_membership
from tests.support.markers import sampled
from tests.support.storage_victim import NOBODY
from tests.support.whole_federation import no_room
from tests.test_party.test_cli import PateParty, pate_party
from tests.test_party.test_service import (
    MARKER,
    Running,
    charged,
    running,
    stack,
    status_of,
    tampered,
)

__all__ = ["pate_party", "running", "stack"]

ROOT = Path(__file__).parents[2]
WEEK_S = 7 * 86_400.0


def victim(kind: str, folder: Path) -> Any:
    """Let a process of its own come to grief."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.hospital_victim", kind, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def vectors_of(running: Running, place: int, *, since: int) -> int:
    late = running.transport.answers[since:]
    return sum(holds_vector(answer) for node, answer in late if node == place)


def standing(site: Site, **around: Any) -> dict[str, tuple[str, str]]:
    def nobody(_: Site) -> Membership:
        raise JoinError("the coordinator must be reachable", "no network")

    checks = examine_standing(site, PartyProbes(membership=nobody, **around))
    return {check.name: (check.state, check.said) for check in checks}


class TestDisk:
    """A full disk of a whole service is in `tests/test_failures/test_both_services.py`."""

    @pytest.mark.slow
    def test_a_node_whose_database_may_only_be_read_does_not_start_and_says_why(self) -> None:
        with tempfile.TemporaryDirectory() as outer:  # where anybody may pass
            folder = Path(outer)
            folder.chmod(0o755)
            site = make_site(folder / "site")
            if os.geteuid() == 0:
                for path in (site.folder, *site.folder.rglob("*")):
                    os.chown(path, NOBODY, NOBODY)
                os.chown(site.path(DATABASE_FILE), 0, 0)
            site.path(DATABASE_FILE).chmod(0o444)
            told = victim("start_without_rights", site.folder)
        assert told == {"code": "PF-350", "state": "stopped", "trouble": "PF-350"}

    def test_a_database_that_may_not_be_written_any_more(self, running: Running) -> None:
        run = running.set_up(0)
        before, since = charged(running, 0), len(running.transport.answers)
        engine = running.services[0]._database._engine

        def only_read(connection: Any, *_: object) -> None:
            connection.execute("PRAGMA query_only=ON")

        event.listen(engine, "checkout", only_read)
        with pytest.raises((CoordinatorError, StorageError)):  # the app makes a code of the latter
            run.ask((1,))
        assert vectors_of(running, 0, since=since) == 0
        assert charged(running, 0) == before
        assert status_of(running, 0).federations[SLUG].last_fault in ("PF-333", "PF-350")
        event.remove(engine, "checkout", only_read)
        engine.dispose()
        again = running.set_up()
        assert again.ask((2,)).labels.tolist() == [MARKER]
        again.close()
        assert charged(running, 0) == [*before, "committed"]

    def test_a_settlement_that_could_not_be_stored_is_settled_before_anything_else(
        self, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It comes once: the charge would stay reserved at its worst case, for life."""
        run = running.set_up(0)
        before = charged(running, 0)
        assert before == ["reserved"]

        def no_room(*_: object, **__: object) -> None:
            raise StorageError("the disk must have room", "none")

        since = len(running.transport.answers)
        with monkeypatch.context() as patch:
            patch.setattr(running.services[0]._ledger, "save_run", no_room)
            with pytest.raises((CoordinatorError, StorageError)):
                run.ask((1,))
        assert vectors_of(running, 0, since=since) == 0
        assert charged(running, 0) == ["reserved"]
        run.ask((2,))
        assert charged(running, 0)[0] == "committed"
        run.close()
        assert charged(running, 0) == ["committed", "committed"]

    def test_while_nothing_can_be_stored_node_status_and_doctor_say_so(
        self, running: Running, pate_party: PateParty
    ) -> None:
        site, service = running.hospitals.sites[0], running.services[0]
        run = running.set_up(0)
        assert "storing" not in pate_party("status", "--site", site.folder).out
        with no_room(os.getpid()):
            with pytest.raises(CoordinatorError):
                run.ask((1,))
            assert service.status.trouble in ("PF-333", "PF-350")
            running.now += 5
            service.idle()
            assert service.status.trouble == "PF-350"
            assert standing(site)["storing"][0] == FAIL
            shown = pate_party("status", "--site", site.folder).out
            assert "Trouble         storing: " in shown
        running.now += 5
        service.idle()
        assert service.status.trouble == ""
        assert status_of(running, 0).trouble == ""
        assert standing(site)["storing"][0] == OK
        shown = pate_party("status", "--site", site.folder).out
        assert "storing" not in shown
        assert "PF-350" not in shown.partition("Last fault")[0]
        again = running.set_up()
        assert again.ask((2,)).labels.tolist() == [MARKER]

    def test_a_damaged_database_is_not_called_a_full_disk(self, tmp_path: Path) -> None:
        site = make_site(tmp_path / "site")
        site.path(DATABASE_FILE).write_bytes(b"no database" * 1000)
        found = standing(site)
        assert found["database"][0] == FAIL
        assert found["storing"][0] == WARN
        assert "PF-352" in found["storing"][1]

    def test_a_node_finds_out_by_itself_though_nobody_asks(self, running: Running) -> None:
        service = running.services[0]
        with no_room(os.getpid()):
            running.now += FRESH_S
            service.idle()
            assert service.status.trouble == "PF-350"
        running.now += 5
        service.idle()
        assert status_of(running, 0).trouble == ""

    def test_what_the_node_alone_cannot_store_is_its_own_word(
        self, running: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, service = running.hospitals.sites[0], running.services[0]

        def only_the_node() -> None:
            raise StorageError("the disk must have room", "another mount")

        with monkeypatch.context() as patch:
            patch.setattr(service._database, "require_room", only_the_node)
            running.now += FRESH_S
            service.idle()
        around = {"clock": lambda: running.now, "require_room": lambda _: None}
        state, said = standing(site, **around)["storing"]
        assert (state, "node" in said) == (FAIL, True)
        running.now += 5
        service.idle()
        assert standing(site, **around)["storing"][0] == OK

    def test_a_node_that_runs_and_does_not_say_how_it_stands_is_no_stopped_one(
        self, running: Running, pate_party: PateParty
    ) -> None:
        site, service = running.hospitals.sites[0], running.services[0]
        write_status(site.path(STATUS_FILE), replace(service.status, at=time.time() - 600))
        state, said = standing(site)["storing"]
        assert (state, "since" in said) == (WARN, True)
        shown = pate_party("status", "--site", site.folder)
        assert "Node            silent" in shown.out
        service._database.close()
        assert standing(site)["storing"][0] == OK
        assert "Node            stopped" in pate_party("status", "--site", site.folder).out


class TestClock:
    @pytest.mark.slow
    @sampled()
    @pytest.mark.parametrize("jump", [WEEK_S, -WEEK_S], ids=["forward", "back"])
    def test_one_that_jumps_in_a_run_charges_nothing_twice_and_answers_nothing_twice(
        self, running: Running, jump: float
    ) -> None:
        run = running.set_up(0)
        running.jumps[0] = jump
        since = len(running.transport.answers)
        try:
            run.ask((1,))
        except CoordinatorError:
            assert vectors_of(running, 0, since=since) == 0
            status = status_of(running, 0)
            said = status.federations[SLUG]
            assert said.last_fault or said.last_refusal
            assert jump > 0  # a clock that is late only waits longer
        charges = charged(running, 0)
        assert len(charges) <= 2
        running.jumps[0] = 0.0
        again = running.set_up()
        assert again.ask((2,)).labels.tolist() == [MARKER]
        again.close()
        after = charged(running, 0)
        assert after == [*charges, "committed"]
        # What was answered stays answered, and so it is told.
        third = running.set_up()
        with pytest.raises(VoidBatchError, match=Reason.QUERIES):
            third.ask((0,))
        assert audit_of(running.hospitals.sites[0])

    def test_a_status_of_the_future_or_the_past_is_no_sign_of_life(self, running: Running) -> None:
        status = status_of(running, 0)
        assert status.is_alive(now=running.now)
        assert not status.is_alive(now=running.now + WEEK_S)


class TestYesterdaysDatabase:
    def test_the_others_know_better_and_it_stops_with_a_code_until_its_owner_acts(
        self, running: Running, tmp_path: Path
    ) -> None:
        def one_run(index: int) -> None:
            run = running.set_up()
            run.ask((index,))
            run.close()

        one_run(0)
        running.services[0]._database.forget_erased()
        copy = tmp_path / "yesterday.db"
        shutil.copyfile(running.file(0, DATABASE_FILE), copy)
        one_run(1)
        lost = charged(running, 0)
        running.services[0]._database.close()
        for path in running.hospitals.sites[0].folder.glob(f"{DATABASE_FILE}-*"):
            path.unlink()
        shutil.copyfile(copy, running.file(0, DATABASE_FILE))
        running.services[0] = running.transport.doors[0] = running.open(0)
        assert len(charged(running, 0)) == len(lost) - 1
        since = len(running.transport.answers)
        for _ in range(2):
            with pytest.raises(CoordinatorError):
                one_run(1)  # what it answered and does not know any more
        assert vectors_of(running, 0, since=since) == 0
        running.now += 5
        running.services[0].idle()
        assert status_of(running, 0).trouble == "PF-214"
        # So it stays after a start, and the doctor lets nobody start it.
        service = running.restart(0)
        running.now += 5
        service.idle()
        assert status_of(running, 0).trouble == "PF-214"
        state, said = standing(running.hospitals.sites[0])["database"]
        assert (state, "PF-214" in said) == (FAIL, True)


class TestStanding:
    """What `doctor` and `status` say of a site, without a network."""

    def test_at_first_all_is_well_but_that_nobody_was_asked_and_no_peer_checked(
        self, tmp_path: Path
    ) -> None:
        found = standing(make_site(tmp_path / "site"))
        unwell = {name: state for name, (state, _) in found.items() if state != OK}
        assert unwell == {"membership": WARN, "peers": WARN}

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param({"federations": None}, id="a field of another version is not there"),
            pytest.param({"more": 1}, id="one is new"),
            pytest.param({"at": "noon"}, id="one is of another kind"),
            pytest.param({"schema_version": 2}, id="another version"),
        ],
    )
    def test_a_status_of_another_version_keeps_no_node_from_starting(
        self, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        path = make_site(tmp_path / "site").path(STATUS_FILE)
        write_status(path, with_membership("stopped", 1.0, 1, membership="member"))
        record = {**json.loads(path.read_text("utf-8")), **change}
        kept = {name: value for name, value in record.items() if value is not None}
        path.write_text(json.dumps(kept), encoding="utf-8")
        with pytest.raises(NodeStartError):
            read_status(path)
        # Nobody can be asked either: a warning, and a node starts on those.
        assert standing(Site.open(path.parent))["membership"][0] == WARN

    @pytest.mark.parametrize(
        ("left_s", "state"),
        [
            pytest.param(10 * WEEK_S, OK, id="long to go"),
            pytest.param(WEEK_S, WARN, id="soon"),
            pytest.param(-1.0, FAIL, id="ended"),
        ],
    )
    def test_a_certificate_that_ends(self, tmp_path: Path, left_s: float, state: str) -> None:
        site = make_site(tmp_path / "site")
        ca = x509.load_pem_x509_certificate(site.membership().path("ca.crt").read_bytes())
        ends = ca.not_valid_after_utc.timestamp()
        assert standing(site, clock=lambda: ends - left_s)["CA"][0] == state

    def test_an_approved_pool_without_teachers(self, tmp_path: Path) -> None:
        hospitals = make_hospitals(tmp_path)
        hospitals.approve(0)
        state, said = standing(hospitals.sites[0])["approved pools"]
        assert (state, said[:6]) == (WARN, "1 of 1")

    def test_an_audit_log_that_was_changed_is_named_by_its_first_bad_record(
        self, running: Running
    ) -> None:
        tampered(running, 0, "UPDATE audit SET body = x'00' WHERE number = 3")
        state, said = standing(running.hospitals.sites[0])["database"]
        assert state == FAIL
        assert "record 3 " in said
        assert "PF-353" in said

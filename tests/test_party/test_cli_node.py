"""Running a hospital's node at the command line: approve, reject, pause, budget, audit, start."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from party.doctor import Check
from party.owner import open_records
from party.site.own_table import add
from party.site.people_decisions import Approval, ApprovalState, Subject
from party.site.site import DATABASE_FILE, Site
from party.storage import charges_of, is_budget_fixed
from pate_fed.prices import run_price
from pate_fed.public_rows import PublicRows
from pate_fed.wording import epsilon_text
from protocols.invitation import read_audit_head
from protocols.run_scope import RunScope
from protocols.suites import DEFAULT_SUITE
from protocols.values import encode_value
from tests.support.hospital_services import Hospitals, make_hospitals, records_of
from tests.support.hospital_site import LABEL, PATIENT, membership_of
from tests.test_party.test_cli import PateParty, error_code, pate_party
from tests.test_party.test_service import Running, stack, tampered

__all__ = ["pate_party", "stack"]


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return make_hospitals(tmp_path, approval="each run")


@pytest.fixture
def waiting(hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site that refused a run; the coordinator gives out its task."""
    site = hospitals.sites[0]
    members = tuple(sorted(hospitals.members, key=lambda member: member.identity.fingerprint))
    terms = hospitals.terms(members)
    seats = tuple(member.identity.fingerprint for member in members)
    content = encode_value(terms.as_record())
    asking = hospitals.coordinator.public.fingerprint
    scope = RunScope(asking, content, seats, "additive", 32, DEFAULT_SUITE, 3, 1, 0, b"")
    asked: dict[str, Any] = {
        "coordinator": asking,
        "terms": content,
        "seats": seats,
        "form": scope.form,
        "suite": scope.suite,
        "tally": scope.tally,
    }
    with records_of(site) as records:
        records.ask(Subject.POOL, terms.pool_digest, **asked)
        records.ask(Subject.RUN, scope.digest, **asked)
    monkeypatch.setattr(
        "party.site.joining.CoordinatorDoor.fetch_pool",
        lambda self, digest: hospitals.task.to_bytes(),
    )
    return site


def approvals_of(site: Site, state: ApprovalState | None = None) -> tuple[Approval, ...]:
    with records_of(site) as records:
        return records.approvals(state)


def digest_of(site: Site, subject: Subject) -> str:
    [found] = [one for one in approvals_of(site) if one.subject is subject]
    return found.digest.hex()


class TestApprove:
    def test_what_waits_is_said_in_plain_words(
        self, pate_party: PateParty, waiting: Site, hospitals: Hospitals
    ) -> None:
        ended = pate_party("approve", "--site", waiting.folder)
        assert ended.code == 0
        for words in (
            f"{hospitals.task.name}: sick, one of no, yes",
            f", from {len(hospitals.task.columns)} ",
            f"              {', '.join(hospitals.task.columns)}\n",
            "gnmax, ",
            f"additive, sealed with {DEFAULT_SUITE}",
            " 12 queries",
            "epsilon 5; ",
            "With        South",
            "With        West",
        ):
            assert words in ended.out

    def test_what_waits_has_the_one_epsilon_of_the_run_with_its_unit_and_method(
        self, pate_party: PateParty, waiting: Site, hospitals: Hospitals
    ) -> None:
        members = tuple(sorted(hospitals.members, key=lambda member: member.identity.fingerprint))
        cost = run_price(hospitals.terms(members))
        shown = pate_party("approve", "--site", waiting.folder).out
        lines = shown[shown.index("Cost  ") : shown.index("Budget  ")]
        assert f"epsilon {epsilon_text(cost.epsilon)} " in lines
        assert "delta 1e-05" in lines
        assert lines.count("epsilon") == 1
        assert cost.method in lines
        listed = pate_party("approve", "--site", waiting.folder, "--format", "json").out
        found = json.loads(listed)["approvals"]
        assert {one["run_epsilon"] for one in found} == {cost.epsilon}

    def test_all_that_waits_is_listed_and_the_pool_of_a_run_in_short(
        self, pate_party: PateParty, waiting: Site
    ) -> None:
        run, pool = digest_of(waiting, Subject.RUN), digest_of(waiting, Subject.POOL)
        shown = pate_party("approve", "--site", waiting.folder).out
        assert shown.index(f"run {run}") < shown.index(f"pool {pool}")
        assert shown.count("60 public inputs") == 1

    def test_a_run_that_exceeds_the_budget_says_so(
        self, pate_party: PateParty, waiting: Site
    ) -> None:
        waiting.save(replace(waiting.settings, lifetime_epsilon=1.0))
        shown = pate_party("approve", "--site", waiting.folder).out
        assert "STOPPED" in shown
        assert "--epsilon" in shown

    def test_a_column_in_which_own_rows_look_alike_is_shouted(
        self, pate_party: PateParty, waiting: Site, tmp_path: Path
    ) -> None:
        """Patients are far older than all public people."""
        list_it = ("approve", "--site", waiting.folder)
        assert "LOOK ALIKE" not in pate_party(*list_it).out
        header, *lines = Path(waiting.settings.data.file).read_text("utf-8").splitlines()
        cells = [line.split(",") for line in lines]
        place = header.split(",").index("age")
        for row in cells:
            row[place] = str(float(row[place]) + 500)
        older = tmp_path / "older.csv"
        older.write_text("\n".join([header, *map(",".join, cells)]) + "\n", "utf-8")
        add(waiting, older, label=LABEL, patient_id=PATIENT)
        shown = pate_party(*list_it).out
        assert "LOOK ALIKE" in shown
        assert "age: 100" in shown
        pool, run = json.loads(pate_party(*list_it, "--format", "json").out)["approvals"]
        flat = [{"column": "age", "share": 1.0, "why": "beyond"}]
        assert (pool["flat_columns"], run["flat_columns"]) == (flat, flat)
        older.unlink()
        ended = pate_party(*list_it)
        assert (ended.code, "PF-111" in ended.out) == (0, True)

    def test_a_pool_waits_in_full_where_pools_are_approved(
        self, pate_party: PateParty, waiting: Site
    ) -> None:
        pool = digest_of(waiting, Subject.POOL)
        waiting.save(replace(waiting.settings, approval="pool"))
        shown = pate_party("approve", "--site", waiting.folder).out
        assert f"pool {pool}" in shown

    def test_a_list_for_programs_says_which_run_an_approval_is_of(
        self, pate_party: PateParty, waiting: Site, hospitals: Hospitals
    ) -> None:
        digest = digest_of(waiting, Subject.RUN)
        ended = pate_party("approve", "--site", waiting.folder, "--format", "json")
        pool, found = json.loads(ended.out)["approvals"]
        assert (found["digest"], found["run"]) == (digest, "run")
        assert (found["form"], found["suite"]) == ("additive", DEFAULT_SUITE)
        assert pool["run"] == "run"  # the one that asked
        for one in (pool, found):
            assert (one["columns"], one["inputs"]) == (list(hospitals.task.columns), 60)

    def test_a_peer_that_nobody_checked_is_shouted(
        self, pate_party: PateParty, waiting: Site
    ) -> None:
        assert pate_party("peers", "remove", "West", "--site", waiting.folder).code == 0
        ended = pate_party("approve", "--site", waiting.folder)
        assert "NOBODY" in ended.out
        assert "With        West" not in ended.out

    def test_whoever_approves_a_run_approves_its_pool_and_teachers_are_trained_first(
        self, pate_party: PateParty, waiting: Site, hospitals: Hospitals
    ) -> None:
        digest = digest_of(waiting, Subject.RUN)
        ended = pate_party(
            *("approve", digest[:12], "--by", "M. Curie", "--site", waiting.folder), typed="y\n"
        )
        assert ended.code == 0, ended.err
        approvals = approvals_of(waiting)
        assert {(one.subject, one.state, one.decided_by) for one in approvals} == {
            (Subject.POOL, ApprovalState.APPROVED, "M. Curie"),
            (Subject.RUN, ApprovalState.APPROVED, "M. Curie"),
        }
        assert waiting.path("teachers", hospitals.task.digest.hex()).is_dir()
        assert waiting.path("pools", hospitals.task.pool.digest.hex()).is_file()

    def test_the_public_inputs_can_be_read_before_they_are_approved(
        self, pate_party: PateParty, waiting: Site, hospitals: Hospitals, tmp_path: Path
    ) -> None:
        """The rows that teachers would get, not a file that the operator sends beside them."""
        asked = ("approve", digest_of(waiting, Subject.RUN)[:12], "--site", waiting.folder)
        file = tmp_path / "queries.csv"
        ended = pate_party(*asked, "--queries", file)
        assert (ended.code, "60 public inputs" in ended.out) == (0, True)
        assert file.read_text("utf-8") == "".join(hospitals.task.rows.csv_lines())
        assert len(approvals_of(waiting, ApprovalState.PENDING)) == 2
        for others, place in (((), file), ((), tmp_path / "no" / "file"), (("--yes",), tmp_path)):
            refused = pate_party(*asked, *others, "--queries", place)
            assert (refused.code, error_code(refused)) == (2, "PF-302")
        refused = pate_party("approve", "--site", waiting.folder, "--queries", tmp_path / "x.csv")
        assert (refused.code, error_code(refused)) == (2, "PF-302")

    def test_a_full_disk_leaves_no_part_of_the_public_inputs(
        self,
        pate_party: PateParty,
        waiting: Site,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def some(rows: PublicRows) -> Iterator[str]:
            yield ",".join(rows.columns) + "\n"
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(PublicRows, "csv_lines", some)
        asked = ("approve", digest_of(waiting, Subject.RUN), "--site", waiting.folder)
        ended = pate_party(*asked, "--queries", tmp_path / "queries.csv")
        assert (ended.code, error_code(ended)) == (2, "PF-302")
        assert not (tmp_path / "queries.csv").exists()

    def test_at_a_terminal_each_is_asked_about(
        self, pate_party: PateParty, waiting: Site, hospitals: Hospitals
    ) -> None:
        digest = digest_of(waiting, Subject.RUN)
        ended = pate_party("approve", "--site", waiting.folder, typed="n\n", at_terminal=True)
        assert ended.code == 0
        assert f"pate-party reject {digest[:16]}" in ended.err
        assert len(approvals_of(waiting, ApprovalState.PENDING)) == 2
        ended = pate_party("approve", "--site", waiting.folder, typed="y\n", at_terminal=True)
        assert f"Approved: run {digest[:16]}" in ended.out
        assert len(approvals_of(waiting, ApprovalState.APPROVED)) == 2

    def test_nobody_there_approves_nothing(self, pate_party: PateParty, waiting: Site) -> None:
        ended = pate_party("approve", digest_of(waiting, Subject.RUN), "--site", waiting.folder)
        assert (ended.code, error_code(ended)) == (3, "PF-348")
        assert not list(waiting.path("teachers").iterdir())
        assert len(approvals_of(waiting, ApprovalState.PENDING)) == 2

    def test_a_task_of_another_pool_is_not_approved(
        self,
        pate_party: PateParty,
        waiting: Site,
        hospitals: Hospitals,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        content = bytearray(hospitals.task.to_bytes())
        content[-1] ^= 1  # one bit of one public input
        monkeypatch.setattr(
            "party.site.joining.CoordinatorDoor.fetch_pool", lambda self, digest: bytes(content)
        )
        ended = pate_party(
            "approve", digest_of(waiting, Subject.RUN), "--yes", "--site", waiting.folder
        )
        assert (ended.code, error_code(ended)) == (5, "PF-360")
        assert len(approvals_of(waiting, ApprovalState.PENDING)) == 2

    @pytest.mark.parametrize(
        "digest", [pytest.param("00", id="too short"), pytest.param("0" * 64, id="unknown")]
    )
    def test_a_digest_must_be_one_of_those_listed(
        self, pate_party: PateParty, waiting: Site, digest: str
    ) -> None:
        ended = pate_party("approve", digest, "--yes", "--site", waiting.folder)
        assert (ended.code, error_code(ended)) == (5, "PF-371")

    def test_reject_takes_an_approval_back(self, pate_party: PateParty, waiting: Site) -> None:
        digest = digest_of(waiting, Subject.RUN)
        assert pate_party("approve", digest, "--yes", "--site", waiting.folder).code == 0
        assert pate_party("reject", digest, "--site", waiting.folder).code == 0
        with records_of(waiting) as records:
            decided = records.decided()
        assert (len(decided.approved_runs), len(decided.approved_pools)) == (0, 1)


class TestPauseBudgetAudit:
    @pytest.fixture
    def ran(self, tmp_path: Path, stack) -> Running:  # type: ignore[no-untyped-def]
        hospitals = make_hospitals(tmp_path)
        hospitals.approve_all()
        running = Running(hospitals, stack)
        run = running.set_up()
        run.ask((0, 1))
        run.close()
        return running

    def test_pause_and_resume_are_written_down_by_the_node(
        self, pate_party: PateParty, ran: Running
    ) -> None:
        folder = ran.hospitals.sites[0].folder
        states = []
        for command in ("pause", "resume"):
            assert pate_party(command, "--by", "M. Curie", "--site", folder).code == 0
            ran.now += 5
            ran.services[0].idle()
            states.append(ran.services[0].status.state)
        assert states == ["paused", "running"]
        ended = pate_party("audit", "verify", "--site", folder, "--format", "json")
        assert json.loads(ended.out)["entries"] == ran.services[0].audit.end[0]

    def test_budget_says_what_each_run_took_and_what_is_left(
        self, pate_party: PateParty, ran: Running
    ) -> None:
        ended = pate_party("budget", "--site", ran.hospitals.sites[0].folder, "--format", "json")
        shown = json.loads(ended.out)
        used = ran.services[0].ledger.used_share()
        assert shown["used_share"] == used > 0
        [run] = shown["runs"]
        assert (run["batches"], run["open"], run["share"]) == (1, 0, used)
        with open_records(ran.hospitals.sites[0].folder) as opened:
            account = charges_of(opened.database, bytes.fromhex(run["run"]))
        assert account is not None
        assert run["epsilon"] == run_price(account.ledger.terms).epsilon
        assert run["run"] == ran.services[0].federation().status.run

    def test_status_tells_of_the_node(self, pate_party: PateParty, ran: Running) -> None:
        ended = pate_party("status", "--site", ran.hospitals.sites[0].folder)
        assert ended.code == 0
        assert "1 task(s) ready" in ended.out
        assert "1 batch(es) answered, 0 refused" in ended.out

    def test_a_status_that_cannot_be_read_is_said_in_words(
        self, pate_party: PateParty, ran: Running
    ) -> None:
        ran.file(0, "status.json").write_text("{}", encoding="utf-8")
        ended = pate_party("status", "--site", ran.hospitals.sites[0].folder)
        assert ended.code == 0
        assert re.search(r"^Node .*\(PF-373\): status\.json ", ended.out, re.M)

    def test_a_signed_head_is_this_hospitals(self, pate_party: PateParty, ran: Running) -> None:
        site = ran.hospitals.sites[0]
        shown = json.loads(
            pate_party("audit", "verify", "--site", site.folder, "--format", "json").out
        )
        head = read_audit_head(bytes.fromhex(shown["signed"]), site.identity.public)
        assert (head.records, head.head) == (shown["entries"], bytes.fromhex(shown["head"]))
        assert shown["witnessed"] == {"lung-study": None}  # nobody could be asked

    def test_what_the_coordinator_holds_is_asked_for_and_compared(
        self, pate_party: PateParty, ran: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, held = ran.hospitals.sites[0], ran.services[0].federation().signed_head()
        answer = membership_of(site.identity.fingerprint, audit_head=held)
        monkeypatch.setattr(
            "party.site.joining.CoordinatorDoor.membership", lambda self, **_: answer
        )
        verify = ("audit", "verify", "--site", site.folder)
        shown = pate_party(*verify, "--format", "json").json
        assert shown["entries"] == ran.services[0].audit.end[0]
        assert shown["witnessed"] == {"lung-study": shown["entries"]}
        tampered(ran, 0, "DELETE FROM audit WHERE number = (SELECT max(number) FROM audit)")
        ended = pate_party(*verify)
        assert (ended.code, error_code(ended)) == (5, "PF-353")

    def test_a_changed_record_is_found(self, pate_party: PateParty, ran: Running) -> None:
        site = ran.hospitals.sites[0]
        tampered(ran, 0, "UPDATE audit SET body = body || x'00' WHERE number = 3")
        ended = pate_party("audit", "verify", "--site", site.folder)
        assert (ended.code, error_code(ended)) == (5, "PF-353")
        assert "record 3 " in ended.err
        assert pate_party("budget", "--site", site.folder).code == 5

    def test_a_log_that_was_cut_or_written_anew_does_not_fit_a_head_that_was_kept(
        self, pate_party: PateParty, ran: Running
    ) -> None:
        site = ran.hospitals.sites[0]
        verify = ("audit", "verify", "--site", site.folder)
        shown = json.loads(pate_party(*verify, "--format", "json").out)
        head = f"{shown['entries']}:{shown['head']}"
        assert pate_party(*verify, "--head", head).code == 0
        tampered(ran, 0, "DELETE FROM audit WHERE number = (SELECT max(number) FROM audit)")
        assert pate_party(*verify).code == 0
        ended = pate_party(*verify, "--head", head)
        assert (ended.code, error_code(ended)) == (5, "PF-353")


class TestStart:
    def test_the_doctor_has_the_last_word(
        self, pate_party: PateParty, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failing = Check("clock", "fail", "It is wrong.", "Set it.")
        monkeypatch.setattr("party.doctor.examine", lambda site, around: iter([failing]))
        ended = pate_party("start", "--site", hospitals.sites[0].folder)
        assert (ended.code, error_code(ended)) == (4, "PF-374")
        assert "Set it." in ended.err
        assert not hospitals.sites[0].path(f"{DATABASE_FILE}.lock").exists()

    def test_there_is_no_way_around_the_doctor(
        self, pate_party: PateParty, hospitals: Hospitals
    ) -> None:
        ended = pate_party("start", "--skip-doctor", "--site", hospitals.sites[0].folder)
        assert (ended.code, error_code(ended)) == (2, "PF-302")

    def test_nobody_fixes_a_budget_for_life_without_a_decision(
        self, pate_party: PateParty, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site, served = hospitals.sites[0], []
        monkeypatch.setattr("party.doctor.examine", lambda site, around: iter(()))
        monkeypatch.setattr("party.flower.serving.serve", lambda *_, **__: served.append(1))
        monkeypatch.setattr("signal.signal", lambda *_: None)
        monkeypatch.setattr("os.umask", lambda _: 0)
        monkeypatch.setattr("party.cli.node._quieten", lambda _: None)
        start = ("start", "--site", site.folder)
        ended = pate_party(*start)
        assert (ended.code, error_code(ended)) == (3, "PF-348")
        assert "undecided lifetime_epsilon 5, delta 1e-05, delta_for_tests 0" in ended.err
        # A number that somebody wrote into the file is a decision.
        site.save(replace(site.settings, lifetime_epsilon=2.0, delta_for_tests=1e-7))
        ended = pate_party(*start)
        assert (ended.code, error_code(ended)) == (3, "PF-348")
        assert "undecided delta 1e-05" in ended.err
        with site.open_database() as database:
            assert not is_budget_fixed(database)
        assert served == []
        line = ("policy", "set", "delta", "0.00001", "--site", site.folder)
        assert pate_party(*line).code == 0
        assert pate_party(*start).code == 0
        assert served == [1]
        with site.open_database() as database:
            assert is_budget_fixed(database)

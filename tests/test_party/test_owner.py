"""What an owner knows before a decision, and that one bad entry hides no other."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from coordinator.errors import CoordinatorError
from party.doctor import WARN, PartyProbes, examine_standing
from party.owner import opened_records
from party.service import PartyService
from party.site.own_table import add
from party.site.people_decisions import Approval, ApprovalState, Subject
from party.site.site import SETTINGS_FILE, Site
from party.site.status_file import write_status
from party.site.tasks import fetch_task
from party.site.training import ready_teachers
from party.storage.site_audit_log import SiteAct
from party.storage.site_schema import ApprovalRow
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from pate_fed.terms import RunTerms
from tests.support.hospital_services import (
    TEACHERS,
    Hospitals,
    audit_of,
    join_another,
    make_hospitals,
    records_of,
)
from tests.support.hospital_site import LABEL, PATIENT, with_membership, write_own_table
from tests.support.page_hospital import HOSTILE, asked, asks_about_each_run
from tests.test_party.test_cli import PateParty, error_code, pate_party
from tests.test_party.test_page import Browser, browser_of
from tests.test_party.test_service import Running, stack

__all__ = ["pate_party", "stack"]

PURPOSE = "Early detection of sepsis"


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    """The first asks about each run, and keeps the task; nobody can be reached."""
    made = make_hospitals(tmp_path)
    made.sites[0] = asks_about_each_run(made.sites[0])
    fetch_task(made.sites[0], made, made.task.pool.digest)
    return made


@pytest.fixture
def site(hospitals: Hospitals) -> Site:
    return hospitals.sites[0]


@pytest.fixture
def owner(site: Site) -> Iterator[Browser]:
    with browser_of(site) as browser:
        assert browser.enter().status_code == 200
        yield browser


def terms_of(hospitals: Hospitals, **changed: Any) -> RunTerms:
    members = tuple(sorted(hospitals.members, key=lambda one: one.identity.fingerprint))
    return replace(hospitals.terms(members), **changed)


def another_task(hospitals: Hospitals, name: str, **changed: Any) -> LearningTask:
    """A task that the first site keeps, whose run is about to be asked."""
    folder = hospitals.sites[0].folder.parent
    rng = np.random.default_rng(len(name))
    rows = [f"{rng.uniform(20, 80):.3f},{('male', 'female')[place % 2]}" for place in range(30)]
    path = folder / f"{name}.csv"
    path.write_text("\n".join(["age,sex", *rows]) + "\n", encoding="utf-8")
    fields: dict[str, Any] = {"label": LABEL, "classes": ("no", "yes"), **changed}
    task = make_task(path, **fields)
    task_of = replace(hospitals, task=task)
    fetch_task(hospitals.sites[0], task_of, task.pool.digest)
    return task


def ask(hospitals: Hospitals, name: str, task: LearningTask) -> str:
    """Let a run of a task wait at the first site."""
    return asked(replace(hospitals, task=task), name=name)


def listed(pate_party: PateParty, site: Site) -> dict[str, dict[str, Any]]:
    ended = pate_party("approve", "--site", site.folder, "--format", "json")
    assert ended.code == 0, ended.err
    return {one["digest"]: one for one in json.loads(ended.out)["approvals"]}


def states(site: Site) -> dict[tuple[Subject, str], ApprovalState]:
    with records_of(site) as records:
        return {(one.subject, one.digest.hex()): one.state for one in records.approvals()}


def pending(site: Site) -> list[Approval]:
    with records_of(site) as records:
        return list(records.approvals(ApprovalState.PENDING))


def doctor(site: Site) -> dict[str, Any]:
    def nobody(_: object) -> Any:
        raise AssertionError

    checks = examine_standing(site, PartyProbes(membership=nobody))
    return {check.name: check for check in checks}


def break_kept(site: Site, task: LearningTask) -> None:
    """Spoil a kept document, as a disk or an older version does."""
    path = site.path("pools", task.pool.digest.hex())
    path.write_bytes(path.read_bytes()[:-2])


class TestPurpose:
    def test_it_is_read_wherever_a_run_is_and_noted_with_the_decision(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site, owner: Browser
    ) -> None:
        digest = asked(hospitals, name="lung-1", terms=terms_of(hospitals, purpose=PURPOSE))
        shown = pate_party("approve", "--site", site.folder).out
        assert f"Purpose     {PURPOSE}" in shown
        assert shown.index("Purpose") < shown.index("Cost")
        assert listed(pate_party, site)[digest]["purpose"] == PURPOSE
        for page in ("", f"request?digest={digest}"):
            assert PURPOSE in owner.get(page).text, page
        owner.post("reject", digest=digest, reason="no")
        assert PURPOSE in owner.get("decided").text
        noted = [one for one in audit_of(site) if one.act in {SiteAct.ASKED, SiteAct.REJECTED}]
        assert {(one.facts["name"], one.facts["purpose"]) for one in noted} == {("lung-1", PURPOSE)}

    def test_a_hostile_one_stays_text(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site, owner: Browser
    ) -> None:
        digest = asked(hospitals, name="bad", terms=terms_of(hospitals, purpose=HOSTILE))
        assert f"Purpose     {HOSTILE}" in pate_party("approve", "--site", site.folder).out
        owner.post("reject", digest=digest, reason="no")
        for page in (f"request?digest={digest}", "decided", "audit"):
            text = owner.get(page).text
            assert ("<script>alert" in text, "&lt;script&gt;" in text) == (False, True), page

    def test_a_run_without_one_says_so(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site
    ) -> None:
        asked(hospitals, name="silent")
        assert "none stated" in pate_party("approve", "--site", site.folder).out


class TestFit:
    def test_ranges_stand_beside_the_public_ones_before_the_decision(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site, owner: Browser
    ) -> None:
        digest = asked(hospitals, name="lung-1")
        shown = pate_party("approve", "--site", site.folder).out
        assert re.search("label sick: .*: 2 of 2", shown)
        table = listed(pate_party, site)[digest]["table"]
        age, sex = table["columns"]
        assert (table["label"], age["name"], sex["name"]) == (LABEL, "age", "sex")
        assert sex["here"] == "2 of 2 occur here"
        page = owner.get(f"request?digest={digest}").text
        for said in (age["public"], age["here"], sex["here"]):
            assert said in shown
            assert page.index(said) < page.index('action="approve"')

    def test_they_are_worked_out_without_a_word_to_anybody(
        self, hospitals: Hospitals, site: Site
    ) -> None:
        """Its coordinator cannot be reached at all, and nothing is noted as sent."""
        asked(hospitals, name="lung-1")
        with opened_records(site) as opened:
            [one] = [each for each in opened.approvals() if each.subject is Subject.RUN]
            request = opened.request(one)
            assert request.review is not None
            assert request.review.fit is not None
            assert opened.sent.total() == (0, 0, 0)

    @pytest.mark.parametrize(
        "case",
        [
            pytest.param(({"label": "dead"}, "PF-344", "'dead'"), id="another label"),
            pytest.param(
                ({"classes": ("No", "Yes")}, "PF-115", "'yes', which the task writes 'Yes'"),
                id="spelling",
            ),
        ],
    )
    def test_what_cannot_vote_is_said_before_and_refused_with_its_code(
        self,
        pate_party: PateParty,
        hospitals: Hospitals,
        site: Site,
        owner: Browser,
        case: tuple[dict[str, Any], str, str],
    ) -> None:
        changed, code, said = case
        digest = ask(hospitals, "unfit", another_task(hospitals, "unfit", **changed))
        shown = pate_party("approve", "--site", site.folder)
        assert shown.code == 0
        assert f"Fault       {code}: " in shown.out
        assert said in shown.out
        assert code in {one["code"] for one in listed(pate_party, site)[digest]["faults"]}
        ended = pate_party("approve", digest, "--yes", "--site", site.folder)
        assert (ended.code, error_code(ended)) == (5, code)
        page = owner.get(f"request?digest={digest}").text
        assert (code in page, 'action="approve"' in page, 'action="reject"' in page) == (
            True,
            False,
            True,
        )
        answer = owner.post("approve", digest=digest, reason="")
        assert (answer.status_code, code in answer.text) == (409, True)
        assert code in owner.get("").text
        assert not list(site.path("teachers").iterdir())
        assert len(pending(site)) == 2

    def test_at_a_terminal_it_hides_no_other_run(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site
    ) -> None:
        unfit = ask(hospitals, "unfit", another_task(hospitals, "unfit", label="dead"))
        good = asked(hospitals, name="good")
        ended = pate_party("approve", "--site", site.folder, typed="y\n", at_terminal=True)
        assert ended.code == 0, ended.err
        assert re.search(f"run {unfit[:16]} .*: PF-344", ended.err)
        assert f"Approved: run {good[:16]}" in ended.out
        assert states(site)[Subject.RUN, good] is ApprovalState.APPROVED
        assert states(site)[Subject.RUN, unfit] is ApprovalState.PENDING

    def test_teachers_of_another_table_are_a_fault_before_the_decision(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site, tmp_path: Path
    ) -> None:
        ready_teachers(site, hospitals.task, random_bytes=np.random.default_rng(1).bytes)
        table = write_own_table(tmp_path / "new.csv", seed=1)
        words = ("--label", LABEL, "--patient-id", PATIENT, "--site", site.folder)
        said = pate_party("data", "add", table, *words)
        folder = site.path("teachers", hospitals.task.digest.hex())
        assert str(folder) in said.out
        digest = asked(hospitals, name="lung-1")
        [fault] = listed(pate_party, site)[digest]["faults"]
        assert fault["code"] == "PF-346"
        shutil.rmtree(folder)
        assert listed(pate_party, site)[digest]["faults"] == []


def test_status_says_what_to_mend_for_a_run_that_is_refused_for_its_tally(
    pate_party: PateParty, site: Site
) -> None:
    for refusal, is_said in (("PF-329", True), ("PF-310", False)):
        told = with_membership("running", time.time(), os.getpid(), last_refusal=refusal)
        write_status(site.path("status.json"), told)
        shown = pate_party("status", "--site", site.folder).out
        assert refusal in shown
        assert ("pate-party tally" in shown) is is_said


class TestRejection:
    def test_the_pool_goes_with_its_run(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site, owner: Browser
    ) -> None:
        digest = asked(hospitals, name="lung-1")
        assert pate_party("reject", digest, "--site", site.folder).code == 0
        assert pending(site) == []
        assert "Nothing waits" in pate_party("approve", "--site", site.folder).out
        assert owner.get("").text.count('class="card"') == 0
        assert owner.get("decided").text.count('class="card"') == 1
        asked(hospitals, name="lung-1")  # its coordinator offers it again
        assert pending(site) == []

    def test_a_pool_that_another_run_waits_for_stays_with_that_run(
        self, hospitals: Hospitals, site: Site, owner: Browser
    ) -> None:
        first, second = (asked(hospitals, name=name) for name in ("lung-1", "lung-2"))
        owner.post("reject", digest=first, reason="no")
        assert {one.subject for one in pending(site)} == {Subject.POOL, Subject.RUN}
        assert owner.get("").text.count('class="card"') == 1
        owner.post("reject", digest=second, reason="no")
        assert pending(site) == []

    def test_a_later_run_of_a_rejected_pool_can_be_approved(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site
    ) -> None:
        digest = asked(hospitals, name="lung-1")
        assert pate_party("reject", digest, "--site", site.folder).code == 0
        later = asked(hospitals, name="lung-2")
        assert pate_party("approve", later, "--yes", "--site", site.folder).code == 0
        pool = hospitals.task.pool.digest.hex()
        assert states(site)[Subject.POOL, pool] is ApprovalState.APPROVED

    def test_an_approved_pool_stays_when_one_of_its_runs_is_rejected(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site
    ) -> None:
        first = asked(hospitals, name="lung-1")
        assert pate_party("approve", first, "--yes", "--site", site.folder).code == 0
        second = asked(hospitals, name="lung-2")
        assert pate_party("reject", second, "--site", site.folder).code == 0
        pool = hospitals.task.pool.digest.hex()
        assert states(site)[Subject.POOL, pool] is ApprovalState.APPROVED


class TestBadEntry:
    """A broken document of one federation is one line: for list, page and doctor alike."""

    def test_a_broken_task_of_one_federation_hides_nothing_of_another(
        self, pate_party: PateParty, hospitals: Hospitals
    ) -> None:
        other = join_another(hospitals)
        site = hospitals.sites[0]
        broken_task = another_task(hospitals, "broken")
        broken = ask(hospitals, "broken", broken_task)
        break_kept(site, broken_task)
        good = asked(other, name="good")
        shown = pate_party("approve", "--site", site.folder)
        assert shown.code == 0
        assert shown.out.count("Fault       PF-360: ") == 1
        found = listed(pate_party, site)
        assert [one["code"] for one in found[broken]["faults"]] == ["PF-360"]
        assert found[good]["faults"] == []
        check = doctor(site)["requests"]
        assert check.state == WARN
        assert f"run {broken[:16]} (PF-360)" in check.said
        assert good[:16] not in check.said
        with browser_of(site) as owner:
            owner.enter()
            listing = owner.get("")
            assert listing.status_code == 200
            assert listing.text.count("PF-360") == 1
            for digest in (good, broken):
                assert digest in listing.text
                assert owner.get(f"request?digest={digest}").status_code == 200
            assert owner.post("reject", digest=broken, reason="broken").status_code == 303
        assert pate_party("approve", good, "--yes", "--site", site.folder).code == 0
        assert states(site)[Subject.RUN, good] is ApprovalState.APPROVED
        assert states(site)[Subject.RUN, broken] is ApprovalState.REJECTED

    def test_a_run_whose_terms_cannot_be_read_hides_nothing(
        self, pate_party: PateParty, hospitals: Hospitals, site: Site, owner: Browser
    ) -> None:
        broken, good = (asked(hospitals, name=name) for name in ("broken", "good"))
        with site.open_database() as database, database.transaction() as connection:
            of_run = ApprovalRow.digest == bytes.fromhex(broken)
            connection.execute(update(ApprovalRow).where(of_run).values(terms=b"\xff"))
        found = listed(pate_party, site)
        assert len(found[broken]["faults"]) == 1
        assert found[good]["faults"] == []
        assert broken[:16] in doctor(site)["requests"].said
        assert owner.get("").text.count('href="request?digest=') == 2
        assert owner.get(f"request?digest={broken}").status_code == 200
        assert owner.post("reject", digest=broken, reason="broken").status_code == 303
        assert states(site)[Subject.RUN, broken] is ApprovalState.REJECTED
        assert states(site)[Subject.RUN, good] is ApprovalState.PENDING

    def test_a_fault_that_nobody_foresaw_is_one_line_too(
        self,
        pate_party: PateParty,
        hospitals: Hospitals,
        site: Site,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        digest = asked(hospitals, name="lung-1")

        def fails(*_: object) -> None:
            raise ZeroDivisionError("a secret")

        monkeypatch.setattr("party.site.tasks.read_task", fails)
        [fault] = listed(pate_party, site)[digest]["faults"]
        assert fault["code"] == "PF-349"
        assert "a secret" not in fault["said"]

    def test_an_approved_pool_that_is_broken_is_named_by_the_doctor(
        self, hospitals: Hospitals, site: Site
    ) -> None:
        hospitals.approve(0)
        ready_teachers(site, hospitals.task, random_bytes=np.random.default_rng(1).bytes)
        assert doctor(site)["approved pools"].state == "ok"
        break_kept(site, hospitals.task)
        check = doctor(site)["approved pools"]
        assert check.state == WARN
        assert f"{hospitals.task.pool.digest.hex()[:16]} (PF-360)" in check.said


class TestTable:
    """A table that is registered while the node runs."""

    @pytest.fixture
    def running(self, tmp_path: Path, stack: ExitStack) -> Running:
        hospitals = make_hospitals(tmp_path)
        hospitals.approve(0)
        return Running(hospitals, stack)

    def registered(self, site: Site, *, seed: int) -> Site:
        table = write_own_table(site.folder.parent / f"{seed}.csv", seed=seed)
        return add(Site.open(site.folder), table, label=LABEL, patient_id=PATIENT)[0]

    def served(self, running: Running) -> PartyService:
        return running.restart(0, None)

    def test_a_node_votes_with_teachers_of_the_table_that_is_registered_now(
        self, running: Running
    ) -> None:
        hospitals, service = running.hospitals, self.served(running)
        [before] = service._tasks.by_pool.values()
        site = self.registered(hospitals.sites[0], seed=1)
        service.idle()
        running.wait(2)
        service.idle()
        assert service._tasks.by_pool == {}  # those of another table vote no more
        assert service.status.trouble == "PF-346"
        check = doctor(site)["approved pools"]
        assert (check.state, "(PF-346)" in check.said) == (WARN, True)
        shutil.rmtree(site.path("teachers", hospitals.task.digest.hex()))
        ready_teachers(site, hospitals.task, random_bytes=np.random.default_rng(2).bytes)
        running.wait(61)
        service.idle()
        [after] = service._tasks.by_pool.values()
        assert after.teachers != before.teachers
        assert (service.status.trouble, service.status.tasks) == ("", 1)
        assert doctor(site)["approved pools"].state == "ok"

    def test_its_node_states_the_votes_that_its_guard_has(self, running: Running) -> None:
        service, hospital = self.served(running), running.hospitals.sites[0]
        node = service.federation()

        def votes() -> tuple[int, int]:
            return node.votes[""], node.node._guard.weights.votes

        assert votes() == (TEACHERS, TEACHERS)
        larger = write_own_table(hospital.folder.parent / "larger.csv", patients=120)
        add(Site.open(hospital.folder), larger, label=LABEL, patient_id=PATIENT)
        assert votes() == (TEACHERS, TEACHERS)
        service.receive(b"\x00")
        assert votes() == (12, 12)

    def test_the_table_holds_for_the_next_packet(self, running: Running) -> None:
        hospitals, service = running.hospitals, self.served(running)
        self.registered(hospitals.sites[0], seed=1)
        service.receive(b"\x00")
        assert service._tasks.by_pool == {}
        self.registered(hospitals.sites[0], seed=9094)  # the first one again, to the byte
        service.receive(b"\x00")
        assert len(service._tasks.by_pool) == 1

    def test_a_run_whose_teachers_were_trained_anew_is_left(self, running: Running) -> None:
        hospitals = running.hospitals
        for place in (1, 2):
            hospitals.approve(place)
            running.services[place].idle()
            running.restart(place)
        service = self.served(running)
        run = running.set_up()
        run.ask((0, 1))
        site = self.registered(hospitals.sites[0], seed=1)
        shutil.rmtree(site.path("teachers", hospitals.task.digest.hex()))
        ready_teachers(site, hospitals.task, random_bytes=np.random.default_rng(2).bytes)
        with pytest.raises(CoordinatorError):
            run.ask((2, 3))
        assert service.federation().node._run is None
        again = running.set_up()
        assert len(again.ask((4, 5)).labels) == 2

    def test_other_settings_wait_for_the_next_start(self, running: Running) -> None:
        service = self.served(running)
        site = Site.open(running.hospitals.sites[0].folder)
        site.save(replace(site.settings, records_per_teacher=20))
        service.receive(b"\x00")
        assert service._site.settings.teachers == TEACHERS
        assert len(service._tasks.by_pool) == 1

    def test_a_settings_file_that_cannot_be_read_stops_nothing_and_is_told(
        self, running: Running
    ) -> None:
        service = self.served(running)
        running.hospitals.sites[0].path(SETTINGS_FILE).write_text("held_out = ", encoding="utf-8")
        running.wait(2)
        service.idle()
        assert service.status.trouble == "PF-340"
        assert len(service._tasks.by_pool) == 1

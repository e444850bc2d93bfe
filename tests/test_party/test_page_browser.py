"""The hospital's page in a browser: one link, a refusal that the console shows, every page."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.operator import Coordinator
from coordinator.people.people import Role
from coordinator.runs.queue import Run, RunState
from coordinator.runs.worker import RunWorker
from coordinator.runs.worker_resources import WorkerResources
from party.site.people_decisions import ApprovalState, Subject
from tests.support.asking import asked_run
from tests.support.chromium import chromium, complaints, faults_in
from tests.support.console import add_hospitals, opened, served
from tests.support.hospital_services import TEACHERS, Hospitals, make_hospitals, records_of
from tests.support.worked import LocalTransport
from tests.test_party.test_service import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

PURPOSE = "Fewer lung nodules overlooked"


@contextmanager
def served_page(folder: Path) -> Iterator[str]:
    """Serve the page as a process; return its one-time link."""
    command = [sys.executable, "-m", "party.cli", "page", "--site", str(folder), "--by", "M. Curie"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            link = process.stdout.readline().decode().strip()
            yield link
        finally:
            process.send_signal(signal.SIGINT)
            said = process.stderr.read().decode()
            process.wait(30)
    assert link.partition("link=")[2] not in said
    assert "Traceback" not in said


@contextmanager
def offered(folder: Path) -> Iterator[tuple[Coordinator, Hospitals, Callable[[], Run]]]:
    """A coordinator that asked for a run, three hospitals' services, and how it offers the run."""
    with opened(folder / "federation") as coordinator, ExitStack() as stack:
        identity = coordinator.home.identity
        hospitals = make_hospitals(folder, approval="each run", coordinator=identity)
        for place, one in enumerate(hospitals.sites):
            name = one.membership().settings.party
            add_hospitals(coordinator, name, votes=TEACHERS, identity=one.identity, node=place)
            hospitals.approve(place)  # the rows; each run is decided on
        services = dict(enumerate(Running(hospitals, stack).services))
        now = WorkerResources(
            open_transport=lambda nodes: nullcontext(
                LocalTransport(nodes, services, set(), lambda _: None)  # type: ignore[arg-type]
            ),
            random_bytes=secrets.token_bytes,
            noise_bytes=secrets.token_bytes,
            clock=time.time,
            wait=lambda _: None,
        )
        chosen = {"queries": 12, "batch_size": 4, "sigma2": 4.0, "epsilon": 5.0}
        named = {"form": "additive", "purpose": PURPOSE}
        asked_run(coordinator, "lung-2", hospitals.task, **chosen, **named)

        def offer() -> Run:
            parties = coordinator.enrollment.parties
            home, queue = coordinator.home, coordinator.queue
            RunWorker(home, queue, parties=parties, resources=now).work(queue.find("lung-2"))
            return queue.find("lung-2")

        yield coordinator, hospitals, offer


def seen_by_operator(page: Page, coordinator: Coordinator, address: str) -> str:
    """Return what the console's page of the run says."""
    coordinator.people.add("Olga", Role.OPERATOR)
    token = coordinator.sessions.open("Olga")
    page.context.add_cookies([{"name": "pate-fed-session", "value": token, "url": address}])
    page.goto(f"{address}/runs/lung-2")
    return page.inner_text("main")


def test_an_owner_refuses_a_run_and_the_console_shows_why(tmp_path: Path) -> None:
    with ExitStack() as stack:
        coordinator, hospitals, offer = stack.enter_context(offered(tmp_path))
        site, faults = hospitals.sites[0], list[str]()
        assert offer().state is RunState.WAITING
        for one in hospitals.sites:
            with records_of(one) as records:
                [asked] = [each for each in records.approvals() if each.subject is Subject.RUN]
                if one is not site:
                    key = asked.subject, asked.digest
                    records.approve(*key, coordinator=asked.coordinator, by="P. Curie")
        digest = asked.digest.hex()
        link = stack.enter_context(served_page(site.folder))
        browser = stack.enter_context(chromium())
        page = browser.new_page()
        said = complaints(page)
        page.goto(link)
        page.wait_for_url(link.partition("enter?")[0])
        home = page.url
        page.get_by_role("link", name="Read and decide").click()
        shown = page.inner_text("main")
        assert "60 public inputs" in shown
        assert PURPOSE in shown  # as the operator stated it, over a whole offer
        decide = shown.index("Your decision")
        assert max(map(shown.index, (PURPOSE, "beside yours", "Budget"))) < decide
        names = ("", "decided", "budget", "sent", "data", "results", "audit?check=1")
        for name in (*names, f"request?digest={digest}"):
            page.goto(home + name)
            assert page.locator("h1").count() == 1
            faults += faults_in(page)
        page.get_by_label("Reason", exact=True).fill("Too many questions")
        page.get_by_label("For the operator").fill("ask in May")
        page.get_by_role("button", name="Refuse").click()
        assert "Too many questions" in page.inner_text("main")
        assert page.get_by_text("rejected", exact=True).count() == 1
        page.get_by_role("link", name="To decide").click()
        assert page.get_by_role("link", name="lung-2").count() == 0
        stranger = browser.new_context().new_page()
        assert stranger.goto(link).status == 403  # type: ignore[union-attr]
        assert stranger.goto(home).status == 403  # type: ignore[union-attr]
        offer()
        shown = seen_by_operator(page, coordinator, stack.enter_context(served(coordinator)))
        assert "North [PF-328]" in shown, shown
        assert page.get_by_text("rejected", exact=True).count() == 1
        assert "ready" not in shown
        assert "ask in May" in shown
        assert "Too many questions" not in shown  # the reason is the hospital's own
        assert said == []
    assert not faults, "\n".join(faults)
    with records_of(site) as records:
        assert records.find(digest).state is ApprovalState.REJECTED

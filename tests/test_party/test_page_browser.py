"""The hospital's page in a browser: one link, one refusal, each page at two widths."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from party.site.records import ApprovalState
from tests.support.chromium import barriers, chromium, complaints, overflow
from tests.support.hospital_services import make_hospitals, records_of
from tests.support.page_hospital import asked

pytestmark = pytest.mark.slow


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


def test_an_owner_refuses_a_run_and_sees_it_decided(tmp_path: Path) -> None:
    hospitals = make_hospitals(tmp_path, approval="each run")
    digest, faults = asked(hospitals, name="lung-2"), list[str]()
    hospitals.sites[0].path("pools", hospitals.task.pool.digest.hex()).write_bytes(
        hospitals.task.to_bytes()
    )
    with served_page(hospitals.sites[0].folder) as link, chromium() as browser:
        page = browser.new_page()
        said = complaints(page)
        page.goto(link)
        page.wait_for_url(link.partition("enter?")[0])
        home = page.url
        page.get_by_role("link", name="Read and decide").click()
        assert "60 public inputs, from 2 columns" in page.inner_text("main")
        for width, scheme in ((360, "dark"), (1440, "light")):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            names = ("", "decided", "budget", "sent", "data", "results", "audit?check=1")
            for name in (*names, f"request?digest={digest}"):
                page.goto(home + name)
                assert page.locator("h1").count() == 1
                faults += [f"{name}: too wide by {overflow(page)}"] if overflow(page) else []
                faults += [f"{name}: {one}" for one in barriers(page)]
        page.get_by_label("Reason", exact=True).fill("Too many questions")
        page.get_by_role("button", name="Refuse").click()
        assert "Too many questions" in page.inner_text("main")
        assert page.get_by_text("rejected", exact=True).count() == 1
        page.get_by_role("link", name="To decide").click()
        assert page.get_by_role("link", name="Read and decide: lung-2").count() == 0
        stranger = browser.new_context().new_page()
        assert stranger.goto(link).status == 403  # type: ignore[union-attr]
        assert stranger.goto(home).status == 403  # type: ignore[union-attr]
        assert said == []
    assert not faults, "\n".join(faults)
    with records_of(hospitals.sites[0]) as records:
        assert records.find(digest).state is ApprovalState.REJECTED

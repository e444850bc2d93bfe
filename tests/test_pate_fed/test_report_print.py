"""The pages of a run on paper, printed by a browser: few, and no heading without its plot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pate_fed.report import plots, render_annexes, render_report
from pate_fed.report.run_directory import RunDirectory, SentPacket, read_run
from tests.support.chromium import barriers, chromium, complaints, overflow
from tests.support.sample_run import fill, sample_metrics, sample_parties, sample_privacy

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MOST_PAGES = 8
KINDS = ("KeyStatement", "EnvelopeBundle", "Confirmations", "Ready", "MaskedVector", "ShareBundle")


def printed(folder: Path, page: str) -> bytes:
    """Print a page as a browser does; a PDF."""
    if CHROMIUM is None:
        if os.environ.get("PATE_FED_NEEDS_CHROMIUM"):
            pytest.fail("PATE_FED_NEEDS_CHROMIUM is set, and there is no chromium")
        pytest.skip("there is no chromium to print with")
    (folder / "page.html").write_text(page, encoding="utf-8")
    subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={folder / 'profile'}", "--no-pdf-header-footer"),
            *(f"--print-to-pdf={folder / 'page.pdf'}", (folder / "page.html").as_uri()),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return (folder / "page.pdf").read_bytes()


def pages_in(pdf: bytes) -> int:
    [count] = {int(one) for one in re.findall(rb"/Type\s*/Pages[^>]*?/Count\s+(\d+)", pdf)} or {0}
    return count


def of_fifty_hospitals(folder: Path, **changed: Any) -> RunDirectory:
    """A long run: hospitals that are not alike, batches, warnings, a name that breaks no line."""
    metrics, privacy = sample_metrics(), sample_privacy()
    privacy["parties"] = sample_parties(50, alike=False)
    names = [f"University Hospital of Saint Somebody {number}" for number in range(50)]
    for party, name in zip(privacy["parties"], names, strict=True):
        party["party"] = name
    privacy["ledger"] = [
        {"batch": batch, "state": "committed", "asked": 3, "answered": 2, "charged": 3}
        for batch in range(40)
    ]
    metrics["warnings"] = [f"2 of its batches went on without {name}." for name in names[:5]]
    metrics["simulated"] = privacy["simulated"] = False
    run = RunDirectory(folder)
    fill(run, metrics=metrics, privacy=privacy, settings={"purpose": "Test " * 50, **changed})
    run.write_sent(
        SentPacket(name, (kind,), 1000 + 7 * number, "ab" * 32)
        for number, name in enumerate(names)
        for kind in KINDS * (1 + number % 3)
    )
    return run


@pytest.mark.slow
def test_a_report_is_read_on_a_telephone_and_by_a_screen_reader(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    privacy = sample_privacy()
    privacy["parties"] = sample_parties(4, alike=False)
    fill(RunDirectory(folder), privacy=privacy)
    (tmp_path / "page.html").write_text(render_report(read_run(folder)), encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 360, "height": 900})
        said = complaints(page)
        page.goto((tmp_path / "page.html").as_uri())
        numbers = page.locator("td.n:visible")
        heights = numbers.evaluate_all("cells => cells.map(cell => cell.clientHeight)")
        assert len(heights) > 20
        assert max(heights) < 100  # four lines: a number is not broken letter by letter
        assert (overflow(page), barriers(page)) == (0, [])
    assert said == []


@pytest.mark.slow
def test_a_report_of_fifty_hospitals_prints_in_eight_pages_and_each_annex_in_one(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    of_fifty_hospitals(folder)
    run = read_run(folder)
    assert 4 < pages_in(printed(tmp_path, render_report(run))) <= MOST_PAGES
    assert pages_in(printed(tmp_path, render_annexes(run))) == 2


def test_paper_says_of_each_page_that_it_is_private_and_keeps_headings_with_their_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for draw in ("classes_plot",):
        monkeypatch.setattr(plots, draw, lambda *_, **__: "")
    folder = tmp_path / "run"
    folder.mkdir()
    of_fifty_hospitals(folder)
    for page in (render_report(read_run(folder)), render_annexes(read_run(folder))):
        [paper] = re.findall(r"@page \{.*\}", page)
        assert "DO NOT PUBLISH" in paper
        assert "counter(page)" in paper
        assert re.search(r"h2 \{[^}]*break-after: avoid", page)
        assert re.search(r"tr[^{]*\{[^}]*break-inside: avoid", page)

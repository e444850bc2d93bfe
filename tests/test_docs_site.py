"""The documentation as pages: built, read in a browser, without another website."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.chromium import NEEDS_CHROMIUM, chromium, complaints, faults_in

ROOT = Path(__file__).parent.parent
PAGES = (
    "index.html",
    "tutorial/first-run.html",
    "notebooks/first-run.html",
    "how-to/operate-a-coordinator.html",
    "explanation/architecture.html",
    "reference/python.html",
)
"""One of each kind."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    beside = Path(sys.executable).parent / "mkdocs"
    program = str(beside) if beside.exists() else shutil.which("mkdocs")
    if program is None:
        if os.environ.get(NEEDS_CHROMIUM):
            pytest.fail(f"{NEEDS_CHROMIUM} is set, and there is no mkdocs")
        pytest.skip("the documentation is not built: the extra `docs` is not installed")
    out = tmp_path_factory.mktemp("docs") / "site"
    subprocess.run(
        [program, "build", "--strict", "--quiet", "--site-dir", out],
        cwd=ROOT,
        check=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    return out


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def faults_of(address: str, pages: list[str]) -> list[str]:
    """Faults of pages, and requests that leave the site."""
    found = []
    with chromium() as browser:
        page = browser.new_page()
        said, asked = complaints(page), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        for path in pages:
            page.goto(address + path, wait_until="networkidle")
            found += faults_in(page)
            if page.locator("pre.mermaid").count():
                found.append(f"{path}: a diagram that was not drawn")
            drawn = page.locator("div.mermaid")
            flat = drawn.evaluate_all("all => all.filter(one => one.clientHeight < 50).length")
            found += [f"{path}: an empty diagram"] if flat else []
        return found + said + [one for one in asked if not one.startswith(address)]


@pytest.mark.slow
def test_pages_fit_are_open_to_everybody_and_fetch_nothing_elsewhere(address: str) -> None:
    assert faults_of(address, list(PAGES)) == []


@pytest.mark.exhaustive
def test_every_page_does(site: Path, address: str) -> None:
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    assert len(pages) > 60
    assert faults_of(address, pages) == []


@pytest.mark.slow
def test_code_can_be_copied_and_notebooks_have_their_outputs(address: str) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.goto(address + "tutorial/first-run.html", wait_until="networkidle")
        blocks = page.locator(".md-typeset pre > code").count()
        assert page.locator(".md-code__button[data-md-type=copy], .md-clipboard").count() == blocks
        assert blocks > 2
        page.goto(address + "notebooks/first-run.html", wait_until="networkidle")
        assert page.locator(".jp-OutputArea-output").count() > 1


@pytest.mark.slow
def test_the_menu_holds_every_page_once_and_the_tutorial_first(site: Path) -> None:
    start = (site / "index.html").read_text("utf-8")
    menu = start[start.index("md-nav--primary") :]
    assert menu.index("tutorial/first-run.html") < menu.index("how-to/")
    for kind in ("tutorial", "how-to", "explanation", "reference"):
        for path in (site / kind).glob("*.html"):
            assert f'href="{kind}/{path.name}"' in menu, path.name

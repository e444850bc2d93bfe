"""Debian's Chromium, for tests of pages: what it complains of, and what axe-core finds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NEEDS_CHROMIUM = "PATE_FED_NEEDS_CHROMIUM"
"""Where it is set, a machine without Chromium fails: else CI could skip, and nobody know."""

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SERIOUS = ("serious", "critical")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it; a test is skipped where it is not."""
    program = shutil.which("chromium")
    if program is None or find_spec("playwright") is None:
        missing = "Chromium" if program is None else "Playwright"
        why = f"the console is not tested in a browser: this machine has no {missing}"
        if os.environ.get(NEEDS_CHROMIUM):
            pytest.fail(why)
        pytest.skip(why)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def complaints(page: Page) -> list[str]:
    """What a page says on its console from now on: a list that grows."""
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def overflow(page: Page) -> int:
    """Pixels by which a page is wider than its window."""
    root = "document.documentElement"
    return int(page.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))


def barriers(page: Page) -> list[str]:
    """Serious and critical issues that axe-core finds, with the first place of each."""
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [
        f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in SERIOUS
    ]

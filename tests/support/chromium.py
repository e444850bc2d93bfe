"""Debian's Chromium, for tests of pages: what it complains of, and what axe-core finds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NEEDS_CHROMIUM = "PATE_FED_NEEDS_CHROMIUM"
"""Where it is set, a machine without Chromium fails: else CI could skip, and nobody know."""

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SERIOUS = ("serious", "critical")
WINDOWS: Final = ((360, 900), (1440, 900))
SCHEMES: Final = ("light", "dark")


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


def faults_in(page: Page) -> list[str]:
    """Faults of an open page in narrow and wide windows, light and dark."""
    path, found = page.url.partition("://")[2].partition("/")[2], list[str]()
    for width, height in WINDOWS:
        page.set_viewport_size({"width": width, "height": height})
        wide = overflow(page)
        found += [f"/{path}: {wide} pixels too wide for {width}"] if wide else []
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            # The colors of a page depend on the scheme, and nothing else of it does.
            rules = () if scheme == SCHEMES[0] else ("color-contrast",)
            issues = barriers(page, rules=rules)
            found += [f"/{path}, {width}, {scheme}: {one}" for one in issues]
    return found


def barriers(page: Page, *, rules: Sequence[str] = ()) -> list[str]:
    """Serious and critical issues that axe-core finds, with the first place of each."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate(
        "async rules => (await axe.run(document, rules.length ? {runOnly: rules} : {})).violations",
        list(rules),
    )
    return [
        f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in SERIOUS
    ]

"""Every page of the console in a real browser: it fits a telephone, and axe-core finds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from coordinator.console.access import ACCESS
from coordinator.people.people import Role
from tests.support.chromium import barriers, chromium, complaints, faults_in, overflow
from tests.support.console import opened, seeded, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PAGES = {
    "/": "/",
    "/hospitals": "/hospitals",
    "/runs": "/runs",
    "/new-run": "/new-run",
    "/runs/{run}": "/runs/is-waiting",
    "/privacy": "/privacy?run=is-done",
    "/results": "/results",
    "/runs/{run}/results": "/runs/is-done/results",
    "/audit": "/audit",
    "/audit/vote-leak": "/audit/vote-leak?run=is-done",
    "/people": "/people",
    "/health": "/health",
    "/sign-in": "/sign-in",
    "/welcome": "/welcome",
}
NO_PAGES = {
    *("/static/{name}", "/runs/{run}/events", "/runs/{run}/results/{file:path}"),
    *("/audit/export", "/sign-in/openid", "/sign-in/openid/return"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def test_no_page_is_forgotten_here() -> None:
    assert {*PAGES, *NO_PAGES} == {path for method, path in ACCESS if method == "GET"}


@pytest.fixture(scope="module")
def console(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, str]]:
    """Its address, and the token of an administrator's session."""
    with opened(tmp_path_factory.mktemp("pages") / "federation") as coordinator:
        seeded(coordinator)
        coordinator.people.add("Anna", Role.ADMINISTRATOR)
        with served(coordinator) as address:
            yield address, coordinator.sessions.open("Anna")


def test_a_picture_without_words_and_a_page_too_wide_would_be_found(browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 900})
    page.set_content("<html lang=en><title>x</title><main><img src='data:,' width=500></main>")
    assert overflow(page) > 100
    assert [one.split()[0] for one in barriers(page)] == ["image-alt"]
    style = "@media (prefers-color-scheme: dark) { p { color: #333; background: #222 } }"
    page.set_content(
        f"<html lang=en><title>x</title><style>{style}</style><main><p>dark</p></main>"
    )
    found = [one.split(" (")[0].partition(", ")[2] for one in faults_in(page)]
    assert found == ["360, dark: color-contrast", "1440, dark: color-contrast"]
    page.close()


def test_every_page_fits_its_window_and_is_open_to_everybody(
    browser: Browser, console: tuple[str, str]
) -> None:
    address, token = console
    context = browser.new_context()
    page, faults = context.new_page(), list[str]()
    said = complaints(page)
    for path in sorted(PAGES.values(), key=lambda path: path not in ("/sign-in", "/welcome")):
        if path not in ("/sign-in", "/welcome"):
            context.add_cookies([{"name": "pate-fed-session", "value": token, "url": address}])
        answer = page.goto(address + path)
        assert answer is not None
        assert answer.status == 200, path
        for closed in page.query_selector_all("details:not([open]) > summary"):
            closed.click()
        faults += faults_in(page)
    assert not faults, "\n".join(faults)
    assert not said
    context.close()

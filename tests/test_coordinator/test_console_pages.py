"""Every page of the console in a real browser: it fits a telephone, and axe-core finds nothing."""

from __future__ import annotations

from base64 import b32decode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.console.access import ACCESS
from coordinator.people.people import Role
from coordinator.runs.request import RunRequest
from protocols.fingerprint_words import words_of
from protocols.identity import SigningIdentity
from tests.support.chromium import barriers, chromium, complaints, faults_in, overflow
from tests.support.console import (
    PASSWORD,
    add_hospitals,
    code_now,
    opened,
    seeded,
    served,
    wrong_code,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

PAGES = {
    "/": "/",
    "/hospitals": "/hospitals",
    "/runs": "/runs",
    "/compare": "/compare?run=is-done&run=is-waiting",
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


def test_a_person_comes_from_the_setup_code_to_the_next_step_without_a_terminal(
    browser: Browser, tmp_path: Path
) -> None:
    """Each mistake is told beside its field, with what was typed, but no password."""
    with opened(tmp_path / "federation") as coordinator, served(coordinator) as address:
        setup_code = coordinator.people.add("Anna", Role.ADMINISTRATOR).text
        asking = SigningIdentity.generate()
        add_hospitals(coordinator, "East", state="requested", identity=asking)
        context = browser.new_context()
        page, faults = context.new_page(), list[str]()
        page.goto(f"{address}/welcome")

        def send(button: str, **fields: str) -> None:
            for name, text in fields.items():
                page.fill(f"input[name={name}]:visible", text)
            page.click(f"button:has-text('{button}')")
            faults.extend(faults_in(page))

        def problem(field: str) -> bool:
            marked = page.locator(f"input[name={field}][aria-describedby={field}-problem]")
            return marked.count() == page.locator(f"#{field}-problem").count() == 1

        good = {"name": "Anna", "setup_code": setup_code, "password": PASSWORD, "again": PASSWORD}
        send("Next", **{**good, "setup_code": "00000-00000"})
        assert problem("setup_code")
        send("Next", **{**good, "again": "another one"})
        assert problem("again")
        assert page.input_value("input[name=setup_code]") == setup_code
        assert page.input_value("input[name=password]") == ""
        send("Next", **{**good, "password": "Anna", "again": "Anna"})  # the browser refuses it
        send("Next", **good)
        shown = page.inner_text("#key")
        key = b32decode(shown.replace(" ", ""))
        send("Finish", code=wrong_code(key))
        assert problem("code")
        assert page.inner_text("#key") == shown
        send("Finish", code=code_now(key))
        assert page.url == f"{address}/"
        assert page.locator("#first-step").count() == 1
        page.click("nav >> text=Hospitals")
        words = words_of(asking.public.fingerprint)
        send("Approve East", words=" ".join(["zoo" if words[0] != "zoo" else "act", *words[1:]]))
        assert problem("words")
        assert page.locator(".marks .bad").count() == 1
        assert page.locator(".marks .good").count() == 11
        send("Approve East", words=" ".join(words))
        [east] = coordinator.enrollment.parties()
        assert east.state == "member"
        assert not faults, "\n".join(faults)
        context.close()


def test_an_operator_asks_for_a_run_in_four_steps(browser: Browser, tmp_path: Path) -> None:
    table = tmp_path / "public.csv"
    rows = "\n".join(f"{row},{row % 7},{('ill', 'well')[row % 2]}" for row in range(40))
    table.write_text(f"age,weight,outcome\n{rows}\n", "utf-8")
    with opened(tmp_path / "federation") as coordinator, served(coordinator) as address:
        add_hospitals(coordinator, "North", "South", "West")
        add_hospitals(coordinator, "East", state="suspended")
        coordinator.people.add("Anna", Role.OPERATOR)
        context = browser.new_context()
        token = coordinator.sessions.open("Anna")
        context.add_cookies([{"name": "pate-fed-session", "value": token, "url": address}])
        page, faults = context.new_page(), list[str]()
        said = complaints(page)
        page.goto(f"{address}/new-run")
        page.set_input_files("[name=file]", table)
        page.locator("#seen").wait_for()
        assert page.locator(".columns li").count() == 3
        page.fill("[name=label]", "outcome")
        page.locator("[name=label]").blur()
        page.locator("[name=class-1]").wait_for()
        assert page.locator(".columns li").count() == 2
        faults += faults_in(page)
        page.click("text=Compare budgets")
        page.click("[data-epsilon='3']", timeout=120_000)  # five forecasts on a busy machine
        assert page.input_value("[name=epsilon]") == "3"
        page.fill("[name=name]", "first")
        page.click("text=Show the cost")
        page.locator("#cost").wait_for(timeout=120_000)
        faults += faults_in(page)
        page.click("text=Ask the hospitals")
        page.wait_for_url("**/runs/first")
        request = RunRequest.from_json(coordinator.queue.request("first"))
        assert (request.label, request.class_names) == ("outcome", ("ill", "well"))
        assert [one.name for one in request.parties] == ["North", "South", "West"]
        assert (faults, said) == ([], [])
        context.close()

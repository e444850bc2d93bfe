"""An operator's day in a real browser: from an invitation to a report, with real hospitals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.people import Role
from protocols.enrollment import Invitation
from tests.support.chromium import chromium, complaints
from tests.support.console import PASSWORD, code_now, served, set_up
from tests.support.deployed import deployed

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

PATIENCE_MS = 300_000


def sign_in(page: Page, name: str, key: bytes) -> None:
    page.goto("/sign-in")
    page.locator("[name=name]").fill(name)
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("[name=code]").fill(code_now(key))
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/")


def test_from_an_invitation_to_a_report(tmp_path: Path) -> None:  # noqa: PLR0915 - a whole day
    with deployed(tmp_path) as federation, chromium() as browser:
        federation.serve()
        coordinator = federation.coordinator
        keys = {
            name: set_up(coordinator, name, role)
            for name, role in (("Olga", Role.OPERATOR), ("Aldo", Role.AUDITOR))
        }
        federation.wait_until_served()
        with served(coordinator) as address:
            page = browser.new_page(base_url=address, accept_downloads=True)
            page.set_default_timeout(PATIENCE_MS)
            said = complaints(page)
            sign_in(page, "Olga", keys["Olga"])

            def invite(name: str) -> Invitation:
                page.goto("/hospitals")
                page.get_by_label("Name of the hospital").fill(name)
                with page.expect_download() as download:
                    page.get_by_role("button", name="Make the invitation").click()
                page.get_by_text(f"{name}, until").wait_for()  # the page shows it by itself
                return Invitation.from_json(download.value.path().read_text("utf-8"))

            def approve(name: str, words: str) -> None:
                page.goto("/hospitals")
                page.get_by_label(f"The twelve words that {name} reads to you").fill(words)
                page.get_by_role("button", name=f"Approve {name}").click()
                page.wait_for_url("**/hospitals")

            federation.enroll(invite=invite, approve=approve)
            assert len([one for one in coordinator.members() if one.state == "member"]) == 3

            page.goto("/new-run")
            page.locator("[name=file]").set_input_files(federation.queries)
            page.get_by_text("Noise, threshold and secure sum").click()
            for field, text in {
                "label": "sick",
                "classes": "no, yes",
                "ask": "6",
                "epsilon": "100",
                "sigma2": "3",
                "batch_size": "6",
                "name": "first",
            }.items():
                page.locator(f"[name={field}]").fill(text)
            page.get_by_role("button", name="Show the cost").click()
            cost = page.locator("#quote")
            cost.get_by_text("The cost of first").wait_for()
            shown = cost.inner_text()
            for term in ("epsilon", "delta 1e-5", "Unit", "Neighbors", "Method", "100.0 %"):
                assert term in shown, shown
            assert coordinator.queue.all() == []

            page.locator("[name=ask]").fill("5")  # the cost is out of date
            assert page.get_by_text("The form has changed").is_visible()
            page.locator("[name=ask]").fill("6")
            page.get_by_role("button", name="Show the cost").click()
            page.get_by_role("button", name="Ask the hospitals").click()
            page.wait_for_url("**/runs/first")
            page.evaluate("window.stays = true")
            page.locator("#results").wait_for()
            assert page.evaluate("window.stays")  # nobody reloaded it
            assert "6 of 6" in page.inner_text("main")

            page.goto("/runs/first/results")
            with page.expect_download() as download:
                page.get_by_role("link", name="report.html").click()
            assert "<html" in download.value.path().read_text("utf-8")

            page.goto("/audit")
            page.get_by_role("button", name="Verify the chain now").click()
            page.get_by_text("none was changed").wait_for()
            assert not said
            page.get_by_role("button", name="Sign out").click()

            sign_in(page, "Aldo", keys["Aldo"])
            page.goto("/runs/first")
            assert page.get_by_role("button").all_inner_texts() == ["Sign out"]
            token = page.locator("[name=form_token]").first.get_attribute("value")
            before = coordinator.audit_log.end
            for path, fields in (
                ("/hospitals/revoke", {"hospital": "North", "typed": "North"}),
                ("/runs/first/stop", {"sure": "yes"}),
                ("/people/add", {"name": "Eve", "role": "administrator"}),
            ):
                refused = page.request.post(path, form={"form_token": token or "", **fields})
                assert refused.status == 403
            assert coordinator.audit_log.end == before
        acts = [(one.act.value, one.actor.name) for one, _ in coordinator.audit_log.entries()]
        assert ("run asked", "Olga") in acts
        assert ("hospital approved", "Olga") in acts
        coordinator.close()

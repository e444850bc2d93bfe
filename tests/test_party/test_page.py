"""The hospital's page: nothing without its link, no form of another's, no secret, no injection."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from coordinator.errors import PartyRefusedError
from party.errors import PageError, Reason
from party.owner import PAGE, OpenSite, opened_records
from party.page.pages_app import build
from party.page.server import serve_page
from party.page.session import COOKIE, IDLE_S, LINK_LIFETIME_S, SESSION_LIFETIME_S, PageSessions
from party.site.people_decisions import ApprovalState, Subject
from party.site.site import Site
from party.site.status_file import write_status
from party.storage.site_audit_log import SiteAct
from pate_fed.data.flat_columns import FlatColumn
from pate_fed.prices import run_price
from pate_fed.wording import epsilon_text
from protocols import wire
from protocols.messages import MaskedVector
from tests.support.hospital_services import Hospitals, audit_of, make_hospitals, records_of
from tests.support.hospital_site import key_files, with_membership
from tests.support.marker import key_forms, private_forms, secrets_within
from tests.support.page_hospital import (
    HOSTILE,
    PageClient,
    asked,
    asks_about_each_run,
    recorded,
)
from tests.support.waiting import wait_for
from tests.test_party.test_cli import PateParty, error_code, pate_party
from tests.test_party.test_run_spending import VIEWS, spent_at
from tests.test_party.test_service import Running, stack

__all__ = ["pate_party", "stack"]

HOST = "127.0.0.1:9480"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - it is refused
OURS = f"http://{HOST}"
PAGES = ("", "decided", "budget", "sent", "data", "results", "audit", "audit?check=1", "export")
FORMS = ("approve", "reject", "pause", "resume", "leave")


@dataclass
class Browser:
    """A browser, its page and its clock."""

    client: PageClient
    sessions: PageSessions
    now: list[float]

    @property
    def room(self) -> str:
        return f"{OURS}/{self.sessions.room}/"

    def enter(self, token: str = "") -> Any:
        return self.get(f"enter?link={token or self.sessions.make_link()}")

    def get(self, page: str, **more: Any) -> Any:
        return self.client.get(self.room + page, **more)

    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="(\w+)"', self.get("").text)
        assert found
        return found[1]

    def post(self, form: str, *, csrf: str | None = None, **fields: str) -> Any:
        token = self.csrf() if csrf is None else csrf
        return self.client.post(self.room + form, data={"csrf": token, **fields})


@contextmanager
def browser_of(site: Site) -> Iterator[Browser]:
    with opened_records(site, origin=PAGE) as opened:
        yield browser_at(opened)


def browser_at(opened: OpenSite) -> Browser:
    now = [time.time()]
    sessions = PageSessions(clock=lambda: now[0])
    app = build(opened, sessions=sessions, hosts={HOST, "localhost:9480"}, by="M. Curie")
    client = PageClient(app, base_url=OURS)
    return Browser(client, sessions, now)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Hospitals, list[bytes]]:
    """Hospitals that have answered a run, and the frames that left the first one."""
    made = make_hospitals(tmp_path_factory.mktemp("page"))
    made.approve_all()
    with ExitStack() as stack:
        running = Running(made, stack)
        left = recorded(running.services[0])
        run = running.set_up()
        run.ask((0, 1))
        run.close()
    made.sites[0] = asks_about_each_run(made.sites[0])
    return made, left


@pytest.fixture
def hospitals(answered: tuple[Hospitals, list[bytes]]) -> Hospitals:
    """The first asks its people about each further run."""
    return answered[0]


@pytest.fixture
def stranger(hospitals: Hospitals) -> Iterator[Browser]:
    with browser_of(hospitals.sites[0]) as browser:
        yield browser


@pytest.fixture
def owner(stranger: Browser) -> Browser:
    assert stranger.enter().status_code == 200
    return stranger


class TestRunsOfATally:
    def test_one_whose_tally_nobody_pinned_says_what_to_type(self, tmp_path: Path) -> None:
        hospitals = make_hospitals(tmp_path, approval="each run")
        digest = asked(hospitals, name="one", tally=bytes(32))
        with browser_of(hospitals.sites[0]) as browser:
            browser.enter()
            listed, read = (browser.get(page).text for page in ("", f"request?digest={digest}"))
        for page in (listed, read):
            assert {"PF-329", "pate-party tally"} <= set(
                re.findall(r"PF-329|pate-party tally", page)
            )
        assert 'action="reject"' in read
        assert 'action="approve"' not in read

    def test_where_its_pool_was_approved_before_the_page_says_so(self, tmp_path: Path) -> None:
        site = make_hospitals(tmp_path).sites[0]
        refused = with_membership("running", time.time(), 7, last_refusal="PF-329")
        write_status(site.path("status.json"), refused)
        with browser_of(site) as browser:
            browser.enter()
            assert "pate-party tally" in browser.get("").text
            write_status(site.path("status.json"), with_membership("running", time.time(), 7))
            assert "pate-party tally" not in browser.get("").text


class TestLink:
    def test_without_its_cookie_there_is_nothing(self, stranger: Browser) -> None:
        assert stranger.client.get(f"{OURS}/").status_code == 404
        assert stranger.client.get(f"{OURS}/{'0' * 24}/decided").status_code == 404
        for page in PAGES:
            answer = stranger.get(page)
            assert (answer.status_code, "lung study" in answer.text) == (403, False), page
        for form in FORMS:
            answer = stranger.client.post(stranger.room + form, data={"csrf": ""})
            assert answer.status_code == 403, form

    def test_it_opens_one_session_once(self, stranger: Browser, hospitals: Hospitals) -> None:
        token = stranger.sessions.make_link()
        assert stranger.enter(token).status_code == 200
        assert stranger.get("").status_code == 200
        last = audit_of(hospitals.sites[0])[-1]
        assert (last.act, last.facts["by"]) == (SiteAct.PAGE_OPENED, "M. Curie")
        cookie = stranger.client.cookies[COOKIE]
        stranger.client.cookies.clear()
        again = stranger.enter(token)
        assert (again.status_code, "set-cookie" in again.headers) == (403, False)
        assert cookie not in again.text
        assert token not in again.text

    def test_many_at_once_open_one_session(self) -> None:
        sessions = PageSessions(clock=lambda: 0.0)
        token, opened = sessions.make_link(), list[str | None]()
        threads = [Thread(target=lambda: opened.append(sessions.open(token))) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(one is not None for one in opened) == 1

    @pytest.mark.parametrize("token", ["", "0" * 64, "x", "é", "%00", "a" * 5000])
    def test_a_guess_opens_nothing_and_does_not_use_it_up(
        self, stranger: Browser, token: str
    ) -> None:
        link = stranger.sessions.make_link()
        for _ in range(3):
            answer = stranger.get(f"enter?link={token}")
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        assert stranger.enter(link).status_code == 200

    def test_it_ends_and_so_does_its_session(self, stranger: Browser) -> None:
        link = stranger.sessions.make_link()
        stranger.now[0] += LINK_LIFETIME_S
        assert stranger.enter(link).status_code == 403
        assert stranger.enter().status_code == 200
        stranger.now[0] += IDLE_S - 1
        assert stranger.get("").status_code == 200
        stranger.now[0] += IDLE_S
        assert stranger.get("").status_code == 403
        assert stranger.enter().status_code == 200
        for _ in range(int(SESSION_LIFETIME_S / IDLE_S) + 1):
            stranger.now[0] += IDLE_S - 1
            last = stranger.get("").status_code
        assert last == 403

    def test_its_cookie_is_bound_to_the_path_and_closed_to_scripts(self, stranger: Browser) -> None:
        said = stranger.enter().headers["set-cookie"]
        assert f"Path=/{stranger.sessions.room}/" in said
        assert {"HttpOnly", "SameSite=strict"} <= set(said.split("; "))
        assert len(stranger.sessions.room) == 24

    def test_a_stolen_cookie_ends_with_the_session(self, owner: Browser) -> None:
        cookie = owner.client.cookies[COOKIE]
        assert owner.post("leave").status_code == 200
        assert owner.get("", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 403


class TestGate:
    def test_pages_have_no_script_and_lead_nowhere_else(self, owner: Browser) -> None:
        answers = [owner.get(page) for page in (*PAGES, "style.css", "request?digest=x")]
        files = [answer for answer in answers if "content-disposition" in answer.headers]
        assert [answer.url.path.rpartition("/")[2] for answer in files] == ["export"]
        assert files[0].headers["content-type"] == "application/x-ndjson"  # text, never a page
        assert files[0].headers["x-content-type-options"] == "nosniff"
        for answer in [answer for answer in answers if answer not in files]:
            assert not re.search(r"<script|<style|style=|\son\w+=|javascript:", answer.text)
            assert not re.findall(r"(?:src|href|action)=\"(?:https?:)?//", answer.text)

    @pytest.mark.parametrize(
        "host", [EVERYWHERE, "192.0.2.7", "::", "localhost", "example.org", ""]
    )
    def test_it_is_served_on_loopback_only(self, hospitals: Hospitals, host: str) -> None:
        with opened_records(hospitals.sites[0]) as opened, pytest.raises(PageError):
            serve_page(opened, by="M. Curie", host=host, tell=pytest.fail)

    def test_the_command_refuses_another_address(
        self, pate_party: PateParty, hospitals: Hospitals
    ) -> None:
        ended = pate_party("page", "--host", EVERYWHERE, "--site", hospitals.sites[0].folder)
        assert (ended.code, error_code(ended)) == (5, "PF-378")


class TestPages:
    def test_no_page_has_a_key_a_vote_or_the_link(
        self, owner: Browser, answered: tuple[Hospitals, list[bytes]]
    ) -> None:
        site, left = answered[0].sites[0], answered[1]
        identity, node, secret = (path.read_bytes() for path in key_files(site))
        [y] = [one for one in left if isinstance(wire.decode(one).message, MaskedVector)]
        secrets = {
            "identity": key_forms(identity.strip()),
            "node's key": key_forms(node),
            "node's secret": private_forms(secret),
            "hidden votes": private_forms(bytes(wire.expect(wire.decode(y), MaskedVector).body)),
            "link": {owner.sessions.make_link().encode()},
        }
        shown = "\n".join(owner.get(page).text for page in PAGES).encode()
        assert len(shown) > 20_000
        assert secrets_within(shown, secrets) == []
        assert secrets_within(shown + y, secrets) == ["hidden votes"]  # it would be found
        records = Path(site.data.file).read_text("utf-8").splitlines()[1:]
        assert not [row for row in records if row.encode() in shown]

    def test_a_hostile_name_is_text(self, owner: Browser, hospitals: Hospitals) -> None:
        site = hospitals.sites[0]
        with records_of(site) as records:
            records.state.pause(by=HOSTILE)
            records.state.resume(by=HOSTILE)
        digest = asked(hospitals, name="hostile")
        owner.post("reject", digest=digest, reason=f"{HOSTILE} {{{{ 7*7 }}}}")
        for page in ("decided", "audit", f"request?digest={digest}", f"audit?search={HOSTILE}"):
            text = owner.get(page).text
            assert "<script" not in text
        decided = owner.get("decided").text
        assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; {{ 7*7 }}" in decided
        assert "&lt;script&gt;" in owner.get("audit", params={"search": HOSTILE}).text

    @pytest.mark.parametrize(
        "page",
        [
            "export/../../party.toml",
            "export/..%2f..%2fidentity.key",
            "..%2f..%2fparty.db",
            "style.css/../../app.py",
            "templates/base.html.j2",
            "export?file=/etc/passwd",
        ],
    )
    def test_no_path_leads_to_a_file(self, owner: Browser, page: str) -> None:
        answer = owner.get(page)
        if answer.status_code == 200:  # the export itself, whatever is asked beside it
            assert {"act", "link"} <= set(json.loads(answer.text.splitlines()[0]))
        else:
            assert answer.status_code in {403, 404}

    @pytest.mark.parametrize("digest", ["", "00", "0" * 64, "../" * 20, "x" * 64, "%00" * 64])
    def test_an_unknown_request_is_an_error_in_words(self, owner: Browser, digest: str) -> None:
        answer = owner.get(f"request?digest={digest}")
        assert (answer.status_code, "PF-371" in answer.text) == (400, True)
        assert owner.post("reject", digest=digest, reason="no").status_code == 400

    def test_a_column_in_which_own_rows_look_alike_is_an_alarm(
        self, owner: Browser, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "LOOK ALIKE" not in owner.get(f"request?digest={asked(hospitals, name='all')}").text
        name = "<script>age</script>"
        for why, is_alarm in (("beyond", True), ("one value", False)):
            monkeypatch.setattr(
                "party.site.task_review.flat_columns",
                lambda *_, why=why: (FlatColumn(name, 1.0, why),),
            )
            digest = asked(hospitals, name=f"flat-{why.replace(' ', '-')}")
            text = owner.get(f"request?digest={digest}").text
            term = text[: text.index("&lt;script&gt;age")].rpartition("<dt>")[0].rstrip()
            assert term.endswith('<div class="bad">') == is_alarm
            assert name not in text

    def test_the_public_inputs_can_be_read(self, owner: Browser, hospitals: Hospitals) -> None:
        digest = asked(hospitals, name="read")
        assert f'href="pool?digest={digest}"' in owner.get(f"request?digest={digest}").text
        answer = owner.get(f"pool?digest={digest}")
        assert answer.headers["content-disposition"] == 'attachment; filename="pool.csv"'
        assert answer.text == "".join(hospitals.task.rows.csv_lines())
        assert owner.get("pool?digest=00").status_code == 400

    def test_what_left_is_listed_as_it_left(self, owner: Browser, hospitals: Hospitals) -> None:
        text = owner.get("sent").text
        with opened_records(hospitals.sites[0]) as opened:
            found = opened.sent.newest(50)
        assert {
            "KeyStatement",
            "EnvelopeBundle",
            "Confirmations",
            "MaskedVector",
            "HeadStatement",
        } <= {one.kind for one in found}
        for one in found:
            assert one.digest.hex() in text
        assert "Hidden votes" in text

    def test_the_log_is_searched_checked_and_exported(
        self, owner: Browser, hospitals: Hospitals
    ) -> None:
        assert "run accepted" in owner.get("audit?search=run+accepted").text
        assert "pin added" not in owner.get("audit?search=run+accepted").text
        answer = owner.get("export")
        assert answer.headers["content-disposition"] == 'attachment; filename="audit-log.jsonl"'
        numbers = [json.loads(line)["number"] for line in answer.text.splitlines()]
        assert numbers == [one.number for one in audit_of(hospitals.sites[0])]

    def test_the_budget_names_all_that_an_epsilon_needs(self, owner: Browser) -> None:
        text = owner.get("budget").text
        for words in ("epsilon 5", "Delta", "Unit", "Neighbors", "View", "Method"):
            assert words in text

    def test_the_budget_has_the_one_epsilon_of_each_run(
        self, owner: Browser, hospitals: Hospitals
    ) -> None:
        members = tuple(sorted(hospitals.members, key=lambda one: one.identity.fingerprint))
        cost = run_price(hospitals.terms(members))
        assert epsilon_text(cost.epsilon) in owner.get("budget").text

    @pytest.mark.parametrize("place", VIEWS)
    def test_page_and_command_have_the_number_that_is_charged_first(
        self,
        owner: Browser,
        hospitals: Hospitals,
        pate_party: PateParty,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
    ) -> None:
        ledger, spent, _ = spent_at(place)
        monkeypatch.setattr(OpenSite, "spending", lambda opened: (ledger, (spent,)))
        numbers = [epsilon_text(one) for one in (spent.charged_epsilon, spent.epsilon)]
        pattern = rf"epsilon {numbers[0]}\b.*{spent.charged_view}"
        if place != "coordinator":
            pattern += rf".*{numbers[1]} against"
        folder = hospitals.sites[0].folder
        shown = pate_party("budget", "--site", folder).out
        page = owner.get("budget").text.partition('id="paid"')[2]
        for text in (shown, page):
            assert re.search(pattern, re.sub(r"\s+", " ", text))
        listed = pate_party("budget", "--site", folder, "--format", "json").out
        [run] = json.loads(listed)["runs"]
        for name in ("epsilon", "view", "charged_epsilon", "charged_view"):
            assert run[name] == getattr(spent, name), name

    def test_a_fault_of_ours_is_said_without_its_text(
        self, owner: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise ValueError("p17,63.2,yes")

        monkeypatch.setattr("party.page.views.data_sets", fail)
        answer = owner.get("data")
        assert (answer.status_code, "PF-349" in answer.text) == (500, True)
        assert "p17" not in answer.text + caplog.text


class TestDecisions:
    def test_a_reason_is_required_and_recorded_with_who_and_where(
        self, owner: Browser, hospitals: Hospitals
    ) -> None:
        digest = asked(hospitals, name="refused")
        assert "refused" in owner.get("").text
        for reason in ("", "  ", "x" * 501, "two\nlines"):
            assert owner.post("reject", digest=digest, reason=reason).status_code == 400
        assert owner.post("reject", digest=digest, reason="Too many columns").status_code == 303
        last = audit_of(hospitals.sites[0])[-1]
        assert last.act is SiteAct.REJECTED
        expected = {
            "by": "M. Curie",
            "from": "page",
            "reason": "Too many columns",
            "before": "pending",
            "after": "rejected",
        }
        assert expected.items() <= last.facts.items()
        assert "Too many columns" in owner.get("decided").text

    @pytest.mark.slow
    def test_an_approval_trains_teachers_and_approves(
        self, owner: Browser, hospitals: Hospitals
    ) -> None:
        digest = asked(hospitals, name="approved")
        assert owner.post("approve", digest=digest, reason="").status_code == 303
        wait_for(lambda: "An approval is in work" not in owner.get("").text, seconds=300)
        with records_of(hospitals.sites[0]) as records:
            found = records.find(digest)
        assert (found.state, found.decided_by) == (ApprovalState.APPROVED, "M. Curie")
        assert list(hospitals.sites[0].path("teachers").iterdir())

    def test_an_approval_that_fails_says_so_and_approves_nothing(
        self, owner: Browser, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        digest = asked(hospitals, name="untrainable")

        def fail(*_: object, **__: object) -> None:
            raise ValueError("p17,63.2,yes")

        monkeypatch.setattr("party.site.training.ready_teachers", fail)
        owner.post("approve", digest=digest, reason="")
        wait_for(lambda: "Nothing was approved." in owner.get("").text, seconds=300)
        assert "p17" not in owner.get("").text
        with records_of(hospitals.sites[0]) as records:
            assert records.find(digest).state is ApprovalState.PENDING

    def test_a_pause_holds_until_somebody_resumes(
        self, owner: Browser, hospitals: Hospitals
    ) -> None:
        for form, is_paused in (("pause", True), ("resume", False)):
            assert owner.post(form).status_code == 303
            with records_of(hospitals.sites[0]) as records:
                assert records.decided().is_paused is is_paused
            assert ("<b>Paused</b>" in owner.get("").text) is is_paused

    @pytest.mark.slow
    def test_the_guard_refuses_a_run_that_the_page_refused(
        self, tmp_path: Path, stack: ExitStack
    ) -> None:
        hospitals = make_hospitals(tmp_path, approval="each run")
        hospitals.approve_all()
        running = Running(hospitals, stack)
        with pytest.raises(PartyRefusedError, match=Reason.APPROVAL):
            running.set_up()
        digests = [_decide_run(site, "approve") for site in hospitals.sites]
        with browser_of(hospitals.sites[0]) as browser:
            browser.enter()
            assert browser.post("reject", digest=digests[0], reason="no").status_code == 303
            with pytest.raises(PartyRefusedError, match=Reason.REJECTED):
                running.set_up()
        _decide_run(hospitals.sites[0], "approve")
        running.set_up()  # only the page's word had kept it away


def _decide_run(site: Site, decision: str) -> str:
    with records_of(site) as records:
        for one in records.approvals():
            if one.subject is Subject.RUN:
                getattr(records, decision)(
                    one.subject, one.digest, coordinator=one.coordinator, by="A. Meyer"
                )
                return one.digest.hex()
    raise AssertionError("no run waits")

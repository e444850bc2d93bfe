"""The console against strangers, forgers and tired people: every route, every role, every form."""

from __future__ import annotations

import io
import logging
import re
import shutil
import ssl
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, cast

import httpx
import pytest
import uvicorn
from argon2 import PasswordHasher
from sqlalchemy import update
from starlette.routing import Route
from starlette.testclient import TestClient

from coordinator.console import build, live, server
from coordinator.console.access import ACCESS, PUBLIC, require_complete
from coordinator.console.app import SIGN_INS_PER_MINUTE, make_app
from coordinator.console.form_input import MOST_ROWS, MOST_UPLOAD_BYTES
from coordinator.console.rendering import step_plot
from coordinator.console.results import READABLE
from coordinator.database import FederationAct
from coordinator.database.federation_schema import MemberRow, PersonRow
from coordinator.errors import ConsoleError, DatabaseError, PersonError
from coordinator.operator import Coordinator
from coordinator.people import people as people_module
from coordinator.people.one_time_codes import app_address, code_at
from coordinator.people.people import Role
from coordinator.people.sessions import ABSOLUTE, IDLE, Sessions
from coordinator.runs.queue import Run, RunState
from coordinator.runs.request import RunRequest
from protocols.fingerprint_words import spoken
from tests.support.command import Command, pate_fed
from tests.support.console import (
    BASE,
    HOSTILE,
    PASSWORD,
    add_entries,
    add_hospitals,
    add_results,
    add_runs,
    browser,
    code_now,
    form_token,
    newest_acts,
    opened,
    seeded,
    set_up,
    wrong_code,
)
from tests.support.markers import sampled
from tests.support.own_images import write_public_images
from tests.support.renderings import words_of

__all__ = ["pate_fed"]

ROLES = (*Role, None)
FAR_AWAY = "http://elsewhere.example"


@pytest.fixture(autouse=True, scope="module")
def _quick_passwords() -> Iterator[None]:
    """Spend no time on passwords: that is their point, and none of these tests'."""
    with pytest.MonkeyPatch.context() as patch:
        quick = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
        patch.setattr(people_module.passwords, "_HASHER", quick)
        yield


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """A federation with something on every page; tests only read it."""
    with opened(tmp_path_factory.mktemp("console") / "federation") as coordinator:
        seeded(coordinator)
        yield coordinator


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Coordinator]:
    with opened(tmp_path / "federation") as coordinator:
        yield coordinator


def filled_in(path: str) -> str:
    """A route's path with the names of things that are there."""
    return (
        path.replace("{run}", "is-done")
        .replace("{file:path}", "labels.csv")
        .replace("{name}", "console.css")
    )


class TestRoutes:
    def test_every_route_of_the_app_has_its_roles_and_a_new_one_does_not_start(
        self, fresh: Coordinator
    ) -> None:
        app = make_app(fresh, is_secure=False)
        found = {
            (method, cast(Route, route).path)
            for route in app.routes
            for method in cast(Route, route).methods or ()
            if method != "HEAD"
        }
        assert found == set(ACCESS)
        app.add_api_route("/forgotten", lambda: None, methods=["GET"])
        with pytest.raises(ConsoleError) as caught:
            require_complete(app.routes)
        assert "/forgotten" in str(caught.value)

    @sampled()
    @pytest.mark.parametrize("role", ROLES, ids=lambda role: role.value if role else "nobody")
    def test_every_route_opens_to_its_roles_alone(
        self, federation: Coordinator, role: Role | None
    ) -> None:
        client, log = browser(federation, role), federation.audit_log
        token = "" if role is None else form_token(client, "/")
        before, people = log.end, len(federation.people.all())
        for (method, path), roles in ACCESS.items():
            if path in ("/sign-out", "/runs/{run}/events", "/runs/{run}/results/{file:path}"):
                continue  # they end the session, follow a run, or leave an entry: see below
            # An empty form: whoever may send it is told what is missing.
            data = {"form_token": token}
            answer = client.request(
                method, filled_in(path), data=data if method == "POST" else None
            )
            case = f"{method} {path} as {role}: {answer.status_code}"
            if roles is PUBLIC:
                assert answer.status_code in (200, 303, 400, 403, 404, 429), case
            elif role is None:
                wanted = {303} if method == "GET" else {401}
                assert answer.status_code in wanted, case
            elif role in roles:
                assert answer.status_code in (200, 303, 400), case
            else:
                assert answer.status_code == 403, case
        assert (log.end, len(federation.people.all())) == (before, people)

    def test_an_auditor_changes_nothing_by_any_form(self, fresh: Coordinator) -> None:
        add_hospitals(fresh, "North", "South", "West")
        add_hospitals(fresh, "East", state="requested")
        add_runs(fresh, "first", hospitals=("North",), state=RunState.RUNNING)
        client = browser(fresh, Role.AUDITOR)
        token, before = form_token(client, "/"), fresh.audit_log.end
        words = spoken(fresh.enrollment.parties()[0].identity.fingerprint)
        for path, fields in (
            ("/hospitals/invite", {"hospital": "Mid", "days": "7"}),
            ("/hospitals/approve", {"hospital": "East", "words": words}),
            ("/hospitals/revoke", {"hospital": "North", "typed": "North"}),
            ("/runs/first/pause", {}),
            ("/runs/first/stop", {"sure": "yes"}),
            ("/people/add", {"name": "Eve", "role": "administrator"}),
            ("/people/role", {"name": "Some auditor", "role": "administrator"}),
        ):
            answer = client.post(path, data={"form_token": token, **fields})
            assert answer.status_code == 403, path
        assert fresh.audit_log.end == before
        assert fresh.queue.find("first").wanted == ""

    def test_a_role_that_was_taken_away_holds_no_more(self, fresh: Coordinator) -> None:
        client = browser(fresh, Role.OPERATOR)
        assert client.get("/new-run").status_code == 200
        fresh.people.give_role("Some operator", Role.AUDITOR)
        assert client.get("/new-run").status_code == 403
        fresh.people.remove("Some operator")
        assert client.get("/").headers["location"] == "/sign-in"


class TestForgers:
    @pytest.mark.parametrize("harm", ["no token", "another's", "from elsewhere"])
    def test_no_route_takes_a_form_of_somebody_else(
        self, federation: Coordinator, harm: str
    ) -> None:
        """A filled-in form of an administrator, who visits another website meanwhile."""
        client, mallory = browser(federation, Role.ADMINISTRATOR), browser(federation, Role.AUDITOR)
        right, other = form_token(client, "/"), form_token(mallory, "/")
        data = {"hospital": "North", "typed": "North", "words": "x", "days": "7"}
        data |= {"name": "Eve", "role": "administrator", "subject": "eve-1", "sure": "yes"}
        data |= {"epsilon": "9", "reason": "", "proposal": "1", "password": PASSWORD, "code": "1"}
        data |= {"no token": {}, "another's": {"form_token": other}}.get(
            harm, {"form_token": right}
        )
        headers = {"Origin": FAR_AWAY} if harm == "from elsewhere" else {}
        before, people = federation.audit_log.end, federation.people.all()
        routes = [path for method, path in ACCESS if method == "POST"]
        assert len(routes) > 20
        for path in routes:
            answer = client.post(filled_in(path), data=data, headers=headers)
            assert answer.status_code == 403, path
        assert (federation.audit_log.end, federation.people.all()) == (before, people)
        assert federation.budget.epsilon() is None
        assert client.get("/").status_code == 200  # nor is anybody signed out

    def test_a_token_of_another_session_is_worth_nothing(self, fresh: Coordinator) -> None:
        mallory, victim = browser(fresh, Role.AUDITOR), browser(fresh, Role.ADMINISTRATOR)
        answer = victim.post(
            "/people/add",
            data={
                "form_token": form_token(mallory, "/"),
                "name": "Eve",
                "role": "administrator",
            },
        )
        assert answer.status_code == 403

    @pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:9999", "[::1]:8447", "LOCALHOST"])
    def test_a_tunnel_may_have_any_port(self, federation: Coordinator, host: str) -> None:
        answer = browser(federation).get("/sign-in", headers={"Host": host})
        assert answer.status_code == 200

    def test_no_page_has_a_script_or_a_style_of_its_own(self, federation: Coordinator) -> None:
        client = browser(federation, Role.ADMINISTRATOR)
        for page in pages(client):
            assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
            assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
            linked = re.findall(r'(?:src|href|action|hx-get|hx-post)="([^"]*)"', page)
            assert all(link.startswith(("/", "#")) for link in linked), linked


def pages(client: TestClient) -> Iterator[str]:
    """Every page that is there to read."""
    for (method, path), _ in ACCESS.items():
        if method == "GET" and not path.startswith(("/static", "/runs/{run}/events")):
            answer = client.get(filled_in(path))
            if answer.headers.get("content-type", "").startswith("text/html"):
                yield answer.text
    for more in ("/privacy?run=is-done", "/runs/is-waiting", "/audit?search=script", "/runs/none"):
        yield client.get(more).text


class TestText:
    def test_a_hospital_called_script_is_text_everywhere(self, federation: Coordinator) -> None:
        shown = 0
        for page in pages(browser(federation, Role.ADMINISTRATOR)):
            assert HOSTILE not in page
            assert "<script>alert" not in page
            shown += page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;")
        assert shown > 5

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("'; DROP TABLE audit; --", id="SQL"),
            pytest.param("%' OR '1'='1", id="SQL that is always true"),
            pytest.param("<img src=x onerror=alert(1)>", id="HTML"),
            pytest.param("{{ 7 * 7 }}", id="template"),
        ],
    )
    def test_a_search_is_text(self, federation: Coordinator, text: str) -> None:
        client, count = browser(federation, Role.AUDITOR), federation.audit_log.end[0]
        page = client.get("/audit", params={"search": text})
        assert page.status_code == 200
        assert "No entry." in page.text
        assert text not in page.text or text == "{{ 7 * 7 }}"
        assert "49" not in re.sub(r"value=\"[^\"]*\"|\d\d:\d\d", "", page.text.split("<main")[1])
        assert federation.audit_log.end[0] == count

    def test_a_search_finds_what_an_entry_says_and_pages_go_on(self, fresh: Coordinator) -> None:
        add_entries(fresh, 120)
        found = newest_acts(fresh, words=["North5", "anna"], most=200)
        assert {one["subject"] for one in found} == {
            name for name in (f"North{n}" for n in range(97)) if "North5" in name
        }
        client = browser(fresh, Role.AUDITOR)
        first = client.get("/audit").text
        [link] = re.findall(r'href="(/audit\?before=[^"]*)"', first)
        numbers = [
            {int(one) for one in re.findall(r'data-label="No\." class="number">(\d+)<', page)}
            for page in (first, client.get(link.replace("&amp;", "&")).text)
        ]
        assert len(numbers[0]) == len(numbers[1]) == 50
        assert min(numbers[0]) == max(numbers[1]) + 1


class TestSigningIn:
    def sent(self, client: TestClient, **fields: str) -> Any:
        token = form_token(client, "/sign-in")
        return client.post("/sign-in", data={"form_token": token, **fields})

    def the_key_is_never_shown_again(
        self, client: TestClient, setup: dict[str, str], key: str
    ) -> None:
        token = form_token(client, "/welcome")
        late = client.post("/welcome/code", data={"form_token": token, **setup, "code": "123456"})
        assert late.status_code == 403
        assert key not in late.text

    def test_from_the_setup_code_to_the_first_page(
        self, fresh: Coordinator, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        code = fresh.people.add("Anna", Role.ADMINISTRATOR)
        client = browser(fresh)
        setup = {"name": "Anna", "setup_code": code.text.upper().replace("-", " ")}
        asked = {"password": PASSWORD, "again": PASSWORD, **setup}
        token = form_token(client, "/welcome")
        page = client.post("/welcome", data={"form_token": token, **asked}).text
        assert "<svg width=" in page  # the same key, as a picture that was made here
        assert "otpauth" not in page
        shown = re.search(r'id="key">([A-Z2-7 ]+)<', page)
        assert shown is not None
        person = fresh._database
        with person.session() as session:
            key = session.get_one(PersonRow, "Anna").code_key
        assert key is not None
        first = code_now(key)
        early = self.sent(client, name="Anna", password=PASSWORD, code=first)
        assert early.status_code == 403  # the code was not proven yet
        typed = {"form_token": token, **setup, "code": wrong_code(key)}
        mistyped = client.post("/welcome/code", data=typed)
        assert (mistyped.status_code, shown[1] in mistyped.text) == (403, True)  # once more
        finished = client.post("/welcome/code", data={"form_token": token, **setup, "code": first})
        assert (finished.headers["location"], client.get("/").status_code) == ("/", 200)
        client.cookies.delete("pate-fed-session")
        self.the_key_is_never_shown_again(client, setup, shown[1])
        again = client.post("/welcome", data={"form_token": token, **asked})
        assert again.status_code == 403  # good once
        used = self.sent(client, name="Anna", password=PASSWORD, code=first)
        assert used.status_code == 403  # a one-time code, too
        later = code_at(key, int(people_module.datetime.now().timestamp() // 30) + 1)
        entered = self.sent(client, name="Anna", password=PASSWORD, code=later)
        assert entered.headers["location"] == "/"
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert client.get("/").status_code == 200
        newest, *_ = newest_acts(fresh, most=1)
        assert (newest["act"], newest["by"], newest["from"]) == (
            FederationAct.SIGNED_IN,
            "Anna",
            "console",
        )
        session_token = client.cookies.get("pate-fed-session")
        secrets = (PASSWORD, code.text, key.hex(), shown[1], session_token)
        said = caplog.text + "".join(str(one) for one in newest_acts(fresh, most=50))
        assert not [one for one in secrets if one and one in said]
        assert not re.search(rf"(?<![\d.]){later}(?!\d)", said)  # no part of a time
        stored = Path(fresh.home.database_url.removeprefix("sqlite:///"))
        content = stored.read_bytes() + stored.with_name(f"{stored.name}-wal").read_bytes()
        assert PASSWORD.encode() not in content
        assert str(session_token).encode() not in content

    @pytest.mark.parametrize(
        ("name", "password", "code"),
        [
            pytest.param("Anna", "another password", None, id="password"),
            pytest.param("Anna", PASSWORD, "wrong", id="code"),
            pytest.param("Anna", PASSWORD, "' OR 1=1 --", id="SQL"),
            pytest.param("Bert", PASSWORD, None, id="name"),
        ],
    )
    def test_whatever_is_wrong_gets_the_same_answer(
        self, fresh: Coordinator, name: str, password: str, code: str | None
    ) -> None:
        key = set_up(fresh, "Anna", Role.ADMINISTRATOR)
        code = wrong_code(key) if code == "wrong" else code or code_now(key)
        answer = self.sent(browser(fresh), name=name, password=password, code=code)
        assert answer.status_code == 403
        unknown = self.sent(browser(fresh), name="Nobody", password=PASSWORD, code="000000")
        assert words_of(answer.text) == words_of(unknown.text)
        assert "pate-fed-session" not in answer.headers.get("set-cookie", "")

    def test_five_failures_lock_a_name_even_for_the_right_password(
        self, fresh: Coordinator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = set_up(fresh, "Anna", Role.ADMINISTRATOR)
        monkeypatch.setattr(people_module.passwords, "is_right", lambda typed, _: typed == PASSWORD)
        for _ in range(people_module.MOST_FAILURES):
            with pytest.raises(PersonError):
                fresh.people.sign_in("Anna", password="wrong", code="000000")
        with pytest.raises(PersonError):
            fresh.people.sign_in("Anna", password=PASSWORD, code=code_now(key))
        assert [one.is_locked for one in fresh.people.all()] == [True]
        assert newest_acts(fresh, words=[FederationAct.LOCKED_OUT.value])[0]["subject"] == "Anna"
        later = fresh.people._clock() + people_module.LOCKED_FOR
        monkeypatch.setattr(fresh.people, "_clock", lambda: later)
        code = code_at(key, int(later.timestamp() // 30))
        assert fresh.people.sign_in("Anna", password=PASSWORD, code=code).name == "Anna"

    def test_one_address_has_few_tries_a_minute(
        self, fresh: Coordinator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(people_module.passwords, "is_right", lambda *_: False)
        client = browser(fresh)
        token = form_token(client, "/sign-in")
        fields = {"form_token": token, "name": "Anna", "password": "x", "code": "1"}
        codes = [
            client.post("/sign-in", data=fields).status_code for _ in range(SIGN_INS_PER_MINUTE + 1)
        ]
        assert codes == [403] * SIGN_INS_PER_MINUTE + [429]

    @pytest.mark.parametrize("name", ["Anna", "Nobody"])
    def test_a_wrong_sign_in_keeps_the_name_and_does_not_say_which_field_is_wrong(
        self, fresh: Coordinator, name: str
    ) -> None:
        set_up(fresh, "Anna", Role.OPERATOR)
        answer = self.sent(browser(fresh), name=name, password="a guess", code="123456")
        assert answer.status_code == 403
        assert f'value="{name}"' in answer.text
        assert answer.text.count('aria-invalid="true" aria-describedby="sign-in-problem"') == 3
        assert answer.text.count('id="sign-in-problem"') == 1
        assert "a guess" not in answer.text
        assert "123456" not in answer.text

    def test_a_stolen_session_ends_with_sign_out_and_with_time(self, fresh: Coordinator) -> None:
        client, thief = browser(fresh, Role.OPERATOR), browser(fresh)
        stolen = client.cookies.get("pate-fed-session")
        assert stolen is not None
        thief.cookies.set("pate-fed-session", stolen)
        assert thief.get("/").status_code == 200
        client.post("/sign-out", data={"form_token": form_token(client, "/")})
        assert thief.get("/").headers["location"] == "/sign-in"
        assert fresh.sessions.find("") is None
        assert fresh.sessions.find("ä" * 64) is None

    @pytest.mark.parametrize(
        ("gaps", "is_open"),
        [
            pytest.param([IDLE - timedelta(seconds=1)], True, id="shortly before"),
            pytest.param([IDLE], False, id="idle"),
            pytest.param([timedelta(minutes=20)] * 3, True, id="used now and then"),
            pytest.param([timedelta(minutes=20)] * 36, False, id="absolute"),
        ],
    )
    def test_a_session_ends_idle_and_after_half_a_day(
        self, fresh: Coordinator, gaps: list[timedelta], is_open: bool
    ) -> None:
        fresh.people.add("Anna", Role.AUDITOR)
        now = fresh.people._clock()
        sessions = Sessions(fresh._database, random_bytes=bytes, clock=lambda: now)
        token = sessions.open("Anna")
        for gap in gaps:
            now += gap
            found = sessions.find(token)
        assert (found is not None) is is_open
        assert sum(gaps, timedelta()) < ABSOLUTE or not is_open

    def test_a_page_that_updates_itself_keeps_nobody_signed_in(self, fresh: Coordinator) -> None:
        fresh.people.add("Anna", Role.AUDITOR)
        now = fresh.people._clock()
        sessions = Sessions(fresh._database, random_bytes=bytes, clock=lambda: now)
        token = sessions.open("Anna")
        for _ in range(4):
            now += IDLE / 4
            sessions.find(token, is_request=False)
        assert sessions.find(token) is None

    @pytest.mark.parametrize("password", ["short", "anna anna anna", "aaaaaaaaaaaaaaaa", "x" * 300])
    def test_a_password_that_is_easy_to_guess_is_refused(
        self, fresh: Coordinator, password: str
    ) -> None:
        code = fresh.people.add("Anna", Role.AUDITOR)
        with pytest.raises(PersonError):
            fresh.people.choose_password("Anna", setup_code=code.text, password=password)

    def test_the_last_administrator_stays(self, fresh: Coordinator) -> None:
        fresh.people.add("Anna", Role.ADMINISTRATOR)
        for act in (
            lambda: fresh.people.remove("Anna"),
            lambda: fresh.people.give_role("Anna", Role.AUDITOR),
        ):
            with pytest.raises(PersonError):
                act()
        assert [one.role for one in fresh.people.all()] == [Role.ADMINISTRATOR]


def test_one_time_codes_are_those_of_the_standard() -> None:
    """RFC 6238, appendix B, in six digits."""
    key = b"12345678901234567890"
    known = {59: "287082", 1111111109: "081804", 1234567890: "005924", 20000000000: "353130"}
    assert {at: code_at(key, at // 30) for at in known} == known
    assert app_address(key, person="A&b", federation="lung study") == (
        "otpauth://totp/lung%20study:A%26b?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
        "&issuer=lung%20study"
    )


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


class TestUploads:
    def sent(
        self,
        client: TestClient,
        content: bytes,
        *,
        path: str = "/new-run/cost",
        file: str = "public.csv",
        **fields: str,
    ) -> Any:
        data = {
            "form_token": form_token(client, "/new-run"),
            "name": "first",
            "label": "sick",
            "classes": "no,yes",
            "select": "random",
            "epsilon": "5",
            "delta": "1e-5",
            "noise": "coordinator",
            "patience": "24",
            **fields,
        }
        return client.post(path, data=data, files={"file": (file, content)})

    def test_images_are_shown_small_before_they_are_asked(
        self, fresh: Coordinator, tmp_path: Path
    ) -> None:
        add_hospitals(fresh, "North", "South", "West")
        pool = write_public_images(tmp_path / "pool", images=30)
        content = Path(shutil.make_archive(str(tmp_path / "pool"), "zip", pool)).read_bytes()
        client = browser(fresh, Role.OPERATOR)
        wanted = {"ask": "10", "sigma2": "9", "epsilon": "500", "file": "pool.zip"}
        shown = self.sent(client, content, **wanted)
        assert shown.status_code == 200, shown.text
        assert "data:image/png;base64," in shown.text
        assert "img-src 'self' data:" in shown.headers["content-security-policy"]
        seen = re.search(r'name="seen" value="([0-9a-f]{64})"', shown.text)
        assert seen is not None
        queued = self.sent(client, content, path="/new-run", seen=seen[1], **wanted)
        assert queued.status_code == 303, queued.text
        request = RunRequest.from_json(fresh.queue.request("first"))
        assert (request.kind, len(request.queries)) == ("image", 10)
        assert fresh.pools.find(request.pool).pool.images is not None
        again = self.sent(client, b"", name="second", pool=request.pool.hex(), ask="5", sigma2="9")
        assert again.status_code == 200, again.text

    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(b"PK\x03\x04" + bytes(40), id="a broken archive"),
            pytest.param(b"", id="nothing"),
            pytest.param(zipped({"../../1.png": b"no image"}), id="no image, and a path"),
            pytest.param(zipped({"1.txt": b"words"}), id="no file of an image"),
            pytest.param(zipped({"1.png": bytes(10**8)}), id="a bomb"),
        ],
    )
    def test_an_archive_that_holds_no_images_is_refused(
        self, fresh: Coordinator, content: bytes
    ) -> None:
        add_hospitals(fresh, "North", "South", "West")
        answer = self.sent(browser(fresh, Role.OPERATOR), content, file="pool.zip")
        assert answer.status_code == 400, answer.text
        assert list(fresh.home.path("pools").iterdir()) == []

    @sampled()
    @pytest.mark.parametrize(
        ("content", "status"),
        [
            pytest.param(b"", 400, id="empty"),
            pytest.param(b"\x00\x01\x02" * 50, 400, id="binary"),
            pytest.param(b"a,b\n1\n", 400, id="rows of other lengths"),
            pytest.param(b"a\n" + b"1\n" * (MOST_ROWS + 1), 413, id="too many rows"),
            pytest.param(b"x" * (MOST_UPLOAD_BYTES + 2**17), 413, id="too large"),
            pytest.param(b"#!/bin/sh\ntouch /dev/shm/owned\n", 400, id="a program"),
        ],
    )
    def test_a_file_that_is_no_table_is_refused(
        self, fresh: Coordinator, content: bytes, status: int
    ) -> None:
        add_hospitals(fresh, "North", "South", "West")
        answer = self.sent(browser(fresh, Role.OPERATOR), content)
        assert answer.status_code == status
        assert fresh.queue.all() == []
        assert list(fresh.home.path("pools").iterdir()) == []

    def test_a_run_above_its_budget_is_refused_with_what_fits(self, fresh: Coordinator) -> None:
        add_hospitals(fresh, "North", "South", "West")
        rows = "\n".join(f"{row},{row % 7}" for row in range(40))
        table = f"age,weight\n{rows}\n".encode()
        client = browser(fresh, Role.OPERATOR)
        wanted = {"ask": "30", "sigma2": "9", "vote_threshold": "15", "epsilon": "1"}
        refused = self.sent(client, table, **wanted)
        found = re.search(r"at most (\d+) quer", refused.text)
        assert found is not None, refused.text
        assert "PF-131" in refused.text
        fits = self.sent(client, table, **{**wanted, "ask": found[1]})
        assert fits.status_code == 200, fits.text
        assert fresh.queue.all() == []

    def test_a_file_is_shown_with_the_use_of_each_column_and_the_classes_of_its_label(
        self, fresh: Coordinator
    ) -> None:
        rows = "\n".join(f"{row},x{row},{'mf'[row % 2]}" for row in range(40))
        table = f"age,id,{HOSTILE}\n{rows}\n".encode()
        client = browser(fresh, Role.OPERATOR)
        client.headers["HX-Request"] = "true"
        shown = self.sent(client, table, path="/new-run/rows", label="", classes="").text
        uses = re.findall(r'<li><span class="tag \w+">([a-z ]+)</span> ([^<\s]+)', shown)
        escaped = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"
        assert uses == [("number", "age"), ("left out", "id"), ("category", escaped)]
        assert HOSTILE not in shown
        picked = self.sent(client, table, path="/new-run/rows", label=HOSTILE).text
        assert re.findall(r'name="(class-\d+)" value="(\w)" checked', picked) == [
            ("class-0", "f"),
            ("class-1", "m"),
        ]
        unknown = self.sent(client, table, path="/new-run/rows", label="sick").text
        assert 'name="classes"' in unknown
        client.headers["HX-Trigger-Name"] = "label"
        typed = self.sent(client, table, path="/new-run/rows", label="sick")
        assert (typed.status_code, typed.text) == (204, "")
        assert fresh.queue.all() == []
        assert list(fresh.home.path("pools").iterdir()) == []

    def test_budgets_are_compared_and_those_that_do_not_fit_say_so(
        self, fresh: Coordinator
    ) -> None:
        add_hospitals(fresh, "North", "South", "West")
        table = ("age,weight\n" + "\n".join(f"{row},{row % 7}" for row in range(40))).encode()
        client = browser(fresh, Role.OPERATOR)
        client.headers["HX-Request"] = "true"
        wanted = {"ask": "4", "sigma2": "9", "vote_threshold": "15", "epsilon": ""}
        shown = self.sent(client, table, path="/new-run/budgets", **wanted).text
        assert re.findall(r'data-epsilon="(\d+)"', shown) == ["1", "2", "3", "5", "8"]
        few = self.sent(client, table, path="/new-run/budgets", **{**wanted, "ask": "40"}).text
        assert few.count("PF-131") > shown.count("PF-131")
        assert fresh.queue.all() == []

    def test_each_hospital_is_in_a_run_or_not_with_the_reason(self, fresh: Coordinator) -> None:
        add_hospitals(fresh, "North", "South")
        add_hospitals(fresh, "Empty", votes=0)
        add_hospitals(fresh, "East", state="requested")
        add_hospitals(fresh, "Rest", state="suspended")
        add_hospitals(fresh, "Gone", state="revoked")
        shown = browser(fresh, Role.OPERATOR).get("/new-run").text
        found = re.findall(
            r'scope="row">(\w+)</th><td[^>]*><span class="tag (\w+)">',
            shown,
        )
        assert found == [
            *(("Empty", "bad"), ("North", "good"), ("South", "good")),
            *(("East", "none"), ("Rest", "none")),
        ]

    def test_a_run_is_queued_only_with_the_cost_that_was_seen(self, fresh: Coordinator) -> None:
        add_hospitals(fresh, "North", "South", "West")
        rows = "\n".join(f"{row},{row % 7}" for row in range(40))
        table = f"age,weight\n{rows}\n".encode()
        client = browser(fresh, Role.OPERATOR)

        def seen_in(answer: Any) -> str:
            found = re.search(r'name="seen" value="([0-9a-f]{64})"', answer.text)
            assert found is not None
            return found[1]

        wanted = {"ask": "4", "sigma2": "9", "vote_threshold": "15", "epsilon": "50"}
        seen = seen_in(self.sent(client, table, **wanted))
        more = {**wanted, "ask": "5"}
        for asked, stale in ((wanted, ""), (wanted, "0" * 64), (more, seen)):
            again = self.sent(client, table, path="/new-run", seen=stale, **asked)
            assert again.status_code == 200
            assert seen_in(again) != stale
            assert fresh.queue.all() == []
        queued = self.sent(client, table, path="/new-run", seen=seen, **wanted)
        assert (queued.status_code, queued.headers["location"]) == (303, "/runs/first")
        assert [one.name for one in fresh.queue.all()] == ["first"]

    def test_a_page_that_stays_open_shows_the_cost_and_then_goes_to_the_run(
        self, fresh: Coordinator
    ) -> None:
        add_hospitals(fresh, "North", "South", "West")
        table = ("age,weight\n" + "\n".join(f"{row},{row % 7}" for row in range(40))).encode()
        client = browser(fresh, Role.OPERATOR)
        wanted = {"ask": "4", "sigma2": "9", "vote_threshold": "15", "epsilon": "50"}
        client.headers["HX-Request"] = "true"
        shown = self.sent(client, table, **wanted).text
        assert "<html" not in shown
        found = re.search(r'name="seen" value="([0-9a-f]{64})"', shown)
        assert found is not None
        queued = self.sent(client, table, path="/new-run", seen=found[1], **wanted)
        assert (queued.status_code, queued.headers["hx-redirect"]) == (204, "/runs/first")
        assert [one.name for one in fresh.queue.all()] == ["first"]

    def test_a_form_that_is_too_large_or_malformed_is_refused(self, fresh: Coordinator) -> None:
        client = browser(fresh, Role.OPERATOR)
        token = form_token(client, "/")
        assert client.post("/sign-out", data={"x": "y" * 2**17}).status_code == 413
        many = {f"field{number}": "x" for number in range(100)}
        for path, sent in (
            ("/hospitals/invite", {"form_token": token, "hospital": "x" * 65, "days": "7"}),
            ("/hospitals/invite", {"form_token": token, "hospital": "East", "days": "nan"}),
            ("/hospitals/invite", {"form_token": token, "hospital": HOSTILE, "days": "7"}),
            ("/hospitals/invite", {"form_token": token, **many}),
            ("/hospitals/approve", {"form_token": token, "hospital": "East", "words": "a " * 12}),
        ):
            assert client.post(path, data=sent).status_code == 400, path
        broken = client.post(
            "/new-run/cost",
            content=b"--x\r\nno form at all",
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        )
        assert broken.status_code in (400, 403)

    @pytest.mark.parametrize(
        "file",
        [
            "../../../federation.toml",
            "..%2f..%2f..%2ffederation.toml",
            "%2e%2e/%2e%2e/coordinator.db",
            "/etc/passwd",
            "labels.csv%00",
            "LABELS.CSV",
        ],
    )
    def test_a_download_leaves_the_results_on_no_path(
        self, federation: Coordinator, file: str
    ) -> None:
        client, before = browser(federation, Role.OPERATOR), federation.audit_log.end
        answer = client.get(f"/runs/is-done/results/{file}")
        assert answer.status_code in (303, 404), answer.text
        assert b"root:" not in answer.content
        assert b"identity" not in answer.content
        assert federation.audit_log.end == before

    def test_a_download_is_the_file_and_leaves_an_entry(self, fresh: Coordinator) -> None:
        add_runs(fresh, "first", hospitals=("North",))
        add_results(fresh, "first")
        answer = browser(fresh, Role.AUDITOR).get("/runs/first/results/labels.csv")
        assert answer.text.startswith("query_id,label")
        assert answer.headers["content-disposition"].startswith("attachment")
        newest, *_ = newest_acts(fresh, most=1)
        assert (newest["act"], newest["by"], newest["after"]) == (
            FederationAct.EXPORTED,
            "Some auditor",
            {"file": "labels.csv"},
        )

    def test_two_runs_stand_side_by_side(self, fresh: Coordinator) -> None:
        add_runs(fresh, "first", hospitals=("North", "South"), queries=77)
        add_runs(fresh, "second", hospitals=("North",), state=RunState.QUEUED, queries=88)
        add_results(fresh, "first")
        client = browser(fresh, Role.AUDITOR)
        assert client.get("/runs").text.count('name="run" value=') == 2
        shown = client.get("/compare?run=first&run=second").text
        found = {
            name: [re.sub(r"<[^>]*>", "", one) for one in re.findall(r"<td.*?>(.*?)</td>", cells)]
            for name, cells in re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', shown, re.S)
        }
        assert found["Queries"] == ["77", "88"]
        assert found["Hospitals"] == ["2", "1"]
        assert found["Epsilon"] == ["2.345", "\N{EN DASH}"]
        assert found["State"] == ["done", "queued"]
        assert {len(cells) for cells in found.values()} == {2}

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            pytest.param("", 400, id="no run"),
            pytest.param("?run=first", 400, id="one run"),
            pytest.param("?run=first&run=first&run=first", 400, id="three runs"),
            pytest.param("?run=first&run=nobody", 404, id="an unknown run"),
        ],
    )
    def test_other_than_two_known_runs_are_not_compared(
        self, fresh: Coordinator, query: str, status: int
    ) -> None:
        add_runs(fresh, "first", hospitals=("North",))
        answer = browser(fresh, Role.AUDITOR).get(f"/compare{query}")
        assert answer.status_code == status

    @pytest.mark.parametrize("file", [*READABLE, "privacy.json"])
    def test_a_report_is_read_in_the_browser_without_the_rights_of_the_console(
        self, fresh: Coordinator, file: str
    ) -> None:
        add_runs(fresh, "first", hospitals=("North",))
        add_results(fresh, "first")
        there = fresh.home.results("first") / file
        if not there.exists():
            there.write_text(HOSTILE, "utf-8")
        answer = browser(fresh, Role.AUDITOR).get(f"/runs/first/results/{file}?show=yes")
        assert answer.status_code == 200
        assert answer.content == fresh.finished.content("first", file)
        policy = answer.headers["content-security-policy"].split("; ")
        assert ("sandbox" in policy) == (file in READABLE)
        assert not any("script-src" in one and file in READABLE for one in policy)
        assert ("content-disposition" in answer.headers) == (file not in READABLE)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert newest_acts(fresh, most=1)[0]["after"] == {"file": file}

    def test_the_public_edition_is_one_archive_without_private_files(
        self, fresh: Coordinator
    ) -> None:
        add_runs(fresh, "first", hospitals=("North",))
        add_results(fresh, "first")
        for name in ("notes.txt", "student/patients.csv"):  # put there by whoever
            fresh.home.results("first").joinpath(name).write_text("Jane Doe", "utf-8")
        client = browser(fresh, Role.AUDITOR)
        answer = client.get("/runs/first/results/public-edition.zip")
        assert answer.status_code == 200
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            names = archive.namelist()
        assert "first/report.html" in names
        kept = {"report.html", "labels.csv", "run.toml", "student/model_card.md"}
        kept |= {f"{name}.json" for name in ("manifest", "metrics", "privacy")}
        assert set(names) == {f"first/{name}" for name in kept}
        assert newest_acts(fresh, most=1)[0]["after"] == {"file": "public-edition.zip"}


class TestActs:
    def test_an_act_names_the_person_who_is_signed_in(self, fresh: Coordinator) -> None:
        add_hospitals(fresh, "East", state="requested")
        client = browser(fresh, Role.OPERATOR)
        token = form_token(client, "/hospitals")
        made = client.post(
            "/hospitals/invite", data={"form_token": token, "hospital": "Müller", "days": "7"}
        )
        assert made.json()["party"] == "Müller"
        assert "attachment" in made.headers["content-disposition"]
        words = spoken(fresh.enrollment.parties()[0].identity.fingerprint)
        fields = {"form_token": token, "hospital": "East"}
        assert client.post("/hospitals/approve", data={**fields, "words": words}).status_code == 303
        wrong = {"form_token": token, "hospital": "East", "typed": "Est"}
        assert client.post("/hospitals/revoke", data=wrong).status_code == 400
        assert client.post("/hospitals/revoke", data={**wrong, "typed": "East"}).status_code == 303
        acts = [(one["act"], one["subject"]) for one in reversed(newest_acts(fresh, most=3))]
        assert acts == [
            (FederationAct.INVITED, "Müller"),
            (FederationAct.APPROVED, "East"),
            (FederationAct.REVOKED, "East"),
        ]
        whos = {(one["by"], one["from"]) for one in newest_acts(fresh, most=3)}
        assert whos == {("Some operator", "console")}
        assert made.json()["token"] not in client.get("/audit").text

    def test_a_broken_chain_is_shown(self, fresh: Coordinator) -> None:
        add_entries(fresh, 5)
        client = browser(fresh, Role.AUDITOR)
        token = form_token(client, "/audit")
        good = client.post("/audit/verify", data={"form_token": token}).text
        assert f":{fresh.audit_log.end[1].hex()}" in good
        with fresh._database.transaction() as connection:
            connection.exec_driver_sql("UPDATE audit SET link = x'00' WHERE number = 3")
        broken = client.post("/audit/verify", data={"form_token": token}).text
        assert fresh.audit_log.end[1].hex() not in broken
        assert "entry 3" in broken

    def test_a_stream_follows_a_run_to_its_end(self, fresh: Coordinator) -> None:
        add_runs(fresh, "first", hospitals=("North", HOSTILE))
        add_hospitals(fresh, "North", HOSTILE)
        answer = browser(fresh, Role.AUDITOR).get("/runs/first/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.startswith("event: state\ndata: ")
        assert answer.text.endswith("event: end\ndata: \n\n")
        assert "<script>" not in answer.text
        assert browser(fresh).get("/runs/first/events").headers["location"] == "/sign-in"
        assert browser(fresh, Role.AUDITOR).get("/runs/none/events").status_code == 404

    def test_a_stream_outlives_a_database_that_others_hold_for_long(
        self, fresh: Coordinator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "LOOK_S", 0.0)
        find, looks = fresh.queue.find, count()

        def busy(name: str) -> Run:
            if next(looks) in (1, 2):  # before, the route looks whether there is such a run
                raise DatabaseError("the database must be there and writable", "a lock")
            return find(name)

        add_runs(fresh, "first", hospitals=("North",))
        client = browser(fresh, Role.AUDITOR)
        monkeypatch.setattr(fresh.queue, "find", busy)
        text = client.get("/runs/first/events").text
        assert text.startswith(": beat\n\n: beat\n\nevent: state\n")
        assert text.endswith("event: end\ndata: \n\n")

    def test_a_stream_of_a_run_that_rests_is_kept_open(
        self, fresh: Coordinator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "LOOK_S", 0.0)
        add_runs(fresh, "first", hospitals=("North",), state=RunState.RUNNING)
        find, looks = fresh.queue.find, count()

        def ending(name: str) -> Run:
            run = find(name)
            is_over = next(looks) > 4 * live._BEAT_EVERY
            return replace(run, state=RunState.DONE) if is_over else run

        client = browser(fresh, Role.AUDITOR)
        monkeypatch.setattr(fresh.queue, "find", ending)
        text = client.get("/runs/first/events").text
        assert text.count("event: state\n") <= 2
        assert ": beat\n" in text
        assert text.endswith("event: end\ndata: \n\n")

    def test_a_hospital_that_never_called_is_shown_as_such(self, fresh: Coordinator) -> None:
        add_hospitals(fresh, "North")
        with fresh._database.transaction() as connection:
            connection.execute(update(MemberRow).values(seen_at=None))
        shown = browser(fresh, Role.AUDITOR).get("/hospitals").text
        assert re.search(r'data-label="Last seen">never', shown)


def test_the_vote_leak_of_a_run_is_shown_to_everybody_who_reads(federation: Coordinator) -> None:
    client, before = browser(federation, Role.AUDITOR), federation.audit_log.end
    shown = client.get("/audit/vote-leak?run=is-done").text
    assert "Repetition" in shown
    assert '<path class="line" d="M0' in shown
    for run in ("none", "is-failed", "../is-done"):
        assert client.get("/audit/vote-leak", params={"run": run}).status_code == 404
    assert federation.audit_log.end == before


def test_a_plot_goes_up_in_steps_and_stays_inside() -> None:
    drawn = step_plot([(1, 1.0), (2, 3.0)], last="2")
    assert (drawn["width"], drawn["height"]) == (640.0, 220.0)
    assert drawn["line"] == "M0 220.0H320.0V153.3H640.0V20.0"


def test_over_tls_cookies_are_bound_to_the_host(fresh: Coordinator) -> None:
    client = TestClient(
        build(fresh, hosts={"console.example"}, is_secure=True),
        base_url="https://console.example",
        follow_redirects=False,
    )
    answer = client.get("/sign-in")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-pate-fed-visit=")
    assert "Secure" in cookie
    assert "max-age" in answer.headers["strict-transport-security"]
    assert client.get("/sign-in", headers={"Host": "127.0.0.1"}).status_code == 421
    assert BASE.startswith("http:")


class TestCommands:
    def test_people_are_added_listed_changed_and_removed(
        self, pate_fed: Command, fresh: Coordinator
    ) -> None:
        home = ("--home", fresh.home.folder)
        made = pate_fed(
            *("users", "add", "Anna", "--role", "administrator", "--format", "json"), *home
        ).json
        with pytest.raises(PersonError):
            fresh.people.choose_password("Anna", setup_code="0" * 30, password=PASSWORD)
        assert fresh.people.choose_password(
            "Anna", setup_code=made["setup_code"], password=PASSWORD
        )
        assert pate_fed("users", "add", "Bert", "--role", "auditor", *home).code == 0
        assert pate_fed("users", "role", "Bert", "--role", "privacy officer", *home).code == 0
        assert pate_fed("users", "reset", "Bert", *home).code == 0
        shown = pate_fed("users", "list", *home, "--format", "json").json["people"]
        assert [(one["name"], one["role"], one["is_set_up"]) for one in shown] == [
            ("Anna", "administrator", False),
            ("Bert", "privacy officer", False),
        ]
        assert pate_fed("users", "remove", "Bert", *home).code == 0
        acts = [one["act"] for one in reversed(newest_acts(fresh))]
        assert acts == [
            *("person added", "person added", "person changed", "person changed"),
            "person removed",
        ]

    @pytest.mark.parametrize(
        ("words", "code", "error"),
        [
            pytest.param(("add", "ANNA", "--role", "auditor"), 3, "PF-434", id="again"),
            pytest.param(("add", "<b>", "--role", "auditor"), 3, "PF-434", id="no name"),
            pytest.param(("add", "Bert", "--role", "king"), 2, "PF-402", id="no role"),
            pytest.param(("add", "Bert"), 2, "PF-402", id="without a role"),
            pytest.param(("remove", "Anna"), 3, "PF-434", id="last administrator"),
            pytest.param(("reset", "Nobody"), 3, "PF-434", id="nobody"),
        ],
    )
    def test_a_mistake_is_told(
        self,
        pate_fed: Command,
        fresh: Coordinator,
        words: tuple[str, ...],
        code: int,
        error: str,
    ) -> None:
        fresh.people.add("Anna", Role.ADMINISTRATOR)
        ended = pate_fed("users", *words, "--home", fresh.home.folder)
        assert (ended.code, ended.error_code) == (code, error)


def test_it_is_served_over_tls_with_the_coordinators_certificate_unless_on_loopback(
    fresh: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[uvicorn.Server] = []
    addresses: Queue[str] = Queue()

    class Kept(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            started.append(self)

    monkeypatch.setattr(server, "is_loopback", lambda _: False)
    monkeypatch.setattr(uvicorn, "Server", Kept)
    thread = Thread(
        target=server.serve,
        args=(fresh,),
        kwargs={"host": "127.0.0.1", "port": 0, "on_ready": addresses.put},
        daemon=True,
    )
    thread.start()
    address = addresses.get(timeout=60)
    assert address.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cadata=fresh.home.ca_certificate.decode())
    with httpx.Client(verify=trusted, trust_env=False, timeout=60) as client:
        answer = client.get(f"{address}sign-in")
    assert answer.status_code == 200
    assert "Secure" in answer.headers["set-cookie"]
    assert "server" not in answer.headers
    started[0].should_exit = True
    thread.join(60)
    assert not thread.is_alive()


def test_runs_are_searched_by_name_and_their_epsilon_is_drawn_below_the_budget(
    fresh: Coordinator,
) -> None:
    add_hospitals(fresh, "North")
    add_runs(fresh, "lung-1", "lung-2", "heart_1", "heartx1", hospitals=("North",))
    fresh.budget.change(20.0, reason="")
    client = browser(fresh, Role.AUDITOR)

    def named(name: str) -> list[str]:
        return re.findall(r'row"><a href="/runs/([^"]+)', client.get(f"/runs?name={name}").text)

    assert named("lung") == ["lung-2", "lung-1"]
    assert named("heart_") == ["heart_1"]
    assert named("%25") == []
    drawn = step_plot([(1, 1.0), (2, 2.0)], last="2", bound=4.0)
    assert drawn["bound"] == pytest.approx(220 * (1 - 1 / 1.1), abs=0.05)
    assert client.get("/privacy").text.count('class="bound"') == 1

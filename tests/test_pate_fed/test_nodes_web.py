"""What stands around the pages of both nodes: hosts, headers, forms, whoever sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.console import form_input
from coordinator.people.people import Role
from party.errors import PageError, PartyError
from party.owner import opened_records
from party.page import pages_app as page
from party.page.session import PageSessions
from pate_fed.nodes.ports import host_and_port, is_host, is_loopback, listen
from pate_fed.nodes.web import require_token
from tests.support.console import browser, form_token, opened
from tests.support.hospital_site import make_site
from tests.support.page_hospital import PageClient

HOST = "127.0.0.1:9480"
ELSEWHERE = "http://elsewhere.example"
URLENCODED = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Signed:
    """A browser in which somebody is signed in at the pages of a node.

    Attributes:
        get: Asks for a path.
        post: Sends a body to a form that changes something.
        paths: Some that are there, and one that is not.
        token: The field of a form's token, and the right one.
        entries: How many entries the node's audit log has.
        own: Origin of its pages.
        most_bytes: Of a form.
    """

    get: Callable[..., Any]
    post: Callable[..., Any]
    paths: tuple[str, ...]
    token: tuple[str, str]
    entries: Callable[[], int]
    own: str
    most_bytes: int


@contextmanager
def at_hospital(folder: Path) -> Iterator[Signed]:
    with opened_records(make_site(folder)) as site:
        sessions = PageSessions(clock=lambda: 0.0)
        app = page.build(site, sessions=sessions, hosts={HOST}, by="M. Curie")
        client, room = PageClient(app, base_url=f"http://{HOST}"), f"/{sessions.room}/"
        client.get(f"{room}{page.ENTER}?link={sessions.make_link()}")
        session = sessions.find(client.cookies["pate-party"])
        assert session is not None
        yield Signed(
            client.get,
            lambda **more: client.post(f"{room}pause", **more),
            (room, f"{room}audit", f"{room}style.css", "/nothing"),
            ("csrf", session.csrf),
            lambda: site.log.end[0],
            f"http://{HOST}",
            page.MOST_FORM_BYTES,
        )


@contextmanager
def at_coordinator(folder: Path) -> Iterator[Signed]:
    with opened(folder) as coordinator:
        client = browser(coordinator, Role.ADMINISTRATOR)
        yield Signed(
            client.get,
            lambda **more: client.post("/hospitals/invite", **more),
            ("/", "/audit", "/sign-in", "/static/console.css", "/nothing"),
            ("form_token", form_token(client, "/")),
            lambda: coordinator.audit_log.end[0],
            str(client.base_url).rstrip("/"),
            form_input.MOST_FORM_BYTES,
        )


@pytest.fixture(scope="module", params=[at_hospital, at_coordinator])
def signed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Signed]:
    with request.param(tmp_path_factory.mktemp("web") / "node") as made:
        yield made


FIELDS = {"hospital": "East", "days": "7"}


class TestRequests:
    @pytest.mark.parametrize(
        "host",
        [
            pytest.param("elsewhere.example:9480", id="rebound name"),
            pytest.param("127.0.0.1.elsewhere.example", id="longer"),
            pytest.param("localhost@elsewhere.example", id="user"),
            pytest.param("", id="empty"),
            pytest.param("[", id="bracket"),
        ],
    )
    def test_a_forged_host_gets_no_page(self, signed: Signed, host: str) -> None:
        for path in signed.paths:
            answer = signed.get(path, headers={"host": host})
            assert (answer.status_code, "study" in answer.text) == (421, False)

    def test_every_answer_forbids_frames_scripts_of_others_and_caches(self, signed: Signed) -> None:
        answers = [signed.get(path) for path in signed.paths]
        answers.append(signed.post(data={}))
        answers.append(signed.get(signed.paths[0], headers={"host": "elsewhere.example"}))
        for answer in answers:
            headers = answer.headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "form-action 'self'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "camera=()" in headers["permissions-policy"]
            is_file = "static" in str(answer.url) and answer.status_code == 200
            assert is_file or headers["cache-control"] == "no-store"


class TestForms:
    @pytest.mark.parametrize(
        ("headers", "token"),
        [
            pytest.param({}, "", id="no token"),
            pytest.param({}, "0" * 64, id="guessed token"),
            pytest.param({}, "ä" * 64, id="no hex"),
            pytest.param({"origin": ELSEWHERE}, None, id="other origin"),
            pytest.param({"origin": "null"}, None, id="null origin"),
            pytest.param({"origin": "http://127.0.0.1:9999"}, None, id="other port"),
            pytest.param({"sec-fetch-site": "cross-site"}, None, id="cross-site"),
            pytest.param({"sec-fetch-site": "same-site"}, None, id="same-site"),
        ],
    )
    def test_a_form_of_somebody_else_changes_nothing(
        self, signed: Signed, headers: dict[str, str], token: str | None
    ) -> None:
        name, right = signed.token
        before = signed.entries()
        data = {name: right if token is None else token, **FIELDS}
        assert signed.post(data=data, headers=headers).status_code == 403
        assert signed.entries() == before

    def test_one_of_ours_is_taken(self, signed: Signed) -> None:
        """Otherwise the refusals above would prove nothing."""
        name, right = signed.token
        before = signed.entries()
        headers = {"origin": signed.own, "sec-fetch-site": "same-origin"}
        answer = signed.post(data={name: right, **FIELDS}, headers=headers)
        assert answer.status_code in (200, 303)
        assert signed.entries() == before + 1

    @pytest.mark.parametrize(
        ("body", "kind", "status"),
        [
            pytest.param("{}=" + "x" * 2**17, URLENCODED, 413, id="oversized"),
            pytest.param("{}=1&{}=2", URLENCODED, 400, id="twice"),
            pytest.param("&".join(f"a{n}=1" for n in range(90)), URLENCODED, 400, id="many"),
            pytest.param("{}", URLENCODED, 403, id="no value"),
            pytest.param("{}=%ff%fe", URLENCODED, 403, id="no text"),
            pytest.param("", URLENCODED, 403, id="empty"),
            pytest.param('["{}"]', "application/json", 400, id="JSON"),
            pytest.param("{}=1", "text/plain", 400, id="plain text"),
            pytest.param("--y", "multipart/form-data; boundary=x", 400, id="multipart"),
        ],
    )
    def test_a_malformed_one_is_refused(
        self, signed: Signed, body: str, kind: str, status: int
    ) -> None:
        content = body.replace("{}", signed.token[0])
        before = signed.entries()
        answer = signed.post(content=content, headers={"content-type": kind})
        assert (answer.status_code, signed.entries()) == (status, before)

    def test_a_browser_without_a_secret_has_no_token_to_send(self) -> None:
        with pytest.raises(PageError):
            require_token({"token": ""}, "token", "", fault=PageError)  # type: ignore[arg-type]


class TestPorts:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("coordinator.example.org:8443", ("coordinator.example.org", 8443)),
            ("192.0.2.7:1", ("192.0.2.7", 1)),
            ("[2001:db8::7]:65535", ("2001:db8::7", 65535)),
            ("2001:db8::7:8443", None),
            ("[name]:8443", None),
            ("name:0", None),
            ("name:65536", None),
            ("name:\u0661", None),
            ("name", None),
            (":8443", None),
            ("192.0.2.300:1", None),
            ("-name:1", None),
        ],
    )
    def test_an_address_is_a_host_and_a_port(
        self, text: str, found: tuple[str, int] | None
    ) -> None:
        assert host_and_port(text) == found

    def test_a_host_has_the_letters_of_dns(self) -> None:
        assert all(is_host(one) for one in ("a", "a_b.example", "a.example.", "::1", "10.0.0.1"))
        wrong = ("", "a b", "a..b", "a" * 64, "1.2.3", "ä.example", "x" * 254)
        assert not any(is_host(one) for one in wrong)

    def test_loopback_is_this_machine_alone(self) -> None:
        assert all(is_loopback(one) for one in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
        assert not any(is_loopback(one) for one in ("192.0.2.1", "::", "console.example"))

    def test_a_port_that_is_taken_is_named(self) -> None:
        with listen("127.0.0.1", 0, fault=PartyError) as held:
            port = held.getsockname()[1]
            with pytest.raises(PartyError) as caught:
                listen("127.0.0.1", port, fault=PartyError)
        assert str(port) in str(caught.value)

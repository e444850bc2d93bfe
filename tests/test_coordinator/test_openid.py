"""Sign-in by an OpenID provider, which this test serves; and everything a liar could send."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from starlette.testclient import TestClient

from coordinator.errors import HomeError, PersonError
from coordinator.federation.home import OPENID_SECRET, OPENID_VARIABLE, OpenIdSettings
from coordinator.operator import Coordinator
from coordinator.people.openid import is_safe_address
from coordinator.people.people import Role
from pate_fed.errors import MissingExtraError
from tests.support.command import Command, pate_fed
from tests.support.console import browser, form_token, newest_acts, opened

__all__ = ["pate_fed"]

CLIENT, SECRET = "the console", "a secret of the console"
CODE = "a-code-for-once"


def encoded(table: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(table).encode()).decode().rstrip("=")


@dataclass
class Provider:
    """A small OpenID provider. What it says can be bent."""

    issuer: str
    key: ECKey = field(default_factory=lambda: ECKey.generate_key("P-256"))
    described: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    signed_by: Any = None
    algorithm: str = "ES256"
    challenge: str = ""
    redirect_uri: str = ""
    asked: list[str] = field(default_factory=list)

    def authorize(self, url: str) -> dict[str, str]:
        """Do what its own pages do: note the request, and send the browser back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert query["code_challenge_method"] == "S256"
        self.challenge, self.redirect_uri = query["code_challenge"], query["redirect_uri"]
        now = int(time.time())
        self.claims = {
            "iss": self.issuer,
            "sub": "anna-1",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": query["nonce"],
        }
        return {"code": CODE, "state": query["state"]}

    def answer(self, path: str, body: bytes, authorization: str) -> dict[str, Any] | None:
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            known = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
            return {**known, **self.described}
        if path == "/keys":
            return {"keys": [self.key.as_dict(private=False)]}
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        verifier = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).decode().rstrip("=")
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        is_right = (form["code"], form["redirect_uri"]) == (CODE, self.redirect_uri)
        if not is_right or challenge != self.challenge or authorization != f"Basic {basic}":
            return None
        header = {"alg": self.algorithm, "kid": self.key.thumbprint()}
        if self.algorithm == "none":
            token = f"{encoded(header)}.{encoded(self.claims)}."
        else:
            key = self.signed_by or self.key
            token = jwt.encode(header, self.claims, key, algorithms=[self.algorithm])
        return {"access_token": "x", "token_type": "Bearer", "id_token": token}


@contextmanager
def provided() -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            said = provider.answer(self.path, body, self.headers.get("Authorization", ""))
            self.send_response(400 if said is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(said or {}).encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = Provider(f"http://127.0.0.1:{server.server_address[1]}")
        provider.key.as_dict(private=False, kid=provider.key.thumbprint())
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield provider
        server.shutdown()


@pytest.fixture(scope="module")
def served() -> Iterator[Provider]:
    with provided() as provider:
        yield provider


@pytest.fixture
def provider(served: Provider) -> Provider:
    """The provider, honest again."""
    fresh = Provider(served.issuer, served.key)
    for name in ("described", "claims", "signed_by", "algorithm", "asked"):
        setattr(served, name, getattr(fresh, name))
    return served


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, served: Provider) -> Iterator[Coordinator]:
    """A federation whose people may sign in there; Anna has the account "anna-1"."""
    with opened(tmp_path_factory.mktemp("openid") / "federation") as coordinator:
        openid = OpenIdSettings(served.issuer, CLIENT)
        settings = replace(coordinator.home.settings, openid=openid)
        coordinator.home = replace(coordinator.home, settings=settings)
        secret = coordinator.home.path(OPENID_SECRET)
        secret.touch(mode=0o600)
        secret.write_text(SECRET + "\n")
        coordinator.people.add("Anna", Role.OPERATOR)
        coordinator.people.give_subject("Anna", "anna-1", issuer=served.issuer)
        yield coordinator


def begun(coordinator: Coordinator, provider: Provider) -> tuple[TestClient, dict[str, str]]:
    """A browser that comes back from the provider, and its query."""
    client = browser(coordinator)
    away = client.get("/sign-in/openid")
    assert away.status_code == 303
    assert "SameSite=lax" in away.headers["set-cookie"]
    return client, provider.authorize(away.headers["location"])


def test_somebody_whom_an_administrator_knows_gets_in(
    kept: Coordinator, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    assert "/sign-in/openid" in browser(kept).get("/sign-in").text
    client, query = begun(kept, provider)
    entered = client.get("/sign-in/openid/return", params=query)
    assert entered.status_code == 200
    assert 'content="0; url=/"' in entered.text
    assert "SameSite=strict" in entered.headers["set-cookie"]
    assert client.get("/new-run").status_code == 200  # as the operator that Anna is
    newest = newest_acts(kept, most=1)[0]
    assert (newest["by"], newest["after"]) == ("Anna", {"by": provider.issuer})
    again = client.get("/sign-in/openid/return", params=query)
    assert again.status_code == 403  # good once
    assert SECRET not in caplog.text
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("coordinator")]
    assert ours
    assert CODE not in " ".join(ours)
    assert SECRET not in repr(kept.home)


def claim(**changed: Any) -> Callable[[Provider], None]:
    def bend(provider: Provider) -> None:
        provider.claims.update(changed)
        provider.claims = {name: one for name, one in provider.claims.items() if one is not None}

    return bend


def by_a_stranger(provider: Provider) -> None:
    provider.signed_by = ECKey.generate_key("P-256")


def by_the_secret(provider: Provider) -> None:
    provider.signed_by, provider.algorithm = OctKey.import_key(SECRET.encode() * 2), "HS256"


def by_nobody(provider: Provider) -> None:
    provider.algorithm = "none"


@pytest.mark.parametrize(
    "bend",
    [
        pytest.param(by_a_stranger, id="forged"),
        pytest.param(by_the_secret, id="keyed by our secret"),
        pytest.param(by_nobody, id="not signed"),
        pytest.param(claim(nonce="another"), id="wrong nonce"),
        pytest.param(claim(nonce=None), id="no nonce"),
        pytest.param(claim(aud="another client"), id="wrong audience"),
        pytest.param(claim(aud=["another client", "a third"]), id="wrong audiences"),
        pytest.param(claim(aud=[CLIENT, "another"], azp="another"), id="for another"),
        pytest.param(claim(iss="http://127.0.0.1:1"), id="wrong issuer"),
        pytest.param(claim(exp=1), id="expired"),
        pytest.param(claim(exp=None), id="for ever"),
        pytest.param(claim(iat=int(time.time()) + 3600), id="from the future"),
        pytest.param(claim(sub="eve-9"), id="unknown subject"),
        pytest.param(claim(sub="anna-1\u200b"), id="alike subject"),
        pytest.param(claim(sub=""), id="empty subject"),
        pytest.param(claim(sub=17), id="no text"),
    ],
)
def test_no_other_token_lets_anybody_in(
    kept: Coordinator, provider: Provider, bend: Callable[[Provider], None]
) -> None:
    client, query = begun(kept, provider)
    before, people = kept.audit_log.end, kept.people.all()
    bend(provider)
    answer = client.get("/sign-in/openid/return", params=query)
    assert answer.status_code == 403
    assert client.get("/").headers["location"] == "/sign-in"
    assert (kept.audit_log.end, kept.people.all()) == (before, people)  # nobody was invented


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"state": "0" * 64}, id="state of another"),
        pytest.param({"state": ""}, id="no state"),
        pytest.param({"code": "another"}, id="code of another"),
        pytest.param({"iss": "http://127.0.0.1:1"}, id="another issuer"),
        pytest.param({"error": "access_denied"}, id="refused there"),
    ],
)
def test_no_other_way_back_lets_anybody_in(
    kept: Coordinator, provider: Provider, changed: dict[str, str]
) -> None:
    client, query = begun(kept, provider)
    answer = client.get("/sign-in/openid/return", params={**query, **changed})
    assert answer.status_code == 403
    assert client.get("/").headers["location"] == "/sign-in"


def test_a_victims_browser_does_not_finish_what_a_thief_began(
    kept: Coordinator, provider: Provider
) -> None:
    _, query = begun(kept, provider)
    victim, _ = begun(kept, provider)
    assert victim.get("/sign-in/openid/return", params=query).status_code == 403
    assert browser(kept).get("/sign-in/openid/return", params=query).status_code == 403


@pytest.mark.parametrize("act", ["role", "account", "removed"])
def test_what_was_taken_away_while_somebody_is_at_the_provider_stays_away(
    kept: Coordinator, provider: Provider, act: str
) -> None:
    kept.people.add("Zoe", Role.OPERATOR)
    kept.people.give_subject("Zoe", "zoe-1", issuer=provider.issuer)
    client, query = begun(kept, provider)
    provider.claims["sub"] = "zoe-1"
    if act == "role":
        kept.people.give_role("Zoe", Role.AUDITOR)
    elif act == "account":
        kept.people.give_subject("Zoe", "", issuer=provider.issuer)
    else:
        kept.people.remove("Zoe")
    entered = client.get("/sign-in/openid/return", params=query)
    assert entered.status_code == (200 if act == "role" else 403)
    assert client.get("/new-run").status_code == (403 if act == "role" else 303)
    if act != "removed":
        kept.people.remove("Zoe")


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "http://127.0.0.1:1"},
        {"token_endpoint": "http://elsewhere.example/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": None},
    ],
)
def test_a_provider_that_describes_another_is_not_followed(
    kept: Coordinator, provider: Provider, described: dict[str, Any]
) -> None:
    client = browser(kept)
    if "token_endpoint" in described:
        client, query = begun(kept, provider)
        provider.described = described
        answer = client.get("/sign-in/openid/return", params=query)
    else:
        provider.described = described
        answer = client.get("/sign-in/openid")
    assert answer.status_code in (400, 403)
    assert "location" not in answer.headers


def test_an_account_is_one_persons_and_only_an_administrator_gives_it(
    kept: Coordinator, provider: Provider, pate_fed: Command
) -> None:
    administrator = browser(kept, Role.ADMINISTRATOR)
    sent = {"form_token": form_token(administrator, "/people"), "name": "Some administrator"}
    taken = administrator.post("/people/subject", data={**sent, "subject": "anna-1"})
    assert (taken.status_code, "Anna" in taken.text) == (400, True)
    given = administrator.post("/people/subject", data={**sent, "subject": "root-1"})
    assert given.status_code == 303
    assert kept.people.of_subject("root-1", issuer=provider.issuer).role is Role.ADMINISTRATOR
    with pytest.raises(PersonError):  # the same subject of another provider is somebody else
        kept.people.of_subject("root-1", issuer="https://elsewhere.example")
    administrator.post("/people/subject", data={**sent, "subject": ""})
    with pytest.raises(PersonError):
        kept.people.of_subject("root-1", issuer=provider.issuer)
    refused = pate_fed("users", "subject", "Anna", "x", "--home", kept.home.folder)
    assert refused.error_code == "PF-434"  # its settings' file names no provider


def test_it_is_off_unless_the_settings_name_a_provider(tmp_path: Path) -> None:
    with opened(tmp_path / "federation") as fresh:
        client = browser(fresh)
        assert client.get("/sign-in/openid").status_code == 404
        assert client.get("/sign-in/openid/return").status_code == 404
        assert "openid" not in client.get("/sign-in").text


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://id.example/realm", True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]:8080", True),
        ("http://id.example", False),
        ("https://anna@id.example", False),
        ("http://127.0.0.1.elsewhere.example", False),
        ("https://", False),
        ("https://[", False),
        ("file:///etc/passwd", False),
    ],
)
def test_secrets_go_over_tls_or_stay_here(url: str, is_safe: bool) -> None:
    assert is_safe_address(url) is is_safe


def test_without_the_extra_it_says_which(
    kept: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "authlib.oidc.core", None)
    with pytest.raises(MissingExtraError, match="oidc"):
        browser(kept)


def test_settings_and_the_secret(kept: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HomeError):
        OpenIdSettings(issuer="https://id.example")
    assert kept.home.openid_secret == SECRET
    monkeypatch.setenv(OPENID_VARIABLE, "environment")
    assert kept.home.openid_secret == "environment"
    monkeypatch.delenv(OPENID_VARIABLE)
    kept.home.path(OPENID_SECRET).chmod(0o644)
    with pytest.raises(HomeError, match="owner"):
        _ = kept.home.openid_secret
    kept.home.path(OPENID_SECRET).chmod(0o600)

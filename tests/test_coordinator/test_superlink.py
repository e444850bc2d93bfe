"""The SuperLink behind our gate, as a real process: what the public port serves, and what not."""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections.abc import Iterator

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.errors import SuperLinkError
from coordinator.flower_runtime import SuperLinkClient
from coordinator.home import FederationHome
from coordinator.superlink_child import SuperLinkChild, quiet_environment
from tests.support.deployed import make_home

# Every path that a stock SuperLink serves to whoever asks, and ways to write them otherwise.
HIDDEN = (
    "/v1/control/start-run",
    "/v1/control/list-nodes",
    "/v1/control/register-node",
    "/v1/runtime/acquire-task",
    "/docs",
    "/openapi.json",
    "/",
    "/v1/fleet",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet//../runtime/acquire-task",
    "/v1//control/start-run",
    "/V1/control/start-run",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> FederationHome:
    return make_home(tmp_path_factory.mktemp("served") / "federation")


@pytest.fixture(scope="module")
def superlink(home: FederationHome) -> Iterator[SuperLinkChild]:
    child = SuperLinkChild(home)
    child.start()
    assert child.wait_until_ready(60)
    yield child
    child.stop()
    assert child.pid is None


@pytest.fixture
def public(home: FederationHome, superlink: SuperLinkChild) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cadata=home.ca_certificate.decode())
    with httpx.Client(
        base_url=f"https://127.0.0.1:{home.settings.port}", verify=context, trust_env=False
    ) as client:
        yield client


def client_at(home: FederationHome, port: int, monkeypatch: pytest.MonkeyPatch) -> SuperLinkClient:
    for name, value in quiet_environment(home).items():
        monkeypatch.setenv(name, value)
    return SuperLinkClient(
        f"127.0.0.1:{port}", ca_certificate=home.ca_certificate, secret=home.superlink_secret
    )


def node_key() -> bytes:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("path", HIDDEN)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_public_port_has_nothing_but_what_nodes_need(
    public: httpx.Client, path: str, method: str
) -> None:
    assert public.request(method, path, content=b"").status_code == 404


def test_the_public_port_tells_that_it_is_there(public: httpx.Client) -> None:
    assert public.get("/health").status_code == 200


def test_nobody_is_answered_by_the_fleet_without_a_nodes_key(public: httpx.Client) -> None:
    for path in ("activate-node", "pull-messages", "register-node"):
        assert public.post(f"/v1/fleet/{path}", content=b"").status_code >= 400


def test_a_control_client_at_the_public_port_starts_nothing(
    home: FederationHome, superlink: SuperLinkChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a stock `flwr run` and `flwr supernode register` are made of."""
    outside = client_at(home, home.settings.port, monkeypatch)
    inside = client_at(home, home.settings.admin_port, monkeypatch)
    before = inside.nodes()
    with pytest.raises(SuperLinkError):
        outside.register(node_key(), name="stranger")
    with pytest.raises(SuperLinkError):
        outside.nodes()
    with pytest.raises(SuperLinkError), outside.grid():
        pass
    assert inside.nodes() == before


def test_nodes_are_let_in_known_and_put_out(
    home: FederationHome, superlink: SuperLinkChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = client_at(home, home.settings.admin_port, monkeypatch)
    key = node_key()
    number = inside.register(key, name="North")
    assert (number, key.strip()) in [(n.node_id, n.public_key.strip()) for n in inside.nodes()]
    inside.unregister(number)
    assert number not in [node.node_id for node in inside.nodes()]


def test_old_tls_is_not_spoken(home: FederationHome, superlink: SuperLinkChild) -> None:
    context = ssl.create_default_context(cadata=home.ca_certificate.decode())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert httpx.get(
        f"https://127.0.0.1:{home.settings.port}/health", verify=context, trust_env=False
    ).is_success
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{home.settings.port}/health", trust_env=False)


def test_a_killed_superlink_is_started_again(
    home: FederationHome, superlink: SuperLinkChild
) -> None:
    killed, restarts = superlink.pid, superlink.restarts
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while superlink.restarts == restarts or not superlink.is_ready:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert superlink.pid not in (None, killed)

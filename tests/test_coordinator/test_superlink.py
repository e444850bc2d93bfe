"""The SuperLink behind our gate, as a real process: what the public port serves, and what not."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.to_thread import current_default_thread_limiter
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore import sql_mixin
from flwr.supercore.constant import SQLITE_PRAGMAS, NodeStatus
from flwr.superlink import main as superlink_main
from flwr.superlink.routers.control.middlewares import get_license_plugin
from flwr.supernode.fleet_http_connection import http_request_response

from coordinator.errors import ServiceError, SuperLinkError
from coordinator.federation.home import FederationHome
from coordinator.flower import superlink as superlink_module
from coordinator.flower import superlink_child
from coordinator.flower.superlink import arguments
from coordinator.flower.superlink_child import SuperLinkChild, flower_variables
from coordinator.flower.superlink_client import SuperLinkClient
from coordinator.service import require_ports
from protocols import wire
from tests.support.loopback_home import make_home
from tests.support.markers import sampled

PATIENCE_S = 60.0

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
    assert child.wait_until_ready(180)
    yield child
    child.stop()
    assert child.pid is None


@pytest.fixture
def public(home: FederationHome, superlink: SuperLinkChild) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cadata=home.ca_certificate.decode())
    with httpx.Client(
        base_url=f"https://127.0.0.1:{home.settings.port}",
        verify=context,
        trust_env=False,
        timeout=PATIENCE_S,
    ) as client:
        yield client


def client_at(
    home: FederationHome, port: int, monkeypatch: pytest.MonkeyPatch, *, secret: bytes = b""
) -> SuperLinkClient:
    for name, value in flower_variables(home).items():
        monkeypatch.setenv(name, value)
    return SuperLinkClient(
        f"127.0.0.1:{port}",
        ca_certificate=home.ca_certificate,
        secret=secret or home.superlink_secret,
    )


def node_key() -> bytes:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("path", HIDDEN)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_public_port_has_nothing_but_what_nodes_need(
    public: httpx.Client, path: str, method: str
) -> None:
    assert public.request(method, path, content=b"").status_code == 404


@pytest.mark.slow
def test_the_public_port_tells_that_it_is_there(public: httpx.Client) -> None:
    assert public.get("/health").status_code == 200


@pytest.mark.slow
def test_who_has_our_port_is_not_waited_for_and_not_shown_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(superlink_child, "_PORT_TRIES", 1)
    home = make_home(tmp_path / "federation")
    with socket.create_server(("127.0.0.1", home.settings.port)):
        child = SuperLinkChild(home)
        child.start()
        is_ready = child.wait_until_ready(180)
        child.stop()
        with pytest.raises(ServiceError, match=str(home.settings.port)):
            require_ports(home)
    require_ports(home)
    said = caplog.text
    assert (is_ready, child.lacks_port) == (False, True)
    assert f"[PF-448] port {home.settings.port} " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM], ids=["no process", "no memory"])
def test_a_superlink_that_cannot_be_started_for_now_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: int,
) -> None:
    monkeypatch.setattr(superlink_child, "_PAUSES", (0.01, 1.0))
    tries: list[None] = []
    came = threading.Event()

    def spawn(*_: object, **__: object) -> None:
        tries.append(None)
        if len(tries) == 3:
            came.set()
        raise OSError(error, "a word that nobody needs")

    monkeypatch.setattr(subprocess, "Popen", spawn)
    child = SuperLinkChild(make_home(tmp_path / "federation"))
    child.start()
    assert came.wait(60)
    assert (child.is_kept, child.is_ready, child.pid, child.ends) == (True, False, None, 0)
    child.stop()
    assert not child.is_kept
    assert "[PF-430] " in caplog.text
    assert "nobody needs" not in caplog.text


def test_a_process_whose_watch_fails_is_ended_and_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once would want the same ports."""
    monkeypatch.setattr(superlink_child, "_PAUSES", (0.01, 1.0))
    started: list[subprocess.Popen[bytes]] = []
    came = threading.Event()

    class Failing(SuperLinkChild):
        def _spawn(self) -> subprocess.Popen[bytes]:
            started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
            if len(started) == 3:
                came.set()
            return started[-1]

        def _answers(self) -> bool:
            raise OSError(errno.EMFILE, "")

    child = Failing(make_home(tmp_path / "federation"))
    child.start()
    assert came.wait(60)
    child.stop()
    assert all(one.returncode is not None for one in started)


@pytest.mark.slow
def test_a_call_to_a_superlink_that_is_gone_ends_once_nobody_needs_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a service that is told to end in the middle of an exchange never would."""
    home = make_home(tmp_path / "federation")
    child = SuperLinkChild(home)
    child.start()
    assert child.wait_until_ready(180)
    client = client_at(home, home.settings.admin_port, monkeypatch)
    asked, is_over, ended = threading.Event(), threading.Event(), threading.Event()
    tried = threading.Semaphore(0)

    def voids() -> bool:
        tried.release()
        return is_over.is_set()

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError), client.grid(is_over=voids) as grid:
            while True:
                list(grid.get_node_ids())
                asked.set()
        ended.set()

    threading.Thread(target=ask, daemon=True).start()
    assert asked.wait(60)
    child.stop()
    for _ in range(2):
        assert tried.acquire(timeout=60)
    assert not ended.is_set()  # it may come back
    is_over.set()
    assert ended.wait(60)


@pytest.mark.slow
def test_nobody_is_answered_by_the_fleet_without_a_nodes_key(public: httpx.Client) -> None:
    for path in ("activate-node", "pull-messages", "register-node"):
        assert public.post(f"/v1/fleet/{path}", content=b"").status_code >= 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "most"),
    [
        pytest.param("push-object", superlink_module.MOST_PART_BYTES, id="a part of a message"),
        pytest.param("register-node", superlink_module.MOST_BODY_BYTES, id="anything else"),
    ],
)
@pytest.mark.parametrize("says_its_length", [True, False])
def test_a_stranger_fills_no_memory(
    public: httpx.Client, superlink: SuperLinkChild, path: str, most: int, says_its_length: bool
) -> None:
    """Flower reads a body whole before it asks who sends it."""
    public.post(f"/v1/fleet/{path}", content=b"")  # what it loads for its first such request
    before, sent = resident(superlink), 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(40):
            sent += most // 4
            yield bytes(most // 4)

    headers = {"content-type": "application/protobuf"}
    if says_its_length:
        headers["content-length"] = str(10 * most)
    with contextlib.suppress(httpx.TransportError):
        answer = public.post(f"/v1/fleet/{path}", content=body(), headers=headers)
        assert answer.status_code >= 400
    assert resident(superlink) - before < 4 * most + 2**24
    assert public.get("/health").status_code == 200


def resident(child: SuperLinkChild) -> int:
    """Bytes that the SuperLink's process has now."""
    for line in Path(f"/proc/{child.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def test_the_bodies_of_all_strangers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink_module, "MOST_HELD_BYTES", 4 * 60)
    assert superlink_module.ORIGIN_SHARE == 4  # each of them stays within its share
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        told.append((await receive())["type"])
        await asyncio.sleep(0.05)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(60), "more_body": False}

    async def everybody() -> None:
        gate = superlink_module.Gate(app, admin_port=1, admin_key="")
        scope = {"type": "http", "path": "/v1/fleet/push-object", "server": ("", 2), "headers": []}
        origins = [scope | {"client": (f"10.0.{number}.1", 1)} for number in range(6)]
        await asyncio.gather(*(gate(each, receive, lambda _: None) for each in origins))
        await gate(origins[0], receive, lambda _: None)  # once they are gone there is room again

    asyncio.run(everybody())
    assert told == ["http.request"] * 4 + ["http.disconnect"] * 2 + ["http.request"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_another_user_of_the_machine_does_nothing_at_the_admin_port(
    home: FederationHome, superlink: SuperLinkChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loopback is everybody's, and so is the CA's certificate; the secret is not."""
    inside = client_at(home, home.settings.admin_port, monkeypatch)
    other = client_at(home, home.settings.admin_port, monkeypatch, secret=bytes(32))
    number = inside.register(node_key(), name="North")
    before = inside.nodes()
    with pytest.raises(SuperLinkError):
        other.register(node_key(), name="stranger")
    with pytest.raises(SuperLinkError):
        other.unregister(number)
    with pytest.raises(SuperLinkError):
        other.nodes()
    with pytest.raises(SuperLinkError), other.grid():
        pass
    assert inside.nodes() == before
    inside.unregister(number)


@pytest.mark.slow
@sampled()
@pytest.mark.parametrize("path", HIDDEN)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_admin_port_has_nothing_for_who_knows_no_key(
    home: FederationHome, superlink: SuperLinkChild, path: str, method: str
) -> None:
    context = ssl.create_default_context(cadata=home.ca_certificate.decode())
    address = f"https://127.0.0.1:{home.settings.admin_port}"
    with httpx.Client(
        base_url=address, verify=context, trust_env=False, timeout=PATIENCE_S
    ) as client:
        assert client.request(method, path, content=b"").status_code == 404
        assert client.get("/health").status_code == 200


@pytest.mark.slow
def test_nodes_are_let_in_known_and_put_out(
    home: FederationHome, superlink: SuperLinkChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = client_at(home, home.settings.admin_port, monkeypatch)
    key = node_key()
    number = inside.register(key, name="North")
    assert (number, key.strip()) in [(n.node_id, n.public_key.strip()) for n in inside.nodes()]
    inside.unregister(number)
    assert number not in [node.node_id for node in inside.nodes()]


@pytest.mark.slow
def test_a_node_that_asks_before_there_is_a_message_gets_it_as_its_answer(
    home: FederationHome,
    superlink: SuperLinkChild,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole way: gate, patience, Flower; a stock SuperNode's connection asks."""
    inside = client_at(home, home.settings.admin_port, monkeypatch)
    key = ec.generate_private_key(ec.SECP384R1())
    number = inside.register(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), name="West"
    )
    came: list[object] = []
    with (
        http_request_response(
            f"127.0.0.1:{home.settings.port}",
            insecure=False,
            root_certificates=home.ca_certificate,
            authentication_keys=(key, key.public_key()),
        ) as (_, receive, *_rest),
        inside.grid() as grid,
    ):
        asking = threading.Thread(target=lambda: came.append(receive()), daemon=True)
        asking.start()
        time.sleep(1)
        assert asking.is_alive()
        packet = ArrayRecord({"body": Array("uint8", (1,), wire.PACKET_FORM, b"a")})
        message = Message(
            RecordDict({"packet": packet}),
            dst_node_id=number,
            message_type="query.exchange",
            ttl=60,
        )
        grid.push_messages([message])
        asking.join(120)
        [answer] = came
        assert isinstance(answer, tuple)
        assert answer[0].metadata.dst_node_id == number
    inside.unregister(number)


def test_flower_works_on_few_requests_at_once_and_waits_for_its_database() -> None:
    async def limited() -> float:
        app = superlink_module._with_few_threads(nothing)
        await app({"type": "lifespan"}, received, nothing)
        return current_default_thread_limiter().total_tokens

    async def nothing(*_: object) -> None:
        """Flower starts."""

    async def received() -> dict[str, object]:
        return {}

    assert asyncio.run(limited()) == superlink_module._THREADS < 40
    with pytest.MonkeyPatch.context() as patch:
        before = dict(SQLITE_PRAGMAS)
        patch.setattr(sql_mixin, "SQLITE_PRAGMAS", SQLITE_PRAGMAS)
        superlink_module._set_pragmas()
        after = dict(vars(sql_mixin)["SQLITE_PRAGMAS"])
    assert int(before["busy_timeout"]) < int(after["busy_timeout"]) < 30_000
    assert after.pop("secure_delete") == "ON"
    assert {**before, "busy_timeout": ""} == {**after, "busy_timeout": ""}


@pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")  # Flower's Alembic
def test_a_superlink_that_starts_counts_no_node_as_connected_and_lets_each_in_at_once(
    home: FederationHome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Flower's own database would turn nodes away for a minute after a kill."""
    monkeypatch.setattr(sys, "argv", arguments(home, database=tmp_path / "superlink.db"))
    config = superlink_module._parse_superlink_lifespan_config()

    def opened() -> LinkStateFactory:
        manager = superlink_main.get_federation_manager(is_simulation=False)
        return superlink_main.get_objectstore_linkstate_factories(config.database, manager)[1]

    before = opened().state()
    numbers = [before.create_node("id", name, node_key(), 30) for name in ("North", "South")]
    assert before.activate_node(numbers[0], 30)
    after = opened()
    assert not after.state().activate_node(numbers[0], 30)
    superlink_module._Lifespan(config, after).startup()
    nodes = after.state().get_node_info()
    assert {node.node_id: node.status for node in nodes} == {
        numbers[0]: NodeStatus.OFFLINE,
        numbers[1]: NodeStatus.REGISTERED,
    }
    assert after.state().activate_node(numbers[0], 30)


def test_layers_that_are_left_out_are_those_of_plugins_and_traces() -> None:
    layers = [one.cls for one in superlink_main._get_middleware()]
    left_out = set(superlink_module._IDLE_LAYERS)
    assert left_out < set(layers)
    assert {one.__name__ for one in set(layers) - left_out} >= {
        *("NodeAuthMiddleware", "ControlAuthenticationMiddleware"),
        *("ControlSensitiveResponseMiddleware", "ProtobufTranslationMiddleware"),
    }
    assert (get_license_plugin(), os.environ.get("FLWR_TRACING_ENABLED")) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"])
def test_old_tls_is_not_spoken(
    home: FederationHome, superlink: SuperLinkChild, version: str
) -> None:
    ca = ssl.create_default_context(cadata=home.ca_certificate.decode())
    ca.set_ciphers("ALL:@SECLEVEL=0")  # with which this machine's OpenSSL speaks old ones, too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        ca.minimum_version = ca.maximum_version = ssl.TLSVersion[version]
    address = ("127.0.0.1", home.settings.port)
    with socket.create_connection(address) as plain:
        if version in ("TLSv1_2", "TLSv1_3"):
            with ca.wrap_socket(plain, server_hostname=address[0]) as spoken:
                assert spoken.version() == version.replace("_", ".")
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ca.wrap_socket(plain, server_hostname=address[0])


def test_no_machines_openssl_brings_old_tls_back(home: FederationHome) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    server = superlink_module.server_of(
        app, certificate=home.path("server.crt"), key=home.path("server.key")
    )
    assert server.config.ssl is not None
    assert server.config.ssl.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.slow
def test_nothing_is_spoken_without_tls(home: FederationHome, superlink: SuperLinkChild) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{home.settings.port}/health", trust_env=False)


@pytest.mark.exhaustive  # `test_service_log` kills one below a service
def test_a_killed_superlink_is_started_again(
    home: FederationHome, superlink: SuperLinkChild
) -> None:
    killed, restarts = superlink.pid, superlink.ends
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    deadline = time.monotonic() + 180
    while superlink.ends == restarts or not superlink.is_ready:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert superlink.pid not in (None, killed)

"""What we lean on inside Flower is still there; the stub is the one that hospitals have pinned."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from coordinator.flower import superlink_client
from coordinator.flower.long_polling import PULL_PATH, PUSH_PATHS
from coordinator.flower.superlink_client import forget_delivered, stub
from party.flower.executor import STUB_DIGEST

NAMES = {
    "flwr.cli.build": ("build_fab_from_files",),
    "flwr.common.constant": ("SubStatus",),
    "flwr.common.serde": ("fab_to_proto", "run_from_proto", "user_config_to_proto"),
    "flwr.proto.control_pb2": (
        *("ListNodesRequest", "RegisterNodeRequest", "StartRunRequest"),
        "UnregisterNodeRequest",
    ),
    "flwr.proto.runtime_pb2": (
        *("AcquireTaskRequest", "PullTaskInputRequest", "PushTaskOutputRequest"),
    ),
    "flwr.supercore.control": ("ControlHttpClient",),
    "flwr.supercore.fab": ("Fab",),
    "flwr.supercore.heartbeat": ("HeartbeatSender", "make_task_heartbeat_fn_http"),
    "flwr.supercore.constant": ("SQLITE_PRAGMAS",),
    "flwr.supercore.inflatable.inflatable_utils": ("pull_objects",),
    "flwr.supercore.sql_mixin": ("SQLITE_PRAGMAS",),
    "flwr.superlink.grid.http_grid": ("pull_objects",),
    "flwr.supercore.interceptors": (
        "RuntimeVersionHttpInterceptor",
        "SuperExecAuthHttpInterceptor",
    ),
    "flwr.supercore.protobuf.client": ("ProtobufClient",),
    "flwr.supercore.runtime": ("RuntimeHttpClient",),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.cli.flower_superlink": (
        "SuperLinkLifespan",
        "_parse_superlink_lifespan_config",
    ),
    "flwr.superlink.grid": ("HttpGrid",),
    "flwr.superlink.main": ("create_app",),
}


@pytest.mark.parametrize("module", NAMES)
def test_flower_still_has_what_we_lean_on(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in NAMES[module] if not hasattr(found, name)] == []


def test_flower_is_called_as_we_call_it() -> None:
    from flwr.supercore.control import ControlHttpClient  # noqa: PLC0415
    from flwr.supercore.protobuf.client import ProtobufClient  # noqa: PLC0415
    from flwr.supercore.runtime import RuntimeHttpClient  # noqa: PLC0415
    from flwr.superlink.grid import HttpGrid  # noqa: PLC0415

    grid = inspect.signature(HttpGrid.__init__).parameters
    assert {"runtime_api_address", "insecure", "root_certificates", "token"} <= set(grid)
    for call in ("RegisterNode", "UnregisterNode", "ListNodes", "StartRun", "StopRun"):
        assert callable(getattr(ControlHttpClient, call))
    for client in (ControlHttpClient, RuntimeHttpClient):
        assert issubclass(client, ProtobufClient)
    assert isinstance(ProtobufClient("https://127.0.0.1")._client, httpx.Client)
    for member in ("_runtime_client", "set_run", "close", "get_node_ids"):
        assert hasattr(HttpGrid, member)


def test_questions_and_messages_take_the_ways_that_we_listen_at() -> None:
    from flwr.supercore.routers.runtime.router import router as tasks  # noqa: PLC0415
    from flwr.superlink.routers.fleet.router import router as fleet  # noqa: PLC0415

    assert PULL_PATH in {route.path for route in fleet.routes}  # type: ignore[attr-defined]
    assert set(PUSH_PATHS) <= {route.path for route in tasks.routes}  # type: ignore[attr-defined]


def test_an_answer_without_a_message_has_no_bytes() -> None:
    from flwr.proto.fleet_pb2 import PullMessagesResponse  # noqa: PLC0415

    assert PullMessagesResponse().SerializeToString() == b""


def test_the_stub_is_the_one_that_hospitals_have_pinned() -> None:
    assert hashlib.sha256(stub()).hexdigest() == STUB_DIGEST


def test_the_stub_is_always_the_same_bytes() -> None:
    assert stub() == stub()


MESSAGE = b"a message that Flower has delivered " * 300


def database_of_flower(path: Path, *, secure_delete: str) -> sqlite3.Connection:
    """One that deletes a message, and stays open as the SuperLink's does."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", f"secure_delete={secure_delete}"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE messages (body BLOB)")
    connection.execute("INSERT INTO messages VALUES (?)", (MESSAGE,))
    connection.execute("DELETE FROM messages")
    return connection


def bytes_of(path: Path) -> bytes:
    return b"".join(one.read_bytes() for one in path.parent.glob(path.name + "*"))


def test_a_delivered_message_is_in_no_file_of_flowers_once_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "superlink.db"
    with closing(database_of_flower(path, secure_delete="ON")):
        assert MESSAGE[:64] in bytes_of(path)  # the log still has it
        assert forget_delivered(path)
        assert MESSAGE[:64] not in bytes_of(path)


def test_without_secure_delete_a_message_would_stay(tmp_path: Path) -> None:
    path = tmp_path / "superlink.db"
    with closing(database_of_flower(path, secure_delete="OFF")):
        assert forget_delivered(path)
        assert MESSAGE[:64] in bytes_of(path)


def test_nothing_is_lost_while_somebody_reads_flowers_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink_client, "_FORGET_S", 0.05)  # the reader stays
    path = tmp_path / "superlink.db"
    with (
        closing(database_of_flower(path, secure_delete="ON")) as connection,
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
        connection.execute("INSERT INTO messages VALUES (?)", (MESSAGE,))
        assert not forget_delivered(path)
        reader.execute("COMMIT")
        assert forget_delivered(path)
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (1,)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert not forget_delivered(tmp_path / "superlink.db")
    assert not list(tmp_path.iterdir())

"""The executor: nothing that comes as code is run, and nothing but codes leaves.

Contract tests hold what we rely on of Flower's internal parts.
"""

from __future__ import annotations

import inspect
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.task_identity import TaskIdentity

import party.flower.client_app
from coordinator.flower.superlink_client import stub
from party.flower import executor as flower_runtime
from party.flower import serving
from party.flower.executor import STUB_DIGEST, Executor, supernode_command
from protocols import wire
from tests.support.hospital_site import make_site
from tests.support.loopback_tls import listening

# Flower's, when it packs the stub.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")

SECRET = "3 of 4 teachers voted for class 1"


class Door:
    """Answers with what it is told to, or fails."""

    def __init__(self, answer: Any = b"answer") -> None:
        self.answer = answer
        self.packets: list[bytes] = []

    def receive(self, packet: bytes) -> bytes:
        self.packets.append(packet)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages only inside a task."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def executor(door: Door) -> Executor:
    return Executor(
        party.flower.client_app.build(lambda _: door), address="127.0.0.1:1", secret=b"secret"
    )


def message(packet: bytes = b"packet", kind: str = "query.exchange") -> Message:
    from flwr.app import Array  # noqa: PLC0415

    body = Array("uint8", (len(packet),), wire.PACKET_FORM, packet)
    return Message(
        RecordDict({"packet": ArrayRecord({"body": body})}), dst_node_id=1, message_type=kind
    )


def context() -> Context:
    return Context(
        run_id=1,
        node_id=1,
        node_config={"partition-id": 0},
        state=RecordDict(),
        run_config={},
    )


def everything_said(reply: Message) -> str:
    """All texts of a reply."""
    if reply.has_error():
        return f"{reply.error.code} {reply.error.reason}"
    return repr({name: dict(record) for name, record in reply.content.items()})


def test_no_message_is_taken_before_messages_may_be_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    idled, stopped = iter(range(3)), threading.Event()
    has_heard = False

    def idle() -> None:
        nonlocal has_heard
        has_heard = next(idled) == 2
        assert not taken

    def take(_: Executor) -> bool:
        taken.append(1)
        stopped.set()
        return True

    monkeypatch.setattr(Executor, "run_one", take)
    executor(Door()).run(stopped, on_idle=idle, may_answer=lambda: has_heard)
    assert taken == [1]


class TestReply:
    def test_the_stub_alone_is_answered(self) -> None:
        door = Door()
        reply, is_done = executor(door)._reply(message(), context(), stub())
        assert is_done
        assert door.packets == [b"packet"]
        assert reply.content["packet"]["body"] == b"answer"

    @pytest.mark.parametrize(
        "code",
        [
            pytest.param(lambda stub: b"", id="nothing"),
            pytest.param(lambda stub: stub + b"\0", id="one byte more"),
            pytest.param(lambda stub: bytes([stub[0] ^ 1]) + stub[1:], id="one bit changed"),
            pytest.param(lambda stub: b"import os\nos.system('true')\n", id="a program"),
        ],
    )
    def test_other_code_is_refused_and_neither_opened_installed_nor_imported(
        self, code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FLWR_HOME", str(tmp_path))
        content, door = code(stub()), Door()
        before = set(sys.modules)
        reply, is_done = executor(door)._reply(message(), context(), content)
        assert not is_done
        assert reply.error.code == ErrorCode.INVALID_FAB
        assert door.packets == []
        assert list(tmp_path.iterdir()) == []
        assert set(sys.modules) == before

    @pytest.mark.parametrize(
        "error",
        [
            pytest.param(ValueError(SECRET), id="a value"),
            pytest.param(MemoryError(SECRET), id="no memory"),
            pytest.param(KeyError(SECRET), id="a key"),
        ],
    )
    def test_an_exception_of_the_node_leaves_as_a_code(self, error: Exception) -> None:
        reply, _ = executor(Door(error))._reply(message(), context(), stub())
        assert not reply.has_error()
        assert reply.content["fault"] == ConfigRecord({"code": "PF-301"})
        assert SECRET not in everything_said(reply)

    @pytest.mark.parametrize("kind", ["train", "evaluate", "query", "query.other"])
    def test_a_message_of_another_kind_leaves_as_a_code(self, kind: str) -> None:
        door = Door()
        reply, is_done = executor(door)._reply(message(kind=kind), context(), stub())
        assert not is_done
        assert everything_said(reply) == f"{ErrorCode.CLIENT_APP_RAISED_EXCEPTION} PF-301"
        assert door.packets == []


class TestAnswer:
    """What is handed to Flower, whatever fails."""

    @pytest.fixture
    def pushed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
        said: list[tuple[str, ...]] = []

        class Fab:
            content = stub()  # as the coordinator sends it

        monkeypatch.setattr(
            flower_runtime,
            "pull_task_input",
            lambda client: (message(), context(), None, Fab()),
        )
        monkeypatch.setattr(
            flower_runtime,
            "push_message",
            lambda client, reply, context: said.append(("reply", everything_said(reply))),
        )
        monkeypatch.setattr(
            flower_runtime,
            "push_task_output",
            lambda client, context, status, details: said.append(("task", status, details)),
        )
        monkeypatch.setattr(flower_runtime, "_beat", lambda client: True)
        return said

    def test_a_task_that_was_answered_is_completed(self, pushed: list[tuple[str, ...]]) -> None:
        executor(Door())._answer("token")
        assert pushed[-1] == ("task", SubStatus.COMPLETED, "")

    def test_an_exception_of_the_executor_stays_here(
        self, pushed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(client: object) -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(flower_runtime, "pull_task_input", broken)
        executor(Door())._answer("token")
        assert pushed == [("task", SubStatus.FAILED, "not answered")]

    def test_a_supernode_that_is_gone_does_not_end_the_executor(
        self, pushed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(*_: object) -> None:
            raise ConnectionError(SECRET)

        monkeypatch.setattr(flower_runtime, "push_task_output", gone)
        monkeypatch.setattr(flower_runtime, "push_message", gone)
        executor(Door())._answer("token")
        assert pushed == []

    def test_while_it_is_answered_the_supernode_is_told_that_it_is_worked_on(
        self, pushed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a task is given up after a minute, and its answer refused."""
        beating: list[threading.Thread] = []
        was_beaten = threading.Event()

        def beat(client: object) -> bool:
            beating.append(threading.current_thread())
            was_beaten.set()
            return True

        class SlowDoor(Door):
            def receive(self, packet: bytes) -> bytes:
                was_beaten.wait(60)
                return super().receive(packet)

        monkeypatch.setattr(flower_runtime, "_beat", beat)
        executor(SlowDoor())._answer("token")
        assert pushed[-1] == ("task", SubStatus.COMPLETED, "")
        assert was_beaten.is_set()
        # And no longer than that.
        assert not any(thread.is_alive() for thread in beating)

    def test_a_supernode_that_knows_the_task_no_longer_does_not_interrupt_our_process(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Flower's own client signals its process where it gets such an answer."""
        asked: list[bytes] = []
        was_beaten = threading.Event()

        def answer(connection: socket.socket) -> None:
            asked.append(connection.recv(4096))
            if b"send-task-heartbeat" in asked[-1]:
                was_beaten.set()
            elif b"pull-task-input" in asked[-1]:
                was_beaten.wait(5)  # its thread may be slower; less than we wait for an answer
            connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")

        signals: list[int] = []
        monkeypatch.setattr(os, "kill", lambda pid, number: signals.append(number))
        with listening(answer) as port:
            address = f"127.0.0.1:{port}"
            app = party.flower.client_app.build(lambda _: Door())
            Executor(app, address=address, secret=b"secret")._answer("token")
        assert any(b"send-task-heartbeat" in one for one in asked)
        assert any(b"pull-task-input" in one for one in asked)
        assert signals == []

    def test_nothing_there_is_no_message(self) -> None:
        assert executor(Door()).run_one() is False


class TestPatience:
    """A SuperNode that gave up a task says 401 to whoever still works on it."""

    UNAUTHORIZED = httpx.HTTPStatusError(
        "401", request=httpx.Request("POST", "http://node"), response=httpx.Response(401)
    )

    def test_a_task_that_nobody_knows_any_more_ends_the_call_and_not_the_process(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        killed: list[int] = []
        monkeypatch.setattr("os.kill", lambda _, number: killed.append(number))

        def call() -> None:
            raise self.UNAUTHORIZED

        with pytest.raises(httpx.HTTPStatusError):
            flower_runtime.patient_invoker().invoke(call)
        assert killed == []

    def test_flowers_own_would_end_the_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Should this fail, ours need not differ any more."""
        killed: list[int] = []
        monkeypatch.setattr("os.kill", lambda _, number: killed.append(number))
        monkeypatch.setattr("time.sleep", lambda _: None)
        give_up = flower_runtime.make_simple_http_retry_invoker().should_giveup
        assert give_up is not None
        give_up(self.UNAUTHORIZED)
        assert killed == [signal.SIGINT]

    def test_what_else_fails_is_tried_again_as_flower_does(self) -> None:
        give_up = flower_runtime.patient_invoker().should_giveup
        assert give_up is not None
        assert not give_up(httpx.ConnectError("away"))


class TestFlowersInternals:
    """Names and shapes that an upgrade of Flower may change."""

    def test_the_coordinators_stub_is_the_pinned_one(self) -> None:
        import hashlib  # noqa: PLC0415

        assert hashlib.sha256(stub()).hexdigest() == STUB_DIGEST

    @pytest.mark.parametrize(
        ("function", "parameters"),
        [
            pytest.param("pull_task_input", ["client"], id="pull_task_input"),
            pytest.param("push_message", 3, id="push_message"),
            pytest.param("push_task_output", 4, id="push_task_output"),
        ],
    )
    def test_what_the_executor_calls_takes_what_it_gives(
        self, function: str, parameters: Any
    ) -> None:
        found = list(inspect.signature(getattr(flower_runtime, function)).parameters)
        assert found == parameters or len(found) == parameters

    def test_supernode_knows_every_option_that_we_give(self, tmp_path: Path) -> None:
        from flwr.supernode.cli.flower_supernode import (  # noqa: PLC0415
            _parse_args_run_supernode,
        )

        joined = make_site(tmp_path / "site").membership()
        command = supernode_command(joined, port=9094)
        assert command[:4] == [sys.executable, "-P", "-m", "party.flower.supernode"]
        arguments = _parse_args_run_supernode().parse_args(command[4:])
        assert (arguments.superlink, arguments.isolation) == (joined.settings.address, "process")
        assert not getattr(arguments, "allow_runtime_dependency_installation", False)
        assert not arguments.insecure


def test_a_supernode_is_not_started_while_nobody_listens_but_behind_a_proxy_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert serving._is_open(address)
    assert not serving._is_open(address)
    for proxy in ("http://127.0.0.1:1", "no proxy at all"):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("NO_PROXY", "intranet.example")
        assert serving._is_open(address)

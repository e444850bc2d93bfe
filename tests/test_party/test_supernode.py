"""The SuperNode's process: how often it asks, and which way it goes out.

Contract tests hold what we rely on of Flower's internal parts.
"""

from __future__ import annotations

import ast
import inspect
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.error.catalog import API_ERROR_MAP
from flwr.supercore.inflatable import inflatable_utils
from flwr.supernode import start_client_internal
from flwr.supernode.runtime import run_clientapp

from coordinator.flower.long_polling import HOLD_S
from party.errors import JoinError
from party.flower import executor as flower_runtime
from party.flower import serving, supernode
from party.flower.executor import Executor, quiet_environment
from party.flower.serving import serve
from party.flower.supernode import IDLE_S, Pace, whole_or_over
from party.site.membership import SiteMembership
from party.site.site import Site
from pate_fed.nodes import QUIET_FLOWER, KeptChild
from tests.support.hospital_services import make_hospitals
from tests.support.loopback_home import free_ports
from tests.support.loopback_tls import listening
from tests.support.markers import sampled
from tests.support.waiting import wait_for


class Sleeper:
    """A clock that is only moved, by sleeping or by asking."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds

    def asks(self, pace: Pace, *, each_s: float, times: int) -> list[float]:
        """Ask so often in vain, as Flower's loop does; return the times of the questions."""
        asked = []
        for _ in range(times):
            asked.append(self.now)
            self.now += each_s
            pace.sleep(IDLE_S)
        return asked


class TestPace:
    @pytest.fixture
    def sleeper(self) -> Sleeper:
        return Sleeper()

    @pytest.fixture
    def pace(self, sleeper: Sleeper) -> Pace:
        return Pace(sleeper.clock, sleeper.sleep)

    @pytest.mark.parametrize("each_s", [0.0, 0.01, 1.0, 2.9])
    def test_a_coordinator_that_answers_at_once_is_asked_every_three_seconds(
        self, sleeper: Sleeper, pace: Pace, each_s: float
    ) -> None:
        asked = sleeper.asks(pace, each_s=each_s, times=5)
        gaps = [later - earlier for earlier, later in pairwise(asked)]
        assert gaps == pytest.approx([IDLE_S] * 4)

    def test_a_coordinator_that_held_the_question_is_asked_again_soon(
        self, sleeper: Sleeper, pace: Pace
    ) -> None:
        asked = sleeper.asks(pace, each_s=HOLD_S, times=3)
        gaps = [later - earlier for earlier, later in pairwise(asked)]
        assert all(HOLD_S < gap < HOLD_S + 0.2 for gap in gaps)

    def test_a_clock_that_jumps_back_makes_no_sleep_longer_than_flowers(
        self, sleeper: Sleeper, pace: Pace
    ) -> None:
        sleeper.now -= 3600
        pace.sleep(IDLE_S)
        assert sleeper.slept == [IDLE_S]

    def test_our_own_process_is_looked_at_more_often(self, sleeper: Sleeper, pace: Pace) -> None:
        pace.sleep(0.5)
        assert sleeper.slept == [0.05]


class TestFlowersInternals:
    def test_its_loop_uses_the_module_time_to_sleep_alone(self) -> None:
        tree = ast.parse(inspect.getsource(start_client_internal))
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "time"
        }
        assert used == {"sleep"}

    def test_its_idle_sleep_is_the_one_that_we_know(self) -> None:
        sleeps = {
            call.args[0].value
            for call in ast.walk(ast.parse(inspect.getsource(start_client_internal)))
            if isinstance(call, ast.Call)
            and ast.unparse(call.func) == "time.sleep"
            and isinstance(call.args[0], ast.Constant)
        }
        assert sleeps == {IDLE_S, 0.5}

    @pytest.mark.parametrize(
        ("function", "module", "name"),
        [
            pytest.param(
                inflatable_utils.pull_objects,
                start_client_internal,
                "pull_objects",
                id="the SuperNode's",
            ),
            pytest.param(
                inflatable_utils.pull_and_inflate_object_from_tree,
                run_clientapp,
                "pull_and_inflate_object_from_tree",
                id="the executor's",
            ),
        ],
    )
    def test_its_waits_for_parts_can_be_set(
        self, function: Callable[..., object], module: object, name: str
    ) -> None:
        parameters = inspect.signature(function).parameters
        assert {"initial_backoff", "backoff_cap"} <= set(parameters)
        assert hasattr(module, name)

    @pytest.mark.slow
    def test_a_process_that_is_quickened_sleeps_by_our_pace(self) -> None:
        # In a process of its own: Flower's module is changed for good.
        program = (
            "from party.flower.supernode import Pace, quicken\n"
            "from flwr.supernode import start_client_internal as loop\n"
            "quicken()\n"
            "assert type(loop.time) is Pace\n"
            "from flwr.supernode.fleet_http_client import FleetHttpClient\n"
            "assert FleetHttpClient.ActivateNode.__module__ == 'party.flower.supernode'\n"
            "assert loop.pull_objects.keywords['initial_backoff'] < 1\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

    def test_an_executor_waits_less_for_parts(self) -> None:
        Executor(lambda *_: None, address="127.0.0.1:1", secret=b"")  # type: ignore[arg-type]
        used = vars(run_clientapp)["pull_and_inflate_object_from_tree"]
        assert used.keywords["initial_backoff"] == flower_runtime._FIRST_RETRY_S < 1


class TestEnvironment:
    @pytest.mark.parametrize(
        ("given", "exempt"),
        [
            pytest.param({}, "127.0.0.1", id="nothing set"),
            pytest.param({"NO_PROXY": "a.b"}, "a.b,127.0.0.1", id="great letters"),
            pytest.param({"no_proxy": "a.b, c"}, "a.b,c,127.0.0.1", id="small letters"),
            pytest.param({"NO_PROXY": "A", "no_proxy": "a"}, "a,127.0.0.1", id="small ones count"),
            pytest.param({"NO_PROXY": "A", "no_proxy": ""}, "127.0.0.1", id="small and empty"),
            pytest.param({"NO_PROXY": "127.0.0.1,a"}, "127.0.0.1,a", id="there already"),
            pytest.param({"NO_PROXY": "*"}, "*", id="everything"),
        ],
    )
    def test_loopback_is_exempt_and_so_is_what_was(
        self, given: dict[str, str], exempt: str
    ) -> None:
        made = quiet_environment({**given, "HTTPS_PROXY": "http://proxy:1", "PATH": "/bin"})
        assert (made["no_proxy"], made["NO_PROXY"]) == (exempt, exempt)
        assert (made["HTTPS_PROXY"], made["PATH"]) == ("http://proxy:1", "/bin")
        assert QUIET_FLOWER.items() <= made.items()


class StandIn:
    """Stands where a hospital's service would: nobody asks it anything."""

    supernode = None
    audit = None  # nothing is copied anywhere
    has_heard = True
    is_revoked = False

    def __init__(self) -> None:
        self.has_idled = threading.Event()

    def federation(self, _: str) -> StandIn:
        return self

    def idle(self) -> None:
        self.has_idled.set()

    def close(self) -> None:
        """Nothing is open."""


COORDINATOR = "coordinator.invalid:8443"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    [port] = free_ports(1)
    made = make_hospitals(tmp_path, address=COORDINATOR).sites[0]
    return made.save(made.settings.with_setting(made.membership().name, node_port=port))


@sampled()
@pytest.mark.slow
@pytest.mark.parametrize("small", [False, True], ids=["HTTPS_PROXY", "https_proxy"])
def test_the_way_out_is_the_proxys_and_what_is_said_on_loopback_is_not(
    site: Site, small: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heads: list[bytes] = []
    hung_up = threading.Event()

    def answer(connection: socket.socket) -> None:
        heads.append(connection.recv(4096))
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        hung_up.wait(60)  # says no more: the SuperNode waits for the coordinator's certificate

    caplog.set_level(logging.INFO, logger="httpx")
    # The door that asks who is a member goes the same way, in `party.site.joining`.
    monkeypatch.setattr("party.flower.serving._Line._listen", lambda *_: None)
    with listening(answer) as port:
        for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name.lower(), raising=False)
            monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv(name.lower() if small else name, f"http://127.0.0.1:{port}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("NO_PROXY", "intranet.example")
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        stopped = threading.Event()
        thread = threading.Thread(
            target=serve, args=(StandIn(), site), kwargs={"stopped": stopped}, daemon=True
        )
        thread.start()
        answered = (
            f"http://127.0.0.1:{site.membership().settings.node_port}/v1/runtime/acquire-task"
        )
        try:
            wait_for(lambda: len(heads) > 0)
            wait_for(lambda: any(answered in one.message for one in caplog.records))
        finally:
            stopped.set()
            hung_up.set()
            thread.join(60)
    assert not thread.is_alive()
    assert all(head.startswith(f"CONNECT {COORDINATOR} ".encode()) for head in heads), heads


class TestLine:
    """What keeps one federation: it asks for the members again and again, whatever happens."""

    @pytest.fixture
    def stand_in(self) -> StandIn:
        made = StandIn()
        made.sent = None  # type: ignore[attr-defined]
        return made

    def test_a_coordinator_that_failed_is_asked_again_sooner(
        self, site: Site, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        doors: list[str] = []
        waited: list[float | None] = []

        class Waits(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waited.append(timeout)
                if len(waited) == 3:
                    self.set()
                return self.is_set()

        class Door:
            def __init__(self, membership: SiteMembership, **_: object) -> None:
                doors.append(membership.name)

            def close(self) -> None:
                doors.append("closed")

        def ask(door: Door) -> None:
            if len(doors) == 1:
                raise JoinError("the coordinator must answer", "nothing")

        monkeypatch.setattr(serving, "CoordinatorDoor", Door)
        stand_in.ask = ask  # type: ignore[attr-defined]
        line = serving._Line(stand_in, site.membership(), Waits())  # type: ignore[arg-type]
        line._listen()
        line.join()
        assert waited == [serving._ASK_AGAIN_S, serving._ASK_S, serving._ASK_S]
        assert serving._ASK_AGAIN_S < serving._ASK_S
        assert doors == [site.membership().name, "closed"] * 3

    def test_a_revoked_hospitals_supernode_is_started_ever_more_seldom(
        self, site: Site, stand_in: StandIn
    ) -> None:
        line = serving._Line(stand_in, site.membership(), threading.Event())  # type: ignore[arg-type]
        line.join()
        assert not line._supernode._backs_off(1.0)
        stand_in.is_revoked = True
        assert line._supernode._backs_off(1.0)

    def test_no_supernode_is_started_where_nobody_listens(
        self, site: Site, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        [closed] = free_ports(1)
        assert not serving._is_open(f"127.0.0.1:{closed}")
        with listening(lambda connection: connection.recv(1)) as port:
            assert serving._is_open(f"127.0.0.1:{port}")
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # nothing is asked of a proxy
        assert serving._is_open(f"127.0.0.1:{closed}")
        monkeypatch.setenv("HTTPS_PROXY", "no proxy at all")
        assert serving._is_open(f"127.0.0.1:{closed}")

    def test_one_that_cannot_work_stops_the_node_with_its_fault(
        self, site: Site, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start(_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(KeptChild, "start", start)
        monkeypatch.setattr(serving._Line, "_listen", lambda _: None)
        stopped = threading.Event()
        with pytest.raises(MemoryError):
            serve(stand_in, site, stopped=stopped)  # type: ignore[arg-type]
        assert stopped.is_set()


OUTLIVES = "threading.Thread(target=time.sleep, args=(600,)).start()"


@sampled()
@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "flowers", "code"),
    [
        pytest.param(
            "SIG_DFL",
            "threading.Thread(target=fail).start(); time.sleep(600)",
            -signal.SIGTERM,
            id="a thread",
        ),
        pytest.param(
            "SIG_IGN",
            "threading.Thread(target=fail).start(); time.sleep(600)",
            1,
            id="a thread, and the main one does not hear of it",
        ),
        pytest.param("SIG_DFL", f"{OUTLIVES}; fail()", 1, id="the main thread, outlived by others"),
        pytest.param(
            "SIG_DFL",
            f"{OUTLIVES}; logging.error('ZeroDivisionError')",
            1,
            id="the main thread, which only says so",
        ),
    ],
)
def test_it_ends_with_any_thread_of_flowers_that_fails_so_that_another_is_started(
    handler: str, flowers: str, code: int
) -> None:
    """At a 500 either Flower's heartbeat or its loop ends: the node would be there, and deaf."""
    script = (
        "import logging, signal, threading, time\n"
        "from party.flower import supernode\n"
        f"signal.signal(signal.SIGTERM, signal.{handler})\n"
        "supernode._END_S = 0.1\n"
        "def fail():\n"
        "    1 / 0\n"
        "def flowers():\n"
        f"    {flowers}\n"
        "supernode.flower_supernode = flowers\n"
        "supernode.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,  # held open: its parent is there
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()  # until it ends
        assert process.wait() == code
    assert b"ZeroDivisionError" in said


class Refusing:
    """Flower's client, which is turned away some times."""

    def __init__(self, times: int, status: int) -> None:
        self.asked = 0
        self._times, self._status = times, status

    def activate(self, request: ActivateNodeRequest) -> ActivateNodeResponse:
        self.asked += 1
        if self.asked <= self._times:
            answer = httpx.Response(self._status, request=httpx.Request("POST", "https://a"))
            answer.raise_for_status()
        return ActivateNodeResponse(node_id=7)


@pytest.mark.parametrize(
    ("times", "status", "asked"),
    [
        pytest.param(3, 412, 4, id="for a moment"),
        pytest.param(1000, 412, 11, id="for ever"),
        pytest.param(1000, 401, 1, id="whose signature is bad"),
    ],
)
def test_a_node_that_is_turned_away_asks_again_for_a_while(
    times: int, status: int, asked: int
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    client = Refusing(times, status)
    activate = supernode.patient(
        lambda self, request: self.activate(request),  # type: ignore[attr-defined]
        sleep=sleep,
        clock=lambda: now[0],
    )
    if times < 1000:
        assert activate(client, ActivateNodeRequest()).node_id == 7  # type: ignore[arg-type]
    else:
        with pytest.raises(httpx.HTTPStatusError):
            activate(client, ActivateNodeRequest())  # type: ignore[arg-type]
    assert client.asked == asked


def test_flower_turns_a_node_away_with_the_status_that_we_wait_at() -> None:
    spec = API_ERROR_MAP[ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED]
    assert spec.http_status_code == httpx.codes.PRECONDITION_FAILED


def test_flower_asks_for_a_message_as_we_rely_on() -> None:
    pull = start_client_internal._pull_and_store_message
    assert "receive" in inspect.signature(pull).parameters
    tree = ast.parse(inspect.getsource(start_client_internal.start_client_internal))
    [call] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == pull.__name__
    ]
    assert not call.args
    assert {keyword.arg for keyword in call.keywords} == set(inspect.signature(pull).parameters)


@pytest.mark.parametrize(
    ("received", "stored", "ends"),
    [
        pytest.param(None, None, False, id="no message"),
        pytest.param("message", 7, False, id="a message"),
        pytest.param("message", None, True, id="a message that is dropped"),
    ],
)
def test_it_ends_with_a_message_that_flower_drops_so_that_nobody_waits_for_its_parts(
    received: object | None, stored: int | None, ends: bool
) -> None:
    """Its task stays, with an executor that waits for what never comes: 300 s were seen."""
    ended: list[bool] = []

    def pull(*, receive: Callable[[], object | None], state: str) -> int | None:
        assert (receive(), state) == (received, "state")
        return stored

    found = whole_or_over(
        pull, receive=lambda: received, end=lambda: ended.append(True), state="state"
    )
    assert (found, ended) == (stored, [True] * ends)

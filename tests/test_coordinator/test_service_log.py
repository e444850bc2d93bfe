"""The log of a real service: whatever happens, each line of it is one JSON object."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from coordinator.cli import runs
from coordinator.cli.people import kept_console
from coordinator.doctor import CoordinatorProbes, examine
from coordinator.errors import ServiceError
from coordinator.federation.home import FederationHome
from coordinator.operator import Coordinator
from party.site.joining import CoordinatorDoor
from party.site.site import Site
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import OK, KeptChild
from protocols.fingerprint_words import spoken
from tests.support.loopback_home import environment, free_ports, is_open, make_home

PATIENCE_S = 300.0


class Service:
    """`pate-fed serve` as a process, and all that it printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home: FederationHome = make_home(folder / "federation")
        self.log = folder / "log"
        self.console = free_ports(1)[0]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.variables
            )

    @property
    def command(self) -> list[str | Path]:
        program = [sys.executable, "-m", "coordinator.cli", "serve"]
        return [*program, "--home", self.home.folder, "--console", f"127.0.0.1:{self.console}"]

    @property
    def variables(self) -> dict[str, str]:
        return environment(self.folder)

    def lines(self) -> list[dict[str, Any]]:
        """Each line that it has printed so far: a JSON object, or this fails."""
        whole, _, _ = self.log.read_text("utf-8").rpartition("\n")
        found = [json.loads(line) for line in whole.splitlines()]
        assert all({"time", "level", "logger", "message"} <= set(one) for one in found)
        return found

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, self.log.read_text("utf-8")
            assert self.process.poll() is None, self.log.read_text("utf-8")
            time.sleep(0.05)

    def wait_for_event(self, event: str) -> None:
        self.wait_for(lambda: any(one.get("event") == event for one in self.lines()))

    def wait_for_line(self, text: str) -> None:
        self.wait_for(lambda: any(text in one["message"] for one in self.lines()))

    def child(self, module: str) -> int:
        """Number of the process beside it that runs a module."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        children = [one for thread in threads for one in (thread / "children").read_text().split()]
        [found] = [one for one in children if module in Path(f"/proc/{one}/cmdline").read_text()]
        return int(found)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.stop()


def send(home: FederationHome, content: bytes, *, over_tls: bool) -> None:
    """Send something to the public port, and wait until it hangs up."""
    context = ssl.create_default_context(cadata=home.ca_certificate.decode())
    with socket.create_connection(("127.0.0.1", home.settings.port)) as plain, ExitStack() as stack:
        stack.enter_context(suppress(OSError))  # it may hang up while we speak
        speaking = plain
        if over_tls:
            wrapped = context.wrap_socket(plain, server_hostname="127.0.0.1")
            speaking = stack.enter_context(wrapped)
        speaking.sendall(content)
        while speaking.recv(4096):
            pass


@pytest.mark.slow
def test_every_line_is_json_whatever_comes_and_members_are_told_of(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    service.wait_for_line("is served at")
    send(service.home, b"no request at all\r\n\r\n", over_tls=True)
    send(service.home, b"no TLS at all\r\n\r\n", over_tls=False)
    service.wait_for_line("Invalid HTTP request")

    with closing(Coordinator.open(service.home.folder)) as coordinator:
        invitation = coordinator.invite("North")
        site = Site.create(tmp_path / "north", invitation)
        with closing(CoordinatorDoor(site.membership(), clock=time.time)) as door:
            door.join(invitation.token)
        service.wait_for_event("hospital requested")
        coordinator.approve("North", words=spoken(site.identity.fingerprint))
        service.wait_for_event("hospital approved")
        found = {one.name: one for one in examine(service.home.folder, CoordinatorProbes())}
        assert (found["service"].state, found["database"].state) == (OK, OK)
        assert ": North." in found["hospitals"].said
        coordinator.revoke("North")
        service.wait_for_event("hospital revoked")

    second = subprocess.run(
        service.command, capture_output=True, text=True, env=service.variables, check=False
    )
    assert second.returncode == 4
    refused = [json.loads(line) for line in second.stderr.splitlines()]
    assert (refused[-1]["code"], second.stdout) == ("PF-448", "")

    os.kill(service.child("superlink_process"), signal.SIGKILL)
    service.wait_for_line("the SuperLink ended with -9; it is started again")
    service.wait_for(lambda: is_open(service.home.settings.port))

    service.wait_for_line("the console is served at")
    superlink = service.child("superlink_process")
    os.kill(service.child("coordinator.console.process"), signal.SIGKILL)
    service.wait_for_line("the console ended with -9; it is started again")
    service.wait_for(lambda: is_open(service.console))
    page = httpx.get(f"http://127.0.0.1:{service.console}/sign-in", trust_env=False)
    assert "One-time code" in page.text
    assert service.child("superlink_process") == superlink  # the service went on
    service.stop()
    assert not is_open(service.console)
    said = service.lines()
    assert service.process.returncode == 0
    assert {one["hospital"] for one in said if "hospital" in one} == {"North"}
    assert service.log.read_text("utf-8").endswith("\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["--home", "nothing-there"], "PF-432", id="no folder"),
        pytest.param(["--hom", "x"], "PF-402", id="mistyped"),
    ],
)
def test_a_start_that_fails_says_so_in_a_line_of_the_log(
    tmp_path: Path, arguments: list[str], code: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "coordinator.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )
    [line] = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (line["code"], line["level"], ended.stdout) == (code, "error", "")
    assert line["message"].startswith(f"[{code}] ")


@pytest.mark.parametrize(
    "address", ["8447", "127.0.0.1", "127.0.0.1:0", ":8447", "a b:8447", "x:\uff11"]
)
def test_a_consoles_address_must_be_one(tmp_path: Path, address: str) -> None:
    with pytest.raises(InvalidSettingError, match="HOST:PORT"):
        kept_console(tmp_path, address)


def test_a_console_is_started_with_the_service_and_ends_with_it_however_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    home = make_home(tmp_path / "federation")
    for name in ("write_logs", "single_threaded_kernels", "os.umask"):  # of the process
        monkeypatch.setattr(f"coordinator.cli.runs.{name}", lambda *_: None)
    monkeypatch.setattr(KeptChild, "start", lambda self: told.append(" ".join(self._command[-3:])))
    monkeypatch.setattr(KeptChild, "stop", lambda _: told.append("stopped"))

    def serve(_: Path, *, on_ready: Callable[[object], None]) -> None:
        told.append("serves")
        on_ready(SimpleNamespace(home=home))
        raise ServiceError("the SuperLink must start", "no answer in time")

    monkeypatch.setattr("coordinator.service.serve", serve)
    with pytest.raises(ServiceError):
        runs.serve(home.folder, console="[::1]:8447")
    assert told == ["serves", f"{home.folder} ::1 8447", "stopped"]

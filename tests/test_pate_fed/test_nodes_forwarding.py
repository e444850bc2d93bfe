"""Copies of an audit log: no act waits for them, no entry is lost, one entry is one line."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from coordinator.database import Database, FederationAct, FederationAuditLog
from party.storage import PartyDatabase, SiteAuditLog
from party.storage.site_audit_log import SiteAct
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes.audit_log import AuditLog
from pate_fed.nodes.forwarding import Forwarder, Forwarding

HOSTILE = 'M.\n<13>1 - - -\r\x1b[2J\0\u2028\x85<script>alert("x")</script> é'
SYSLOG = re.compile(
    rb"<109>1 \d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}\+00:00 [!-~]+ pate-test - [a-z-]+ - (\{[ -~]*\})"
)
Append = Callable[[str], object]


@pytest.fixture(params=["hospital", "operator"])
def log(request: pytest.FixtureRequest) -> tuple[AuditLog, Append]:
    """A log of each side, and a way to add an entry by somebody."""
    if request.param == "hospital":
        ours = SiteAuditLog(PartyDatabase.in_memory())
        return ours, lambda by: ours.append(SiteAct.PAUSED, {"by": by, "reason": by}, at=1.5)
    theirs = FederationAuditLog(Database.in_memory())
    return theirs, lambda by: theirs.append(
        FederationAct.PAUSED, {"by": by, "subject": by, "before": {"by": by}}, at=1.5
    )


def forwarder(log: AuditLog, folder: Path, **settings: str) -> Forwarder:
    return Forwarder(
        Forwarding(**settings), log, places=folder / "places.json", program="pate-test"
    )


def numbers_in(file: Path) -> list[int]:
    return [json.loads(line)["number"] for line in file.read_text("ascii").splitlines()]


def the_fault(copies: Forwarder) -> str:
    """The fault of the only target after a look at the log."""
    [fault] = copies.forward().values()
    return fault


@contextmanager
def listening(family: socket.AddressFamily, address: object) -> Iterator[socket.socket]:
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as server:
        server.bind(address)
        server.settimeout(5)
        yield server


def test_one_entry_is_one_line_whatever_it_holds(
    log: tuple[AuditLog, Append], tmp_path: Path
) -> None:
    copied, append = log
    file, address = tmp_path / "copy.jsonl", str(tmp_path / "syslog")
    copies = forwarder(copied, tmp_path, file=str(file), syslog=f"unix://{address}")
    for by in ("A. Meyer", HOSTILE, "B. Ito"):
        append(by)
    with listening(socket.AF_UNIX, address) as server:
        assert set(copies.forward().values()) == {""}
        messages = [server.recv(65536) for _ in range(3)]
    lines = file.read_bytes().splitlines()
    assert [json.loads(line) for line in lines] == list(copied.tables())
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(32 <= byte < 127 for line in lines for byte in line)
    assert json.loads(lines[1])["by"] == HOSTILE
    for message, table in zip(messages, copied.tables(), strict=True):
        found = SYSLOG.fullmatch(message)
        assert found, message
        assert json.loads(found[1]) == {k: v for k, v in table.items() if k != "body"}


def test_an_entry_too_long_for_a_datagram_is_cut_and_the_next_one_follows(
    log: tuple[AuditLog, Append], tmp_path: Path
) -> None:
    copied, append = log
    append("x" * 100_000)
    append("A. Meyer")
    with listening(socket.AF_UNIX, str(tmp_path / "syslog")) as server:
        assert the_fault(forwarder(copied, tmp_path, syslog=f"unix://{tmp_path}/syslog")) == ""
        found = [SYSLOG.fullmatch(server.recv(65536)) for _ in range(2)]
    tables = [json.loads(one[1]) for one in found if one]
    assert [(one["number"], one.get("cut", False)) for one in tables] == [(1, True), (2, False)]


@pytest.mark.parametrize("kind", ["unix", "udp"])
def test_a_dead_syslog_loses_nothing(
    log: tuple[AuditLog, Append], tmp_path: Path, kind: str
) -> None:
    copied, append = log
    family, address = socket.AF_UNIX, str(tmp_path / "syslog")
    settings = f"unix://{address}"
    if kind == "udp":
        with listening(socket.AF_INET, ("127.0.0.1", 0)) as free:
            family, address = socket.AF_INET, free.getsockname()
        settings = f"udp://127.0.0.1:{address[1]}"
    copies = forwarder(copied, tmp_path, syslog=settings)
    for _ in range(3):
        append("A. Meyer")
        assert the_fault(copies) != ""
    with listening(family, address) as server:
        assert the_fault(copies) == ""
        found = [json.loads(SYSLOG.fullmatch(server.recv(65536))[1]) for _ in range(3)]  # type: ignore[index]
    assert [one["number"] for one in found] == [1, 2, 3]


def test_a_full_disk_leaves_whole_lines_and_loses_nothing(
    log: tuple[AuditLog, Append], tmp_path: Path
) -> None:
    copied, append = log
    file = tmp_path / "copy.jsonl"
    copies = forwarder(copied, tmp_path, file=str(file))
    append("A. Meyer")
    assert the_fault(copies) == ""
    append("B. Ito")
    append("C. Roy")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        limit = file.stat().st_size + len(json.dumps(next(copied.tables()))) + 60
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
        assert the_fault(copies) != ""
        assert numbers_in(file) == [1, 2]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert the_fault(copies) == ""
    assert numbers_in(file) == [1, 2, 3]


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("", "ascii")
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("make", [_folder, _pipe, _link], ids=["folder", "pipe", "link"])
def test_another_thing_in_place_of_the_file_is_a_fault_and_no_wait(
    log: tuple[AuditLog, Append], tmp_path: Path, make: Callable[[Path], None]
) -> None:
    copied, append = log
    append("A. Meyer")
    make(tmp_path / "copy.jsonl")
    assert the_fault(forwarder(copied, tmp_path, file=str(tmp_path / "copy.jsonl"))) != ""
    assert copied.end[0] == 1


def test_a_line_that_somebody_cut_does_not_spoil_the_next(
    log: tuple[AuditLog, Append], tmp_path: Path
) -> None:
    copied, append = log
    file = tmp_path / "copy.jsonl"
    file.write_text('{"number": 0, "ac', "ascii")
    append("A. Meyer")
    assert the_fault(forwarder(copied, tmp_path, file=str(file))) == ""
    cut, line = file.read_text("ascii").splitlines()
    assert (cut, json.loads(line)["number"]) == ('{"number": 0, "ac', 1)


def test_a_place_that_cannot_be_remembered_repeats_entries_and_leaves_none_out(
    log: tuple[AuditLog, Append], tmp_path: Path
) -> None:
    copied, append = log
    file = tmp_path / "copy.jsonl"
    (tmp_path / "places.json").mkdir()
    copies = forwarder(copied, tmp_path, file=str(file))
    append("A. Meyer")
    assert "places.json" in the_fault(copies)
    (tmp_path / "places.json").rmdir()
    append("B. Ito")
    assert the_fault(copies) == ""
    assert numbers_in(file) == [1, 1, 2]
    assert the_fault(forwarder(copied, tmp_path, file=str(file))) == ""  # after a restart
    assert numbers_in(file) == [1, 1, 2]


def test_another_log_in_its_place_is_noticed_and_copied_from_its_start(
    log: tuple[AuditLog, Append], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied, append = log
    file = tmp_path / "copy.jsonl"
    append("A. Meyer")
    (tmp_path / "places.json").write_text(
        json.dumps({f"file {file}": [1, "ab" * 32]}), encoding="ascii"
    )
    assert the_fault(forwarder(copied, tmp_path, file=str(file))) == ""
    assert numbers_in(file) == [1]
    assert "copy" in caplog.text


def test_acts_go_on_while_a_copy_waits_and_the_fault_is_logged_once(
    log: tuple[AuditLog, Append],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied, append = log
    monkeypatch.setattr("pate_fed.nodes.forwarding._LOOK_S", 0.01)
    stopped = threading.Event()
    copies = forwarder(copied, tmp_path, syslog=f"unix://{tmp_path}/nobody")
    thread = threading.Thread(target=copies.run, args=(stopped,))
    thread.start()
    for _ in range(20):
        append(HOSTILE)
    stopped.wait(0.1)
    stopped.set()
    thread.join(5)
    assert not thread.is_alive()
    assert copied.end[0] == 20
    assert len(caplog.records) == 1
    assert "Meyer" not in caplog.text


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"syslog": "udp://syslog.example.org:514"}, id="a name"),
        pytest.param({"syslog": "udp://192.0.2.7"}, id="no port"),
        pytest.param({"syslog": "udp://192.0.2.7:99999"}, id="no such port"),
        pytest.param({"syslog": "tcp://192.0.2.7:514"}, id="TCP"),
        pytest.param({"syslog": "unix://"}, id="no path"),
        pytest.param({"syslog": "/dev/log"}, id="bare path"),
        pytest.param({"file": "copy.jsonl"}, id="relative file"),
    ],
)
def test_a_target_that_cannot_be_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(InvalidSettingError):
        Forwarding(**settings)

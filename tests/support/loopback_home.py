"""A federation's folder on free ports of loopback, and what its processes get."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from pate_fed import __version__
from pate_fed.nodes import QUIET_FLOWER

ROOT = Path(__file__).parents[2]


_PORTS = range(10_000, 20_000)
"""Below those that a system hands out by itself: none of them is anybody's end of a connection."""

_GIVEN: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, and that no other test gets before this process ends.

    Each is asked for long before its server opens it.
    """
    first, found = os.getpid() * 37 % len(_PORTS), list[int]()
    for port in (*_PORTS[first:], *_PORTS[:first]):
        if len(found) == count:
            break
        with suppress(OSError):
            if port not in _GIVEN:
                fcntl.lockf(_ports_of_tests(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                socket.create_server(("127.0.0.1", port)).close()
                found.append(port)
                _GIVEN.add(port)
    assert len(found) == count
    return found


@cache
def _ports_of_tests() -> int:
    """Open the file in which the test processes of this machine lock a byte for each port."""
    path = Path(tempfile.gettempdir()) / f"pate-fed-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def make_home(folder: Path, *, database: str = "", hosts: tuple[str, ...] = ()) -> FederationHome:
    """A federation on free ports of loopback, in a database of its own.

    Its certificate is for other names, too, if any are given.
    """
    port, admin, metrics, health = free_ports(4)
    settings = FederationSettings(
        "lung study",
        f"127.0.0.1:{port}",
        host="127.0.0.1",
        port=port,
        admin_port=admin,
        metrics_port=metrics,
        health_port=health,
        database=database,
        hosts=hosts,
    )
    return FederationHome.create(folder, settings, now=datetime.now(UTC))


def add_tally(
    home: FederationHome, folder: Path, *, port: int, reached_at: int | None = None
) -> TallyFolder:
    """Make a federation's tally at a port of loopback; it may be reached at another one."""
    now = datetime.now(UTC)
    settings = TallySettings(f"127.0.0.1:{reached_at or port}", host="127.0.0.1", port=port)
    made = TallyFolder.create(folder, settings, home.invite_tally(now=now), now=now)
    home.accept_tally(made.card)
    return made


def environment(folder: Path) -> dict[str, str]:
    """What every process gets; coverage and proxies of the machine it does not."""
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**kept, **QUIET_FLOWER, "PYTHONPATH": str(ROOT), "FLWR_HOME": str(folder / "flower")}


def installed(folder: Path) -> Path:
    """A folder that says that our version is installed: a checkout alone does not, to a doctor."""
    metadata = folder / "metadata" / f"pate_fed-{__version__}.dist-info"
    metadata.mkdir(parents=True)
    lines = ("Metadata-Version: 2.1", "Name: pate-fed", f"Version: {__version__}", "")
    (metadata / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    return metadata.parent


def launched(
    command: Sequence[object], log: Path, *, variables: Mapping[str, str], cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that writes to a log, and that has an input which tells it when to end."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(variables),
            cwd=cwd,
        )


def is_open(port: int) -> bool:
    """Whether somebody listens at a port of loopback."""
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))

"""A federation's folder on free ports of loopback, and what its processes get."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from coordinator.home import FederationHome, FederationSettings
from pate_fed import __version__
from pate_fed.nodes import QUIET_FLOWER

ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


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

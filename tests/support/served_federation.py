"""A coordinator's public port for tests: enrollment over real TLS on loopback."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from coordinator.database import Database
from coordinator.federation.enrollment import Enrollment
from coordinator.federation.enrollment_app import build
from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.federation.rate_limit import RateLimit
from coordinator.federation.run_files import RunFiles
from protocols.fingerprint_words import spoken
from tests.support.running_server import running


@dataclass
class ServedFederation:
    """A federation that can be reached."""

    home: FederationHome
    enrollment: Enrollment

    def invite(self, folder: Path, name: str) -> Path:
        path = folder / f"{name}.json"
        path.write_text(self.enrollment.invite(name).to_json(), encoding="utf-8")
        return path

    def approve(self, name: str, fingerprint: bytes) -> None:
        """Make a hospital a member; no node is let in, since no SuperLink runs."""
        self.enrollment.approve(name, words=spoken(fingerprint))


@contextmanager
def served_federation(folder: Path) -> Iterator[ServedFederation]:
    """Serve a new federation on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = FederationSettings("lung study", f"127.0.0.1:{port}")
        home = FederationHome.create(folder, settings, now=datetime.now(UTC))
        database = Database(home.database_url)
        enrollment = Enrollment(
            home,
            database,
            random_bytes=secrets.token_bytes,
            clock=lambda: datetime.now(UTC),
        )
        server = uvicorn.Server(
            uvicorn.Config(
                build(
                    enrollment,
                    pools=home.path("pools"),
                    results=RunFiles(home, database),
                    rate=RateLimit(600, clock=time.monotonic),
                ),
                ssl_certfile=home.path("server.crt"),
                ssl_keyfile=home.path("server.key"),
                log_config=None,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )
        with running(server, listener):
            yield ServedFederation(home, enrollment)
        database.close()

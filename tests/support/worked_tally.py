"""A federation in this process, and its tally at a port of this machine."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.tally.book import TallyBook
from coordinator.tally.tally_database import TallyDatabase
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from coordinator.tally.tally_server import TallyServer
from protocols.forms import Verified
from protocols.identity import PublicIdentity
from tests.support.deployed import NAMES, Hospital
from tests.support.loopback_home import free_ports
from tests.support.worked import Worked

MOST_NOISY = 2.0


class WorkedWithTally(Worked):
    """See `Worked`; the tally is started and stopped like a process, its folder stays."""

    def __init__(self, folder: Path, *, names: tuple[str, ...] = NAMES) -> None:
        now = datetime.now(UTC)
        settings = FederationSettings("lung study", "127.0.0.1:8443")
        home = FederationHome.create(folder / "federation", settings, now=now)
        (port,) = free_ports(1)
        self.tally = TallyFolder.create(
            folder / "tally",
            TallySettings(f"127.0.0.1:{port}", host="127.0.0.1", port=port),
            home.invite_tally(now=now),
            now=now,
        )
        home.accept_tally(self.tally.card)
        self._server: TallyServer | None = None
        self._database: TallyDatabase | None = None
        super().__init__(folder, names=names, home=home)
        self.start_tally()

    def approve_pool(self, approved: bool) -> None:
        everybody = list(self.hospitals.values())
        for one in everybody:
            others = [other for other in everybody if other is not one]
            self.open(one, others, approved=approved)

    def open(
        self,
        one: Hospital,
        others: list[Hospital],
        *,
        approved: bool = True,
        tally: PublicIdentity | None = None,
    ) -> None:
        one.open(
            others,
            self.task,
            approved=approved,
            tally=tally or self.tally.identity.public,
            forms=frozenset({Verified.name}),
        )

    def start_tally(self) -> None:
        settings, coordinator = self.tally.settings, self.tally.coordinator
        self._database = self.tally.database()
        book = TallyBook(
            self._database,
            identity=self.tally.identity,
            coordinator=coordinator.identity,
            clock=time.time,
        )
        self._server = TallyServer(
            book,
            key=self.tally.key,
            client=coordinator.certificate.encode(),
            host=settings.host,
            port=settings.port,
        )
        self._server.start()

    def stop_tally(self) -> None:
        if self._server is not None and self._database is not None:
            self._server.stop()
            self._database.close()
            self._server = self._database = None

    def ask(self, name: str = "first", **changed: Any) -> Any:
        """Ask a run of verified votes, with little noise unless that is changed."""
        chosen = {"form": Verified.name, "noise": "aggregators", "sigma2": MOST_NOISY}
        return super().ask(name, **chosen | changed)

"""A federation in this process, and its tally at a port of this machine."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import select

from coordinator.database.federation_schema import CheckStepRow
from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.operator import Coordinator
from coordinator.people.people import Role
from coordinator.runs.tally_presence import TallyContact
from coordinator.tally.book import TallyBook
from coordinator.tally.book_rows import run_standings
from coordinator.tally.tally_database import TallyDatabase
from coordinator.tally.tally_folder import TallyFolder
from coordinator.tally.tally_schema import TallyOpenedRow, TallyStepRow
from coordinator.tally.tally_server import TallyServer
from protocols import wire
from protocols.forms import Verified
from protocols.identity import PublicIdentity
from protocols.values import decode_value
from protocols.verified import (
    Exchanged,
    ProvedVotes,
    ReportTaken,
    SecretsDrawn,
    VoteLayout,
    check_step_from_record,
    vote_report,
)
from protocols.vote_messages import SumShare
from tests.support.checking import prove_wrongly
from tests.support.console import browser
from tests.support.deployed import NAMES, Hospital
from tests.support.invariants import shown_by_status
from tests.support.loopback_home import add_tally, free_ports
from tests.support.worked import Worked

MOST_NOISY = 2.0


def steps_of(database: Any, table: Any) -> dict[bytes, list[Any]]:
    """An end's steps, by plan."""
    found: dict[bytes, list[Any]] = {}
    with database.transaction() as connection:
        rows = connection.execute(
            select(table.plan_digest, table.body).order_by(table.plan_digest, table.number)
        ).all()
    for digest, body in rows:
        word, values = decode_value(body)
        found.setdefault(digest, []).append(check_step_from_record(word, tuple(values)))
    return found


@contextmanager
def lying(*liars: Hospital) -> Iterator[None]:
    """Let hospitals prove a vote too many in each report; the others may report meanwhile."""
    lies, honest = threading.local(), vote_report.prove

    def prove(layout: VoteLayout, rows: Any, **named: Any) -> ProvedVotes:
        if not getattr(lies, "now", False):
            return honest(layout, rows, **named)
        return prove_wrongly(layout, rows, **named)

    def lie(receive: Callable[[bytes], bytes], packet: bytes) -> bytes:
        lies.now = True
        try:
            return receive(packet)
        finally:
            lies.now = False

    for one in liars:
        one.receive = partial(lie, one.receive)  # type: ignore[method-assign]
    with patch.object(vote_report, "prove", prove):
        yield


def require_told(coordinator: Coordinator, *, rejected: Sequence[str], lost: Sequence[str]) -> None:
    """Every page of the first run names who was not heard, and whose reports held no votes."""
    with closing(browser(coordinator, Role.AUDITOR)) as client:
        pages = [client.get(path).text for path in ("/runs/first", "/runs/first/results")]
        hospitals = client.get("/hospitals").text
    shown, table = shown_by_status(coordinator, "first")
    run = coordinator.queue.find("first")
    report = (coordinator.home.results("first") / "report.html").read_text("utf-8")
    for said in (*pages, run.reason, shown, report):
        assert all(name in said for name in (*rejected, *lost))
    counts = {each["hospital"]: each["no_votes"] for each in table["hospitals"]}
    assert {name for name, count in counts.items() if count == run.progress.batches} == set(
        rejected
    )
    assert {name for name, count in counts.items() if not count} == set(counts) - set(rejected)
    _, of_tally = hospitals.split('id="tally"')
    assert [name for name in counts if name in of_tally] == list(rejected)


def require_one_coin(coordinator: Coordinator, tally: TallyFolder) -> None:
    """Each plan has one coin at each end, every report and every answer once."""
    with closing(tally.database()) as database:
        both = [steps_of(coordinator._database, CheckStepRow), steps_of(database, TallyStepRow)]
    assert both[0].keys() == both[1].keys()
    for plans in both:
        for steps in plans.values():
            assert sum(isinstance(step, SecretsDrawn) for step in steps) == 1
            for said in (
                [step.sent for step in steps if isinstance(step, Exchanged)],
                [step.report for step in steps if isinstance(step, ReportTaken)],
            ):
                assert len(said) == len(set(said))


def require_one_charge(coordinator: Coordinator, tally: TallyFolder) -> None:
    """The tally charged each plan that it opened once, with all its rows, and no other."""
    with closing(tally.database()) as database, database.transaction() as connection:
        pinned = tally.coordinator.identity
        opened = Counter(connection.scalars(select(TallyOpenedRow.plan_digest)))
        for run in run_standings(connection, coordinator=pinned):
            plans = [plan for plan, is_open in run.plans.items() if is_open]
            assert run.charged.asks == sum(opened[plan] for plan in plans)
    shared = {
        plan
        for plan, steps in steps_of(coordinator._database, CheckStepRow).items()
        if any(isinstance(step, Exchanged) and _is_share(step.received) for step in steps)
    }
    assert shared <= set(opened)


def _is_share(frame: bytes) -> bool:
    return bool(frame) and isinstance(wire.decode(frame).message, SumShare)


class WorkedWithTally(Worked):
    """See `Worked`; the tally is started and stopped like a process, its folder stays."""

    def __init__(self, folder: Path, *, names: tuple[str, ...] = NAMES) -> None:
        now = datetime.now(UTC)
        settings = FederationSettings("lung study", "127.0.0.1:8443")
        home = FederationHome.create(folder / "federation", settings, now=now)
        self.tally = add_tally(home, folder / "tally", port=free_ports(1)[0])
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

    @property
    def tally_standing(self) -> TallyContact:
        """What the coordinator knows of it."""
        return self.coordinator.queue.tally.standing(self.tally.identity.public.fingerprint)

    def stop_tally(self) -> None:
        if self._server is not None and self._database is not None:
            self._server.stop()
            self._database.close()
            self._server = self._database = None

    def ask(self, name: str = "first", **changed: Any) -> Any:
        """Ask a run of verified votes, with little noise unless that is changed."""
        chosen = {"form": Verified.name, "noise": "aggregators", "sigma2": MOST_NOISY}
        return super().ask(name, **chosen | changed)

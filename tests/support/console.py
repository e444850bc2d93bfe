"""A console with people, hospitals, runs and audit entries, written straight into the database."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import insert
from starlette.testclient import TestClient

from coordinator.certificates import make_pinned_certificate
from coordinator.console import build
from coordinator.database import FederationAct
from coordinator.database.federation_audit_log import FederationAuditLog
from coordinator.database.federation_schema import FederationAuditRow, MemberRow, RunRow, RunState
from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.operator import Coordinator
from coordinator.people.one_time_codes import code_at
from coordinator.people.people import Role
from coordinator.runs.run_hospitals import HospitalAnswer
from coordinator.tally.cards import TallyCard
from pate_fed.nodes.audit_log import AuditEntry
from pate_fed.report import RunDirectory
from pate_fed.rule import Caps, Rule
from pate_fed.run_folder import MANIFEST, METRICS
from protocols.identity import SigningIdentity
from tests.support.loopback_home import free_ports
from tests.support.running_server import running
from tests.support.sample_run import fill, sample_settings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BASE = "http://127.0.0.1:8447"
PASSWORD = "four plain words here"
HOSTILE = "<script>alert('x')</script>"


@contextmanager
def opened(folder: Path) -> Iterator[Coordinator]:
    """A new federation."""
    [silent] = free_ports(1)  # its pages ask there how the service is
    settings = FederationSettings("lung study", "127.0.0.1:8443", metrics_port=silent)
    home = FederationHome.create(folder, settings, now=datetime.now(UTC))
    coordinator = Coordinator(home)
    try:
        yield coordinator
    finally:
        coordinator.close()


def browser(coordinator: Coordinator, role: Role | None = None) -> TestClient:
    """A browser, in which a person of a role is signed in."""
    client = TestClient(
        build(coordinator), base_url=BASE, follow_redirects=False, raise_server_exceptions=True
    )
    if role is not None:
        known = {one.name for one in coordinator.people.all()}
        name = f"Some {role.value}"
        if name not in known:
            coordinator.people.add(name, role)
        client.cookies.set("pate-fed-session", coordinator.sessions.open(name))
    return client


def form_token(client: TestClient, path: str) -> str:
    """The token that a page's forms hold."""
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', client.get(path).text)
    assert found is not None, path
    return found[1]


def set_up(coordinator: Coordinator, name: str, role: Role) -> bytes:
    """Add a person who has chosen `PASSWORD`; return the key of their one-time codes."""
    code = coordinator.people.add(name, role)
    people = coordinator.people
    key = people.choose_password(name, setup_code=code.text, password=PASSWORD)
    now, clock = datetime.now(UTC), people._clock
    people._clock = lambda: now  # the step before may be over by the time that it is checked
    try:
        people.finish_setup(name, setup_code=code.text, code=code_at(key, _step(now) - 1))
    finally:
        people._clock = clock
    return key


def code_now(key: bytes) -> str:
    """The one-time code of this moment."""
    return code_at(key, _step(datetime.now(UTC)))


def wrong_code(key: bytes) -> str:
    """A one-time code that is wrong now and in the next minutes."""
    step = _step(datetime.now(UTC))
    right = {code_at(key, near) for near in range(step - 5, step + 20)}
    return next(code for code in map("{:06d}".format, range(100)) if code not in right)


def _step(moment: datetime) -> int:
    return int(moment.timestamp() // 30)


def add_hospitals(
    coordinator: Coordinator,
    *names: str,
    state: str = "member",
    votes: int = 10,
    identity: SigningIdentity | None = None,
    node: int = 7,
    version: str = "1.2.3",
) -> None:
    """Hospitals that are there, whatever their names."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    rows = []
    for name in names:
        known = (identity or SigningIdentity.generate()).public
        rows.append(
            {
                "fingerprint": known.fingerprint,
                "name": name,
                "identity_key": known.key,
                "node_key": f"{pem}{secrets.token_hex(4)}",
                "node_id": str(node) if state == "member" else None,
                "state": state,
                "requested_at": NOW,
                "approved_at": NOW if state == "member" else None,
                "votes": votes if state == "member" else 0,
                "seen_at": datetime.now(UTC) - timedelta(minutes=1),
                "clock_skew_s": 0,
                "version": version or None,
            }
        )
    with coordinator._database.transaction() as connection:
        connection.execute(insert(MemberRow), rows)


def add_tally(coordinator: Coordinator) -> bytes:
    """A tally that answered, and does not any more; its fingerprint."""
    home, identity = coordinator.home, SigningIdentity.generate().public
    certificate = make_pinned_certificate("tally", now=datetime.now(UTC)).certificate.decode()
    home.invite_tally(now=datetime.now(UTC))
    home.accept_tally(
        TallyCard(home.settings.name, identity.key, certificate, "127.0.0.1:1", "Data Trust")
    )
    for hours, code in ((0, ""), (3, "PF-451"), (4, "PF-451")):
        coordinator.queue.tally.note(
            identity.fingerprint, code=code, now=NOW + timedelta(hours=hours)
        )
    return identity.fingerprint


def add_runs(
    coordinator: Coordinator,
    *names: str,
    hospitals: tuple[str, ...],
    state: RunState = RunState.DONE,
    reason: str = "",
    queries: int = 60,
) -> None:
    """Runs that are there, in one state; of a name's newest hospital, or of one that is unknown."""
    known = {one.name: one.identity.fingerprint for one in coordinator.enrollment.parties()}
    parties = [
        (name, known.get(name, hashlib.sha256(name.encode()).digest())) for name in hospitals
    ]
    settings = {
        "epsilon": 5.0,
        "delta": 1e-5,
        "unit": "record",
        "rule": asdict(Rule("gnmax", sigma2=12.5)),
        "caps": asdict(Caps(queries, queries, 20)),
        "form": "additive",
    }
    request = {
        "parties": [
            {"name": name, "fingerprint": party.hex(), "teachers": 10} for name, party in parties
        ],
        "queries": list(range(queries)),
        "settings": settings,
        "source": "public.csv",
        "label": "sick",
        "class_names": ["no", "yes"],
        "epsilon": 2.345,
    }
    begun = state is not RunState.QUEUED
    progress = {
        "queries": queries,
        "asked": queries,
        "answered": queries - 4,
        "refused": 4,
        "from_store": 0,
        "batches": 3,
        "void": 0,
        "exchanges": 12,
        "epsilon": 2.345,
        "share": 0.875,
        "tests_delta": 0.0,
    }
    row = {
        "state": state.value,
        "wanted": "",
        "reason": reason,
        "request": json.dumps(request),
        "progress": json.dumps(progress if begun else {}),
        "fence": 0,
        "waiting_since": None,
        "turn": 1,
        "created_at": NOW,
        "updated_at": NOW,
    }
    with coordinator._database.transaction() as connection:
        connection.execute(insert(RunRow), [{**row, "name": name} for name in names])


def add_entries(coordinator: Coordinator, count: int, *, subject: str = "North") -> None:
    """Audit entries of some person, as they are written one by one."""
    database, rows = coordinator._database, []
    first, link = coordinator.audit_log.end
    with database.transaction() as connection:
        for number in range(count):
            facts = {
                **{"by": "anna", "from": "command line", "subject": f"{subject}{number % 97}"},
                **{"before": {"state": "running"}, "after": {"state": "paused"}},
            }
            at = round(NOW.timestamp() + number) * 1000
            body = AuditEntry(first + number + 1, at, FederationAct.PAUSED, facts).to_bytes()
            link = FederationAuditLog.link(link, body)
            rows.append({"number": first + number + 1, "body": body, "link": link})
        connection.execute(insert(FederationAuditRow), rows)


def newest_acts(
    coordinator: Coordinator, *, words: Sequence[str] = (), most: int = 50
) -> list[dict[str, Any]]:
    """The newest entries of the audit log that hold some words, newest first."""
    return coordinator.audit_log.newest(words=words, most=most)[0]


def add_results(coordinator: Coordinator, run: str) -> None:
    """Results of a run, made up."""
    out = coordinator.home.results(run)
    out.parent.mkdir(mode=0o700, parents=True)
    settings = {name: one for name, one in sample_settings().items() if name != "seed"}
    with RunDirectory.open_new(out) as directory:
        fill(directory, settings=settings)
        manifest = directory.folder / MANIFEST
        without_seed = {**json.loads(manifest.read_text("utf-8")), "seed": None}
        manifest.write_text(json.dumps(without_seed), "utf-8")
        metrics = directory.folder / METRICS
        known = json.loads(metrics.read_text("utf-8"))
        known["queries"]["from_store"] = known["queries"]["asked"]  # so no transcript is checked
        metrics.write_text(json.dumps(known), "utf-8")


def seeded(coordinator: Coordinator) -> None:
    """A federation with something on every page, and hostile names among them."""
    three = ("North", "South", HOSTILE)
    add_hospitals(coordinator, *three, version=HOSTILE)
    add_hospitals(coordinator, "West", version="")
    add_hospitals(coordinator, "East clinic", state="requested")
    add_hospitals(coordinator, "Gone", state="revoked")
    coordinator.invite("Hôpital Saint-Louis")
    waits = "waits for the people of North [PF-322]; the run's id there: 0123456789abcdef"
    for state in RunState:
        reason = waits if state is RunState.WAITING else ""
        add_runs(coordinator, f"is-{state.value}", hospitals=three, state=state, reason=reason)
    party = {one.name: one.identity.fingerprint for one in coordinator.enrollment.parties()}
    answers = {
        party["North"]: HospitalAnswer("PF-322", NOW),
        party[HOSTILE]: HospitalAnswer("PF-328", NOW, f"{HOSTILE} {'x' * 200}"),
    }
    coordinator.queue.hospitals.note_answers("is-waiting", answers)
    coordinator.queue.hospitals.note_presence(
        there=(), away=[party["South"]], now=datetime.now(UTC)
    )
    add_tally(coordinator)
    coordinator.queue.hospitals.note_no_votes("is-waiting", {party["North"]: 3, party[HOSTILE]: 1})
    add_results(coordinator, "is-done")
    add_entries(coordinator, 60, subject=HOSTILE)


@contextmanager
def served(coordinator: Coordinator) -> Iterator[str]:
    """Serve the console on loopback, in this process; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            build(coordinator),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        with running(uvicorn.Server(config), listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"

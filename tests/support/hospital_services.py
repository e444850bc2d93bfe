"""Three hospitals with folders, tables, pins and one coordinator, for tests of whole services."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from coordinator.database import Database, RunStore
from coordinator.runs.labeling import LabelingJob, LabelingRun, Member
from coordinator.runs.transport import Transport
from party.cli.lifetime_budget import LIFETIME_RULES
from party.site.own_table import add
from party.site.people_decisions import PeopleDecisions, Subject
from party.site.site import SETTINGS_FILE, Site
from party.site.tasks import fetch_task
from party.storage import LedgerStore, SiteAuditLog
from pate_fed.accounting import PrivacyLedger
from pate_fed.charges import RunLedger
from pate_fed.data.task import LearningTask
from pate_fed.nodes.audit_log import AuditEntry
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights
from protocols.additive import AdditiveSum
from protocols.identity import SigningIdentity
from protocols.secure_sum import SecureSum
from tests.support.hospital_site import (
    LABEL,
    NOW,
    PATIENT,
    invitation_of,
    public_task,
    with_teachers,
    write_own_table,
)
from tests.support.rules import run_terms
from tests.support.stores import run_in_memory

TEACHERS = 4
NAMES = ("North", "South", "West")

FIRST_SEED = 9094
"""Of the tables: one that is drawn anew may hold a record twice, which no site takes."""


@dataclass
class Hospitals:
    """Their folders and what is public."""

    coordinator: SigningIdentity
    sites: list[Site]
    task: LearningTask
    changes: dict[str, Any] = field(default_factory=dict)
    form: SecureSum = field(default_factory=AdditiveSum)
    database: Database = field(default_factory=Database.in_memory)
    membership: str | None = None  # where its sites are in several federations

    @property
    def members(self) -> list[Member]:
        """As the coordinator enrolled them."""
        return [
            Member(site.membership(self.membership).settings.party, site.identity.public)
            for site in self.sites
        ]

    def terms(self, members: tuple[Member, ...]) -> RunTerms:
        """Terms under which labels are what most teachers say in nearly all runs."""
        fields: dict[str, Any] = {
            "name": "run",
            "pool_digest": self.task.pool.digest,
            "task_digest": self.task.digest,
            "classes": len(self.task.class_names),
            "weights": (TeacherWeights.of((1,) * TEACHERS),) * len(members),
            "mechanism": "gnmax",
            "sigma2": 4.0,
            "unit": "record",
            "max_asks": 12,
            "max_answers": 12,
            "budgets": (5.0,) * len(members),
            "delta": 1e-5,
        }
        return run_terms(**{**fields, **self.changes})

    def run(
        self,
        transport: Transport,
        *,
        clock: Callable[[], float],
        patience_s: float = 0.0,
        **more: Any,
    ) -> LabelingRun:
        """A run that was not set up yet."""
        return LabelingRun(
            LabelingJob(
                transport=transport,
                identity=self.coordinator,
                form=self.form,
                members=self.members,
                pool=self.task.pool,
                terms=self.terms,
                simulated=False,
                lifetime_s=3600,
                patience_s=patience_s,
                store=self._open_store,
                random_bytes=secrets.token_bytes,
                noise_bytes=_same_noise(),
                clock=clock,
                **more,
            )
        )

    def approve(self, place: int) -> None:
        """A person of one hospital approves the pool, and knows it from elsewhere."""
        site, digest = self.sites[place], self.task.pool.digest
        asking = site.membership(self.membership).coordinator.fingerprint
        fetch_task(site, self, digest)
        with records_of(site) as records:
            records.ask(Subject.POOL, digest, tally=b"", coordinator=asking)
            records.approve(Subject.POOL, digest, coordinator=asking, by="M. Curie")

    def approve_all(self) -> None:
        for place in range(len(self.sites)):
            self.approve(place)

    def _open_store(self, ledger: RunLedger) -> RunStore:
        return RunStore(
            run_in_memory(self.database),
            ledger,
            pool=self.task.pool,
            task_digest=self.task.digest,
            members=[one.identity.fingerprint for one in self.members],
        )

    def fetch_pool(self, digest: bytes) -> bytes:
        """As the coordinator gives it out."""
        assert digest == self.task.pool.digest
        return self.task.to_bytes()


def _same_noise() -> Callable[[int], bytes]:
    """Noise that no label of these tests yields to: fresh noise would, once in some twenty runs."""
    calls = count()
    return lambda size: hashlib.shake_256(b"noise %d" % next(calls)).digest(size)


@contextmanager
def records_of(site: Site) -> Iterator[PeopleDecisions]:
    """What the people of a site decided, as a command opens it beside the node."""
    with site.open_database() as database:
        yield PeopleDecisions(database, clock=NOW.timestamp)


def decide_budget(site: Site) -> None:
    """Let a person take the budget for life that the settings have: a first start needs it."""
    digest = hashlib.sha256(site.path(SETTINGS_FILE).read_bytes()).digest()
    with records_of(site) as records:
        for name in LIFETIME_RULES:
            value = f"{getattr(site.settings, name):g}"
            records.state.note_rule(name, value, file=digest, by="M. Curie")


def audit_of(site: Site) -> list[AuditEntry]:
    """The audit log of a site, checked."""
    with site.open_database() as database:
        log = SiteAuditLog(database)
        log.verify()
        return list(log.entries())


def ledger_of(site: Site) -> PrivacyLedger:
    """What a site was charged, as whoever looks on reads it."""
    with site.open_database() as database:
        return LedgerStore(database).load()


def join_another(hospitals: Hospitals, federation: str = "heart study") -> Hospitals:
    """Let the same sites join another federation; return it with its own coordinator."""
    coordinator = SigningIdentity.generate()
    hospitals.membership = hospitals.sites[0].membership().name
    for place, site in enumerate(hospitals.sites):
        party = site.membership(hospitals.membership).settings.party
        hospitals.sites[place] = site.add(
            invitation_of(coordinator.public, f"{party} clinic", federation=federation)
        )
    joined = hospitals.sites[0].membership_at(coordinator.fingerprint)
    assert joined is not None
    return Hospitals(
        coordinator,
        hospitals.sites,
        hospitals.task,
        database=hospitals.database,
        membership=joined.name,
    )


def make_hospitals(
    folder: Path,
    *,
    approval: str = "pool",
    address: str = "127.0.0.1:1",
    ca: str = "",
    ports: tuple[int, ...] = (9094, 9095, 9096),
    policy: dict[str, Any] | None = None,
    coordinator: SigningIdentity | None = None,
    names: tuple[str, ...] = NAMES,
) -> Hospitals:
    """Make sites that have checked one another: three, unless more are named."""
    coordinator = coordinator or SigningIdentity.generate()
    sites = []
    for seed, (name, port) in enumerate(zip(names, ports, strict=True), start=FIRST_SEED):
        invitation = invitation_of(coordinator.public, name, address=address, ca=ca)
        site = Site.create(folder / name, invitation)
        site = site.save(
            replace(
                site.settings.with_setting(site.membership().name, node_port=port),
                approval=approval,
                policy={
                    "least_checked_peers": 2,
                    "most_forfeited": 1.0,  # with small budgets one batch is a large part
                    **(policy or {}),
                },
            )
        )
        table = write_own_table(folder / f"{name}.csv", seed=seed)
        site = add(site, table, label=LABEL, patient_id=PATIENT)[0]
        sites.append(with_teachers(site, TEACHERS))
    for site in sites:
        with records_of(site) as records:
            for other in sites:
                if other is not site:
                    party, key = other.membership().settings.party, other.identity.public
                    records.add_pin(party, key, how="telephone", by="M. Curie")
    return Hospitals(coordinator, sites, public_task(folder))

"""Three hospitals with folders, tables, pins and one coordinator, for tests of whole services."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.certificates import make_ca
from coordinator.labeling import LabelingRun, Member, Settings
from coordinator.store import MemoryStore
from coordinator.transport import Transport
from party.approvals import Approvals, State, Subject
from party.dataset import add
from party.peers import PINS_FILE, Pin, Pins
from party.service import APPROVALS_FILE
from party.site import Site
from party.task_files import keep_task
from pate_fed.data.task import LearningTask
from pate_fed.federation import RunTerms
from pate_fed.votes import TeacherWeights
from protocols.additive import AdditiveSum
from protocols.enrollment import Invitation
from protocols.identity import SigningIdentity
from tests.support.hospital_site import LABEL, NOW, PATIENT, public_task, write_own_table

TEACHERS = 4
NAMES = ("North", "South", "West")


@dataclass
class Hospitals:
    """Their folders and what is public."""

    coordinator: SigningIdentity
    sites: list[Site]
    task: LearningTask
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> list[Member]:
        """As the coordinator enrolled them."""
        weights = TeacherWeights.of((1,) * TEACHERS)
        return [Member(site.settings.party, site.identity.public, weights) for site in self.sites]

    def terms(self, members: tuple[Member, ...]) -> RunTerms:
        """Terms under which labels are what most teachers say in nearly all runs."""
        fields: dict[str, Any] = {
            "pool_digest": self.task.pool.digest,
            "task_digest": self.task.digest,
            "classes": len(self.task.class_names),
            "weights": tuple(member.weights for member in members),
            "mechanism": "gnmax",
            "vote_threshold": None,
            "sigma1": None,
            "sigma2": 4.0,
            "confidence": None,
            "test_delta": None,
            "noise_place": "coordinator",
            "unit": "record",
            "pricing": "gdp",
            "orders": (),
            "max_asks": 12,
            "max_answers": 12,
            "max_refusals": 0,
            "budgets": (5.0,) * len(members),
            "delta": 1e-5,
        }
        return RunTerms(**{**fields, **self.changes})

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
            transport=transport,
            identity=self.coordinator,
            form=AdditiveSum(),
            members=self.members,
            pool=self.task.pool,
            settings=Settings(self.terms, simulated=False, lifetime_s=3600, patience_s=patience_s),
            store=MemoryStore,
            random_bytes=secrets.token_bytes,
            noise_bytes=secrets.token_bytes,
            clock=clock,
            **more,
        )

    def approve(self, place: int) -> None:
        """A person of one hospital approves the pool, and knows it from elsewhere."""
        site = self.sites[place]
        keep_task(site, self.task)
        approvals = Approvals(site.path(APPROVALS_FILE))
        digest = self.task.pool.digest
        asked = approvals.ask(Subject.POOL, digest, terms=b"", seats=(), at=1.0)
        approvals.decide(asked, State.APPROVED, by="M. Curie", at=2.0)


def make_hospitals(
    folder: Path,
    *,
    approval: str = "pool",
    address: str = "127.0.0.1:1",
    ca: str = "",
    ports: tuple[int, ...] = (9094, 9095, 9096),
    policy: dict[str, Any] | None = None,
    coordinator: SigningIdentity | None = None,
) -> Hospitals:
    """Make three sites that have checked one another."""
    coordinator = coordinator or SigningIdentity.generate()
    sites = []
    for name, port in zip(NAMES, ports, strict=True):
        invitation = Invitation(
            federation="lung study",
            party=name,
            address=address,
            ca_certificate=ca or make_ca("lung study", now=NOW).certificate.decode(),
            coordinator_key=coordinator.public.key,
            token=bytes(16),
            expires_at=2**31,
        )
        site = Site.create(folder / name, invitation)
        site = site.save(
            replace(
                site.settings,
                teachers=TEACHERS,
                approval=approval,
                node_port=port,
                policy={
                    "least_checked_peers": 2,
                    "most_near_queries": 1000,
                    **(policy or {}),
                },
            )
        )
        table = write_own_table(folder / f"{name}.csv", seed=port)
        sites.append(add(site, table, label=LABEL, patient_id=PATIENT)[0])
    for site in sites:
        pins = Pins(site.path(PINS_FILE))
        for other in sites:
            if other is not site:
                party = other.settings.party
                pins.add(Pin(party, party, other.identity.public, "telephone", "M. Curie", NOW))
    return Hospitals(coordinator, sites, public_task(folder))

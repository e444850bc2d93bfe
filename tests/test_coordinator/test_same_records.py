"""Deployed hospitals whose records vote give the labels and the epsilon of a simulation.

What it proves: three hospitals that read their own tables, with the noise of a simulation that
dealt the same records, come to its very labels; and `plan`, `simulate` and a run that is drafted
state one price. Packets are carried in memory: that a run goes over processes is shown by
`test_killed_voters`.
"""

from __future__ import annotations

import csv
import json
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.operator import Coordinator
from coordinator.runs.labeling import LabelingRun, Member
from coordinator.simulation.chance import Chance
from coordinator.simulation.simulated_federation import SimulatedFederation
from party.service import PartyService
from party.site.own_table import add
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.data.new_task import make_task
from pate_fed.planning import PlanRequest, plan
from pate_fed.terms import RunTerms
from pate_fed.votes import TeacherWeights
from protocols.forms import DEPLOYED_FORMS
from protocols.identity import SigningIdentity
from protocols.suites import DEFAULT_SUITE
from tests.support.asking import drafted_run
from tests.support.command import Command, pate_fed
from tests.support.federation import MemoryTransport
from tests.support.hospital_services import Hospitals, make_hospitals
from tests.support.hospital_site import tell_votes
from tests.support.loopback_home import make_home
from tests.support.process_federation import enroll

__all__ = ["pate_fed"]  # a fixture

SEED, QUERIES, BATCH, CAP, EPSILON = 7, 30, 10, 4, 6.0
SIGMA2 = 2.4
"""Enough for a hospital's new budget for life, too, which adds up at one Renyi order."""
NAMES, LABEL, CLASSES = ("North", "South", "West"), "sick", ("no", "yes")


class Simulated:
    """A simulation, and what it had in its hands."""

    federation: SimulatedFederation

    def __init__(self, folder: Path, command: Command, patch: pytest.MonkeyPatch) -> None:
        rng = np.random.default_rng(3)
        self.rows = [
            [f"{rng.normal(45 + 20 * (one % 2), 9):.3f}", f"{rng.normal(70, 9):.3f}"]
            for one in range(900)
        ]
        lines = [f"patient,hospital,age,weight,{LABEL}"]
        for number, cells in enumerate(self.rows):
            hospital = NAMES[number % len(NAMES)]
            lines.append(",".join((f"p{number}", hospital, *cells, CLASSES[number % 2])))
        table, self.out = folder / "table.csv", folder / "simulated"
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        request = SimulatedFederation.request

        def kept(made: SimulatedFederation, *given: Any) -> Any:
            self.federation = made
            return request(made, *given)

        patch.setattr(SimulatedFederation, "request", kept)
        ended = command(
            *("simulate", "--data", "csv", "--data-file", table, "--label", LABEL),
            *("--patient-id", "patient", "--hospital", "hospital", "--teacher", "neighbors"),
            *("--queries", QUERIES, "--batch-size", BATCH, "--votes-per-patient", CAP),
            *(
                "--epsilon",
                EPSILON,
                "--sigma2",
                SIGMA2,
                "--sum",
                "additive",
                "--seed",
                SEED,
                "--out",
                self.out,
            ),
        )
        assert ended.code == 0, ended.err
        self.privacy = json.loads((self.out / "privacy.json").read_text("utf-8"))

    @property
    def labels(self) -> list[str]:
        with (self.out / "labels.csv").open(encoding="utf-8", newline="") as file:
            return [row["label"] for row in csv.DictReader(file)]

    def write_pool(self, path: Path) -> Path:
        ids = self.federation.dataset.pool.unit_ids
        cells = [",".join(self.rows[int(one.removeprefix("p"))]) for one in ids]
        path.write_text("\n".join(("age,weight", *cells)) + "\n", encoding="utf-8")
        return path

    def write_own(self, name: str, path: Path) -> Path:
        """The private records of one hospital, as its own table."""
        private = self.federation.dataset.private
        assert private.hospitals is not None
        lines = [f"patient,age,weight,{LABEL}"]
        for patient, hospital in zip(private.unit_ids, private.hospitals, strict=True):
            if hospital == name:
                number = int(patient.removeprefix("p"))
                lines.append(",".join((patient, *self.rows[number], CLASSES[number % 2])))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path


def deployed(
    folder: Path, simulated: Simulated, *, coordinator: SigningIdentity | None = None
) -> Hospitals:
    """Hospitals with the simulation's records, set to let them vote."""
    hospitals = make_hospitals(
        folder,
        coordinator=coordinator,
        policy={"most_epsilon": 100.0, "least_sigma2": 1.0},
    )
    hospitals.task = make_task(
        simulated.write_pool(folder / "pool.csv"), label=LABEL, classes=CLASSES
    )
    dataset = simulated.federation.dataset
    np.testing.assert_array_equal(hospitals.task.inputs, dataset.pool.features)
    for place, (name, site) in enumerate(zip(NAMES, hospitals.sites, strict=True)):
        table = simulated.write_own(name, folder / f"own-{name}.csv")
        held = site.save(replace(site.settings, teacher_model="neighbors", lifetime_epsilon=100.0))
        hospitals.sites[place], _ = add(held, table, label=LABEL, patient_id="patient")
    hospitals.approve_all()
    return hospitals


def test_deployed_records_give_the_labels_of_a_simulation_with_the_same_noise(
    tmp_path: Path, pate_fed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(tmp_path, pate_fed, monkeypatch)
    rule = simulated.privacy["mechanism"]
    hospitals = deployed(tmp_path, simulated)
    hospitals.changes |= {
        **{"patient_votes": CAP, "sigma2": rule["sigma2"], "batch_size": BATCH},
        **{"max_asks": QUERIES, "max_answers": QUERIES, "budgets": (EPSILON,) * 3},
    }
    votes = {
        site.membership().settings.party: TeacherWeights.equal(site.settings.teachers)
        for site in hospitals.sites
    }

    def terms(members: tuple[Member, ...]) -> RunTerms:
        return replace(hospitals.terms(members), weights=tuple(votes[one.name] for one in members))

    with ExitStack() as stack:
        services = [stack.enter_context(PartyService(site)) for site in hospitals.sites]
        run = hospitals.run(MemoryTransport(services, []), clock=time.time)
        job = replace(
            run._context.job, noise_bytes=Chance(SEED).noise(), terms=terms, shares_out=True
        )
        run = LabelingRun(job)
        run.set_up()
        asked = simulated.federation.queries
        found: list[str] = []
        for start in range(0, QUERIES, BATCH):
            release = run.ask(asked[start : start + BATCH])
            found += [CLASSES[label] for label in release.labels]

        assert found == simulated.labels
        assert len(set(found)) == 2
        [charged] = {
            sum(getattr(one.charged, "asks", 0) for one in service.ledger.entries)
            for service in services
        }
        assert charged == CAP


def test_a_plan_a_simulation_and_a_run_state_one_price(
    tmp_path: Path, pate_fed: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(tmp_path, pate_fed, monkeypatch)
    home = make_home(tmp_path / "federation")
    hospitals = deployed(tmp_path, simulated, coordinator=home.identity)
    asked = {
        **{"teacher": "neighbors", "patient_votes": CAP, "queries": QUERIES},
        **{"epsilon": EPSILON, "sigma2": SIGMA2},
    }
    planned = plan(
        PlanRequest.of(
            {
                **dict.fromkeys(("mechanism", "vote_threshold")),
                **{"data": "csv", "suite": DEFAULT_SUITE, "parties": 3, **asked},
            },
            classes=2,
            records=hospitals.sites[0].settings.teachers,
        ),
        sums=DEPLOYED_FORMS,
    )["forecast"]
    with closing(Coordinator(home)) as coordinator:
        for site in hospitals.sites:
            enroll(coordinator, site)
            tell_votes(coordinator.enrollment, site, after_s=1)
        request = drafted_run(coordinator, "run", hospitals.task, **asked, batch_size=BATCH)
    rule, public = simulated.privacy["mechanism"], simulated.privacy["views"]["public"]
    terms = request.terms

    assert (terms.caps.patient_votes, terms.caps.max_asks) == (CAP, QUERIES)
    assert terms.rule.sigma2 == planned["mechanism"]["sigma2"] == rule["sigma2"] == SIGMA2
    assert request.epsilon == planned["prices"]["public"]["epsilon"] == public["epsilon"]
    assert request.epsilon == pytest.approx(
        gdp_epsilon(np.sqrt(2 * CAP) / SIGMA2, terms.delta), rel=1e-12
    )
    assert terms.quotas == tuple(one.ensemble.teachers for one in simulated.federation.hospitals)

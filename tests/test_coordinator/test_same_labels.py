"""A deployment gives the labels of a simulation that drew the same noise; nobody can set it.

What it proves: `serve` with its SuperLink, SuperNodes, secure sum, mechanism and choice of queries
comes to the very labels that `pate-fed simulate` comes to, where votes and noise are the same. What
it does not: that hospitals that train by themselves vote alike. A simulation deals one table out,
and a hospital trains on its own; so the simulation's teachers vote at the deployed hospitals, whose
nodes are in this process. That a hospital's own teachers vote over the network is shown by
`test_federation_demo` and `tests/test_failures/test_both_services.py`. Noise of the hospitals is
not compared: there each draws its own.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.runs.request import source_of
from coordinator.simulation import run as simulation
from coordinator.simulation.hospitals import Hospital as SimulatedHospital
from pate_fed.data import Dataset
from pate_fed.data.task import LearningTask
from pate_fed.mechanisms import keyed_stream
from pate_fed.planning import RunSettings
from pate_fed.queries import QueryBatch
from protocols.envelope import DEFAULT_SUITE
from tests.support import deployed as support
from tests.support import postgres
from tests.support.command import Command, pate_fed
from tests.support.deployed import CLASSES, LABEL, NAMES, TEACHERS, deployed
from tests.support.loopback_home import environment

__all__ = ["pate_fed"]

REPOSITORY = Path(__file__).parents[2]
SEED, QUERIES, BATCH = 7, 12, 6
MECHANISM = ("--mechanism", "confident", "--vote-threshold", 18, "--sigma1", 6, "--sigma2", 6)
BUDGET = ("--epsilon", 100, "--unit", "record", "--unchecked-votes", "--batch-size", BATCH)


def purpose_bytes(purpose: str) -> bytes:
    """What a simulation with `SEED` makes its chance of."""
    return hashlib.sha256(
        b"pate-fed simulation\0" + purpose.encode() + b"\0" + str(SEED).encode()
    ).digest()


def write_table(path: Path) -> list[list[str]]:
    """Records of three hospitals that are hard to tell apart; returns their features."""
    rng = np.random.default_rng(3)
    rows = []
    lines = [f"patient,hospital,age,weight,{LABEL}"]
    for number in range(420):
        is_sick = number % 2
        cells = [f"{rng.normal(55 + 8 * is_sick, 12):.3f}", f"{rng.normal(70, 9):.3f}"]
        rows.append(cells)
        hospital = NAMES[number % len(NAMES)]
        lines.append(",".join((f"p{number}", hospital, *cells, CLASSES[is_sick])))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rows


class Simulated:
    """A simulation through its command line, and what it had in its hands."""

    def __init__(
        self, folder: Path, command: Command, patch: pytest.MonkeyPatch, *, out: str = "simulated"
    ) -> None:
        self.dataset: Dataset
        self.hospitals: dict[str, SimulatedHospital] = {}
        self._keep(patch)
        self.rows = write_table(folder / "table.csv")
        self.out = folder / out
        ended = command(
            *("simulate", "--data", "csv", "--data-file", folder / "table.csv", "--label", LABEL),
            *("--patient-id", "patient", "--hospital", "hospital", "--teachers", TEACHERS),
            *("--queries", QUERIES, "--select", "medoids", *MECHANISM, *BUDGET),
            *("--seed", SEED, "--out", self.out),
        )
        assert ended.code == 0, ended.err

    def _keep(self, patch: pytest.MonkeyPatch) -> None:
        load, train = simulation.load_dataset, simulation.train_hospitals

        def load_and_keep(*given: Any, **named: Any) -> Dataset:
            self.dataset = load(*given, **named)
            return self.dataset

        def train_and_keep(*given: Any, **named: Any) -> list[SimulatedHospital]:
            trained = train(*given, **named)
            self.hospitals = {one.name: one for one in trained}
            return trained

        patch.setattr(simulation, "load_dataset", load_and_keep)
        patch.setattr(simulation, "train_hospitals", train_and_keep)

    def write_public_table(self, path: Path) -> Path:
        """The simulation's pool as the table that a deployment asks about."""
        asked = [self.rows[int(one.removeprefix("p"))] for one in self.dataset.pool.unit_ids]
        lines = ["age,weight", *(",".join(cells) for cells in asked)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @property
    def labels(self) -> bytes:
        written = (self.out / "labels.csv").read_bytes()
        # A simulation knows the row of its own table as well.
        return b"".join(line.rpartition(b",")[0] + b"\n" for line in written.splitlines())


@pytest.mark.slow
def test_same_votes_and_noise_give_the_same_labels_in_a_simulation_and_over_the_network(
    tmp_path: Path,
    pate_fed: Command,
    monkeypatch: pytest.MonkeyPatch,
    cluster: postgres.Cluster,
) -> None:
    """The coordinator's database is PostgreSQL here."""
    simulated = Simulated(tmp_path, pate_fed, monkeypatch)

    def vote(hospital: support.Hospital, batch: QueryBatch) -> NDArray[np.int64]:
        hospital.asked += batch.indices
        return simulated.hospitals[hospital.site.membership().settings.party].ensemble.vote(
            batch.views
        )

    monkeypatch.setattr(support.Hospital, "vote", vote)
    with deployed(tmp_path, database=cluster.new_database()) as federation:
        public = simulated.write_public_table(tmp_path / "pool.csv")
        federation.task = task = LearningTask.from_public_table(
            public, label=LABEL, classes=CLASSES
        )
        # A rehearsal's pool has a digest of its inputs, a published one of its rows.
        np.testing.assert_array_equal(task.inputs, simulated.dataset.pool.features)
        with (tmp_path / "service.log").open("ab") as log:
            federation.service = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.support.seeded_service"),
                    *(str(federation.home.folder), purpose_bytes("noise").hex()),
                ],
                stdout=log,
                stderr=log,
                env=environment(tmp_path),
            )
        federation.wait_until_served()
        federation.enroll()
        coordinator = federation.coordinator
        coordinator.ask("same", task, settings(), source=public.name, seed=medoid_seed())
        coordinator.close()
        run = federation.wait_for_run("same", states=("done", "failed"), timeout_s=600)
        assert (run.state.value, run.reason) == ("done", "")
        coordinator = federation.coordinator
        coordinator.export("same", tmp_path / "out", private=True)
        coordinator.close()
    labels = (tmp_path / "out" / "labels.csv").read_bytes()
    assert labels.count(b"\n") == QUERIES + 1
    assert labels.splitlines()[0] == simulated.labels.splitlines()[0]
    assert labels == simulated.labels
    # It is the noise that decides here: with another, other labels come out.
    monkeypatch.setattr(simulation.Chance, "noise", lambda _: keyed_stream(b"another", tag="noise"))
    others = Simulated(tmp_path, pate_fed, monkeypatch, out="others")
    assert labels.splitlines() != others.labels.splitlines()
    assert [line.split(b",")[0] for line in labels.splitlines()] == [
        line.split(b",")[0] for line in others.labels.splitlines()
    ]


def settings() -> RunSettings:
    return RunSettings(
        data=source_of("pool.csv", LABEL),
        suite=DEFAULT_SUITE,
        queries=QUERIES,
        mechanism="confident",
        vote_threshold=18.0,
        sigma1=6.0,
        sigma2=6.0,
        epsilon=100.0,
        unit="record",
        valid_votes=False,
        batch_size=BATCH,
    )


def medoid_seed() -> int:
    """The simulation's seed of the clustering as one number: NumPy takes it apart by 32 bits."""
    return sum(byte << 32 * place for place, byte in enumerate(purpose_bytes("queries")))


def test_a_seed_as_one_number_is_the_seed_of_its_bytes() -> None:
    """The comparison rests on it; else the two would ask about other inputs."""
    whole = np.random.default_rng(medoid_seed())
    parts = np.random.default_rng(list(purpose_bytes("queries")))
    assert whole.integers(2**31, size=8).tolist() == parts.integers(2**31, size=8).tolist()


def test_nothing_from_outside_can_set_the_noise() -> None:
    """It is an argument of the program's own code: no option, variable or file names it."""
    sources = {
        path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8")
        for package in ("coordinator", "party")
        for path in (REPOSITORY / package).rglob("*.py")
    }
    assert len(sources) > 50
    named = {path for path, text in sources.items() if re.search("noise_?(bytes|seed)", text, re.I)}
    assert named == {
        "coordinator/runs/labeling/deciding.py",
        "coordinator/runs/labeling/job.py",
        "coordinator/runs/labeling/run.py",
        "coordinator/lost_results.py",
        "coordinator/runs/open_run.py",
        "coordinator/service.py",
        "coordinator/simulation/chance.py",
        "coordinator/simulation/hospitals.py",
        "coordinator/simulation/run.py",
        "coordinator/runs/surroundings.py",
        "party/decision/ballots.py",
        "party/decision/node.py",
    }
    deployed_parts = [
        text for path, text in sources.items() if not path.startswith("coordinator/simulation")
    ]
    given = {
        source
        for text in deployed_parts
        for source in re.findall(r"noise_bytes(?:: RandomBytes)? ?= ?([\w.]+)", text)
    }
    assert given <= {
        "noise_bytes",
        "world.noise_bytes",
        "job.noise_bytes",
        "random_bytes",
        "secrets.token_bytes",
    }
    # Whoever starts the service says nothing of noise, and no keyed stream can be had beside it.
    calls = [
        call
        for path, text in sources.items()
        if path.startswith("coordinator/cli")
        for call in re.findall(r"service\.serve\([^)]*\)", text)
    ]
    assert calls == ["service.serve(home, on_ready=tell)"]
    streams = {path for path, text in sources.items() if "keyed_stream" in text}
    assert all(path.startswith("coordinator/simulation") for path in streams)

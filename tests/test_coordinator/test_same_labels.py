"""An operator's day in a real browser gives the labels of a simulation that drew the same noise.

What it proves: from an invitation to a report everything can be done in the console. And `serve`
with its SuperLink, SuperNodes, secure sum, mechanism and choice of queries comes to the very labels
that `pate-fed simulate` comes to, where votes and noise are the same. Nobody can set the noise.

What it does not prove: that hospitals that train by themselves vote alike. A simulation deals one
table out, and a hospital trains on its own; so the simulation's teachers vote at the deployed
hospitals, whose nodes are in this process. That a hospital's own teachers vote over the network is
shown by `test_federation_demo`. Noise of the hospitals is not compared: there each draws its own.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import ExitStack, closing
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.operator import Coordinator
from coordinator.people.people import Role
from coordinator.simulation import simulated_federation as simulation
from coordinator.simulation.chance import Chance
from coordinator.simulation.simulated_hospitals import Hospital as SimulatedHospital
from pate_fed.data import Dataset
from pate_fed.data.new_task import make_task
from pate_fed.mechanisms import keyed_stream
from pate_fed.queries import QueryBatch
from protocols.invitation import Invitation
from tests.support import deployed as support
from tests.support import postgres
from tests.support.chromium import chromium, complaints
from tests.support.command import Command, pate_fed
from tests.support.console import PASSWORD, code_now, served, set_up
from tests.support.deployed import CLASSES, LABEL, NAMES, TEACHERS, deployed

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["pate_fed"]

PATIENCE_MS = 300_000

REPOSITORY = Path(__file__).parents[2]
SEED, QUERIES, BATCH = 7, 12, 6
MECHANISM = ("--vote-threshold", 18, "--sigma2", 6)
BUDGET = ("--epsilon", 100, "--unit", "record", "--batch-size", BATCH)


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


class Operator:
    """Someone at the console."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def sign_in(self, name: str, key: bytes) -> None:
        self.page.goto("/sign-in")
        self._fill({"name": name, "password": PASSWORD, "code": code_now(key)})
        self._click("Sign in")
        self.page.wait_for_url("**/")

    def invite(self, name: str) -> Invitation:
        self.page.goto("/hospitals")
        self.page.get_by_label("Name of the hospital").fill(name)
        with self.page.expect_download() as download:
            self._click("Make the invitation")
        self.page.get_by_text(f"{name}, until").wait_for()  # the page shows it by itself
        return Invitation.from_json(download.value.path().read_text("utf-8"))

    def approve(self, name: str, words: str) -> None:
        self.page.goto("/hospitals")
        self.page.get_by_label(f"The twelve words that {name} reads to you").fill(words)
        self._click(f"Approve {name}")
        self.page.wait_for_url("**/hospitals")

    def ask(self, queries: Path, coordinator: Coordinator) -> None:
        """Fill a run in, look at its cost, ask for it, and wait for its results."""
        page = self.page
        page.goto("/new-run")
        page.locator("[name=file]").set_input_files(queries)
        page.locator("#seen").wait_for()
        page.get_by_text("Noise, threshold and secure sum").click()
        page.locator("[name=unit]").select_option("record")
        page.locator("[name=mechanism]").select_option("threshold")
        self._fill({"label": LABEL, "classes": ", ".join(CLASSES), "ask": QUERIES, "name": "same"})
        self._fill({"vote_threshold": 18, "sigma2": 6})
        self._fill({"epsilon": 100, "batch_size": BATCH})
        self._click("Show the cost")
        cost = page.locator("#price")
        cost.get_by_text("The cost of same").wait_for()
        shown = cost.inner_text()
        for term in ("epsilon", "delta 1e-5", "Unit", "Neighbors", "Method", "12 queries"):
            assert term in shown, shown
        assert coordinator.queue.all() == []

        page.locator("[name=ask]").fill(str(QUERIES - 1))  # the cost is out of date
        assert page.get_by_text("form has changed").is_visible()
        page.locator("[name=ask]").fill(str(QUERIES))
        self._click("Show the cost")
        self._click("Ask the hospitals")
        page.wait_for_url("**/runs/same")
        page.evaluate("window.stays = true")
        page.locator("#results").wait_for()
        assert page.evaluate("window.stays")  # nobody reloaded it
        assert f"{QUERIES} of {QUERIES}" in page.inner_text("main")

    def read_results(self) -> None:
        page = self.page
        page.goto("/runs/same/results")
        with page.expect_download() as download:
            page.get_by_role("link", name="report.html").click()
        assert "<html" in download.value.path().read_text("utf-8")
        page.goto("/audit")
        self._click("Verify the chain now")
        page.get_by_text("none was changed").wait_for()
        self._click("Sign out")

    def _fill(self, texts: dict[str, object]) -> None:
        for field, text in texts.items():
            self.page.locator(f"[name={field}]").fill(str(text))

    def _click(self, name: str) -> None:
        self.page.get_by_role("button", name=name).click()


def require_only_a_look(page: Page, coordinator: Coordinator) -> None:
    """Whoever is signed in may read and do nothing else."""
    page.goto("/runs/same")
    assert page.get_by_role("button").all_inner_texts() == ["Sign out"]
    token = page.locator("[name=form_token]").first.get_attribute("value")
    before = coordinator.audit_log.end
    for path, fields in (
        ("/hospitals/revoke", {"hospital": "North", "typed": "North"}),
        ("/runs/same/stop", {"sure": "yes"}),
        ("/people/add", {"name": "Eve", "role": "administrator"}),
    ):
        refused = page.request.post(path, form={"form_token": token or "", **fields})
        assert refused.status == 403
    assert coordinator.audit_log.end == before


@pytest.mark.exhaustive
def test_from_an_invitation_in_a_browser_to_the_labels_of_a_simulation_with_the_same_noise(
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
    # A person never types the seed of the choice of rows.
    seeded = partialmethod(Coordinator.draft, seed=medoid_seed())
    monkeypatch.setattr(Coordinator, "draft", seeded)
    with ExitStack() as stack:
        federation = stack.enter_context(deployed(tmp_path, database=cluster.new_database()))
        public = simulated.write_public_table(tmp_path / "pool.csv")
        federation.task = task = make_task(public, label=LABEL, classes=CLASSES)
        # A rehearsal's pool has a digest of its inputs, a published one of its rows.
        np.testing.assert_array_equal(task.inputs, simulated.dataset.pool.features)
        federation.serve_with_noise(purpose_bytes("noise"))
        coordinator = stack.enter_context(closing(federation.coordinator))
        keys = {
            name: set_up(coordinator, name, role)
            for name, role in (("Olga", Role.OPERATOR), ("Aldo", Role.AUDITOR))
        }
        federation.wait_until_served()
        browser = stack.enter_context(chromium())
        address = stack.enter_context(served(coordinator))
        page = browser.new_page(base_url=address, accept_downloads=True)
        page.set_default_timeout(PATIENCE_MS)
        said = complaints(page)
        olga = Operator(page)
        olga.sign_in("Olga", keys["Olga"])
        federation.enroll(invite=olga.invite, approve=olga.approve)
        assert len([one for one in coordinator.enrollment.parties() if one.state == "member"]) == 3
        olga.ask(public, coordinator)
        run = coordinator.queue.find("same")
        assert (run.state.value, run.reason) == ("done", "")
        olga.read_results()
        assert not said
        Operator(page).sign_in("Aldo", keys["Aldo"])
        require_only_a_look(page, coordinator)
        acts = [(one["act"], one["by"]) for one in coordinator.audit_log.tables()]
        assert ("run asked", "Olga") in acts
        assert ("hospital approved", "Olga") in acts
        coordinator.export("same", tmp_path / "out", private=True)
    labels = (tmp_path / "out" / "labels.csv").read_bytes()
    assert labels.count(b"\n") == QUERIES + 1
    assert labels.splitlines()[0] == simulated.labels.splitlines()[0]
    assert labels == simulated.labels
    # It is the noise that decides here: with another, other labels come out.
    monkeypatch.setattr(Chance, "noise", lambda *_: keyed_stream(b"another", tag="noise"))
    others = Simulated(tmp_path, pate_fed, monkeypatch, out="others")
    assert labels.splitlines() != others.labels.splitlines()
    assert [line.split(b",")[0] for line in labels.splitlines()] == [
        line.split(b",")[0] for line in others.labels.splitlines()
    ]


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
        "coordinator/runs/labeling/labeling_run.py",
        "coordinator/lost_results.py",
        "coordinator/runs/open_run.py",
        "coordinator/service.py",
        "coordinator/simulation/chance.py",
        "coordinator/simulation/simulated_hospitals.py",
        "coordinator/simulation/labeling.py",
        "coordinator/simulation/verified_labeling.py",
        "coordinator/runs/worker_resources.py",
        "coordinator/tally/side_material.py",
        "party/decision/own_votes.py",
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

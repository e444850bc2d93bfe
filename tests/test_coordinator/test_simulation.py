"""Whole simulations: repeatable, on every kind of data and partition, in both engines."""

from __future__ import annotations

import csv
import gc
import io
import json
import re
import secrets
import time
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.errors import SpoiledBatchError
from coordinator.flower import server_app as flower_app
from coordinator.runs.preflight import untrained_teachers
from coordinator.simulation.chance import Chance
from coordinator.simulation.simulated_hospitals import KEYSTREAM, train_hospitals, vote_on_cores
from party.decision.own_votes import OwnVotes
from pate_fed.data import Dataset, Records, load_dataset
from pate_fed.inputs import Inputs
from pate_fed.partition import partition_records
from pate_fed.planning import DEFAULTS, RunSettings
from pate_fed.queries import QueryPool
from pate_fed.report.guarantee_words import DEALT_BY_CLASS
from pate_fed.students import Lesson, Student, interim_chances, train_student
from pate_fed.teachers.direction_ensemble import DirectionEnsemble
from pate_fed.teachers.sklearn_ensemble import SklearnEnsemble
from pate_fed.teachers.teacher import TeacherEnsemble
from protocols.envelope import SealingKey
from protocols.prg import ctr_keystream, gcm_keystream
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519
from tests.support.command import (
    Command,
    exit_code_of,
    labels_in,
    pate_fed,
    small_run,
    write_table,
)
from tests.support.markers import sampled

__all__ = ["pate_fed"]  # a fixture

NEEDS_RAY = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'pate-fed[ray]'"
)


def read_json(run: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / name).read_text(encoding="utf-8"))
    return content


def metrics_without_seconds(run: Path) -> dict[str, Any]:
    metrics = read_json(run, "metrics.json")
    assert metrics.pop("seconds")
    return metrics


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "table.csv")


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two small runs of one command, which nothing changes."""
    folder = tmp_path_factory.mktemp("twins")
    table, runs = write_table(folder / "table.csv"), [folder / "a", folder / "b"]
    assert [exit_code_of(*small_run(table, run)) for run in runs] == [0, 0]
    return runs


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of the bundled digits, of which nothing is typed but a seed, says as JSON."""
    place = tmp_path_factory.mktemp("default") / "run"
    shown, told = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(told):
        code = exit_code_of("simulate", "--seed", 7, "--out", place, "--format", "json")
    assert (code, told.getvalue()) == (0, "")
    said: dict[str, Any] = json.loads(shown.getvalue())
    return said


def test_a_teacher_votes_for_the_class_that_it_gives_most_of_a_core() -> None:
    class Fixed:
        """Two teachers: the first says 0, 1, 2, ... by feature, the second always 1."""

        def vote(self, inputs: Inputs) -> np.ndarray:
            own = inputs.features[:, 0].astype(np.int64)
            return np.stack([own, np.ones_like(own)])

    pool = QueryPool(np.array([[0.0], [2.0], [2.0], [1.0], [1.0], [0.0]]))
    cores = {0: np.array([0, 1, 2]), 3: np.array([3, 5])}
    votes = vote_on_cores(Fixed(), pool, cores, pool.ask((3, 0)))  # type: ignore[arg-type]
    assert votes.tolist() == [[0, 2], [1, 1]]  # one vote each; of equally many the first class


@pytest.mark.slow
def test_each_hospital_s_kind_of_teachers_follows_from_its_own_patients() -> None:
    sizes, rng = (40, 40, 5), np.random.default_rng(2)
    hospitals = tuple(f"H{place}" for place, size in enumerate(sizes) for _ in range(size))

    def part(count: int, of: tuple[str, ...] | None = None) -> Records:
        labels = np.arange(count) % 2
        return Records(rng.normal(size=(count, 3)), labels, tuple(map(str, range(count))), of)

    dataset = Dataset(
        "csv", "table", ("no", "yes"), part(sum(sizes), hospitals), part(60), part(20)
    )
    partition = partition_records(
        dataset.private, parties=3, teachers=(5, 5, 1), scheme="column", rng=rng
    )
    settings = RunSettings.of({"data": "digits", "suite": "s", "epsilon": 1.0, "parties": 3})
    found = train_hospitals(
        dataset,
        partition,
        make_teachers=partial(untrained_teachers, settings, "table"),
        weights=(1, 1, 1),
        generators=[np.random.default_rng(1)] * 3,
        workers=1,
        tick=lambda: None,
    )
    kinds = [type(one.ensemble) for one in found]
    assert kinds == [DirectionEnsemble, DirectionEnsemble, SklearnEnsemble]


def test_a_student_gets_refused_queries_without_a_label_and_nobody_gets_the_test(
    pate_fed: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = table.read_text("utf-8").splitlines()
    table.write_text("\n".join([*lines, *(f"again-{line}" for line in lines[1::4])]), "utf-8")
    loaded: list[Dataset] = []
    lessons: list[Lesson] = []
    taught: list[np.ndarray] = []
    fit = TeacherEnsemble.fit

    def load(*asked: Any, **named: Any) -> Dataset:
        loaded.append(load_dataset(*asked, **named))
        return loaded[0]

    def train(name: str, kind: Any, lesson: Lesson, **named: Any) -> Student:
        lessons.append(lesson)
        return train_student(name, kind, lesson, **named)

    def seen(self: TeacherEnsemble, shards: Any, *, public: Inputs, **named: Any) -> None:
        taught.extend([*(shard.features for shard in shards), public.features])
        fit(self, shards, public=public, **named)

    monkeypatch.setattr("coordinator.simulation.simulated_federation.load_dataset", load)
    monkeypatch.setattr("pate_fed.students.train_student", train)
    monkeypatch.setattr(TeacherEnsemble, "fit", seen)
    run = tmp_path / "run"
    ended = pate_fed(*small_run(table, run), "--vote-threshold", 12)
    assert ended.code == 0, ended.err
    [lesson], [data] = lessons, loaded
    answered = {query for query, label in labels_in(run).items() if label}
    refused = {query for query, label in labels_in(run).items() if not label}
    assert answered
    assert refused
    assert set(lesson.indices.tolist()) == answered
    np.testing.assert_array_equal(lesson.pool.features, data.pool.features)
    assert max(refused) < len(lesson.pool)

    def hashes(rows: np.ndarray) -> set[bytes]:
        return {sha256(row.tobytes()).digest() for row in rows}

    assert hashes(data.private.features) <= hashes(np.concatenate(taught))
    assert not hashes(data.test.features) & hashes(np.concatenate([*taught, lesson.pool.features]))
    warnings = read_json(run, "metrics.json")["warnings"]
    assert any("copies" in said for said in warnings)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["additive", "masked", "verified"])
def test_a_hospital_of_one_class_and_one_of_two_patients_vote_in_a_whole_run(
    pate_fed: Command, tmp_path: Path, form: str
) -> None:
    rng, table, run = np.random.default_rng(20), tmp_path / "table.csv", tmp_path / "run"
    clinics = [
        clinic
        for clinic, size in (("A", 60), ("B", 60), ("C", 60), ("D", 60), ("E", 4))
        for _ in range(size)
    ]
    lines = ["patient,clinic,age,weight,sick"]
    for row, clinic in enumerate(clinics):
        sick = row % 2 if clinic != "D" else 0
        age, weight = 30 + 30 * sick + rng.normal(0, 3), 60 + rng.normal(0, 5)
        lines.append(f"p{row},{clinic},{age:.2f},{weight:.2f},{'yes' if sick else 'no'}")
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ended = pate_fed(
        *("simulate", "--data", "csv", "--data-file", table, "--label", "sick", "--sum", form),
        *("--patient-id", "patient", "--hospital", "clinic", "--queries", 10, "--sigma2", 1),
        *("--epsilon", 10_000, "--seed", 1, "--out", run),
    )
    assert ended.code == 0, ended.err
    metrics = read_json(run, "metrics.json")
    assert (metrics["parties"], metrics["queries"]["answered"]) == (5, 10)
    taught = read_json(run, "manifest.json")["partition"]["teachers"]
    assert sum(one["records"] for one in taught if one["party"] == 4) == 2
    assert set(labels_in(run).values()) == {"no", "yes"}
    assert metrics["label_accuracy"] >= 0.9


@pytest.mark.slow
def test_cluster_votes_label_a_table(pate_fed: Command, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = pate_fed(*small_run(table, run), "--select", "cluster-votes")
    assert ended.code == 0, ended.err
    metrics = read_json(run, "metrics.json")
    assert metrics["queries"]["asked"] == 8
    assert metrics["label_accuracy"] > 0.5


@pytest.mark.slow
def test_a_student_asks_next_what_it_is_least_sure_of(
    pate_fed: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, int]] = []

    def watched(
        known: np.ndarray, labels: np.ndarray, inputs: np.ndarray, *, classes: int
    ) -> np.ndarray | None:
        seen.append((len(known), len(labels), len(inputs)))
        return interim_chances(known, labels, inputs, classes=classes)

    monkeypatch.setattr("pate_fed.students.interim_chances", watched)
    chosen = ("--select", "least-confident", "--queries", 8, "--batch-size", 3)
    run = tmp_path / "run"
    mechanism = ("--mechanism", "gnmax", "--sigma2", 1, "--epsilon", 10_000)
    ended = pate_fed(
        *("simulate", "--data", "csv", "--data-file", table, "--label", "sick", "--parties", 3),
        *("--teachers", 2, "--seed", 5, "--out", run, *mechanism, *chosen),
    )
    assert ended.code == 0, ended.err
    # Three batches of 3, 3 and 2: each choice knows the labels before it, and no query comes twice.
    pool = seen[0][2] + 3
    assert seen == [(3, 3, pool - 3), (6, 6, pool - 6)]
    with (run / "labels.csv").open(encoding="utf-8", newline="") as file:
        assert len({row["query_id"] for row in csv.DictReader(file)}) == 8


def test_the_back_end_that_was_found_faster_is_one_of_the_two() -> None:
    assert KEYSTREAM in (ctr_keystream, gcm_keystream)


class TestRepeatable:
    @pytest.mark.slow
    def test_same_seed_gives_the_same_labels_costs_and_metrics(self, twins: list[Path]) -> None:
        a, b = twins
        for name in ("labels.csv", "privacy.json", "run.toml"):
            assert (a / name).read_bytes() == (b / name).read_bytes()
        assert metrics_without_seconds(a) == metrics_without_seconds(b)
        first, second = (read_json(run, "manifest.json")["partition"] for run in twins)
        # The key of its hashes is fresh: else whoever knows the seed could try records out.
        assert first["root"] != second["root"]
        assert first["records"] == second["records"]

    @pytest.mark.slow
    def test_labels_lead_back_to_lines_of_the_table(self, twins: list[Path]) -> None:
        lines = (twins[0].parent / "table.csv").read_text("utf-8").splitlines()
        with (twins[0] / "labels.csv").open(encoding="utf-8", newline="") as file:
            found = [int(row["row"]) for row in csv.DictReader(file)]
        assert found
        assert len(set(found)) == len(found)
        assert all(2 <= line <= len(lines) for line in found)

    def test_keys_and_envelopes_are_fresh_all_the_same(self, twins: list[Path]) -> None:
        manifests = [read_json(run, "manifest.json") for run in twins]
        for name in ("run_id", "transcript_head"):
            assert manifests[0][name] != manifests[1][name]
        lines = [(run / "transcript.jsonl").read_text().splitlines() for run in twins]
        assert len(lines[0]) == len(lines[1]) >= 4
        assert not set(lines[0]) & set(lines[1])

    @sampled()
    @pytest.mark.parametrize(
        ("more", "suite", "says"),
        [
            pytest.param((), SUITE_MLKEM768_X25519, "quantum computer", id="post-quantum"),
            pytest.param(
                ("--suite", SUITE_X25519), SUITE_X25519, "X25519 alone", id="X25519 alone"
            ),
        ],
    )
    def test_a_run_seals_with_its_suite_and_says_what_it_means(  # noqa: PLR0917
        self,
        pate_fed: Command,
        table: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        more: tuple[str, ...],
        suite: str,
        says: str,
    ) -> None:
        used: list[str] = []

        class Watched(SealingKey):
            def __init__(self, suite: str) -> None:
                used.append(suite)
                super().__init__(suite)

        monkeypatch.setattr("protocols.rounds.setup.at_party.SealingKey", Watched)
        run = tmp_path / "run"
        assert pate_fed(*small_run(table, run), *more).code == 0
        assert used == [suite] * 3
        assert read_json(run, "manifest.json")["suite"] == suite
        with (run / "run.toml").open("rb") as file:
            assert tomllib.load(file)["suite"] == suite
        assert says in read_json(run, "privacy.json")["threat_model"]
        report = " ".join((run / "report.html").read_text(encoding="utf-8").split())
        assert says in report
        assert suite in report

    @pytest.mark.exhaustive  # `test_every_use_of_a_seed_has_a_stream_of_its_own` in other runs
    def test_other_seeds_give_other_runs(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        seen = set()
        for seed in (1, 2, 3):
            run = tmp_path / f"seed-{seed}"
            pate_fed(*small_run(table, run), "--seed", seed)
            seen.add((run / "labels.csv").read_text())
        assert len(seen) == 3

    @pytest.mark.slow
    def test_without_a_seed_runs_differ_and_say_where_the_noise_was_from(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        seen = set()
        for name in ("a", "b"):
            command = small_run(table, tmp_path / name)
            place = command.index("--seed")
            assert pate_fed(*command[:place], *command[place + 2 :]).code == 0
            seen.add(read_json(tmp_path / name, "manifest.json")["partition"]["root"])
            privacy = read_json(tmp_path / name, "privacy.json")
            assert "operating system" in privacy["noise"]["source"]
            assert privacy["simulated"] is True
        assert len(seen) == 2

    def test_noise_is_the_operating_systems_unless_a_seed_is_given(self) -> None:
        assert Chance(None).noise() is secrets.token_bytes
        assert Chance(7).noise()(16) == Chance(7).noise()(16)
        assert Chance(7).noise()(16) != Chance(8).noise()(16)

    def test_every_use_of_a_seed_has_a_stream_of_its_own(self) -> None:
        chance = Chance(7)
        drawn = {chance.of(purpose).bytes(8) for purpose in ("data", "partition", "teachers 1")}
        assert len(drawn | {chance.noise()(8), chance.bytes_of("manifest key")[:8]}) == 5

    def test_unseeded_purposes_differ_between_runs(self) -> None:
        assert Chance(None).bytes_of("data") != Chance(None).bytes_of("data")

    def test_seeded_noise_is_stamped_as_repeatable(self, twins: list[Path]) -> None:
        privacy = read_json(twins[0], "privacy.json")
        assert "seed 7" in privacy["noise"]["source"]
        assert privacy["simulated"] is True
        assert "imulat" in (twins[0] / "report.html").read_text()

    @sampled()
    @pytest.mark.parametrize("form", ["additive", "plain"])
    def test_way_of_summing_changes_no_label(
        self, pate_fed: Command, table: Path, tmp_path: Path, twins: list[Path], form: str
    ) -> None:
        run = tmp_path / form
        pate_fed(*small_run(table, run), "--sum", form)
        assert labels_in(run) == labels_in(twins[0])

    @pytest.mark.slow
    def test_batches_of_any_size_ask_the_same_queries(
        self, pate_fed: Command, table: Path, tmp_path: Path, twins: list[Path]
    ) -> None:
        parts = tmp_path / "parts"
        pate_fed(*small_run(table, parts), "--batch-size", 3)
        assert list(labels_in(twins[0])) == list(labels_in(parts))
        states = [entry["state"] for entry in read_json(parts, "privacy.json")["ledger"]]
        assert states == ["committed"] * 3


class TestKindsOfData:
    @pytest.mark.slow
    def test_table_with_patients_and_hospitals(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        ended = pate_fed(
            "simulate",
            *("--data", "csv", "--data-file", table, "--label", "sick"),
            *("--patient-id", "patient", "--hospital", "clinic", "--teachers", 3),
            *("--queries", 6, "--epsilon", 50, "--seed", 7, "--out", run),
        )
        assert (ended.code, ended.err) == (0, "")
        metrics = read_json(run, "metrics.json")
        assert (metrics["parties"], metrics["teachers"]) == (3, 9)
        with (run / "run.toml").open("rb") as file:
            settings = tomllib.load(file)
        assert settings["partition"] == "column"
        partition = read_json(run, "manifest.json")["partition"]
        # 60 patients with 2 rows each: every teacher's units are half of its records.
        for teacher in partition["teachers"]:
            assert teacher["records"] == 2 * teacher["units"]
        assert read_json(run, "privacy.json")["privacy_unit"] == "record"
        # Of 60 patients with 2 rows each 36 stay private.
        pool = metrics["queries"]["pool"] // 2
        told = f"{100 * pool / 60:.0f} % of "
        assert any(one.startswith(told) for one in metrics["warnings"])
        assert told in " ".join(ended.out.split())
        assert told in (run / "report.html").read_text(encoding="utf-8")

    @pytest.mark.slow
    def test_bundled_records_are_nobodys_patients(self, default_run: dict[str, Any]) -> None:
        warnings = default_run["metrics"]["warnings"]
        assert not any("patients (pool)" in warning for warning in warnings)

    @sampled()
    @pytest.mark.parametrize(
        "partition", [("iid",), ("dirichlet",), ("column", "--hospital", "clinic")]
    )
    def test_every_partition_ends_well(
        self, pate_fed: Command, table: Path, tmp_path: Path, partition: tuple[str, ...]
    ) -> None:
        run = tmp_path / "run"
        ended = pate_fed(*small_run(table, run), "--partition", *partition)
        assert (ended.code, ended.err) == (0, "")
        records = [t["records"] for t in read_json(run, "manifest.json")["partition"]["teachers"]]
        assert len(records) == 12
        assert sum(records) == 72  # 60 % of 120
        # A record of another class would be dealt elsewhere: beside each number, it says so.
        said = DEALT_BY_CLASS.partition(" (")[0]
        privacy = read_json(run, "privacy.json")
        public = privacy["views"]["public"]
        by_class = partition == ("dirichlet",)
        assert ("not_covered" in public) is by_class
        assert (said in privacy["guarantee"]) is by_class
        report = (run / "report.html").read_text(encoding="utf-8")
        for line in re.findall(r'<p class="facts">.*?</p>', report):
            if "views.public" in line:
                assert (said in line) is by_class
        assert ("\nnot covered " in ended.out) is by_class
        card = run / "student" / "model_card.md"
        assert not card.exists() or (said in card.read_text(encoding="utf-8")) is by_class

    @pytest.mark.slow
    @sampled()
    @pytest.mark.parametrize("mechanism", ["threshold", "confident"])
    @pytest.mark.parametrize("unit", ["record", "party"])
    def test_every_mechanism_and_unit_ends_well(
        self, pate_fed: Command, table: Path, tmp_path: Path, mechanism: str, unit: str
    ) -> None:
        run = tmp_path / "run"
        noise = ["--sigma2", 20, "--vote-threshold", 6]
        noise += ["--sigma1", 20] if mechanism == "confident" else []
        ended = pate_fed(
            "simulate",
            *("--data", "csv", "--data-file", table, "--label", "sick", "--parties", 3),
            *("--teachers", 4, "--queries", 5, "--epsilon", 20, "--seed", 3, "--out", run),
            *("--mechanism", mechanism, "--unit", unit, *noise),
        )
        assert (ended.code, ended.err) == (0, "")
        privacy = read_json(run, "privacy.json")
        assert (privacy["privacy_unit"], privacy["unit_votes"]) == (
            unit,
            4 if unit == "party" else 1,
        )
        formal = privacy["views"]["public"]["epsilon"]
        assert 0 < formal <= 20
        assert privacy["charged"] == 1.0
        assert {run["epsilon"] for run in privacy["runs"]} == {formal}
        assert privacy["views"]["coordinator"] == {"epsilon": None, "method": "trusted"}

    @pytest.mark.slow
    def test_formal_number_is_of_the_caps_and_not_of_what_was_answered(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        formal = []
        for name, threshold in (("answers", 0), ("refuses", 500)):
            run = tmp_path / name
            pate_fed(*small_run(table, run), "--vote-threshold", threshold)
            formal.append(read_json(run, "privacy.json")["views"]["public"]["epsilon"])
            answered = read_json(run, "metrics.json")["queries"]["answered"]
            assert (answered == 0) == (name == "refuses")
        assert formal[0] == formal[1]

    @pytest.mark.slow
    def test_run_without_an_answer_has_no_student_and_says_so(
        self, pate_fed: Command, table: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        ended = pate_fed(*small_run(table, run), "--vote-threshold", 500)
        assert ended.code == 0
        metrics = read_json(run, "metrics.json")
        assert (metrics["student"], metrics["scores"]["student"]) == (None, None)
        assert any("no student. PF-109" in warning for warning in metrics["warnings"])
        assert set(labels_in(run).values()) == {""}
        assert ended.out.startswith("! ")
        assert "Privacy cost   epsilon" in ended.out
        again = pate_fed("report", run)
        assert (again.code, again.out) == (0, ended.out)
        told = (run / "report.html").read_text("utf-8")
        assert "Student (this run)" not in told
        none = pate_fed("predict", run / "student", table)
        assert (none.code, none.error_code) == (2, "PF-140")

    @pytest.mark.exhaustive
    def test_bundled_tables_end_well(self, pate_fed: Command, tmp_path: Path) -> None:
        run = tmp_path / "run"
        ended = pate_fed("simulate", "--data", "breast-cancer", "--seed", 7, "--out", run)
        assert (ended.code, ended.err) == (0, "")
        privacy = read_json(run, "privacy.json")
        assert privacy["views"]["public"]["epsilon"] <= 5.0
        assert read_json(run, "metrics.json")["scores"]["student"]["accuracy"] > 0.85

    @pytest.mark.slow
    def test_default_is_digits_in_fifty_clinics_within_its_budget(
        self, default_run: dict[str, Any]
    ) -> None:
        metrics, privacy = default_run["metrics"], default_run["privacy"]
        assert (metrics["parties"], metrics["teachers"]) == (50, 50)
        assert (privacy["privacy_unit"], privacy["delta"]) == ("party", 1e-5)
        assert privacy["views"]["public"]["epsilon"] <= 5.0
        # The floor is for the mean of several seeds; a single one keeps well above a clinic.
        student, best = (metrics["scores"][name] for name in ("student", "best_hospital"))
        assert student["accuracy"] > best["accuracy"] - 0.05
        assert metrics["queries"]["asked"] == DEFAULTS["digits"].queries
        assert privacy["mechanism"]["name"] == "threshold"
        assert privacy["charged"] == 1.0


def test_no_machine_is_too_slow_for_a_simulation(
    pate_fed: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour passes at every look at the clock."""
    hours = count()
    clock = SimpleNamespace(monotonic=lambda: 3600.0 * next(hours), sleep=time.sleep)
    monkeypatch.setattr(flower_app, "time", clock)
    assert pate_fed(*small_run(table, tmp_path / "run")).code == 0
    assert next(hours) > 7  # exchanges


class TestVoidBatches:
    """One hospital casts a vote too few, in a run through the command line."""

    @pytest.fixture
    def lie_in_batch(self, monkeypatch: pytest.MonkeyPatch) -> set[int]:
        """Batches in which some hospital's first row is one vote short."""
        count = OwnVotes._count
        batches: set[int] = set()
        served: dict[OwnVotes, int] = {}  # batches of each hospital; the first one lies

        def lying(self: OwnVotes, *asked: Any) -> Any:
            number = served[self] = served.get(self, -1) + 1
            counts = np.array(count(self, *asked).counts)
            if number in batches and self is next(iter(served)):
                counts[0, 0] -= 1
            return SimpleNamespace(counts=counts)

        monkeypatch.setattr(OwnVotes, "_count", lying)
        return batches

    def test_a_spoiled_batch_ends_a_run_that_needs_all_hospitals_and_keeps_what_it_has(
        self, pate_fed: Command, table: Path, tmp_path: Path, lie_in_batch: set[int]
    ) -> None:
        lie_in_batch.add(1)
        run = tmp_path / "run"
        ended = pate_fed(*small_run(table, run), "--batch-size", 2)
        assert (ended.code, ended.error_code) == (4, SpoiledBatchError.code)
        assert re.search(r"\(party-\d: ", ended.err)
        privacy = read_json(run, "privacy.json")
        released, void = privacy["ledger"]
        assert (released["state"], released["asked"]) == ("committed", 2)
        assert (void["state"], void["answered"], void["charged"]) == ("forfeited", 0, 2)
        assert privacy["charged"] == 4 / privacy["mechanism"]["max_asks"]
        queries = read_json(run, "metrics.json")["queries"]
        assert (queries["asked"], queries["void"], queries["not_asked"]) == (2, 2, 4)
        assert len(labels_in(run)) == 2
        [warning] = [w for w in read_json(run, "metrics.json")["warnings"] if "void" in w]
        assert re.search(r"\(party-\d: ", warning)

    def test_only_void_batches_leave_no_run(
        self, pate_fed: Command, table: Path, tmp_path: Path, lie_in_batch: set[int]
    ) -> None:
        lie_in_batch.add(0)
        ended = pate_fed(*small_run(table, tmp_path / "run"))
        assert (ended.code, ended.error_code, ended.out) == (4, SpoiledBatchError.code, "")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["table.csv"]

    def test_json_of_a_run_with_a_void_batch_is_one_object_on_each_stream(
        self, pate_fed: Command, table: Path, tmp_path: Path, lie_in_batch: set[int]
    ) -> None:
        lie_in_batch.add(1)
        ended = pate_fed(*small_run(table, tmp_path / "run"), "--batch-size", 4, "--format", "json")
        assert ended.code == 4
        assert ended.json["metrics"]["queries"]["void"] == 4
        assert json.loads(ended.err)["code"] == SpoiledBatchError.code


@NEEDS_RAY
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # Ray and Flower's engine warn of themselves
def test_rays_engine_gives_the_same_labels(pate_fed: Command, table: Path, tmp_path: Path) -> None:
    local, ray = tmp_path / "local", tmp_path / "ray"
    assert pate_fed(*small_run(table, local)).code == 0
    ended = pate_fed(*small_run(table, ray), "--engine", "ray")
    assert ended.code == 0, ended.err
    assert (ray / "labels.csv").read_bytes() == (local / "labels.csv").read_bytes()
    assert (ray / "privacy.json").read_bytes() == (local / "privacy.json").read_bytes()
    gc.collect()  # Ray's processes and files would warn in the middle of another test


@pytest.mark.slow
def test_a_plain_sum_is_called_what_it_is(pate_fed: Command, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert pate_fed(*small_run(table, run), "--sum", "plain").code == 0
    privacy = read_json(run, "privacy.json")
    assert any(re.search(r"\bclear\b", item) for item in privacy["unprotected"])
    page = (run / "report.html").read_text()
    assert re.search(r"\bclear\b", page)


@pytest.mark.slow
def test_slack_of_the_noise_is_far_below_delta_by_default(
    pate_fed: Command, table: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    quiet = ("--sigma2", 20, "--epsilon", 5)
    assert pate_fed(*small_run(table, run), *quiet).code == 0
    privacy = read_json(run, "privacy.json")
    assert 0 < privacy["noise"]["delta_slack"] < privacy["delta"] / 100

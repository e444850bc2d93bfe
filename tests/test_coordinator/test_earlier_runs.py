"""Rounds of a simulation: nothing twice, the price of all together, and attacks on both."""

from __future__ import annotations

import csv
import json
import math
import re
import secrets
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from coordinator.errors import AlteredResultsError
from coordinator.simulation import chance as draws
from coordinator.simulation import earlier_runs as rounds_of
from coordinator.simulation.chance import Chance
from coordinator.simulation.earlier_runs import KEPT, SAME, EarlierRuns, free_name
from coordinator.simulation.outcome import Stages
from coordinator.simulation.simulated_federation import SimulatedFederation
from pate_fed.data import DataSource
from pate_fed.errors import BudgetExhaustedError, InvalidDataError, RunDirectoryError
from pate_fed.mechanisms import CoordinatorNoise, RandomBytes, keyed_stream
from pate_fed.options import OPTIONS
from pate_fed.planning import RunSettings, terms_of
from pate_fed.prices import run_price
from pate_fed.record import Settings
from pate_fed.record.settings import EarlierRun, OwnSettings
from pate_fed.series import order_of_series, price_of_series
from pate_fed.students import interim_chances
from pate_fed.votes import SummedHistogram
from pate_fed.wording import epsilon_text
from protocols.forms import FORMS
from protocols.suites import DEFAULT_SUITE
from tests.support.command import Command, exit_code_of, pate_fed, write_table
from tests.support.rules import run_settings, with_other
from tests.support.ties import tied_epsilon

__all__ = ["pate_fed"]  # a fixture

SIGMA, QUERIES, DELTA = 4.0, 4, 1e-5
_ROUND = (
    *("--mechanism", "gnmax", "--sigma2", SIGMA, "--queries", QUERIES),
    *("--epsilon", 50),
)


@dataclass(frozen=True)
class Chain:
    """Two runs of one seed with the same mechanism, and the coordinator's noise in each."""

    table: Path
    first: Path
    second: Path
    noise: tuple[bytes, bytes]


def first_round(table: Path, out: Path, *options: object) -> list[object]:
    return [
        *("simulate", "--data", "csv", "--data-file", table, "--label", "sick", "--parties", 3),
        *("--teachers", 1, "--teacher", "nearest", "--student", "logistic", "--sum", "plain"),
        *("--purpose", "a test", *_ROUND, *options, "--out", out),
    ]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    folder = tmp_path_factory.mktemp("chain")
    table = write_table(folder / "table.csv", rows=80)
    taken: list[bytes] = []

    def watched(seed: bytes, *, tag: str) -> RandomBytes:
        source = keyed_stream(seed, tag=tag)

        def next_bytes(count: int) -> bytes:
            taken.append(source(count))
            return taken[-1]

        return next_bytes

    runs, noise = [folder / "first", folder / "second"], []
    after = ["simulate", "--after", runs[0], "--data-file", table, *_ROUND, "--out", runs[1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "keyed_stream", watched)
        for command in (first_round(table, runs[0], "--seed", 7), after):
            assert exit_code_of(*command) == 0
            noise.append(b"".join(taken))
            taken.clear()
    return Chain(table, runs[0], runs[1], (noise[0], noise[1]))


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "labels.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def json_of(run: Path, name: str) -> Any:
    return json.loads((run / name).read_text("utf-8"))


def settings_after(chain: Chain, **changes: Any) -> RunSettings:
    """Settings as the command line takes them from the first run."""
    settings = run_settings(
        DataSource("csv", data_file=chain.table, label_column="sick"),
        DEFAULT_SUITE,
        parties=3,
        teachers=1,
        weights=(1, 1, 1),
        partition="iid",
        unit="party",
        mechanism="gnmax",
        epsilon=50.0,
        form="plain",
        teacher="nearest",
        seed=7,
    )
    return with_other(settings, **changes)


def prepared(chain: Chain, run: Path | None, **changes: Any) -> SimulatedFederation:
    """A round after `run` with its teachers trained, before anything is asked."""
    runs = EarlierRuns() if run is None else EarlierRuns.read(run)
    settings = settings_after(chain, **{"sigma2": SIGMA, "queries": QUERIES, **changes})
    runs.require_same(settings)
    out, stages = chain.table.parent / "never written", Stages(lambda *_: None)
    return SimulatedFederation.made(settings, runs, out=out, tell=lambda _: None, stages=stages)


def price_of(run: Path) -> float:
    """The epsilon that a first run states, between bounds that are not our code's."""
    found = float(json_of(run, "privacy.json")["views"]["public"]["epsilon"])
    assert tied_epsilon(SIGMA, QUERIES, DELTA) <= found
    assert found <= gaussian_epsilon(math.sqrt(2 * QUERIES) / SIGMA, DELTA) * (1 + 1e-9)
    return found


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of Gaussian noise by its closed form (Balle and Wang 2018), not by our code."""

    def excess(epsilon: float) -> float:
        low, high = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(norm.cdf(low) - math.exp(epsilon) * norm.cdf(high)) - delta

    return float(brentq(excess, 0, 200, xtol=1e-12))


# Queries and labels ---------------------------------------------------------------------------


def test_no_query_is_asked_again_and_each_label_tells_its_round(chain: Chain) -> None:
    first, second = rows_of(chain.first), rows_of(chain.second)
    assert len({row["query_id"] for row in second}) == len(second) == 2 * QUERIES
    drawn = [row.pop("drawn_in") for row in second]
    assert drawn == ["first"] * QUERIES + [""] * QUERIES
    assert second[:QUERIES] == first
    queries = json_of(chain.second, "metrics.json")["queries"]
    assert (queries["asked"], queries["from_store"], queries["not_asked"]) == (8, 4, 0)


def test_a_run_has_the_same_teachers_and_refuses_to_ask_more_than_the_pool_has_left(
    chain: Chain,
) -> None:
    one, two = prepared(chain, None), prepared(chain, chain.first)
    pool = one.dataset.pool.inputs
    for ours, theirs in zip(one.hospitals, two.hospitals, strict=True):
        assert (ours.ensemble.vote(pool) == theirs.ensemble.vote(pool)).all()
    left = len(two.pool.distinct) - QUERIES
    assert len(prepared(chain, chain.first, queries=left, epsilon=1e6).queries) == left
    with pytest.raises(ValueError, match=f"{left}.*{left + 1}"):
        prepared(chain, chain.first, queries=left + 1)


@pytest.mark.slow
def test_a_third_run_hears_the_student_of_both_and_hands_on_what_it_kept(
    chain: Chain, pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[int] = []

    def watched(inputs: Any, labels: Any, others: Any, *, classes: int) -> Any:
        known.append(len(labels))
        return interim_chances(inputs, labels, others, classes=classes)

    monkeypatch.setattr("pate_fed.students.interim_chances", watched)
    third = tmp_path / "third"
    interactive = ("--mechanism", "interactive-threshold", "--sigma2", 6, "--queries", 2)
    # Nothing reaches such a threshold, and the student is always sure enough.
    ended = pate_fed(
        *("simulate", "--after", chain.second, "--data-file", chain.table, *interactive),
        *("--vote-threshold", 200, "--confidence", 0, "--batch-size", 2, "--epsilon", 60),
        *("--out", third),
    )
    assert ended.code == 0, ended.err
    assert known == [2 * QUERIES]
    rows = rows_of(third)
    assert [row["drawn_in"] for row in rows] == ["first"] * 4 + ["second"] * 4 + [""] * 2
    assert [bool(row["reinforced"]) for row in rows] == [False] * 8 + [True] * 2
    assert [run["run"] for run in json_of(third, "privacy.json")["runs"]] == [
        *("first", "second", "third")
    ]
    assert json_of(third, "metrics.json")["queries"]["reinforced"] == 2
    before = prepared(chain, third, epsilon=100.0).before
    answers = list(before.answers)
    assert [place for place in answers if before.answers[place].label is None] == answers[8:]
    assert list(before.reinforced) == answers[8:]


# Noise ----------------------------------------------------------------------------------------


def test_two_runs_of_a_seed_never_draw_the_same_noise(chain: Chain) -> None:
    """The attack: with equal noise, two releases differ by the exact votes alone."""
    words = [{noise[at : at + 8] for at in range(0, len(noise), 8)} for noise in chain.noise]
    assert min(map(len, words)) >= 2 * QUERIES  # a draw for each class of each query
    assert not words[0] & words[1]

    runs = [EarlierRuns(), *map(EarlierRuns.read, (chain.first, chain.second))]
    assert [one.number for one in runs] == [1, 2, 3]
    votes = SummedHistogram(np.array([[2, 1]] * 8), total_votes=3)
    noisy = [
        CoordinatorNoise().perturb(votes, sigma=9.0, random_bytes=one.chance(7).noise()).counts
        for one in (*runs, runs[1])
    ]
    assert (noisy[1] == noisy[3]).all()  # the attack works where a stream is used twice
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (noisy[one] != noisy[other]).any(axis=1).all()
    names = ["party-1", "round 2\0party-1", "party-1 of round 2"]
    seeds = [seed for one in runs for seed in one.chance(7).noise_seeds(names) or ()]
    assert len(set(seeds)) == 9


def test_noise_without_a_seed_does_not_follow_from_the_split_that_is_kept() -> None:
    chance = Chance(None, root=b"known", run_number=2)
    assert chance.noise() is secrets.token_bytes
    assert chance.noise_seeds(["party-1"]) is None
    assert chance.bytes_of("partition") == Chance(None, root=b"known").bytes_of("partition")


@pytest.mark.slow
def test_an_unseeded_run_is_followed_with_its_own_split(chain: Chain, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert exit_code_of(*first_round(chain.table, run)) == 0
    following, again = (prepared(chain, run, seed=None) for _ in range(2))
    assert following.chance.root.hex() == json_of(run, "manifest.json")["split"]["seed"]
    shards = [[one.rows.tolist() for one in each.partition.shards] for each in (following, again)]
    assert shards[0] == shards[1]
    assert following.chance.noise() is secrets.token_bytes


# Price ----------------------------------------------------------------------------------------


def test_every_epsilon_is_of_the_whole_series(chain: Chain) -> None:
    privacy = json_of(chain.second, "privacy.json")
    alone = price_of(chain.first)
    assert [run["epsilon"] for run in privacy["runs"]] == [alone] * 2
    formal = privacy["views"]["public"]["epsilon"]
    # Divergences add up at one order: no more than those of Gaussian noise do.
    order = privacy["budget"]["order_of_series"]
    gaussian = order * 2 * QUERIES / SIGMA**2
    converted = math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
    assert tied_epsilon(SIGMA, 2 * QUERIES, 3 * DELTA) <= formal < gaussian + converted
    assert formal <= 2 * alone * (1 + 1e-8)
    assert {party["epsilon"] for party in privacy["parties"]} == {formal}
    assert {party["budget"] for party in privacy["parties"]} == {50.0}
    assert privacy["budget"]["epsilon"] == 50.0
    # The sum has two deltas; which of both numbers is smaller follows from labels, and has one.
    assert privacy["budget"]["delta"] == 2 * DELTA
    assert privacy["delta"] == pytest.approx(3 * DELTA)
    assert json_of(chain.first, "privacy.json")["delta"] == DELTA
    # Of this round alone: it ends at its caps.
    assert privacy["charged"] == 1.0
    # Numbers of one round are in `runs` alone.
    assert privacy["views"]["removal"] is None
    assert privacy["per_instance"]["epsilon"] is None

    def others(table: Any) -> list[float]:
        if isinstance(table, list):
            return [found for each in table for found in others(each)]
        if not isinstance(table, dict):
            return []
        own = [value for name, value in table.items() if name.startswith("epsilon") and value]
        return own + [
            found for name, each in table.items() if name != "runs" for found in others(each)
        ]

    assert min(others(privacy)) > alone


def test_report_and_summary_say_what_each_run_cost(chain: Chain, pate_fed: Command) -> None:
    alone = epsilon_text(price_of(chain.first))
    said = f"epsilon {alone} for first, {alone} for second,"
    page = (chain.second / "report.html").read_text("utf-8")
    assert page.count(said) == 2
    assert "stands on" not in (chain.first / "report.html").read_text("utf-8")
    summary = " ".join(pate_fed("report", chain.second).out.split())
    assert said in summary
    assert "delta 3e-5" in summary


@pytest.mark.parametrize("epsilon", [12.0, 30.0])
def test_noise_fills_what_the_earlier_runs_left(chain: Chain, epsilon: float) -> None:
    following = prepared(chain, chain.first, sigma2=None, queries=6, epsilon=epsilon)
    terms = terms_of(following.settings, name="next", classes=2, pool_digest=bytes(32), sums=FORMS)
    assert 0.98 * epsilon < price_of(chain.first) + run_price(terms).epsilon <= epsilon


def test_a_budget_that_the_earlier_runs_used_up_is_told_as_one_of_all(chain: Chain) -> None:
    first = price_of(chain.first)
    with pytest.raises(BudgetExhaustedError, match="alone") as spent:
        prepared(chain, chain.first, epsilon=first - 0.01)
    assert spent.value.requested == pytest.approx(first, rel=1e-6)
    with pytest.raises(BudgetExhaustedError, match="earlier") as little:
        prepared(chain, chain.first, epsilon=first + 0.01, queries=None)
    assert little.value.budget == first + 0.01
    assert little.value.requested > first + 0.01


# Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code"),
    [
        pytest.param(("--parties", 4), "PF-105", id="other hospitals"),
        pytest.param(("--teachers", 2), "PF-105", id="other teachers"),
        pytest.param(("--teacher", "forest"), "PF-105", id="another kind of teacher"),
        pytest.param(("--unit", "record"), "PF-105", id="another unit"),
        pytest.param(("--delta", 1e-6), "PF-105", id="another delta"),
        pytest.param(("--seed", 8), "PF-105", id="another seed"),
        pytest.param(("--weights", "1,1,2"), "PF-105", id="other neighbors"),
        pytest.param(("--sum", "additive"), "PF-105", id="another sum"),
        pytest.param(("--evaluate", "private"), "PF-105", id="patients kept back"),
        pytest.param(("--label", "age"), "PF-105", id="another target"),
        pytest.param(("--mechanism", "counts"), "PF-105", id="counts"),
        pytest.param(("--mechanism", "immutable"), "PF-105", id="no price"),
        pytest.param(("--party-epsilons", "50,50"), "PF-105", id="a budget is missing"),
        pytest.param(("--queries", 10_000), "PF-105", id="more than the pool"),
        pytest.param(("--parties", 3, "--unit", "party", "--epsilon", 1), "PF-131", id="the same"),
    ],
)
def test_an_option_that_contradicts_the_earlier_run_is_refused(
    chain: Chain, pate_fed: Command, tmp_path: Path, options: tuple[object, ...], code: str
) -> None:
    out = tmp_path / "run"
    after = ("simulate", "--after", chain.first, "--data-file", chain.table)
    ended = pate_fed(*after, *options, "--out", out)
    assert ended.error_code == code, ended.err
    assert not out.exists()


def test_a_config_beside_it_or_of_a_later_run_is_refused(
    chain: Chain, pate_fed: Command, tmp_path: Path
) -> None:
    for options in (
        ("--config", chain.first / "run.toml", "--after", chain.first),
        ("--config", chain.second / "run.toml"),
    ):
        ended = pate_fed("simulate", *options, "--out", tmp_path / "run")
        assert ended.error_code == "PF-402", ended.err


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("labels.csv", ",yes", ",no", id="a label"),
        pytest.param("privacy.json", '"epsilon": 50.0', '"epsilon": 60.0', id="a budget"),
        pytest.param("run.toml", "sigma2 = 4.0", "sigma2 = 40.0", id="more noise than there was"),
        pytest.param("manifest.json", '"seed": 7', '"seed": 8', id="another split"),
    ],
)
def test_a_directory_that_somebody_edited_is_refused(
    chain: Chain, tmp_path: Path, file: str, old: str, new: str
) -> None:
    run = shutil.copytree(chain.first, tmp_path / "run")
    text = (run / file).read_text("utf-8")
    assert old in text
    (run / file).write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(AlteredResultsError, match=file):
        EarlierRuns.read(run)


def test_a_directory_that_is_no_finished_simulation_of_this_version_is_refused(
    chain: Chain, pate_fed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunDirectoryError, match="folder"):
        EarlierRuns.read(tmp_path / "none")
    run = shutil.copytree(chain.first, tmp_path / "run")
    (run / "transcript.jsonl").unlink()
    with pytest.raises(RunDirectoryError, match="transcript"):
        EarlierRuns.read(run)
    manifest = json_of(run, "manifest.json")
    (run / "manifest.json").write_text(json.dumps(manifest | {"edition": "public"}))
    ended = pate_fed("simulate", "--after", run, "--out", tmp_path / "out")
    assert ended.error_code == "PF-140"
    assert "public edition" in ended.err
    del manifest["split"]  # a deployed run
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunDirectoryError, match="simulation"):
        EarlierRuns.read(run)
    monkeypatch.setattr(rounds_of, "__version__", "9.9")
    with pytest.raises(RunDirectoryError, match=r"pate_fed 9\.9"):
        EarlierRuns.read(chain.first)


def test_records_that_changed_since_are_refused(chain: Chain, tmp_path: Path) -> None:
    lines = chain.table.read_text("utf-8").splitlines()
    every = [lines[0], *(each.replace(".", ".9") for each in lines[1:])]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(every) + "\n", "utf-8")
    with pytest.raises(InvalidDataError, match="pool"):
        prepared(replace(chain, table=table), chain.first)
    found = prepared(chain, None).manifest
    first, *others = found.teachers
    fewer = found.changed(teachers=(first.changed(records=first.records - 1), *others))
    with pytest.raises(InvalidDataError, match="hospitals"):
        EarlierRuns.read(chain.first).require_same_numbers(fewer)
    # No file holds what could tell a changed cell: else a reader could test guesses.
    assert set(json_of(chain.first, "manifest.json")["split"]) == {"coordinator", "seed"}


def test_no_report_shows_the_seed_of_an_unseeded_split(tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.csv", rows=80)
    assert exit_code_of(*first_round(table, tmp_path / "run")) == 0
    seed = json_of(tmp_path / "run", "manifest.json")["split"]["seed"]
    shown = [file.name for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert {
        name for name in shown if seed.encode() in next((tmp_path / "run").rglob(name)).read_bytes()
    } == {"manifest.json"}


def test_a_stated_cost_that_does_not_follow_from_the_settings_is_refused(chain: Chain) -> None:
    runs = EarlierRuns.read(chain.first)
    assert runs.record is not None
    views = runs.record.privacy.views
    views = views.changed(public=views.public.changed(epsilon=0.5))
    privacy = runs.record.privacy.changed(views=views)
    lied = replace(runs, record=replace(runs.record, privacy=privacy))
    now = prepared(chain, None)
    with pytest.raises(RunDirectoryError, match="cost"):
        lied.joined(settings_after(chain), now.pool, now.dataset.class_names)


def test_the_order_of_the_series_is_fixed_and_stored_before_the_second(chain: Chain) -> None:
    first, second = (json_of(run, "privacy.json") for run in (chain.first, chain.second))
    fixed = first["budget"]["order_of_series"]
    assert fixed == second["budget"]["order_of_series"] > 1
    # It follows from the first run alone, whatever comes later.
    terms = prepared(chain, chain.second).before.terms
    louder = with_other(terms[1], sigma2=1.0)
    assert order_of_series(terms[0], 0, unit="party") == fixed
    assert price_of_series((terms[0], louder), 0, unit="party").order in (fixed, None)
    runs = EarlierRuns.read(chain.first)
    assert runs.record is not None
    known = runs.record.privacy
    privacy = known.changed(budget=known.budget.changed(order_of_series=2 * fixed))
    lied = replace(runs, record=replace(runs.record, privacy=privacy))
    now = prepared(chain, None)
    with pytest.raises(RunDirectoryError, match="order"):
        lied.joined(settings_after(chain), now.pool, now.dataset.class_names)


def test_a_later_run_says_that_each_part_was_fixed_before_its_own_run(chain: Chain) -> None:
    first, second = (
        json_of(run, "privacy.json")["guarantee"] for run in (chain.first, chain.second)
    )
    assert "the first query" in first
    assert "the first query" not in second


def test_a_budget_that_is_raised_after_labels_were_seen_is_told(chain: Chain) -> None:
    runs = EarlierRuns.read(chain.first)
    same, raised = (prepared(chain, chain.first, epsilon=epsilon) for epsilon in (50.0, 60.0))
    assert runs.raised(same.before) == []
    [told] = runs.raised(raised.before)
    assert {"50", "60"} <= set(re.findall(r"\d+", told))


# Files ----------------------------------------------------------------------------------------


def test_every_setting_is_the_same_in_the_series_or_of_each(chain: Chain) -> None:
    by = {
        kind: {name for name, one in OPTIONS.items() if one.series == kind}
        for kind in ("same", "kept", "own", "free")
    }
    budgets = {"epsilon", "party_epsilons"}
    assert OwnSettings.model_fields.keys() == by["own"] | budgets
    assert (set(SAME), set(KEPT)) == (by["same"], by["same"] | by["kept"])
    assert by["kept"] == {*budgets, "prevalence", "student", "purpose"}
    files = {"data_dir", "data_file"}  # its name alone is kept, as "file"
    assert by["free"] == {"engine", "evaluation_epsilon", "evaluate_by", *files}
    known = (OPTIONS.keys() - files) | {"file", "classes", "earlier"}
    assert Settings.model_fields.keys() == known
    given = EarlierRun(
        run="first",
        **{"queries": 3, "select": "a", "batch_size": 1, "mechanism": "gnmax"},
        **{"vote_threshold": 1.0, "sigma1": 2.0, "sigma2": 3.0, "confidence": 0.4},
        **{"test_delta": 0.5, "max_answers": 6, "patient_votes": 2, "epsilon": 7.0},
        **{"party_epsilons": (8.0,)},
    )
    settings = run_settings(data=DataSource("digits"), suite=DEFAULT_SUITE)
    then, now = settings.as_record(), rounds_of._as_run(settings, given).as_record()
    changed = {name for name in Settings.model_fields if getattr(then, name) != getattr(now, name)}
    assert changed == OwnSettings.model_fields.keys()


def test_a_run_has_the_name_of_its_directory_unless_it_is_taken(tmp_path: Path) -> None:
    runs = [EarlierRun(run="first")]
    assert free_name(tmp_path / "second", runs) == "second"
    assert free_name(tmp_path / "first", runs) == "run-2"
    assert free_name(tmp_path / "with space", runs) == "run-2"


@pytest.mark.slow
def test_teachers_that_follow_from_records_are_the_same_in_a_series(tmp_path: Path) -> None:
    """Hospitals of unequal size: the price of the earlier run needs each one's teachers."""
    rng = np.random.default_rng(3)
    lines = ["site,a,sick"]
    for site, patients in (("A", 40), ("B", 17), ("C", 5), ("D", 28)):
        values = rng.normal(size=patients)
        lines += [f"{site},{one:.4f},{int(one + rng.normal() > 0)}" for one in values]
    table = tmp_path / "sites.csv"
    table.write_text("\n".join(lines) + "\n", "utf-8")
    first = [
        *("simulate", "--data", "csv", "--data-file", table, "--label", "sick"),
        *("--hospital", "site", "--records-per-teacher", 6, *_ROUND, "--sum", "plain"),
        *("--seed", 4, "--out", tmp_path / "first"),
    ]
    after = ("simulate", "--after", tmp_path / "first", "--data-file", table, *_ROUND)
    assert exit_code_of(*first) == 0
    assert exit_code_of(*after, "--out", tmp_path / "second") == 0
    teachers = [
        [one["teachers"] for one in json_of(tmp_path / run, "privacy.json")["parties"]]
        for run in ("first", "second")
    ]
    assert teachers[0] == teachers[1]
    assert len(set(teachers[0])) > 1
    other = exit_code_of(*after, "--records-per-teacher", 9, "--out", tmp_path / "third")
    assert other == 2

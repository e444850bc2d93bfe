"""Private evaluation in a simulation: who is kept back, what is charged, what is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.simulation.chance import Chance
from coordinator.simulation.private_evaluation import PrivateEvaluation, hold_out
from pate_fed.charges import noise_of
from pate_fed.data import DataSource, Records, load_dataset
from pate_fed.errors import TooFewRecordsError
from pate_fed.evaluation import CertaintyBins, EvaluationPlan, Grouping
from pate_fed.mechanisms import DistributedNoise, keyed_stream
from pate_fed.planning.evaluation_settings import EvaluationSettings, EvaluationShape
from pate_fed.prices import charged_price
from pate_fed.report.held_out_scores import held_out_scores
from pate_fed.students import Lesson, Student, train_student
from pate_fed.students.facts import LabelFacts
from protocols.forms import FORMS
from tests.support.command import Command, pate_fed, small_run, write_table
from tests.support.real_data import real_data

__all__ = ["pate_fed"]  # a fixture


def archive(patients: int = 20) -> Records:
    """Three records of each patient."""
    rows = np.arange(3 * patients)
    return Records(
        features=rows[:, None].astype(float),
        labels=rows % 2,
        unit_ids=tuple(f"patient {row // 3}" for row in rows),
    )


def run_of(out: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / name).read_text("utf-8"))
    return content


def test_a_patient_teaches_or_is_kept_back_and_counts_once() -> None:
    rest, kept = hold_out(archive(), rng=np.random.default_rng(1))
    assert len(kept) == kept.unit_count == 4
    assert len(rest) == 48
    assert not set(rest.unit_ids) & set(kept.unit_ids)


def test_what_a_patient_has_does_not_decide_who_is_kept_back() -> None:
    known = archive()
    other = replace(known, features=-known.features, labels=1 - known.labels)
    drawn = [hold_out(one, rng=np.random.default_rng(1))[1].unit_ids for one in (known, other)]
    assert drawn[0] == drawn[1]


def test_too_few_patients_are_refused() -> None:
    with pytest.raises(TooFewRecordsError, match=r"\b5\b"):
        hold_out(archive(4), rng=np.random.default_rng(1))


def test_the_noise_of_an_evaluation_is_not_that_of_the_votes() -> None:
    chance = Chance(3)
    assert chance.noise()(32) != chance.noise("evaluation")(32)


@pytest.mark.slow
def test_a_simulation_scores_its_student_on_patients_kept_back(
    tmp_path: Path, pate_fed: Command
) -> None:
    table = write_table(tmp_path / "table.csv")
    runs = [tmp_path / name for name in ("a", "b", "hospital")]
    units = ("record", "record", "party")
    ended = [
        pate_fed(
            *small_run(table, run),
            *("--evaluate", "private", "--unit", unit, "--evaluate-by", "age"),
        )
        for run, unit in zip(runs, units, strict=True)
    ]
    for one in ended:
        assert one.code == 0, one.err
        assert " epsilon 1 " in " ".join(one.out.split())
    found, again = (run_of(run, "metrics.json")["evaluation"] for run in runs[:2])
    assert found == again
    low, high = found["accuracy_interval"]
    assert 0 <= low <= high <= 1
    records, hospitals = (run_of(run, "privacy.json") for run in (runs[0], runs[2]))
    labels = records["views"]["public"]["epsilon"]
    assert records["evaluation"]["with_labels"]["epsilon"] == max(labels, 1.0)
    assert records["evaluation"]["with_labels"]["delta"] == records["delta"]
    both = hospitals["views"]["public"]["epsilon"] + 1
    assert hospitals["evaluation"]["with_labels"]["epsilon"] == both
    assert hospitals["evaluation"]["with_labels"]["delta"] == 2 * hospitals["delta"]
    assert [name[:6] for name in sorted(found["groups"]["by age"])] == ["above ", "up to "]
    queries = run_of(runs[0], "metrics.json")["queries"]
    for rows in (found["no_answer"]["class"], found["no_answer"]["by age"]):
        assert sum(one["answered"] for one in rows.values()) == queries["answered"]
        assert sum(one["refused"] for one in rows.values()) == queries["refused"]
    wrong = pate_fed(
        *small_run(table, tmp_path / "wrong"),
        *("--evaluate", "private", "--evaluate-by", "sick"),
    )
    assert wrong.error_code == "PF-105"
    assert "sick" in wrong.err
    page = (runs[0] / "report.html").read_text("utf-8")
    assert "by age</th><th scope" in page
    assert "own patients</h2>" in page


def test_groups_of_a_column_are_scored_on_test_records(pate_fed: Command, tmp_path: Path) -> None:
    table, out = write_table(tmp_path / "table.csv", rows=240), tmp_path / "run"
    made = pate_fed(*small_run(table, out), "--evaluate-by", "age")
    assert made.code == 0, made.err
    student = run_of(out, "metrics.json")["scores"]["student"]
    by_age = student["subgroups"]["by age"]
    assert [name[:6] for name in sorted(by_age)] == ["above ", "up to "]
    assert sum(one["records"] for one in by_age.values()) == student["records"]
    hits = sum(one["records"] * one["accuracy"] for one in by_age.values())
    assert hits == pytest.approx(student["records"] * student["accuracy"])
    assert all(len(one["recall"]) == 2 for one in by_age.values())
    assert "The student, by age</h3>" in (out / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "must"),
    [
        (["--evaluation-epsilon", "1"], "--evaluation-epsilon needs --evaluate private"),
        (["--evaluate", "private", "--evaluation-epsilon", "0"], "1e-09"),
        (["--evaluate", "private", "--evaluation-epsilon", "nan"], "nan"),
        (["--evaluate", "private", "--noise", "parties"], "needs --noise coordinator"),
        (["--evaluate-by", "nobody"], "--evaluate-by"),
        (["--evaluate", "private", "--evaluate-by", "nobody"], "--evaluate-by"),
        (["--evaluate", "private", *(2 * ["--evaluate-by", "age"])], "once"),
    ],
    ids=[
        *("a price without it", "no price", "no number", "noise elsewhere"),
        *("no column of the test", "no column", "a column twice"),
    ],
)
def test_contradictory_options_are_refused(
    options: list[str], must: str, tmp_path: Path, pate_fed: Command
) -> None:
    ended = pate_fed("simulate", *options, "--out", tmp_path / "run")
    assert ended.code == 2
    assert "PF-105" in ended.err
    assert must in ended.err


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["adult", "brfss", "diabetes130"])
def test_the_interval_holds_the_true_accuracy_in_93_of_100_seeds(name: str) -> None:
    """1,500 held-out patients of 10 hospitals at epsilon 1; the truth is that of all patients."""
    folder = real_data({"brfss": "data/brfss_diabetes"}.get(name, f"data/{name}"))
    dataset = load_dataset(DataSource(name, folder), rng=np.random.default_rng(0))
    student = taught(dataset.pool)
    first = np.unique(dataset.private.unit_ids, return_index=True)[1][:30_000]
    patients = dataset.private.select(first)
    truth = (student.chances(patients.inputs).argmax(axis=1) == patients.labels).mean()
    bins = CertaintyBins.of(student.chances(dataset.pool.inputs))
    plan = EvaluationPlan.priced(
        (Grouping("class", dataset.class_names), bins.grouping), epsilon=1.0, delta=1e-5
    )
    deployed = EvaluationShape(
        name="run",
        pool_digest=bytes(32),
        task_digest=bytes(32),
        rows=2,
        columns=plan.columns,
        parties=10,
    )
    settings, form = EvaluationSettings(places=200), FORMS["masked"]
    terms = deployed.terms(settings, deployed.least_noise(settings, form=form), form=form)
    shares = noise_of(terms)
    seen = replace(plan, sigma=shares.sum_sigma(10))
    held, widths, held_by_all = 0, [], 0
    for seed in range(100):
        rows = np.random.default_rng(seed).permutation(len(patients))[:1500]
        hospitals = tuple(patients.select(part) for part in np.array_split(rows, 10))
        evaluation = PrivateEvaluation(plan, bins, hospitals, "record", dataset.pool.inputs)
        scores = evaluation.run(student, form="additive", chance=Chance(seed))
        low, high = scores.accuracy_interval
        held += low <= truth <= high
        widths.append(high - low)
        held_by_all += holds(
            truth, student=student, evaluation=evaluation, plan=seen, noise=shares, seed=seed
        )
    print(f"{name}: true accuracy {truth:.4f}; held in {held} of 100, width {np.mean(widths):.4f}")
    print(
        f"with noise at the hospitals: held in {held_by_all} of 100; {evaluation.price_line()} "
        f"epsilon there {charged_price(terms, 0).epsilon:.4f}, noise {seen.sigma:.2f}"
    )
    assert held >= 93
    assert held_by_all >= 93


def holds(
    truth: float,
    *,
    student: Student,
    evaluation: PrivateEvaluation,
    plan: EvaluationPlan,
    noise: DistributedNoise,
    seed: int,
) -> bool:
    """Whether the interval of rows with every hospital's own noise holds the truth."""
    total = np.zeros((len(plan.groupings), plan.columns), dtype=np.int64)
    for place, records in enumerate(evaluation.hospitals):
        chances = student.chances(records.inputs)
        places = {"class": records.labels, "certainty": evaluation.bins.places(chances)}
        right = chances.argmax(axis=1) == records.labels
        stream = keyed_stream(b"%d" % seed, tag=f"hospital {place}")
        total += plan.rows(places, right, slots=200)
        total += noise.draw(*total.shape, random_bytes=stream).counts
    low, high = held_out_scores(plan, plan.counts_in(total)).accuracy_interval
    return bool(low <= truth <= high)


def taught(pool: Records) -> Student:
    """A student that learned 400 true labels."""
    rows = np.arange(400)
    facts = LabelFacts(votes=1, sigma=0.0, shared_out=False, prevalence=None)
    lesson = Lesson(pool.inputs, rows, pool.labels[rows], 2, facts)
    return train_student("logistic", "table", lesson, rng=np.random.default_rng(0))

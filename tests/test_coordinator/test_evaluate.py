"""`pate-fed evaluate`: from a finished run to its scores, over kills, and asked twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.errors import RunQueueError, RunRequestError
from coordinator.operator import evaluate, evaluation_of
from coordinator.runs.asked_evaluation import AskedEvaluation
from coordinator.runs.queue import RunState
from coordinator.runs.request import RunRequest
from coordinator.runs.stages import BatchStage
from coordinator.runs.transcripts import check_transcript
from party.site.party_task import Evaluation, PartyTask, tasks_of
from pate_fed.accounting import DistributedCountsEvent
from pate_fed.data.dataset import Records
from pate_fed.errors import InvalidSettingError
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.planning.evaluation_settings import EvaluationSettings
from pate_fed.report import public_record, read_run, render_report
from pate_fed.votes import TeacherWeights
from protocols.messages import MaskedVector
from tests.support.command import Command, pate_fed
from tests.support.invariants import messages_in
from tests.support.marker import (
    MARKERS,
    MORE_MARKERS,
    findings,
    findings_in_files,
    not_in,
    released_tallies,
)
from tests.support.worked import KilledError, Worked

__all__ = ["pate_fed"]  # a fixture

PATIENTS, RIGHT = 400, 0.85
NAME = "first.evaluation"
SETTINGS = EvaluationSettings(epsilon=2.0, places=1000)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Worked]:
    made = Worked(tmp_path)
    made.ask(queries=4, noise="parties", mechanism="gnmax", sigma2=5.0, epsilon=400.0)
    assert made.work().state is RunState.DONE
    yield made
    made.coordinator.close()


def counting(federation: Worked, task: EvaluationTask, place: int) -> Callable[[], Any]:
    """A hospital's count: the student is right on `RIGHT` of its patients."""
    rng = np.random.default_rng(place)
    labels = rng.integers(2, size=PATIENTS)
    width = federation.task.inputs.shape[1]
    records = Records(
        features=rng.normal(size=(PATIENTS, width)),
        labels=labels,
        unit_ids=tuple(map(str, range(PATIENTS))),
    )
    said = np.where(rng.random(PATIENTS) < RIGHT, labels, 1 - labels)
    chances = np.where(np.arange(2) == said[:, None], 0.9, 0.1)
    schema = federation.task.schema
    return partial(task.rows_of, schema, records, chances)


def counted_right(federation: Worked, task: EvaluationTask) -> float:
    """The share of all hospitals' patients on whom the student is right, without noise."""
    rows = sum(counting(federation, task, place)()[0] for place in federation.hospitals)
    return float(rows[:2].sum() / rows[:4].sum())


def let_in(federation: Worked, asked: AskedEvaluation) -> None:
    """All hospitals' owners approve it, and their nodes have counted."""
    for place, one in federation.hospitals.items():
        node = one.node
        assert node is not None
        policy = replace(
            node._guard.policy,
            approved_pools=node._guard.policy.approved_pools | {asked.request.pool},
            evaluation_columns=frozenset({"age", "weight"}),
        )
        own = Evaluation(
            asked.task.by, 0.2, asked.task.places, counting(federation, asked.task, place)
        )
        columns = asked.plan.columns
        ready = PartyTask(asked.task.pool, one.vote, columns, asked.task.digest, evaluation=own)
        node.adopt(
            guard=replace(node._guard, policy=policy, weights=TeacherWeights.equal(10)),
            known_peers=node._known_peers,
            tasks={**node._tasks, **tasks_of(ready)},
        )


def evaluated(federation: Worked, *by: str) -> AskedEvaluation:
    asked = evaluation_of(federation.coordinator, "first", SETTINGS, by=by)
    let_in(federation, asked)
    evaluate(federation.coordinator, asked)
    return asked


def counts_charged(federation: Worked) -> list[list[str]]:
    return [
        [
            entry.state.value
            for entry in one.ledger.load().entries
            if isinstance(entry.reserved, DistributedCountsEvent)
        ]
        for one in federation.hospitals.values()
    ]


@pytest.mark.slow
def test_an_evaluation_goes_from_its_price_to_the_scores(
    federation: Worked, pate_fed: Command
) -> None:
    asked = evaluation_of(federation.coordinator, "first", SETTINGS, by=("age",))
    # Budgets add up divergences and must afford 2; its three rows are composed for the statement.
    assert " 1.839 " in asked.price_line
    assert " 2 minutes" in asked.price_line
    assert asked.plan.epsilon <= 2
    let_in(federation, asked)
    evaluate(federation.coordinator, asked)
    assert federation.coordinator.queries("first")  # other documents do not disturb
    run = federation.work(NAME)
    assert (run.state, run.reason) == (RunState.DONE, "")
    folder = federation.coordinator.home.results(NAME)
    record = read_run(folder)
    found, price = record.metrics.evaluation, record.privacy.evaluation
    assert found is not None
    assert price is not None
    assert found.accuracy is not None
    low, high = found.accuracy_interval
    # Fresh noise: an interval of 95 % misses at times; eight standard deviations of it do not.
    assert low < found.accuracy < high
    counted = counted_right(federation, asked.task)
    assert counted == pytest.approx(RIGHT, abs=0.03)  # 1,200 patients, drawn the same in each run
    assert abs(found.accuracy - counted) < high - low < 0.1
    assert found.patients == pytest.approx(3 * PATIENTS, abs=60)
    assert set(found.groups) == {"by age"}
    assert sum(one.answered for one in found.no_answer["class"].values()) == 4
    assert price.epsilon <= 2
    assert "2 hospitals" in price.trust
    assert price.with_labels.delta == 2e-5
    assert counts_charged(federation) == [["committed"]] * 3
    page = (folder / "report.html").read_text("utf-8")
    assert "own patients</h2>" in page
    assert "by age" in page
    public = render_report(public_record(record))
    assert "own patients</h2>" in public
    assert "by age" in public
    assert check_transcript(folder).is_good
    before = federation.coordinator.home.results("first")
    assert read_run(before).metrics.evaluation is None
    assert (before / "labels.csv").read_bytes() == (folder / "labels.csv").read_bytes()
    options = ("--epsilon", 2, "--places", 1000, "--by", "age")
    again = pate_fed("evaluate", "first", "--home", federation.coordinator.home.folder, *options)
    assert again.code == 0, again.err
    assert " 1.839 " in again.err
    assert "by age:" in again.out
    assert f"student {100 * found.accuracy:.1f} % (95 %: " in again.out
    wrong = pate_fed("evaluate", "nobody", "--home", federation.coordinator.home.folder)
    assert wrong.error_code == "PF-446"


@pytest.mark.slow
def test_asked_again_the_stored_answer_is_given_without_a_charge(federation: Worked) -> None:
    evaluated(federation)
    federation.work(NAME)
    charged, before = counts_charged(federation), len(federation.hospitals[0].exchanges)
    for settings in (SETTINGS, EvaluationSettings(epsilon=0.5, places=50)):
        again = evaluation_of(federation.coordinator, "first", settings, name="again")
        assert evaluate(federation.coordinator, again).name == NAME
    assert counts_charged(federation) == charged
    assert len(federation.hospitals[0].exchanges) == before
    other = evaluation_of(federation.coordinator, "first", SETTINGS, by=("age",), name="other")
    assert evaluate(federation.coordinator, other).name == "other"
    request = RunRequest.from_json(federation.coordinator.queue.request("other"))
    assert request == other.request
    assert RunRequest.from_json(request.to_json()).terms == other.request.terms


@pytest.mark.slow
@pytest.mark.parametrize("stage", [BatchStage.OPENED, BatchStage.DECIDED])
def test_a_kill_loses_no_charge_and_draws_no_answer_twice(
    federation: Worked, stage: BatchStage
) -> None:
    evaluated(federation)

    def die(passed: BatchStage) -> None:
        if passed is stage:
            raise KilledError

    federation.on_stage = die
    with pytest.raises(KilledError):
        federation.work(NAME)
    federation.on_stage = lambda passed: None
    sent = [vectors(one.exchanges) for one in federation.hospitals.values()]
    run = federation.work(NAME)
    assert run.state is RunState.DONE
    assert counts_charged(federation) == [["committed"]] * 3
    for one, first in zip(federation.hospitals.values(), sent, strict=True):
        assert len(set(vectors(one.exchanges))) == 2  # one of the labels, one of the counts
        assert set(first) <= set(vectors(one.exchanges))


@pytest.mark.slow
def test_marked_counts_are_in_no_file_and_no_database(federation: Worked) -> None:
    """One hospital's counts are primes that nothing else comes to, and so is the clean sum."""
    places = sum(MARKERS) + 9_973
    asked = evaluation_of(federation.coordinator, "first", replace(SETTINGS, places=places))
    let_in(federation, asked)
    for place, one in federation.hospitals.items():
        rows = np.zeros((2, asked.plan.columns), dtype=np.int64)
        rows[:, : len(MARKERS)] = (MARKERS, MORE_MARKERS) if place == 0 else 0
        rows[:, -1] = places - rows.sum(axis=1)
        task = one.node._tasks[asked.request.pool]  # type: ignore[union-attr]
        counted = replace(task.evaluation, rows=lambda rows=rows: rows)  # type: ignore[misc]
        one.node._tasks[asked.request.pool] = replace(task, evaluation=counted)  # type: ignore[union-attr]
    evaluate(federation.coordinator, asked)
    assert federation.work(NAME).state is RunState.DONE
    home = federation.coordinator.home
    counts = released_tallies(home.path("coordinator.db"))
    assert counts.shape == (2, asked.plan.columns)
    assert np.abs(counts[:, : len(MARKERS)] - (MARKERS, MORE_MARKERS)).max() < 100
    hidden = not_in(counts, MARKERS + MORE_MARKERS)
    assert hidden
    assert not findings_in_files(home.folder, hidden)
    for one in federation.hospitals.values():
        for packet in (part for pair in one.exchanges for part in pair):
            assert not findings(packet, hidden)


def vectors(exchanges: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Every y that a hospital sent."""
    return [
        message.body
        for _, answer in exchanges
        for message in messages_in(answer)
        if isinstance(message, MaskedVector)
    ]


@pytest.mark.slow
def test_what_cannot_be_evaluated_is_refused_with_a_reason(federation: Worked) -> None:
    coordinator = federation.coordinator
    for wrong, must in [
        ({"epsilon": 0.0}, "--epsilon"),
        ({"epsilon": float("nan")}, "--epsilon"),
        ({"delta": 1.0}, "--delta"),
        ({"places": 0}, "--places"),
        ({"places": 10**9}, "--places"),
        ({"colluders": 0}, "--colluders"),
        ({"colluders": 3}, "--colluders"),
    ]:
        with pytest.raises(InvalidSettingError, match=must):
            evaluation_of(coordinator, "first", replace(SETTINGS, **wrong))
    for by in [("nobody",), ("age", "age"), ("sick",)]:
        with pytest.raises(InvalidSettingError, match="--by"):
            evaluation_of(coordinator, "first", SETTINGS, by=by)
    with pytest.raises(RunQueueError, match="nobody"):
        evaluation_of(coordinator, "nobody", SETTINGS)
    with pytest.raises(RunRequestError, match="name"):
        evaluation_of(coordinator, "first", SETTINGS, name="../first")
    evaluated(federation)
    with pytest.raises(RunRequestError, match="labels"):
        evaluation_of(coordinator, NAME, SETTINGS)
    with pytest.raises(RunRequestError, match="labels"):
        coordinator.queries(NAME)
    path = coordinator.home.path(
        "pools", RunRequest.from_json(coordinator.queue.request(NAME)).pool.hex()
    )
    path.write_bytes(path.read_bytes() + b"x")
    assert federation.work(NAME).state is RunState.FAILED
    assert json.loads(coordinator.queue.request(NAME))["evaluation"]["run"] == "first"

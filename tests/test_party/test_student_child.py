"""A hostile student at a hospital: what it tells by its failures, and by the clock."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.errors import TaskError
from party.service import PartyService
from party.site import limited_child, ready_tasks
from party.site.evaluations import ready_evaluation
from party.site.student_child import predictions
from party.site.training import ready_teachers
from pate_fed.array_models import ArrayModel
from pate_fed.evaluation import START_S
from tests.support.hospital_services import make_hospitals
from tests.test_party.test_evaluations import SHARE, evaluation_of, right_answers

LINEAR = ArrayModel(
    "linear",
    "logistic",
    2,
    2,
    {
        "weights": np.array([[0.0, 0.0], [1.0, 0.0]]),
        "start": np.zeros(2),
        "places": np.arange(2),
        "offsets": np.zeros(2),
    },
)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_place_is_predicted_whether_it_is_free_or_not(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.array([[3.0, 0.0], [np.inf, 0.0], [np.nan, 1.0], [-3.0, 0.0]])[:count]
    given: list[bytes] = []
    run = limited_child.subprocess.run

    def watched(*words: Any, input: Any, **named: Any) -> Any:  # noqa: A002 - its name there
        given.append(bytes(input))
        return run(*words, input=input, **named)

    monkeypatch.setattr(limited_child.subprocess, "run", watched)
    found = predictions(LINEAR.to_files(), rows, classes=2, places=4)
    assert [len(one) for one in given] == [4 * 2 * 8]
    assert found.shape == (count, 2)
    if count == 4:
        assert found[0, 1] > 0.9
        assert found[3, 0] > 0.9  # whom nothing before disturbed
        assert not np.isfinite(found[1:3]).all(axis=1).any()


def test_what_is_no_student_of_the_task_is_trouble_for_any_patients() -> None:
    files = LINEAR.to_files()
    narrow, empty = np.zeros((3, 1)), np.zeros((0, 2))
    for rows, classes, sent in (
        (narrow, 2, files),
        (np.zeros((3, 2)), 3, files),
        (np.zeros((3, 2)), 2, {**files, "model.safetensors": b"x"}),
        (empty, 2, {**files, "model.safetensors": b"x"}),
    ):
        with pytest.raises(TaskError, match="arrays") as found:
            predictions(sent, rows, classes=classes)
        assert found.value.code == "PF-360"


# Beside the node ------------------------------------------------------------------------------


class Predicting:
    """A student that predicts until the test lets it end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.ended = (threading.Event() for _ in range(3))
        self.gave_up = False

    def __call__(self, site: Any, task: Any, *, predict: Any, wait: Any) -> Any:
        def until_it_may_end(seconds: float) -> None:
            assert seconds > START_S - 30  # what is left of the set time
            self.begun.set()
            while not self.may_end.wait(0.01):
                if wait(0.0):
                    self.gave_up = True
                    break
            self.ended.set()

        return ready_evaluation(site, task, predict=right_answers, wait=until_it_may_end)


@pytest.fixture
def predicting(monkeypatch: pytest.MonkeyPatch) -> Predicting:
    found = Predicting()
    monkeypatch.setattr(ready_tasks, "ready_evaluation", found)
    return found


@pytest.fixture
def node(tmp_path: Path, predicting: Predicting) -> Iterator[tuple[PartyService, bytes]]:
    """A hospital's node, whose people approved an evaluation and the task that it is of."""
    hospitals = make_hospitals(tmp_path)
    [site, *_] = hospitals.sites
    hospitals.sites = [site.save(replace(site.settings, held_out=SHARE))]
    hospitals.approve(0)
    ready_teachers(hospitals.sites[0], hospitals.task, random_bytes=secrets.token_bytes)
    hospitals.task = evaluation_of(hospitals.task)  # type: ignore[assignment]
    hospitals.approve(0)
    with PartyService(hospitals.sites[0], clock=iter(range(10**6)).__next__) as service:
        yield service, hospitals.task.pool.digest
    assert predicting.ended.wait(60)


def test_a_node_goes_on_while_a_student_predicts_and_is_ready_once_it_has(
    node: tuple[PartyService, bytes], predicting: Predicting
) -> None:
    """Otherwise its silence would tell how long the student took."""
    service, pool = node
    assert predicting.begun.wait(60)
    service.idle()
    assert pool not in service._tasks.by_pool
    assert service.status.trouble == ""
    predicting.may_end.set()
    assert predicting.ended.wait(60)
    while pool not in service._tasks.by_pool:
        service.idle()
    assert not predicting.gave_up


def test_a_node_that_ends_gives_up_and_counts_nobody_in_part(
    node: tuple[PartyService, bytes], predicting: Predicting
) -> None:
    service, pool = node
    assert predicting.begun.wait(60)
    service._tasks.close()
    assert predicting.ended.wait(60)
    service.idle()
    assert predicting.gave_up
    assert pool not in service._tasks.by_pool


def test_a_student_that_cannot_be_tried_is_trouble_and_not_the_end_of_the_node(
    node: tuple[PartyService, bytes], predicting: Predicting, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, pool = node

    tries: list[int] = []

    def out_of_memory(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise MemoryError

    monkeypatch.setattr("party.site.ready_tasks.ready_evaluation", out_of_memory)
    predicting.may_end.set()  # of the first try
    service._tasks._predicted.clear()
    while not service.status.trouble:
        service.idle()
    assert service.status.trouble == TaskError.code
    for _ in range(200):  # each a second
        service.idle()
    assert tries == [1]  # else how often it passes would tell how long patients take
    assert pool not in service._tasks.by_pool

"""A hostile student at a hospital: what it can do to one patient, to others, and to the clock."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from party.errors import TaskError
from party.service import PartyService
from party.site import ready_tasks, student_child
from party.site.student_child import predictions, predictions_at_set_times
from party.site.training import ready_teachers
from pate_fed.errors import RunDirectoryError
from pate_fed.students import make_student, read_student
from pate_fed.students.model import SklearnModel
from tests.support.hospital_services import make_hospitals
from tests.test_party.test_evaluations import SHARE, evaluation_of, right_answers

FINE, ENDLESS, DIES, FILES, FORKS, PEERS, LONG, RAISES = range(8)

HOSTILE = """
import os, socket, sys, time, types
import numpy as np
end = sys.argv.index("--")
sys.path[:] = sys.argv[1:end]

def told(trick):
    if trick == 1:
        time.sleep(600)
    if trick == 2:
        os._exit(1)
    if trick == 3:
        with open("/etc/hostname") as file:
            return file.read() and 0.9
    if trick == 4:
        if not os.getuid():
            os.setuid(65534)  # a hospital's node is not root, whom this limit does not bind
        return os.fork() and 0.9
    if trick == 5:  # whatever is open but its own row
        for one in range(1, 4096):
            try:
                os.fstat(one)
            except OSError:
                continue
            return 0.9
        return socket.socket() and 0.9
    if trick == 7:
        raise RuntimeError
    return 0.25

class Student:
    def chances(self, inputs):
        trick = inputs.features[0, 0]
        if trick == 6:
            return np.zeros((1, 5000))
        said = told(trick)
        return np.array([[said, 1 - said]])

sys.modules["pate_fed.students"] = types.SimpleNamespace(read_student=lambda _: Student())
from party.site.student_child import main
main(*sys.argv[end + 1:])
"""


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A student that runs code of its maker: more than its files can make it do."""
    monkeypatch.setattr(student_child, "_CHILD", HOSTILE)


def rows(*tricks: int) -> np.ndarray:
    return np.array([[float(one), 0.0] for one in tricks])


@pytest.mark.slow
@pytest.mark.usefixtures("hostile")
def test_a_student_that_fails_on_one_patient_loses_that_patient_alone() -> None:
    tricks = [DIES, FINE, ENDLESS, FINE, RAISES, LONG, FINE]
    found = predictions({}, rows(*tricks), classes=2, patient_s=1.0)
    assert np.isnan(found).all(axis=1).tolist() == [one != FINE for one in tricks]
    assert found[1].tolist() == [0.25, 0.75]


@pytest.mark.slow
@pytest.mark.usefixtures("hostile")
def test_a_copy_that_sees_a_patient_has_no_way_out_but_its_answer() -> None:
    """It opens no file, starts no process, and holds no connection but its own."""
    found = predictions({}, rows(FILES, FORKS, PEERS, FINE), classes=2, patient_s=5.0)
    assert not (found == 0.9).any()
    assert found[3].tolist() == [0.25, 0.75]


@pytest.mark.slow
@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("tricks", [[], [FINE], [ENDLESS] * 2, [DIES, FINE, ENDLESS]], ids=str)
def test_no_patient_and_no_number_of_them_changes_when_it_is_done(tricks: list[int]) -> None:
    """On a clock that only its waiting moves: every place ends when its time ends."""
    now, waited = 0.0, list[float]()

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds
        waited.append(seconds)

    predictions_at_set_times(
        {},
        rows(*tricks).reshape(-1, 2),
        classes=2,
        places=4,
        patient_s=0.25,
        clock=lambda: now,
        wait=wait,
    )
    assert waited == [0.25] * 4


@pytest.mark.usefixtures("hostile")
def test_a_student_that_cannot_be_read_in_time_is_wrong_on_all_alike() -> None:
    for count in (0, 3):
        found = predictions({}, rows(*[FINE] * count).reshape(-1, 2), classes=2, load_s=0.001)
        assert np.isnan(found).all()
        assert found.shape == (count, 2)


# What no student saves ------------------------------------------------------------------------


def _boosted(**changes: Any) -> HistGradientBoostingClassifier:
    inputs = np.random.default_rng(0).normal(size=(200, 2))
    model = HistGradientBoostingClassifier(max_iter=1, max_leaf_nodes=2, early_stopping=False)
    model.fit(inputs, (inputs[:, 0] > 0).astype(int))
    for name, value in changes.items():
        model._predictors[0][0].nodes[name][0] = value
    return model


def _forest(tree: int = 1, **changes: Any) -> RandomForestClassifier:
    model = RandomForestClassifier(n_estimators=2, max_depth=1, random_state=0)
    model.fit([[0.0, 0.0], [1.0, 1.0]] * 20, [0, 1] * 20)
    kept = model.estimators_[tree].tree_
    state = kept.__getstate__()
    for name, value in changes.items():
        state["nodes"][name][0] = value
    kept.__setstate__(state)
    return model


def _machine(**changes: Any) -> SVC:
    model = SVC().fit([[0.0, 0.0], [1.0, 1.0]] * 20, [0, 1] * 20)
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def _narrow() -> RandomForestClassifier:
    return RandomForestClassifier(n_estimators=1).fit([[0.0], [1.0]], [0, 1])


@pytest.mark.parametrize(
    "model",
    [
        _forest(right_child=0),
        _forest(left_child=9),
        _forest(tree=0, feature=7),
        _forest(feature=-5),
        _boosted(left=0),
        _boosted(right=500),
        _boosted(feature_idx=2),
        _boosted(feature_idx=-1),
        _boosted(is_categorical=1),
        _machine(_n_support=np.array([60, -20], dtype=np.int32)),
        _machine(kernel="precomputed"),
        _machine(_intercept_=np.zeros(0)),
        _machine(_dual_coef_=np.zeros((1, 3))),
        DecisionTreeClassifier().fit([[0.0, 0.0], [1.0, 1.0]], [0, 1]),
        _narrow(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_that_no_student_saves_is_refused_when_it_is_read(
    model: Any, tmp_path: Path
) -> None:
    """Compiled code would follow a way without an end, or read what is no feature."""
    student = make_student("forest", "table")
    student.adopt(SklearnModel(model, 2), features=2, classes=2)
    student.save(tmp_path)
    with pytest.raises(RunDirectoryError, match="each tree ends") as found:
        read_student(tmp_path)
    assert found.value.code == "PF-140"


@pytest.mark.parametrize("model", [_forest(), _boosted(), _machine()], ids=str)
def test_a_model_as_it_is_trained_is_read(model: Any, tmp_path: Path) -> None:
    student = make_student("forest", "table")
    student.adopt(SklearnModel(model, 2), features=2, classes=2)
    student.save(tmp_path)
    assert read_student(tmp_path).classes == 2


# Beside the node ------------------------------------------------------------------------------


class Predicting:
    """A student that predicts until the test lets it end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.ended = (threading.Event() for _ in range(3))
        self.gave_up = False

    def __call__(self, files: Any, features: Any, *, wait: Any, **named: Any) -> Any:
        self.begun.set()
        while not self.may_end.wait(0.01):
            if wait(0.0):
                self.gave_up = True
                break
        self.ended.set()
        return right_answers(files, features, classes=named["classes"])


@pytest.fixture
def predicting(monkeypatch: pytest.MonkeyPatch) -> Predicting:
    found = Predicting()
    monkeypatch.setattr(ready_tasks, "predictions_at_set_times", found)
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

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("party.site.ready_tasks.ready_evaluation", out_of_memory)
    service._tasks._predicted.clear()
    while not service.status.trouble:
        service.idle()
    assert service.status.trouble == TaskError.code
    assert pool not in service._tasks.by_pool
    predicting.may_end.set()

"""The contract of students, held by every form; propagation; files without pickle."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import skops.io
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from sklearn.neighbors import KNeighborsClassifier

from coordinator.runs.interim_student import teach
from pate_fed.data import DataSource, load_dataset
from pate_fed.errors import InvalidParameterError, RunDirectoryError
from pate_fed.inputs import Inputs
from pate_fed.students import (
    IMAGE_STUDENTS,
    STUDENTS,
    LabelFacts,
    Lesson,
    Student,
    choose_student,
    make_student,
    propagate_labels,
    propagation,
    read_student,
    select_queries,
    student_choice,
    train_student,
)
from pate_fed.students.kernel_ridge import KernelRidgeStudent, left_out_labels
from pate_fed.students.propagation import SpreadLabels, neighbor_graph, refined_labels
from tests.support.markers import more, sampled
from tests.support.small_records import blobs

POOL = blobs(90)
BY_KIND = ("propagation", "supervised")
LABELED = np.arange(0, 30)


def learn(
    student: Student, indices: np.ndarray, labels: np.ndarray, *, classes: int = 3, seed: int = 0
) -> Student:
    student.fit(Lesson(POOL.inputs, indices, labels, classes), rng=np.random.default_rng(seed))
    return student


def trained(name: str, kind: str = "image", *, seed: int = 0) -> Student:
    student = make_student(name, kind)  # type: ignore[arg-type]
    return learn(student, LABELED, POOL.labels[LABELED], seed=seed)


def some(count: int) -> Inputs:
    return Inputs(np.random.default_rng(5).normal(scale=6, size=(count, 4)))


FORMS = [
    (pytest.param if kind == "image" or name in BY_KIND else more)(name, kind, id=f"{name} {kind}")
    for name in sorted(STUDENTS.keys() - IMAGE_STUDENTS.keys())
    for kind in ("image", "table")
]


@pytest.mark.parametrize(("name", "kind"), FORMS)
class TestStudent:
    """What every form of student must do."""

    @sampled()
    def test_it_learns(self, name: str, kind: str) -> None:
        test = blobs(60, seed=4)
        predicted = trained(name, kind).predict(test.inputs)
        assert predicted.dtype == np.int64
        assert (predicted == test.labels).mean() > 0.9

    @sampled()
    def test_the_same_seed_gives_the_same_student(self, name: str, kind: str) -> None:
        inputs = some(300)
        first, again = (trained(name, kind).predict(inputs) for _ in range(2))
        assert np.array_equal(first, again)

    def test_labels_of_one_class_make_a_constant_student(
        self, name: str, kind: str, tmp_path: Path
    ) -> None:
        student = learn(make_student(name, kind), np.array([3, 8]), np.array([2, 2]))  # type: ignore[arg-type]
        assert set(student.predict(POOL.inputs).tolist()) == {2}
        student.save(tmp_path)
        assert set(read_student(tmp_path).predict(POOL.inputs).tolist()) == {2}

    @sampled()
    def test_fewer_labels_than_classes_are_enough(self, name: str, kind: str) -> None:
        student = learn(make_student(name, kind), np.array([0, 1]), np.array([0, 1]), classes=10)  # type: ignore[arg-type]
        predicted = student.predict(POOL.inputs)
        assert set(predicted.tolist()) == {0, 1}

    @sampled()
    def test_a_saved_student_predicts_the_same(self, name: str, kind: str, tmp_path: Path) -> None:
        student = trained(name, kind)
        student.save(tmp_path / "deep" / "student")
        loaded = read_student(tmp_path / "deep" / "student")
        inputs = some(300)
        assert np.array_equal(loaded.predict(inputs), student.predict(inputs))
        assert loaded.name == student.name

    @sampled()
    def test_a_saved_student_is_no_pickle(self, name: str, kind: str, tmp_path: Path) -> None:
        trained(name, kind).save(tmp_path)
        for file in tmp_path.iterdir():
            assert file.suffix in {".json", ".skops", ".safetensors"}
            with pytest.raises(Exception):  # noqa: B017, PT011 - whatever pickle raises
                pickle.loads(file.read_bytes())  # noqa: S301 - it must not load

    @pytest.mark.parametrize(
        ("indices", "labels"),
        [
            pytest.param([], [], id="no label"),
            pytest.param([1, 2], [0], id="a label too few"),
            pytest.param([1, 1], [0, 1], id="an input twice"),
            pytest.param([1, 90], [0, 1], id="outside the pool"),
            pytest.param([1, -1], [0, 1], id="negative index"),
            pytest.param([1, 2], [0, -1], id="no answer as a label"),
            pytest.param([1, 2], [0, 3], id="no class"),
        ],
    )
    def test_impossible_labels_are_refused(
        self, name: str, kind: str, indices: list[int], labels: list[int]
    ) -> None:
        student = make_student(name, kind)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameterError):
            learn(student, np.array(indices, dtype=np.int64), np.array(labels, dtype=np.int64))

    def test_it_must_be_trained_before_use(self, name: str, kind: str, tmp_path: Path) -> None:
        student = make_student(name, kind)  # type: ignore[arg-type]
        with pytest.raises(InvalidParameterError):
            student.predict(POOL.inputs)
        with pytest.raises(InvalidParameterError):
            student.save(tmp_path)

    @sampled()
    def test_other_features_are_refused(self, name: str, kind: str) -> None:
        with pytest.raises(InvalidParameterError, match="4 features"):
            trained(name, kind).predict(Inputs(np.ones((2, 5))))


def test_without_any_answer_there_is_no_student_and_a_warning_says_so() -> None:
    request = SimpleNamespace(settings=None)
    run: Any = SimpleNamespace(lessons={}, counts={}, request=request, warnings=[])
    assert teach(run, kind="table", facts=LabelFacts(), rng=np.random.default_rng(0)) is None
    [warning] = run.warnings
    assert "PF-109: " in warning


def test_an_unknown_student_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="'genius'"):
        make_student("genius", "table")


# Propagation


def test_one_label_per_cluster_labels_the_cluster() -> None:
    spread = propagate_labels(Lesson(POOL.inputs, np.arange(3), np.arange(3), 3))
    assert (spread.labels == POOL.labels).mean() > 0.98
    assert spread.confidence.min() >= 0.0
    assert spread.confidence.max() <= 1.0


def test_a_single_wrong_label_among_many_is_outvoted() -> None:
    indices = np.arange(30)
    labels = POOL.labels[indices].copy()
    labels[0] = (labels[0] + 1) % 3
    spread = propagate_labels(Lesson(POOL.inputs, indices, labels, 3))
    assert spread.labels[0] == POOL.labels[0]


def test_an_input_that_no_label_reaches_takes_the_most_frequent_one() -> None:
    islands = np.concatenate([np.zeros((20, 2)), np.full((20, 2), 1e6), np.full((20, 2), -1e6)])
    islands += np.random.default_rng(0).normal(size=islands.shape)
    spread = propagate_labels(
        Lesson(Inputs(islands), np.array([0, 20, 21]), np.array([0, 1, 1]), 3)
    )
    assert (spread.labels[:20] == 0).all()
    assert (spread.labels[20:] == 1).all()
    assert not spread.confidence[40:].any()


def test_a_direction_in_which_all_classes_vary_misleads_the_first_graph_only() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=600)
    inputs = rng.normal(size=(600, 6)) * np.array([20, 16, 1, 1, 1, 1])
    inputs[np.arange(600), 2 + labels] += 5
    released = labels[:60].copy()
    released[:6] = (released[:6] + 1) % 3
    lesson = Lesson(Inputs(inputs), np.arange(60), released, 3)
    first, second = (
        (spread(lesson).labels == labels).mean() for spread in (propagate_labels, refined_labels)
    )
    assert first < 0.9
    assert second > 0.97


@pytest.mark.parametrize("spread_by", [propagate_labels, refined_labels])
@given(
    inputs=st.integers(1, 30),
    classes=st.integers(2, 12),
    distinct=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_propagation_is_finite_and_uses_released_classes_only(
    spread_by: Callable[..., SpreadLabels], inputs: int, classes: int, distinct: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct places: many inputs coincide, distances are zero.
    places = rng.normal(size=(distinct, 3))[rng.integers(distinct, size=inputs)]
    count = int(rng.integers(1, inputs + 1))
    indices = rng.choice(inputs, size=count, replace=False)
    labels = rng.integers(classes, size=count)
    spread = spread_by(Lesson(Inputs(places), indices, labels, classes))
    assert set(spread.labels.tolist()) <= set(labels.tolist())
    assert np.isfinite(spread.confidence).all()


def test_the_neighbor_graph_is_symmetric_with_spectrum_within_one() -> None:
    graph = neighbor_graph(POOL.features).toarray()
    assert np.allclose(graph, graph.T)
    assert np.abs(np.linalg.eigvalsh(graph)).max() == pytest.approx(1.0)


def test_on_real_digits_propagation_beats_learning_from_the_labels_alone() -> None:
    rng = np.random.default_rng(1)
    data = load_dataset(DataSource("digits"), rng=rng)
    queries = np.array(select_queries(data.pool.features, 30, method="medoids", rng=rng))
    accuracy = {}
    for name in ("propagation", "supervised"):
        student = make_student(name, data.kind)
        student.fit(Lesson(data.pool.inputs, queries, data.pool.labels[queries], 10), rng=rng)
        accuracy[name] = (student.predict(data.test.inputs) == data.test.labels).mean()
    assert accuracy["propagation"] > 0.9
    assert accuracy["propagation"] > accuracy["supervised"]


# Files


class Stranger:
    """A type that no student holds."""


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(Stranger(), id="anybody's"),
        pytest.param(
            KNeighborsClassifier(algorithm="kd_tree").fit(np.eye(6), np.arange(6)), id="a teacher's"
        ),
    ],
)
def test_a_file_with_a_foreign_type_is_not_loaded(tmp_path: Path, foreign: object) -> None:
    trained("propagation").save(tmp_path)
    skops.io.dump(foreign, tmp_path / "model.skops")
    with pytest.raises(RunDirectoryError, match="trusted"):
        read_student(tmp_path)


@sampled()
@pytest.mark.parametrize(
    ("name", "file"), [("propagation", "model.skops"), ("network", "model.safetensors")]
)
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"PK\x03\x04" + bytes(40)])
def test_a_damaged_model_is_refused(
    tmp_path: Path, name: str, file: str, content: bytes | None
) -> None:
    trained(name).save(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(RunDirectoryError):
        read_student(tmp_path)


def test_a_model_without_its_file_is_refused(tmp_path: Path) -> None:
    trained("propagation").save(tmp_path)
    (tmp_path / "model.skops").unlink()
    with pytest.raises(RunDirectoryError, match="FileNotFoundError"):
        read_student(tmp_path)


def test_tensors_that_are_no_network_of_ours_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415 - next to its one use

    trained("network").save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["mean"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(RunDirectoryError):
        read_student(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"schema_version": 2}, id="version"),
        pytest.param({"student": "genius"}, id="student"),
        pytest.param({"student": ["propagation"]}, id="a list of students"),
        pytest.param({"form": "pickle"}, id="form"),
        pytest.param({"form": "constant", "label": 3}, id="label"),
        pytest.param({"features": 0}, id="features"),
        pytest.param({"classes": True}, id="classes"),
        pytest.param({"offsets": [0.0]}, id="offsets"),
    ],
)
def test_a_description_that_no_student_wrote_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    trained("supervised").save(tmp_path)
    file = tmp_path / "student.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | change), "utf-8")
    with pytest.raises(RunDirectoryError):
        read_student(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "\ud800"])
def test_a_description_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "student.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RunDirectoryError):
        read_student(tmp_path)


def test_an_empty_folder_is_no_student(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError):
        read_student(tmp_path)


@sampled()
@pytest.mark.parametrize("name", ["logistic", "forest", "propagation"])
def test_a_class_without_a_label_gets_no_share_of_the_pool(name: str) -> None:
    known = np.flatnonzero(POOL.labels != 2)[:60]
    facts = LabelFacts(votes=100, sigma=10.0, shared_out=True)
    lesson = Lesson(POOL.inputs, known, POOL.labels[known], 3, facts)
    student = train_student(name, "table", lesson, rng=np.random.default_rng(0))
    said = student.predict(some(400))
    assert (said == 2).mean() < 0.01
    assert {0, 1} <= set(said.tolist())


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        pytest.param({}, "boosting", id="many records, little noise"),
        pytest.param({"records": 199.0}, "logistic", id="few records"),
        pytest.param({"records": 0.0}, "logistic", id="nobody says how many"),
        pytest.param({"sigma": 60.0}, "logistic", id="much noise"),
        pytest.param({"prevalence": (0.81, 0.19)}, "logistic", id="a rare class"),
        pytest.param({"prevalence": None}, "logistic", id="nobody says how common"),
    ],
)
def test_trees_learn_from_sure_labels_of_teachers_with_many_records(
    changed: dict[str, Any], name: str
) -> None:
    facts = LabelFacts(
        votes=50, sigma=24.0, shared_out=True, prevalence=(0.76, 0.24), records=650.0
    )
    found, why = choose_student("table", labels=500, classes=2, facts=replace(facts, **changed))
    assert found == name
    assert why


@pytest.mark.parametrize(
    ("clear_groups", "name"),
    [
        pytest.param(True, "propagation", id="groups"),
        pytest.param(False, "kernel-ridge", id="none"),
    ],
)
def test_with_many_labels_of_images_the_left_out_ones_choose(clear_groups: bool, name: str) -> None:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(500, 20))
    labels = (inputs[:, 0] > 0).astype(np.int64)
    if clear_groups:
        inputs[:, 0] += 9 * (2 * labels - 1)
    lesson = Lesson(Inputs(inputs), np.arange(150), labels[:150], 2)
    student = train_student("auto", "image", lesson, rng=rng)
    assert student.name == name
    assert "left-out" in student.reason


@pytest.mark.parametrize(
    ("better", "worse", "name"),
    [
        pytest.param(10, 4, "kernel-ridge", id="more than a standard error"),  # 0.040 > 0.025
        pytest.param(9, 6, "propagation", id="less than a standard error"),  # 0.020 < 0.026
        pytest.param(0, 0, "propagation", id="alike"),
        pytest.param(4, 10, "propagation", id="worse"),
    ],
)
def test_kernel_ridge_must_be_better_by_a_standard_error(
    monkeypatch: pytest.MonkeyPatch, better: int, worse: int, name: str
) -> None:
    """Of 150 left-out labels each of the two predicts some alone, and both all others."""
    labels = np.arange(150) % 2
    by_graph, by_kernel = labels.copy(), labels.copy()
    by_graph[:better] ^= 1
    by_kernel[better : better + worse] ^= 1
    monkeypatch.setattr(propagation, "left_out_labels", lambda *_, **__: by_graph)
    monkeypatch.setattr(student_choice, "by_kernel", lambda _: by_kernel)
    inputs = Inputs(np.random.default_rng(1).normal(size=(200, 20)))
    student = train_student(
        "auto", "image", Lesson(inputs, np.arange(150), labels, 2), rng=np.random.default_rng(1)
    )
    assert student.name == name


def test_kernel_ridge_predicts_each_label_as_if_it_had_never_seen_it() -> None:
    rng = np.random.default_rng(3)
    inputs, labels = rng.normal(size=(40, 5)), rng.integers(3, size=40)
    lesson = Lesson(Inputs(inputs), np.arange(40), labels, 3)
    model = KernelRidgeStudent("image")
    model.fit(lesson, rng=rng)
    ridge = model.model.estimator  # type: ignore[attr-defined]  # scikit-learn's
    found = []
    for place in range(40):
        rest = np.arange(40) != place
        again = KernelRidge(alpha=ridge.alpha, kernel="rbf", gamma=ridge.gamma)
        again.fit(inputs[rest], np.eye(3)[labels[rest]])
        found.append(again.predict(inputs[[place]]).argmax())
    np.testing.assert_array_equal(left_out_labels(lesson), found)


def test_without_prevalence_classes_get_their_shares_of_the_labels() -> None:
    facts = LabelFacts(votes=50, sigma=5.0, shared_out=True)
    labels = np.array([0] * 70 + [1] * 28)
    assert facts.decided_shares(2, labels) == pytest.approx([0.71, 0.29])
    assert facts.decided_shares(2) == pytest.approx([0.5, 0.5])


def test_prevalence_of_another_number_of_classes_is_refused() -> None:
    facts = LabelFacts(shared_out=True, prevalence=(0.2, 0.3, 0.5))
    with pytest.raises(InvalidParameterError, match="--prevalence"):
        facts.decided_shares(2)


@pytest.mark.parametrize(
    "changed",
    [{"classes": 1}, {"classes": "3"}, {"offsets": [0.0]}, {"offsets": [0.0, "a", 0.0]}],
    ids=str,
)
def test_a_description_that_does_not_fit_its_model_is_refused(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    trained("logistic", "table").save(tmp_path)
    file = tmp_path / "student.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(RunDirectoryError):
        read_student(tmp_path)

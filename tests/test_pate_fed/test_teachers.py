"""The contract of teachers, held by every form."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import skops.io
from sklearn.preprocessing import StandardScaler

from pate_fed.data import Records
from pate_fed.errors import InvalidDataError, InvalidParameterError, UnreadableFileError
from pate_fed.partition import partition_records
from pate_fed.teachers import TEACHER_NAMES, TeacherEnsemble, make_ensemble
from tests.support.markers import more
from tests.support.small_records import blobs

FORMS = [
    # What records are decides for "auto" alone what it is.
    (pytest.param if name == "auto" or kind == "image" else more)(name, kind, id=f"{name} {kind}")
    for name in TEACHER_NAMES
    for kind in ("image", "table")
]


def fitted(name: str, kind: str, shards: list[Records], *, seed: int = 0) -> TeacherEnsemble:
    ensemble = make_ensemble(name, kind)  # type: ignore[arg-type]
    ensemble.fit(shards, classes=3, rng=np.random.default_rng(seed))
    return ensemble


@pytest.mark.parametrize(("name", "kind"), FORMS)
class TestTeacherEnsemble:
    """What every form of teachers must do."""

    def test_teachers_learn_and_vote_with_global_classes(self, name: str, kind: str) -> None:
        test = blobs(30, seed=9)
        votes = fitted(name, kind, [blobs(30), blobs(30, seed=1)]).vote(test.features)
        assert votes.shape == (2, 30)
        assert votes.dtype == np.int64
        assert (votes == test.labels).mean() > 0.9

    def test_the_same_seed_gives_the_same_votes(self, name: str, kind: str) -> None:
        inputs = np.random.default_rng(5).normal(scale=6, size=(200, 4))
        shards = [blobs(20), blobs(20, seed=1)]
        first, again = (fitted(name, kind, shards).vote(inputs) for _ in range(2))
        assert np.array_equal(first, again)

    def test_a_teacher_depends_on_its_own_shard_only(self, name: str, kind: str) -> None:
        inputs = np.random.default_rng(5).normal(scale=6, size=(200, 4))
        one = fitted(name, kind, [blobs(20), blobs(20, seed=1)]).vote(inputs)
        other = fitted(name, kind, [blobs(5, seed=8), blobs(20, seed=1)]).vote(inputs)
        assert np.array_equal(one[1], other[1])

    def test_a_teacher_of_one_class_votes_it_always(self, name: str, kind: str) -> None:
        mixed = blobs(30)
        single = mixed.select(np.flatnonzero(mixed.labels == 2))
        votes = fitted(name, kind, [single, single.select([0])]).vote(mixed.features)
        assert (votes == 2).all()

    @pytest.mark.parametrize(
        "shard",
        [
            pytest.param(blobs(2), id="one record of each of two classes"),
            pytest.param(blobs(3), id="one record of each class"),
            pytest.param(
                Records(np.ones((6, 4)), np.array([0, 1, 2, 0, 1, 2]), tuple("abcdef")),
                id="records that do not differ",
            ),
            pytest.param(
                Records(np.eye(6, 4) * 1e6, np.array([2, 2, 2, 2, 2, 0]), tuple("abcdef")),
                id="large numbers",
            ),
        ],
    )
    def test_a_poor_shard_still_gives_votes(self, name: str, kind: str, shard: Records) -> None:
        votes = fitted(name, kind, [shard]).vote(blobs(10).features)
        assert set(votes.ravel().tolist()) <= set(shard.labels.tolist())

    def test_teachers_vote_after_training_only(self, name: str, kind: str) -> None:
        with pytest.raises(InvalidParameterError):
            make_ensemble(name, kind).vote(np.ones((1, 4)))  # type: ignore[arg-type]

    def test_training_again_forgets(self, name: str, kind: str) -> None:
        ensemble = fitted(name, kind, [blobs(9), blobs(9)])
        ensemble.fit([blobs(9)], classes=3, rng=np.random.default_rng(0))
        assert ensemble.teachers == 1

    def test_who_trains_is_told_of_each_teacher(self, name: str, kind: str) -> None:
        told: list[int] = []
        make_ensemble(name, kind).fit(  # type: ignore[arg-type]
            [blobs(9), blobs(9)], classes=3, rng=np.random.default_rng(0), on_trained=told.append
        )
        assert told == [1, 2]

    def test_kept_teachers_vote_as_before(self, name: str, kind: str) -> None:
        inputs = np.random.default_rng(5).normal(scale=6, size=(200, 4))
        mixed = blobs(30)
        single = mixed.select(np.flatnonzero(mixed.labels == 2))
        trained = fitted(name, kind, [mixed, single, blobs(80, seed=1)])
        kept = make_ensemble(name, kind)  # type: ignore[arg-type]
        kept.restore(trained.dump(), classes=3)
        assert np.array_equal(kept.vote(inputs), trained.vote(inputs))

    def test_what_is_no_teacher_is_not_taken(self, name: str, kind: str) -> None:
        files = fitted(name, kind, [blobs(30)]).dump()
        assert sorted(files)[1] == "teachers.json"
        (model,) = set(files) - {"teachers.json"}
        index = json.loads(files["teachers.json"])
        spoiled = [
            {**files, model: b""},
            {**files, model: files[model][:-40]},
            {**files, model: pickle.dumps([1])},
            {"teachers.json": files["teachers.json"]},
            {model: files[model]},
            {**files, "teachers.json": b"[" * 100_000},
            *(
                {**files, "teachers.json": json.dumps({**index, "teachers": listed}).encode()}
                for listed in ([], [{"label": 3}], [{"label": -1}], [{"label": 0, "file": model}])
            ),
        ]
        for content in spoiled:
            with pytest.raises(UnreadableFileError):
                make_ensemble(name, kind).restore(content, classes=3)  # type: ignore[arg-type]

    def test_teachers_are_kept_after_training_only(self, name: str, kind: str) -> None:
        with pytest.raises(InvalidParameterError):
            make_ensemble(name, kind).dump()  # type: ignore[arg-type]

    def test_impossible_shards_are_refused(self, name: str, kind: str) -> None:
        with pytest.raises(InvalidParameterError):
            fitted(name, kind, [])
        with pytest.raises(InvalidDataError):
            fitted(name, kind, [blobs(8, classes=4)])
        with pytest.raises(InvalidDataError):
            fitted(name, kind, [blobs(8).select([])])


def test_a_file_of_another_model_is_no_teachers() -> None:
    pipeline = skops.io.dumps(StandardScaler().fit(np.eye(3)))
    index = {"schema_version": 1, "teachers": [{"file": "a"}]}
    with pytest.raises(UnreadableFileError, match="classifier"):
        make_ensemble("svm", "image").restore(
            {"teachers.json": json.dumps(index).encode(), "a": pipeline}, classes=3
        )


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="'oracle'"):
        make_ensemble("oracle", "image")


def test_few_images_are_compared_and_many_are_learned() -> None:
    inputs = np.random.default_rng(5).normal(scale=6, size=(300, 4))
    for count, like in ((30, "nearest"), (90, "svm")):
        auto, named = (fitted(name, "image", [blobs(count)]) for name in ("auto", like))
        assert np.array_equal(auto.vote(inputs), named.vote(inputs))


@pytest.mark.parametrize(
    ("name", "kind", "data", "least"),
    [
        pytest.param("auto", "image", "digits", 0.55, id="digits, 20 records each"),
        pytest.param("auto", "table", "breast-cancer", 0.75, id="breast-cancer, 7 records each"),
    ],
)
def test_small_real_shards_make_useful_teachers(
    name: str, kind: str, data: str, least: float
) -> None:
    from pate_fed.data import DataSource, load_dataset  # noqa: PLC0415 - next to its one use

    rng = np.random.default_rng(1)
    loaded = load_dataset(DataSource(data), rng=rng)
    partition = partition_records(loaded.private, parties=50, teachers=1, scheme="iid", rng=rng)
    ensemble = make_ensemble(name, loaded.kind)
    shards = [loaded.private.select(shard.rows) for shard in partition.shards]
    ensemble.fit(shards, classes=loaded.classes, rng=rng)
    accuracy = (ensemble.vote(loaded.test.features) == loaded.test.labels).mean()
    assert loaded.kind == kind
    assert accuracy > least

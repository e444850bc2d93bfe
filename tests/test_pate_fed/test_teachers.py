"""The contract of teachers, held by every form."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import skops.io
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler

from pate_fed.class_shares import share_offsets
from pate_fed.data import Records
from pate_fed.errors import InvalidDataError, InvalidParameterError, UnreadableFileError
from pate_fed.inputs import Inputs, covariance_power
from pate_fed.partition import partition_records
from pate_fed.teachers import (
    TEACHER_NAMES,
    TeacherEnsemble,
    convolution_ensemble,
    make_ensemble,
)
from pate_fed.teachers.direction_ensemble import DirectionEnsemble
from pate_fed.teachers.teacher_choice import SMALL_TEACHER
from tests.support.markers import more, sampled
from tests.support.small_records import blobs as blobs_without_images


def pictured(records: Records) -> Records:
    """Give records images: their features as gray stripes."""
    return replace(records, images=picture_of(records.features))


def picture_of(features: np.ndarray) -> np.ndarray:
    gray = np.clip(128 + 8 * features, 0, 255).astype(np.uint8)
    stripes = np.repeat(gray, 2, axis=1)[:, :8]
    return np.repeat(stripes[:, :, None, None], 8, axis=2)


def blobs(count: int, *, classes: int = 3, seed: int = 0) -> Records:
    return pictured(blobs_without_images(count, classes=classes, seed=seed))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train networks for some steps only: these tests are not about accuracy."""
    monkeypatch.setattr(convolution_ensemble, "_FEWEST_STEPS", 60)
    monkeypatch.setattr(convolution_ensemble, "_ROUNDS", 5)


FORMS = [
    # Votes are shared out in one place, for every form alike.
    (pytest.param if balance == "natural" or name in ("logistic", "svm", "direction") else more)(
        name, balance, id=f"{name} {balance}"
    )
    for name in TEACHER_NAMES
    for balance in ("natural", "equal")
    if (name, balance) != ("direction", "natural")
]
PUBLIC = blobs(90, seed=7).inputs


def make(name: str, balance: str) -> TeacherEnsemble:
    return make_ensemble(name, "image", balance=balance)


def fitted(name: str, balance: str, shards: list[Records], *, seed: int = 0) -> TeacherEnsemble:
    ensemble = make(name, balance)
    ensemble.fit(shards, classes=3, rng=np.random.default_rng(seed), public=PUBLIC)
    return ensemble


def some(count: int) -> Inputs:
    features = np.random.default_rng(5).normal(scale=6, size=(count, 4))
    return Inputs(features, picture_of(features))


@pytest.mark.parametrize(("name", "balance"), FORMS)
class TestTeacherEnsemble:
    """What every form of teachers must do."""

    @sampled()
    def test_teachers_learn_and_vote_with_global_classes(self, name: str, balance: str) -> None:
        test = blobs(30, seed=9)
        votes = fitted(name, balance, [blobs(30), blobs(30, seed=1)]).vote(test.inputs)
        assert votes.shape == (2, 30)
        assert votes.dtype == np.int64
        assert (votes == test.labels).mean() > 0.9

    @sampled()
    def test_the_same_seed_gives_the_same_votes(self, name: str, balance: str) -> None:
        inputs = some(200)
        shards = [blobs(20), blobs(20, seed=1)]
        first, again = (fitted(name, balance, shards).vote(inputs) for _ in range(2))
        assert np.array_equal(first, again)

    @sampled()
    def test_a_teacher_depends_on_its_own_shard_only(self, name: str, balance: str) -> None:
        inputs = some(200)
        one = fitted(name, balance, [blobs(20), blobs(20, seed=1)]).vote(inputs)
        other = fitted(name, balance, [blobs(5, seed=8), blobs(20, seed=1)]).vote(inputs)
        assert np.array_equal(one[1], other[1])

    def test_a_teacher_of_one_class_votes_it_where_inputs_are_like_its_own(
        self, name: str, balance: str
    ) -> None:
        mixed = blobs(300)
        single = mixed.select(np.flatnonzero(mixed.labels == 2)[:4])
        votes = fitted(name, balance, [single, single.select([0])]).vote(mixed.inputs)
        if balance == "natural":
            assert (votes == 2).all()
        else:
            for teacher in votes:
                assert (teacher[mixed.labels == 2] == 2).mean() > 0.8
                assert np.bincount(teacher, minlength=3).min() > 50

    @sampled()
    @pytest.mark.parametrize(
        "shard",
        [
            pytest.param(blobs(2), id="one record of each of two classes"),
            pytest.param(blobs(3), id="one record of each class"),
            pytest.param(
                pictured(Records(np.ones((6, 4)), np.array([0, 1, 2, 0, 1, 2]), tuple("abcdef"))),
                id="records that do not differ",
            ),
            pytest.param(
                pictured(
                    Records(np.eye(6, 4) * 1e6, np.array([2, 2, 2, 2, 2, 0]), tuple("abcdef"))
                ),
                id="large numbers",
            ),
        ],
    )
    def test_a_poor_shard_still_gives_votes(self, name: str, balance: str, shard: Records) -> None:
        votes = fitted(name, balance, [shard]).vote(blobs(10).inputs)
        assert set(votes.ravel().tolist()) <= set(shard.labels.tolist())

    def test_teachers_vote_after_training_only(self, name: str, balance: str) -> None:
        with pytest.raises(InvalidParameterError):
            make(name, balance).vote(Inputs(np.ones((1, 4))))

    @sampled()
    def test_training_again_forgets(self, name: str, balance: str) -> None:
        ensemble = fitted(name, balance, [blobs(9), blobs(9)])
        ensemble.fit([blobs(9)], classes=3, rng=np.random.default_rng(0), public=PUBLIC)
        assert ensemble.teachers == 1

    @sampled()
    def test_who_trains_is_told_of_each_teacher(self, name: str, balance: str) -> None:
        told: list[int] = []
        make(name, balance).fit(
            [blobs(9), blobs(9)],
            classes=3,
            rng=np.random.default_rng(0),
            public=PUBLIC,
            on_trained=told.append,
        )
        assert told == [1, 2]

    @sampled()
    def test_kept_teachers_vote_as_before(self, name: str, balance: str) -> None:
        inputs = some(200)
        mixed = blobs(30)
        single = mixed.select(np.flatnonzero(mixed.labels == 2))
        trained = fitted(name, balance, [mixed, single, blobs(80, seed=1)])
        kept = make(name, balance)
        kept.restore(trained.dump(), classes=3)
        assert np.array_equal(kept.vote(inputs), trained.vote(inputs))

    @sampled()
    def test_what_is_no_teacher_is_not_taken(self, name: str, balance: str) -> None:
        files = fitted(name, balance, [blobs(30)]).dump()
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
                for listed in (
                    [],
                    [{"label": 3}],
                    [{"label": -1}],
                    [{"label": 0, "file": model}],
                    [{"label": 0, "direction": [1.0]}],
                    [{"file": model, "offsets": [0.0]}],
                    [{"file": model, "offsets": [0.0, 0.0, "a"]}],
                )
            ),
        ]
        for content in spoiled:
            with pytest.raises(UnreadableFileError):
                make(name, balance).restore(content, classes=3)

    def test_teachers_are_kept_after_training_only(self, name: str, balance: str) -> None:
        with pytest.raises(InvalidParameterError):
            make(name, balance).dump()

    def test_impossible_shards_are_refused(self, name: str, balance: str) -> None:
        with pytest.raises(InvalidParameterError):
            fitted(name, balance, [])
        with pytest.raises(InvalidDataError):
            fitted(name, balance, [blobs(8, classes=4)])
        with pytest.raises(InvalidDataError):
            fitted(name, balance, [blobs(8).select([])])


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
    inputs = some(300)
    for count, like in ((30, "nearest"), (90, "svm")):
        auto, named = (fitted(name, "natural", [blobs(count)]) for name in ("auto", like))
        assert np.array_equal(auto.vote(inputs), named.vote(inputs))


@sampled()
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
    ensemble.fit(shards, classes=loaded.classes, rng=rng, public=loaded.pool.inputs)
    accuracy = (ensemble.vote(loaded.test.inputs) == loaded.test.labels).mean()
    assert loaded.kind == kind
    assert accuracy > least


class TestEqualShares:
    """Each class wins an equal share of the public pool, whatever a teacher saw."""

    @pytest.mark.parametrize("classes", [2, 3, 10])
    def test_every_class_wins_about_its_share(self, classes: int) -> None:
        rng = np.random.default_rng(classes)
        scores = rng.normal(size=(4000, classes)) + 5 * rng.normal(size=classes)
        won = np.bincount((scores + share_offsets(scores)).argmax(axis=1), minlength=classes)
        assert np.abs(won / 4000 - 1 / classes).max() < 0.02

    @pytest.mark.parametrize("low", [0.1, 0.45, 0.55, 0.9])
    def test_of_equal_scores_as_trees_have_them_no_class_takes_all(self, low: float) -> None:
        is_low = np.arange(1000) < 1000 * low
        scores = np.stack([np.zeros(1000), np.where(is_low, -2.0, 3.0)], axis=1)
        won = (scores + share_offsets(scores)).argmax(axis=1)
        np.testing.assert_array_equal(won, ~is_low)
        one = np.ones((50, 2))  # nothing tells anybody apart
        assert set((one + share_offsets(one)).argmax(axis=1).tolist()) == {0}

    @pytest.mark.parametrize("wanted", [(0.3, 0.4, 0.3), (0.6, 0.2, 0.2), (0.05, 0.05, 0.9)])
    def test_nor_does_one_of_many_classes(self, wanted: tuple[float, ...]) -> None:
        group = np.arange(900) % 3
        scores = np.log(np.array([[0.9, 0.05, 0.05], [0.01, 0.98, 0.01], [0.1, 0.1, 0.8]]))[group]
        won = (scores + share_offsets(scores, np.array(wanted))).argmax(axis=1)
        np.testing.assert_array_equal(won, group)

    def test_a_class_that_was_never_seen_wins_nothing(self) -> None:
        scores = np.random.default_rng(0).normal(size=(900, 4))
        scores[:, 1] = -np.inf
        won = np.bincount((scores + share_offsets(scores)).argmax(axis=1), minlength=4)
        assert won[1] == 0
        assert np.abs(won[[0, 2, 3]] / 900 - 1 / 3).max() < 0.03

    def test_a_rare_class_is_voted_for_where_risk_is_highest(self) -> None:
        rng = np.random.default_rng(1)
        features = rng.normal(size=(60, 4))
        labels = (features[:, 0] > 1.4).astype(np.int64)
        assert 0 < labels.sum() < 10
        shard = Records(features, labels, tuple(str(row) for row in range(60)))
        public = Inputs(rng.normal(size=(1000, 4)))
        ensemble = make_ensemble("logistic", "table")
        ensemble.fit([shard], classes=2, rng=rng, public=public)
        [votes] = ensemble.vote(public)
        assert votes.mean() == pytest.approx(0.5, abs=0.01)
        assert np.corrcoef(votes, public.features[:, 0])[0, 1] > 0.6

    def test_it_needs_the_public_pool(self) -> None:
        with pytest.raises(InvalidParameterError, match="pool"):
            make("svm", "equal").fit([blobs(9)], classes=3, rng=np.random.default_rng(0))


class TestTeachersOfTables:
    """The default: what a teacher learns, and how often it votes for a class, is by its records."""

    def shard(self, count: int, ill: float) -> Records:
        rng = np.random.default_rng(count)
        features = rng.normal(size=(count, 4))
        risk = features[:, 0] * features[:, 1]  # no line finds it
        labels = (risk > np.quantile(risk, 1 - ill)).astype(np.int64)
        return Records(features, labels, tuple(str(row) for row in range(count)))

    def votes(self, name: str, balance: str, shard: Records) -> np.ndarray:
        rng = np.random.default_rng(0)
        public = Inputs(rng.normal(size=(1000, 4)))
        ensemble = make_ensemble(name, "table", balance=balance)
        ensemble.fit([shard], classes=2, rng=np.random.default_rng(1), public=public)
        [found] = ensemble.vote(public)
        return found

    def test_ample_records_make_trees_that_vote_as_often_as_they_saw_a_class(self) -> None:
        shard = self.shard(400, 0.3)
        found = self.votes("auto", "auto", shard)
        assert found.mean() == pytest.approx(0.3, abs=0.02)
        assert np.array_equal(found, self.votes("boosting", "auto", shard))

    @pytest.mark.parametrize(
        ("count", "ill"),
        [
            pytest.param(199, 0.3, id="few records"),
            pytest.param(400, 0.19, id="a rare class"),
            pytest.param(400, 0.81, id="the other class rare"),
        ],
    )
    def test_others_make_a_line_that_votes_for_each_class_equally_often(
        self, count: int, ill: float
    ) -> None:
        shard = self.shard(count, ill)
        found = self.votes("auto", "auto", shard)
        assert found.mean() == pytest.approx(0.5, abs=0.01)
        assert np.array_equal(found, self.votes("logistic", "equal", shard))

    def test_equal_shares_can_be_had_for_ample_records_too(self) -> None:
        found = self.votes("auto", "equal", self.shard(400, 0.3))
        assert found.mean() == pytest.approx(0.5, abs=0.02)


class TestOwn:
    """A hospital's own teacher: MODULE:FUNCTION."""

    def test_it_is_trained_votes_and_is_kept(self) -> None:
        name = f"{__name__}:own_teacher"
        trained = fitted(name, "equal", [blobs(30), blobs(30, seed=1)])
        kept = make(name, "equal")
        kept.restore(trained.dump(), classes=3)
        assert np.array_equal(kept.vote(some(100)), trained.vote(some(100)))

    @pytest.mark.parametrize(
        "name", ["nowhere:make", "json:nothing", f"{__name__}:not_a_teacher", "json:dumps", ":"]
    )
    def test_code_that_cannot_be_one_is_refused(self, name: str) -> None:
        with pytest.raises((InvalidParameterError, InvalidDataError)):
            make(name, "natural")


def own_teacher() -> GaussianNB:
    return GaussianNB(var_smoothing=1e-3)


def not_a_teacher() -> str:
    return "teacher"


class OnlyLabels:
    """A teacher of one's own that names a class and says nothing of the others."""

    def fit(self, features: np.ndarray, labels: np.ndarray) -> OnlyLabels:
        self.classes_ = np.unique(labels)
        self._centers = np.array([features[labels == one].mean(axis=0) for one in self.classes_])
        return self

    def predict(self, features: np.ndarray) -> np.ndarray:
        apart = np.linalg.norm(features[:, None] - self._centers, axis=2)
        return np.asarray(self.classes_[apart.argmin(axis=1)])


def only_labels() -> OnlyLabels:
    return OnlyLabels()


class TestDirections:
    """Teachers of a few records of a table."""

    def test_half_whitening_is_the_inverse_root_of_the_shrunk_covariance(self) -> None:
        inputs = np.random.default_rng(0).normal(size=(500, 3)) @ np.diag([1.0, 5.0, 0.1])
        inputs[:, 2] += inputs[:, 0]
        found = covariance_power(inputs, -0.5)
        covariance = np.cov(inputs, rowvar=False)
        shrunk = 0.9 * covariance + 0.1 * np.trace(covariance) / 3 * np.eye(3)
        np.testing.assert_allclose(found @ shrunk @ found, np.eye(3), atol=1e-9)
        assert np.array_equal(covariance_power(np.ones((4, 2)), -0.5), np.eye(2))

    @pytest.mark.parametrize(("classes", "records"), [(2, (0, 0, 1)), (2, (1, 1)), (3, (2, 0))])
    def test_votes_follow_the_half_whitened_means(
        self, classes: int, records: tuple[int, ...]
    ) -> None:
        rng = np.random.default_rng(3)
        public = Inputs(rng.normal(size=(400, 4)) @ rng.normal(size=(4, 4)))
        features, labels = rng.normal(size=(len(records), 4)), np.array(records)
        ensemble = make_ensemble("direction", "table")
        shard = Records(features, labels, tuple(map(str, range(len(records)))))
        ensemble.fit([shard], classes=classes, rng=rng, public=public)
        [votes] = ensemble.vote(public)
        middle = public.features.mean(axis=0)
        scores = np.zeros((400, classes))
        for label in set(records):
            away = features[labels == label].mean(axis=0) - middle
            scores[:, label] = public.features @ covariance_power(public.features, -0.5) @ away
        first, second = sorted({*records, 1 - records[0]} if classes == 2 else set(records))
        lead = scores[:, second] - scores[:, first]
        assert np.array_equal(votes == second, lead > np.median(lead))
        assert votes.tolist().count(first) == 200

    def test_auto_takes_them_where_teachers_have_few_records_of_a_table(self) -> None:
        def kind(records: float | None, teachers: int = 2, **others: Any) -> type[TeacherEnsemble]:
            made = make_ensemble("auto", "table", records=records, teachers=teachers, **others)
            return type(made)

        assert kind(8) is kind(SMALL_TEACHER) is DirectionEnsemble
        assert DirectionEnsemble not in (kind(3, 1), kind(8, 1), kind(15, 1))
        assert DirectionEnsemble not in (kind(None), kind(SMALL_TEACHER + 1))
        assert kind(8, balance="natural") is not DirectionEnsemble
        assert type(make_ensemble("auto", "image", records=8)) is not DirectionEnsemble

    def test_they_say_no_class_s_chance(self) -> None:
        with pytest.raises(InvalidParameterError, match="natural"):
            make_ensemble("direction", "table", balance="natural")


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", ["nearest", f"{__name__}:only_labels"])
def test_teachers_that_rank_nobody_vote_as_they_predict(name: str, classes: int) -> None:
    """Chances of 0 and 1 leave nothing to share out, and are no reason to fail."""
    shard = blobs(60, classes=classes)
    votes = []
    for balance in ("natural", "equal"):
        ensemble = make_ensemble(name, "table", balance=balance)
        public = blobs(90, classes=classes, seed=7)
        ensemble.fit([shard], classes=classes, rng=np.random.default_rng(0), public=public.inputs)
        votes.append(ensemble.vote(blobs(80, classes=classes, seed=3).inputs))
        if name == "nearest":
            assert ensemble.dump()
    np.testing.assert_array_equal(votes[0], votes[1])
    assert len(np.unique(votes[0])) == classes


@pytest.mark.parametrize("name", ["network", "convolution"])
def test_a_network_gives_no_votes_to_a_class_that_it_never_saw(name: str) -> None:
    shard = blobs(60)
    seen = shard.select(np.flatnonzero(shard.labels != 2))
    ensemble = fitted(name, "equal", [seen])
    assert set(np.unique(ensemble.vote(some(300)))) == {0, 1}
    again = make(name, "equal")
    again.restore(ensemble.dump(), classes=3)
    np.testing.assert_array_equal(again.vote(some(300)), ensemble.vote(some(300)))


class TestConvolution:
    """Teachers that look at the images themselves."""

    def test_a_table_is_refused(self) -> None:
        with pytest.raises(InvalidDataError, match="images"):
            fitted("convolution", "natural", [blobs_without_images(9)])

    @sampled()
    @pytest.mark.parametrize(
        "spoiled",
        [
            pytest.param({"output.bias": 4}, id="sizes that do not fit"),
            pytest.param({"output.weight": None}, id="a part is missing"),
            pytest.param({"first.weight": 7}, id="another number of filters"),
        ],
    )
    def test_a_file_of_another_network_is_refused(self, spoiled: dict[str, int | None]) -> None:
        files = fitted("convolution", "natural", [blobs(9)]).dump()
        tensors = safetensors.numpy.load(files["teacher-0001.safetensors"])
        for name, rows in spoiled.items():
            if rows is None:
                del tensors[name]
            else:
                tensors[name] = np.zeros((rows, *tensors[name].shape[1:]), np.float32)
        files["teacher-0001.safetensors"] = safetensors.numpy.save(tensors)
        with pytest.raises(UnreadableFileError):
            make("convolution", "natural").restore(files, classes=3)

    def test_the_device_is_the_one_that_was_asked_for(self) -> None:
        # "meta" computes nothing, so no vote can come from it: torch was told of it.
        with pytest.raises(InvalidParameterError, match="'meta'"):
            make_ensemble("convolution", "image", device="meta")

    def test_a_device_that_torch_does_not_know_is_refused(self) -> None:
        with pytest.raises(InvalidParameterError, match="--device"):
            make_ensemble("convolution", "image", device="abacus")

    def test_other_teachers_have_no_device(self) -> None:
        with pytest.raises(InvalidParameterError, match="--teacher convolution"):
            make_ensemble("svm", "image", device="cuda")


def test_shares_of_classes_that_cannot_win_go_to_the_others() -> None:
    scores = np.random.default_rng(0).normal(size=(3000, 4))
    scores[:, 2] = -np.inf
    offsets = share_offsets(scores, np.array([0.1, 0.2, 0.5, 0.2]))
    won = np.bincount((scores + offsets).argmax(axis=1), minlength=4) / 3000
    np.testing.assert_allclose(won, [0.2, 0.4, 0.0, 0.4], atol=0.03)

"""Membership inference on students: many federations, each with half of the records.

Which teacher a record belongs to is drawn once. Every record takes part in a random half of the
worlds. In each of them teachers learn and vote on the same queries, noise is added, and a student
learns the labels. The attack must tell from the student's chance for a record's class whether the
record took part. For comparison the same attack is made on one model that learned all records of a
world itself, without votes and noise: it finds something where there is something.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.data import Dataset, DataSource, load_dataset
from pate_fed.errors import InvalidParameterError
from pate_fed.lab.canary import releases_of
from pate_fed.lab.experiments.experiment import DELTA, Result, Row, Tell, counted, epsilon_of
from pate_fed.lab.membership_inference import MembershipAudit, ShadowModels, membership_audit
from pate_fed.mechanisms import GaussianMax, Mechanism, keyed_stream
from pate_fed.students import LabelFacts, Lesson, Student, train_student
from pate_fed.teachers import make_ensemble

TEACHERS: Final = 20
QUERIES: Final = 200
STUDENT: Final = "kernel-ridge"
_MODELS: Final = 64
_SIGMAS: Final = (1.0, 5.0, 20.0)


def membership(folder: Path, seeds: Sequence[int], tell: Tell) -> Iterator[Result]:  # noqa: ARG001
    """Yield how many records the attack finds beside how many false alarms."""
    data = load_dataset(DataSource("digits"), rng=np.random.default_rng(0))
    control = [
        membership_audit(shadow_models(data, None, models=_MODELS, seed=seed), delta=DELTA)
        for seed in seeds
    ]
    yield from _results("one model of all records, no votes", math.inf, control, tell)
    for sigma in _SIGMAS:
        rule = GaussianMax(sigma)
        audits = [
            membership_audit(shadow_models(data, rule, models=_MODELS, seed=seed), delta=DELTA)
            for seed in seeds
        ]
        epsilon = epsilon_of(rule, QUERIES, classes=data.classes)
        words = f"student of {QUERIES} labels, {TEACHERS} teachers, GNMax, sigma {sigma:g}"
        yield from _results(words, epsilon, audits, tell)


def shadow_models(
    data: Dataset,
    rule: Mechanism | None,
    *,
    models: int,
    seed: int,
    teachers: int = TEACHERS,
    queries: int = QUERIES,
) -> ShadowModels:
    """Train students of many federations.

    Without a rule one model learns all records of a world.
    """
    if not (1 <= teachers <= len(data.private) // 4 and 1 <= queries <= len(data.pool)):
        raise InvalidParameterError(
            f"there must be 1..{len(data.private) // 4} teachers and 1..{len(data.pool)} queries",
            f"{teachers}, {queries}",
        )
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.arange(len(data.private)) % teachers)
    own = [owner == teacher for teacher in range(teachers)]
    asked = rng.choice(len(data.pool), queries, replace=False)
    lots = rng.random((models, len(data.private)))
    members = lots.argsort(axis=0).argsort(axis=0) < models // 2
    confidences = [
        _with_all(data, inside, rng)
        if rule is None
        else _federated(data, rule, [np.flatnonzero(inside & one) for one in own], asked, rng)
        for inside in members
    ]
    return ShadowModels(np.array(confidences), members)


def _with_all(
    data: Dataset, inside: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the confidences of one model that learned all records of a world."""
    lesson = Lesson(
        data.private.inputs, np.flatnonzero(inside), data.private.labels[inside], data.classes
    )
    return _own_class(train_student(STUDENT, data.kind, lesson, rng=rng), data)


def _federated(
    data: Dataset,
    rule: Mechanism,
    rows: Sequence[NDArray[np.int64]],
    asked: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return the confidences of a student of one federation."""
    ensemble = make_ensemble("auto", data.kind, balance="natural")
    ensemble.fit(
        [data.private.select(one) for one in rows if len(one)],
        classes=data.classes,
        rng=rng,
        public=data.pool.inputs,
    )
    counts = counted(ensemble.vote(data.pool.inputs.select(asked)), data.classes)
    labels = releases_of(rule, keyed_stream(rng.bytes(32), tag="membership"))(counts)
    answered = labels >= 0
    if not answered.any():
        return np.full(len(data.private), 1 / data.classes)
    lesson = Lesson(
        data.pool.inputs, asked[answered], labels[answered], data.classes, LabelFacts(len(rows))
    )
    return _own_class(train_student(STUDENT, data.kind, lesson, rng=rng), data)


def _own_class(student: Student, data: Dataset) -> NDArray[np.float64]:
    """Return the chance that a student gives to the own class of each private record."""
    chances = student.chances(data.private.inputs)
    own = chances[np.arange(len(chances)), data.private.labels]
    return np.asarray(np.clip(own, 0.0, 1.0))


def _results(
    words: str, epsilon: float, audits: Sequence[MembershipAudit], tell: Tell
) -> Iterator[Result]:
    """Yield the shares found, the shares of false alarms, the area and the bound."""
    for place, point in enumerate(audits[0].points):
        points = [one.points[place] for one in audits]
        low, high = points[0].interval()
        most = points[0].most_found(epsilon, DELTA)
        tell(
            f"{words}: {points[0].found / points[0].members:.4f} ({low:.4f} to {high:.4f}) found "
            f"at {point.aimed:g} alarms, allowed {most:.4f}"
        )
        for measure, values in (
            (f"members found at {point.aimed:g} alarms", [p.found / p.members for p in points]),
            (f"alarms aimed at {point.aimed:g}", [p.alarms / p.others for p in points]),
        ):
            yield Result(Row(words, "none", epsilon, measure=measure), tuple(values))
    yield Result(Row(words, "none", epsilon, measure="area"), tuple(one.area for one in audits))
    bounds = tuple(one.epsilon for one in audits)
    yield Result(Row(words, "none", epsilon, measure="lower bound on epsilon"), bounds)

"""A student that first spreads the few labels over the public pool, neighbor to neighbor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate_fed.students.logistic import deciding
from pate_fed.students.model import ConstantModel, Model, SklearnModel
from pate_fed.students.student import Lesson, Student
from pate_fed.students.supervised import make_classifier

_NEIGHBORS = 7
"""Neighbors that each input is joined to."""

_KEPT = 0.99
_STEPS = 100
_TRUST_IN_SPREAD = 3.0
_SUREST = 0.9
_FOLDS = 5
_FEWEST_TO_DOUBT = 5
_EVEN_SHARE = 0.3


class PropagationStudent(Student):
    """Label propagation, then a scikit-learn classifier.

    For images labels are spread as `refined_labels` says. A first classifier learns the surest of
    them, and a second one those that the first confirms. Classes of a table overlap more. There it
    learns the released labels, and the propagated ones by the weight of their confidence: all
    together `_TRUST_IN_SPREAD` times the weight of the released ones.
    """

    name: ClassVar[str] = "propagation"

    def _learn(self, lesson: Lesson, *, rng: np.random.Generator) -> Model:
        inputs, labels, classes = lesson.pool.features, lesson.labels, lesson.classes
        if self.kind == "image":
            spread = refined_labels(lesson)
            if len(np.unique(spread.labels)) == 1:  # a graph in which one class reaches all
                return ConstantModel(int(spread.labels[0]), classes)
            return self._of_images(inputs, spread, classes, rng=rng)
        spread = propagate_labels(lesson)
        classifier = make_classifier(self.kind, rng=rng)
        surely = max(float(spread.confidence.sum()), 1e-300)
        trust = spread.confidence / surely * _TRUST_IN_SPREAD * len(labels)
        weights = np.concatenate([np.ones(len(labels)), trust])
        classifier.fit(
            np.concatenate([inputs[lesson.indices], inputs]),
            np.concatenate([labels, spread.labels]),
            sample_weight=weights,
        )
        return deciding(SklearnModel(classifier, classes), lesson)

    def _of_images(
        self,
        inputs: NDArray[np.float64],
        spread: SpreadLabels,
        classes: int,
        *,
        rng: np.random.Generator,
    ) -> Model:
        sure = _surest(spread)
        first = make_classifier(self.kind, rng=rng).fit(inputs[sure], spread.labels[sure])
        kept = first.predict(inputs) == spread.labels
        second = make_classifier(self.kind, rng=rng).fit(inputs[kept], spread.labels[kept])
        return SklearnModel(second, classes)


def _surest(spread: SpreadLabels) -> NDArray[np.int64]:
    """Return the positions of the surest inputs of each class."""
    found = []
    for label in np.unique(spread.labels):
        members = np.flatnonzero(spread.labels == label)
        best = members[np.argsort(-spread.confidence[members], kind="stable")]
        found.append(best[: max(1, int(_SUREST * len(members)))])
    return np.concatenate(found)


@dataclass(frozen=True, slots=True, eq=False)
class SpreadLabels:
    """A label for every public input.

    Attributes:
        labels: int64, shape (inputs,).
        confidence: How far the label's class leads: 0 where all classes present reach the input
            alike or none does, 1 where no other class reaches it; shape (inputs,).
    """

    labels: NDArray[np.int64]
    confidence: NDArray[np.float64]


def propagate_labels(lesson: Lesson) -> SpreadLabels:
    """Give every input the class whose labels reach it most strongly.

    F <- 0.99 S F + 0.01 Y on the graph of nearest neighbors, with the labels of each class and
    then the reach of each class normed to one, so that no class wins by number. A class without
    a label reaches nothing. An input that no label reaches takes the most frequent label.

    Source:
        Zhou et al. 2004, "Learning with local and global consistency"; class mass normalization:
        Zhu et al. 2003, "Semi-supervised learning using Gaussian fields".
    """
    graph = neighbor_graph(lesson.pool.features)
    return _spread_over(graph, lesson.indices, lesson.labels, classes=lesson.classes)


def refined_labels(lesson: Lesson) -> SpreadLabels:
    """Give every input a class, by a second graph without the labels that others contradict.

    The first graph's labels tell how inputs of one class vary. The second graph compares inputs
    after that variation is taken out, so that neighbors are more often of one class.

    Source:
        Hatch, Kajarekar, Stolcke 2006, Within-class covariance normalization for SVM-based speaker
        recognition. https://doi.org/10.21437/Interspeech.2006-183
    """
    return _spread_unopposed(_refined_graph(lesson), lesson)


def _refined_graph(lesson: Lesson) -> Any:
    """Return the second graph of `refined_labels`."""
    inputs = lesson.pool.features
    return neighbor_graph(_evened(inputs, _spread_unopposed(neighbor_graph(inputs), lesson)))


def _spread_unopposed(graph: Any, lesson: Lesson) -> SpreadLabels:
    """Spread the labels that others confirm.

    A class with few labels, or whose labels are mostly contradicted, keeps them all.
    """
    labels, classes = lesson.labels, lesson.classes
    kept = np.ones(len(labels), dtype=np.bool_)
    if len(labels) >= _FEWEST_TO_DOUBT * classes:
        kept = _left_out(graph, lesson) == labels
        for label in np.unique(labels):
            own = labels == label
            if own.sum() < _FEWEST_TO_DOUBT or kept[own].mean() < 0.5:
                kept[own] = True
    return _spread_over(graph, lesson.indices[kept], labels[kept], classes=classes)


def left_out_labels(lesson: Lesson) -> NDArray[np.int64]:
    """Predict each label from others, a fifth at a time, over the graph of `refined_labels`.

    That graph was made with all labels, so the predictions are slightly too good.
    """
    return _left_out(_refined_graph(lesson), lesson)


def _left_out(graph: Any, lesson: Lesson) -> NDArray[np.int64]:
    """Predict each label from the others: a fifth at a time is left out."""
    indices, labels = lesson.indices, lesson.labels
    fold = np.arange(len(labels)) % _FOLDS
    found = np.empty_like(labels)
    for out in (fold == number for number in range(min(_FOLDS, len(labels)))):
        spread = _spread_over(graph, indices[~out], labels[~out], classes=lesson.classes)
        found[out] = spread.labels[indices[out]]
    return found


def _evened(inputs: NDArray[np.float64], spread: SpreadLabels) -> NDArray[np.float64]:
    """Return inputs that vary alike in all directions within a class; the same shape."""
    sure = _surest(spread)
    rows, labels = inputs[sure], spread.labels[sure]
    apart = np.concatenate(
        [rows[labels == label] - rows[labels == label].mean(axis=0) for label in np.unique(labels)]
    )
    within = apart.T @ apart / len(apart)
    even = max(float(np.trace(within)) / len(within), 1e-12) * np.eye(len(within))
    mixed = (1 - _EVEN_SHARE) * within + _EVEN_SHARE * even
    return np.asarray(inputs @ np.linalg.cholesky(np.linalg.inv(mixed)))


def _spread_over(
    graph: Any, indices: NDArray[np.int64], labels: NDArray[np.int64], *, classes: int
) -> SpreadLabels:
    """Spread labels over a graph of all inputs, see `propagate_labels`."""
    counts = np.bincount(labels, minlength=classes)
    start = np.zeros((graph.shape[0], classes))
    start[indices, labels] = 1.0 / counts[labels]
    reach = start
    for _ in range(_STEPS):
        reach = _KEPT * (graph @ reach) + (1 - _KEPT) * start
    # A class without a label has no mass; it stays at zero instead of becoming NaN.
    shares = reach / np.maximum(reach.sum(axis=0), 1e-300)
    total = shares.sum(axis=1)
    spread = shares.argmax(axis=1).astype(np.int64)
    spread[total <= 0] = counts.argmax()
    present = int((counts > 0).sum())
    even = 1.0 / present
    top = shares.max(axis=1) / np.maximum(total, 1e-300)
    lead = (top - even) / (1 - even) if present > 1 else (total > 0).astype(np.float64)
    return SpreadLabels(spread, np.clip(lead, 0.0, 1.0))


def neighbor_graph(inputs: NDArray[np.float64]) -> Any:
    """Join each input to its nearest ones, near ones strongly.

    Weights are exp(-d^2 / (s_i s_j)), with s the distance to the farthest neighbor, so that
    dense and thin regions are treated alike.

    Returns:
        Sparse symmetric matrix D^-1/2 W D^-1/2, shape (n, n), non-negative.
    """
    from scipy import sparse  # noqa: PLC0415 - takes a second
    from sklearn.neighbors import NearestNeighbors  # noqa: PLC0415

    count = len(inputs)
    taken = min(_NEIGHBORS, count - 1)
    if taken < 1:
        return sparse.csr_matrix((count, count))
    search = NearestNeighbors(n_neighbors=taken).fit(inputs)
    distances, found = search.kneighbors()
    scale = np.maximum(distances[:, -1], 1e-12)
    strength = np.exp(-(distances**2) / (scale[:, None] * scale[found]))
    rows = np.repeat(np.arange(count), taken)
    weights = sparse.csr_matrix((strength.ravel(), (rows, found.ravel())), shape=(count, count))
    joined = weights.maximum(weights.T)
    degree = np.asarray(joined.sum(axis=1)).ravel()
    root = sparse.diags(1.0 / np.sqrt(np.maximum(degree, 1e-300)))
    return (root @ joined @ root).tocsr()

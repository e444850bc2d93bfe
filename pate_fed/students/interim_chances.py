"""A student's beliefs half way: chances of each class, for Interactive-GNMax."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate_fed.one_thread import one_thread

_ITERATIONS = 500


def interim_chances(
    known: NDArray[np.float64],
    labels: NDArray[np.int64],
    inputs: NDArray[np.float64],
    *,
    classes: int,
) -> NDArray[np.float64] | None:
    """Learn from the labels released so far, and say how likely each class is for new inputs.

    Guarantee: post-processing of released labels and public inputs; it costs no privacy.

    Args:
        known: Public inputs with a label; float64, shape (labels, features).
        inputs: Public inputs to judge; float64, shape (queries, features).

    Returns:
        Chances whose rows sum to 1, 0 for classes without a label so far; float64, shape
        (queries, classes). None while fewer than two classes have a label.
    """
    if len(set(labels.tolist())) < 2:
        return None
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    scaler = StandardScaler().fit(known)
    with one_thread():
        model = LogisticRegression(max_iter=_ITERATIONS).fit(scaler.transform(known), labels)
        found = model.predict_proba(scaler.transform(inputs))
    chances = np.zeros((len(inputs), classes))
    chances[:, model.classes_] = found
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))

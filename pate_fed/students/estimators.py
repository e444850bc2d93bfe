"""The scikit-learn models that a student may be, and what their compiled code takes on trust.

A file of a student can come from somebody who would harm its reader. It holds no code, but compiled
code follows its numbers: a tree could lead back to its root, or read a feature far outside.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.errors import RunDirectoryError

_NO_CHILD: Final = -1
_KINDS: Final = frozenset(
    {
        "HistGradientBoostingClassifier",
        "KernelRidge",
        "LogisticRegression",
        "RandomForestClassifier",
        "SVC",
    }
)


def require_sound(estimator: Any, *, features: int) -> None:
    """Refuse a model that no student saves: another kind, or numbers that training never gives.

    Args:
        estimator: As it was read.
        features: Length of the student's inputs.

    Raises:
        RunDirectoryError: it is one.
    """
    kind = type(estimator)
    try:
        is_sound = (
            kind.__module__.startswith("sklearn.")
            and kind.__name__ in _KINDS
            and estimator.n_features_in_ == features
            and _is_sound(estimator, features)
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise RunDirectoryError(
            "a student's model must be one that a student saves: each tree ends, and reads the "
            "student's features",
            "another",
        )


def _is_sound(estimator: Any, features: int) -> bool:
    kind = type(estimator).__name__
    if kind == "RandomForestClassifier":
        return all(_is_tree(one.tree_, features) for one in estimator.estimators_)
    if kind == "HistGradientBoostingClassifier":
        trees = [one for row in estimator._predictors for one in row]
        return estimator._preprocessor is None and all(
            _is_boosted(one.nodes, features) for one in trees
        )
    if kind == "SVC":
        return _is_machine(estimator, features)
    return kind != "KernelRidge" or (
        estimator.kernel == "rbf" and estimator.X_fit_.shape[1] == features
    )


def _is_tree(tree: Any, features: int) -> bool:
    left, right = tree.children_left, tree.children_right
    inner = left != _NO_CHILD
    return _ends(left[inner], right[inner], np.flatnonzero(inner), len(left)) and _reads(
        tree.feature[inner], features
    )


def _is_boosted(nodes: NDArray[np.void], features: int) -> bool:
    inner = nodes["is_leaf"] == 0
    left, right = (nodes[name][inner].astype(np.int64) for name in ("left", "right"))
    return (
        _ends(left, right, np.flatnonzero(inner), len(nodes))
        and _reads(nodes["feature_idx"][inner], features)
        and not nodes["is_categorical"].any()
    )


def _ends(
    left: NDArray[np.int64], right: NDArray[np.int64], parents: NDArray[np.int64], nodes: int
) -> bool:
    """Tell whether each child comes after its parent, so that every way ends."""
    return nodes > 0 and all(
        bool((parents < one).all() and (one < nodes).all()) for one in (left, right)
    )


def _reads(places: NDArray[np.int64], features: int) -> bool:
    return bool(((places >= 0) & (places < features)).all())


def _is_machine(machine: Any, features: int) -> bool:
    vectors, classes = machine.support_vectors_, len(machine.classes_)
    of_class, pairs = machine._n_support, classes * (classes - 1) // 2
    return (
        machine.kernel == "rbf"
        and not machine._sparse
        and vectors.ndim == 2
        and vectors.shape[1] == features
        and of_class.shape == (classes,)
        and bool((of_class >= 0).all())
        and int(of_class.sum()) == len(vectors) == len(machine.support_)
        and machine._dual_coef_.shape == (classes - 1, len(vectors))
        and machine._intercept_.shape == (pairs,)
        and machine._probA.shape == machine._probB.shape == (0,)
    )

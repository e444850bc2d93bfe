"""A table's student as arrays of numbers: what hospitals read of a student that they score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from pate_fed.array_models import DESCRIPTION_FILE, FORM, TENSORS_FILE, ArrayModel, Arrays
from pate_fed.errors import InvalidParameterError, RunDirectoryError, UnreadableFileError
from pate_fed.inputs import Inputs
from pate_fed.regular_files import read_regular
from pate_fed.students.model import ConstantModel, Model, SklearnModel
from pate_fed.students.student import Student

if TYPE_CHECKING:
    from pate_fed.students.network_student import NetworkModel


@dataclass(frozen=True, slots=True, eq=False)
class ArraysModel(Model):
    """A model that is nothing but numbers, as a student's."""

    form: ClassVar[str] = FORM

    found: ArrayModel

    def chances(self, inputs: Inputs) -> NDArray[np.float64]:
        """See `ArrayModel.chances`."""
        return self.found.chances(inputs.features)

    def write(self, directory: Path) -> dict[str, object]:
        """Write the arrays with safetensors."""
        (directory / TENSORS_FILE).write_bytes(self.found.to_files()[TENSORS_FILE])
        return {"kind": self.found.kind}

    @classmethod
    def read(cls, directory: Path, described: dict[str, object]) -> ArraysModel:  # noqa: ARG003
        """See `Model.read`."""
        names = (DESCRIPTION_FILE, TENSORS_FILE)
        try:
            files = {name: read_regular(directory / name) for name in names}
            return cls(ArrayModel.from_files(files))
        except OSError as error:
            raise RunDirectoryError("a model must be readable", type(error).__name__) from error
        except UnreadableFileError as error:
            raise RunDirectoryError(error.must, error.got) from error


def as_arrays(student: Student) -> ArrayModel:
    """Return a trained student of features as arrays: the same chances, but for rounding."""
    model = student.model
    if isinstance(model, ArraysModel):
        return model.found
    places, offsets = np.arange(student.classes), np.zeros(student.classes)
    if isinstance(model, ConstantModel):
        kind, arrays = "constant", {"start": np.eye(student.classes)[model.label]}
    elif model.form == "network":  # its class needs torch
        tensors = cast("NetworkModel", model).network.tensors
        kind = "network"
        arrays = {name: each.double().numpy() for name, each in tensors.items()}
    elif isinstance(model, SklearnModel):
        kind, arrays = _of_estimator(model.estimator)
        places = np.asarray(getattr(model.estimator, "classes_", places))
        offsets = offsets if model.offsets is None else model.offsets
    else:
        raise InvalidParameterError(
            "an evaluated student must be numbers that hospitals can check: one that learns from "
            "features, such as logistic or kernel-ridge",
            student.name,
        )
    try:
        return ArrayModel(
            kind,
            student.name,
            student.features,
            student.classes,
            {**arrays, "places": places.astype(np.int64), "offsets": offsets},
        )
    except UnreadableFileError as error:
        raise InvalidParameterError(
            "an evaluated student must have at most 262,144 numbers", student.name
        ) from error


def _of_estimator(estimator: Any) -> tuple[str, dict[str, NDArray[Any]]]:
    kind = type(estimator).__name__
    if kind == "LogisticRegression":
        weights, start = estimator.coef_, estimator.intercept_
        if len(weights) == 1:  # of the second class alone
            weights, start = (np.concatenate([0 * one, one]) for one in (weights, start))
        return "linear", {"weights": weights, "start": start}
    if kind == "KernelRidge":
        return "kernel", {
            "points": estimator.X_fit_,
            "weights": estimator.dual_coef_,
            "gamma": np.array([float(estimator.gamma)]),
        }
    if kind == "RandomForestClassifier":
        trees = [_of_tree(one.tree_) for one in estimator.estimators_]
        return "forest", _joined(trees, np.zeros(len(estimator.classes_)))
    if kind == "HistGradientBoostingClassifier":
        return "boosting", _boosted(estimator)
    raise InvalidParameterError(
        "an evaluated student must be numbers that hospitals can check: one that learns from "
        "features, such as logistic or kernel-ridge",
        kind,
    )


def _of_tree(tree: Any) -> Arrays:
    nodes, inner = np.arange(tree.node_count), tree.children_left >= 0
    return {
        "left": np.where(inner, tree.children_left, nodes),
        "right": np.where(inner, tree.children_right, nodes),
        "feature": np.where(inner, tree.feature, 0),
        "threshold": np.where(inner, tree.threshold, 0.0),
        "value": np.where(inner[:, np.newaxis], 0.0, tree.value[:, 0, :]),
    }


def _boosted(estimator: Any) -> dict[str, NDArray[Any]]:
    classes, trees = len(estimator.classes_), []
    start = np.ravel(estimator._baseline_prediction)
    for row in estimator._predictors:
        for place, one in enumerate(row):
            nodes, own = one.nodes, np.arange(len(one.nodes))
            inner = nodes["is_leaf"] == 0
            value = np.zeros((len(nodes), classes))
            # Two classes have one tree, for the second one.
            value[:, place if len(row) > 1 else 1] = np.where(inner, 0.0, nodes["value"])
            trees.append(
                {
                    "left": np.where(inner, nodes["left"], own),
                    "right": np.where(inner, nodes["right"], own),
                    "feature": np.where(inner, nodes["feature_idx"], 0),
                    "threshold": np.where(inner, nodes["num_threshold"], 0.0),
                    "value": value,
                }
            )
    return _joined(trees, start if len(start) == classes else np.array([0.0, *start]))


def _joined(trees: Sequence[Arrays], start: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Put the nodes of all trees in a row; leaves of deeper trees come later."""
    sizes = [len(one["left"]) for one in trees]
    roots = np.cumsum([0, *sizes[:-1]])
    moved = {"left": np.int64, "right": np.int64}
    found: dict[str, NDArray[Any]] = {"roots": roots.astype(np.int64), "start": start}
    for name, dtype in {**moved, "feature": np.int64, "threshold": float, "value": float}.items():
        parts = [
            one[name].astype(dtype) + (root if name in moved else 0)
            for one, root in zip(trees, roots, strict=True)
        ]
        found[name] = np.concatenate(parts)
    return found

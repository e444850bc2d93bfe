"""A student as an ONNX file (extra `onnx`), for programs without Python.

A table's graph takes raw columns: numbers as double, NaN where unknown, and texts spelled as in
`inputs.json`, "" where unknown; each of shape (rows, 1). An image student's graph takes features:
how images become features is no part of the file. Outputs: `label` and `chances`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.preprocessing import Preprocessing, TablePreprocessing
from pate_fed.data.table_features import MOST_DEVIATIONS, CategoryEncoder
from pate_fed.errors import InvalidParameterError, MissingExtraError, RunDirectoryError
from pate_fed.students.model import ConstantModel, Model, SklearnModel
from pate_fed.students.trained import TrainedStudent

FEATURES: Final = "features"
"""Name of an image student's input."""

_OPSETS: Final = {"": 15, "ai.onnx.ml": 3}
"""Versions whose operators all nodes have in the same form; skl2onnx may declare smaller ones."""

_LEAST_CHANCE: Final = 1e-9
_LEAST_SHARE: Final = 1e-3
_TREES: Final = ("RandomForestClassifier", "HistGradientBoostingClassifier")


def export_onnx(student: TrainedStudent, path: Path) -> tuple[str, ...]:
    """Write a student as one ONNX file; nothing in it is run on reading."""
    try:
        import onnx  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(
            "an ONNX file needs more: install it with `pip install 'pate-fed[onnx]'`",
            "no onnx here",
        ) from error
    graph = _Graph()
    features = _add_inputs(graph, student.preprocessing, student.student.features)
    chances = _add_model(graph, student.student.model, features, len(student.class_names))
    graph.add("Identity", [chances], "chances")
    graph.add("ArgMax", [chances], "place", axis=1, keepdims=0)
    names = graph.constant(np.array(student.class_names, dtype=object))
    graph.add("Gather", [names, "place"], "label")
    model = graph.built(classes=len(student.class_names))
    onnx.checker.check_model(model)
    try:
        with path.open("xb") as file:
            file.write(model.SerializeToString())
    except OSError as error:
        raise RunDirectoryError(
            "the ONNX file must be new, in a folder that is there", type(error).__name__
        ) from error
    return tuple(graph.inputs)


@dataclass(slots=True)
class _Graph:
    """Nodes in the order in which they are computed; names of values come from their number."""

    inputs: dict[str, tuple[int, int]] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, kind: str, sources: Sequence[str], name: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its value."""
        from onnx import helper  # noqa: PLC0415 - an extra

        made = name or f"value of {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(sources), [made], **attributes))
        return made

    def constant(self, value: Any) -> str:
        """Add a constant, an array; return its name."""
        from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415 - an extra

        name, array = f"constant {len(self.constants)}", np.asarray(value)
        if array.dtype == object:
            texts = [str(one).encode() for one in array.ravel()]
            tensor = helper.make_tensor(name, TensorProto.STRING, array.shape, texts)
        else:
            tensor = numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        return name

    def built(self, *, classes: int) -> Any:
        """Return the whole model."""
        from onnx import TensorProto, helper  # noqa: PLC0415 - an extra

        value = helper.make_tensor_value_info
        return helper.make_model(
            helper.make_graph(
                self.nodes,
                "pate_fed student",
                [value(name, kind, ["rows", size]) for name, (kind, size) in self.inputs.items()],
                [
                    value("label", TensorProto.STRING, ["rows"]),
                    value("chances", TensorProto.DOUBLE, ["rows", classes]),
                ],
                self.constants,
            ),
            opset_imports=[helper.make_opsetid(*one) for one in _OPSETS.items()],
            ir_version=9,
        )


def _add_inputs(graph: _Graph, preprocessing: Preprocessing, features: int) -> str:
    """Add the way from raw columns to features; return the name of the features."""
    from onnx import TensorProto  # noqa: PLC0415 - an extra

    if not isinstance(preprocessing, TablePreprocessing):
        graph.inputs[FEATURES] = (TensorProto.DOUBLE, features)
        return FEATURES
    parts = []
    columns = zip(preprocessing.columns, preprocessing.encoder.encoders, strict=True)
    for name, encoder in columns:
        if isinstance(encoder, CategoryEncoder):
            graph.inputs[name] = (TensorProto.STRING, 1)
            listed = list(encoder.categories)
            place = graph.add(
                "LabelEncoder",
                [name],
                domain="ai.onnx.ml",
                default_int64=-1,
                keys_strings=listed,
                values_int64s=list(range(len(listed))),
            )
            each = graph.constant(np.arange(len(listed))[None, :])
            parts.append(graph.add("Cast", [graph.add("Equal", [place, each])], to=_DOUBLE))
            continue
        graph.inputs[name] = (TensorProto.DOUBLE, 1)
        median, mean, deviation, most = (
            graph.constant(np.float64(one))
            for one in (encoder.median, encoder.mean, encoder.deviation, MOST_DEVIATIONS)
        )
        filled = graph.add("Where", [graph.add("IsNaN", [name]), median, name])
        scaled = graph.add("Div", [graph.add("Sub", [filled, mean]), deviation])
        low = graph.add("Neg", [most])
        parts.append(graph.add("Max", [graph.add("Min", [scaled, most]), low]))
    return graph.add("Concat", parts, axis=1)


_DOUBLE: Final = 11  # TensorProto.DOUBLE
_FLOAT: Final = 1


def _add_model(graph: _Graph, model: Model, features: str, classes: int) -> str:
    if isinstance(model, ConstantModel):
        return _add_constant(graph, features, model, classes)
    if isinstance(model, SklearnModel):
        kind = type(model.estimator).__name__
        if kind == "KernelRidge":
            found = _add_kernel_ridge(graph, features, model.estimator)
        elif kind == "LogisticRegression":
            found = _add_logistic(graph, features, model.estimator, classes)
        elif kind in _TREES:
            found = _add_trees(graph, features, model.estimator, classes)
        else:
            raise _without_form(kind)
        if model.offsets is not None:
            found = graph.add("Mul", [found, graph.constant(np.exp(model.offsets)[None, :])])
        total = graph.add("ReduceSum", [found, graph.constant(np.array([1]))], keepdims=1)
        return graph.add("Div", [found, total])
    tensors = getattr(getattr(model, "network", None), "tensors", None)
    if tensors is None:
        raise _without_form(model.form)
    arrays = {name: value.double().numpy() for name, value in tensors.items()}
    return _add_network(graph, features, arrays)


def _without_form(kind: str) -> InvalidParameterError:
    return InvalidParameterError(
        "a student must be logistic, forest, boosting, kernel-ridge or network to become ONNX, or "
        "of a table",
        kind,
    )


def _add_constant(graph: _Graph, features: str, model: ConstantModel, classes: int) -> str:
    nothing = graph.constant(np.zeros((1, 1)))
    one = graph.add("ReduceSum", [features, graph.constant(np.array([1]))], keepdims=1)
    always = graph.constant(np.eye(classes)[[model.label]])
    return graph.add("Add", [graph.add("Mul", [one, nothing]), always])


def _add_kernel_ridge(graph: _Graph, features: str, estimator: Any) -> str:
    known = np.asarray(estimator.X_fit_, dtype=np.float64)
    axes = graph.constant(np.array([1]))
    own = graph.add("ReduceSum", [graph.add("Mul", [features, features]), axes], keepdims=1)
    cross = graph.add("MatMul", [features, graph.constant(-2.0 * known.T)])
    there = graph.constant((known**2).sum(axis=1)[None, :])
    distance = graph.add("Add", [graph.add("Add", [own, there]), cross])
    scaled = graph.add("Mul", [distance, graph.constant(np.float64(-estimator.gamma))])
    weights = graph.constant(np.asarray(estimator.dual_coef_, dtype=np.float64))
    told = graph.add("MatMul", [graph.add("Exp", [scaled]), weights])
    return graph.add("Max", [told, graph.constant(np.float64(_LEAST_SHARE))])


def _add_network(graph: _Graph, features: str, arrays: Mapping[str, NDArray[np.float64]]) -> str:
    def layer(source: str, name: str) -> str:
        weights = graph.constant(arrays[f"{name}.weight"].T)
        told = graph.add("MatMul", [source, weights])
        return graph.add("Add", [told, graph.constant(arrays[f"{name}.bias"])])

    centered = graph.add("Sub", [features, graph.constant(arrays["mean"])])
    scaled = graph.add("Div", [centered, graph.constant(arrays["deviation"])])
    hidden = graph.add("Relu", [layer(scaled, "hidden")])
    return graph.add("Softmax", [layer(hidden, "output")], axis=1)


def _add_logistic(graph: _Graph, features: str, estimator: Any, classes: int) -> str:
    weights, bias = np.asarray(estimator.coef_.T), np.asarray(estimator.intercept_)
    if weights.shape[1] == 1:  # of two classes the second alone has weights
        weights, bias = np.hstack([0 * weights, weights]), np.array([0.0, bias[0]])
    told = graph.add("MatMul", [features, graph.constant(weights)])
    scores = graph.add("Add", [told, graph.constant(bias)])
    return _spread(graph, graph.add("Softmax", [scores], axis=1), estimator, classes)


def _add_trees(graph: _Graph, features: str, estimator: Any, classes: int) -> str:
    """Add trees, by skl2onnx; their numbers are float, not double."""
    from onnx import compose  # noqa: PLC0415 - an extra
    from skl2onnx import convert_sklearn  # noqa: PLC0415
    from skl2onnx.common.data_types import (  # noqa: PLC0415
        FloatTensorType,
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own use of NumPy
        converted = convert_sklearn(
            estimator,
            initial_types=[("given", FloatTensorType([None, int(estimator.n_features_in_)]))],
            options={"zipmap": False},
            target_opset=_OPSETS,
        )
    inner = compose.add_prefix(converted, "inner ").graph
    graph.add("Cast", [features], inner.input[0].name, to=_FLOAT)
    graph.nodes.extend(inner.node)
    graph.constants.extend(inner.initializer)
    wide = graph.add("Cast", [inner.output[1].name], to=_DOUBLE)
    return _spread(graph, wide, estimator, classes)


def _spread(graph: _Graph, known: str, estimator: Any, classes: int) -> str:
    """Put chances of the classes that a model learned at their places among all."""
    places = np.zeros((len(estimator.classes_), classes))
    places[np.arange(len(places)), np.asarray(estimator.classes_, dtype=np.int64)] = 1.0
    spread = graph.add("MatMul", [known, graph.constant(places)])
    return graph.add("Max", [spread, graph.constant(np.float64(_LEAST_CHANCE))])

"""A trained model of a table as arrays of numbers, for readers who do not trust its maker.

Its file can hold no code, and no compiled library follows its numbers: numpy alone predicts. No row
makes it fail, and every row takes the same steps, few for a processor: the arrays decide how many.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pate_fed.errors import UnreadableFileError

FORM: Final = "arrays"
DESCRIPTION_FILE: Final = "student.json"
TENSORS_FILE: Final = "model.safetensors"
SCHEMA_VERSION: Final = 1

Arrays = Mapping[str, NDArray[Any]]

_MOST_NUMBERS: Final = 2**18
_MOST_DEPTH: Final = 256
_MOST_STEPS: Final = 2**16
_MOST_BYTES: Final = 2**22
_MOST_DESCRIPTION: Final = 2**12
_NAME: Final = re.compile(r"[a-z-]{1,40}")
_LEAST: Final = 1e-75
"""Smaller numbers become 0: no long sum meets denormal numbers, at which a processor is slow."""

_LOWEST_EXPONENT: Final = -170.0
_LEAST_CHANCE: Final = 1e-9
_LEAST_SHARE: Final = 1e-3
_FLOATS: Final = np.dtype(np.float64)
_PLACES: Final = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayModel:
    """A model that is nothing but numbers.

    Attributes:
        arrays: By name; see the kind. `places` are the classes that it knows, ascending, and
            `offsets` are added to the logarithm of each class's chance.
    """

    kind: str
    student: str
    features: int
    classes: int
    arrays: Arrays
    _steps: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        numbers = sum(array.size for array in self.arrays.values())
        is_known = (
            self.kind in KINDS
            and self.features >= 1
            and self.classes >= 2
            and numbers <= _MOST_NUMBERS
            and _are_places(self.arrays, self.classes)
        )
        steps = KINDS[self.kind].steps(self.arrays, self.features) if is_known else 0
        if not 0 < steps <= _MOST_STEPS:
            raise UnreadableFileError("a model must have arrays of its kind that fit")
        object.__setattr__(self, "_steps", steps)

    def chances(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the chance of each class; float64, (n, classes). Rows sum to 1, or are NaN."""
        with np.errstate(all="ignore"):
            own = KINDS[self.kind].chances(_flushed(features), self.arrays, self._steps)
            found = np.full((len(features), self.classes), _LEAST_CHANCE)
            found[:, self.arrays["places"]] = np.maximum(own, _LEAST_CHANCE)
            found = found * np.exp(np.clip(self.arrays["offsets"], _LOWEST_EXPONENT, 170.0))
            return np.asarray(found / found.sum(axis=1, keepdims=True))

    def to_files(self) -> dict[str, bytes]:
        """Return its one form as files."""
        described = {
            "schema_version": SCHEMA_VERSION,
            "student": self.student,
            "form": FORM,
            "kind": self.kind,
            "features": self.features,
            "classes": self.classes,
        }
        text = json.dumps(described, indent=2, sort_keys=True) + "\n"
        ordered = {name: np.ascontiguousarray(self.arrays[name]) for name in sorted(self.arrays)}
        return {DESCRIPTION_FILE: text.encode(), TENSORS_FILE: save(ordered)}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Read what `to_files` wrote; anything else is an UnreadableFileError."""
        try:
            _require_two(files)
            facts = _facts(json.loads(files[DESCRIPTION_FILE]))
            arrays = {name: _flushed(array) for name, array in load(files[TENSORS_FILE]).items()}
            return cls(*facts, arrays)
        except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise UnreadableFileError(
                "a model must be arrays and their description", type(error).__name__
            ) from error


class _Kind(Protocol):
    def steps(self, arrays: Arrays, features: int) -> int: ...

    def chances(
        self, rows: NDArray[np.float64], arrays: Arrays, steps: int
    ) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class _Constant:
    """Always the same chances: `start` (classes,)."""

    @staticmethod
    def steps(arrays: Arrays, features: int) -> int:  # noqa: ARG004 - it reads none
        return int(_fit(arrays, {"start": (_known(arrays),)}))

    @staticmethod
    def chances(rows: NDArray[np.float64], arrays: Arrays, _: int) -> NDArray[np.float64]:
        return np.tile(arrays["start"], (len(rows), 1))


@dataclass(frozen=True, slots=True)
class _Linear:
    """Softmax of a linear function: `weights` (classes, features), `start` (classes,)."""

    @staticmethod
    def steps(arrays: Arrays, features: int) -> int:
        known = _known(arrays)
        return int(_fit(arrays, {"weights": (known, features), "start": (known,)}))

    @staticmethod
    def chances(rows: NDArray[np.float64], arrays: Arrays, _: int) -> NDArray[np.float64]:
        return _softmax(rows @ arrays["weights"].T + arrays["start"])


@dataclass(frozen=True, slots=True)
class _Network:
    """Standardized inputs, a hidden layer, softmax: as `networks.Network`, in float64."""

    @staticmethod
    def steps(arrays: Arrays, features: int) -> int:
        known, hidden = _known(arrays), len(arrays.get("hidden.bias", ()))
        wanted = {
            "mean": (features,),
            "deviation": (features,),
            "hidden.weight": (hidden, features),
            "hidden.bias": (hidden,),
            "output.weight": (known, hidden),
            "output.bias": (known,),
        }
        return int(_fit(arrays, wanted))

    @staticmethod
    def chances(rows: NDArray[np.float64], arrays: Arrays, _: int) -> NDArray[np.float64]:
        scaled = _flushed((rows - arrays["mean"]) / arrays["deviation"])
        hidden = scaled @ arrays["hidden.weight"].T + arrays["hidden.bias"]
        hidden = _flushed(np.maximum(hidden, 0.0))
        return _softmax(hidden @ arrays["output.weight"].T + arrays["output.bias"])


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Shares by a Gaussian kernel: `points` (m, features), `weights` (m, classes), `gamma` (1,)."""

    @staticmethod
    def steps(arrays: Arrays, features: int) -> int:
        known, points = _known(arrays), len(arrays.get("points", ()))
        wanted = {"points": (points, features), "weights": (points, known), "gamma": (1,)}
        return int(_fit(arrays, wanted) and bool(arrays["gamma"][0] > 0))

    @staticmethod
    def chances(rows: NDArray[np.float64], arrays: Arrays, _: int) -> NDArray[np.float64]:
        found = np.empty((len(rows), arrays["weights"].shape[1]))
        for row, said in zip(rows, found, strict=True):
            apart = _flushed(arrays["points"] - row)
            exponent = -arrays["gamma"][0] * (apart * apart).sum(axis=1)
            near = _flushed(np.exp(np.maximum(exponent, _LOWEST_EXPONENT)))
            said[:] = near @ arrays["weights"]
        return _shares(np.clip(found, _LEAST_SHARE, None))


@dataclass(frozen=True, slots=True)
class _Trees:
    """The sum of what trees say.

    Arrays: `left`, `right`, `feature` (nodes,), int64; `threshold` (nodes,), `value` (nodes,
    classes), `roots` (trees,), int64; `start` (classes,). A child comes after its one parent; a
    leaf is its own child. An input goes left where its feature is at most the threshold.
    """

    in_float32: bool
    """Whether inputs are rounded to float32 first, and the sum is one of shares."""

    @staticmethod
    def steps(arrays: Arrays, features: int) -> int:
        known, nodes = _known(arrays), len(arrays.get("threshold", ()))
        trees = len(arrays.get("roots", ()))
        places = {"left": (nodes,), "right": (nodes,), "feature": (nodes,), "roots": (trees,)}
        floats = {"threshold": (nodes,), "value": (nodes, known), "start": (known,)}
        is_fit = _fit(arrays, floats, places) and all(
            bool(((array >= 0) & (array < most)).all())
            for array, most in (
                (arrays["left"], nodes),
                (arrays["right"], nodes),
                (arrays["roots"], nodes),
                (arrays["feature"], features),
            )
        )
        return trees * _depth(arrays["left"], arrays["right"], arrays["roots"]) if is_fit else 0

    def chances(self, rows: NDArray[np.float64], arrays: Arrays, steps: int) -> NDArray[np.float64]:
        if self.in_float32:
            rows = rows.astype(np.float32).astype(np.float64)
        depth = steps // len(arrays["roots"])
        found = np.empty((len(rows), len(arrays["start"])))
        for row, said in zip(rows, found, strict=True):
            at = arrays["roots"]
            for _ in range(depth):  # as many steps for every row
                goes_left = row[arrays["feature"][at]] <= arrays["threshold"][at]
                at = np.where(goes_left, arrays["left"][at], arrays["right"][at])
            said[:] = arrays["value"][at].sum(axis=0) + arrays["start"]
        return _shares(found) if self.in_float32 else _softmax(found)


KINDS: Final[Mapping[str, _Kind]] = {
    "boosting": _Trees(in_float32=False),
    "constant": _Constant(),
    "forest": _Trees(in_float32=True),
    "kernel": _Kernel(),
    "linear": _Linear(),
    "network": _Network(),
}
"""Kinds of models, with their checks: `steps` is 0 for arrays that do not fit."""


def _require_two(files: Mapping[str, bytes]) -> None:
    are_small = len(files[DESCRIPTION_FILE]) <= _MOST_DESCRIPTION and all(
        len(content) <= _MOST_BYTES for content in files.values()
    )
    if set(files) != {DESCRIPTION_FILE, TENSORS_FILE} or not are_small:
        raise ValueError


def _facts(described: Any) -> tuple[str, str, int, int]:
    kind, student = described["kind"], described["student"]
    features, classes = described["features"], described["classes"]
    form = described["form"], described["schema_version"]
    types = tuple(map(type, (kind, student, features, classes)))
    if form != (FORM, SCHEMA_VERSION) or types != (str, str, int, int):
        raise TypeError
    if not _NAME.fullmatch(student):
        raise ValueError
    return kind, student, features, classes


def _known(arrays: Arrays) -> int:
    return len(arrays["places"])


def _are_places(arrays: Arrays, classes: int) -> bool:
    places, offsets = arrays.get("places"), arrays.get("offsets")
    return (
        places is not None
        and offsets is not None
        and places.dtype == _PLACES
        and places.ndim == 1
        and len(places) >= 1
        and bool((np.diff(places) > 0).all())
        and 0 <= places[0] <= places[-1] < classes
        and offsets.dtype == _FLOATS
        and offsets.shape == (classes,)
    )


def _fit(
    arrays: Arrays,
    floats: Mapping[str, tuple[int, ...]],
    places: Mapping[str, tuple[int, ...]] | None = None,
) -> bool:
    """Tell whether the arrays are these, of these shapes: floats, and whole numbers."""
    wanted: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    wanted = {name: (_FLOATS, shape) for name, shape in floats.items()}
    wanted |= {name: (_PLACES, shape) for name, shape in (places or {}).items()}
    return set(arrays) == {*wanted, "places", "offsets"} and all(
        (arrays[name].dtype, arrays[name].shape) == one and arrays[name].size > 0
        for name, one in wanted.items()
    )


def _depth(left: NDArray[np.int64], right: NDArray[np.int64], roots: NDArray[np.int64]) -> int:
    """Return the longest way through the trees; more than all steps where they are none."""
    nodes = np.arange(len(left))
    is_leaf = (left == nodes) & (right == nodes)
    inner = nodes[~is_leaf]
    below = np.concatenate([left[inner], right[inner], roots])
    is_later = bool(((left > nodes) & (right > nodes))[inner].all())
    if not is_later or len(np.unique(below)) < len(below):
        return _MOST_STEPS + 1
    at, depth = roots, 1
    while len(at := at[~is_leaf[at]]):
        if depth == _MOST_DEPTH:
            return _MOST_STEPS + 1
        at = np.concatenate([left[at], right[at]])
        depth += 1
    return depth


def _flushed(numbers: NDArray[Any]) -> NDArray[Any]:
    return np.where(np.abs(numbers) < _LEAST, 0.0, numbers) if numbers.dtype == _FLOATS else numbers


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    apart = np.maximum(scores - scores.max(axis=1, keepdims=True), _LOWEST_EXPONENT)
    return _shares(np.exp(apart))


def _shares(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(parts / parts.sum(axis=1, keepdims=True))

"""scikit-learn's models as files: by skops, which runs no code of a file's maker, and no pickle."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from pate_fed.errors import UnreadableFileError

SKOPS_FILE: Final = "model.skops"

TRUSTED_TYPES: Final = frozenset(
    {
        "sklearn._loss._loss.CyHalfBinomialLoss",
        "sklearn._loss._loss.CyHalfMultinomialLoss",
        "sklearn._loss.link.Interval",
        "sklearn._loss.link.LogitLink",
        "sklearn._loss.link.MultinomialLogit",
        "sklearn._loss.loss.HalfBinomialLoss",
        "sklearn._loss.loss.HalfMultinomialLoss",
        "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.tree._tree.Tree",
    }
)
"""Types that any file may hold beyond the trusted ones of skops: plain arrays wrapped by Cython. A
file that asks for more is refused, for loading it would run code of its choice.
"""

_LOADERS: Final = frozenset(
    {
        "DictNode",
        "JsonNode",
        "ListNode",
        "LossNode",
        "NdArrayNode",
        "ObjectNode",
        "RandomGeneratorNode",
        "RandomStateNode",
        "TreeNode",
        "TupleNode",
        "TypeNode",
    }
)
"""Ways in which a file's parts may be built, by skops's names. Others build functions and methods,
and a part of another way could bear the name of a trusted type.
"""


def stored(model: object) -> bytes:
    """Return a model as a file."""
    content: bytes = _skops().dumps(model)
    return content


def restored(content: bytes, *, trusted: Callable[[str], bool] | None = None) -> Any:
    """Return the model of a file.

    `trusted` says which further types a file of a known maker may hold.
    """
    skops = _skops()
    try:
        asked = skops.get_untrusted_types(data=content)
        foreign = {one for one in asked if one not in TRUSTED_TYPES}
        foreign = {one for one in foreign if trusted is None or not trusted(one)}
        if trusted is None:
            foreign |= _loaders_in(content) - _LOADERS
        model = None if foreign else skops.loads(content, trusted=list(asked))
    except (
        OSError,
        BadZipFile,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise UnreadableFileError(
            "a model's file must be a readable skops file", type(error).__name__
        ) from error
    if foreign:
        raise UnreadableFileError(
            "a model's file must hold trusted types only", f"{len(foreign)} others"
        )
    return model


def _loaders_in(content: bytes) -> set[str]:
    with ZipFile(io.BytesIO(content)) as file:
        waiting: list[Any] = [json.loads(file.read("schema.json"))]
    found = set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if "__loader__" in part:
                found.add(str(part["__loader__"]))
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return found


def _skops() -> Any:
    """Load skops, which takes a second, without PyTorch, which takes more.

    skops looks through all packages of scikit-learn for types to trust. One is for PyTorch's arrays
    and would load it; the search passes over packages that cannot be loaded.
    """
    for_torch = "sklearn.externals.array_api_compat.torch"
    is_hidden = for_torch not in sys.modules
    if is_hidden:
        sys.modules[for_torch] = None  # type: ignore[assignment]  # Python's way to forbid an import
    try:
        import skops.io  # noqa: PLC0415 - see above
    finally:
        if is_hidden:
            del sys.modules[for_torch]
    return skops.io

"""scikit-learn's models as files: by skops, which runs no code of a file's maker, and no pickle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from zipfile import BadZipFile

from pate_fed.errors import UnreadableFileError

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


def stored(model: object) -> bytes:
    """Return a model as a file."""
    import skops.io  # noqa: PLC0415 - brings PyTorch along, which takes seconds

    content: bytes = skops.io.dumps(model)
    return content


def restored(content: bytes, *, trusted: Callable[[str], bool] = lambda _: False) -> Any:
    """Return the model of a file.

    Args:
        content: The file.
        trusted: Says which further types it may hold, where its maker is known.

    Raises:
        UnreadableFileError: it is damaged, or holds another type.
    """
    import skops.io  # noqa: PLC0415 - brings PyTorch along, which takes seconds

    try:
        asked = skops.io.get_untrusted_types(data=content)
        foreign = {one for one in asked if one not in TRUSTED_TYPES and not trusted(one)}
        model = None if foreign else skops.io.loads(content, trusted=list(asked))
    except (OSError, BadZipFile, LookupError, ValueError, TypeError, AttributeError) as error:
        raise UnreadableFileError(
            "a model's file must be a readable skops file", type(error).__name__
        ) from error
    if foreign:
        raise UnreadableFileError(
            "a model's file must hold trusted types only", f"{len(foreign)} others"
        )
    return model

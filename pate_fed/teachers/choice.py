"""Choose teachers by name."""

from __future__ import annotations

from pate_fed.data.dataset import DatasetKind
from pate_fed.errors import InvalidParameterError
from pate_fed.teachers.sklearn_ensemble import (
    ModelFactory,
    SklearnEnsemble,
    forest,
    logistic,
    nearest,
    similar_images,
    support_vectors,
)
from pate_fed.teachers.teacher import TeacherEnsemble

TEACHER_NAMES = ("auto", "nearest", "svm", "forest", "logistic", "network")
"""Every name that `make_ensemble` knows."""


_FACTORIES: dict[str, ModelFactory] = {
    "nearest": nearest,
    "svm": support_vectors,
    "forest": forest,
    "logistic": logistic,
}


def make_ensemble(name: str, kind: DatasetKind) -> TeacherEnsemble:
    """Make the untrained teachers of one party.

    Args:
        name: One of `TEACHER_NAMES`; "auto" is "nearest" (few records) or "svm" (more) for
            images, and "logistic" for tables.
        kind: What the records are.

    Raises:
        InvalidParameterError: an unknown name.
    """
    if name == "auto":
        return SklearnEnsemble(similar_images if kind == "image" else logistic)
    if name == "network":
        # torch takes seconds to load, and most runs do without.
        from pate_fed.teachers.torch_ensemble import TorchEnsemble  # noqa: PLC0415

        return TorchEnsemble()
    if name not in _FACTORIES:
        raise InvalidParameterError(
            f"teachers must be one of {', '.join(TEACHER_NAMES)}", repr(name)
        )
    return SklearnEnsemble(_FACTORIES[name])

"""Choose teachers by name."""

from __future__ import annotations

from pate_fed.data.dataset import DatasetKind
from pate_fed.errors import InvalidParameterError
from pate_fed.teachers.teacher import TeacherEnsemble

TEACHER_NAMES = ("auto", "nearest", "svm", "forest", "logistic", "network")
"""Every name that `make_ensemble` knows."""


def make_ensemble(name: str, kind: DatasetKind) -> TeacherEnsemble:
    """Make the untrained teachers of one party.

    Args:
        name: One of `TEACHER_NAMES`; "auto" is "nearest" (few records) or "svm" (more) for
            images, and "logistic" for tables.
        kind: Kind of the records.

    Raises:
        InvalidParameterError: an unknown name.
    """
    # Learning libraries take long to load: a second for scikit-learn, several for torch, which most
    # runs do without. Most callers need only the names, and train no teacher.
    if name == "network":
        from pate_fed.teachers.torch_ensemble import TorchEnsemble  # noqa: PLC0415

        return TorchEnsemble()
    from pate_fed.teachers import sklearn_ensemble  # noqa: PLC0415

    factories = {
        "auto": sklearn_ensemble.similar_images if kind == "image" else sklearn_ensemble.logistic,
        "nearest": sklearn_ensemble.nearest,
        "svm": sklearn_ensemble.support_vectors,
        "forest": sklearn_ensemble.forest,
        "logistic": sklearn_ensemble.logistic,
    }
    if name not in factories:
        raise InvalidParameterError(
            f"teachers must be one of {', '.join(TEACHER_NAMES)}", repr(name)
        )
    return sklearn_ensemble.SklearnEnsemble(factories[name])

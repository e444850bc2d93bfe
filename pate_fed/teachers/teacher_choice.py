"""Choose teachers by name, or take the hospital's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pate_fed.errors import InvalidParameterError
from pate_fed.inputs import DatasetKind
from pate_fed.rule import RECORDS_VOTE
from pate_fed.teachers.direction_ensemble import DirectionEnsemble
from pate_fed.teachers.neighbors_ensemble import NeighborsEnsemble
from pate_fed.teachers.teacher import Balance, TeacherEnsemble

_FACTORIES: Final = {
    "nearest": "nearest",
    "svm": "support_vectors",
    "forest": "forest",
    "boosting": "boosting",
    "logistic": "logistic",
}
"""Functions of `sklearn_ensemble`."""

CONVOLUTION: Final = "convolution"
"""Teachers of images alone, which a graphics card can train."""

TEACHER_NAMES: Final = ("auto", *_FACTORIES, "direction", "network", CONVOLUTION)
"""Every name that `make_ensemble` knows; MODULE:FUNCTION names a hospital's own."""

BALANCES: Final = ("auto", "natural", "equal")
"""Every way to share votes out that a person may ask for."""


SMALL_TEACHER: Final = 25
"""Records of a teacher up to which a direction ranks patients better than a regression.

Not in a hospital that has one teacher alone: where hospitals are so small votes are few, and with
much noise a regression ranks better (docs/explanation/students.md).
"""


def make_ensemble(
    name: str,
    kind: DatasetKind,
    *,
    balance: str = "auto",
    device: str = "cpu",
    records: float | None = None,
    teachers: int = 1,
    folders: Sequence[Path] = (),
) -> TeacherEnsemble:
    """Make the untrained teachers of one party.

    Args:
        name: One of `TEACHER_NAMES`; "auto" is "nearest" (few records) or "svm" (more) for
            images; for tables "direction" where votes are shared out and a hospital has several
            teachers of a few records each, else "logistic", or "boosting" for a teacher with many
            records and no rare class (`own_shares`). Or MODULE:FUNCTION: a function without
            arguments that returns an untrained estimator with `fit` and `predict`, as scikit-learn
            has them. It gets features, or the images themselves (bytes, 4 axes) if it says
            `takes_images = True`.
            Or `RECORDS_VOTE`: no teachers, the records themselves.
        balance: How votes are shared out over the classes: one of `BALANCES`; "auto" is "natural"
            for images. For tables, where one class is often rare, it is equal, or as often as a
            teacher saw each class if it has many records and no rare class.
        records: Patients (or records) of each, about, where that is public.
        teachers: Their number.
        folders: Where the file of a `pinned` teacher may lie.
        device: torch's name of the device for "convolution"; the others need none.
    """
    if device != "cpu" and name != CONVOLUTION:
        raise InvalidParameterError(
            "--device must be cpu but for --teacher convolution, and for students that are "
            "networks for images",
            device or "''",
        )
    shared: Balance = "natural"
    if shares_out(balance, kind):
        shared = "equal" if balance == "equal" else "as seen"
    are_small = teachers > 1 and records is not None and records <= SMALL_TEACHER
    if name == "auto" and kind == "table" and shared != "natural" and are_small:
        name = "direction"
    if name == RECORDS_VOTE:
        return NeighborsEnsemble()
    if name == "direction":
        return DirectionEnsemble(shared)
    # Learning libraries take long to load: a second for scikit-learn, several for torch, which most
    # runs do without. Most callers need only the names, and train no teacher.
    if name == "network":
        from pate_fed.teachers.torch_ensemble import TorchEnsemble  # noqa: PLC0415

        return TorchEnsemble(shared)
    if name == CONVOLUTION:
        if kind == "table":
            raise InvalidParameterError("--teacher convolution must learn from images")
        from pate_fed.teachers.convolution_ensemble import ConvolutionEnsemble  # noqa: PLC0415

        return ConvolutionEnsemble(shared, device=device)
    from pate_fed.teachers import sklearn_ensemble  # noqa: PLC0415

    if ":" in name:
        from pate_fed.teachers.own_teacher import own_teacher  # noqa: PLC0415 - seldom needed

        own, package = own_teacher(name, folders)
        return sklearn_ensemble.SklearnEnsemble(
            lambda _size, _seed: own(),
            balance=shared,
            trusted=lambda kept: kept.split(".")[0] == package,
        )
    best = "similar_images" if kind == "image" else "of_table"
    made_by = best if name == "auto" else _FACTORIES.get(name)
    if made_by is None:
        raise InvalidParameterError(
            f"teachers must be one of {', '.join(TEACHER_NAMES)}, or MODULE:FUNCTION", repr(name)
        )
    make_model = getattr(sklearn_ensemble, made_by)
    return sklearn_ensemble.SklearnEnsemble(make_model, balance=shared)


def shares_out(balance: str, kind: DatasetKind) -> bool:
    """Tell whether teachers share their votes out over the classes, not as they predict."""
    if balance not in BALANCES:
        raise InvalidParameterError(f"class balance must be one of {', '.join(BALANCES)}", balance)
    return balance == "equal" or (balance == "auto" and kind == "table")

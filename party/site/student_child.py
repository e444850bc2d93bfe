"""A student's predictions, made in a process of their own: its files come from the coordinator.

They are arrays of numbers (`pate_fed.array_models`), so that every patient takes the same steps. A
child makes them, with bounded memory, for every public place, free or not, each row alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from party.errors import TaskError
from party.site.limited_child import run_limited
from pate_fed.array_models import ArrayModel
from pate_fed.regular_files import read_regular

_MEMORY: Final = 2**32
_NUMBER: Final = np.dtype("<f8")


def predictions(
    files: Mapping[str, bytes],
    features: NDArray[np.float64],
    *,
    classes: int,
    places: int | None = None,
) -> NDArray[np.float64]:
    """Return a student's chances for inputs: float64 of shape (inputs, features).

    As many rows are predicted as `places`, a public number and the most inputs; None for as many as
    there are, which the time may then tell. Returns float64 of shape (inputs, classes); no numbers
    where the student says none. Whether it raises `TaskError` depends on no input.
    """
    from pate_fed.evaluation import PLACE_S, START_S  # noqa: PLC0415 - the child starts without it

    inputs, width = features.shape
    rows = np.zeros((inputs if places is None else places, width), dtype=_NUMBER)
    rows[:inputs] = features
    seconds = START_S + PLACE_S * len(rows)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        said = run_limited(
            __name__,
            *(folder, str(width), str(classes), *files),
            given=memoryview(rows.data).cast("B") if rows.size else b"",
            must="a student must be arrays of the task, and predict",
            seconds=seconds,
            most_bytes=_MEMORY,
        )
    if len(said) != len(rows) * classes * _NUMBER.itemsize:
        raise TaskError("a student must say how likely each class is")
    return np.frombuffer(said, dtype=_NUMBER).reshape(-1, classes)[:inputs]


def main(folder: str, width: str, classes: str, *names: str) -> None:
    """Predict each row of the standard input, as the child."""
    model = ArrayModel.from_files({name: read_regular(Path(folder) / name) for name in names})
    if (model.features, model.classes) != (int(width), int(classes)):
        sys.exit("the student is another task's")
    size = int(width) * _NUMBER.itemsize
    while row := sys.stdin.buffer.read(size):
        chances = model.chances(np.frombuffer(row, dtype=_NUMBER).reshape(1, -1))
        sys.stdout.buffer.write(chances.astype(_NUMBER).tobytes())

"""A student's predictions, made in processes of their own: its files come from the coordinator.

They can hold no code, but numbers of the coordinator's choice, which compiled libraries trust: a
tree without an end, or an index far outside. So a child reads them, with bounded memory, and each
patient is predicted alone, in a copy of that child. Then a student that fails on one patient, or
would look at others beside him, changes nothing for these others: one patient moves one count.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pate_fed.students import Student

LOAD_S: Final = 300.0
"""Longest time until a student is read: whether it suffices depends on no patient."""

PATIENT_S: Final = 5.0
"""Longest time for one patient."""

_MEMORY: Final = 2**33
_NUMBER: Final = np.dtype("<f8")


def predictions(
    files: Mapping[str, bytes],
    features: NDArray[np.float64],
    *,
    classes: int,
    load_s: float = LOAD_S,
    patient_s: float = PATIENT_S,
) -> NDArray[np.float64]:
    """Return a student's chances for some inputs; NaN where it gives none in time.

    Args:
        files: The student's, by name.
        features: Float64, shape (inputs, features).
        classes: Number of classes.
        load_s: Longest time until it is read.
        patient_s: Longest time for one input.

    Returns:
        Float64, shape (inputs, classes).
    """
    found = np.full((len(features), classes), np.nan)
    sizes = [str(one) for one in (*features.shape, classes, patient_s)]
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        command = [sys.executable, "-I", "-c", _CHILD, *sys.path, "--", folder, *sizes]
        with suppress(subprocess.SubprocessError):
            ended = subprocess.run(  # noqa: S603 - our own interpreter and code
                command,
                input=features.astype(_NUMBER).tobytes(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                # Long enough for every patient's time: nobody's delay takes another's.
                timeout=load_s + 2 * patient_s * len(features),
                check=True,
            )
            if len(ended.stdout) == found.nbytes:
                found = np.frombuffer(ended.stdout, dtype=_NUMBER).reshape(found.shape).copy()
    return found


_CHILD: Final = """
import sys
end = sys.argv.index("--")
sys.path[:] = sys.argv[1:end]
from party.site.student_child import main
main(*sys.argv[end + 1:])
"""


def main(folder: str, *sizes: str) -> None:
    """Predict, as the child."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from pate_fed.students import read_student  # noqa: PLC0415 - after the limits

    inputs, width, classes = map(int, sizes[:3])
    features = np.frombuffer(sys.stdin.buffer.read(), dtype=_NUMBER).reshape(inputs, width)
    output, sys.stdout = sys.stdout.buffer, sys.stderr
    student = read_student(Path(folder))
    with suppress(Exception):
        _chances(student, np.zeros((1, width)), classes)  # loads now what is loaded late
    for row in features:
        output.write(_alone(student, row[np.newaxis], classes, seconds=float(sizes[3])))


def _alone(student: Student, row: NDArray[np.float64], classes: int, *, seconds: float) -> bytes:
    """Predict one patient in a copy of this process, which may end in any way."""
    nothing = np.full(classes, np.nan, dtype=_NUMBER).tobytes()
    source, target = os.pipe()
    copy = os.fork()
    if not copy:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)  # ends it, wherever it is
            os.write(target, _chances(student, row, classes))
        finally:
            os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as pipe:
        found = pipe.read()
    os.waitpid(copy, 0)
    return found if len(found) == len(nothing) else nothing


def _chances(student: Student, row: NDArray[np.float64], classes: int) -> bytes:
    from pate_fed.inputs import Inputs  # noqa: PLC0415 - after the limits

    chances = np.asarray(student.chances(Inputs(row)), dtype=_NUMBER)
    if chances.shape != (1, classes):
        raise ValueError
    return chances.tobytes()

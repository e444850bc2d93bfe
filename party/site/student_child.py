"""A student's predictions, made in processes of their own: its files come from the coordinator.

They can hold no code, but numbers of the coordinator's choice. So a child reads them, with bounded
memory, before it sees any patient. Each patient is then predicted alone: a copy of that child gets
his row and no other, and can open no file and start no process. A student that fails, or takes
long, on one patient changes nothing for the others. At set times, nobody can tell from the clock
that it did.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.planning.evaluating import PLACE_S

if TYPE_CHECKING:
    from pate_fed.students import Student

LOAD_S: Final = 300.0
"""Longest time until a student is read, and has predicted a row of zeros."""

_MEMORY: Final = 2**33
_NUMBER: Final = np.dtype("<f8")
_LEAST_S: Final = 1e-3
_MOST_FILES: Final = 2**16
_READY, _NEXT = b"r", b"n"


def predictions(
    files: Mapping[str, bytes],
    features: NDArray[np.float64],
    *,
    classes: int,
    load_s: float = LOAD_S,
    patient_s: float = PLACE_S,
) -> NDArray[np.float64]:
    """Return a student's chances for some inputs; NaN where it gives none in time.

    It ends as soon as it can: only for people who may know how long a patient takes.

    Args:
        files: The student's, by name.
        features: Float64, shape (inputs, features).
        classes: Number of classes.
        load_s: Longest time until it is ready. Whether that suffices depends on no input.
        patient_s: Longest time for one input.

    Returns:
        Float64, shape (inputs, classes).
    """
    found = np.full((len(features), classes), np.nan)
    with _started(files, features.shape[1], classes, load_s, patient_s) as child:
        for place, row in enumerate(features if child else ()):
            found[place] = _asked(child, row, classes, seconds=patient_s)
    return found


def predictions_at_set_times(
    files: Mapping[str, bytes],
    features: NDArray[np.float64],
    *,
    classes: int,
    places: int,
    load_s: float = LOAD_S,
    patient_s: float = PLACE_S,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> NDArray[np.float64]:
    """Return the same as `predictions`, and take as long whatever the inputs are.

    Every place has its time, from a set moment to the next one. A free place gets zeros.

    Args:
        files: The student's, by name.
        features: Float64, shape (inputs, features).
        classes: Number of classes.
        places: Most inputs: a public number.
        load_s: As above.
        patient_s: Time of each place.
        clock: Seconds that never go back.
        wait: Waits some seconds; it returns true to give up.

    Returns:
        Float64, shape (inputs, classes).
    """
    width = features.shape[1]
    found = np.full((len(features), classes), np.nan)
    with _started(files, width, classes, load_s, patient_s) as child:
        begun = clock()
        for place in range(places if child else 0):
            ends = begun + (place + 1) * patient_s
            is_free = place >= len(features)
            row = np.zeros(width) if is_free else features[place]
            chances = _asked(child, row, classes, seconds=ends - clock())
            if not is_free:
                found[place] = chances
            if wait(max(0.0, ends - clock())):
                break
    return found


@contextmanager
def _started(
    files: Mapping[str, bytes], width: int, classes: int, load_s: float, patient_s: float
) -> Iterator[socket.socket | None]:
    """Start a child that reads a student; None where it is not ready in time."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        numbers = [str(one) for one in (theirs.fileno(), width, classes, load_s, patient_s)]
        command = [sys.executable, "-I", "-c", _CHILD, *sys.path, "--", folder, *numbers]
        with subprocess.Popen(  # noqa: S603 - our own interpreter and code
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            pass_fds=(theirs.fileno(),),
        ) as child:
            theirs.close()
            try:
                ours.settimeout(load_s)
                ready = b""
                with suppress(OSError):
                    ready = ours.recv(1)
                yield ours if ready == _READY else None
            finally:
                child.kill()


def _asked(
    child: socket.socket | None, row: NDArray[np.float64], classes: int, *, seconds: float
) -> NDArray[np.float64]:
    """Give a copy of the child one row, and wait some seconds for its answer; NaN without one."""
    assert child is not None
    ends = time.monotonic() + seconds
    content = b""
    ours, theirs = socket.socketpair()
    with ours, suppress(OSError):
        with theirs:
            child.settimeout(max(_LEAST_S, seconds))
            socket.send_fds(child, [_NEXT], [theirs.fileno()])
        ours.settimeout(max(_LEAST_S, ends - time.monotonic()))
        ours.sendall(row.astype(_NUMBER).tobytes())
        ours.settimeout(max(_LEAST_S, ends - time.monotonic()))
        content = ours.recv(2**16)  # as one write, or not at all
    if len(content) != classes * _NUMBER.itemsize:
        return np.full(classes, np.nan)
    return np.frombuffer(content, dtype=_NUMBER)


_CHILD: Final = """
import sys
end = sys.argv.index("--")
sys.path[:] = sys.argv[1:end]
from party.site.student_child import main
main(*sys.argv[end + 1:])
"""


def main(folder: str, *numbers: str) -> None:
    """Read a student, then make a copy of this process for each patient, as the child."""
    connection, width, classes = map(int, numbers[:3])
    load_s, patient_s = map(float, numbers[3:])
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, load_s)  # ends it, wherever it is
    from pate_fed.students import read_student  # noqa: PLC0415 - after the limits

    student = read_student(Path(folder))
    with suppress(Exception):
        _chances(student, np.zeros((1, width)), classes)  # loads now what is loaded late
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # copies end by themselves
    with socket.socket(fileno=connection) as parent:
        parent.sendall(_READY)
        while True:
            _, given, *_ = socket.recv_fds(parent, 1, 1)
            if not given:
                return
            if not os.fork():
                try:
                    _predict_one(student, given[0], width, classes, seconds=patient_s)
                finally:
                    os._exit(0)
            os.close(given[0])


def _predict_one(
    student: Student, connection: int, width: int, classes: int, *, seconds: float
) -> None:
    """Predict one patient, as a copy that has no other way out than its answer."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    os.dup2(connection, 0)
    os.closerange(1, _MOST_FILES)
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    size, content = width * _NUMBER.itemsize, b""
    while len(content) < size:
        content += os.read(0, size - len(content)) or sys.exit()
    os.write(0, _chances(student, np.frombuffer(content, dtype=_NUMBER).reshape(1, width), classes))


def _chances(student: Student, row: NDArray[np.float64], classes: int) -> bytes:
    from pate_fed.inputs import Inputs  # noqa: PLC0415 - after the limits

    chances = np.asarray(student.chances(Inputs(row)), dtype=_NUMBER)
    if chances.shape != (1, classes):
        raise ValueError
    return chances.tobytes()

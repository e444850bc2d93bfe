"""Patients who teach no teacher: an evaluation counts on whom of them a student is right.

Whether a patient is held out follows from his id alone. So it is the same for every task, after
every erasure and new training, and no record of any patient can change it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records

_LABEL: Final = b"pate-fed held out\n"


def place_of(patient: str) -> float:
    """Return a patient's place between 0 and 1."""
    digest = hashlib.sha256(_LABEL + patient.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def is_held_out(patient: str, share: float) -> bool:
    """Tell whether a patient is among about this share of all."""
    return place_of(patient) < share


def taught(records: Records, share: float) -> Records:
    """Return the records that teachers learn from."""
    return records.select(np.flatnonzero(~_held_out(records, share)))


def held_out(records: Records, share: float, *, most: int | None = None) -> Records:
    """Return the first record of each patient who is held out; `most` with the lowest places."""
    rows: dict[str, int] = {}
    for row in np.flatnonzero(_held_out(records, share)).tolist():
        rows.setdefault(records.unit_ids[row], row)
    chosen = sorted(rows, key=lambda patient: (place_of(patient), patient))[:most]
    return records.select([rows[patient] for patient in chosen])


def _held_out(records: Records, share: float) -> NDArray[np.bool_]:
    known = {patient: is_held_out(patient, share) for patient in set(records.unit_ids)}
    return np.array([known[patient] for patient in records.unit_ids], dtype=np.bool_)

"""Which teacher of a hospital learns from which records.

The privacy guarantee counts one vote per privacy unit. It holds only while all records of a unit
are with one teacher. So records are dealt by unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records
from pate_fed.errors import DisjointnessError, TooFewRecordsError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shard:
    """The records of one teacher.

    Attributes:
        rows: Positions in the private records, ascending; int64, read-only.
    """

    party: int
    teacher: int
    rows: NDArray[np.int64]

    def __post_init__(self) -> None:
        rows = np.array(self.rows, dtype=np.int64)
        rows.flags.writeable = False
        object.__setattr__(self, "rows", rows)

    def __repr__(self) -> str:
        return f"Shard({self.name}, records={len(self.rows)})"

    @property
    def name(self) -> str:
        """Name for people: counts from 1."""
        return f"teacher {self.teacher + 1} of party {self.party + 1}"


def require_enough(units: int, teachers: int) -> None:
    """Refuse fewer units than teachers, as a TooFewRecordsError."""
    if units < teachers:
        raise TooFewRecordsError(
            f"{teachers} teachers need at least as many patients or records", units
        )


def rows_by_unit(unit_ids: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of each unit's records, in the order of the first of each."""
    rows_of: dict[str, list[int]] = {}
    for row, unit in enumerate(unit_ids):
        rows_of.setdefault(unit, []).append(row)
    return rows_of


def deal_evenly(units: int, hands: int, *, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the hand that each unit is dealt to; shape (units,)."""
    dealt = np.arange(units, dtype=np.int64) % hands
    return rng.permutation(dealt)


def deal_to_teachers(
    units: Sequence[Sequence[int]], *, teachers: int, rng: np.random.Generator, party: int = 0
) -> list[Shard]:
    """Deal a hospital's records to its teachers, whole privacy units at a time."""
    require_enough(len(units), teachers)
    teacher_of = deal_evenly(len(units), teachers, rng=rng)
    rows_of: list[list[int]] = [[] for _ in range(teachers)]
    for teacher, rows in zip(teacher_of, units, strict=True):
        rows_of[teacher].extend(rows)
    return [
        Shard(party, teacher, np.array(sorted(rows), dtype=np.int64))
        for teacher, rows in enumerate(rows_of)
    ]


def require_disjoint(records: Records, shards: Iterable[Shard]) -> None:
    """Check that every record is with one teacher, and a unit's records are with the same one.

    Raises:
        DisjointnessError: a unit or record is with two teachers, or a record with none.
    """
    holder_of_row: dict[int, Shard] = {}
    holder_of_unit: dict[str, Shard] = {}
    for shard in shards:
        for row in shard.rows.tolist():
            if not 0 <= row < len(records):
                raise DisjointnessError(f"{shard.name} must hold private records only")
            unit = records.unit_ids[row]
            other = holder_of_unit.setdefault(unit, shard)
            if other is not shard:
                raise DisjointnessError(
                    "a patient's records must all be with one teacher",
                    f"a patient with {other.name} and with {shard.name}",
                )
            if row in holder_of_row:
                raise DisjointnessError(f"{shard.name} must hold a record once")
            holder_of_row[row] = shard
    lost = len(records) - len(holder_of_row)
    if lost:
        raise DisjointnessError("every private record must be with a teacher", f"{lost} with none")

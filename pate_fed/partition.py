"""Give private records to simulated hospitals, and prove by keyed hashes that none reaches two."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pate_fed.data.dataset import Records
from pate_fed.errors import (
    DisjointnessError,
    InvalidParameterError,
    MissingColumnError,
    TooFewRecordsError,
)
from pate_fed.record.manifest import PartitionProof, TeacherProof
from pate_fed.shards import (
    Shard,
    deal_evenly,
    deal_to_teachers,
    require_disjoint,
    require_enough,
    rows_by_unit,
)

PartitionScheme = Literal["iid", "dirichlet", "column"]

SCHEMES: tuple[PartitionScheme, ...] = ("iid", "dirichlet", "column")
"""How units find their party: at random, with label skew, or by the hospital in the data."""

MIN_KEY_BYTES = 16
"""Shortest manifest key, in bytes: ids are easy to guess, the key must not be."""


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Who holds which private records.

    Attributes:
        shards: One per teacher, by party and then teacher.
    """

    parties: int
    teachers_per_party: tuple[int, ...]
    shards: tuple[Shard, ...]
    party_names: tuple[str, ...]

    def __post_init__(self) -> None:
        expected = [
            (party, teacher)
            for party, teachers in enumerate(self.teachers_per_party)
            for teacher in range(teachers)
        ]
        if {len(self.teachers_per_party), len(self.party_names)} != {self.parties}:
            raise InvalidParameterError("a partition must describe every party once")
        if [(shard.party, shard.teacher) for shard in self.shards] != expected:
            raise InvalidParameterError("a partition must have one shard per teacher")

    @property
    def teachers(self) -> int:
        """Number of teachers in all."""
        return len(self.shards)

    def shards_of(self, party: int) -> tuple[Shard, ...]:
        """Return the shards of one party, one per teacher."""
        return tuple(shard for shard in self.shards if shard.party == party)


def partition_records(
    records: Records,
    *,
    parties: int | None,
    teachers: int,
    scheme: PartitionScheme,
    rng: np.random.Generator,
    concentration: float = 0.5,
) -> Partition:
    """Deal private records to teachers, whole privacy units at a time.

    Args:
        parties: Number of parties; None with scheme "column" takes all hospitals of the data.
        scheme: "iid" deals evenly by lot; "dirichlet" draws each class's shares over the parties
            from a Dirichlet distribution; "column" makes each hospital a party, a patient of
            several hospitals going to the one with most of his records (ties: the first name).
        concentration: Of the Dirichlet distribution; small is more skewed; above 0.

    Returns:
        Disjoint shards that together hold every record, none of them empty.
    """
    _check_numbers(parties, teachers, scheme, concentration)
    rows_of = rows_by_unit(records.unit_ids)
    if scheme == "column":
        names, party_of = _parties_by_hospital(records, rows_of)
        if parties not in (None, len(names)):
            raise InvalidParameterError(
                f"parties must be left out or be the number of hospitals, {len(names)}", parties
            )
    else:
        assert parties is not None, "checked above"
        require_enough(len(rows_of), parties * teachers)
        names = tuple(f"party-{number:0{len(str(parties))}}" for number in range(1, parties + 1))
        party_of = (
            deal_evenly(len(rows_of), parties, rng=rng)
            if scheme == "iid"
            else _deal_skewed(
                _unit_labels(records, rows_of),
                parties=parties,
                least=teachers,
                concentration=concentration,
                rng=rng,
            )
        )
    poor = int((np.bincount(party_of, minlength=len(names)) < teachers).sum())
    if poor:
        raise TooFewRecordsError(
            f"every party must have at least {teachers} patients or records, one per teacher",
            f"{poor} with fewer",
        )
    units = list(rows_of.values())
    shards = [
        shard
        for party in range(len(names))
        for shard in deal_to_teachers(
            [units[place] for place in np.flatnonzero(party_of == party)],
            teachers=teachers,
            party=party,
            rng=rng,
        )
    ]
    return Partition(len(names), (teachers,) * len(names), tuple(shards), names)


def units_by_hospital(records: Records) -> dict[str, int]:
    """Count the privacy units of each hospital, as partition by column deals them.

    A hospital whose patients all have more records elsewhere has none, and is left out.
    """
    if records.hospitals is None:
        raise MissingColumnError("partition by column needs a hospital column")
    return dict(Counter(_homes(records.hospitals, rows_by_unit(records.unit_ids))))


def build_manifest(records: Records, partition: Partition, *, key: bytes) -> PartitionProof:
    """Check a partition, and fix it in keyed hashes.

    Ids and contents enter only under HMAC-SHA256 with a secret key, so that nobody can find out
    by trial whether a patient took part.

    Raises:
        DisjointnessError: a unit or record is with two teachers, or a record with none.
        InvalidParameterError: the key is too short.
    """
    if len(key) < MIN_KEY_BYTES:
        raise InvalidParameterError(f"a manifest key must have {MIN_KEY_BYTES} bytes", len(key))
    require_disjoint(records, partition.shards)
    contents = _content_tags(records, key)
    teachers = tuple(_proof(records, shard, contents, key) for shard in partition.shards)
    return PartitionProof(
        schema_version=1,
        hash="HMAC-SHA256, key of this run",
        units=sum(one.units for one in teachers),
        records=sum(one.records for one in teachers),
        # Not an error: two patients may look alike. But a patient entered twice under two ids
        # looks like this as well.
        repeated_contents=_count_repeated(partition, contents),
        root=_tag(key, "root", *(one.digest.encode() for one in teachers)).hex(),
        teachers=teachers,
    )


def verify_manifest(
    manifest: PartitionProof, records: Records, partition: Partition, *, key: bytes
) -> None:
    """Check that records and partition are those of a manifest, or raise a DisjointnessError."""
    found = build_manifest(records, partition, key=key)
    if len(found.teachers) != len(manifest.teachers):
        raise DisjointnessError(
            f"the partition must have the manifest's {len(manifest.teachers)} teachers",
            len(found.teachers),
        )
    for shard, now, then in zip(partition.shards, found.teachers, manifest.teachers, strict=True):
        if now != then:
            raise DisjointnessError(f"{shard.name} must hold the records of the manifest")
    if found != manifest:
        raise DisjointnessError("a manifest must agree with itself")


def _check_numbers(parties: int | None, teachers: int, scheme: str, concentration: float) -> None:
    if scheme not in SCHEMES:
        raise InvalidParameterError(f"partition must be one of {', '.join(SCHEMES)}", repr(scheme))
    if parties is None and scheme != "column":
        raise InvalidParameterError(f"partition {scheme} needs a number of parties")
    if parties is not None and parties < 1:
        raise InvalidParameterError("parties must be at least 1", parties)
    if teachers < 1:
        raise InvalidParameterError("teachers per party must be at least 1", teachers)
    if not (concentration > 0 and np.isfinite(concentration)):
        raise InvalidParameterError("concentration must be above 0 and finite", concentration)


def limited_rows(
    records: Records,
    *,
    patients: int,
    parties: int,
    scheme: PartitionScheme,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Choose the records of at most so many patients of each hospital.

    `parties` are those that records are dealt to, unless they are divided as the data say.
    """
    rows_of = rows_by_unit(records.unit_ids)
    units = list(rows_of)
    if scheme != "column" or records.hospitals is None:
        homes = [0] * len(units)
        room = {0: patients * parties}
    else:
        _, placed = _parties_by_hospital(records, rows_of)
        homes = [int(place) for place in placed]
        room = dict.fromkeys(homes, patients)
    kept: list[int] = []
    for place in rng.permutation(len(units)):
        if room[homes[place]] > 0:
            room[homes[place]] -= 1
            kept.extend(rows_of[units[place]])
    return np.array(sorted(kept), dtype=np.int64)


def _unit_labels(records: Records, rows_of: dict[str, list[int]]) -> NDArray[np.int64]:
    """Return the most frequent label of each unit, the smallest of those that tie."""
    return np.array(
        [int(np.bincount(records.labels[rows]).argmax()) for rows in rows_of.values()],
        dtype=np.int64,
    )


def _parties_by_hospital(
    records: Records, rows_of: dict[str, list[int]]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    if records.hospitals is None:
        raise MissingColumnError("partition by column needs a hospital column")
    homes = list(_homes(records.hospitals, rows_of))
    names = tuple(sorted(set(homes)))
    places = {name: place for place, name in enumerate(names)}
    return names, np.array([places[home] for home in homes], dtype=np.int64)


def _homes(hospitals: Sequence[str], rows_of: dict[str, list[int]]) -> Iterator[str]:
    """Name each unit's hospital: where most of its records are."""
    for rows in rows_of.values():
        yield _most_common(hospitals[row] for row in rows)


def _most_common(names: Iterable[str]) -> str:
    counts = Counter(names)
    return min(counts, key=lambda name: (-counts[name], name))


def _deal_skewed(
    labels: NDArray[np.int64],
    *,
    parties: int,
    least: int,
    concentration: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Deal each class by its own Dirichlet shares; then fill up parties below `least` units."""
    party_of = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(parties, concentration))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for party, group in enumerate(np.split(members, cuts)):
            party_of[group] = party
    sizes = np.bincount(party_of, minlength=parties)
    while sizes.min() < least:
        richest, poorest = int(sizes.argmax()), int(sizes.argmin())
        moved = rng.choice(np.flatnonzero(party_of == richest))
        party_of[moved] = poorest
        sizes[richest] -= 1
        sizes[poorest] += 1
    return party_of


def _content_tags(records: Records, key: bytes) -> list[bytes]:
    features = records.features.astype("<f8", copy=False)
    labels = records.labels.astype("<i8", copy=False)
    return [
        _tag(key, "content", features[row].tobytes(), labels[row].tobytes())
        for row in range(len(records))
    ]


def _proof(records: Records, shard: Shard, contents: list[bytes], key: bytes) -> TeacherProof:
    tags = sorted(
        _tag(key, "record", records.unit_ids[row].encode(), contents[row]) for row in shard.rows
    )
    place = f"{shard.party}/{shard.teacher}".encode()
    return TeacherProof(
        party=shard.party,
        teacher=shard.teacher,
        units=len({records.unit_ids[row] for row in shard.rows}),
        records=len(shard.rows),
        digest=_tag(key, "teacher", place, *tags).hex(),
    )


def _count_repeated(partition: Partition, contents: list[bytes]) -> int:
    holders: dict[bytes, set[int]] = {}
    for index, shard in enumerate(partition.shards):
        for row in shard.rows:
            holders.setdefault(contents[row], set()).add(index)
    return sum(len(holders[contents[row]]) > 1 for shard in partition.shards for row in shard.rows)


def _tag(key: bytes, purpose: str, *parts: bytes) -> bytes:
    # Lengths go first, so that no two lists of parts run together to the same bytes.
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.digest(key, f"pate-fed manifest {purpose}\n".encode() + message, sha256)

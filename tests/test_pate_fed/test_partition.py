"""Partitions are disjoint, complete, by privacy unit; a manifest shows when they are not."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate_fed.data import Records
from pate_fed.errors import (
    DisjointnessError,
    InvalidParameterError,
    MissingColumnError,
    PateFedError,
    TooFewRecordsError,
)
from pate_fed.partition import (
    SCHEMES,
    Partition,
    PartitionScheme,
    Shard,
    build_manifest,
    limited_rows,
    partition_records,
    verify_manifest,
)
from tests.support.small_records import blobs

KEY = b"a key of this run only"


def patients(rows: int = 60, per_patient: int = 3) -> Records:
    return blobs(rows, unit_ids=tuple(f"patient-{row // per_patient}" for row in range(rows)))


def deal(
    records: Records,
    *,
    parties: int | None = 4,
    teachers: int = 2,
    scheme: PartitionScheme = "iid",
    seed: int = 0,
    concentration: float = 0.5,
) -> Partition:
    return partition_records(
        records,
        parties=parties,
        teachers=teachers,
        scheme=scheme,
        rng=np.random.default_rng(seed),
        concentration=concentration,
    )


def assert_proper(records: Records, partition: Partition) -> None:
    held = [row for shard in partition.shards for row in shard.rows.tolist()]
    assert sorted(held) == list(range(len(records)))
    units = [{records.unit_ids[row] for row in shard.rows} for shard in partition.shards]
    assert all(units)
    assert sum(len(found) for found in units) == records.unit_count


@pytest.mark.slow
@given(
    units=st.lists(st.integers(0, 30), min_size=40, max_size=120),
    hospitals=st.integers(1, 4),
    parties=st.integers(1, 4),
    teachers=st.integers(1, 3),
    scheme=st.sampled_from(SCHEMES),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=120, deadline=None)
def test_any_partition_is_disjoint_complete_and_by_unit_or_refused(
    *,
    units: list[int],
    hospitals: int,
    parties: int,
    teachers: int,
    scheme: PartitionScheme,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    records = blobs(
        len(units),
        unit_ids=tuple(f"p{unit}" for unit in units),
        hospitals=tuple(f"h{home}" for home in rng.integers(hospitals, size=len(units))),
    )
    try:
        partition = deal(
            records,
            parties=None if scheme == "column" else parties,
            teachers=teachers,
            scheme=scheme,
            seed=seed,
        )
    except TooFewRecordsError:
        # Only hospitals may be too small: 40 rows of at most 31 units feed 12 teachers unless
        # hardly any unit was drawn.
        assert scheme == "column" or records.unit_count < parties * teachers
        return
    assert_proper(records, partition)
    assert all(count == teachers for count in partition.teachers_per_party)
    verify_manifest(build_manifest(records, partition, key=KEY), records, partition, key=KEY)


def test_iid_shards_differ_by_one_unit_at_most() -> None:
    partition = deal(blobs(103), parties=10, teachers=1)
    sizes = [len(shard.rows) for shard in partition.shards]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_the_seed_decides_the_partition(scheme: PartitionScheme) -> None:
    records = blobs(90)
    first, again, other = (deal(records, scheme=scheme, seed=seed) for seed in (1, 1, 2))
    same = [np.array_equal(a.rows, b.rows) for a, b in zip(first.shards, again.shards, strict=True)]
    assert all(same)
    assert any(
        not np.array_equal(a.rows, b.rows) for a, b in zip(first.shards, other.shards, strict=True)
    )


def test_dirichlet_skews_labels_and_more_so_at_a_small_concentration() -> None:
    records = blobs(3000)

    def skew(concentration: float) -> float:
        partition = deal(
            records, parties=10, teachers=1, scheme="dirichlet", concentration=concentration
        )
        shares = [
            np.bincount(records.labels[shard.rows], minlength=3) / len(shard.rows)
            for shard in partition.shards
        ]
        return float(np.std(shares, axis=0).mean())

    assert skew(0.1) > 2 * skew(10.0) > 0


def test_dirichlet_leaves_no_teacher_empty_however_skewed() -> None:
    partition = deal(blobs(40), parties=10, teachers=3, scheme="dirichlet", concentration=0.01)
    assert min(len(shard.rows) for shard in partition.shards) >= 1


def test_hospitals_become_parties_and_a_patient_goes_where_most_of_his_rows_are() -> None:
    records = blobs(
        9,
        unit_ids=("a", "a", "a", "b", "b", "c", "d", "e", "f"),
        hospitals=("south", "south", "north", "west", "north", "west", "south", "north", "west"),
    )
    partition = deal(records, parties=None, teachers=1, scheme="column")
    assert partition.party_names == ("north", "south", "west")
    homes = {
        records.unit_ids[row]: partition.party_names[shard.party]
        for shard in partition.shards
        for row in shard.rows
    }
    assert homes == {
        "a": "south", "b": "north", "c": "west", "d": "south", "e": "north", "f": "west",
    }  # fmt: skip


def test_the_right_number_of_hospitals_may_be_said_and_a_wrong_one_not() -> None:
    records = blobs(12, hospitals=("n", "s", "w") * 4)
    assert deal(records, parties=3, teachers=1, scheme="column").parties == 3
    with pytest.raises(InvalidParameterError, match="hospitals, 3, got 4"):
        deal(records, parties=4, teachers=1, scheme="column")


def test_by_column_needs_hospitals() -> None:
    with pytest.raises(MissingColumnError):
        deal(blobs(12), parties=None, scheme="column")


def test_a_hospital_too_small_for_its_teachers_is_refused() -> None:
    records = blobs(12, hospitals=("n",) * 11 + ("s",))
    with pytest.raises(TooFewRecordsError, match=r"\b1\b"):
        deal(records, parties=None, teachers=2, scheme="column")


@pytest.mark.parametrize("scheme", ["iid", "dirichlet"])
def test_more_teachers_than_patients_are_refused(scheme: PartitionScheme) -> None:
    with pytest.raises(TooFewRecordsError, match="24 teachers"):
        deal(patients(), parties=12, teachers=2, scheme=scheme)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"parties": 0}, id="no party"),
        pytest.param({"parties": None}, id="parties left out"),
        pytest.param({"teachers": 0}, id="no teacher"),
        pytest.param({"scheme": "random"}, id="unknown scheme"),
        pytest.param({"scheme": "dirichlet", "concentration": 0.0}, id="concentration 0"),
        pytest.param({"scheme": "dirichlet", "concentration": np.nan}, id="concentration NaN"),
    ],
)
def test_impossible_arguments_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError):
        deal(blobs(60), **arguments)  # type: ignore[arg-type]


# The manifest, and attempts to get past it


def with_rows(partition: Partition, changes: dict[int, list[int]]) -> Partition:
    shards = tuple(
        Shard(shard.party, shard.teacher, np.array(changes.get(index, shard.rows.tolist())))
        for index, shard in enumerate(partition.shards)
    )
    return replace(partition, shards=shards)


def test_one_row_of_a_patient_with_another_teacher_is_found_and_the_patient_not_named() -> None:
    records = patients()
    partition = deal(records)
    first, last = (partition.shards[index].rows.tolist() for index in (0, 7))
    broken = with_rows(partition, {0: first[1:], 7: [*last, first[0]]})
    with pytest.raises(DisjointnessError) as caught:
        build_manifest(records, broken, key=KEY)
    message = str(caught.value)
    assert "teacher 1 of party 1" in message
    assert "teacher 2 of party 4" in message
    assert "patient-" not in message


def test_a_lost_row_is_found() -> None:
    records = patients()
    partition = deal(records)
    broken = with_rows(partition, {2: partition.shards[2].rows.tolist()[1:]})
    with pytest.raises(DisjointnessError, match=r"\b1\b"):
        build_manifest(records, broken, key=KEY)


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param("again", id="a row twice"),
        pytest.param(60, id="beyond"),
        pytest.param(-1, id="negative"),
    ],
)
def test_a_row_too_many_is_found(extra: int | str) -> None:
    records = patients()
    partition = deal(records)
    rows = partition.shards[0].rows.tolist()
    broken = with_rows(partition, {0: [*rows, rows[0] if extra == "again" else int(extra)]})
    with pytest.raises(DisjointnessError):
        build_manifest(records, broken, key=KEY)


def test_whole_patients_that_change_places_differ_from_the_manifest() -> None:
    records = patients()
    partition = deal(records)
    manifest = build_manifest(records, partition, key=KEY)
    first, second = (partition.shards[index].rows.tolist() for index in (0, 1))
    swapped = with_rows(partition, {0: second, 1: first})
    build_manifest(records, swapped, key=KEY)  # disjoint, but not what was written down
    with pytest.raises(DisjointnessError, match="1 of party 1"):
        verify_manifest(manifest, records, swapped, key=KEY)


def test_records_in_another_order_differ_from_the_manifest() -> None:
    records = patients()
    partition = deal(records)
    manifest = build_manifest(records, partition, key=KEY)
    reordered = records.select(np.arange(len(records))[::-1])
    with pytest.raises(DisjointnessError):
        verify_manifest(manifest, reordered, partition, key=KEY)


def test_the_order_of_rows_within_a_teacher_does_not_matter() -> None:
    records = patients()
    partition = deal(records)
    turned = with_rows(partition, {0: partition.shards[0].rows.tolist()[::-1]})
    verify_manifest(build_manifest(records, partition, key=KEY), records, turned, key=KEY)


@pytest.mark.parametrize("part", ["features", "labels", "unit_ids"])
def test_a_changed_record_differs_from_the_manifest(part: str) -> None:
    records = patients(per_patient=1)
    partition = deal(records)
    manifest = build_manifest(records, partition, key=KEY)
    features, labels = records.features.copy(), records.labels.copy()
    ids = list(records.unit_ids)
    if part == "features":
        features[5, 0] = np.nextafter(features[5, 0], np.inf)
    elif part == "labels":
        labels[5] = (labels[5] + 1) % 3
    else:
        ids[5] = "patient-new"
    changed = Records(features, labels, tuple(ids))
    with pytest.raises(DisjointnessError):
        verify_manifest(manifest, changed, partition, key=KEY)


def test_the_same_content_under_two_ids_is_counted_but_no_error() -> None:
    records = patients(per_patient=1)
    features, labels = records.features.copy(), records.labels.copy()
    partition = deal(records)
    here, there = int(partition.shards[0].rows[0]), int(partition.shards[1].rows[0])
    features[there], labels[there] = features[here], labels[here]
    copied = Records(features, labels, records.unit_ids)
    assert build_manifest(records, partition, key=KEY).repeated_contents == 0
    assert build_manifest(copied, partition, key=KEY).repeated_contents == 2


def test_a_manifest_that_was_touched_is_refused() -> None:
    records = patients()
    partition = deal(records)
    manifest = build_manifest(records, partition, key=KEY)
    for touched in (
        manifest.changed(root="0" * 64),
        manifest.changed(records=61),
        manifest.changed(teachers=manifest.teachers[:-1]),
        manifest.changed(teachers=(manifest.teachers[0].changed(units=1), *manifest.teachers[1:])),
    ):
        with pytest.raises(DisjointnessError):
            verify_manifest(touched, records, partition, key=KEY)


def test_another_key_gives_unrelated_digests() -> None:
    records = patients()
    partition = deal(records)
    one, two = (build_manifest(records, partition, key=key) for key in (KEY, KEY[::-1]))
    assert one.root != two.root
    assert not {each.digest for each in one.teachers} & {each.digest for each in two.teachers}


def test_a_guessable_key_is_refused() -> None:
    records = patients()
    with pytest.raises(InvalidParameterError):
        build_manifest(records, deal(records), key=b"short")


def test_a_manifest_as_json_has_counts_and_digests_and_no_id() -> None:
    records = patients()
    text = json.dumps(build_manifest(records, deal(records), key=KEY).as_json())
    found = json.loads(text)
    assert (found["schema_version"], found["units"], found["records"]) == (1, 20, 60)
    assert len(found["teachers"]) == 8
    assert sum(entry["records"] for entry in found["teachers"]) == 60
    assert "patient-" not in text


def test_a_partition_must_describe_every_teacher_once() -> None:
    partition = deal(patients())
    with pytest.raises(PateFedError):
        replace(partition, shards=partition.shards[:-1])
    with pytest.raises(PateFedError):
        replace(partition, party_names=("one",))


def test_shards_of_a_party_are_its_teachers_in_order() -> None:
    partition = deal(patients())
    assert [shard.name for shard in partition.shards_of(2)] == [
        "teacher 1 of party 3",
        "teacher 2 of party 3",
    ]
    assert partition.teachers == 8


@pytest.mark.parametrize(
    ("scheme", "kept"),
    [
        pytest.param("column", {"north": 4, "south": 3}, id="of each hospital of the data"),
        pytest.param("iid", None, id="of hospitals that are dealt anew"),
    ],
)
def test_so_many_patients_of_each_hospital_are_kept(
    scheme: PartitionScheme, kept: dict[str, int] | None
) -> None:
    hospitals = ("north",) * 40 + ("south",) * 3
    records = blobs(43, hospitals=hospitals)
    rows = limited_rows(records, patients=4, parties=5, scheme=scheme, rng=np.random.default_rng(0))
    assert np.array_equal(rows, np.unique(rows))
    if kept is None:
        assert len(rows) == 4 * 5
    else:
        assert Counter(hospitals[row] for row in rows) == kept

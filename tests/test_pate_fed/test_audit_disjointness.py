"""Disjointness, audited: an overlap is named, and so is a manifest that was changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate_fed.audit.disjointness import check_manifest, require_disjoint
from pate_fed.audit.tags import tag_shares
from pate_fed.errors import DisjointnessError, InvalidAnswersError, InvalidParameterError
from pate_fed.partition import build_manifest, partition_records
from pate_fed.record.manifest import PartitionProof
from tests.support.command import Command, pate_fed
from tests.support.small_records import blobs

__all__ = ["pate_fed"]  # a fixture

KEY = bytes(range(32))
TASK = "ab" * 32
SHARES = {"A": [["1", "2"], ["3"]], "B": [["4"], ["5", "6"]]}


def tags(party: str, shares: list[list[str]], key: bytes = KEY) -> dict[str, Any]:
    return tag_shares({TASK: shares}, party=party, key=key)


def manifest() -> dict[str, Any]:
    records = blobs(60)
    dealt = partition_records(
        records, parties=2, teachers=3, scheme="iid", rng=np.random.default_rng(1)
    )
    return dict(json.loads(json.dumps(build_manifest(records, dealt, key=KEY).as_json())))


def test_hospitals_without_a_common_patient_pass() -> None:
    found = require_disjoint({name: tags(name, shares) for name, shares in SHARES.items()})
    assert found == {"hospitals": 2, "teachers": 4, "patients": 6}


def test_tags_hold_no_id_and_differ_between_keys() -> None:
    long_ids = [["patient-0815"], ["patient-0816"]]
    one, other = (json.dumps(tags("A", long_ids, key)) for key in (KEY, KEY[::-1]))
    assert "0815" not in one
    assert set(json.loads(one)["tasks"][TASK][0]).isdisjoint(json.loads(other)["tasks"][TASK][0])


@pytest.mark.parametrize(
    ("other", "named"),
    [
        pytest.param([["4"], ["3", "6"]], "2 of A .*2 of B", id="two"),
        pytest.param([["4"], ["4"]], "1 of B .*2 of B", id="one hospital"),
        pytest.param([["4", "4"], ["5"]], "teacher 1", id="a patient listed twice"),
    ],
)
def test_a_patient_at_two_teachers_is_named_by_them(other: list[list[str]], named: str) -> None:
    with pytest.raises(DisjointnessError, match=named):
        require_disjoint({"a": tags("A", SHARES["A"]), "b": tags("B", other)})


def test_one_patient_may_teach_in_two_tasks() -> None:
    both = tag_shares({TASK: [["1"]], "cd" * 32: [["1"]]}, party="A", key=KEY)
    assert require_disjoint({"a": both})["patients"] == 2


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param({"a": tags("A", [["1"]]), "b": tags("A", [["2"]])}, id="a hospital twice"),
        pytest.param({"a": tags("A", [["1"]]), "b": tags("B", [["2"]], KEY[::-1])}, id="keys"),
        pytest.param({"a": []}, id="a list"),
        pytest.param({"a": {}}, id="nothing"),
        pytest.param({"a": {**tags("A", [["1"]]), "tasks": {TASK: [["1"]]}}}, id="plain ids"),
        pytest.param({"a": {**tags("A", [["1"]]), "schema_version": 2}}, id="a later version"),
        pytest.param({}, id="no files"),
    ],
)
def test_other_files_are_a_coded_error(documents: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswersError):
        require_disjoint(documents)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(InvalidParameterError):
        tags("A", [["1"]], b"short")


def test_a_manifest_of_a_simulation_passes() -> None:
    assert check_manifest(proof_of(manifest())) == 0


def proof_of(content: dict[str, Any]) -> PartitionProof:
    return PartitionProof.read(json.dumps(content))


def _repeat(one: dict[str, Any]) -> None:
    one["teachers"][2]["digest"] = one["teachers"][0]["digest"]


def _list_twice(one: dict[str, Any]) -> None:
    one["teachers"][1]["teacher"] = 0


def _add_patient(one: dict[str, Any]) -> None:
    one["teachers"][1]["units"] += 1
    one["teachers"][1]["records"] += 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(_repeat, "1 of party 1 .*3 of party 1", id="same records"),
        pytest.param(_list_twice, "1 of party 1", id="a teacher twice"),
        pytest.param(_add_patient, "totals", id="one more patient"),
        pytest.param(lambda one: one["teachers"][4].update(digest="x"), "2 of party 2",
                     id="no digest"),
        pytest.param(lambda one: one["teachers"].clear(), "totals", id="no teachers"),
    ],
)  # fmt: skip
def test_a_changed_manifest_is_named(
    change: Callable[[dict[str, Any]], object], named: str
) -> None:
    changed = copy.deepcopy(manifest())
    change(changed)
    with pytest.raises(DisjointnessError, match=named):
        check_manifest(proof_of(changed))


def test_the_command_names_an_overlap(pate_fed: Command, tmp_path: Path) -> None:
    files = []
    for name, shares in (*SHARES.items(), ("C", [["9"], ["6"]])):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(tags(name, shares)), "utf-8")
    good = pate_fed("audit", "--tags", files[0], "--tags", files[1])
    assert good.code == 0
    bad = pate_fed("audit", *(part for file in files for part in ("--tags", file)))
    assert (bad.error_code, bad.code) == ("PF-120", 5)
    assert "teacher 2 of B and with teacher 2 of C" in bad.err
    assert pate_fed("audit", "--tags", files[0], "--canary", 1000).error_code == "PF-402"
    assert pate_fed("audit", "--tags", tmp_path / "none").error_code == "PF-108"
    files[0].write_text("[", "utf-8")
    assert pate_fed("audit", "--tags", files[0]).error_code == "PF-108"

"""Disjointness, audited: no patient teaches two teachers, of one hospital or of two.

Epsilon counts one vote for each patient. A simulation's manifest is checked for agreement with
itself. Hospitals write tags: keyed hashes of the ids of each teacher's patients, under a secret
that they share. Equal tags are equal ids. Tags without the key show sizes and overlaps only. With
the key somebody can find out by trial who is a patient: the auditor must not have it. A patient
under two different ids has two tags, and is not found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

from pate_fed.audit.tags import HASH, SCHEMA_VERSION
from pate_fed.errors import DisjointnessError, InvalidAnswersError
from pate_fed.record.manifest import PartitionProof

_TAG: Final = re.compile(r"[0-9a-f]{64}")


def check_manifest(partition: PartitionProof) -> int:
    """Check `partition` of a simulation's `manifest.json`.

    Returns:
        Records whose content stands with another teacher, under another id.

    Raises:
        DisjointnessError: it contradicts itself; the error names the teacher.
    """
    names, digests = set(), dict[str, str]()
    for one in partition.teachers:
        name = f"teacher {one.teacher + 1} of party {one.party + 1}"
        if name in names:
            raise DisjointnessError("the manifest must list each teacher once", name)
        if not (_TAG.fullmatch(one.digest) and 1 <= one.units <= one.records):
            raise DisjointnessError(f"{name} must have a digest and patients")
        if one.digest in digests:
            raise DisjointnessError(
                "two teachers must have different digests", f"{digests[one.digest]} and {name}"
            )
        names.add(name)
        digests[one.digest] = name
    units = sum(one.units for one in partition.teachers)
    records = sum(one.records for one in partition.teachers)
    repeated = partition.repeated_contents
    totals = partition.units, partition.records
    if (units, records) != totals or not names or repeated > records:
        raise DisjointnessError("the manifest's totals must be those of its teachers")
    return repeated


def require_disjoint(documents: Mapping[str, Any]) -> dict[str, int]:
    """Check that no patient stands with two teachers of a task.

    Returns:
        How many `hospitals`, `teachers` and `patients` there are, over all tasks.

    Raises:
        DisjointnessError: a patient is with two; the error names the teachers.
        InvalidAnswersError: a file holds no tags, or tags of another key, or of a hospital twice.
    """
    holders: dict[str, dict[str, frozenset[str]]] = {}
    keys, parties = set(), list[str]()
    for name, document in documents.items():
        _require_tags(name, document)
        keys.add(document["key_check"])
        parties.append(document["party"])
        for task, teachers in document["tasks"].items():
            for place, tags in enumerate(teachers):
                teacher = f"teacher {place + 1} of {document['party']}"
                holders.setdefault(task, {})[teacher] = frozenset(tags)
                if len(set(tags)) != len(tags):
                    raise DisjointnessError(f"{name} must list a patient once", teacher)
    if len(keys) > 1:
        raise InvalidAnswersError("all tags must be made with one key", f"{len(keys)} keys")
    [(party, most)] = Counter(parties).most_common(1) or [("none", 2)]
    if most > 1:
        raise InvalidAnswersError("there must be one file of tags for each hospital", party)
    for teachers in holders.values():
        _require_apart(teachers)
    return {
        "hospitals": len(parties),
        "teachers": sum(len(teachers) for teachers in holders.values()),
        "patients": sum(len(tags) for teachers in holders.values() for tags in teachers.values()),
    }


def _require_apart(teachers: Mapping[str, frozenset[str]]) -> None:
    if len(frozenset().union(*teachers.values())) == sum(map(len, teachers.values())):
        return
    for (one, mine), (other, theirs) in combinations(teachers.items(), 2):
        if mine & theirs:
            raise DisjointnessError(
                "a patient must be with one teacher",
                f"{len(mine & theirs)} patient(s) with {one} and with {other}",
            )


def _require_tags(name: str, document: Any) -> None:
    try:
        tasks = document["tasks"].values()
        good = (
            document["schema_version"] == SCHEMA_VERSION
            and document["hash"] == HASH
            and isinstance(document["party"], str)
            and isinstance(document["key_check"], str)
            and all(
                isinstance(tag, str) and _TAG.fullmatch(tag)
                for teachers in tasks
                for tags in teachers
                for tag in tags
            )
        )
    except (AttributeError, KeyError, TypeError):
        good = False
    if not good:
        raise InvalidAnswersError(f"{name} must hold tags of `pate-party data tags`")

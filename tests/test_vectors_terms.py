"""Vectors of values, terms, results and digests, through our readers and through a second one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coordinator.runs.labeling.deciding import digest_of_predictions
from pate_fed.errors import InvalidTermsError
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease
from pate_fed.rule import Caps, Rule
from pate_fed.terms import BatchTerms, RunTerms
from pate_fed.votes import TeacherWeights
from protocols.errors import MalformedMessageError
from protocols.values import decode_value, encode_value
from tests.support import reference_terms
from tests.support.markers import sampled
from tests.support.reference_cbor import NotDeterministicError, cbor, read_cbor
from tests.support.reference_frames import Refused
from tests.support.vectors import read_vectors

VALUES, TERMS = read_vectors("values"), read_vectors("terms")
DIGESTS = TERMS["digests"]
OURS: dict[str, Callable[[object], Any]] = {
    "run terms": RunTerms.from_record,
    "batch terms": BatchTerms.from_record,
    "release": NoisyRelease.from_record,
}


def meant(shown: Any) -> Any:
    """A value from its JSON form."""
    match shown:
        case {"hex": text}:
            return bytes.fromhex(text)
        case list():
            return [meant(item) for item in shown]
        case dict():
            return {key: meant(item) for key, item in shown.items()}
    return shown


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types: 1, 1.0 and true are three values, and so are 0.0 and -0.0."""
    if type(one) is not type(other):
        return False
    match one:
        case list():
            return len(one) == len(other) and all(map(same, one, other))
        case dict():
            return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
        case float():
            return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


def rows_of(table: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(kind, row, id=f"{kind}: {name}")
        for kind, rows in table.items()
        for name, row in rows.items()
    ]


# Values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector", [pytest.param(value, id=name) for name, value in VALUES["good"].items()]
)
def test_a_good_value_is_read_and_written_alike(vector: dict[str, Any]) -> None:
    data, value = bytes.fromhex(vector["bytes"]), meant(vector["value"])
    assert encode_value(value) == cbor(value) == data
    assert same(decode_value(data), value)
    assert same(read_cbor(data), value)


@pytest.mark.parametrize(
    "data", [pytest.param(value, id=name) for name, value in VALUES["spoiled"].items()]
)
def test_spoiled_bytes_are_no_value(data: str) -> None:
    with pytest.raises(MalformedMessageError):
        decode_value(bytes.fromhex(data))
    with pytest.raises(NotDeterministicError):
        read_cbor(bytes.fromhex(data))


# Terms and results -----------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "vector"), rows_of(TERMS["good"]))
def test_good_terms_are_read_and_written_alike(kind: str, vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    record = OURS[kind](decode_value(data)).as_record()
    assert same(record, meant(vector["value"]))
    assert encode_value(record) == data
    assert same(reference_terms.READERS[kind](data), record)


@sampled()
@pytest.mark.parametrize(("kind", "data"), rows_of(TERMS["spoiled"]))
def test_spoiled_terms_are_refused_here_and_there(kind: str, data: str) -> None:
    with pytest.raises((InvalidTermsError, MalformedMessageError)):
        OURS[kind](decode_value(bytes.fromhex(data)))
    with pytest.raises(Refused):
        reference_terms.READERS[kind](bytes.fromhex(data))


def test_known_terms_are_the_known_bytes() -> None:
    terms = RunTerms(
        name="run-7",
        pool_digest=QueryPool(np.array(DIGESTS["pool"]["inputs"])).digest,
        task_digest=bytes(range(32)),
        classes=3,
        weights=(
            TeacherWeights.equal(5),
            TeacherWeights.of([1, 1, 1, 2]),
            TeacherWeights.equal(2, weight=3),
        ),
        rule=Rule("threshold", vote_threshold=12.0, sigma2=7.5),
        unit="record",
        caps=Caps(max_asks=10, max_answers=6, batch_size=4),
        budgets=(1.0, 2.5, 8.0),
        delta=1e-6,
    )
    known = TERMS["good"]["run terms"]["threshold"]["bytes"]
    assert encode_value(terms.as_record()).hex() == known
    batch = encode_value(BatchTerms(terms, (4, 0)).as_record())
    assert batch.hex() == TERMS["good"]["batch terms"]["two queries"]["bytes"]


# Digests ---------------------------------------------------------------------------------------


def test_digests_of_a_pool_and_its_queries_are_the_known_ones() -> None:
    pool = QueryPool(np.array(DIGESTS["pool"]["inputs"]))
    assert pool.digest.hex() == DIGESTS["pool"]["digest"]
    queries = pool.ask(tuple(range(len(pool)))).digests
    assert [digest.hex() for digest in queries] == DIGESTS["queries"]["digests"]


def test_queries_that_differ_in_the_sign_of_zero_are_one_query_but_other_pools() -> None:
    _, minus, plus, *_ = DIGESTS["queries"]["digests"]
    assert minus == plus
    unsigned = QueryPool(np.array(DIGESTS["pool"]["inputs"]) + 0.0)
    assert unsigned.digest.hex() != DIGESTS["pool"]["digest"]


def test_the_digest_of_predictions_is_the_known_one() -> None:
    known = DIGESTS["predictions"]
    assert digest_of_predictions(np.array(known["chances"])).hex() == known["digest"]


def test_digests_of_results_are_the_known_ones() -> None:
    known = DIGESTS["release"]
    release = NoisyRelease(np.array(known["labels"]), np.array(known["outcomes"]))
    assert release.digest.hex() == known["digest"]

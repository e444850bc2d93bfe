"""Writes vectors of values, terms, results and their digests.

From second implementations only, as `make_protocol_vectors`.
Run from the repository root: ``python -m tests.support.make_terms_vectors``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tests.support.make_protocol_vectors import write_vectors
from tests.support.reference_cbor import cbor
from tests.support.reference_terms import (
    digest_of_pool,
    digest_of_predictions,
    digest_of_query,
    digest_of_release,
)

Row = dict[str, Any]

POOL = [[0.5, -1.25], [-0.0, 3.0], [0.0, 3.0], [1e-310, 1e300], [0.1, 0.2]]
TASK = bytes(range(32))
PREDICTIONS = [[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]
RELEASE = {"labels": [2, -1, 0, -1], "outcomes": [0, 1, 0, 2]}


_THRESHOLD: Row = {
    "name": "run-7",
    "pool_digest": digest_of_pool(POOL),
    "task_digest": TASK,
    "classes": 3,
    "weights": [[[1, 5]], [[1, 3], [2, 1]], [[3, 2]]],
    "rule": {
        "mechanism": "threshold",
        "vote_threshold": 12.0,
        "sigma1": None,
        "sigma2": 7.5,
        "confidence": None,
        "test_delta": None,
        "noise_place": "coordinator",
        "colluders": None,
        "dropouts": None,
    },
    "unit": "record",
    "caps": {"max_asks": 10, "max_answers": 6, "batch_size": 4},
    "budgets": [1.0, 2.5, 8.0],
    "delta": 1e-6,
    "purpose": "",
}


_ONLY_SEVERAL = ("labels", "label_cap", "patient_votes")
"""Keys of the caps that runs of teachers with one label for an input lack."""


def _terms(base: Row = _THRESHOLD, **changed: Any) -> Row:
    """Terms with other values, each in the map that has it."""
    inner = {
        table: {
            **base[table],
            **{name: changed.pop(name) for name in (*base[table], *further) if name in changed},
        }
        for table, further in (("rule", ()), ("caps", _ONLY_SEVERAL))
    }
    return {**base, **inner, **changed}


_CHECKED_STABLE = {"vote_threshold": None, "sigma2": None, "sigma1": 2.0, "test_delta": 1e-7}
_ALWAYS_ANSWERS = {"vote_threshold": None, "max_answers": 10}
_AT_PARTIES = {
    "weights": [[[1, 2]]] * 5,
    "noise_place": "parties",
    "budgets": [8.0] * 5,
    "colluders": 2,
    "dropouts": 1,
}

_LABELS = {"classes": 2, "max_asks": 12, "batch_size": 6, "labels": 3}

RUN_TERMS: dict[str, Row] = {
    "threshold": _terms(),
    "interactive-threshold": _terms(mechanism="interactive-threshold", confidence=0.9),
    "gnmax, a whole party": _terms(mechanism="gnmax", unit="party", **_ALWAYS_ANSWERS),
    "lnmax": _terms(mechanism="lnmax", **_ALWAYS_ANSWERS),
    "counts": _terms(mechanism="counts", **_ALWAYS_ANSWERS),
    "confident": _terms(mechanism="confident", sigma1=3.1),
    "interactive": _terms(mechanism="interactive", sigma1=3.1, confidence=0.9),
    "stable-gaussian": _terms(mechanism="stable-gaussian", **_CHECKED_STABLE),
    "stable-laplace": _terms(mechanism="stable-laplace", **_CHECKED_STABLE),
    "immutable": _terms(mechanism="immutable", **_ALWAYS_ANSWERS),
    "threshold, noise at the parties": _terms(**_AT_PARTIES),
    "gnmax, noise at the parties": _terms(mechanism="gnmax", **_ALWAYS_ANSWERS, **_AT_PARTIES),
    "tallies": _terms(mechanism="tallies", **_ALWAYS_ANSWERS, **_AT_PARTIES),
    "three labels": _terms(**_LABELS),
    "three labels, a cap on yes": _terms(**_LABELS, label_cap=1),
    "records that vote": _terms(patient_votes=3),
    "records that vote, always answered": _terms(
        mechanism="gnmax", patient_votes=10, **_ALWAYS_ANSWERS
    ),
    "with a purpose": _terms(purpose="Früherkennung der Sepsis, Los 3,\u00a0<b>"),
}


def _batch(**changed: Any) -> Row:
    run = changed.pop("run", RUN_TERMS["threshold"])
    return {"run": run, "indices": [4, 0], "predictions_digest": b"", **changed}


def _release(**changed: Any) -> Row:
    return {**RELEASE, **changed}


def _counts(**changed: Any) -> Row:
    """A row of counts for each of two groupings."""
    rows = [[3, -4, 0], [2**31 - 1, -(2**31), 12]]
    return {"labels": [-1, -1], "outcomes": [0, 0], "tallies": rows, **changed}


def _without(record: Row, name: str) -> Row:
    return {
        key: _without(value, name) if key in ("rule", "caps") else value
        for key, value in record.items()
        if key != name
    }


def good_terms() -> dict[str, dict[str, Row]]:
    interactive = RUN_TERMS["interactive-threshold"]
    digest = digest_of_predictions(PREDICTIONS)
    return {
        "run terms": RUN_TERMS,
        "batch terms": {
            "two queries": _batch(),
            "one query": _batch(indices=[0]),
            "all labels of two inputs": _batch(
                run=RUN_TERMS["three labels"], indices=[6, 7, 8, 0, 1, 2]
            ),
            "with predictions": _batch(run=interactive, predictions_digest=digest),
            "before there is a student": _batch(run=interactive),
        },
        "release": {
            "answered, refused, not asked": _release(),
            "nothing answered": _release(labels=[-1, -1], outcomes=[1, 1]),
            "tallies": _counts(),
        },
    }


def _spoiled_run_terms() -> dict[str, Any]:
    at_parties = RUN_TERMS["gnmax, noise at the parties"]
    gnmax = RUN_TERMS["gnmax, a whole party"]
    return {
        "a list": list(_terms().values()),
        "a field is missing": _without(_terms(), "unit"),
        "colluders are missing, not null": _without(_terms(), "colluders"),
        "a field too many": _terms(extra=1),
        "a field of the rule too many": _terms(rule={**_THRESHOLD["rule"], "extra": 1}),
        "a field of the caps too many": _terms(caps={**_THRESHOLD["caps"], "extra": 1}),
        "the rule is a list": _terms(rule=list(_THRESHOLD["rule"].values())),
        "the rule is flat": {**_without(_terms(), "rule"), **_THRESHOLD["rule"]},
        "the caps are null": _terms(caps=None),
        "tallies with noise at the coordinator": _terms(mechanism="tallies", **_ALWAYS_ANSWERS),
        "a price, which follows from all else": _terms(pricing="gdp"),
        "a cap on refusals": _terms(max_refusals=8),
        "pool digest of 31 bytes": _terms(pool_digest=bytes(31)),
        "pool digest is a text": _terms(pool_digest="0" * 32),
        "task digest of 31 bytes": _terms(task_digest=bytes(31)),
        "task digest is null": _terms(task_digest=None),
        "task digest is missing": _without(_terms(), "task_digest"),
        "classes is 1": _terms(classes=1),
        "classes is a float": _terms(classes=3.0),
        "classes is true": _terms(classes=True),
        "no party": _terms(weights=[], budgets=[]),
        "a party without teachers": _terms(weights=[[[1, 5]], [], [[3, 2]]]),
        "a weight of 0": _terms(weights=[[[0, 5]], [[1, 5]], [[1, 5]]]),
        "a weight is a float": _terms(weights=[[[1.0, 5]], [[1, 5]], [[1, 5]]]),
        "no teacher of a weight": _terms(weights=[[[1, 0]], [[1, 5]], [[1, 5]]]),
        "a run of three numbers": _terms(weights=[[[1, 5, 1]], [[1, 5]], [[1, 5]]]),
        "one run written as two": _terms(weights=[[[1, 2], [1, 3]], [[1, 5]], [[1, 5]]]),
        "more votes than fit the ring": _terms(weights=[[[1, 2**30]], [[1, 5]], [[1, 5]]]),
        "unknown mechanism": _terms(mechanism="dance"),
        "a parameter is missing": _terms(sigma2=None),
        "a parameter too many": _terms(confidence=0.5),
        "noise twice": _terms(sigma1=3.1),
        "sigma is 0": _terms(sigma2=0.0),
        "sigma is infinite": _terms(sigma2=math.inf),
        "sigma is a whole number": _terms(sigma2=3),
        "threshold is no number": _terms(vote_threshold=math.nan),
        "confidence above 1": _terms(mechanism="interactive-threshold", confidence=1.5),
        "test delta of a half": _terms(RUN_TERMS["stable-gaussian"], test_delta=0.5),
        "unknown noise place": _terms(noise_place="nowhere"),
        "colluders with noise at the coordinator": _terms(colluders=1),
        "drop-outs with noise at the coordinator": _terms(dropouts=0),
        "noise at the parties without colluders": _terms(at_parties, colluders=None),
        "noise at the parties with 0 colluders": _terms(at_parties, colluders=0),
        "no honest share left": _terms(at_parties, dropouts=3),
        "noise at the parties for lnmax": _terms(at_parties, mechanism="lnmax"),
        "noise at the parties for confident": _terms(RUN_TERMS["confident"], **_AT_PARTIES),
        "unknown unit": _terms(unit="ward"),
        "no answers": _terms(max_answers=0),
        "no asks": _terms(max_asks=0, max_answers=0),
        "a cap on answers of gnmax": _terms(gnmax, max_answers=9),
        "more answers than asks": _terms(max_answers=11),
        "asks are null": _terms(max_asks=None),
        "a cap is a float": _terms(max_asks=10.0),
        "one label": _terms(**{**_LABELS, "labels": 1}),
        "labels are null": _terms(labels=None),
        "more labels than 50": _terms(classes=2, max_asks=51, batch_size=51, labels=51),
        "labels of three classes": _terms(**{**_LABELS, "classes": 3}),
        "asks of part of an input": _terms(**{**_LABELS, "max_asks": 11}),
        "batches of part of an input": _terms(**{**_LABELS, "batch_size": 4}),
        "a cap on yes without labels": _terms(label_cap=1),
        "a cap on yes that lowers no price": _terms(**_LABELS, label_cap=2),
        "a cap on yes of nothing": _terms(**_LABELS, label_cap=0),
        "votes of a patient are null": _terms(patient_votes=None),
        "votes of a patient are none": _terms(patient_votes=0),
        "votes of a patient above the asks": _terms(patient_votes=11),
        "votes of a patient for a hospital": _terms(patient_votes=3, unit="party"),
        "votes of a patient for two labels": _terms(
            classes=2, max_asks=12, batch_size=6, labels=2, patient_votes=3
        ),
        "votes of a patient, a check of its own": _terms(
            mechanism="confident", sigma1=3.1, patient_votes=3
        ),
        "votes of a patient, noise at the parties": _terms(patient_votes=3, **_AT_PARTIES),
        "batches of no query": _terms(batch_size=0),
        "the size of a batch is null": _terms(batch_size=None),
        "budgets of two parties": _terms(budgets=[1.0, 1.0]),
        "a budget of 0": _terms(budgets=[1.0, 0.0, 1.0]),
        "a budget is infinite": _terms(budgets=[1.0, math.inf, 1.0]),
        "a budget is a whole number": _terms(budgets=[1.0, 1, 1.0]),
        "delta is 0": _terms(delta=0.0),
        "delta is 1": _terms(delta=1.0),
        "purpose is missing": _without(_terms(), "purpose"),
        "purpose is null": _terms(purpose=None),
        "a purpose of 301 letters": _terms(purpose="x" * 301),
        "a purpose of two lines": _terms(purpose="Sepsis\nApproved: run 7"),
        "a purpose that steers a terminal": _terms(purpose="\x1b[2JSepsis"),
        "a purpose that turns its direction": _terms(purpose="Sepsis \u202eon"),
        "a purpose of two paragraphs": _terms(purpose="Sepsis\u2029Care"),
    }


def _spoiled_rest() -> dict[str, dict[str, Any]]:
    return {
        "batch terms": {
            "a field is missing": _without(_batch(), "predictions_digest"),
            "a field too many": _batch(batch=0),
            "no query": _batch(indices=[]),
            "more queries than a batch has": _batch(indices=[4, 0, 1, 2, 3]),
            "a query twice": _batch(indices=[4, 0, 4]),
            "labels of two inputs": _batch(run=RUN_TERMS["three labels"], indices=[2, 3, 4]),
            "two of three labels": _batch(run=RUN_TERMS["three labels"], indices=[0, 1]),
            "labels in another order": _batch(run=RUN_TERMS["three labels"], indices=[1, 0, 2]),
            "a negative position": _batch(indices=[4, -1]),
            "a position is a float": _batch(indices=[4.0]),
            "a position is true": _batch(indices=[True]),
            "predictions for threshold": _batch(predictions_digest=bytes(32)),
            "predictions digest of 31 bytes": _batch(
                run=RUN_TERMS["interactive-threshold"], predictions_digest=bytes(31)
            ),
            "predictions digest is null": _batch(predictions_digest=None),
            "spoiled terms of the run": _batch(run=_terms(delta=0.0)),
        },
        "release": {
            "outcomes are missing": {"labels": [1]},
            "a field too many": _release(rows=[1]),
            "counts beside labels": _counts(labels=[1, 0]),
            "a row of counts too few": _counts(tallies=[[3, -4]]),
            "rows of counts of two lengths": _counts(tallies=[[3, -4], [5]]),
            "a count of 2^31": _counts(tallies=[[2**31], [0]]),
            "a count is a float": _counts(tallies=[[3.0], [0]]),
            "counts are no rows": _counts(tallies=[3, 4]),
            "fewer outcomes than labels": _release(outcomes=[0, 1, 0]),
            "an unknown outcome": _release(outcomes=[0, 1, 0, 3]),
            "an outcome is true": _release(outcomes=[0, True, 0, 2]),
            "answered without a label": _release(labels=[-1, -1, 0, -1]),
            "a label without an answer": _release(labels=[2, 1, 0, -1]),
            "a label of -2": _release(labels=[2, -2, 0, -1]),
            "a label of 2^31": _release(labels=[2**31, -1, 0, -1]),
            "a label is a float": _release(labels=[2.0, -1, 0, -1]),
            "asked after a cap stopped": _release(labels=[2, -1, 0, -1], outcomes=[0, 2, 0, 1]),
        },
    }


def _spoiled_encodings() -> dict[str, bytes]:
    """Run terms that say the same in other bytes."""
    true = cbor(_terms())
    entries = [cbor(key) + cbor(value) for key, value in _terms().items()]
    delta = cbor("classes") + b"\x03"
    return {
        "keys in the order of the fields": bytes([0xA0 | len(entries)]) + b"".join(entries),
        "a key twice": bytes([true[0] + 1]) + true[1:] + cbor("unit") + cbor("record"),
        "length of the map in two bytes": bytes([0xB8, len(entries)]) + true[1:],
        "map of indefinite length": b"\xbf" + true[1:] + b"\xff",
        "a number in two bytes": true.replace(delta, cbor("classes") + b"\x18\x03"),
        "a float of 16 bits in 64": true.replace(
            cbor("sigma2") + cbor(7.5), cbor("sigma2") + bytes.fromhex("fb401e000000000000")
        ),
        "cut short": true[:-1],
        "trailing byte": true + b"\0",
        "empty": b"",
    }


def terms() -> Row:
    spoiled = {"run terms": _spoiled_run_terms(), **_spoiled_rest()}
    encoded = {
        kind: {name: cbor(value).hex() for name, value in table.items()}
        for kind, table in spoiled.items()
    }
    encoded["run terms"] |= {name: data.hex() for name, data in _spoiled_encodings().items()}
    return {
        "what": "terms and results, and such that must be refused; byte strings as {hex: ...}",
        "good": {
            kind: {
                name: {"value": shown(value), "bytes": cbor(value).hex()}
                for name, value in table.items()
            }
            for kind, table in good_terms().items()
        },
        "spoiled": encoded,
        "digests": {
            "pool": {"inputs": POOL, "digest": digest_of_pool(POOL).hex()},
            "queries": {
                "inputs": POOL,
                "digests": [digest_of_query(row).hex() for row in POOL],
            },
            "predictions": {
                "chances": PREDICTIONS,
                "digest": digest_of_predictions(PREDICTIONS).hex(),
            },
            "release": {**RELEASE, "digest": digest_of_release(**RELEASE).hex()},
        },
    }


def shown(value: Any) -> Any:
    """A value as JSON: byte strings in hex, under a key of their own."""
    match value:
        case bytes():
            return {"hex": value.hex()}
        case list():
            return [shown(item) for item in value]
        case dict():
            return {key: shown(item) for key, item in value.items()}
    return value


def values() -> Row:
    good = {
        "0": 0, "23": 23, "24": 24, "255": 255, "256": 256, "65535": 65535, "65536": 65536,
        "2^32 - 1": 2**32 - 1, "2^32": 2**32, "2^64 - 1": 2**64 - 1,
        "-1": -1, "-24": -24, "-25": -25, "-257": -257, "-2^64": -(2**64),
        "no bytes": b"", "23 bytes": bytes(23), "24 bytes": bytes(24), "256 bytes": bytes(256),
        "no text": "", "text": "pate", "text beyond ASCII": "\u00e9\u2208",
        "no items": [], "items": [1, -1, b"\0", "a", [None]], "24 items": [0] * 24,
        "no keys": {}, "keys of two lengths": {"b": 1, "aa": 2, "a": 3}, "a key of 24 letters":
        {"x" * 24: 1, "y": 2},
        "true": True, "false": False, "null": None,
        "0.0 in 16 bits": 0.0, "-0.0": -0.0, "1.0 is no 1": 1.0, "1.5": 1.5, "65504.0": 65504.0,
        "least of 16 bits": 2.0**-24, "100000.0 in 32 bits": 100000.0, "2^-149": 2.0**-149,
        "largest of 32 bits": 2.0**127 * (2 - 2.0**-23), "0.1 in 64 bits": 0.1, "1e300": 1e300,
        "1e-6": 1e-6, "2^-1074": 2.0**-1074, "eight lists": [[[[[[[[0]]]]]]]],
    }  # fmt: skip
    spoiled = {
        "empty": b"", "cut short": b"\x82\x01", "trailing byte": b"\x01\x00",
        "23 in two bytes": b"\x18\x17", "255 in three bytes": b"\x19\x00\xff",
        "65535 in five bytes": b"\x1a\x00\x00\xff\xff", "2^32 - 1 in nine bytes":
        b"\x1b\x00\x00\x00\x00\xff\xff\xff\xff", "-1 in two bytes": b"\x38\x00",
        "length of bytes in two bytes": b"\x58\x01\x00", "bytes in chunks": b"\x5f\x41\x00\xff",
        "text in chunks": b"\x7f\x61\x61\xff", "text that is no UTF-8": b"\x62\xc3\x28",
        "list of indefinite length": b"\x9f\x01\xff", "length of a list in two bytes":
        b"\x98\x01\x01", "map of indefinite length": b"\xbf\x61\x61\x01\xff",
        "keys in another order": b"\xa2\x61\x62\x01\x61\x61\x02",
        "a longer key first": b"\xa2\x62\x61\x61\x01\x61\x62\x02",
        "a key twice": b"\xa2\x61\x61\x01\x61\x61\x02", "a key is a number": b"\xa1\x01\x01",
        "a key is bytes": b"\xa1\x41\x61\x01", "1.0 in 32 bits": b"\xfa\x3f\x80\x00\x00",
        "1.0 in 64 bits": b"\xfb\x3f\xf0" + bytes(6), "100000.0 in 64 bits":
        bytes.fromhex("fb40f86a0000000000"), "true in two bytes": b"\xf8\x15",
        "undefined": b"\xf7", "a simple value": b"\xe0", "a simple value in two bytes":
        b"\xf8\xff", "break": b"\xff", "a reserved length": b"\x1c", "a date":
        b"\xc1\x01", "a big number": b"\xc2\x49\x01" + bytes(8), "a decimal fraction":
        b"\xc4\x82\x20\x01", "self-described": b"\xd9\xd9\xf7\x01", "nine lists":
        b"\x81" * 9 + b"\0", "bytes claim 2^63": b"\x5b\x7f" + b"\xff" * 7,
        "list claims 2^63 items": b"\x9b\x7f" + b"\xff" * 7,
    }  # fmt: skip
    return {
        "what": "values, and bytes that are none; byte strings as {hex: ...}",
        "good": {
            name: {"value": shown(value), "bytes": cbor(value).hex()}
            for name, value in good.items()
        },
        "spoiled": {name: data.hex() for name, data in spoiled.items()},
    }


VECTORS: dict[str, Callable[[], Row]] = {"values": values, "terms": terms}


if __name__ == "__main__":
    write_vectors(VECTORS)

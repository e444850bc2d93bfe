"""Terms, results and their digests once more, from the page of the wire format alone."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any
from unicodedata import category

from tests.support.reference_cbor import NotDeterministicError, read_cbor
from tests.support.reference_frames import Refused, require, sha256

Record = dict[str, Any]
Rows = Sequence[Sequence[float]]

# Digests ---------------------------------------------------------------------------------------


def digest_of_pool(rows: Rows) -> bytes:
    return sha256(f"pate-fed pool {len(rows)},{len(rows[0])}\n".encode(), *map(_doubles, rows))


def digest_of_query(row: Sequence[float]) -> bytes:
    return sha256(b"pate-fed query\n", _doubles([number + 0.0 for number in row]))


def digest_of_predictions(rows: Rows) -> bytes:
    head = f"pate-fed predictions {len(rows)},{len(rows[0])}\n".encode()
    return sha256(head, *map(_doubles, rows))


def digest_of_release(labels: Sequence[int], outcomes: Sequence[int]) -> bytes:
    head = f"pate-fed release {len(labels)}\n".encode()
    return sha256(head, struct.pack(f"<{len(labels)}q", *labels), bytes(outcomes))


def _doubles(row: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(row)}d", *row)


# Readers ---------------------------------------------------------------------------------------

_OWN = {
    "threshold": {"vote_threshold", "sigma2"},
    "interactive-threshold": {"vote_threshold", "sigma2", "confidence"},
    "gnmax": {"sigma2"},
    "lnmax": {"sigma2"},
    "counts": {"sigma2"},
    "confident": {"vote_threshold", "sigma1", "sigma2"},
    "interactive": {"vote_threshold", "sigma1", "sigma2", "confidence"},
    "stable-gaussian": {"sigma1", "test_delta"},
    "stable-laplace": {"sigma1", "test_delta"},
    "immutable": {"sigma2"},
    "tallies": {"sigma2"},
}
_AT_PARTIES = {"threshold", "interactive-threshold", "gnmax", "tallies"}
_LEARNING = {"interactive-threshold", "interactive"}
_ALWAYS_ANSWERING = {"gnmax", "lnmax", "counts", "immutable", "tallies"}
_REQUIRED = {
    "unit": str, "delta": float, "budgets": list, "classes": int,
    "weights": list, "rule": dict, "caps": dict,
    "pool_digest": bytes, "task_digest": bytes, "name": str, "purpose": str,
}  # fmt: skip
_OF_RULE = {"mechanism": str, "noise_place": str}
_OF_CAPS = {"max_asks": int, "max_answers": int, "batch_size": int}
_OF_LABELS = {"labels": int, "label_cap": int, "patient_votes": int}
_MAY_BE_NULL = {
    "sigma1": float, "sigma2": float, "dropouts": int, "colluders": int, "confidence": float,
    "test_delta": float, "vote_threshold": float,
}  # fmt: skip


def read_run_terms(data: bytes) -> Record:
    return _run_terms(_value(data))


def read_batch_terms(data: bytes) -> Record:
    terms = _map(_value(data), {"run": dict, "indices": list, "predictions_digest": bytes})
    run, digest = _run_terms(terms["run"]), terms["predictions_digest"]
    _different(terms["indices"])
    _whole_inputs(terms["indices"], run["caps"].get("labels", 1))
    require(len(terms["indices"]) <= min(run["caps"]["batch_size"], 4096), "a batch's size")
    learns = run["rule"]["mechanism"] in _LEARNING
    require(not digest or (len(digest) == 32 and learns), "a digest")
    return terms


def read_release(data: bytes) -> Record:
    value = _value(data)
    further = {"tallies": list} if type(value) is dict and "tallies" in value else {}
    release = _map(value, {"labels": list, "outcomes": list, **further})
    labels, outcomes = release["labels"], release["outcomes"]
    _outcomes(outcomes)
    require(all(type(one) is int and -1 <= one < 2**31 for one in labels), "labels")
    require(len(labels) == len(outcomes), "one outcome for each label")
    if further:
        rows = release["tallies"]
        require(len(rows) == len(labels) and set(labels) <= {-1}, "counts instead of labels")
        require(all(type(row) is list and len(row) == len(rows[0]) for row in rows), "rows")
        whole = all(type(one) is int and -(2**31) <= one < 2**31 for row in rows for one in row)
        require(whole, "whole numbers")
        return release
    answered = [outcome == 0 for outcome in outcomes]
    require(answered == [label >= 0 for label in labels], "a label where answered, and only there")
    return release


READERS: Mapping[str, Callable[[bytes], Record]] = {
    "run terms": read_run_terms,
    "batch terms": read_batch_terms,
    "release": read_release,
}


def _value(data: bytes) -> Any:
    try:
        return read_cbor(data)
    except NotDeterministicError as error:
        raise Refused("a value must be deterministic CBOR") from error


def _map(value: Any, types: Mapping[str, type]) -> Record:
    require(type(value) is dict and set(value) == set(types), "exactly the fields")
    require(all(type(value[name]) is kind for name, kind in types.items()), "their types")
    return dict(value)


def _different(numbers: list[Any]) -> None:
    require(bool(numbers) and all(type(one) is int and one >= 0 for one in numbers), "positions")
    require(len(set(numbers)) == len(numbers), "none twice")


def _whole_inputs(indices: list[int], labels: int) -> None:
    require(len(indices) % labels == 0, "all labels of each input")
    for start in range(0, len(indices), labels):
        first = indices[start]
        require(first % labels == 0, "an input's first label first")
        wanted = list(range(first, first + labels))
        require(indices[start : start + labels] == wanted, "one label after another")


def _outcomes(outcomes: list[Any]) -> None:
    require(all(type(one) is int and one in (0, 1, 2) for one in outcomes), "outcomes")
    stopped = [one == 2 for one in outcomes]
    require(stopped == sorted(stopped), "what a cap stopped comes last")


def _run_terms(value: Any) -> Record:
    terms = _map(value, _REQUIRED)
    nulls = {name for name in _MAY_BE_NULL if terms["rule"].get(name, 0) is None}
    given = {name: kind for name, kind in _MAY_BE_NULL.items() if name not in nulls}
    rule = _map(terms["rule"], _OF_RULE | given | dict.fromkeys(nulls, type(None)))
    require(len(terms["pool_digest"]) == 32 and terms["classes"] >= 2, "pool and classes")
    require(len(terms["task_digest"]) == 32, "a task, or 32 zeros")
    _name(terms["name"])
    _weights(terms["weights"])
    _mechanism(rule)
    _noise(rule, parties=len(terms["weights"]))
    require(terms["unit"] in ("record", "party"), "a known unit")
    several = {name: kind for name, kind in _OF_LABELS.items() if name in terms["caps"]}
    caps = _map(terms["caps"], _OF_CAPS | several)
    _caps(caps, answers_always=rule["mechanism"] in _ALWAYS_ANSWERING)
    require("labels" not in caps or terms["classes"] == 2, "yes-no questions")
    if "patient_votes" in caps:
        require(1 <= caps["patient_votes"] <= caps["max_asks"], "votes of a patient")
        require("labels" not in caps and terms["unit"] == "record", "patients who vote once")
        require(rule["mechanism"] in ("gnmax", "threshold"), "a mechanism for records")
        require(rule["noise_place"] == "coordinator", "no noise at the parties")
    parties = len(terms["weights"])
    budgets = terms["budgets"]
    require(len(budgets) == parties and all(_positive(one) for one in budgets), "budgets")
    require(0 < terms["delta"] < 1, "delta")
    _purpose(terms["purpose"])
    return terms


def _positive(number: Any) -> bool:
    return type(number) is float and 0 < number < math.inf


def _name(name: str) -> None:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    require(1 <= len(name) <= 64 and name[0] in letters, "a run's name")
    require(all(letter in f"{letters}._-" for letter in name), "a run's name")


def _purpose(text: str) -> None:
    require(len(text) <= 300, "a short purpose")
    unseen = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    require(not unseen & {category(letter) for letter in text}, "a purpose of one plain line")


def _weights(parties: list[Any]) -> None:
    total = 0
    require(bool(parties), "a party")
    for runs in parties:
        require(type(runs) is list and bool(runs), "runs")
        for run in runs:
            require(type(run) is list and len(run) == 2, "a weight and its teachers")
            require(all(type(one) is int and one >= 1 for one in run), "at least 1")
            total += run[0] * run[1]
        require(all(one[0] != other[0] for one, other in pairwise(runs)), "one run once")
    require(total < 2**30, "votes that fit the ring")


def _mechanism(rule: Record) -> None:
    require(rule["mechanism"] in _OWN, "a known mechanism")
    for name in ("vote_threshold", "sigma1", "sigma2", "confidence", "test_delta"):
        present = rule[name] is not None
        require(present == (name in _OWN[rule["mechanism"]]), "what the mechanism has")
    sigmas = [rule[name] for name in ("sigma1", "sigma2") if rule[name] is not None]
    require(all(map(_positive, sigmas)), "sigmas")
    require(math.isfinite(rule["vote_threshold"] or 0.0), "a finite threshold")
    require(0 <= (rule["confidence"] or 0.0) <= 1, "a chance")
    require(rule["test_delta"] is None or 0 < rule["test_delta"] < 0.5, "a chance below 1/2")


def _noise(rule: Record, *, parties: int) -> None:
    at_parties = rule["noise_place"] == "parties"
    require(at_parties or rule["noise_place"] == "coordinator", "a known place")
    both = rule["colluders"], rule["dropouts"]
    require(all((one is not None) == at_parties for one in both), "with noise at the parties")
    if at_parties:
        colluders, dropouts = both
        require(colluders >= 1 and dropouts >= 0, "their ranges")
        require(parties - colluders - dropouts >= 1, "an honest share")
        require(rule["mechanism"] in _AT_PARTIES, "noise that parties can add")
    require(at_parties or rule["mechanism"] != "tallies", "noise of counts at the parties")


def _caps(caps: Record, *, answers_always: bool) -> None:
    asks, answers = caps["max_asks"], caps["max_answers"]
    require(1 <= answers <= asks, "caps")
    require(caps["batch_size"] >= 1, "a query in a batch")
    require(answers == asks or not answers_always, "caps that fit")
    labels, label_cap = caps.get("labels"), caps.get("label_cap")
    require(labels is None or 2 <= labels <= 50, "several labels")
    if labels is not None:
        require(asks % labels == 0 and caps["batch_size"] % labels == 0, "whole inputs")
    if label_cap is not None:
        require(labels is not None and label_cap >= 1, "a cap on several labels")
        require(2 * label_cap < labels, "a cap that lowers the price")

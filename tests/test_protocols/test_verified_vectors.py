"""Known reports of verified votes, good and spoiled, through the code that would meet them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from protocols.errors import MalformedMessageError
from protocols.verified.prime_field import PrimeField
from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import EvaluationPoint, VoteShare, challenge, prove
from tests.support.vectors import read_vectors

VECTORS = read_vectors("verified_votes")
COIN = bytes.fromhex(VECTORS["coin"])
GOOD, SPOILED = VECTORS["good"], VECTORS["spoiled"]


def layout_of(row: dict[str, Any]) -> VoteLayout:
    numbers = dict(row["numbers"])
    return VoteLayout(field=PrimeField(numbers.pop("bits")), **numbers)


def shares_of(row: dict[str, Any]) -> tuple[VoteShare, VoteShare]:
    layout, context = layout_of(row), bytes.fromhex(row["context"])
    payloads = (bytes.fromhex(row[side]) for side in ("coordinator", "tally"))
    return (
        VoteShare.of_coordinator(layout, next(payloads), context=context),
        VoteShare.of_tally(layout, next(payloads), context=context),
    )


def found_in(row: dict[str, Any], coin: bytes = COIN) -> str:
    """What both aggregators find in a report, each in the order of its checks."""
    layout = layout_of(row)
    try:
        shares = shares_of(row)
    except MalformedMessageError:
        return "malformed"
    if [share.binding.hex() for share in shares] != row["bindings"]:
        return "unbound"
    point = EvaluationPoint.of(layout, coin)
    bindings = (share.binding for share in shares)
    weights = challenge(layout, *bindings, context=bytes.fromhex(row["context"]))
    answers = [
        point.answer(share, takes_off_votes=place == 0) for place, share in enumerate(shares)
    ]
    return "accepted" if point.accepts(weights, answers[0], answers[1]) else "invalid"


@pytest.mark.parametrize("name", GOOD)
class TestKnownAnswers:
    def test_a_hospital_makes_the_known_payloads_of_what_it_drew(self, name: str) -> None:
        row = GOOD[name]
        drawn = iter([bytes.fromhex(row["drawn"][part]) for part in ("masks", "seed", "blind")])
        sent = prove(
            layout_of(row),
            np.array(row["rows"]),
            context=bytes.fromhex(row["context"]),
            random_bytes=lambda _: next(drawn),
        )
        assert sent.coordinator.hex() == row["coordinator"]
        assert sent.tally.hex() == row["tally"]

    def test_both_aggregators_find_the_known_bindings_weights_and_point(self, name: str) -> None:
        row = GOOD[name]
        first, second = shares_of(row)
        assert [first.binding.hex(), second.binding.hex()] == row["bindings"]
        layout = layout_of(row)
        context = bytes.fromhex(row["context"])
        weights = challenge(layout, first.binding, second.binding, context=context)
        assert weights.tolist() == row["weights"]
        assert EvaluationPoint.of(layout, COIN).place.ravel().tolist() == row["place"]

    def test_both_give_the_known_answers_and_accept(self, name: str) -> None:
        row = GOOD[name]
        point = EvaluationPoint.of(layout_of(row), COIN)
        for place, share in enumerate(shares_of(row)):
            answer = point.answer(share, takes_off_votes=place == 0)
            assert answer.T.tolist() == row["answers"][place]
        assert found_in(row) == "accepted"


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_report_is_found_out(name: str) -> None:
    assert found_in(SPOILED[name]) == SPOILED[name]["found"]


def test_a_fault_is_found_whatever_the_coin() -> None:
    invalid = [row for row in SPOILED.values() if row["found"] == "invalid"]
    assert len(invalid) >= 12
    for coin in (b"a" * 32, b"b" * 32):
        assert {found_in(row, coin) for row in invalid} == {"invalid"}
        assert {found_in(row, coin) for row in GOOD.values()} == {"accepted"}


PRINTS_A_PROOF = """
import hashlib
import numpy as np
from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import prove
layout = VoteLayout.of(queries=2000, columns=10, votes=25)
rows = np.random.default_rng(0).multinomial(25, np.full(10, 0.1), size=2000)
keys = iter((b"m" * 32, b"s" * 32, b"b" * 32))
sent = prove(layout, rows, context=bytes(32), random_bytes=lambda _: next(keys))
print(hashlib.sha256(sent.coordinator + sent.tally).hexdigest())
"""


@pytest.mark.slow
def test_a_proof_has_the_same_bytes_with_any_number_of_threads() -> None:
    """Its floating-point products are whole numbers below 2^53: their order changes nothing."""
    made = {
        subprocess.run(
            [sys.executable, "-c", PRINTS_A_PROOF],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "7")
    }
    assert len(made) == 1
    assert len(made.pop().strip()) == 64

"""What both aggregators tell each other, a second time: by hand, and in slow integers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from protocols import wire
from protocols.prg import ctr_keystream
from protocols.verified import VoteShare
from tests.support import reference_votes as slow
from tests.support.checking import Check, gaussian
from tests.support.reference_cbor import cbor


def digest(label: str, value: Any) -> bytes:
    return hashlib.sha256(b"pate-fed/1/message\0" + cbor([label, value])).digest()


def elements_of(share: VoteShare) -> list[int]:
    parts = share.digits, share.masks.ravel(), share.quotients.ravel()
    return [int(word) for part in parts for word in part.ravel()]


def numbers_of(check: Check, hospital: bytes) -> slow.Numbers:
    layout = check.batch.layout_of(hospital)
    return slow.Numbers(*layout.numbers[:6])


def written(values: Sequence[slow.Complex]) -> bytes:
    return slow.written([real for real, _ in values] + [imaginary for _, imaginary in values])


class Retold:
    """An honest batch, and its coin by the formula."""

    def __init__(self) -> None:
        self.check = Check(3, 32, 3)
        self.told = [wire.decode(frame) for frame in self.check.run()]
        self.messages: list[Any] = [signed.message for signed in self.told]
        self.plan = self.check.batch.plan_digest
        headers = [wire.decode(frame).digest for frame in self.messages[0].headers]
        nonces = [self.messages[2].nonce, self.messages[1].nonce]
        self.coin = digest("verification coin", [self.plan, headers, *nonces])

    def shares(self, place: int) -> list[VoteShare]:
        side, listed = self.check.machine(place)._side, self.check.machine(place)._history.listed
        opened = [side._opened(report) for report in listed]
        return [share for found in opened if found is not None for share in found[1:]]


@pytest.fixture(scope="module")
def retold() -> Retold:
    return Retold()


def test_commitments_are_the_hashes_of_the_page(retold: Retold) -> None:
    listed, receipt, answers = retold.messages[:3]
    assert listed.nonce_commitment == digest("nonce commitment", [retold.plan, answers.nonce])
    assert receipt.list_digest == retold.told[0].digest
    for place, told in enumerate((listed, receipt)):
        seed = retold.check.machine(place)._side.secrets.noise_seed
        aggregator = retold.check.identities[place].fingerprint
        assert told.noise_commitment == digest("noise commitment", [retold.plan, aggregator, seed])


@pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
def test_answers_are_those_of_slow_integers(retold: Retold, place: int) -> None:
    hospitals = [one.fingerprint for one in retold.check.hospitals]
    told = retold.messages[2 + place].answers
    for hospital, share, answer in zip(hospitals, retold.shares(place), told, strict=True):
        numbers = numbers_of(retold.check, hospital)
        point = slow.point_of(numbers, retold.coin)
        expected = slow.answer(numbers, elements_of(share), point, takes_off_votes=place == 0)
        assert answer == written(expected)


def test_both_accept_by_the_digest_of_the_page(retold: Retold) -> None:
    hospitals = [one.fingerprint for one in retold.check.hospitals]
    expected = digest("accepted reports", [retold.coin, hospitals])
    assert [each.accepted for each in retold.messages[4:6]] == [expected] * 2


@pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
def test_a_share_of_the_sum_is_numbers_and_the_committed_noise(retold: Retold, place: int) -> None:
    check = retold.check
    hospitals = [one.fingerprint for one in check.hospitals]
    seed = check.machine(place)._side.secrets.noise_seed
    aggregator = check.identities[place].fingerprint
    key = digest("aggregator's noise", [retold.plan, aggregator, retold.coin, seed])
    stream = ctr_keystream(key)

    def next_bytes(count: int) -> bytes:
        drawn = bytearray(count)
        stream.update_into(bytes(count), drawn)
        return bytes(drawn)

    shape = check.batch.queries, check.batch.columns
    total = [int(number) for number in gaussian(shape, next_bytes).ravel()]
    for hospital, share in zip(hospitals, retold.shares(place), strict=True):
        numbers = numbers_of(check, hospital)
        digits = np.array(share.digits).reshape(-1, numbers.digits).tolist()
        for at, row in enumerate(digits):
            total[at] += sum(digit * numbers.base**power for power, digit in enumerate(row))
    prime = 2**31 - 1
    assert retold.messages[6 + place].body == slow.written([number % prime for number in total])

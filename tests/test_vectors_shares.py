"""Vectors of shares, through our sharing and through a second one in plain whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.errors import TooFewSharesError, WrongShareError
from protocols.masked import MaskedSum
from protocols.shamir import (
    Shamir,
    elements_to_secrets,
    secrets_to_elements,
    split_shares,
)
from tests.support.reference_frames import Refused
from tests.support.reference_sharing import (
    join,
    read_secret,
    read_share,
    share_of,
    threshold_of,
    write_secret,
    write_share,
)
from tests.support.vectors import read_vectors
from tests.test_protocols.test_shamir import bytes_of

SHARES = read_vectors("shares")
ELEMENTS, SHARING = SHARES["elements"], SHARES["sharing"]
SECRET = bytes.fromhex(SHARING["secret"])
SHAMIR = Shamir(SHARING["threshold"], SHARING["parties"])


def named(table: dict[str, Any]) -> list[Any]:
    return [pytest.param(value, id=name) for name, value in table.items()]


def read(shares: dict[str, str]) -> dict[int, bytes]:
    return {int(holder): bytes.fromhex(share) for holder, share in shares.items()}


def ours(shares: dict[int, bytes]) -> bytes:
    rows = split_shares(b"".join(shares.values()))
    (secret,) = elements_to_secrets(SHAMIR.join(rows[:, None], holders=list(shares)))
    return secret


def theirs(shares: dict[int, bytes]) -> bytes:
    return write_secret(join({holder: read_share(share) for holder, share in shares.items()}))


@pytest.mark.parametrize("vector", named(ELEMENTS["good"]))
def test_a_good_share_is_read_and_written_alike(vector: dict[str, Any]) -> None:
    numbers, data = vector["numbers"], bytes.fromhex(vector["bytes"])
    assert bytes_of(np.array([numbers])) == write_share(numbers) == data
    assert split_shares(data).tolist() == [read_share(data)] == [numbers]


@pytest.mark.parametrize("data", named(ELEMENTS["spoiled"]))
def test_spoiled_bytes_are_no_share(data: str) -> None:
    with pytest.raises((WrongShareError, ValueError)):
        (_share,) = split_shares(bytes.fromhex(data))
    with pytest.raises(Refused):
        read_share(bytes.fromhex(data))


def test_known_coefficients_give_the_known_shares() -> None:
    powers = [read_share(bytes.fromhex(power)) for power in SHARING["coefficients"]]
    drawn = b"".join(number.to_bytes(4, "little") for power in powers for number in power)
    shares = SHAMIR.split(secrets_to_elements([SECRET]), random_bytes=lambda size: drawn[:size])
    assert bytes_of(shares[:, 0]).hex() == "".join(SHARING["shares"])
    for holder, share in enumerate(SHARING["shares"]):
        assert write_share(share_of(read_secret(SECRET), powers, holder)).hex() == share


@pytest.mark.parametrize("holders", SHARING["holders_that_join_it"], ids=str)
def test_every_four_of_the_known_shares_join_the_known_secret(holders: list[int]) -> None:
    chosen = {holder: bytes.fromhex(SHARING["shares"][holder]) for holder in holders}
    assert ours(chosen) == theirs(chosen) == SECRET


@pytest.mark.parametrize(
    "vector", named({k: v for k, v in SHARING["spoiled"].items() if v["joins_to"]})
)
def test_spoiled_shares_join_to_another_secret(vector: dict[str, Any]) -> None:
    shares = read(vector["shares"])
    assert ours(shares).hex() == theirs(shares).hex() == vector["joins_to"]
    assert vector["joins_to"] != SHARING["secret"]


def test_three_shares_join_nothing() -> None:
    shares = read(SHARING["spoiled"]["three shares"]["shares"])
    with pytest.raises(TooFewSharesError):
        ours(shares)
    assert theirs(shares) != SECRET


def test_shares_that_join_to_no_word_join_nothing() -> None:
    shares = read(SHARING["spoiled"]["shares of 65536, which is no word"]["shares"])
    with pytest.raises(WrongShareError):
        ours(shares)
    with pytest.raises(Refused):
        theirs(shares)


def test_thresholds_are_the_known_ones() -> None:
    known = {int(parties): threshold for parties, threshold in SHARING["thresholds"].items()}
    assert {n: MaskedSum.threshold(n) for n in known} == known
    assert {n: threshold_of(n) for n in known} == known

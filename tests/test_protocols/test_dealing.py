"""A dealing's hashes: what a holder opens is what the dealer signed, and only what it may open."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np
import pytest

from protocols.dealing import (
    Dealt,
    deal,
    disclose,
    disclosed_bytes,
    read_disclosure,
)
from protocols.envelope import TAG_BYTES, open_shares, seal_shares
from protocols.errors import BrokenEnvelopeError, WrongShareError
from protocols.fields import MAX_PARTIES
from protocols.messages import MAX_COLUMN_BYTES
from protocols.pair_keys import PairRoots, envelope_key
from protocols.shamir import (
    SHARE_BYTES,
    Shamir,
    elements_to_secrets,
)
from tests.support import reference_sharing as sharing
from tests.support.reference_crypto import counter_stream, hkdf

PLAN = hashlib.sha256(b"plan").digest()
ME = hashlib.sha256(b"me").digest()
PARTIES, THRESHOLD, DEALER = 5, 4, 2
SECRETS = [hashlib.sha256(bytes([place])).digest() for place in range(PARTIES)]
PATTERNS = [
    pytest.param(list(dropped), id=f"without {dropped}" if dropped else "all")
    for count in range(3)
    for dropped in combinations([0, 1, 3, 4], count)
]


def random_bytes(seed: bytes = b""):  # type: ignore[no-untyped-def]
    calls = iter(range(1000))
    return lambda size: hashlib.shake_256(seed + bytes([next(calls)])).digest(size)


def dealt(seed: bytes = b"", *, plan: bytes = PLAN, seat: int = DEALER) -> Dealt:
    return deal(
        SECRETS,
        seat=seat,
        sender=ME,
        plan_digest=plan,
        threshold=THRESHOLD,
        random_bytes=random_bytes(seed),
    )


def disclosed(one: Dealt, holder: int, dropped: list[int]) -> bytes:
    return opened(one.columns[holder], one, holder, dropped)


def opened(column: bytes, one: Dealt, holder: int, dropped: list[int]) -> bytes:
    return disclose(column, one.message, dealer=DEALER, holder=holder, dropped=dropped)


def read(data: bytes, one: Dealt, holder: int, dropped: list[int]):  # type: ignore[no-untyped-def]
    return read_disclosure(data, one.message, dealer=DEALER, holder=holder, dropped=dropped)


# What opens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", PATTERNS)
def test_disclosures_join_to_the_self_mask_and_the_keys_with_who_dropped_out(
    dropped: list[int],
) -> None:
    one = dealt()
    holders = [0, 1, 2, 4]
    shares = np.array([read(disclosed(one, h, dropped), one, h, dropped) for h in holders])
    joined = elements_to_secrets(Shamir(THRESHOLD, PARTIES).join(shares, holders=holders))
    assert joined == [SECRETS[place] for place in (DEALER, *dropped)]


@pytest.mark.parametrize("dropped", PATTERNS)
def test_a_disclosure_holds_no_other_share(dropped: list[int]) -> None:
    one = dealt()
    for holder in range(PARTIES):
        data = disclosed(one, holder, dropped)
        assert len(data) == disclosed_bytes(PARTIES, len(dropped))
        for place in range(PARTIES):
            share = one.columns[holder][32 + SHARE_BYTES * place :][:SHARE_BYTES]
            assert (share in data) == (place in (DEALER, *dropped))
            # Not even a half of it.
            assert (share[:17] in data) == (place in (DEALER, *dropped))


def test_hashes_are_the_ones_that_the_module_says() -> None:
    """A second implementation of the roots and of the hashes of secrets."""
    one, domain = dealt(), b"pate-fed/1/dealing\0"

    def sha(*parts: bytes) -> bytes:
        return hashlib.sha256(domain + b"".join(parts)).digest()

    def number(value: int) -> bytes:
        return value.to_bytes(4, "big")

    def share_of(column: bytes, place: int) -> bytes:
        return column[32 + 34 * place :][:34]

    bound = PLAN + one.message.salt + number(DEALER)
    padding = bytes(128 - len(domain + b"share\0" + bound + number(0)))
    for holder, column in enumerate(one.columns):
        leaves = [
            sha(b"share\0", bound, number(holder), padding, number(place), share_of(column, place))
            for place in range(PARTIES)
        ]
        keys = sha(b"keys\0", *[leaf for place, leaf in enumerate(leaves) if place != DEALER])
        assert one.message.column_root(holder) == sha(b"column\0", leaves[DEALER], keys)
        assert column[:32] == keys
    assert one.message.secret_hashes == b"".join(
        sha(b"secret\0", bound, number(place), secret) for place, secret in enumerate(SECRETS)
    )


def test_polynomials_are_drawn_from_the_stream_of_a_key_that_is_fresh() -> None:
    """Another key than the salt, in bytes of AES-256-CTR: none comes twice."""
    drawn, sizes = random_bytes(b"coefficients"), []

    def counted(size: int) -> bytes:
        sizes.append(size)
        return drawn(size)

    one = deal(
        SECRETS,
        seat=DEALER,
        sender=ME,
        plan_digest=PLAN,
        threshold=THRESHOLD,
        random_bytes=counted,
    )
    assert sizes == [32, 32]
    again = random_bytes(b"coefficients")
    assert one.message.salt == again(32)
    stream = counter_stream(again(32), 4 * (THRESHOLD - 1) * PARTIES * 16)
    numbers = np.frombuffer(stream, dtype="<u4").astype(np.int64) % 65537
    by_power = numbers.reshape(THRESHOLD - 1, PARTIES, 16)
    for place, secret in enumerate(SECRETS):
        powers = [sharing.read_secret(secret), *by_power[:, place].tolist()]
        for holder, column in enumerate(one.columns):
            share = sharing.share_of(powers[0], powers[1:], holder)
            assert column[32 + 34 * place :][:34] == sharing.write_share(share)


def test_a_salt_is_fresh_so_equal_secrets_have_other_hashes() -> None:
    one, other = dealt(b"1").message, dealt(b"2").message
    assert one.salt != other.salt
    hashes = {each.secret_hash(place) for each in (one, other) for place in range(PARTIES)}
    assert len(hashes) == 2 * PARTIES


def test_the_largest_column_fits_its_bound() -> None:
    assert 32 + SHARE_BYTES * MAX_PARTIES + TAG_BYTES <= MAX_COLUMN_BYTES
    for dropped in (0, 1, MAX_PARTIES // 3):
        assert disclosed_bytes(MAX_PARTIES, dropped) <= MAX_COLUMN_BYTES


# What does not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", PATTERNS)
def test_every_changed_byte_of_a_disclosure_is_noticed(dropped: list[int]) -> None:
    one = dealt()
    data = disclosed(one, 3, dropped)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(WrongShareError):
            read(bytes(changed), one, 3, dropped)


def test_a_disclosure_is_worth_nothing_elsewhere() -> None:
    one = dealt()
    data = disclosed(one, 3, [0])
    others = {
        "another holder": lambda: read(data, one, 1, [0]),
        "another that dropped out": lambda: read(data, one, 3, [1]),
        "nobody dropped out": lambda: read(data, one, 3, []),
        "another dealing": lambda: read(data, dealt(b"other"), 3, [0]),
        "another plan": lambda: read(data, dealt(plan=bytes(32)), 3, [0]),
        "another dealer": lambda: read_disclosure(
            data, one.message, dealer=1, holder=3, dropped=[0]
        ),
    }
    for why, attempt in others.items():
        with pytest.raises(WrongShareError):
            pytest.fail(f"{why}: {attempt()}")


@pytest.mark.parametrize("dropped", PATTERNS)
def test_a_wrong_share_of_a_key_is_found_before_any_of_them_is_opened(dropped: list[int]) -> None:
    """Where nobody dropped out none is, and a wrong one changes nothing."""
    one = dealt()
    true = disclosed(one, 3, dropped)
    for place in range(32, len(one.columns[3])):
        if (place - 32) // SHARE_BYTES == DEALER:
            continue
        column = bytearray(one.columns[3])
        column[place] ^= 1
        if dropped:
            with pytest.raises(WrongShareError):
                opened(bytes(column), one, 3, dropped)
        else:
            assert opened(bytes(column), one, 3, dropped) == true


def test_nothing_secret_is_shown() -> None:
    assert repr(dealt()) == "Dealt(holders=5)"


# Envelopes inside a batch ----------------------------------------------------------------------


def test_a_column_opens_for_its_pair_direction_plan_stage_and_dealing_only() -> None:
    root, one, other = bytes(32), b"\x01" * 32, b"\x02" * 32
    true = {"plan_digest": PLAN, "stage": "shares", "sender": one, "receiver": other}
    digest = hashlib.sha256(b"dealing").digest()
    sealed = seal_shares(b"column", envelope_key(root, **true), dealing_digest=digest)
    key = envelope_key(root, **true)
    assert open_shares(sealed, key, dealing_digest=digest) == b"column"
    assert len(sealed) == len(b"column") + TAG_BYTES
    changes = [
        {"plan_digest": bytes(32)},
        {"stage": "another"},
        {"sender": other, "receiver": one},
        {"receiver": b"\x03" * 32},
    ]
    for change in changes:
        key = envelope_key(root, **{**true, **change})
        with pytest.raises(BrokenEnvelopeError):
            open_shares(sealed, key, dealing_digest=digest)
    with pytest.raises(BrokenEnvelopeError):
        open_shares(sealed, envelope_key(b"\x09" * 32, **true), dealing_digest=digest)
    with pytest.raises(BrokenEnvelopeError):
        open_shares(sealed, envelope_key(root, **true), dealing_digest=bytes(32))


def test_every_changed_byte_breaks_a_sealed_column() -> None:
    key, digest = bytes(32), hashlib.sha256(b"dealing").digest()
    sealed = seal_shares(b"a column of shares", key, dealing_digest=digest)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(BrokenEnvelopeError):
            open_shares(bytes(changed), key, dealing_digest=digest)
    for short in (b"", sealed[:15], sealed[:-1]):
        with pytest.raises(BrokenEnvelopeError):
            open_shares(short, key, dealing_digest=digest)


def test_both_ends_derive_one_key_for_an_envelope_and_another_for_its_answer() -> None:
    one, other, root = b"\x01" * 32, b"\x02" * 32, bytes(range(32))
    sender, receiver = PairRoots(one, {other: root}), PairRoots(other, {one: root})
    at = {"plan_digest": PLAN, "stage": "shares"}
    key = sender.sending_key(other, **at)
    assert key == receiver.receiving_key(one, **at)
    assert key != receiver.sending_key(one, **at)
    info = b"pate-fed/1/pair\0" + b"envelope\0" + b"shares\0" + one + other
    assert key == hkdf(root, salt=PLAN, info=info)
    for roots in (sender, receiver):
        roots.advance(1)
    assert sender.sending_key(other, **at) == receiver.receiving_key(one, **at) != key
    assert key not in sender.keys_for(PLAN).values()

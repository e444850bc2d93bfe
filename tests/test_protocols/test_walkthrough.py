"""The protocol in one function makes the bytes of the vectors and of the state machines."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocols import dealing, walkthrough, wire
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.errors import TooFewPartiesError, TooFewSharesError
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import Plan, RunOffer, RunRecord, Settlement
from protocols.plain import PlainSum
from protocols.secure_sum import SecureSum
from protocols.suites import SUITE_X25519
from protocols.walkthrough import Walker, walk_through
from protocols.wire import expect
from tests.support.reference_sharing import read_share
from tests.support.rounds import EXPIRES_AT, MemoryRun
from tests.support.vectors import read_vectors

RUNS = {form: read_vectors(f"{form.name}_run") for form in (AdditiveSum, MaskedSum)}
CASES = [
    pytest.param(PlainSum, 3, (), id="plain"),
    pytest.param(AdditiveSum, 3, (), id="additive"),
    pytest.param(AdditiveSum, 10, (), id="additive, ten"),
    pytest.param(MaskedSum, 5, (), id="masked"),
    pytest.param(MaskedSum, 5, (4,), id="masked, one lost"),
    pytest.param(MaskedSum, 10, (0, 3, 9), id="masked, three lost"),
]


def test_a_reader_has_it_on_a_few_pages() -> None:
    lines = Path(str(walkthrough.__file__)).read_text("utf-8").splitlines()
    assert len(lines) < 200


# The vectors -------------------------------------------------------------------------------------


def identity(row: dict[str, Any]) -> SigningIdentity:
    return SigningIdentity.from_private_bytes(bytes.fromhex(row["identity_private"]))


def sealing_key(private: bytes) -> SealingKey:
    key, secret = SealingKey(SUITE_X25519), X25519PrivateKey.from_private_bytes(private)
    key._private_key, key._public_bytes = secret, secret.public_key().public_bytes_raw()
    return key


def stream_key(seat: int) -> bytes:
    """The key of the stream from which the dealer in a seat draws its polynomials."""
    return bytes([seat]) * 32


def draws(row: dict[str, Any]) -> Iterator[bytes]:
    """What a party draws at random, in its order."""
    yield bytes.fromhex(row["nonce"])
    yield from map(bytes.fromhex, row["halves"].values())
    if "b" in row:
        yield from map(bytes.fromhex, (row["b"], row["salt"]))
        yield stream_key(row["seat"])


def coefficients(row: dict[str, Any]) -> bytes:
    shares = (bytes.fromhex(share) for power in row["coefficients"] for share in power)
    return b"".join(n.to_bytes(4, "little") for share in shares for n in read_share(share))


def walker(row: dict[str, Any]) -> Walker:
    drawn = draws(row)
    key = sealing_key(bytes.fromhex(row["sealing_private"]))
    return Walker(identity(row), key, lambda size: next(drawn), np.array(row["x"]))


@pytest.mark.parametrize("form", RUNS)
def test_it_makes_the_known_ys_the_known_sum_and_the_known_transcript(
    form: type[SecureSum], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUNS[form]
    rows, batch = run["parties"], run["batch"]
    by_key = {stream_key(row["seat"]): row for row in rows}
    monkeypatch.setattr(
        dealing, "_stream_bytes", lambda key: lambda size: coefficients(by_key[key])
    )
    record, plan, settlement = (
        wire.decode(bytes.fromhex(frame)).message
        for frame in (run["setup"]["record"], batch["plan"], batch["settlement"])
    )
    assert isinstance(record, RunRecord)
    assert isinstance(plan, Plan)
    assert isinstance(settlement, Settlement)
    ys, total, transcript = walk_through(
        form(),
        identity(run["coordinator"]),
        [walker(row) for row in rows],
        nonce=bytes.fromhex(run["coordinator"]["nonce"]),
        expires_at=record.expires_at,
        colluders=record.colluders,
        terms=(record.terms, plan.terms),
        result=settlement.result,
        lost=[row["seat"] for row in rows if str(row["seat"]) not in batch["vectors"]],
        suite=SUITE_X25519,
    )
    assert {str(seat): frame.hex() for seat, frame in ys.items()} == batch["vectors"]
    assert total.tolist() == run["sum"]
    heads = {entry.kind: entry.head.hex() for entry in transcript.entries}
    known = run["transcript_heads"]
    assert heads["setup"] == known["after_setup"]
    assert heads["plan"] == known["after_plan"]
    assert heads["settlement"] == known["after_settlement"]
    assert transcript.entries[0].digest.hex() == run["run_id"]


# The state machines ------------------------------------------------------------------------------


class Watched:
    """A run of the state machines that keeps what each party drew."""

    def __init__(
        self, form: type[SecureSum], parties: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.drawn: dict[bytes, list[bytes]] = {}
        self.keys: dict[bytes, SealingKey] = {}
        make = SealingKey

        def sealing(suite: str) -> SealingKey:
            key = make(suite)
            self.keys[key.public_bytes] = key
            return key

        monkeypatch.setattr("protocols.rounds.setup.at_party.SealingKey", sealing)
        self.run = MemoryRun(parties, form=form)
        for fingerprint, party in self.run.parties.items():
            draw = self._recorded(fingerprint)
            party.random_bytes = draw

    def _recorded(self, fingerprint: bytes) -> Callable[[int], bytes]:
        drawn = self.drawn.setdefault(fingerprint, [])

        def draw(size: int) -> bytes:
            drawn.append(secrets.token_bytes(size))
            return drawn[-1]

        return draw

    def walkers(self, vectors: list[Any]) -> list[Walker]:
        """The parties again, with the numbers that they drew, in any order."""
        seated = zip(self.run.coordinator.seats, vectors, strict=True)
        return [self._walker(fingerprint, x) for fingerprint, x in reversed(list(seated))]

    def _walker(self, fingerprint: bytes, vector: Any) -> Walker:
        statement = self.run.parties[fingerprint]._setup._statement
        assert statement is not None
        key = self.keys[statement.message.sealing_key]  # type: ignore[attr-defined]
        drawn = iter(self.drawn[fingerprint])
        return Walker(self.run.identities[fingerprint], key, lambda size: next(drawn), vector)


@pytest.mark.parametrize(("form", "parties", "lost"), CASES)
def test_it_says_what_both_ends_say_of_the_same_secrets(
    form: type[SecureSum],
    parties: int,
    lost: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(form, parties, monkeypatch)
    run = watched.run
    sent: dict[bytes, bytes] = {}
    take = run.to_coordinator

    def to_coordinator(stage: str, party: bytes, frames: list[bytes]) -> None:
        if stage == "vector":
            sent[party] = frames[-1]
        take(stage, party, frames)

    monkeypatch.setattr(run, "to_coordinator", to_coordinator)
    run.set_up(terms=b"terms")
    vectors = [np.array([seat, -seat, 2**31 - 1, 7], dtype=np.int64) for seat in range(parties)]
    total = run.sum(vectors, absent=lost)
    run.settle(result=b"labels")
    run.close()
    offer = expect(run.coordinator.setup.offer, RunOffer)
    again, opened, transcript = walk_through(
        form(),
        run.coordinator_identity,
        watched.walkers(vectors),
        nonce=offer.nonce,
        expires_at=EXPIRES_AT,
        colluders=run.tolerance["colluders"],
        terms=(b"terms", b""),
        result=b"labels",
        lost=lost,
    )
    seats = run.coordinator.seats
    assert {seats[seat]: frame for seat, frame in again.items()} == sent
    assert opened.tolist() == total.tolist()
    kept = [seat for seat in range(parties) if seat not in lost]
    assert opened[1] == -sum(kept)
    assert transcript == run.coordinator.transcript
    if form.survives_dropouts:
        assert transcript.entries[3].kind == "verdict"
    for seat in kept:
        assert run.parties[seats[seat]].transcript == transcript


def fresh(parties: int) -> list[Walker]:
    vector = np.zeros(3, dtype=np.int64)
    one = Walker(SigningIdentity.generate(), SealingKey(), secrets.token_bytes, vector)
    return [
        replace(one, identity=SigningIdentity.generate(), sealing_key=SealingKey())
        for _ in range(parties)
    ]


@pytest.mark.parametrize(
    ("form", "parties", "lost", "error"),
    [
        (AdditiveSum, 2, (), TooFewPartiesError),
        (MaskedSum, 4, (), TooFewPartiesError),
        (MaskedSum, 5, (0, 1), TooFewSharesError),
    ],
)
def test_it_does_not_open_what_the_form_must_not(
    form: type[SecureSum], parties: int, lost: tuple[int, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        walk_through(
            form(),
            SigningIdentity.generate(),
            fresh(parties),
            nonce=bytes(32),
            expires_at=EXPIRES_AT,
            colluders=1,
            lost=lost,
        )

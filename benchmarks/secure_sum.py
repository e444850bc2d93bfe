"""How fast the secure sum is, as ratios of what it is made of, all measured in one run.

Each row is a bar: our code beside its own limit (bare AES, a plain sum, SHA-256, bare
`cryptography`), CPU time, rounds interleaved, medians. Ratios travel between machines; times do
not. Run from the repository root: ``python -m benchmarks.secure_sum`` (about a minute;
`--quick` for a look, `--format json` for other programs).
"""

from __future__ import annotations

import gc
import hashlib
import secrets
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)
from numpy.typing import NDArray

from benchmarks.bars import Bar, arguments, report
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import MaskedVector
from protocols.pair_keys import PairRoots
from protocols.prg import BLOCK_BYTES, Keystream, add_streams, ctr_keystream, gcm_keystream
from protocols.ring import Ring
from protocols.rounds import CoordinatorRound, PartyRound, RoundJournal

NOW, EXPIRES_AT = 0.0, 1_000
BACK_ENDS: dict[str, tuple[Keystream, Callable[[], modes.CTR | modes.GCM]]] = {
    "CTR": (ctr_keystream, lambda: modes.CTR(bytes(15) + b"\x02")),
    "GCM": (gcm_keystream, lambda: modes.GCM(bytes(12))),
}
Action = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `better` says on which side of the bar to be."""

    bar: str
    what: str
    measured: float
    limit: float
    better: str


def cpu_times(*actions: Action, rounds: int) -> list[float]:
    """Median CPU seconds of each action; the actions take turns, so that noise meets all alike."""
    taken: list[list[float]] = [[] for _ in actions]
    for action in actions:
        action()
    gc.disable()
    for _ in range(rounds):
        for action, times in zip(actions, taken, strict=True):
            start = time.process_time()
            action()
            times.append(time.process_time() - start)
    gc.enable()
    return [median(times) for times in taken]


def repeated(action: Action, seconds: float = 0.01) -> tuple[Action, int]:
    """An action often enough for the clock, and how often."""
    start = time.process_time()
    action()
    times = max(1, int(seconds / max(time.process_time() - start, 1e-6)))

    def again() -> None:
        for _ in range(times):
            action()

    return again, times


# Masking: B1 to B4 -----------------------------------------------------------------------------


def bare_aes(parties: int, size: int, mode: Callable[[], modes.CTR | modes.GCM]) -> Action:
    """Only the AES of a party's streams: the limit of any masking."""
    zeros, out = bytes(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    keys = [secrets.token_bytes(32) for _ in range(parties - 1)]

    def run() -> None:
        contexts = [Cipher(algorithms.AES(key), mode()).encryptor() for key in keys]
        for start in range(0, size, BLOCK_BYTES):
            piece = memoryview(zeros)[: min(BLOCK_BYTES, size - start)]
            for context in contexts:
                context.update_into(piece, memoryview(out)[: len(piece)])

    return run


def plain_sum(vectors: NDArray[np.uint32]) -> Action:
    """What a trusted curator would do."""
    total = np.zeros(vectors.shape[1], dtype=np.uint32)

    def run() -> None:
        for vector in vectors:
            np.add(total, vector, out=total)

    return run


def masking(parties: int, words: int, rounds: int) -> list[Row]:
    """A party's masking against bare AES and against the plain sum of all vectors."""
    vectors = np.random.default_rng(1).integers(0, 25, size=(parties, words), dtype=np.uint32)
    rows = []
    for name in BACK_ENDS:
        kernel, whole, limit, curator, context = _masking_seconds(vectors, name, rounds)
        size = f"n={parties}, L={words:,}, {name}"
        if words >= 10**5:
            least = {"CTR": 0.65 if parties >= 10 else 0.55, "GCM": 0.50}[name]
            bar = "B1" if name == "CTR" else "B2"
            rows.append(Row(bar, f"bare AES / masking kernel; {size}", limit / kernel, least, ">="))
            most = {"CTR": 4.5, "GCM": 2.8}[name]
            what = f"encode, derive keys, mask / plain sum; {size}"
            rows.append(Row("B3", what, whole / curator, most, "<="))
        else:
            per_stream = kernel / (parties - 1)
            what = f"a stream of {4 * words // 1000} kB / bare cipher context; {size}"
            rows.append(Row("B4", what, per_stream / context, 4, "<="))
    return rows


def _masking_seconds(vectors: NDArray[np.uint32], name: str, rounds: int) -> list[float]:
    """CPU time of: the kernel, the whole masking, bare AES, the plain sum, one cipher context."""
    keystream, mode = BACK_ENDS[name]
    parties, words = vectors.shape
    form, ring, me = AdditiveSum(keystream=keystream), Ring(), bytes(32)
    vector, masked = vectors[0].astype(np.int64), vectors[0].copy()
    keys = [(1, secrets.token_bytes(32)) for _ in range(parties - 1)]
    roots = {secrets.token_bytes(32): secrets.token_bytes(32) for _ in range(parties - 1)}

    def whole() -> None:
        pairs = PairRoots(me, roots)
        pairs.advance(1)
        derived = pairs.keys_for(me)
        form.shard(vector, seat=0, pair_keys=dict(enumerate(derived.values(), start=1)))

    actions = [
        repeated(lambda: add_streams(masked, keys, ring=ring, keystream=keystream)),
        repeated(whole),
        repeated(bare_aes(parties, 4 * words, mode)),
        repeated(plain_sum(vectors)),
        repeated(lambda: keystream(me)),
    ]
    times = cpu_times(*(action for action, _ in actions), rounds=rounds)
    return [seconds / count for seconds, (_, count) in zip(times, actions, strict=True)]


# Whole runs: B5, B7, B9, B10 -------------------------------------------------------------------


class ForgetfulJournal(RoundJournal):
    """Keeps nothing: a benchmark begins no plan twice and sends no y again."""

    @property
    def counter(self) -> int:
        """See `RoundJournal.counter`."""
        return 0

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""

    def witnessed(self, peer: bytes) -> int:  # noqa: ARG002 - the contract's
        """See `RoundJournal.witnessed`."""
        return 0

    def halt(self, counter: int) -> None:
        """See `RoundJournal.halt`."""

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""

    def abandon(self, plan_digest: bytes) -> None:
        """See `RoundJournal.abandon`."""

    def keep(self, plan_digest: bytes, frame: bytes, *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""

    def sweep(self, *, now: float) -> None:
        """See `RoundJournal.sweep`."""

    def find(self, plan_digest: bytes) -> bytes | None:  # noqa: ARG002 - the contract's
        """See `RoundJournal.find`."""
        return None

    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        """See `RoundJournal.fix_survivors`."""

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""


class Federation:
    """A run in memory, ready for plans.

    Attributes:
        party_seconds: CPU time that one party spent on its setup.
        bytes_sent: By one party in its setup.
    """

    def __init__(self, parties: int) -> None:
        operator = SigningIdentity.generate()
        identities = [SigningIdentity.generate() for _ in range(parties)]
        pins: dict[bytes, PublicIdentity] = {i.fingerprint: i.public for i in identities}
        self.parties = {
            identity.fingerprint: PartyRound(
                identity=identity,
                coordinator=operator.public,
                pins=pins,
                forms={"additive": AdditiveSum()},
                journal=ForgetfulJournal(),
                random_bytes=secrets.token_bytes,
            )
            for identity in identities
        }
        self.coordinator = CoordinatorRound(
            identity=operator,
            form=AdditiveSum(),
            parties=pins,
            nonce=secrets.token_bytes(32),
            expires_at=EXPIRES_AT,
            simulated=True,
        )
        self.me = self.coordinator.seats[0]
        self.party_seconds = 0.0
        self.bytes_sent = 0
        self._batch = 0
        self._set_up()

    def _set_up(self) -> None:
        self._exchange(dict.fromkeys(self.parties, self.coordinator.offer()))
        record = self.coordinator.record(terms=b"", colluders=1, dropouts=0)
        for fp, party in self.parties.items():
            party.receive(record, now=NOW)
            self._answer(fp, self._timed(fp, party.accept_run))
        self._exchange(self.coordinator.deliver())
        self._exchange(self.coordinator.close_setup())

    def _exchange(self, frames: dict[bytes, bytes]) -> None:
        for fp, frame in frames.items():
            party = self.parties[fp]
            self._answer(fp, self._timed(fp, partial(_replies, party, frame)))

    def _timed(self, fp: bytes, act: Callable[[], tuple[bytes, ...]]) -> tuple[bytes, ...]:
        start = time.process_time()
        replies = act()
        if fp == self.me:
            self.party_seconds += time.process_time() - start
            self.bytes_sent += sum(len(reply) for reply in replies)
        return replies

    def _answer(self, fp: bytes, frames: tuple[bytes, ...]) -> None:
        for frame in frames:
            self.coordinator.receive(frame, peer=fp)

    def plan(self, words: int) -> None:
        """Open a plan and hand it to every party."""
        self._batch += 1
        frame = self.coordinator.plan(
            batch=self._batch, attempt=0, words=words, expires_at=EXPIRES_AT, terms=b""
        )
        for party in self.parties.values():
            party.receive(frame, now=NOW)

    def settle(self) -> None:
        """Void the open plan."""
        frame = self.coordinator.settle(released=False, result=b"")
        for party in self.parties.values():
            party.receive(frame, now=NOW)


def _replies(party: PartyRound, frame: bytes) -> tuple[bytes, ...]:
    return party.receive(frame, now=NOW).replies


def enrolment(parties: int, rounds: int) -> Row:
    """A party's setup against the public-key work in it, done bare."""
    suite = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    lattice, curve = MLKEM768PrivateKey.generate(), X25519PrivateKey.generate()
    key, signer = MLKEM768X25519PrivateKey(lattice, curve), Ed25519PrivateKey.generate()
    raw = lattice.public_key().public_bytes_raw(), curve.public_key().public_bytes_raw()
    verifier, message, half = signer.public_key(), bytes(100), bytes(32)
    sealed, signature = suite.encrypt(half, key.public_key(), message), signer.sign(message)

    def bare() -> None:
        for _ in range(parties - 1):
            public = MLKEM768X25519PublicKey(  # each peer's own, so read each time
                MLKEM768PublicKey.from_public_bytes(raw[0]),
                X25519PublicKey.from_public_bytes(raw[1]),
            )
            suite.encrypt(half, public, message)
            suite.decrypt(sealed, key, message)
            verifier.verify(signature, message)

    (limit,) = cpu_times(bare, rounds=rounds)
    ours = [Federation(parties).party_seconds for _ in range(3)]
    what = f"a party's setup / (n-1) x (seal + open + verify); n={parties}"
    return Row("B5", what, median(ours) / limit, 1.2, "<=")


def collecting(parties: int, words: int, rounds: int) -> list[Row]:
    """The coordinator's taking of y's against the work that cannot be saved, and bytes sent."""
    federation = Federation(parties)
    vectors = np.random.default_rng(2).integers(0, 25, size=(parties, words))
    adding = plain_sum(vectors.astype(np.uint32))
    ours, limits, sums, sent = [], [], [], 0
    for _ in range(rounds):
        federation.plan(words)
        frames = {
            fp: federation.parties[fp].contribute(vector)[0]
            for fp, vector in zip(federation.coordinator.seats, vectors, strict=True)
        }
        bodies = [wire.expect(wire.decode(f), MaskedVector).body for f in frames.values()]
        sent = len(frames[federation.me])
        start = time.process_time()
        for fp, frame in frames.items():
            federation.coordinator.receive(frame, peer=fp)
        middle = time.process_time()
        for body in bodies:
            hashlib.sha256(body).digest()
        hashed = time.process_time()
        adding()
        added = time.process_time()
        assert np.array_equal(federation.coordinator.open_total(), vectors.sum(axis=0))
        ours.append(middle - start)
        limits.append(hashed - middle)
        sums.append(added - hashed)
        federation.settle()
    size = f"n={parties}, L={words:,}"
    reference = 1.3 * median(limits) + median(sums)
    taking = f"coordinator takes y's / (1.3 x SHA-256 + plain sum); {size}"
    beyond = f"bytes of a party's batch beyond 4L; {size}"
    return [
        Row("B7", taking, median(ours) / reference, 1.0, "<="),
        Row("B9", beyond, sent - 4 * words, 100 * (parties - 1) + 2048, "<="),
    ]


def memory(words: int) -> list[Row]:
    """Peak memory of a party's answer and of the coordinator's taking it, beyond what they hold."""
    peaks: dict[int, tuple[float, float]] = {}
    for parties in (10, 100):
        federation = Federation(parties)
        vector = np.zeros(words, dtype=np.int64)
        federation.plan(words)
        gc.collect()
        tracemalloc.start()
        (frame,) = federation.parties[federation.me].contribute(vector)
        party_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        federation.coordinator.receive(frame, peer=federation.me)
        coordinator_peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        peaks[parties] = (party_peak / 2**20, coordinator_peak / 2**20)
    y = 4 * words / 2**20
    party, coordinator = peaks[10]
    drift = max(abs(peaks[100][i] - peaks[10][i]) for i in range(2))
    size = f"L={words:,}, y {y:.1f} MiB"
    return [
        Row("B10", f"MiB a party's answer takes beside its vector; {size}", party, y + 1, "<="),
        Row("B10", f"MiB the coordinator takes for one y; {size}", coordinator, 2 * y + 8, "<="),
        Row("B10", f"MiB by which n=100 differs from n=10; {size}", drift, 1.0, "<="),
    ]


def main() -> None:
    """Measure, and print the table."""
    options = arguments(__doc__)
    quick = options.quick
    rounds = 3 if quick else 9
    sizes = [(3, 10**5), (10, 10**5), (10, 10**4)]
    if not quick:
        sizes += [(10, 10**6), (100, 10**5), (100, 10**4)]
    rows = [row for parties, words in sizes for row in masking(parties, words, rounds)]
    rows.append(enrolment(10 if quick else 30, rounds))
    rows += collecting(10, 10**5 if quick else 10**6, rounds)
    rows += memory(10**6)
    bars = [
        Bar(f"{row.bar} {row.what}", row.measured, row.limit, is_most=row.better == "<=")
        for row in rows
    ]
    report(bars, as_json=options.format == "json")


if __name__ == "__main__":
    main()

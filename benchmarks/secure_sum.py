"""How fast the secure sum is, as ratios of what it is made of, all measured in one run.

Both forms for 3 to 100 parties and vectors of 10^4 to 10^6 words, beside a plain sum, bare AES, a
trusted curator and Flower's SecAgg+. CPU time; what is compared takes turns; medians. Ratios
travel between machines, times do not. Run from the repository root:
``python -m benchmarks.secure_sum`` (some minutes; `--quick` for a look, `--format json` for other
programs). It needs `flwr`, which is installed with the package.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import secrets
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

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

from benchmarks.bars import Bar, Figure, arguments, cpu_seconds, report
from benchmarks.baselines.secagg import SecAggClient
from benchmarks.federation import Batch, Federation
from pate_fed.mechanisms import CoordinatorNoise, ThresholdMax
from pate_fed.mechanisms.sampling import sample_gaussian
from pate_fed.opened_sums import open_sum
from pate_fed.releases import NoisyRelease
from pate_fed.votes import SummedHistogram, count_votes
from protocols import dealing
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.pair_keys import PairRoots
from protocols.prg import (
    BLOCK_BYTES,
    Keystream,
    add_streams,
    ctr_keystream,
    fastest_keystream,
    gcm_keystream,
)
from protocols.ring import Ring
from protocols.rounds import setup
from protocols.secure_sum import SecureSum
from tests.support import federation as labeling

BACK_ENDS: dict[str, tuple[Keystream, Callable[[], modes.CTR | modes.GCM]]] = {
    "CTR": (ctr_keystream, lambda: modes.CTR(bytes(15) + b"\x02")),
    "GCM": (gcm_keystream, lambda: modes.GCM(bytes(12))),
}
SERVING = {ctr_keystream: "CTR", gcm_keystream: "GCM"}[fastest_keystream(time.thread_time)]
"""The back end that an import picks on this machine, now; forms are measured with it."""

FORMS: dict[str, Callable[[], SecureSum]] = {
    form.name: partial(form, keystream=BACK_ENDS[SERVING][0]) for form in (AdditiveSum, MaskedSum)
}
PARTIES, LENGTHS = (3, 10, 30, 100), (10**4, 10**5, 10**6)
QUICK_PARTIES, QUICK_LENGTHS = (3, 10), (10**4, 10**5)
MIB = 2**20
Action = Callable[[], object]


def most(name: str, value: float, bar: float) -> Bar:
    return Bar(name, value, bar, is_most=True)


def repeated(action: Action, seconds: float = 0.01) -> tuple[Action, int]:
    """An action often enough for the clock, and how often."""
    action()  # the first time costs more
    start = time.process_time()
    action()
    times = max(1, int(seconds / max(time.process_time() - start, 1e-6)))

    def again() -> None:
        for _ in range(times):
            action()

    return again, times


def cpu_each(*actions: Action, rounds: int) -> list[float]:
    """Median CPU seconds of each action, short ones repeated; they take turns."""
    many = [repeated(action) for action in actions]
    times = cpu_seconds(*(action for action, _ in many), rounds=rounds)
    return [seconds / count for seconds, (_, count) in zip(times, many, strict=True)]


def votes_of(parties: int, words: int) -> NDArray[np.uint32]:
    """A vector for each of at most ten parties; others take these again."""
    distinct = min(parties, 10)
    return np.random.default_rng(1).integers(0, 25, size=(distinct, words), dtype=np.uint32)


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


def plain_sum(parties: int, vectors: NDArray[np.uint32]) -> Action:
    """What a trusted curator would do."""
    total = np.zeros(vectors.shape[1], dtype=np.uint32)

    def run() -> None:
        for place in range(parties):
            np.add(total, vectors[place % len(vectors)], out=total)

    return run


@dataclass(frozen=True, slots=True)
class Masking:
    """CPU seconds, in one rotation: masking, its yardsticks and encoding, with one back end."""

    kernel: float
    whole: float
    limit: float
    curator: float
    context: float
    encoding: float


def masking_seconds(parties: int, words: int, name: str, rounds: int) -> Masking:
    """Time a party's masking in place: the kernel alone, and with its keys derived from roots."""
    keystream, mode = BACK_ENDS[name]
    vectors = np.random.default_rng(1).integers(0, 25, size=(parties, words), dtype=np.uint32)
    form, ring, me = AdditiveSum(keystream=keystream), Ring(), bytes(32)
    vector, masked = vectors[0].astype(np.int64), vectors[0].copy()
    encoded = np.empty_like(masked)
    keys = [(1, secrets.token_bytes(32)) for _ in range(parties - 1)]
    roots = {secrets.token_bytes(32): secrets.token_bytes(32) for _ in range(parties - 1)}

    def whole() -> None:
        pairs = PairRoots(me, roots)
        pairs.advance(1)
        derived = pairs.keys_for(me)
        form.hide(masked, seat=0, pair_keys=dict(enumerate(derived.values(), start=1)))

    return Masking(
        *cpu_each(
            lambda: add_streams(masked, keys, ring=ring, keystream=keystream),
            whole,
            bare_aes(parties, 4 * words, mode),
            plain_sum(parties, vectors),
            lambda: keystream(me),
            lambda: ring.encode(vector, out=encoded),
            rounds=rounds,
        )
    )


def masking(parties: int, words: int, rounds: int) -> tuple[list[Bar], list[Figure]]:
    """A party's masking against bare AES and against the plain sum of all vectors.

    Encoding votes as words is not masking, and no part of the plain sum, which is given words: what
    it takes is told beside.
    """
    bars, figures = [], []
    for name in BACK_ENDS:
        took = masking_seconds(parties, words, name, rounds)
        size = f"n={parties}, L={words:,}, {name}"
        if words < 10**5:
            what = f"B4 a stream of {4 * words // 1000} kB / bare cipher context; {size}"
            bars.append(most(what, took.kernel / (parties - 1) / took.context, 4))
            continue
        least = {"CTR": 0.65 if parties >= 10 else 0.55, "GCM": 0.50}[name]
        bar = "B1" if name == "CTR" else "B2"
        limit = took.limit / took.kernel
        bars.append(Bar(f"{bar} bare AES / masking kernel; {size}", limit, least))
        what = f"B3 derive keys, mask / plain sum; {size}"
        bars.append(most(what, took.whole / took.curator, {"CTR": 4.5, "GCM": 2.8}[name]))
        what = f"encode votes as words / plain sum; {size}"
        figures.append(Figure(what, took.encoding / took.curator))
    return bars, figures


# Whole batches of both forms, beside SecAgg+: B6 to B9 -------------------------------------------


BYTES: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "additive": ("4L + 100 (n-1) + 2 kB", lambda n, words: 4 * words + 100 * (n - 1) + 2000),
    # A share of every secret for every peer: one secret for each pair key is what makes it square.
    "masked": ("4L + 36 n (n-1) + 6 kB", lambda n, words: 4 * words + 36 * n * (n - 1) + 6000),
}
"""Most bytes that a party sends for a batch, by form: formula, and its value for n and L."""


@dataclass(slots=True)
class Measured:
    """What a cell of the grid gave: the batches of one form."""

    batches: list[Batch]

    def party(self) -> float:
        """CPU seconds of a party in the middle."""
        return median(median(batch.party) for batch in self.batches)

    def coordinator(self) -> float:
        """CPU seconds of the coordinator."""
        return median(batch.coordinator for batch in self.batches)

    def federation(self) -> float:
        """CPU seconds of all of them."""
        return median(sum(batch.party) + batch.coordinator for batch in self.batches)


def cell(
    federations: dict[str, Federation], parties: int, words: int, *, rounds: int
) -> tuple[list[Bar], list[Figure]]:
    """Batches of both forms, a plain sum and a client of SecAgg+, in turns."""
    vectors = votes_of(parties, words)
    makers = [partial(vectors[place % len(vectors)].astype, np.int64) for place in range(parties)]
    expected = sum(vectors[place % len(vectors)].astype(np.int64) for place in range(parties))
    client = SecAggClient(parties, MaskedSum.threshold(parties))
    measured = {name: Measured([]) for name in federations}
    plain, limits, theirs, hashing = plain_sum(parties, vectors), [], [], []
    bare = bare_aes(parties, 4 * words, BACK_ENDS["CTR"][1])
    sums: list[float] = []
    bodies = [vector.tobytes() for vector in vectors]  # as many as the cache cannot hold
    for turn in range(rounds + 1):
        for name, federation in federations.items():
            with no_collections():
                batch = federation.collect(makers, words)
            federation.settle()
            assert np.array_equal(batch.total, expected)
            if turn:  # the first one warms up
                measured[name].batches.append(batch)
        if turn:
            sums.append(_seconds(plain))
            limits.append(_seconds(bare))
            hashing.append(
                _seconds(lambda: [hashlib.sha256(body).digest() for body in bodies])
                * (parties / len(bodies))
            )
            client.run(vectors[0].astype(np.int64))
            theirs.append(sum(client.seconds.values()))
        if parties * words > 10**7 and turn:
            break
    return _cell_rows(
        measured,
        parties,
        words,
        yardsticks={
            "plain sum": median(sums),
            "AES-256-CTR limit": median(limits),
            "SecAgg+ client": median(theirs),
            "SHA-256 of all y's": median(hashing),
        },
        their_bytes=client.bytes_sent,
    )


def _cell_rows(
    measured: dict[str, Measured],
    parties: int,
    words: int,
    *,
    yardsticks: dict[str, float],
    their_bytes: int,
) -> tuple[list[Bar], list[Figure]]:
    size = f"n={parties}, L={words:,}"
    bars: list[Bar] = []
    figures = [Figure(f"{what}; {size}", 1e3 * took, "ms") for what, took in yardsticks.items()]
    figures.append(Figure(f"SecAgg+ client; {size}", their_bytes, "bytes"))
    for name, form in measured.items():
        last = form.batches[-1]
        figures += [
            Figure(f"{name}: a party; {size}", 1e3 * form.party(), "ms"),
            Figure(f"{name}: the coordinator; {size}", 1e3 * form.coordinator(), "ms"),
            Figure(f"{name}: the federation; {size}", 1e3 * form.federation(), "ms"),
            Figure(f"{name}: a party; {size}", last.bytes_sent, "bytes"),
        ]
        speed = yardsticks["SecAgg+ client"] / form.party()
        bars.append(Bar(f"B8 SecAgg+ client / a {name} party; {size}", speed, 15))
        formula, allowed = BYTES[name]
        what = f"B9 bytes of a party, {name}, against {formula}; {size}"
        bars.append(most(what, last.bytes_sent, allowed(parties, words)))
    if "masked" in measured and words >= 10**6 and parties >= 10:
        ratio = measured["masked"].party() / measured["additive"].party()
        bars.append(most(f"B6 a masked / an additive party; {size}", ratio, 1.4))
    if words >= 10**6:
        taken = median(batch.take for batch in measured["additive"].batches)
        reference = 1.3 * yardsticks["SHA-256 of all y's"] + yardsticks["plain sum"]
        what = f"B7 coordinator takes y's / (1.3 x SHA-256 + plain sum); {size}"
        bars.append(most(what, taken / reference, 1.0))
    return bars, figures


def _seconds(action: Action) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


# What no batch repeats: B5 ------------------------------------------------------------------------


def enrolment(parties: int, rounds: int) -> tuple[list[Bar], list[Figure]]:
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

    ours, limits, reading = [], [], []
    for _ in range(rounds):
        limits.append(_seconds(bare))
        with no_collections():
            federation = Federation(parties, FORMS["additive"])
        ours.append(federation.party_seconds)
        reading.append(federation.reading_seconds)
    what = f"B5 a party's envelopes / (n-1) x (seal + open + verify); n={parties}"
    # Each peer's statement is verified as well as its envelope, and each envelope is signed.
    whole = f"a party's whole setup, all statements of the run record verified; n={parties}"
    return (
        [most(what, median(ours) / median(limits), 1.2)],
        [Figure(whole, 1e3 * (median(ours) + median(reading)), "ms")],
    )


@contextmanager
def no_collections() -> Iterator[None]:
    """Keep the garbage collector out: it walks over all parties, where a real one is alone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def counted(owner: Any, name: str) -> Iterator[list[None]]:
    """Count the calls of a function or a method while this is open."""
    true, calls = getattr(owner, name), []

    def counting(*values: Any, **named: Any) -> Any:
        calls.append(None)
        return true(*values, **named)

    setattr(owner, name, counting)
    try:
        yield calls
    finally:
        setattr(owner, name, true)


def public_key_work(form: str, parties: int) -> list[Bar]:
    """Count what a batch of a whole federation seals, opens and signs with public keys."""
    federation = Federation(parties, FORMS[form])
    zeros = partial(np.zeros, 10, dtype=np.int64)
    # Of a party: y; where the form survives drop-outs its hashes, verdict and revealed shares, too.
    # Of the coordinator: the plan, and there the proposal.
    messages = 1 if form == "additive" else 4
    expected = messages * parties + (1 if form == "additive" else 2)
    with (
        counted(setup, "seal") as sealed,
        counted(SealingKey, "open") as opened,
        counted(SigningIdentity, "sign") as signed,
    ):
        federation.collect([zeros] * parties, 10)
    agreements = len(sealed) + len(opened)
    what = f"B5 encapsulations and key agreements in a batch, {form}; n={parties}"
    signatures = f"B5 signatures in a batch, for {expected} messages, {form}; n={parties}"
    return [most(what, agreements, 0), most(signatures, len(signed), expected)]


# Memory: B10 --------------------------------------------------------------------------------------


def memory(form: str, words: int, sizes: tuple[int, int]) -> list[Bar]:
    """Peak memory of a party's answer and of the coordinator's taking it, beside what is held."""
    peaks: dict[int, tuple[float, float, float]] = {}
    for parties in sizes:
        federation = Federation(parties, FORMS[form])
        vector = np.zeros(words, dtype=np.int64)
        federation.plan(words)
        gc.collect()
        tracemalloc.start()
        frames = federation.parties[federation.me].contribute(vector)
        party_peak = tracemalloc.get_traced_memory()[1]
        sent = sum(map(len, frames))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for frame in frames:
            federation.coordinator.receive(frame, peer=federation.me)
        coordinator_peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        peaks[parties] = (party_peak / MIB, coordinator_peak / MIB, sent / MIB)
    few, many = sizes
    bars = []
    for parties, (party, coordinator, sent) in peaks.items():
        size = f"{form}, n={parties}, L={words:,}"
        what = f"B10 MiB a party's answer takes beside its vector; {size}"
        bars.append(most(what, party, sent + 1))
        what = f"B10 MiB the coordinator takes for one answer; {size}"
        bars.append(most(what, coordinator, 2 * sent + 8))
    growth = [
        abs((peaks[many][i] - peaks[many][2]) - (peaks[few][i] - peaks[few][2])) for i in (0, 1)
    ]
    what = f"B10 MiB beside its messages by which n={many} differs from n={few}; {form}"
    return [*bars, most(what, max(growth), 1.0)]


# Shamir: B12 --------------------------------------------------------------------------------------


def dealing_seconds(parties: int, rounds: int) -> list[Figure]:
    """Where a masked party's time goes: dealing, and the hashes in it."""
    secret = [secrets.token_bytes(32) for _ in range(parties)]
    deal = partial(
        dealing.deal,
        secret,
        seat=0,
        sender=bytes(32),
        plan_digest=bytes(32),
        threshold=MaskedSum.threshold(parties),
        random_bytes=secrets.token_bytes,
    )
    dealt = deal()
    labels = dealing.Labels.of(dealt.message, dealer=0)
    held = [column[dealing.DIGEST_BYTES :] for column in dealt.columns]
    whole, hashes = cpu_each(
        deal,
        lambda: [labels.of_shares(place, shares) for place, shares in enumerate(held)],
        rounds=rounds,
    )
    return [
        Figure(f"dealing shares of all keys; n={parties}", 1e3 * whole, "ms"),
        Figure(f"of which the hashes of n^2 shares; n={parties}", 1e3 * hashes, "ms"),
    ]


# A whole labeling round: B15, B16 ---------------------------------------------------------------

QUERIES, CLASSES, TEACHERS = 10_000, 10, 25


class Round:
    """A labeling round: the secure sum of all hospitals' histograms, and the noisy labels."""

    def __init__(self, parties: int) -> None:
        self.parties = parties
        numbers = np.random.default_rng(3)
        self.predictions = [
            numbers.integers(0, CLASSES, size=(TEACHERS, QUERIES)) for _ in range(4)
        ]
        self.rule = ThresholdMax(40.0, vote_threshold=0.6 * TEACHERS * parties)

    def predicted(self, place: int) -> NDArray[np.int64]:
        """What a hospital's teachers said; given, in all that is timed."""
        return self.predictions[place % len(self.predictions)]

    def votes(self, place: int) -> NDArray[np.int64]:
        """Count a hospital's votes as its node does."""
        return count_votes(self.predicted(place), classes=CLASSES).counts.ravel()

    def release(self, words: NDArray[np.int64]) -> NoisyRelease:
        """Check the sum, add noise and release labels as the coordinator does."""
        summed: SummedHistogram = open_sum(
            words, queries=QUERIES, classes=CLASSES, total_votes=TEACHERS * self.parties
        )
        return self.rule.release(
            summed,
            noise=CoordinatorNoise(),
            random_bytes=secrets.token_bytes,
            max_answers=QUERIES,
        )

    def curator(self) -> NDArray[np.int64]:
        """Histograms, their sum, noise on counts, argmax and threshold; nothing checked."""
        rows = np.arange(QUERIES) * CLASSES
        total = np.zeros(QUERIES * CLASSES, dtype=np.int64)
        for place in range(self.parties):
            flat = (self.predicted(place) + rows).ravel()
            total += np.bincount(flat, minlength=QUERIES * CLASSES)
        counts = total.reshape(QUERIES, CLASSES)
        noise = sample_gaussian((QUERIES, CLASSES), sigma=40.0, random_bytes=secrets.token_bytes)
        noisy = counts + noise
        return np.where(noisy.max(axis=1) >= self.rule.vote_threshold, noisy.argmax(axis=1), -1)

    def federation(self, federation: Federation) -> None:
        """The same without a curator: plan, votes, y's, sum, noise, argmax, settlement."""
        makers = [partial(self.votes, place) for place in range(self.parties)]
        self.release(federation.collect(makers, QUERIES * CLASSES).total)
        federation.settle()


def whole_round(federations: dict[str, Federation], parties: int, rounds: int) -> list[Bar]:
    """A labeling round of each form against a trusted curator's, in one rotation."""
    one = Round(parties)
    additive = {10: 5.0, 100: 15.0} if SERVING == "GCM" else {10: 6.5, 100: 22.0}
    allowed = {"additive": additive[parties], "masked": {10: 9.0, 100: 40.0}[parties]}
    actions = [partial(one.federation, federation) for federation in federations.values()]
    curator, *ours = cpu_seconds(one.curator, *actions, rounds=rounds)
    what = "a round of 10,000 x 10 with 25 teachers / a curator's"
    return [
        most(f"B15 {what}; {name}, n={parties}, {SERVING}", seconds / curator, allowed[name])
        for name, seconds in zip(federations, ours, strict=True)
    ]


def exchanges() -> list[Bar]:
    """Exchanges of one batch, as the transport of a real labeling run counts them."""
    bars = []
    for form, allowed in (("additive", 1), ("masked", 3)):
        federation = labeling.Federation(parties=5, form=form)
        federation.run.set_up()
        before = federation.transport.traffic.exchanges
        federation.ask(0, 1, 2)
        count = federation.transport.traffic.exchanges - before
        bars.append(most(f"B16 exchanges of a batch; {form}", count, allowed))
    return bars


def main() -> None:
    """Measure, and print the figures and the bars."""
    options = arguments(__doc__)
    quick = options.quick
    rounds = 3 if quick else 7
    sizes, lengths = (QUICK_PARTIES, QUICK_LENGTHS) if quick else (PARTIES, LENGTHS)
    bars: list[Bar] = []
    figures = [Figure(f"load of the machine at the start; served by {SERVING}", os.getloadavg()[0])]
    for parties in sizes:
        forms = {name: form for name, form in FORMS.items() if form().smallest <= parties}
        federations = {name: Federation(parties, form) for name, form in forms.items()}
        for words in lengths:
            print(f"n={parties}, L={words:,} ...", file=sys.stderr)
            new, seen = masking(parties, words, 3 if parties * words > 10**7 else rounds)
            bars += new
            figures += seen
            turns = max(1, min(5, math.ceil(10**7 / (parties * words))))
            new, seen = cell(federations, parties, words, rounds=min(turns, rounds))
            bars += new
            figures += seen
        if parties in (10, 100):
            bars += whole_round(federations, parties, 3 if parties == 100 or quick else rounds)
        if "masked" in forms:
            figures += dealing_seconds(parties, 3)
    new, seen = enrolment(10 if quick else 30, 3)
    bars += new
    figures += seen
    for form in FORMS:
        bars += public_key_work(form, 10)
        bars += memory(form, 10**5 if quick else 10**6, (10, 30) if quick else (10, 100))
    bars += exchanges()
    figures.append(Figure("load of the machine at the end", os.getloadavg()[0]))
    report(bars, figures=figures, as_json=options.format == "json")


if __name__ == "__main__":
    main()

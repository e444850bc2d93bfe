"""How fast verified votes are, beside the additive and the masked form, in one run.

A whole batch in memory, each end on its own clock: hospitals, coordinator, tally. CPU time. The
other forms are the state machines with their messages; of verified votes the messages between the
two aggregators are left out, which are counted as bytes. Run from the repository root: ``python -m
benchmarks.verified_votes`` (minutes; ``--quick`` for a look, ``--format json`` for other programs).
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import Bar, Figure, arguments, report
from benchmarks.federation import Federation
from pate_fed.mechanisms.discrete_sampling import sample_discrete_gaussian
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519
from protocols.verified import (
    Aggregator,
    EvaluationPoint,
    VoteBatch,
    VoteLayout,
    VoteShare,
    challenge,
    make_coin,
    make_report,
    noisy_share,
    open_coordinator_part,
    open_noisy_sum,
    open_tally_part,
    read_header,
)
from protocols.verified.prime_field import Elements
from protocols.vote_messages import VoteReport

T = TypeVar("T")
MOST_WITH_PAIRS = 100
"""Most hospitals of the other forms: the keys of a thousand, a million pairs, take a quarter of an
hour before the first batch."""

COLUMNS = 10
SIGMA = 40.0
ANSWER_BYTES = 8
"""Of an element of the extension, as two aggregators tell it."""


def timed(act: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    result = act()
    return time.process_time() - start, result


@dataclass(slots=True)
class Taken:
    """What a batch of verified votes took: CPU seconds and bytes.

    Attributes:
        party: Seconds of each hospital.
        coordinator: Seconds of all the coordinator's steps.
        tally: The same of the tally's.
        upload: Bytes of a hospital's report.
        to_tally: Bytes of it that the coordinator passes on.
        between: Bytes of both aggregators' answers and shares.
    """

    party: list[float] = field(default_factory=list)
    coordinator: float = 0.0
    tally: float = 0.0
    upload: int = 0
    to_tally: int = 0
    between: int = 0


class Ends:
    """Hospitals and both aggregators; suites and sizes of one batch."""

    def __init__(self, *, parties: int, queries: int, votes: int, suite: str) -> None:
        self.hospitals = [SigningIdentity.generate() for _ in range(parties)]
        self.identities = {one.fingerprint: one.public for one in self.hospitals}
        self.keys = SealingKey(suite), SealingKey(suite)
        aggregators = [
            Aggregator(SigningIdentity.generate().fingerprint, key.public_bytes)
            for key in self.keys
        ]
        numbers = dict.fromkeys(self.identities, votes)
        self.batch = VoteBatch(
            secrets.token_bytes(32), queries, COLUMNS, numbers, *aggregators, suite
        )
        self.layout = VoteLayout.of(queries=queries, columns=COLUMNS, votes=votes)
        rng = np.random.default_rng(1)
        chances = np.full(COLUMNS, 1 / COLUMNS)
        self.rows: NDArray[np.int64] = rng.multinomial(votes, chances, size=queries)

    def run(self) -> Taken:
        """Take a batch from votes to its noisy sum."""
        taken, layout, batch = Taken(), self.layout, self.batch
        first: list[VoteShare] = []
        second: list[VoteShare] = []
        digests = []
        for hospital in self.hospitals:
            make = partial(
                make_report,
                batch,
                self.rows,
                identity=hospital,
                random_bytes=secrets.token_bytes,
            )
            seconds, frame = timed(make)
            taken.party.append(seconds)
            taken.upload = len(frame)
            seconds, (share, sent) = timed(partial(self._collected, frame))
            taken.coordinator += seconds
            first.append(share)
            taken.to_tally = len(sent.tally_envelope) + len(sent.header)
            seconds, (share, digest) = timed(partial(self._relayed, sent))
            taken.tally += seconds
            second.append(share)
            digests.append(digest)
        coin = make_coin(
            plan_digest=batch.plan_digest,
            headers=digests,
            coordinator_nonce=secrets.token_bytes(32),
            tally_nonce=secrets.token_bytes(32),
        )
        seconds, ours = timed(partial(self._answers, coin, first, is_tally=False))
        taken.coordinator += seconds
        seconds, theirs = timed(partial(self._answers, coin, second, is_tally=True))
        taken.tally += seconds
        # Each end decides for itself, from the same values.
        for is_tally in (False, True):
            seconds, accepted = timed(partial(self._decided, coin, first, second, ours, theirs))
            assert accepted == len(first)
            if is_tally:
                taken.tally += seconds
            else:
                taken.coordinator += seconds
        seconds, own = timed(partial(self._summed, first))
        taken.coordinator += seconds
        seconds, other = timed(partial(self._summed, second))
        taken.tally += seconds
        opened = open_noisy_sum(own, other)
        assert abs(opened - len(first) * self.rows).max() < 20 * SIGMA
        answers = 2 * ANSWER_BYTES * layout.answer_length * len(first)
        taken.between = answers + 2 * len(layout.field.to_bytes(own))
        return taken

    def _collected(self, frame: bytes) -> tuple[VoteShare, VoteReport]:
        sent = wire.expect(wire.decode(frame), VoteReport)
        header = read_header(self.batch, sent.header, identities=self.identities)
        share = open_coordinator_part(
            self.batch, header, sent.coordinator_envelope, key=self.keys[0]
        )
        return share, sent

    def _relayed(self, sent: VoteReport) -> tuple[VoteShare, bytes]:
        header = read_header(self.batch, sent.header, identities=self.identities)
        share = open_tally_part(self.batch, header, sent.tally_envelope, key=self.keys[1])
        return share, wire.digest_of(header)

    def _answers(self, coin: bytes, shares: list[VoteShare], *, is_tally: bool) -> list[Elements]:
        point = EvaluationPoint.of(self.layout, coin)
        return [point.answer(share, takes_off_votes=not is_tally) for share in shares]

    def _decided(
        self,
        coin: bytes,
        first: list[VoteShare],
        second: list[VoteShare],
        *answers: list[Elements],
    ) -> int:
        point, accepted = EvaluationPoint.of(self.layout, coin), 0
        for place, hospital in enumerate(self.hospitals):
            context = self.batch.context_of(hospital.fingerprint)
            bindings = first[place].binding, second[place].binding
            weights = challenge(self.layout, *bindings, context=context)
            accepted += point.accepts(weights, answers[0][place], answers[1][place])
        return accepted

    def _summed(self, shares: list[VoteShare]) -> Elements:
        noise = sample_discrete_gaussian(
            self.rows.shape, sigma=SIGMA, random_bytes=secrets.token_bytes
        )
        return noisy_share([(self.layout, share) for share in shares], noise)


def most(name: str, value: float, bar: float) -> Bar:
    return Bar(name, value, bar, is_most=True)


def section_8(rounds: int) -> list[Bar]:
    """Bars of one hospital's report, at the sizes that the design names."""
    layouts = {
        queries: VoteLayout.of(queries=queries, columns=COLUMNS, votes=25)
        for queries in (1_000, 10_000)
    }
    bars = []
    for queries, allowed in ((10_000, 1.15), (1_000, 1.4)):
        ends = Ends(parties=1, queries=queries, votes=25, suite=SUITE_X25519)
        plain = 4 * queries * COLUMNS
        ends.run()  # the first time makes the fixed matrix of a layout
        runs = [ends.run() for _ in range(rounds)]
        what = f"Q={queries:,}, C=10, K=25"
        bars.append(most(f"upload / plain shares; {what}", runs[0].upload / plain, allowed))
        if queries == 10_000:
            seconds = median(run.party[0] for run in runs)
            bars.append(most(f"CPU seconds of a hospital; {what}", seconds, 0.5))
            envelope = runs[0].to_tally - 300
            bars.append(most(f"bytes to the tally, less a header of 300; {what}", envelope, 200))
    layout = layouts[10_000]
    bars.append(Bar("soundness, offline, bits", layout.offline_bits, 120))
    bars.append(Bar("soundness, online, bits", layout.online_bits, 50))
    return bars


def forms(parties: int, queries: int) -> tuple[list[Bar], list[Figure]]:
    """A whole batch in each form."""
    figures: list[Figure] = []
    what = f"n={parties}, Q={queries:,}, C=10, K=25"
    bars: list[Bar] = []
    for suite in (SUITE_X25519, SUITE_MLKEM768_X25519):
        name = f"verified ({suite.split('-hkdf')[0]})"
        taken = Ends(parties=parties, queries=queries, votes=25, suite=suite).run()
        figures += [
            Figure(f"{name}: a hospital; {what}", 1e3 * mean(taken.party), "ms"),
            Figure(f"{name}: coordinator; {what}", 1e3 * taken.coordinator, "ms"),
            Figure(f"{name}: tally; {what}", 1e3 * taken.tally, "ms"),
            Figure(f"{name}: sent by a hospital; {what}", taken.upload / 1e3, "kB"),
            Figure(f"{name}: of which to the tally; {what}", taken.to_tally / 1e3, "kB"),
            Figure(f"{name}: between both aggregators; {what}", taken.between / 1e6, "MB"),
        ]
        if queries == 10_000:
            slowest = max(taken.coordinator, taken.tally) / parties
            bars.append(
                most(f"ms of an aggregator for a hospital, {name}; {what}", 1e3 * slowest, 10)
            )
            if parties == 100:
                both = taken.coordinator + taken.tally
                bars.append(most(f"CPU seconds of both, {name}; {what}", both, 3))
    for form in (AdditiveSum, MaskedSum) if parties <= MOST_WITH_PAIRS else ():
        seconds, federation = timed(partial(Federation, parties, form))
        vector = np.zeros(queries * COLUMNS, dtype=np.int64)
        batch = federation.collect([vector.copy] * parties, len(vector))
        figures += [
            Figure(f"{form.name}: a hospital; {what}", 1e3 * mean(batch.party), "ms"),
            Figure(f"{form.name}: coordinator; {what}", 1e3 * batch.coordinator, "ms"),
            Figure(f"{form.name}: sent by a hospital; {what}", batch.bytes_sent / 1e3, "kB"),
            Figure(f"{form.name}: setup of all, once a run; {what}", seconds, "s"),
        ]
    return bars, figures


def main() -> None:
    """Measure, and print the figures and the bars."""
    options = arguments(__doc__)
    bars = section_8(3 if options.quick else 9)
    figures: list[Figure] = []
    sizes = (
        ((10, 10_000), (30, 1_000))
        if options.quick
        else ((10, 10_000), (100, 10_000), (1000, 1_000))
    )
    for parties, queries in sizes:
        print(f"n={parties}, Q={queries:,} ...", file=sys.stderr)
        new, seen = forms(parties, queries)
        bars += new
        figures += seen
    report(bars, figures=figures, as_json=options.format == "json")


if __name__ == "__main__":
    main()

"""How fast verified votes are, beside the additive and the masked form, in one run.

A whole batch in memory, each end on its own clock: hospitals, coordinator, tally. CPU time of the
state machines of all forms, with their messages, signatures and sealed parts; the journals are in
memory. One batch more goes over TLS to a tally in its own process, with all that a deployment
keeps. Run from the repository root: ``python -m benchmarks.verified_votes`` (minutes; ``--quick``
for a look, ``--format json`` for other programs).
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import Bar, Figure, arguments, report
from benchmarks.federation import Federation
from coordinator.database.check_rows import SqlCheckJournal
from coordinator.tally.tally_client import TallyClient
from coordinator.tally.tally_schema import TallyStepRow
from pate_fed.mechanisms.discrete_sampling import sample_discrete_gaussian
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519
from protocols.verified import (
    Aggregator,
    CheckingCoordinator,
    CheckingTally,
    MemoryCheckJournal,
    VoteBatch,
    VoteLayout,
    make_report,
)
from tests.support.loopback_home import free_ports
from tests.support.tallied import TalliedBatch, TalliedRun, make_tally

T = TypeVar("T")
MOST_WITH_PAIRS = 100
"""Most hospitals of the other forms: a thousand in one process, a million pairs of keys, had not
set up their first run after twenty minutes of a core, and held 13 GB."""

COLUMNS = 10
SIGMA = 40.0


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
        to_tally: Bytes for the tally of one report, header and all.
        between: Bytes of all that both aggregators tell each other.
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
        self.pinned = {one.fingerprint: one.public for one in self.hospitals}
        self.identities = SigningIdentity.generate(), SigningIdentity.generate()
        self.keys = SealingKey(suite), SealingKey(suite)
        self.votes, self.suite, self.queries = dict.fromkeys(self.pinned, votes), suite, queries
        self.layout = VoteLayout.of(queries=queries, columns=COLUMNS, votes=votes)
        rng = np.random.default_rng(1)
        chances = np.full(COLUMNS, 1 / COLUMNS)
        self.rows: NDArray[np.int64] = rng.multinomial(votes, chances, size=queries)

    def machines(self) -> tuple[CheckingCoordinator, CheckingTally]:
        """Begin a batch at both ends."""
        coordinator, tally = (
            Aggregator(identity.fingerprint, key.public_bytes)
            for identity, key in zip(self.identities, self.keys, strict=True)
        )
        plan = secrets.token_bytes(32)
        batch = VoteBatch(plan, self.queries, COLUMNS, self.votes, coordinator, tally, self.suite)

        def given(place: int) -> dict[str, Any]:
            return {
                "identity": self.identities[place],
                "key": self.keys[place],
                "other": self.identities[1 - place].public,
                "hospitals": self.pinned,
                "least_parties": 3,
                "journal": MemoryCheckJournal(lambda _: None),
                "random_bytes": secrets.token_bytes,
                "draw_noise": _noise,
            }

        return CheckingCoordinator(batch, **given(0)), CheckingTally(batch, **given(1))

    def run(self) -> Taken:
        """Take a batch from votes to its noisy sum."""
        taken = Taken()
        coordinator, tally = self.machines()
        for hospital in self.hospitals:
            make = partial(
                make_report,
                coordinator.batch,
                self.rows,
                identity=hospital,
                random_bytes=secrets.token_bytes,
            )
            seconds, frame = timed(make)
            taken.party.append(seconds)
            taken.upload = len(frame)
            seconds, _ = timed(partial(coordinator.take_report, frame))
            taken.coordinator += seconds
        seconds, request = timed(coordinator.close)
        taken.coordinator += seconds
        taken.to_tally = len(request) // len(self.hospitals)
        while request:
            seconds, answer = timed(partial(tally.receive, request))
            taken.tally += seconds
            taken.between += len(request) + len(answer)
            seconds, request = timed(partial(coordinator.receive, answer))
            taken.coordinator += seconds
        opened = coordinator.opened
        assert opened is not None
        assert abs(opened - len(self.hospitals) * self.rows).max() < 20 * SIGMA
        return taken


def _noise(shape: tuple[int, int], random_bytes: Callable[[int], bytes]) -> NDArray[np.int64]:
    return sample_discrete_gaussian(shape, sigma=SIGMA, random_bytes=random_bytes)


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
        ends = Ends(parties=2, queries=queries, votes=25, suite=SUITE_X25519)
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
        if parties == MOST_WITH_PAIRS:  # with fewer, what is made once for a batch counts more
            slowest, both = max(taken.coordinator, taken.tally), taken.coordinator + taken.tally
            each = 1e3 * slowest / parties
            bars.append(most(f"ms of an aggregator for a hospital, {name}; {what}", each, 10))
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


def over_loopback(parties: int, queries: int) -> list[Bar]:
    """A batch with a tally in a process of its own: TLS, both journals on disk, its ledger."""
    what = f"n={parties}, Q={queries:,}, C=10, K=25, over TLS on loopback"
    with TemporaryDirectory() as folder, ExitStack() as ending:
        [port] = free_ports(1)
        tally, coordinator, key = make_tally(Path(folder, "tally"), port=port)
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "tests.support.mortal_tally", str(tally.folder), ""],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        ending.callback(process.wait)
        ending.callback(process.terminate)
        assert process.stdout is not None
        process.stdout.readline()
        client = TallyClient(tally.card, key)
        run = TalliedRun(
            coordinator,
            client.state,
            client.check,
            quotas=(25,) * parties,
            caps=(queries, queries, queries),
            terms_changed={"classes": COLUMNS},
            now=int(time.time()),
        )
        own = make_tally(Path(folder, "own"))[0].database()  # a table of steps for the other end
        ending.callback(own.close)
        plan = run.plan(*range(queries))
        digest = wire.decode(plan).digest
        journal = SqlCheckJournal(own.transaction, TallyStepRow, digest)
        batch = TalliedBatch(run, *range(queries), plan=plan, journal=journal)
        reports = [batch.report(place) for place in range(parties)]
        start = time.perf_counter()
        for report_ in reports:
            batch.machine.take_report(report_)
        closed = time.perf_counter()
        batch.go_on(batch.machine.close())
        ended = time.perf_counter()
        opened = batch.machine.opened
        assert opened is not None
        assert abs(opened - batch.exact).max() < 20 * SIGMA
    return [
        most(f"seconds from the closed list to the sum; {what}", ended - closed, 3),
        most(f"seconds of taking all reports, each on disk; {what}", closed - start, 3),
    ]


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
    bars += over_loopback(10, 1_000) if options.quick else over_loopback(100, 4_000)
    report(bars, figures=figures, as_json=options.format == "json")


if __name__ == "__main__":
    main()

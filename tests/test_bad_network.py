"""Random schedules of a bad network: exact sums, or a clean failure with a code; nothing else.

20,000 schedules in exhaustive runs, about 1,000 in every other.

The network drops, repeats, delays, reorders, misdelivers, truncates, splices and flips bits, in
both directions, within a batch, across batches and across runs; both ends are restarted. After each
schedule it must hold that every sum that was opened is exactly that of those who are in it, that
nothing came out of what failed, that nobody was charged twice or too little, that no query was
opened twice, and that no message held a party's own votes. A part of the schedules is played again
with other votes: nothing that can be seen may differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from protocols import wire
from protocols.errors import MalformedMessageError
from protocols.identity import SigningIdentity
from tests.support.bad_network import Fault, Kind, Schedule, schedules
from tests.support.bad_runs import HYBRID_SUITE, BadRuns, Runs
from tests.support.bad_sums import BadSums, Sums
from tests.support.markers import sampled

Course = Sums | Runs
COURSES: dict[str, tuple[int, int, Course]] = {
    "sums, additive, 3": (6_400, 2_000, Sums(3)),
    "sums, additive, 4": (1_200, 0, Sums(4)),
    "sums, additive, 5": (0, 1_500, Sums(5)),
    "sums, additive, 6": (0, 1_000, Sums(6)),
    "sums, additive, 7": (0, 700, Sums(7)),
    "sums, additive, 3, two runs": (500, 500, Sums(3, runs=2, is_set_up=False)),
    "sums, masked, 5": (700, 1_000, Sums(5, "masked")),
    "sums, masked, 6": (100, 500, Sums(6, "masked")),
    "sums, masked, 7": (0, 400, Sums(7, "masked")),
    "sums, masked, 5, two runs": (30, 200, Sums(5, "masked", runs=2, is_set_up=False)),
    "runs, additive, 3": (400, 600, Runs(3)),
    "runs, additive, 4": (100, 200, Runs(4)),
    "runs, additive, 3, two runs": (120, 400, Runs(3, runs=2, is_set_up=False)),
    "runs, additive, 3, noise at the parties": (
        240,
        400,
        Runs(3, mechanism="gnmax", at_parties=True),
    ),
    "runs, additive, 3, hybrid suite": (40, 0, Runs(3, is_set_up=False, suite=HYBRID_SUITE)),
    "runs, masked, 5": (80, 200, Runs(5, "masked")),
    "runs, masked, 6": (30, 100, Runs(6, "masked")),
    "runs, masked, 5, two runs": (0, 100, Runs(5, "masked", runs=2)),
    "runs, masked, 5, noise at the parties": (
        60,
        200,
        Runs(5, "masked", mechanism="gnmax", at_parties=True),
    ),
}
"""For each course: schedules of the first 10,000, of the rest, and the course."""
SHARE = 200
"""One of so many is played in every test run, the others in exhaustive ones."""
QUOTAS = [
    pytest.param(name, quota, id=name + suffix, marks=marks)
    for name, (usual, more, _) in COURSES.items()
    for quota, suffix, marks in (
        (-(-usual // SHARE), "", ()),
        (usual - -(-usual // SHARE), ", most", pytest.mark.exhaustive),
        (more, ", more", pytest.mark.exhaustive),
    )
    if quota
]
_UNREADABLE = re.compile(rf"(PF-\d+) .* (from \S+ \[{MalformedMessageError.code}\])")
COMPARED = 8
"""One schedule of so many is played again with other votes."""
ENOUGH = 400
"""Schedules that meet every kind of fault, but for odds of one in a million."""


@pytest.fixture(autouse=True, scope="module")
def _remembered_frames() -> Iterator[None]:
    """Read and make each frame once: most are the same in all schedules."""
    sign = SigningIdentity.sign

    @lru_cache(maxsize=2**14)
    def signed(identity: SigningIdentity, purpose: str, digest: bytes) -> bytes:
        return sign(identity, purpose=purpose, digest=digest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "decode", lru_cache(maxsize=2**14)(wire.decode))
        patch.setattr(
            SigningIdentity,
            "sign",
            lambda self, *, purpose, digest: signed(self, purpose, digest),
        )
        yield


def test_there_are_20_000_schedules() -> None:
    assert sum(usual + more for usual, more, _ in COURSES.values()) >= 20_000


@sampled()
@pytest.mark.parametrize(("name", "quota"), QUOTAS)
def test_whatever_the_network_does_sums_are_exact_or_fail_with_a_code(
    name: str, quota: int
) -> None:
    course = COURSES[name][-1]
    played, outcomes, applied = 0, Counter[str](), set[Kind]()

    @settings(
        max_examples=quota,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        schedule=schedules(exchanges=course.exchanges, nodes=course.parties, most=5 * course.runs),
        turn=st.integers(0, COMPARED - 1),
    )
    def play(schedule: Schedule, turn: int) -> None:
        nonlocal played
        seen = course.play(schedule)
        if turn == 0:
            compare(seen, course.play(schedule, other_votes=True))
        played += 1
        outcomes.update(is_batch_done(seen))
        applied.update(seen.network.applied)

    play()
    assert played >= quota
    if quota >= ENOUGH:
        # Neither always nor never: both sides of the rule were tried, with every kind of fault.
        assert outcomes[True] >= quota // 10
        assert outcomes[False] >= quota // 20
        assert applied == set(Kind)


def is_batch_done(seen: BadSums | BadRuns) -> list[bool]:
    """Of each batch, whether something came out."""
    return [
        outcome.startswith("batch: done")
        for outcome in seen.outcomes
        if outcome.startswith("batch")
    ]


def compare(one: BadSums | BadRuns, other: BadSums | BadRuns) -> None:
    """Hold two courses of the same schedule against each other: only votes differ in them.

    And keys: what a spoiled byte of fresh randomness is taken for may differ before any vote.
    """
    assert one.network.trace == other.network.trace
    assert told(one) == told(other)


def told(seen: BadSums | BadRuns) -> list[str]:
    """What somebody hears; of a setup that failed, that it did.

    Which words a spliced frame is refused with depends on the fresh randomness in it.
    """
    outcomes = ["setup failed" if is_failed_setup(each) else each for each in seen.outcomes]
    return [_UNREADABLE.sub(r"\1 unreadable \2", each) for each in outcomes]


def is_failed_setup(outcome: str) -> bool:
    """Whether no votes were there yet."""
    return outcome.startswith("setup: ") and outcome != "setup: done"


# Named cases -----------------------------------------------------------------------------------

ALL = ["batch: done", "batch: done", "closing: done"]


def fault(kind: Kind, *, exchange: int = 0, node: int = 1, a: int = 0, b: int = 0) -> Fault:
    """A fault of an answer."""
    return Fault(exchange, node, False, kind, a, b)


@sampled()
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        pytest.param([], ALL, id="nothing"),
        pytest.param([fault(Kind.REPEAT, b=2)], ALL, id="a y that comes twice is added once"),
        pytest.param([fault(Kind.REPEAT_FRAME)], ALL, id="a y twice in a packet is added once"),
        pytest.param(
            [replace(fault(Kind.REPEAT, b=2), to_party=True)], ALL, id="a plan that comes twice"
        ),
        pytest.param(
            [fault(Kind.REPEAT_LATER, b=0), fault(Kind.REPEAT_LATER, exchange=1, b=0)],
            ["batch: done", "batch: PF", "closing: "],
            id="a y of the first batch again in the second",
        ),
        pytest.param(
            [fault(Kind.DELAY)],
            ["batch: ", "batch: ", "closing: "],
            id="a y of the first batch only in the second",
        ),
        pytest.param(
            [replace(fault(Kind.REPEAT_LATER, b=2), to_party=True)],
            ALL,
            id="a plan of the first batch before the second's",
        ),
        pytest.param(
            [fault(Kind.FLIP, a=8 * 100)],
            ["batch: PF", "batch: ", "closing: "],
            id="one bit of a y",
        ),
        pytest.param(
            [fault(Kind.FLIP_END)],
            ["batch: PF", "batch: ", "closing: "],
            id="the last bit of a y",
        ),
        pytest.param(
            [replace(fault(Kind.FLIP_END, a=9), to_party=True)],
            ["batch: ", "batch: ", "closing: "],
            id="a deadline's last bit but one",
        ),
        pytest.param(
            [fault(Kind.MISDELIVER)],
            ["batch: PF", "batch: ", "closing: "],
            id="a y in a peer's name",
        ),
        pytest.param(
            [fault(Kind.OLDER, exchange=1)],
            ["batch: done", "batch: PF", "closing: "],
            id="the first batch's y for the second's",
        ),
        pytest.param([fault(Kind.REORDER_PARTIES, a=1)], ALL, id="parties in another order"),
        pytest.param(
            [fault(Kind.STALL)],
            ["batch: PF", "batch: PF", "closing: "],
            id="an exchange longer than the run",
        ),
        pytest.param(
            [fault(Kind.RESTART_COORDINATOR)], ALL, id="a coordinator that dies before it has sent"
        ),
        pytest.param(
            [fault(Kind.RESTART_COORDINATOR, b=1)], ALL, id="a coordinator that dies unanswered"
        ),
        pytest.param(
            [fault(Kind.RESTART_COORDINATOR, exchange=2, b=1)],
            ALL,
            id="a coordinator that dies in the closing",
        ),
        pytest.param(
            [fault(Kind.RESTART_PARTY), fault(Kind.RESTART_COORDINATOR, b=1)],
            ["batch: done", "batch: PF", "closing: PF"],
            id="both ends, when a y is on its way",
        ),
        pytest.param(
            [replace(fault(Kind.RESTART_PARTY), to_party=True)],
            ["batch: PF", "batch: PF", "closing: PF"],
            id="a party before its first y",
        ),
        pytest.param(
            [
                replace(fault(Kind.DROP), to_party=True),
                replace(fault(Kind.OLDER, exchange=1, b=1), to_party=True),
                replace(fault(Kind.REORDER, exchange=1), to_party=True),
            ],
            ["batch: PF", "batch: PF", "closing: done"],
            id="a lost plan, found again in front of its settlement",
        ),
    ],
)
@pytest.mark.parametrize("make", [Sums, Runs])
def test_a_fault_does_what_it_must_and_no_more(
    make: type[Course], schedule: Schedule, expected: list[str]
) -> None:
    outcomes = make(3).play(schedule).outcomes
    assert len(outcomes) == len(expected)
    assert all(map(str.startswith, outcomes, expected)), outcomes

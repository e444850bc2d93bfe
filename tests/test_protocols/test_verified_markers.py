"""Neither aggregator holds a vote or an exact sum: not in its state, its journal or its memory."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from protocols.identity import SigningIdentity
from protocols.suites import SUITE_X25519
from protocols.verified import VoteBatch, make_report
from protocols.verified.vote_sum import noise_bytes
from tests.support.checking import COLUMNS, QUERIES, SIGMA, Check, Rows, gaussian
from tests.support.lone_end import LoneEnd
from tests.support.marker import held_in_memory, rows_in_memory

HOSPITALS = (
    ((613, 251, 136), (97, 379, 524)),
    ((211, 443, 327), (571, 89, 321)),
    ((149, 173, 672), (307, 617, 70)),
)
"""Two rows of each: three counts side by side are 12 bytes, and more."""
VOTES = tuple(sum(rows[0]) for rows in HOSPITALS)
SUMS = tuple(
    tuple(sum(rows[place][column] for rows in HOSPITALS) for column in range(3))
    for place in range(2)
)
SECRET = [row for rows in HOSPITALS for row in rows] + list(SUMS)


def marked(place: int) -> Rows:
    return np.array(HOSPITALS[place], dtype=np.int64)


def batch_of(hospitals: list[SigningIdentity], coordinator: LoneEnd, tally: LoneEnd) -> VoteBatch:
    votes = {one.fingerprint: VOTES[place] for place, one in enumerate(hospitals)}
    ends = coordinator.aggregator, tally.aggregator
    return VoteBatch(os.urandom(32), 2, 3, votes, *ends, SUITE_X25519)


def run_alone(*, is_bare: bool, look: Callable[[LoneEnd], None]) -> None:
    """A batch with both ends in processes of their own; `look` at both in the middle and after."""
    ends = [LoneEnd(is_tally=is_tally, is_bare=is_bare) for is_tally in (False, True)]
    hospitals = [SigningIdentity.generate() for _ in HOSPITALS]
    batch = batch_of(hospitals, *ends)
    for place, end in enumerate(ends):
        end.begin(
            batch, ends[1 - place].identity, {one.fingerprint: one.public for one in hospitals}
        )
    for place, hospital in enumerate(hospitals):
        report = make_report(batch, marked(place), identity=hospital, random_bytes=os.urandom)
        ends[0].ask(report)
    request, calls = ends[0].ask(b""), 0
    while request:
        request, calls = ends[0].ask(ends[1].ask(request)), calls + 1
    assert calls == 4
    for end in ends:
        look(end)
        end.end()


@pytest.mark.slow
class TestMemory:
    def test_no_vote_and_no_exact_sum_is_in_the_memory_of_either_process(self) -> None:
        run_alone(is_bare=False, look=lambda end: _require_nothing(rows_in_memory(end.pid, SECRET)))

    def test_without_noise_the_search_finds_the_sums_in_both(self) -> None:
        def look(end: LoneEnd) -> None:
            assert rows_in_memory(end.pid, SUMS)
            _require_nothing(rows_in_memory(end.pid, SECRET[:-2]))  # votes are not there even then

        run_alone(is_bare=True, look=look)


def _require_nothing(found: list[str]) -> None:
    assert found == []


class TestState:
    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_no_vote_and_no_exact_sum_is_in_a_machine_or_its_journal(self, place: int) -> None:
        check = Check(*VOTES)
        marked_batch = VoteBatch(
            os.urandom(32), 2, 3, check.batch.votes, check.batch.coordinator, check.batch.tally,
            SUITE_X25519,
        )  # fmt: skip
        check.batch = marked_batch
        check.start(0)
        check.start(1)
        numbers = {one: place for place, one in enumerate(check.batch.votes.values())}
        reports = [
            make_report(
                marked_batch,
                marked(numbers[marked_batch.votes[one.fingerprint]]),
                identity=one,
                random_bytes=os.urandom,
            )
            for one in check.hospitals
        ]
        told = check.run(*reports)
        machine, journal = check.machine(place), check.journals[place]
        assert machine.opened is not None
        assert held_in_memory(machine, journal, journal.steps(), rows=SECRET, least=2) == []
        assert held_in_memory([marked(0)], rows=SECRET, least=2)
        assert len(told) == 8


PAIRS = 20


class TestDifference:
    """An end asks all hospitals once, and all but one once more, and takes one sum off the other.

    With exact sums it would have that hospital's votes, as a coordinator has that adds the noise.
    """

    def own_noise(self, check: Check, place: int) -> Rows:
        machine = check.machine(place)
        stream = noise_bytes(
            machine._side.secrets.noise_seed,
            plan_digest=check.batch.plan_digest,
            aggregator=check.identities[place].fingerprint,
            coin=machine._coin,
        )
        return gaussian((QUERIES, COLUMNS), stream)

    def seen(self, place: int, *hospitals: int) -> Rows:
        """The sum of these hospitals, as an end sees it that takes its own noise off."""
        check = Check(3, 25, 40, 3)
        check.run(*(check.report(one) for one in hospitals))
        opened = check.machine(place).opened
        assert opened is not None
        left: Rows = opened - self.own_noise(check, place)
        return left

    @pytest.mark.parametrize("place", range(2), ids=["coordinator", "tally"])
    def test_two_sums_that_differ_by_a_hospital_hide_its_votes_by_both_of_the_others_noises(
        self, place: int
    ) -> None:
        votes = Check(3, 25, 40, 3).rows(1)
        errors = np.array(
            [self.seen(place, 0, 1, 2, 3) - self.seen(place, 0, 2, 3) - votes for _ in range(PAIRS)]
        )
        expected = 2**0.5 * SIGMA
        five = 5 * expected / (2 * errors.size) ** 0.5  # a false alarm in a million
        assert abs(errors.std() - expected) < five
        assert abs(errors.mean()) < 5 * expected / errors.size**0.5
        # Of 120 rows, each exact by a chance of one in a million: with exact sums all are.
        assert (errors == 0).all(axis=2).sum() <= 1

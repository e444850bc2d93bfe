"""What a party remembers: no plan and no query twice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from party.journal import MemoryJournal
from pate_fed.queries import QueryPool
from protocols.errors import KeyReuseError

ONE, TWO, THREE = b"1" * 32, b"2" * 32, b"3" * 32
RUN, PLAN, OTHER_PLAN = b"r" * 32, b"1" * 32, b"2" * 32


def begun(epoch: int = 1) -> MemoryJournal:
    journal = MemoryJournal()
    journal.begin(run_id=RUN, epoch=epoch, plan_digest=PLAN)
    return journal


class TestQueries:
    def test_query_can_be_claimed_once(self) -> None:
        journal = MemoryJournal()
        journal.claim([ONE, TWO])
        with pytest.raises(KeyReuseError):
            journal.claim([THREE, TWO])
        assert journal.count() == 2  # THREE was not noted

    def test_the_same_query_twice_in_one_claim_is_refused(self) -> None:
        journal = MemoryJournal()
        assert journal.any_answered([ONE, ONE])
        with pytest.raises(KeyReuseError):
            journal.claim([ONE, ONE])
        assert journal.count() == 0

    def test_an_input_is_one_query_in_whatever_pool_and_place_it_stands(self) -> None:
        here = QueryPool(np.array([[0.0, 1.0], [2.0, 3.0]]))
        there = QueryPool(np.array([[9.0, 9.0], [8.0, 8.0], [2.0, 3.0]]))
        journal = MemoryJournal()
        journal.claim(here.ask((0, 1)).digests)
        assert journal.any_answered(there.ask((2,)).digests)
        assert not journal.any_answered(there.ask((0, 1)).digests)

    def test_minus_zero_is_zero(self) -> None:
        plus, minus = QueryPool(np.array([[0.0]])), QueryPool(np.array([[-0.0]]))
        assert plus.ask((0,)).digests == minus.ask((0,)).digests


class TestPlans:
    @pytest.mark.parametrize(
        "again",
        [
            pytest.param(
                lambda journal: journal.begin(run_id=RUN, epoch=5, plan_digest=PLAN), id="same plan"
            ),
            pytest.param(
                lambda journal: journal.begin(run_id=RUN, epoch=4, plan_digest=OTHER_PLAN),
                id="same epoch",
            ),
            pytest.param(
                lambda journal: journal.begin(run_id=RUN, epoch=3, plan_digest=OTHER_PLAN),
                id="older epoch",
            ),
        ],
    )
    def test_a_plan_is_begun_once_and_epochs_go_forward(
        self, again: Callable[[MemoryJournal], None]
    ) -> None:
        with pytest.raises(KeyReuseError):
            again(begun(epoch=4))

    def test_another_run_has_epochs_of_its_own(self) -> None:
        journal = begun(epoch=4)
        journal.begin(run_id=b"s" * 32, epoch=1, plan_digest=OTHER_PLAN)
        journal.keep(OTHER_PLAN, b"frame")
        assert journal.find(OTHER_PLAN) == b"frame"

    def test_a_frame_is_kept_once_and_only_for_a_plan_that_was_begun(self) -> None:
        journal = begun()
        journal.keep(PLAN, b"y")
        with pytest.raises(KeyReuseError):
            journal.keep(PLAN, b"another y")
        with pytest.raises(KeyReuseError):
            journal.keep(OTHER_PLAN, b"y")
        assert journal.find(PLAN) == b"y"

    def test_an_erased_plan_is_never_begun_again(self) -> None:
        journal = begun()
        journal.keep(PLAN, b"y")
        journal.erase(PLAN)
        assert journal.find(PLAN) is None
        with pytest.raises(KeyReuseError):
            journal.begin(run_id=RUN, epoch=9, plan_digest=PLAN)

    def test_journal_prints_no_frame(self) -> None:
        journal = begun()
        journal.keep(PLAN, b"y")
        assert repr(journal) == "MemoryJournal(plans=1)"

"""Whole batches of verified votes: liars and lost hospitals beside honest ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from protocols import wire
from protocols.errors import ProtocolError, TooFewPartiesError
from protocols.verified import (
    Aggregator,
    EvaluationPoint,
    VerifiedSum,
    VerifyingEnd,
    VoteLayout,
    run_verified_sum,
)
from protocols.verified.prime_field import Elements
from protocols.vote_messages import ReportHeader, VoteReport
from tests.support.checking import COLUMNS, QUERIES, Change, P, Ward, gaussian
from tests.support.markers import sampled


class Summed(Ward):
    """A batch whose sum both ends open in one function, with their secrets."""

    def __init__(self, *votes: int) -> None:
        super().__init__(*votes)
        self.ends = [
            VerifyingEnd(key, os.urandom(32), gaussian((QUERIES, COLUMNS), os.urandom))
            for key in self.keys
        ]

    def run(self, frames: list[bytes], *, least: int = 2) -> VerifiedSum:
        return run_verified_sum(
            self.batch,
            frames,
            identities=self.pinned,
            coordinator=self.ends[0],
            tally=self.ends[1],
            least_parties=least,
        )

    def require_sum_of(self, found: VerifiedSum, *places: int) -> None:
        """The noisy sum is exactly that of these hospitals."""
        noise = self.ends[0].noise + self.ends[1].noise
        assert found.accepted == tuple(self.hospitals[place].fingerprint for place in places)
        assert (found.counts == self.sum_of(*places) + noise).all()


@pytest.fixture
def ward() -> Summed:
    return Summed(3, 25, 40, 3)


class TestHonest:
    def test_the_sum_of_all_opens_in_any_order(self, ward: Summed) -> None:
        frames = [ward.report(place) for place in (2, 0, 3, 1)]
        found = ward.run(frames)
        ward.require_sum_of(found, 0, 1, 2, 3)
        assert (found.rejected, found.unreadable) == ({}, 0)

    def test_a_hospital_that_never_comes_is_left_out(self, ward: Summed) -> None:
        found = ward.run([ward.report(place) for place in (0, 2, 3)])
        ward.require_sum_of(found, 0, 2, 3)
        assert found.rejected == {}

    def test_fewer_hospitals_than_the_plan_wants_do_not_open(self, ward: Summed) -> None:
        frames = [ward.report(place) for place in range(3)]
        with pytest.raises(TooFewPartiesError) as caught:
            ward.run(frames, least=4)
        assert (caught.value.received, caught.value.threshold) == (3, 4)
        ward.require_sum_of(ward.run(frames, least=3), 0, 1, 2)

    def test_the_same_secrets_give_the_same_sum(self, ward: Summed) -> None:
        frames = [ward.report(place) for place in range(4)]
        assert (ward.run(frames).counts == ward.run(frames).counts).all()


# Liars -------------------------------------------------------------------------------------------

LIES: dict[str, Change] = {
    "a thousand votes more for one class, fewer for another": lambda _: {0: 1000, 1: -1000},
    "a vote too many": lambda _: {5: 1},
    "a vote less than none": lambda rows: {0: -int(rows[0, 0]) - 1, 1: int(rows[0, 0]) + 1},
    "halves of the field": lambda _: {0: (P + 1) // 2, 2: (P + 1) // 2 - 1},
    "an empty row": lambda rows: {at: -int(rows[0, at]) for at in range(COLUMNS)},
    "a vote moved to another query": lambda rows: {
        int(rows[0].argmax()): -1,
        COLUMNS + int(rows[1].argmin()): 1,
    },
    "one wrong entry": lambda _: {7: 12345},
}


class TestLiars:
    @sampled()
    @pytest.mark.parametrize("place", range(3), ids=["3 votes", "25 votes", "40 votes"])
    @pytest.mark.parametrize("lie", LIES)
    def test_a_lie_is_left_out_and_the_others_votes_are_right(
        self, ward: Summed, lie: str, place: int
    ) -> None:
        frames = [ward.report(other) for other in range(4) if other != place]
        frames.insert(1, ward.lying_report(place, LIES[lie]))
        found = ward.run(frames)
        ward.require_sum_of(found, *(other for other in range(4) if other != place))
        liar = ward.hospitals[place]
        (header,) = found.rejected.values()
        wire.decode(header).verify(liar.public)  # what the operator can show
        assert list(found.rejected) == [liar.fingerprint]

    def test_five_liars_of_ten_change_nothing(self) -> None:
        ward = Summed(*range(3, 13))
        lies = list(LIES.values())
        frames = [
            ward.lying_report(place, lies[place]) if place < 5 else ward.report(place)
            for place in range(10)
        ]
        found = ward.run(frames)
        ward.require_sum_of(found, *range(5, 10))
        assert len(found.rejected) == 5


# Spoiled and hostile reports ---------------------------------------------------------------------


def unfit(frame: bytes, other: bytes) -> bytes:
    """A report with the tally's envelope of another one."""
    mine, theirs = (wire.expect(wire.decode(each), VoteReport) for each in (frame, other))
    return wire.contain(replace(mine, tally_envelope=theirs.tally_envelope))


def stolen(ward: Summed, victim: bytes, thief: int) -> bytes:
    """A victim's report, which another hospital signs as its own."""
    report = wire.expect(wire.decode(victim), VoteReport)
    header = wire.expect(wire.decode(report.header), ReportHeader)
    identity = ward.hospitals[thief]
    signed = wire.sign(replace(header, sender=identity.fingerprint), identity)
    return wire.contain(replace(report, header=signed.frame))


class TestReports:
    def test_a_copied_report_does_not_count_its_victims_votes_twice(self, ward: Summed) -> None:
        victim = ward.report(0)
        found = ward.run([stolen(ward, victim, 3), victim, ward.report(1)])
        ward.require_sum_of(found, 0, 1)
        assert list(found.rejected) == [ward.hospitals[3].fingerprint]

    def test_a_hospitals_first_report_counts_and_no_later_one(self, ward: Summed) -> None:
        first = ward.report(0)
        for later in (first, ward.report(0), unfit(ward.report(0), first)):
            ward.require_sum_of(ward.run([first, ward.report(1), later]), 0, 1)
        spoiled = unfit(ward.report(0), first)
        found = ward.run([spoiled, first, ward.report(1), ward.report(2)])
        ward.require_sum_of(found, 1, 2)

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda _: b"", id="no bytes"),
            pytest.param(lambda ward: ward.report(3)[:-1], id="cut"),
            pytest.param(lambda ward: ward.report(3) + b"\0", id="a byte more"),
            pytest.param(
                lambda ward: ward.report(3, replace(ward.batch, plan_digest=bytes(32))),
                id="of another plan",
            ),
            pytest.param(
                lambda ward: stolen(ward, ward.report(3), 3)[:-1], id="cut after its header"
            ),
        ],
    )
    def test_what_is_nobodys_report_is_counted_and_left_out(
        self, ward: Summed, make: Callable[[Summed], bytes]
    ) -> None:
        found = ward.run([make(ward), ward.report(0), ward.report(1)])
        ward.require_sum_of(found, 0, 1)
        assert (found.rejected, found.unreadable) == ({}, 1)

    def test_a_strangers_report_is_nobodys(self, ward: Summed) -> None:
        stranger = Summed(3)
        batch = replace(ward.batch, votes=stranger.batch.votes)
        found = ward.run([stranger.report(0, batch), ward.report(0), ward.report(1)])
        ward.require_sum_of(found, 0, 1)
        assert found.unreadable == 1

    @pytest.mark.parametrize("wish", [3 + 1, 25], ids=["one more", "another hospital's"])
    def test_a_larger_number_of_votes_than_the_plans_is_rejected(
        self, ward: Summed, wish: int
    ) -> None:
        me = ward.hospitals[0].fingerprint
        wished = replace(ward.batch, votes={**ward.batch.votes, me: wish})
        true, ward.batch = ward.batch, wished
        frame = ward.report(0)
        ward.batch = true
        found = ward.run([frame, ward.report(1), ward.report(2)])
        ward.require_sum_of(found, 1, 2)
        assert list(found.rejected) == [me]


class TestEnds:
    def test_one_nonce_changes_the_point_for_all(self, ward: Summed) -> None:
        seen: list[bytes] = []
        true = EvaluationPoint.of

        def watched(layout: VoteLayout, coin: bytes) -> EvaluationPoint:
            seen.append(coin)
            return true(layout, coin)

        frames = [ward.report(place) for place in range(4)]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(EvaluationPoint, "of", watched)
            ward.run(frames)
            ward.ends[1] = replace(ward.ends[1], nonce=os.urandom(32))
            ward.run(frames)
        assert len(seen) == 2 * 3  # one for each number of votes, of one coin
        assert len(set(seen)) == 2

    def test_an_offset_of_either_answer_rejects_its_report(
        self, ward: Summed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        true = EvaluationPoint.answer

        def offset(self: EvaluationPoint, share: object, *, takes_off_votes: bool) -> Elements:
            answer = true(self, share, takes_off_votes=takes_off_votes)  # type: ignore[arg-type]
            if takes_off_votes and self.layout.votes == 25:
                answer[1, 0] = (int(answer[1, 0]) + 1) % P
            return answer

        monkeypatch.setattr(EvaluationPoint, "answer", offset)
        found = ward.run([ward.report(place) for place in range(4)])
        ward.require_sum_of(found, 0, 2, 3)

    def test_ends_show_no_secret(self, ward: Summed) -> None:
        end = ward.ends[0]
        assert end.nonce.hex() not in repr(end)
        assert "noise" not in repr(end)


class TestPlantedBugs:
    """With each of them a test above fails: the lie that it lets through is counted."""

    def test_a_dropped_check_of_row_sums_is_noticed(
        self, ward: Summed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frame = ward.lying_report(1, LIES["a vote moved to another query"])
        frames = [ward.report(0), frame, ward.report(2)]
        ward.require_sum_of(ward.run(frames), 0, 2)
        true = EvaluationPoint.answer

        def without(self: EvaluationPoint, share: object, *, takes_off_votes: bool) -> Elements:
            answer = true(self, share, takes_off_votes=takes_off_votes)  # type: ignore[arg-type]
            answer[:, -1] = 0
            return answer

        monkeypatch.setattr(EvaluationPoint, "answer", without)
        assert len(ward.run(frames).accepted) == 3

    def test_a_dropped_check_of_digits_is_noticed(
        self, ward: Summed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lie = LIES["a thousand votes more for one class, fewer for another"]
        frames = [ward.report(0), ward.lying_report(1, lie), ward.report(2)]
        ward.require_sum_of(ward.run(frames), 0, 2)
        monkeypatch.setattr(EvaluationPoint, "accepts", lambda *_: True)
        assert len(ward.run(frames).accepted) == 3


def test_a_report_of_no_aggregators_key_is_an_error_at_the_hospital(ward: Summed) -> None:
    other = replace(ward.batch, tally=Aggregator(bytes(32), bytes(31)))
    with pytest.raises(ProtocolError):
        ward.report(0, other)

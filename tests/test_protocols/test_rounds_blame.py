"""Who spoiled a row is found out, and whoever asks learns nothing else (rule R11)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols import wire
from protocols.additive import AdditiveSum
from protocols.errors import (
    BlameError,
    ConflictingMessageError,
    UnexpectedMessageError,
    WrongStateError,
)
from protocols.masked import MaskedSum
from protocols.messages import BlameRequest, Refusal, StreamSums
from protocols.pair_keys import PairRoots
from protocols.prg import expand
from protocols.ring import Ring
from protocols.rounds import Blame, PartyRound, PartyState
from protocols.rounds.blame.at_coordinator import BlameCase
from protocols.rounds.blame.at_party import RowWitness
from protocols.rounds.opening.at_party import ShareHolder
from protocols.secure_sum import SecureSum
from tests.support.markers import sampled
from tests.support.rounds import EXPIRES_AT, NOW, MemoryRun, ready_run

ROWS, CLASSES = 4, 3
BAD_ROW = 2
FORMS = pytest.mark.parametrize(
    ("form", "parties"),
    [
        pytest.param(AdditiveSum, 3, id="additive, 3"),
        pytest.param(AdditiveSum, 5, id="additive, 5"),
        pytest.param(MaskedSum, 5, id="masked, 5"),
    ],
)


def quota(seat: int) -> int:
    return 10 + seat


def votes(seat: int, *, shift: int = 0) -> NDArray[np.int64]:
    """An honest party's rows; another shift gives other votes with the same quota."""
    counts = np.zeros((ROWS, CLASSES), dtype=np.int64)
    for row in range(ROWS):
        counts[row, (row + seat + shift) % CLASSES] = quota(seat)
    return counts


def plus_one(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    counts[BAD_ROW, 0] += 1
    return counts


def half_round_the_ring(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    counts[BAD_ROW, 1] -= 2**31
    return counts


def all_zeros(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts * 0


def spoiled(
    form: type[SecureSum], parties: int, lies: dict[int, Any], *, absent: tuple[int, ...] = ()
) -> MemoryRun:
    """A void batch of a run in which some seats sent what they should not have."""
    run = ready_run(parties, form=form)
    vectors = [
        lies.get(seat, lambda counts: counts)(votes(seat)).ravel() for seat in range(parties)
    ]
    total = run.sum(vectors, row_words=CLASSES, absent=absent).reshape(ROWS, CLASSES)
    alive = [seat for seat in range(parties) if seat not in absent]
    assert (total.sum(axis=1) - sum(map(quota, alive)))[BAD_ROW] % 2**32 or not lies
    run.settle(released=False)
    return run


def party_at(run: MemoryRun, seat: int) -> PartyRound:
    return run.parties[run.coordinator.seats[seat]]


def stated(run: MemoryRun, seat: int, request: bytes) -> StreamSums:
    party = party_at(run, seat)
    assert party.receive(request, now=NOW).replies == ()
    (frame,) = party.state_sums(row_words=CLASSES)
    return wire.expect(wire.decode(frame), StreamSums)


def named(run: MemoryRun, lies: dict[int, dict[int, int]] | None = None) -> Blame:
    """Ask all who are to be asked; a lie adds to the sum that a seat states of another."""
    request = run.coordinator.blame.ask(BAD_ROW)
    for fp in run.coordinator.missing:
        seat = run.coordinator.seats.index(fp)
        message = stated(run, seat, request)
        sums = list(message.sums)
        for peer, off in (lies or {}).get(seat, {}).items():
            sums[peer] = (sums[peer] + off) % 2**32
        changed = dataclasses.replace(message, sums=tuple(sums))
        run.coordinator.receive(wire.sign(changed, run.identities[fp]).frame, peer=fp)
    return run.coordinator.blame.name([quota(place) for place in range(len(run.parties))])


def seats_of(run: MemoryRun, blame: Blame) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    at = run.coordinator.seats.index
    pairs = [(at(one), at(two)) for one, two in blame.pairs]
    return [at(fp) for fp in blame.parties], pairs, [at(fp) for fp in blame.silent]


class TestWhoIsNamed:
    @sampled()
    @FORMS
    @pytest.mark.parametrize("lie", [plus_one, half_round_the_ring, all_zeros])
    def test_who_sends_a_wrong_row_is_named_alone(
        self, form: type[SecureSum], parties: int, lie: Any
    ) -> None:
        run = spoiled(form, parties, {1: lie})
        assert seats_of(run, named(run)) == ([1], [], [])

    @FORMS
    def test_two_wrong_rows_name_two(self, form: type[SecureSum], parties: int) -> None:
        run = spoiled(form, parties, {0: plus_one, 2: all_zeros})
        assert seats_of(run, named(run)) == ([0, 2], [], [])

    @FORMS
    def test_a_lie_about_a_stream_names_its_pair(self, form: type[SecureSum], parties: int) -> None:
        run = spoiled(form, parties, {1: plus_one})
        # What it added is said to come from its stream with seat 2.
        assert seats_of(run, named(run, {1: {2: 1}})) == ([], [(1, 2)], [])

    @FORMS
    def test_two_that_agree_on_a_lie_do_not_both_come_out(
        self, form: type[SecureSum], parties: int
    ) -> None:
        run = spoiled(form, parties, {1: plus_one})
        blame = named(run, {1: {2: 1}, 2: {1: 1}})
        assert seats_of(run, blame) == ([2], [], [])

    @FORMS
    def test_a_sum_that_nobody_else_knows_hides_no_lie(
        self, form: type[SecureSum], parties: int
    ) -> None:
        run = spoiled(form, parties, {1: plus_one})
        assert seats_of(run, named(run, {1: {1: 1}})) == ([1], [], [])

    def test_a_party_that_shares_another_mask_than_it_adds_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = ready_run(5, form=MaskedSum)
        liar, honest = run.coordinator.seats[1], ShareHolder.deal

        def deal(holder: ShareHolder, keys: Any, *, self_key: bytes, **arguments: Any) -> bytes:
            shared = bytes(32) if holder._run.me == liar else self_key
            return honest(holder, keys, self_key=shared, **arguments)

        monkeypatch.setattr(ShareHolder, "deal", deal)
        run.sum([votes(seat).ravel() for seat in range(5)], row_words=CLASSES)
        run.settle(released=False)
        assert seats_of(run, named(run)) == ([1], [], [])

    def test_a_stream_with_a_party_that_dropped_out_hides_no_lie(self) -> None:
        run = spoiled(MaskedSum, 5, {1: plus_one}, absent=(3,))
        assert seats_of(run, named(run, {1: {3: 1}})) == ([1], [], [])

    @FORMS
    def test_who_says_nothing_is_named_for_that(self, form: type[SecureSum], parties: int) -> None:
        run = spoiled(form, parties, {1: plus_one})
        request = run.coordinator.blame.ask(BAD_ROW)
        for seat, fp in enumerate(run.coordinator.seats):
            if seat != 1:
                frame = wire.sign(stated(run, seat, request), run.identities[fp]).frame
                run.coordinator.receive(frame, peer=fp)
        blame = run.coordinator.blame.name([quota(seat) for seat in range(parties)])
        assert seats_of(run, blame) == ([], [], [1])

    @FORMS
    def test_a_lie_that_keeps_the_row_sum_is_not_found(
        self, form: type[SecureSum], parties: int
    ) -> None:
        def shifted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
            counts[BAD_ROW] += (7, -7, 0)
            return counts

        run = spoiled(form, parties, {0: plus_one, 1: shifted})
        assert seats_of(run, named(run)) == ([0], [], [])

    def test_a_statement_of_another_row_or_length_is_refused(self) -> None:
        run = spoiled(AdditiveSum, 3, {1: plus_one})
        fp = run.coordinator.seats[0]
        good = stated(run, 0, run.coordinator.blame.ask(BAD_ROW))
        for changed in ({"row": 1}, {"sums": good.sums[:2]}, {"plan_digest": bytes(32)}):
            bad = wire.sign(dataclasses.replace(good, **changed), run.identities[fp]).frame
            with pytest.raises(UnexpectedMessageError):
                run.coordinator.receive(bad, peer=fp)
        assert fp in run.coordinator.missing


RING = Ring(8)
EIGHT_BITS = AdditiveSum(RING)
offsets = st.integers(0, 255)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    parties=st.integers(3, 5),
    liars=st.sets(st.integers(0, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_whatever_liars_state_one_is_found_and_no_honest_party_is_named_alone(
    parties: int, liars: set[int], data: st.DataObject
) -> None:
    liars = {seat % parties for seat in liars}
    streams = np.array(data.draw(st.lists(offsets, min_size=25, max_size=25))).reshape(5, 5)
    streams = np.triu(streams, 1) + np.triu(streams, 1).T
    rows = [7 + (data.draw(offsets) if seat in liars else 0) for seat in range(parties)]
    if (sum(rows) - 7 * parties) % 256 == 0:
        return  # the row is right: nothing is void
    seats = tuple(bytes([seat]) * 32 for seat in range(parties))
    case = BlameCase(EIGHT_BITS, seats=seats, plan_digest=bytes(32), words=2, row_words=2)
    for seat in range(parties):
        signed = [streams[seat, peer] * (1 if seat < peer else -1) for peer in range(parties)]
        y = (rows[seat] + sum(int(value) for value in signed)) % 256
        case.add(seats[seat], np.array([y, 0], dtype=np.uint8))
    case.ask(0, run_id=bytes(32))
    for seat in range(parties):
        told = [int(streams[seat, peer]) for peer in range(parties)]
        if seat in liars:
            told = [data.draw(st.sampled_from([value, 0]) | offsets) for value in told]
        case.take(StreamSums(bytes(32), seats[seat], 0, tuple(told)))
    blame = case.name([7] * parties)
    assert {seats.index(fp) for fp in blame.parties} <= liars
    assert all(liars & {seats.index(one), seats.index(two)} for one, two in blame.pairs)
    assert blame.parties or blame.pairs
    assert not blame.silent


class TestWhatMayBeAsked:
    """A coordinator that asks for more than one whole row of a void batch."""

    def ask(self, run: MemoryRun, row: int, **changed: Any) -> bytes:
        fields = {"run_id": run.coordinator.run_id, "plan_digest": self.digest(run), "row": row}
        return wire.sign(BlameRequest(**{**fields, **changed}), run.coordinator_identity).frame

    def digest(self, run: MemoryRun) -> bytes:
        coordinator = run.coordinator
        return (
            coordinator.open_plan.digest
            if coordinator.has_open_plan
            else coordinator.settled[-1].plan_digest
        )

    def refused(self, run: MemoryRun, request: bytes, *, now: float = NOW) -> None:
        party = party_at(run, 0)
        state = party.state
        with pytest.raises((BlameError, UnexpectedMessageError)):
            party.receive(request, now=now)
        assert party.state is state

    @sampled()
    @FORMS
    @pytest.mark.parametrize("row_words", [1, 0, -1, 5])
    def test_one_word_is_not_told(
        self, form: type[SecureSum], parties: int, row_words: int
    ) -> None:
        run = spoiled(form, parties, {})
        party = party_at(run, 0)
        party.receive(self.ask(run, 0), now=NOW)
        with pytest.raises(BlameError):
            party.state_sums(row_words=row_words)
        (refusal,) = party.refuse("PF-338")
        assert type(wire.decode(refusal).message).__name__ == "Refusal"
        assert party.state is PartyState.READY

    @FORMS
    def test_refusing_a_row_promises_nothing_about_the_plan(
        self, form: type[SecureSum], parties: int
    ) -> None:
        """Else a coordinator could free queries of a sum that it has opened."""
        run = spoiled(form, parties, {})
        party = party_at(run, 0)
        party.receive(request := self.ask(run, 0), now=NOW)
        (frame,) = party.refuse("PF-338")
        refusal = wire.expect(wire.decode(frame), Refusal)
        asked = wire.expect(wire.decode(request), BlameRequest)
        assert refusal.subject == wire.decode(request).digest != asked.plan_digest

    def test_a_request_has_no_word_for_a_width(self) -> None:
        names = [field.name for field in dataclasses.fields(BlameRequest)]
        assert names == ["run_id", "plan_digest", "row"]

    def test_a_row_outside_the_plan_is_refused(self) -> None:
        run = spoiled(AdditiveSum, 3, {})
        party = party_at(run, 0)
        party.receive(self.ask(run, ROWS), now=NOW)
        with pytest.raises(BlameError):
            party.state_sums(row_words=CLASSES)

    @FORMS
    def test_a_second_row_stops_the_run(self, form: type[SecureSum], parties: int) -> None:
        run = spoiled(form, parties, {})
        stated(run, 0, self.ask(run, 0))
        party = party_at(run, 0)
        with pytest.raises(ConflictingMessageError):
            party.receive(self.ask(run, 1), now=NOW)
        assert party.state is PartyState.STOPPED

    def test_the_same_request_gets_the_same_answer(self) -> None:
        run = spoiled(AdditiveSum, 3, {})
        party = party_at(run, 0)
        party.receive(request := self.ask(run, 0), now=NOW)
        frames = party.state_sums(row_words=CLASSES)
        assert party.receive(request, now=NOW).replies == frames

    def test_a_row_that_was_refused_stays_refused(self) -> None:
        run = spoiled(AdditiveSum, 3, {})
        party = party_at(run, 0)
        party.receive(request := self.ask(run, 0), now=NOW)
        refusal = party.refuse("PF-338")
        assert party.receive(request, now=NOW).replies == refusal
        with pytest.raises(ConflictingMessageError):
            party.receive(self.ask(run, 1), now=NOW)

    @FORMS
    @pytest.mark.parametrize("released", [False, True])
    def test_an_open_or_released_plan_is_not_asked_about(
        self, form: type[SecureSum], parties: int, *, released: bool
    ) -> None:
        run = ready_run(parties, form=form)
        run.sum([votes(seat).ravel() for seat in range(parties)])
        if released:
            run.settle(released=True)
        self.refused(run, self.ask(run, 0))

    def test_another_runs_plan_is_not_asked_about(self) -> None:
        run, other = spoiled(AdditiveSum, 3, {}), spoiled(AdditiveSum, 3, {})
        self.refused(run, self.ask(run, 0, plan_digest=self.digest(other)))
        self.refused(run, self.ask(run, 0, run_id=other.coordinator.run_id))

    def test_an_older_void_plan_is_not_asked_about(self) -> None:
        run = spoiled(AdditiveSum, 3, {})
        old = self.ask(run, 0)
        run.sum([votes(seat).ravel() for seat in range(3)], batch=1)
        run.settle(released=False)
        self.refused(run, old)

    def test_keys_are_gone_with_the_next_plan(self) -> None:
        run = spoiled(AdditiveSum, 3, {})
        request = self.ask(run, 0)
        plan = run.open_plan(6, batch=1)
        for fp in run.parties:
            run.to_party("plan", fp, plan)
        assert party_at(run, 0)._blame.witness is None
        self.refused(run, request)

    def test_keys_are_gone_with_the_expiry(self) -> None:
        run = spoiled(MaskedSum, 5, {})
        self.refused(run, self.ask(run, 0), now=float(EXPIRES_AT))
        assert party_at(run, 0)._blame.witness is None
        self.refused(run, self.ask(run, 0))

    def test_keys_are_gone_with_the_closing(self) -> None:
        run = spoiled(MaskedSum, 5, {})
        request = self.ask(run, 0)
        run.close()
        assert party_at(run, 0)._blame.witness is None
        self.refused(run, request)

    def test_a_party_that_was_restarted_cannot_answer(self) -> None:
        run = spoiled(AdditiveSum, 3, {})
        request = self.ask(run, 0)
        run.restart(run.coordinator.seats[0])
        self.refused(run, request)

    def test_a_request_that_the_coordinator_did_not_sign_is_refused(self) -> None:
        run = spoiled(AdditiveSum, 3, {})
        forged = wire.sign(
            BlameRequest(run.coordinator.run_id, self.digest(run), 0),
            run.identities[run.coordinator.seats[1]],
        )
        with pytest.raises(Exception, match="signature"):
            party_at(run, 0).receive(forged.frame, now=NOW)

    def test_the_coordinator_asks_for_one_row_of_a_void_plan_only(self) -> None:
        run = ready_run(3)
        with pytest.raises(WrongStateError):
            run.coordinator.blame.ask(0)  # no plan yet
        run.sum([votes(seat).ravel() for seat in range(3)], row_words=CLASSES)
        with pytest.raises(WrongStateError):
            run.coordinator.blame.ask(0)  # not settled
        run.settle(released=True)
        with pytest.raises(WrongStateError):
            run.coordinator.blame.ask(0)

    def test_the_coordinator_cannot_trace_single_words(self) -> None:
        run = ready_run(3)
        for row_words in (1, 5):
            with pytest.raises(WrongStateError):
                run.open_plan(ROWS * CLASSES, row_words=row_words)
        run.sum([votes(seat).ravel() for seat in range(3)], row_words=CLASSES)


class TestWhatAStatementTells:
    @FORMS
    def test_it_is_the_sum_of_the_streams_over_the_row(
        self, form: type[SecureSum], parties: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = spoiled(form, parties, {})
        witness = party_at(run, 0)._blame.witness
        assert witness is not None
        keys = dict(witness._keys)
        request = TestWhatMayBeAsked().ask(run, BAD_ROW)
        sums = stated(run, 0, request).sums
        for seat in range(parties):
            words = [0] * CLASSES
            if seat in keys:
                stream = expand(keys[seat], ROWS * CLASSES, ring=run.form.ring).tolist()
                words = stream[BAD_ROW * CLASSES : (BAD_ROW + 1) * CLASSES]
            assert sums[seat] == sum(words) % 2**32

    @sampled()
    @FORMS
    def test_other_votes_under_the_same_keys_give_the_same_statement(
        self, form: type[SecureSum], parties: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def key(one: int, two: int) -> bytes:
            return bytes([min(one, two), max(one, two)]) * 16

        def keys(roots: PairRoots, plan_digest: bytes) -> dict[bytes, bytes]:
            seats = sorted((roots._me, *roots._roots))
            me = seats.index(roots._me)
            return {peer: key(me, seat) for seat, peer in enumerate(seats) if seat != me}

        def statements(shift: int) -> list[tuple[int, ...]]:
            run = MemoryRun(parties, form=form)
            for party in run.parties.values():
                party.random_bytes = lambda size: b"7" * size
            run.set_up()
            vectors = [votes(seat, shift=shift).ravel() for seat in range(parties)]
            run.sum(vectors, row_words=CLASSES)
            run.settle(released=False)
            request = run.coordinator.blame.ask(BAD_ROW)
            return [stated(run, seat, request).sums for seat in range(parties)]

        monkeypatch.setattr(PairRoots, "keys_for", keys)
        assert statements(0) == statements(1) == statements(2)

    def test_beside_a_rows_sum_every_vote_is_as_likely_as_before(self) -> None:
        """All streams of two words in the ring of 2^8 with a known sum, counted."""
        k, known_sum = 9, 200

        def views(vote: int, *, one_word: int | None) -> Counter[tuple[int, int]]:
            streams = [(t, (known_sum - t) % 256) for t in range(256)]
            if one_word is not None:
                streams = [stream for stream in streams if stream[0] == one_word]
            return Counter(((vote + s) % 256, (k - vote + t) % 256) for s, t in streams)

        assert len({tuple(sorted(views(v, one_word=None).items())) for v in range(k + 1)}) == 1
        # The sum over one word is that word: then each view belongs to one vote.
        assert len({tuple(sorted(views(v, one_word=3).items())) for v in range(k + 1)}) == k + 1

    def test_a_witness_and_a_case_print_no_secret(self) -> None:
        witness = RowWitness(
            MaskedSum(), words=6, seat=0,
            pair_keys=dict.fromkeys(range(1, 5), b"s" * 32), self_key=b"s" * 32,
        )  # fmt: skip
        assert repr(witness) == "RowWitness(words=6)"

    def test_a_party_says_nothing_before_its_plan_is_void(self) -> None:
        run = ready_run(3)
        run.sum([votes(seat).ravel() for seat in range(3)])
        blame = party_at(run, 0)._blame
        digest = run.coordinator.open_plan.digest
        with pytest.raises(BlameError):
            blame.take(BlameRequest(run.coordinator.run_id, digest, 0), now=NOW)
        run.settle(released=False)
        blame.take(BlameRequest(run.coordinator.run_id, digest, 0), now=NOW)
        with pytest.raises(BlameError):
            blame.take(BlameRequest(run.coordinator.run_id, bytes(32), 0), now=NOW)

    def test_a_witness_is_used_once(self) -> None:
        witness = RowWitness(
            AdditiveSum(), words=6, seat=0,
            pair_keys={1: b"s" * 32, 2: b"t" * 32}, self_key=b"",
        )  # fmt: skip
        witness.sums(0, row_words=3)
        with pytest.raises(BlameError):
            witness.sums(1, row_words=3)

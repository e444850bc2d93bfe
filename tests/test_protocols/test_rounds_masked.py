"""Sums that open though parties drop out, and attackers who get nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols import wire
from protocols.dealing import deal as deal_shares
from protocols.errors import (
    BadSignatureError,
    ConflictingMessageError,
    HistoryError,
    MalformedMessageError,
    ProtocolError,
    RefusedError,
    TooFewSharesError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongShareError,
    WrongStateError,
)
from protocols.masked import MaskedSum
from protocols.messages import (
    Dealing,
    MaskedVector,
    Reveal,
    SetProposal,
    Settlement,
    ShareBundle,
    Verdict,
)
from protocols.rounds import CoordinatorState, PartyRound, PartyState
from protocols.rounds.opening.at_coordinator import ShareFault
from protocols.rounds.opening.at_party import ShareHolder
from tests.support.cheating import EXPIRED, Cheat, dealt_otherwise
from tests.support.marker import forms_of_words
from tests.support.markers import more, sampled
from tests.support.rounds import NOW, MemoryRun, ready_run
from tests.support.walk import altered

N = 5
"""Parties of most tests here: t = 4, c = 2."""

Vector = NDArray[np.int64]
ALL = range(N)


def ready(parties: int = N) -> MemoryRun:
    return ready_run(parties, form=MaskedSum)


def vectors_of(parties: int, words: int = 6, seed: int = 1) -> list[Vector]:
    return list(np.random.default_rng(seed).integers(-500, 500, size=(parties, words)))


def sum_of(vectors: Sequence[Vector], seats: Collection[int]) -> Vector:
    total = np.sum([vectors[seat] for seat in seats], axis=0)
    return np.asarray((total + 2**31) % 2**32 - 2**31)


def but(seats: Collection[int], *lost: int) -> list[int]:
    return [seat for seat in seats if seat not in lost]


# Sums that open --------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [5, 10, more(31)])
def test_a_masked_run_opens_the_exact_sum_batch_after_batch(parties: int) -> None:
    run, numbers = ready(parties), np.random.default_rng(parties)
    for batch in range(3):
        words = int(numbers.integers(1, 500))
        vectors = list(numbers.integers(-(2**31), 2**31, size=(parties, words)))
        assert np.array_equal(run.sum(vectors, batch=batch), sum_of(vectors, range(parties)))
        run.settle()
    run.close()
    assert {party.state for party in run.parties.values()} == {PartyState.DONE}
    assert len({party.transcript.head for party in run.parties.values()}) == 1
    assert run.coordinator.state is CoordinatorState.DONE


@pytest.mark.exhaustive
@pytest.mark.parametrize("parties", [50, more(100)])
def test_a_masked_run_of_very_many_parties_opens_the_exact_sum(parties: int) -> None:
    run, numbers = ready(parties), np.random.default_rng(100)
    for batch, lost in enumerate((0, parties // 3)):
        queries, classes = int(numbers.integers(1, 40)), int(numbers.integers(2, 12))
        vectors = vectors_of(parties, queries * classes, seed=batch)
        absent = [int(seat) for seat in numbers.permutation(parties)[:lost]]
        total = run.sum(vectors, batch=batch, absent=absent)
        assert np.array_equal(total, sum_of(vectors, but(range(parties), *absent)))
        run.settle()
    run.close()


@sampled("parties")
@pytest.mark.parametrize("parties", [5, 6, more(7)])
@pytest.mark.parametrize("had_sent", [False, True], ids=["before y", "after y"])
def test_every_pattern_of_dropouts_opens_the_sum_of_who_sent(parties: int, had_sent: bool) -> None:
    run, vectors = ready(parties), vectors_of(parties)
    most = parties - MaskedSum.threshold(parties)
    patterns = [lost for count in range(most + 1) for lost in combinations(range(parties), count)]
    for batch, lost in enumerate(patterns):
        absent, mute = ((), lost) if had_sent else (lost, ())
        total = run.sum(vectors, batch=batch, absent=absent, mute=mute)
        assert np.array_equal(total, sum_of(vectors, but(range(parties), *absent)))
        run.settle()
    run.close()


@pytest.mark.slow
def test_random_patterns_of_dropouts_of_thirty_open_the_survivors_sum() -> None:
    run, numbers = ready(30), np.random.default_rng(30)
    spare = 30 - MaskedSum.threshold(30)
    for batch in range(8):
        vectors = list(numbers.integers(-(2**31), 2**31, size=(30, 4)))
        lost = [int(seat) for seat in numbers.permutation(30)[: numbers.integers(spare + 1)]]
        cut = int(numbers.integers(len(lost) + 1))
        total = run.sum(vectors, batch=batch, absent=lost[:cut], mute=lost[cut:])
        assert np.array_equal(total, sum_of(vectors, but(range(30), *lost[:cut])))
        run.settle()
    run.close()


@pytest.mark.parametrize("lost", [2, 3, 5])
def test_one_dropout_too_many_before_y_opens_nothing(lost: int) -> None:
    run, vectors = ready(), vectors_of(N)
    with pytest.raises(TooFewSharesError) as caught:
        run.sum(vectors, absent=range(lost))
    assert (caught.value.received, caught.value.threshold) == (N - lost, 4)
    with pytest.raises(WrongStateError):
        run.coordinator.batch.open_total()
    run.settle(released=False)
    assert np.array_equal(run.sum(vectors, batch=1), sum_of(vectors, ALL))


@pytest.mark.parametrize("lost", [2, 5])
@pytest.mark.parametrize("agreed", [False, True], ids=["before a verdict", "after a verdict"])
def test_one_dropout_too_many_after_y_opens_nothing(lost: int, agreed: bool) -> None:
    run, vectors = ready(), vectors_of(N)
    collect(run, vectors)
    silent = run.coordinator.seats[:lost]
    run.agree(run.coordinator.batch.propose(), mute=() if agreed else silent)
    if agreed:
        run.show(run.coordinator.batch.certify(), mute=silent)
    with pytest.raises(TooFewSharesError) as caught:
        run.coordinator.batch.open_total() if agreed else run.coordinator.batch.certify()
    assert (caught.value.received, caught.value.threshold) == (N - lost, 4)
    with pytest.raises(WrongStateError):
        run.coordinator.batch.settle(released=True, result=b"labels")
    run.settle(released=False)
    assert np.array_equal(run.sum(vectors, batch=1), sum_of(vectors, ALL))


def test_a_refusal_is_a_dropout_before_y() -> None:
    run, vectors = ready(), vectors_of(N)
    plan = run.open_plan(6)
    for seat, fp in enumerate(run.coordinator.seats):
        run.to_party("plan", fp, plan)
        party = run.parties[fp]
        if seat == 3:
            with pytest.raises(ProtocolError):
                run.to_coordinator("y", fp, list(party.refuse("PF-301")))
        else:
            run.to_coordinator("y", fp, list(party.contribute(vectors[seat])))
    run.reveal()
    assert np.array_equal(run.coordinator.batch.open_total(), sum_of(vectors, but(ALL, 3)))
    run.settle()
    run.close()


def test_two_exchanges_open_a_sum_though_nobody_dropped_out() -> None:
    run, vectors = ready(), vectors_of(N)
    collect(run, vectors)
    with pytest.raises(WrongStateError):
        run.coordinator.batch.open_total()
    run.reveal()
    assert np.array_equal(run.coordinator.batch.open_total(), sum_of(vectors, ALL))


def test_who_missed_batches_takes_part_in_the_next() -> None:
    run, vectors = ready(), vectors_of(N)
    for batch, absent in enumerate(([0], [0], [4], [])):
        total = run.sum(vectors, batch=batch, absent=absent)
        assert np.array_equal(total, sum_of(vectors, but(ALL, *absent)))
        run.settle()
    run.close()
    assert len({party.transcript.head for party in run.parties.values()}) == 1


def test_who_did_not_answer_a_plan_in_time_takes_part_in_the_next() -> None:
    run, vectors = ready(), vectors_of(N)
    plan = run.open_plan(6)
    for seat, fp in enumerate(run.coordinator.seats):
        run.to_party("plan", fp, plan)
        if seat != 2:
            run.to_coordinator("y", fp, list(run.parties[fp].contribute(vectors[seat])))
    run.reveal()
    run.coordinator.batch.open_total()
    slow = run.parties[run.coordinator.seats[2]]
    assert slow.state is PartyState.REVIEWING_PLAN
    run.settle()
    with pytest.raises(WrongStateError):
        slow.contribute(vectors[2])
    assert np.array_equal(run.sum(vectors, batch=1), sum_of(vectors, ALL))


def test_shares_and_keys_of_a_plan_are_gone_when_it_is_settled() -> None:
    run, vectors = ready(), vectors_of(N)
    run.sum(vectors)
    for party in run.parties.values():
        assert shares_of(party) is None  # what was opened is not held any longer
    run.settle()
    run.sum(vectors, batch=1, mute=[1])
    mute = run.parties[run.coordinator.seats[1]]
    assert shares_of(mute) is not None
    run.settle()
    assert shares_of(mute) is None
    assert run.coordinator.batch.total is None


def shares_of(party: PartyRound) -> ShareHolder | None:
    return None if party.batch.open is None else party.batch.open.holder


def test_the_transcript_of_a_released_sum_says_whose_vectors_it_holds() -> None:
    heads = set()
    for absent in ([], [1], [2]):
        run = ready()
        run.sum(vectors_of(N), absent=absent)
        run.settle()
        kinds = [entry.kind for entry in run.coordinator.transcript.entries]
        assert kinds == ["run record", "setup", "plan", "verdict", "settlement"]
        heads.add(run.coordinator.transcript.entries[3].digest)
        assert {p.transcript for p in run.parties.values()} == {run.coordinator.transcript}
    assert len(heads) == 3
    run = ready()
    run.open_plan(6)
    run.settle(released=False)
    assert "verdict" not in [entry.kind for entry in run.coordinator.transcript.entries]


def test_a_restarted_party_sends_the_same_shares_and_y_and_reveals_nothing() -> None:
    """Its keys are gone: for the others it is one that dropped out after its y."""
    run, vectors = ready(), vectors_of(N)
    plan = run.open_plan(6)
    me = run.coordinator.seats[2]
    for fp, vector in zip(run.coordinator.seats, vectors, strict=True):
        run.to_party("plan", fp, plan)
        sent = run.parties[fp].contribute(vector)
        if fp == me:
            party = run.restart(me)
            assert party.receive(plan, now=NOW).replies == sent
        run.to_coordinator("y", fp, list(sent))
    proposals = run.coordinator.batch.propose()
    with pytest.raises(RefusedError) as caught:  # it cannot check a set any more
        run.to_coordinator("verdict", me, run.to_party("proposal", me, proposals[me]))
    assert (caught.value.reason, caught.value.peer) == ("PF-242", me.hex())
    run.agree(proposals, mute=[me])
    frames = run.coordinator.batch.certify()
    for frame in frames[me]:
        with pytest.raises(UnexpectedMessageError):
            run.parties[me].receive(frame, now=NOW)
    run.show(frames, mute=[me])
    assert np.array_equal(run.coordinator.batch.open_total(), sum_of(vectors, ALL))


# What a holder reveals -------------------------------------------------------------------------


def test_a_verdict_is_journalled_before_it_leaves() -> None:
    cheat = Cheat(vectors_of(N))
    journal = cheat.run.journals[cheat.fingerprint(0)]
    assert journal.steps == ["begin", "keep"]
    verdict = cheat.ask(0, ALL)
    assert journal.steps == ["begin", "keep", "decide"]
    assert journal.verdict_on(cheat.plan_digest) == wire.digest_of(verdict)


def test_no_verdict_leaves_when_the_journal_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    cheat = Cheat(vectors_of(N))
    party, journal = cheat.parties[0], cheat.run.journals[cheat.fingerprint(0)]

    def fail(*_: bytes, **__: bytes) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(journal, "decide", fail)
    with pytest.raises(OSError, match="disk full"):
        party.receive(cheat.proposal(ALL), now=NOW)
    assert party.state is PartyState.SENT
    with pytest.raises(UnexpectedMessageError):
        party.receive(cheat.bundle(ALL, 0), now=NOW)
    monkeypatch.undo()
    assert party.receive(cheat.proposal(ALL), now=NOW).replies


@pytest.mark.parametrize("dropped", [[], [0], [2], [4]], ids=str)
def test_of_a_survivor_only_the_self_mask_and_keys_with_who_dropped_out_are_revealed(
    dropped: list[int],
) -> None:
    cheat = Cheat(vectors_of(N))
    survivors = but(ALL, *dropped)
    cheat.open(survivors)
    for dealer, place in product(ALL, ALL):
        opens = dealer in survivors and (place == dealer or place in dropped)
        assert cheat.held(dealer, place) == (len(survivors) if opens else 0)


def test_a_reveal_holds_no_share_that_stays_closed() -> None:
    """Not read by our own reader: looked for byte by byte, in everything that was said."""
    cheat = Cheat(vectors_of(N), colluders=[])
    survivors = but(ALL, 3)
    columns = {
        (dealer, holder): cheat.column(cheat.parties[holder], dealer)
        for dealer, holder in product(ALL, survivors)
        if dealer != holder
    }
    cheat.agree(survivors)
    for holder in survivors:
        said = b"".join(cheat.tell(holder, survivors).disclosures)
        for dealer in but(ALL, holder):
            column = columns[dealer, holder]
            for place in ALL:
                share = column[32 + 34 * place :][:34]
                opens = dealer in survivors and place in (dealer, 3)
                assert (share[:16] in said) == opens


def test_the_same_proposal_certificate_and_shares_again_get_the_same_bytes() -> None:
    cheat = Cheat(vectors_of(N))
    party = cheat.parties[0]
    cheat.agree(ALL)
    once = cheat.tell(0, ALL)
    for _ in range(3):
        assert cheat.ask(0, ALL) == Verdict(cheat.plan_digest, cheat.chosen(ALL))
        assert party.receive(cheat.certificate(ALL), now=NOW).replies == ()
        (again,) = party.receive(cheat.bundle(ALL, 0), now=NOW).replies
        assert wire.decode(again).message == once
    assert party.state is PartyState.REVEALED


def test_nothing_is_agreed_to_or_revealed_after_the_plan_expired() -> None:
    cheat = Cheat(vectors_of(N))
    party = cheat.parties[0]
    with pytest.raises(UnexpectedMessageError):
        party.receive(cheat.proposal(ALL), now=EXPIRED)
    assert party.state is PartyState.SENT
    cheat.agree(ALL)
    with pytest.raises(UnexpectedMessageError):
        party.receive(cheat.certificate(ALL), now=EXPIRED)
    assert party.state is PartyState.JUDGED
    party.receive(cheat.certificate(ALL), now=NOW)
    with pytest.raises(UnexpectedMessageError):
        party.receive(cheat.bundle(ALL, 0), now=EXPIRED)
    assert party.state is PartyState.CERTIFIED
    assert party.receive(cheat.bundle(ALL, 0), now=NOW).replies
    # And what was said in time is not said again.
    assert party.receive(cheat.proposal(ALL), now=EXPIRED).replies == ()
    assert party.receive(cheat.bundle(ALL, 0), now=EXPIRED).replies == ()


def test_what_was_revealed_is_not_said_again_once_it_is_settled() -> None:
    run = ready()
    told: list[bytes] = []

    def listen(stage: str, to: bytes | None, frame: bytes) -> bytes:
        if stage == "certificate" and to == run.coordinator.seats[0]:
            told.append(frame)
        return frame

    run.tamper = listen
    run.sum(vectors_of(N))
    party = run.parties[run.coordinator.seats[0]]
    assert party.receive(told[1], now=NOW).replies
    run.settle()
    assert all(party.receive(frame, now=NOW).replies == () for frame in told)


def test_a_party_does_not_go_below_its_own_floor() -> None:
    """The form would open the sum of four; this party's owner wants five."""
    cheat = Cheat(vectors_of(N))
    cheat.parties[0].floor = 5
    with pytest.raises(TooFewSharesError) as caught:
        cheat.ask(0, but(ALL, 3))
    assert (caught.value.received, caught.value.threshold) == (4, 5)
    with pytest.raises(ProtocolError):
        cheat.parties[0].receive(cheat.bundle(but(ALL, 3), 0), now=NOW)
    cheat.ask(1, but(ALL, 3))


def test_an_additive_run_has_one_exchange() -> None:
    run = ready_run(3)
    plan = run.open_plan(2)
    fp = run.coordinator.seats[0]
    run.to_party("plan", fp, plan)
    run.parties[fp].contribute(np.zeros(2, dtype=np.int64))
    digest = wire.decode(plan).digest
    for survivors in (run.coordinator.seats, ()):
        message = SetProposal(run.coordinator.run_id, digest, survivors)
        with pytest.raises(UnexpectedMessageError):
            run.to_party("proposal", fp, wire.sign(message, run.coordinator_identity).frame)
    bundle = wire.decode(wire.contain(ShareBundle(digest, (b"x",), (b"x",))))
    with pytest.raises(UnexpectedMessageError):
        run.coordinator.receive(bundle.frame, peer=fp)
    for call in (run.coordinator.batch.propose, run.coordinator.batch.propose_closing):
        with pytest.raises(WrongStateError):
            call()
    assert run.journals[fp].steps == ["begin", "keep"]


# Two sets ----------------------------------------------------------------------------------------


@sampled()
@pytest.mark.parametrize("first", [list(ALL), but(ALL, 1)], ids=str)
@pytest.mark.parametrize("second", [list(ALL), but(ALL, 1), but(ALL, 4)], ids=str)
def test_a_second_set_stops_the_party_and_opens_nothing(
    first: list[int], second: list[int]
) -> None:
    """Claims a drop-out and asks again: before or after the shares of the first were shown."""
    if first == second:
        return
    for revealed in (False, True):
        cheat = Cheat(vectors_of(N))
        party, journal = cheat.parties[0], cheat.run.journals[cheat.fingerprint(0)]
        if revealed:
            cheat.open(first)
        else:
            cheat.ask(0, first)
        given = journal.verdict_on(cheat.plan_digest)
        with pytest.raises(ConflictingMessageError) as caught:
            party.receive(cheat.proposal(second), now=NOW)
        assert caught.value.peer == "coordinator"
        assert party.state is PartyState.STOPPED
        assert journal.verdict_on(cheat.plan_digest) == given
        for survivors in (first, second):
            try:
                replies = party.receive(cheat.bundle(survivors, 0), now=NOW).replies
            except ProtocolError:
                replies = ()
            assert replies == ()


def test_shares_of_another_set_than_the_certified_one_are_not_opened() -> None:
    """The set leaves one out; the bundle has all, in the hope for a key between survivors."""
    cheat = Cheat(vectors_of(N))
    party = cheat.parties[0]
    cheat.agree(but(ALL, 2))
    party.receive(cheat.certificate(but(ALL, 2)), now=NOW)
    with pytest.raises(UnexpectedMessageError):
        party.receive(cheat.bundle(ALL, 0), now=NOW)
    assert party.state is PartyState.STOPPED


def groupings(honest: Sequence[int]) -> list[dict[int, bool]]:
    """Every way to tell honest parties one of two stories: the victim survived, or dropped out."""
    return [
        dict(zip(honest, stories, strict=True))
        for stories in product((True, False), repeat=len(honest))
    ]


BOTH_PROOFS = pytest.mark.parametrize("by_macs", [False, True], ids=["certificates", "MACs"])


@sampled("victim")
@BOTH_PROOFS
@pytest.mark.parametrize("victim", [0, more(2), 4])
def test_two_sets_open_no_y_to_a_coordinator_with_c_parties(victim: int, by_macs: bool) -> None:
    """n = 5, t = 4, c = 2. Lists the victim as survivor to some, as drop-out to the others."""
    colluders = but(ALL, victim)[:2]
    counts = set()
    for stories in groupings(but(ALL, *colluders)):
        cheat = Cheat(vectors_of(N), colluders=colluders)
        cheat.by_macs = by_macs
        opened = cheat.tell_two_stories(victim, stories)
        counts.add(len(opened))
        assert cheat.closed(victim), stories
        assert not np.array_equal(
            cheat.run.form.ring.decode(cheat.residual(victim)), vectors_of(N)[victim]
        )
    assert counts == {0, 1}  # never both


@BOTH_PROOFS
@pytest.mark.parametrize("victim", [0, 2, 4])
def test_one_colluder_more_than_c_breaks_it(victim: int, by_macs: bool) -> None:
    """So that the test above could fail: with three of five the victim's vector is read."""
    colluders = but(ALL, victim)[:3]
    (other,) = but(ALL, victim, *colluders)
    vectors = vectors_of(N)
    cheat = Cheat(vectors, colluders=colluders)
    cheat.by_macs = by_macs
    assert len(cheat.tell_two_stories(victim, {victim: True, other: False})) == 2
    assert not cheat.closed(victim)
    assert np.array_equal(cheat.run.form.ring.decode(cheat.residual(victim)), vectors[victim])


@pytest.mark.parametrize("state", ["released", "void"])
def test_parties_that_were_told_two_sets_cannot_go_on_together(state: str) -> None:
    """What one of them agreed to is no certificate, or contradicts what the other one opened."""
    colluders = [0, 1]
    cheat = Cheat(vectors_of(N), colluders=colluders)
    for seat in (2, 3):
        cheat.ask(seat, ALL)
    cheat.ask(4, but(ALL, 1))
    for seat in (2, 3):
        cheat.tell(seat, ALL)
    frame = settlement_of(cheat, ALL, state=state)
    for seat in (2, 3):
        cheat.parties[seat].receive(frame, now=NOW)
        assert cheat.parties[seat].state is PartyState.READY
    # Of a void plan there is nothing to contradict: the certificate says what may open.
    if state == "void":
        cheat.parties[4].receive(frame, now=NOW)
        assert cheat.parties[4].transcript.head == cheat.parties[3].transcript.head
        return
    with pytest.raises(HistoryError) as caught:
        cheat.parties[4].receive(frame, now=NOW)
    assert caught.value.peer == "coordinator"
    assert cheat.parties[4].state is PartyState.STOPPED


def settlement_of(cheat: Cheat, survivors: Collection[int], **changed: Any) -> bytes:
    """A settlement with the certificate for a set."""
    entries = tuple(cheat.entry(seat) if seat in survivors else b"" for seat in ALL)
    run_id = cheat.run.coordinator.run_id
    fields = {
        "state": "released",
        "words": 6,
        "contributions": entries,
        "refusals": (),
        "certificate": cheat.certificate(survivors),
        "result": b"",
    }
    return cheat.signed(Settlement(run_id, cheat.plan_digest, **{**fields, **changed}))


def test_a_late_y_of_who_was_counted_out_stays_masked() -> None:
    """All keys of the victim are opened; its y comes after all: its self mask hides it."""
    vectors = vectors_of(N)
    cheat = Cheat(vectors)
    cheat.open(but(ALL, 2))
    assert cheat.closed(2) == {2}
    opened = cheat.run.form.ring.decode(cheat.residual(2))
    # 6 words of 32 bits: that even one is right by chance happens once in 2^29.
    assert not (opened == vectors[2]).any()


def test_a_late_y_is_refused_and_does_not_spoil_the_sum() -> None:
    run, vectors = ready(), vectors_of(N)
    plan = run.open_plan(6)
    late: list[bytes] = []
    for seat, fp in enumerate(run.coordinator.seats):
        run.to_party("plan", fp, plan)
        frames = list(run.parties[fp].contribute(vectors[seat]))
        if seat == 1:
            late = frames
        else:
            run.to_coordinator("y", fp, frames)
    victim = run.coordinator.seats[1]
    proposals = run.coordinator.batch.propose()
    assert victim not in proposals
    for frame in late:
        with pytest.raises(UnexpectedMessageError):
            run.coordinator.receive(frame, peer=victim)
    run.agree(proposals)
    run.show(run.coordinator.batch.certify())
    assert np.array_equal(run.coordinator.batch.open_total(), sum_of(vectors, but(ALL, 1)))
    run.settle()
    # It sent, and was left out: it goes on with the others.
    assert run.parties[victim].state is PartyState.READY
    assert np.array_equal(run.sum(vectors, batch=1), sum_of(vectors, ALL))


def test_a_set_is_certified_once_and_stays() -> None:
    run = ready()
    run.sum(vectors_of(N))
    for call in ("propose", "certify", "propose_closing"):
        with pytest.raises(WrongStateError):
            getattr(run.coordinator.batch, call)()


# Shares on their way ---------------------------------------------------------------------------


def collect(run: MemoryRun, vectors: Sequence[Vector]) -> None:
    plan = run.open_plan(len(vectors[0]))
    for fp, vector in zip(run.coordinator.seats, vectors, strict=True):
        run.to_party("plan", fp, plan)
        run.to_coordinator("y", fp, list(run.parties[fp].contribute(vector)))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(
            lambda b: {"dealings": (*b.dealings, b.dealings[0])},
            UnexpectedMessageError,
            id="one dealing more",
        ),
        pytest.param(
            lambda b: {"envelopes": (*b.envelopes, b.envelopes[0])},
            UnexpectedMessageError,
            id="one envelope more",
        ),
        pytest.param(
            lambda b: {"dealings": (b"junk", *b.dealings[1:])}, MalformedMessageError, id="junk"
        ),
    ],
)
def test_shares_that_the_coordinator_must_not_relay_stop_the_holder(
    spoil: Callable[[ShareBundle], dict[str, Any]], error: type[ProtocolError]
) -> None:
    run, vectors = ready(), vectors_of(N)
    collect(run, vectors)
    holder = run.coordinator.seats[0]
    run.agree(run.coordinator.batch.propose())
    told = run.coordinator.batch.certify()
    bundle = wire.expect(wire.decode(told[holder][1]), ShareBundle)
    told[holder][1] = wire.contain(dataclasses.replace(bundle, **spoil(bundle)))
    with pytest.raises(error) as caught:
        run.show(told)
    assert getattr(caught.value, "peer", "") in ("coordinator", "")
    assert run.parties[holder].state is PartyState.STOPPED


# A dealer that cheats --------------------------------------------------------------------------


def cheating_dealer(
    run: MemoryRun, seat: int, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]
) -> bytes:
    """Let one party deal something else, properly sealed and signed."""
    fp, honest = run.coordinator.seats[seat], deal_shares

    def deal(secrets: Sequence[bytes], **arguments: Any) -> Any:
        dealt = honest(secrets, **arguments)
        return change(dealt) if arguments["seat"] == seat else dealt

    monkeypatch.setattr("protocols.rounds.opening.at_party.deal", deal)
    return fp


def test_a_dealer_that_sends_a_holder_a_wrong_share_is_named_with_it_and_the_sum_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, vectors = ready(), vectors_of(N)

    def change(dealt: Any) -> Any:
        return with_a_bit_changed(dealt, holder=0, secret=3)

    dealer = cheating_dealer(run, 3, monkeypatch, change)
    assert np.array_equal(run.sum(vectors), sum_of(vectors, ALL))
    holder = run.coordinator.seats[0]
    # The holder says that the share is wrong: its word against the dealer's.
    fault = ShareFault(dealer, holder, named=(dealer, holder))
    assert run.coordinator.batch.share_faults == (fault,)
    assert run.parties[holder].batch.wrong_dealers == (dealer,)


def with_a_bit_changed(dealt: Any, *, holder: int, secret: int) -> Any:
    """A dealing that gives a holder a share which is not the signed one."""
    columns, place = list(dealt.columns), 32 + 34 * secret
    column = columns[holder]
    columns[holder] = column[:place] + bytes([column[place] ^ 1]) + column[place + 1 :]
    return dataclasses.replace(dealt, columns=tuple(columns))


@sampled()
@pytest.mark.parametrize("absent", [(), (1,)], ids=["all there", "seat 1 lost"])
@pytest.mark.parametrize("secret", [1, 2], ids=["key with the lost", "key with a survivor"])
def test_a_wrong_share_of_a_key_names_its_pair_once_a_share_is_needed(
    monkeypatch: pytest.MonkeyPatch, secret: int, absent: tuple[int, ...]
) -> None:
    """Until then it is opened by nobody; and the sum is right in any case."""
    run, vectors = ready(7), vectors_of(7)

    def change(dealt: Any) -> Any:
        return with_a_bit_changed(dealt, holder=0, secret=secret)

    dealer = cheating_dealer(run, 3, monkeypatch, change)
    assert np.array_equal(run.sum(vectors, absent=absent), sum_of(vectors, but(range(7), *absent)))
    holder = run.coordinator.seats[0]
    faults = (ShareFault(dealer, holder, named=(dealer, holder)),) if absent else ()
    assert run.coordinator.batch.share_faults == faults
    assert run.parties[holder].batch.wrong_dealers == ((dealer,) if absent else ())


def test_a_dealer_whose_shares_lie_on_no_polynomial_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, vectors = ready(), vectors_of(N)

    def change(dealt: Any) -> Any:
        shares = bytes(2) + dealt.columns[0][34:]
        return dealt_otherwise(dealt, dealer=3, holder=0, shares=shares)

    dealer = cheating_dealer(run, 3, monkeypatch, change)
    collect(run, vectors)
    run.reveal()
    assert run.coordinator.batch.share_faults == ()
    place = run.parties[dealer]  # its first secret: the key with seat 0, which nobody needs
    assert place.state is PartyState.REVEALED
    assert np.array_equal(run.coordinator.batch.open_total(), sum_of(vectors, ALL))
    run.settle()

    # Once seat 0 drops out the key is needed: the joined one is not the one that was signed.
    def self_mask(dealt: Any) -> Any:
        shares = dealt.columns[1][32:]
        shares = shares[: 34 * 3] + bytes(34) + shares[34 * 4 :]
        return dealt_otherwise(dealt, dealer=3, holder=1, shares=shares)

    monkeypatch.undo()
    cheating_dealer(run, 3, monkeypatch, self_mask)
    with pytest.raises(WrongShareError) as caught:
        run.sum(vectors, batch=1)
    assert caught.value.peer == dealer.hex()


# A holder that cheats --------------------------------------------------------------------------


def signed_instead(run: MemoryRun, liar: bytes, reveal: bytes) -> bytes:
    """A liar remembers the reveal that it made in the place of an honest one."""
    plan = run.parties[liar].batch.open
    assert plan is not None
    assert plan.sent is not None
    plan.sent = dataclasses.replace(plan.sent, reveal=wire.decode(reveal).digest)
    return reveal


def test_as_many_bad_shares_as_spare_holders_are_survived_and_one_more_is_void() -> None:
    run, vectors = ready(7), vectors_of(7)  # t = 5: two to spare
    liars = run.coordinator.seats[:3]

    def tamper_of(count: int) -> Callable[[str, bytes | None, bytes], bytes]:
        def tamper(stage: str, to: bytes | None, frame: bytes) -> bytes:
            message = wire.decode(frame).message
            if not isinstance(message, Reveal) or message.sender not in liars[:count]:
                return frame
            bad = (b"",) * len(message.disclosures)
            liar = message.sender
            return signed_instead(run, liar, altered(frame, run.identities[liar], disclosures=bad))

        return tamper

    run.tamper = tamper_of(2)
    assert np.array_equal(run.sum(vectors), sum_of(vectors, range(7)))
    # What they say of each dealer, itself too, is their word against its own.
    named = [fault.named for fault in run.coordinator.batch.share_faults]
    assert named == [(dealer, liar) for liar in liars[:2] for dealer in run.coordinator.seats]
    run.settle()
    run.tamper = tamper_of(3)
    with pytest.raises(TooFewSharesError) as caught:
        run.sum(vectors, batch=1)
    assert (caught.value.received, caught.value.threshold) == (4, 5)
    run.settle(released=False)


def test_a_reveal_by_another_key_or_of_who_dropped_out_is_refused() -> None:
    cheat = Cheat(vectors_of(N))
    coordinator = cheat.run.coordinator
    for seat in but(ALL, 1):
        cheat.run.to_coordinator("y", cheat.fingerprint(seat), cheat.frames[seat])
    cheat.run.agree(coordinator.batch.propose())
    coordinator.batch.certify()
    opening_of = coordinator.batch.total.shares._opening_digest  # type: ignore[union-attr]
    stranger = Reveal(opening_of, cheat.fingerprint(1), (b"",) * 4)
    with pytest.raises(UnexpectedMessageError):
        coordinator.receive(wire.sign(stranger, cheat.run.identities[cheat.fingerprint(1)]).frame)
    forged = Reveal(opening_of, cheat.fingerprint(0), (b"",) * 4)
    with pytest.raises(BadSignatureError):
        coordinator.receive(wire.sign(forged, cheat.run.identities[cheat.fingerprint(1)]).frame)
    assert coordinator.missing == tuple(cheat.fingerprint(seat) for seat in but(ALL, 1))


def test_two_reveals_of_one_holder_are_a_conflict() -> None:
    run, vectors = ready(), vectors_of(N)
    liar = run.coordinator.seats[0]
    run.sum(vectors, mute=[4])
    digest = run.coordinator.batch.total.shares._opening_digest  # type: ignore[union-attr]
    other = Reveal(digest, liar, (b"",) * N)
    with pytest.raises(ConflictingMessageError) as caught:
        run.coordinator.receive(wire.sign(other, run.identities[liar]).frame, peer=liar)
    assert caught.value.peer == liar.hex()


def test_a_second_reveal_of_one_holder_for_another_opening_is_refused() -> None:
    """As one of an earlier plan would be, that comes late: nobody is at fault for that."""
    run, vectors = ready(), vectors_of(N)
    holder = run.coordinator.seats[0]
    total = run.sum(vectors, mute=[4])
    other = Reveal(bytes(32), holder, (b"",) * N)
    with pytest.raises(UnexpectedMessageError, match="once"):
        run.coordinator.receive(wire.sign(other, run.identities[holder]).frame, peer=holder)
    assert np.array_equal(total, sum_of(vectors, ALL))
    run.settle()
    assert not any(party.batch.reveal_was_lost for party in run.parties.values())


# The coordinator's door ------------------------------------------------------------------------


def _bundle_and_y(run: MemoryRun, fp: bytes) -> tuple[ShareBundle, bytes, bytes]:
    plan = run.open_plan(6)
    run.to_party("plan", fp, plan)
    frame, y = run.parties[fp].contribute(np.arange(6))
    return wire.expect(wire.decode(frame), ShareBundle), frame, y


def _redealt(run: MemoryRun, fp: bytes, bundle: ShareBundle, **changed: Any) -> dict[str, Any]:
    return {"dealings": (altered(bundle.dealings[0], run.identities[fp], **changed),)}


@sampled()
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        pytest.param(
            lambda r, f, b: {"envelopes": (*b.envelopes, b.envelopes[0])},
            UnexpectedMessageError,
            id="an envelope more",
        ),
        pytest.param(
            lambda r, f, b: _redealt(r, f, b, column_roots=bytes(32 * 6)),
            UnexpectedMessageError,
            id="a root more",
        ),
        pytest.param(lambda r, f, b: {"dealings": (b"junk",)}, MalformedMessageError, id="junk"),
    ],
)
def test_spoiled_shares_are_refused_and_their_sender_stays_out(
    spoil: Callable[[MemoryRun, bytes, ShareBundle], dict[str, Any]], error: type[ProtocolError]
) -> None:
    run, vectors = ready(), vectors_of(N)
    liar = run.coordinator.seats[0]
    bundle, _, y = _bundle_and_y(run, liar)
    spoiled = wire.contain(dataclasses.replace(bundle, **spoil(run, liar, bundle)))
    with pytest.raises(error) as caught:
        run.coordinator.receive(spoiled, peer=liar)
    assert caught.value.peer == liar.hex()  # type: ignore[attr-defined]
    with pytest.raises(UnexpectedMessageError):  # no y without shares
        run.coordinator.receive(y, peer=liar)
    assert run.coordinator.batch.survivors == ()
    for fp, vector in list(zip(run.coordinator.seats, vectors, strict=True))[1:]:
        run.to_party("plan", fp, run.coordinator.open_plan.frame)
        run.to_coordinator("y", fp, list(run.parties[fp].contribute(vector)))
    run.reveal()
    assert np.array_equal(run.coordinator.batch.open_total(), sum_of(vectors, but(ALL, 0)))


def test_shares_of_nobody_known_are_refused() -> None:
    run = ready()
    _, frame, _ = _bundle_and_y(run, run.coordinator.seats[0])
    with pytest.raises(UnknownPeerError):
        run.coordinator.receive(frame)


def test_shares_without_a_y_are_no_survivor() -> None:
    run, vectors = ready(), vectors_of(N)
    plan = run.open_plan(6)
    for seat, fp in enumerate(run.coordinator.seats):
        run.to_party("plan", fp, plan)
        shares, y = run.parties[fp].contribute(vectors[seat])
        run.to_coordinator("y", fp, [shares] if seat == 2 else [shares, y])
    run.reveal()
    assert np.array_equal(run.coordinator.batch.open_total(), sum_of(vectors, but(ALL, 2)))


def test_two_bundles_of_shares_are_a_conflict() -> None:
    run = ready()
    liar = run.coordinator.seats[0]
    bundle, frame, _ = _bundle_and_y(run, liar)
    run.coordinator.receive(frame, peer=liar)
    run.coordinator.receive(frame, peer=liar)
    other = dataclasses.replace(bundle, envelopes=bundle.envelopes[::-1])
    with pytest.raises(ConflictingMessageError):
        run.coordinator.receive(wire.contain(other), peer=liar)


def test_a_dealing_on_its_own_is_not_taken() -> None:
    run = ready()
    liar = run.coordinator.seats[0]
    bundle, _, _ = _bundle_and_y(run, liar)
    assert isinstance(wire.decode(bundle.dealings[0]).message, Dealing)
    with pytest.raises(UnexpectedMessageError):
        run.coordinator.receive(bundle.dealings[0], peer=liar)


def test_a_repeated_plan_is_answered_with_the_stored_shares_and_y() -> None:
    run = ready()
    fp = run.coordinator.seats[0]
    _, frame, y = _bundle_and_y(run, fp)
    for _ in range(3):
        again = run.parties[fp].receive(run.coordinator.open_plan.frame, now=NOW)
        assert again.replies == (frame, y)


def test_self_masks_and_salts_are_fresh_for_every_plan() -> None:
    run, seen = ready(), []

    def listen(stage: str, to: bytes | None, frame: bytes) -> bytes:
        message = wire.decode(frame).message
        if to is None and isinstance(message, ShareBundle | MaskedVector):
            seen.append(frame)
        return frame

    run.tamper = listen
    for batch in range(4):
        run.sum([np.zeros(8, dtype=np.int64)] * N, batch=batch)
        run.settle()
    bundles = [m for m in (wire.decode(f).message for f in seen) if isinstance(m, ShareBundle)]
    dealings = [wire.expect(wire.decode(b.dealings[0]), Dealing) for b in bundles]
    assert len({d.salt for d in dealings}) == len(dealings) == 4 * N
    assert len({d.secret_hash(place) for d in dealings for place in ALL}) == 4 * N * N
    ys = [m.body for m in (wire.decode(f).message for f in seen) if isinstance(m, MaskedVector)]
    assert len(set(ys)) == 4 * N


def test_every_self_mask_is_another_one() -> None:
    seen = []
    for _ in range(2):
        cheat = Cheat(vectors_of(N))
        cheat.open(ALL)
        masks = [cheat.secret(seat, seat) for seat in ALL]
        assert all(mask is not None and len(mask) == 32 for mask in masks)
        seen += masks
    assert len(set(seen)) == 2 * N


def test_no_message_holds_a_key_a_self_mask_or_a_vector() -> None:
    """What a network, or a coordinator's storage, sees of a whole batch."""
    cheat = Cheat([np.full(6, 1_234_567_891)] * N)
    keys = [
        key
        for party in cheat.parties
        for key in (
            *party.roots.keys_for(cheat.plan_digest).values(),
            *party.roots._roots.values(),
        )
    ]
    seen = b"".join(frame for frames in cheat.frames for frame in frames)
    cheat.agree(but(ALL, 1))
    seen += cheat.certificate(but(ALL, 1))
    for holder in but(ALL, 1):
        seen += wire.sign(
            cheat.tell(holder, but(ALL, 1)), cheat.run.identities[cheat.fingerprint(holder)]
        ).frame
    assert not any(key in seen for key in keys)
    assert not any(form in seen for form in forms_of_words(1_234_567_891))
    assert b"1234567891" not in seen
    for party in cheat.parties:
        assert "1234567891" not in f"{party!r} {party.batch.open!r} {shares_of(party)!r}"

"""Reports of verified votes: both ends read the same one, and a spoiled one is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocols import envelope, wire
from protocols.envelope import SealingKey
from protocols.errors import (
    BadSignatureError,
    BrokenEnvelopeError,
    InvalidVectorError,
    MalformedMessageError,
    ProtocolError,
    SuiteError,
    UnexpectedMessageError,
    UnknownPeerError,
    WrongShareError,
)
from protocols.identity import SigningIdentity
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519
from protocols.verified import (
    Aggregator,
    EvaluationPoint,
    VerifyingEnd,
    VoteBatch,
    VoteShare,
    challenge,
    make_report,
    open_part,
    read_header,
    read_part,
    run_verified_sum,
)
from protocols.vote_messages import ReportHeader, VoteReport

QUERIES, COLUMNS = 6, 4
VOTES = (3, 25, 40, 3)
COIN = bytes(range(32))
SUITES = pytest.mark.parametrize("suite", [SUITE_MLKEM768_X25519, SUITE_X25519])


class Ward:
    """A batch of four hospitals, and the secrets of all ends."""

    def __init__(self, suite: str = SUITE_X25519) -> None:
        self.hospitals = [SigningIdentity.generate() for _ in VOTES]
        self.keys = SealingKey(suite), SealingKey(suite)
        aggregators = [
            Aggregator(SigningIdentity.generate().fingerprint, key.public_bytes)
            for key in self.keys
        ]
        votes = {one.fingerprint: number for one, number in zip(self.hospitals, VOTES, strict=True)}
        self.batch = VoteBatch(os.urandom(32), QUERIES, COLUMNS, votes, *aggregators, suite)
        self.identities = {one.fingerprint: one.public for one in self.hospitals}

    def rows(self, place: int = 0, votes: int = 0) -> NDArray[np.int64]:
        rng = np.random.default_rng(place)
        chances = np.full(COLUMNS, 1 / COLUMNS)
        return rng.multinomial(votes or VOTES[place], chances, size=QUERIES).astype(np.int64)

    def report(self, place: int = 0, batch: VoteBatch | None = None) -> VoteReport:
        frame = make_report(
            batch or self.batch,
            self.rows(place, (batch or self.batch).votes[self.hospitals[place].fingerprint]),
            identity=self.hospitals[place],
            random_bytes=os.urandom,
        )
        return wire.expect(wire.decode(frame), VoteReport)

    def header(self, report: VoteReport) -> ReportHeader:
        return read_header(self.batch, report.header, identities=self.identities)

    def opened(self, report: VoteReport) -> tuple[VoteShare, VoteShare]:
        """What both aggregators find, each from its own part."""
        return self.share(report, 0), self.share(report, 1)

    def share(self, report: VoteReport, end: int, *, key: int | None = None) -> VoteShare:
        """What an aggregator finds in its part, with its own key or the other one's."""
        header = self.header(report)
        sealed = (report.coordinator_envelope, report.tally_envelope)[end]
        used = self.keys[end if key is None else key]
        part = open_part(self.batch, header, sealed, key=used, is_tally=bool(end))
        return read_part(self.batch, header, part, is_tally=bool(end))

    def signed(self, report: VoteReport, place: int = 0, **changed: bytes) -> VoteReport:
        """The report under another header that its hospital, or another one, signed."""
        header = wire.expect(wire.decode(report.header), ReportHeader)
        changed_header = replace(header, **changed)  # type: ignore[arg-type]
        return replace(report, header=wire.sign(changed_header, self.hospitals[place]).frame)

    def accepts(self, place: int, shares: tuple[VoteShare, VoteShare]) -> bool:
        hospital = self.hospitals[place].fingerprint
        layout, context = self.batch.layout_of(hospital), self.batch.context_of(hospital)
        point = EvaluationPoint.of(layout, COIN)
        bindings = (share.binding for share in shares)
        answers = [point.answer(share, takes_off_votes=at == 0) for at, share in enumerate(shares)]
        return point.accepts(challenge(layout, *bindings, context=context), answers[0], answers[1])


@pytest.fixture(scope="module")
def ward() -> Ward:
    return Ward()


class TestGood:
    @SUITES
    def test_both_ends_open_one_report_and_its_rows_are_the_hospitals(self, suite: str) -> None:
        ward = Ward(suite)
        for place in range(len(VOTES)):
            shares = ward.opened(ward.report(place))
            layout = ward.batch.layout_of(ward.hospitals[place].fingerprint)
            total = layout.field.add(shares[0].digits, shares[1].digits)
            assert (layout.numbers_of(total) == ward.rows(place)).all()
            assert ward.accepts(place, shares)

    @pytest.mark.parametrize(("suite", "size"), [(SUITE_X25519, 80), (SUITE_MLKEM768_X25519, 1168)])
    def test_the_tally_gets_a_seed_whatever_the_batch(self, suite: str, size: int) -> None:
        report = Ward(suite).report()
        assert len(report.tally_envelope) == size
        assert len(report.header) < 320

    def test_two_reports_of_the_same_votes_have_nothing_in_common(self, ward: Ward) -> None:
        one, other = ward.report(), ward.report()
        assert one.coordinator_envelope != other.coordinator_envelope
        first, second = ward.header(one), ward.header(other)
        assert first.coordinator_binding != second.coordinator_binding
        assert first.tally_binding != second.tally_binding


class TestHospital:
    def test_one_outside_the_batch_makes_no_report(self, ward: Ward) -> None:
        stranger = SigningIdentity.generate()
        with pytest.raises(UnknownPeerError):
            make_report(ward.batch, ward.rows(), identity=stranger, random_bytes=os.urandom)

    def test_rows_that_are_no_votes_of_its_number_are_not_sent(self, ward: Ward) -> None:
        with pytest.raises(InvalidVectorError):
            make_report(
                ward.batch, ward.rows(1), identity=ward.hospitals[0], random_bytes=os.urandom
            )

    def test_keys_of_another_suite_are_refused(self, ward: Ward) -> None:
        batch = replace(ward.batch, suite=SUITE_MLKEM768_X25519)
        with pytest.raises(SuiteError):
            make_report(batch, ward.rows(), identity=ward.hospitals[0], random_bytes=os.urandom)

    @pytest.mark.parametrize(
        "change",
        [
            {"plan_digest": bytes(32)},
            {"queries": QUERIES + 1},
            {"columns": COLUMNS + 1},
            {"coordinator": Aggregator(bytes(32), bytes(32))},
            {"tally": Aggregator(bytes(32), bytes(32))},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_context_depends_on_each_fact_of_the_batch(
        self, ward: Ward, change: dict[str, Any]
    ) -> None:
        hospital = ward.hospitals[0].fingerprint
        other = replace(ward.batch, **change)
        assert other.context_of(hospital) != ward.batch.context_of(hospital)

    def test_a_context_is_of_one_hospital_and_its_number_of_votes(self, ward: Ward) -> None:
        first, second, *_ = (one.fingerprint for one in ward.hospitals)
        equal = replace(ward.batch, votes={first: 3, second: 3})
        contexts = {ward.batch.context_of(first), equal.context_of(second)}
        contexts.add(replace(ward.batch, votes={first: 4}).context_of(first))
        assert len(contexts) == 3


def flipped(content: bytes, place: int = -1) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def resealed(ward: Ward, report: VoteReport, place: int) -> VoteReport:
    """A hospital takes the victim's envelopes, and signs them as its own."""
    thief = ward.hospitals[place].fingerprint
    return ward.signed(report, place, sender=thief)


def stated(ward: Ward, votes: int) -> VoteBatch:
    """The batch as a hospital would like it: with other votes of its own."""
    return replace(ward.batch, votes={**ward.batch.votes, ward.hospitals[0].fingerprint: votes})


def changed_envelope(report: VoteReport, name: str) -> VoteReport:
    return replace(report, **{name: flipped(getattr(report, name))})  # type: ignore[arg-type]


Spoil = Callable[[Ward], VoteReport]
SPOILED: dict[str, tuple[Spoil, type[ProtocolError]]] = {
    "of another plan": (
        lambda ward: ward.report(batch=replace(ward.batch, plan_digest=bytes(32))),
        UnexpectedMessageError,
    ),
    "of another plan, under a header of this one": (
        lambda ward: ward.signed(
            ward.report(batch=replace(ward.batch, plan_digest=bytes(32))),
            plan_digest=ward.batch.plan_digest,
        ),
        BrokenEnvelopeError,
    ),
    "of a hospital outside the plan": (
        lambda ward: ward.signed(ward.report(), sender=bytes(32)),
        UnknownPeerError,
    ),
    "signed by another hospital": (
        lambda ward: ward.signed(ward.report(), 1),
        BadSignatureError,
    ),
    "header changed by the relay": (
        lambda ward: replace(ward.report(), header=flipped(ward.report().header, 100)),
        BadSignatureError,
    ),
    "header of another message": (
        lambda ward: replace(ward.report(), header=wire.contain(ward.report())[:200]),
        MalformedMessageError,
    ),
    "coordinator's envelope changed": (
        lambda ward: changed_envelope(ward.report(), "coordinator_envelope"),
        BrokenEnvelopeError,
    ),
    "tally's envelope changed": (
        lambda ward: changed_envelope(ward.report(), "tally_envelope"),
        WrongShareError,
    ),
    "tally's envelope of another report": (
        lambda ward: replace(ward.report(), tally_envelope=ward.report().tally_envelope),
        WrongShareError,
    ),
    "coordinator's envelope of another report": (
        lambda ward: replace(
            ward.report(), coordinator_envelope=ward.report().coordinator_envelope
        ),
        BrokenEnvelopeError,
    ),
    "envelopes of another hospital": (
        lambda ward: resealed(ward, ward.report(), 3),
        BrokenEnvelopeError,
    ),
    "another binding of the coordinator's part": (
        lambda ward: ward.signed(ward.report(), coordinator_binding=bytes(32)),
        BrokenEnvelopeError,
    ),
    "another digest of the coordinator's part": (
        lambda ward: ward.signed(ward.report(), coordinator_part=bytes(32)),
        WrongShareError,
    ),
    "another binding of the tally's part": (
        lambda ward: ward.signed(ward.report(), tally_binding=bytes(32)),
        BrokenEnvelopeError,
    ),
    "of a larger number of votes": (
        lambda ward: ward.report(batch=stated(ward, 4)),
        BrokenEnvelopeError,
    ),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_a_spoiled_report_is_refused(ward: Ward, fault: str) -> None:
    spoil, error = SPOILED[fault]
    with pytest.raises(error):
        ward.opened(spoil(ward))


@pytest.mark.parametrize("fault", SPOILED)
def test_beside_a_spoiled_report_the_others_sum_is_right(ward: Ward, fault: str) -> None:
    """Whosever it is said to be: two honest hospitals' votes are in the sum, and nothing else."""
    spoiled = wire.contain(SPOILED[fault][0](ward))
    noise = np.zeros((QUERIES, COLUMNS), dtype=np.int64)
    found = run_verified_sum(
        ward.batch,
        [spoiled, *(wire.contain(ward.report(place)) for place in (1, 2))],
        identities=ward.identities,
        coordinator=VerifyingEnd(ward.keys[0], os.urandom(32), noise),
        tally=VerifyingEnd(ward.keys[1], os.urandom(32), noise),
        least_parties=2,
    )
    honest = {ward.hospitals[place].fingerprint for place in (1, 2)}
    assert set(found.accepted) == honest
    assert (found.counts == ward.rows(1) + ward.rows(2)).all()
    assert len(found.rejected) + found.unreadable == 1


def bound_to_another_part(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> VoteReport:
    """A liar seals a part that it did not bind."""
    true = envelope.seal

    def lying(part: bytes, *given: Any, **named: Any) -> bytes:
        return true(flipped(part), *given, **named)

    monkeypatch.setattr("protocols.verified.vote_report.seal", lying)
    return ward.report()


def test_a_part_that_its_hospital_did_not_bind_is_refused(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = bound_to_another_part(ward, monkeypatch)
    for end in range(2):
        with pytest.raises(WrongShareError):
            ward.share(report, end)


def test_an_aggregator_opens_its_own_part_alone(ward: Ward) -> None:
    report = ward.report()
    for end in range(2):
        with pytest.raises(BrokenEnvelopeError):
            ward.share(report, end, key=1 - end)


def test_an_envelope_of_another_purpose_does_not_open(ward: Ward) -> None:
    batch, hospital = ward.batch, ward.hospitals[0].fingerprint
    ends = {"run_id": bytes(32), "sender": hospital, "receiver": batch.tally.fingerprint}
    sealed = envelope.seal(b"x" * 32, batch.tally.sealing_key, suite=batch.suite, **ends)
    assert ward.keys[1].open(sealed, **ends) == b"x" * 32
    with pytest.raises(BrokenEnvelopeError):
        ward.keys[1].open(sealed, **ends, purpose=envelope.VOTES)


class TestPlantedBugs:
    """With each of them a test above fails."""

    def test_envelopes_that_name_no_hospital_are_noticed(
        self, ward: Ward, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        true = envelope._info
        monkeypatch.setattr(
            envelope, "_info", lambda run, _, receiver, why: true(run, bytes(32), receiver, why)
        )
        monkeypatch.setattr(
            "protocols.verified.vote_report._scope", lambda _, first, second: bytes(32)
        )
        # It opens now: only the binding, which has the hospital in its context, still finds it.
        with pytest.raises(WrongShareError):
            ward.opened(resealed(ward, ward.report(), 3))

    def test_votes_of_the_report_in_place_of_the_plans_are_noticed(
        self, ward: Ward, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A hospital of 3 votes that could say 25 would have them counted."""
        wished = stated(ward, 25)
        report = ward.report(batch=wished)
        with pytest.raises(BrokenEnvelopeError):
            ward.opened(report)
        monkeypatch.setattr(ward, "batch", wished)
        assert ward.opened(report)

"""Vectors of whole runs: both state machines write them, a second reader opens them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from pate_fed.terms import BatchTerms, RunTerms
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.envelope import SealingKey
from protocols.errors import (
    FalseCertificateError,
    MalformedMessageError,
    ProtocolError,
    UnexpectedMessageError,
    WrongShareError,
)
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import Plan, Reveal, RunRecord, Settlement
from protocols.rounds import CoordinatorRound, PartyRound, PartyState
from protocols.rounds.opening.at_coordinator import ShareFault
from protocols.values import decode_value
from protocols.wire import expect
from tests.support import make_run_vectors, reference_sum
from tests.support.markers import sampled
from tests.support.reference_frames import Refused
from tests.support.reference_run import RunReader
from tests.support.reference_sharing import read_share
from tests.support.renderings import hold
from tests.support.rounds import NOW, ListJournal
from tests.support.vectors import read_vectors

FORMS = {"additive": AdditiveSum, "masked": MaskedSum}
RUNS = {name: read_vectors(f"{name}_run") for name in FORMS}
MASKED = RUNS["masked"]
SPOILED = MASKED["spoiled"]
LOST = 1
"""Seat of the masked run whose y never came."""
NO_PROOF = (FalseCertificateError, MalformedMessageError, UnexpectedMessageError)
"""Errors of a certificate that proves nothing: its verdicts, its bytes or its set are wrong."""
SUITE = "x25519-hkdf-sha256-aes-256-gcm"

both_forms = pytest.mark.parametrize("name", sorted(FORMS))


def given(table: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "frame", [pytest.param(bytes.fromhex(text), id=name) for name, text in table.items()]
    )


# Our two ends ----------------------------------------------------------------------------------


def identity(row: dict[str, Any]) -> SigningIdentity:
    return SigningIdentity.from_private_bytes(bytes.fromhex(row["identity_private"]))


def draws(party: dict[str, Any]) -> Iterator[bytes]:
    """What a party draws at random, in its order."""
    yield bytes.fromhex(party["nonce"])
    for half in party["halves"].values():
        yield bytes.fromhex(half)
    if "b" in party:
        yield bytes.fromhex(party["b"])
        yield bytes.fromhex(party["salt"])
        yield bytes(32)  # the key of the stream whose bytes come next
        powers = [bytes.fromhex(share) for power in party["coefficients"] for share in power]
        yield b"".join(n.to_bytes(4, "little") for share in powers for n in read_share(share))


class Party:
    """One of our parties with the secrets of a vector."""

    def __init__(self, run: dict[str, Any], seat: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.seat, self.row = run, seat, run["parties"][seat]
        self.journal = ListJournal()
        drawn = draws(self.row)

        def random_bytes(size: int) -> bytes:
            data = next(drawn)
            assert len(data) == size
            return data

        def sealing_key(suite: str) -> SealingKey:
            key = SealingKey(suite)
            private = X25519PrivateKey.from_private_bytes(
                bytes.fromhex(self.row["sealing_private"])
            )
            key._private_key = private
            key._public_bytes = private.public_key().public_bytes_raw()
            return key

        monkeypatch.setattr("protocols.rounds.setup.at_party.SealingKey", sealing_key)
        # How a dealer draws its polynomials is its own affair: here they are the vector's.
        monkeypatch.setattr("protocols.dealing._stream_bytes", lambda key: random_bytes)
        pins = [identity(party) for party in run["parties"]]
        self.round = PartyRound(
            identity=identity(self.row),
            coordinator=identity(run["coordinator"]).public,
            known_peers={pin.fingerprint: pin.public for pin in pins},
            forms={name: form() for name, form in FORMS.items()},
            journal=self.journal,
            random_bytes=random_bytes,
            suites=frozenset({SUITE}),
        )

    def takes(self, frame: str | bytes) -> list[str]:
        data = frame if isinstance(frame, bytes) else bytes.fromhex(frame)
        return [reply.hex() for reply in self.round.receive(data, now=NOW).replies]

    def sets_up(self) -> list[list[str]]:
        """Its answers; but for its own envelopes, whose ephemeral keys it draws itself."""
        setup = self.run["setup"]
        answers = [self.takes(setup["offer"])]
        self.takes(setup["record"])
        self.round.accept_run()
        answers.append(self.takes(setup["envelopes_to"][self.seat]))
        answers.append(self.takes(setup["closings"][self.seat]))
        return answers

    def contributes(self) -> list[str]:
        self.takes(self.run["batch"]["plan"])
        return [frame.hex() for frame in self.round.contribute(np.array(self.row["x"]))]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Party:
    """Seat 0 of the masked run, waiting for a proposal."""
    party = Party(MASKED, 0, monkeypatch)
    party.sets_up()
    party.contributes()
    return party


@pytest.fixture
def judged(sent: Party) -> Party:
    """The same, waiting for the proof that enough others agree."""
    sent.takes(MASKED["batch"]["proposal"])
    return sent


@pytest.fixture
def certified(judged: Party) -> Party:
    """The same, waiting for its shares."""
    judged.takes(MASKED["batch"]["macs_to"]["0"])
    return judged


@pytest.fixture
def revealed(certified: Party) -> Party:
    """The same, waiting for the settlement."""
    certified.takes(MASKED["batch"]["bundles_to"]["0"])
    return certified


@both_forms
def test_a_party_answers_with_the_known_frames(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUNS[name]
    setup, batch = run["setup"], run["batch"]
    for seat in map(int, batch["vectors"]):
        party = Party(run, seat, monkeypatch)
        known = [setup["statements"], setup["confirmations"], setup["readies"]]
        assert party.sets_up() == [[frames[seat]] for frames in known]
        vector = batch["vectors"][str(seat)]
        assert wire.decode(bytes.fromhex(vector)).message.body.hex() == run["parties"][seat]["y"]  # type: ignore[attr-defined]
        if name == "additive":
            assert party.contributes() == [vector]
        else:
            assert party.contributes() == [batch["bundles"][str(seat)], vector]
            answer = [batch["verdict_macs"][str(seat)], batch["verdicts"][str(seat)]]
            assert party.takes(batch["proposal"]) == answer
            assert party.takes(batch["macs_to"][str(seat)]) == []
            assert party.takes(batch["bundles_to"][str(seat)]) == [batch["reveals"][str(seat)]]
            assert party.round.batch.wrong_dealers == ()
        assert party.takes(batch["settlement"]) == []
        assert party.round.transcript.head.hex() == run["transcript_heads"]["after_settlement"]


@pytest.mark.parametrize("seat", range(5))
def test_a_party_closes_the_known_plan_with_the_known_frames(
    seat: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, party = MASKED["batch"]["closed"], Party(MASKED, seat, monkeypatch)
    party.sets_up()
    if seat != LOST:  # which never saw the plan
        party.contributes()
    assert party.takes(closed["proposal"]) == [closed["verdicts"][str(seat)]]
    assert party.takes(closed["settlement"]) == []
    head = RunReader(MASKED).head_after(bytes.fromhex(closed["settlement"]))
    assert party.round.transcript.head == head


def coordinator_after_setup(run: dict[str, Any], name: str) -> CoordinatorRound:
    pins = [identity(party) for party in run["parties"]]
    setup = run["setup"]
    coordinator = CoordinatorRound(
        identity=identity(run["coordinator"]),
        form=FORMS[name](),
        parties={pin.fingerprint: pin.public for pin in pins},
        nonce=bytes.fromhex(run["coordinator"]["nonce"]),
        expires_at=make_run_vectors.EXPIRES_AT,
        simulated=True,
        suite=SUITE,
    )
    assert coordinator.setup.offer.frame.hex() == setup["offer"]
    for frame in setup["statements"]:
        coordinator.receive(bytes.fromhex(frame))
    record = expect(wire.decode(bytes.fromhex(setup["record"])), RunRecord)
    made = coordinator.setup.make_record(
        terms=record.terms, colluders=record.colluders, dropouts=record.dropouts
    )
    assert made.hex() == setup["record"]
    reader = RunReader(run)
    for seat in range(len(pins)):
        coordinator.receive(reader.envelope_bundle_of(seat), peer=pins[seat].fingerprint)
    told = coordinator.setup.deliver()
    assert [told[pin.fingerprint].hex() for pin in pins] == setup["envelopes_to"]
    for frame in setup["confirmations"]:
        coordinator.receive(bytes.fromhex(frame))
    told = coordinator.setup.close()
    assert [told[pin.fingerprint].hex() for pin in pins] == setup["closings"]
    for frame in setup["readies"]:
        coordinator.receive(bytes.fromhex(frame))
    assert coordinator.transcript.head.hex() == run["transcript_heads"]["after_setup"]
    plan = expect(wire.decode(bytes.fromhex(run["batch"]["plan"])), Plan)
    planned = coordinator.batch.plan(
        batch=0, words=plan.words, expires_at=plan.expires_at, terms=plan.terms
    )
    assert planned.hex() == run["batch"]["plan"]
    assert coordinator.transcript.head.hex() == run["transcript_heads"]["after_plan"]
    return coordinator


def coordinator_after_vectors(bundles: dict[str, str]) -> CoordinatorRound:
    """The coordinator of the masked run, with bundles in the place of those of the vector."""
    coordinator = coordinator_after_setup(MASKED, "masked")
    batch = MASKED["batch"]
    for seat, vector in batch["vectors"].items():
        peer = bytes.fromhex(MASKED["parties"][int(seat)]["fingerprint"])
        bundle = bundles.get(seat, batch["bundles"][seat])
        coordinator.receive(bytes.fromhex(bundle), peer=peer)
        coordinator.receive(bytes.fromhex(vector), peer=peer)
    return coordinator


def seat_of(fingerprint: bytes) -> str:
    return str([party["fingerprint"] for party in MASKED["parties"]].index(fingerprint.hex()))


def proposing_coordinator(*, bundles: dict[str, str] | None = None) -> CoordinatorRound:
    """The coordinator of the masked run, waiting for verdicts."""
    coordinator = coordinator_after_vectors(bundles or {})
    proposals = coordinator.batch.propose()
    assert {seat_of(peer) for peer in proposals} == set(MASKED["batch"]["verdicts"])
    assert {frame.hex() for frame in proposals.values()} == {MASKED["batch"]["proposal"]}
    return coordinator


def take(coordinator: CoordinatorRound, given_by: dict[str, str]) -> None:
    for seat, frame in given_by.items():
        peer = bytes.fromhex(MASKED["parties"][int(seat)]["fingerprint"])
        coordinator.receive(bytes.fromhex(frame), peer=peer)


def certified_coordinator() -> CoordinatorRound:
    """The coordinator of the masked run, waiting for shares."""
    coordinator, batch = proposing_coordinator(), MASKED["batch"]
    take(coordinator, batch["verdict_macs"])
    take(coordinator, batch["verdicts"])
    for fingerprint, frames in coordinator.batch.certify().items():
        seat = seat_of(fingerprint)
        told = [batch["macs_to"][seat], batch["bundles_to"][seat]]
        assert [frame.hex() for frame in frames] == told
    return coordinator


@pytest.mark.parametrize("macs", [(), ("0", "2", "3")], ids=["no MACs", "too few MACs"])
def test_the_coordinator_shows_the_known_certificate_where_it_lacks_macs(
    macs: tuple[str, ...],
) -> None:
    coordinator, batch = proposing_coordinator(), MASKED["batch"]
    take(coordinator, {seat: batch["verdict_macs"][seat] for seat in macs})
    take(coordinator, batch["verdicts"])
    for fingerprint, frames in coordinator.batch.certify().items():
        told = [batch["certificate"], batch["bundles_to"][seat_of(fingerprint)]]
        assert [frame.hex() for frame in frames] == told


def test_the_coordinator_opens_the_known_additive_sum_with_the_known_frames() -> None:
    run = RUNS["additive"]
    coordinator = coordinator_after_setup(run, "additive")
    for vector in run["batch"]["vectors"].values():
        coordinator.receive(bytes.fromhex(vector))
    assert coordinator.batch.open_total().tolist() == run["sum"]
    require_known_settlement(coordinator, run)


def require_known_settlement(coordinator: CoordinatorRound, run: dict[str, Any]) -> None:
    known = expect(wire.decode(bytes.fromhex(run["batch"]["settlement"])), Settlement)
    settled = coordinator.batch.settle(released=True, result=known.result)
    assert settled.hex() == run["batch"]["settlement"]
    assert coordinator.transcript.head.hex() == run["transcript_heads"]["after_settlement"]


def test_the_coordinator_opens_the_known_masked_sum_with_the_known_frames() -> None:
    coordinator = certified_coordinator()
    for reveal in MASKED["batch"]["reveals"].values():
        coordinator.receive(bytes.fromhex(reveal))
    assert coordinator.batch.share_faults == ()
    assert coordinator.batch.open_total().tolist() == MASKED["sum"]
    require_known_settlement(coordinator, MASKED)


def test_the_coordinator_closes_the_known_plan_with_the_known_frames() -> None:
    closed, coordinator = MASKED["batch"]["closed"], coordinator_after_vectors({})
    proposals = coordinator.batch.propose_closing()
    assert proposals == dict.fromkeys(coordinator.seats, bytes.fromhex(closed["proposal"]))
    take(coordinator, closed["verdicts"])
    assert coordinator.batch.certify() == {}
    assert coordinator.open_plan.is_closed
    assert coordinator.batch.settle(released=False, result=b"").hex() == closed["settlement"]
    settlement = expect(wire.decode(bytes.fromhex(closed["settlement"])), Settlement)
    assert settlement.certificate.hex() == closed["certificate"]


def test_the_coordinator_settles_the_known_masked_sum_with_the_known_entries() -> None:
    known, late = MASKED["batch"]["contributions"], "4"
    coordinator = certified_coordinator()
    for seat, reveal in MASKED["batch"]["reveals"].items():
        if seat != late:
            coordinator.receive(bytes.fromhex(reveal))
    frame = coordinator.batch.settle(released=False, result=b"")
    entries = expect(wire.decode(frame), Settlement).contributions
    assert [entry.hex() for entry in entries] == [
        known[seat]["entry_without_reveal" if seat == late else "entry"] if seat in known else ""
        for seat in map(str, range(5))
    ]


@both_forms
def test_the_terms_of_a_known_run_are_terms(name: str) -> None:
    run = RUNS[name]
    record = expect(wire.decode(bytes.fromhex(run["setup"]["record"])), RunRecord)
    plan = expect(wire.decode(bytes.fromhex(run["batch"]["plan"])), Plan)
    terms = RunTerms.from_record(decode_value(record.terms))
    batch = BatchTerms.from_record(decode_value(plan.terms))
    assert (batch.run, batch.words, len(terms.weights)) == (terms, plan.words, len(run["parties"]))


# Spoiled, at our two ends ----------------------------------------------------------------------

ADDITIVE = RUNS["additive"]
EARLY = ADDITIVE["spoiled_to_seat_0"]


class Desk:
    """The coordinator of the masked run, as seat 0 meets it."""

    def __init__(self, round_: CoordinatorRound) -> None:
        self.round = round_

    def takes(self, frame: str) -> object:
        peer = bytes.fromhex(MASKED["parties"][0]["fingerprint"])
        return self.round.receive(bytes.fromhex(frame), peer=peer)


End: TypeAlias = Party | Desk


def facts(end: End) -> tuple[object, ...]:
    """What a refused message must leave as it was."""
    if isinstance(end, Party):
        return (end.round.state, end.round.transcript, end.round.epoch, list(end.journal.steps))
    return (end.round.state, end.round.transcript, end.round.missing)


def refusal(end: End, frame: str, run: dict[str, Any]) -> str:
    """How an end refuses a frame: the code, who is at fault, and what becomes of the end."""
    before = facts(end)
    with pytest.raises(ProtocolError) as caught:
        end.takes(frame)
    names = {one["fingerprint"]: f"seat {one['seat']}" for one in run["parties"]}
    error: Any = caught.value
    blamed = [getattr(error, "peer", ""), *getattr(error, "pair", ())]
    who = " and ".join(names.get(one, "coordinator" if one == "coordinator" else "a stranger")
                       for one in blamed if one)  # fmt: skip
    after = facts(end)
    if after == before:
        return f"{error.code} {who or 'nobody'}, nothing changed"
    assert end.round.state is PartyState.STOPPED
    assert after[1:] == before[1:]
    return f"{error.code} {who or 'nobody'}, stopped"


def party_at(state: PartyState, run: dict[str, Any], seat: int = 0) -> Callable[..., Party]:
    """Return what makes a party of a run that waits in a state."""

    def make(monkeypatch: pytest.MonkeyPatch) -> Party:
        party = Party(run, seat, monkeypatch)
        if state in (PartyState.STATED, PartyState.SEALED, PartyState.CONFIRMED):
            party.takes(run["setup"]["offer"])
            if state is not PartyState.STATED:
                party.takes(run["setup"]["record"])
                party.round.accept_run()
            if state is PartyState.CONFIRMED:
                party.takes(run["setup"]["envelopes_to"][seat])
            return party
        party.sets_up()
        if state is not PartyState.READY:
            party.contributes()
        steps = [PartyState.JUDGED, PartyState.CERTIFIED, PartyState.REVEALED]
        shown = ["proposal", "macs_to", "bundles_to"]
        for step, name in zip(steps, shown, strict=True):
            if party.round.state is state:
                break
            told = run["batch"][name]
            party.takes(told if step is PartyState.JUDGED else told[str(seat)])
        assert party.round.state is state
        return party

    return make


def closing_at(seat: int) -> Callable[..., Party]:
    """Return what makes a party of the masked run that agreed to close the plan."""

    def make(monkeypatch: pytest.MonkeyPatch) -> Party:
        state = PartyState.READY if seat == LOST else PartyState.SENT
        party = party_at(state, MASKED, seat)(monkeypatch)
        party.takes(MASKED["batch"]["closed"]["proposal"])
        return party

    return make


SETUP, BATCH, LATER = ADDITIVE["setup"], ADDITIVE["batch"], MASKED["batch"]
SETTLEMENTS = SPOILED["settlements"]
PLACES: dict[str, tuple[Callable[..., End], dict[str, str], str]] = {
    "records": (party_at(PartyState.STATED, ADDITIVE), EARLY["records"], SETUP["record"]),
    "envelopes": (
        party_at(PartyState.SEALED, ADDITIVE), EARLY["envelopes"], SETUP["envelopes_to"][0],
    ),
    "closings": (
        party_at(PartyState.CONFIRMED, ADDITIVE), EARLY["closings"], SETUP["closings"][0],
    ),
    "plans": (party_at(PartyState.READY, ADDITIVE), EARLY["plans"], BATCH["plan"]),
    "additive settlements": (
        party_at(PartyState.SENT, ADDITIVE), EARLY["settlements"], BATCH["settlement"],
    ),
    "proposals": (
        party_at(PartyState.SENT, MASKED), SPOILED["proposals_to_seat_0"], LATER["proposal"],
    ),
    "second proposals": (
        party_at(PartyState.JUDGED, MASKED), SPOILED["second_proposals_to_seat_0"],
        LATER["macs_to"]["0"],
    ),
    "MACs": (
        party_at(PartyState.JUDGED, MASKED), SPOILED["macs_to_seat_0"], LATER["macs_to"]["0"],
    ),
    "certificates": (
        party_at(PartyState.JUDGED, MASKED), SPOILED["certificates_to_seat_0"],
        LATER["certificate"],
    ),
    "bundles": (
        party_at(PartyState.CERTIFIED, MASKED), SPOILED["bundles_to_seat_0"]["refused"],
        LATER["bundles_to"]["0"],
    ),
    "releases": (
        party_at(PartyState.REVEALED, MASKED), SETTLEMENTS["released, to seat 0"],
        LATER["settlement"],
    ),
    "releases to a lost party": (
        party_at(PartyState.READY, MASKED, LOST), SETTLEMENTS["released, to seat 1"],
        LATER["settlement"],
    ),
    "void settlements": (
        closing_at(0), SETTLEMENTS["void, to seats 0 and 1"], LATER["closed"]["settlement"],
    ),
    "void settlements to a lost party": (
        closing_at(LOST), SETTLEMENTS["void, to seats 0 and 1"], LATER["closed"]["settlement"],
    ),
    "bundles of a dealer": (
        lambda _: Desk(coordinator_after_setup(MASKED, "masked")), SPOILED["bundles_of_seat_0"],
        LATER["bundles"]["0"],
    ),
    "verdicts": (
        lambda _: Desk(proposing_coordinator()), SPOILED["verdicts_of_seat_0"],
        LATER["verdicts"]["0"],
    ),
    "MACs of a verdict": (
        lambda _: Desk(proposing_coordinator()), SPOILED["verdict_macs_of_seat_0"],
        LATER["verdict_macs"]["0"],
    ),
    "reveals": (
        lambda _: Desk(certified_coordinator()), SPOILED["reveals_of_seat_0"]["refused"],
        LATER["reveals"]["0"],
    ),
}  # fmt: skip
"""Where spoiled messages come: the end that meets them, the messages, and the true one."""


@pytest.mark.parametrize("place", PLACES)
def test_spoiled_messages_are_refused_with_the_known_codes(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, spoiled, true = PLACES[place]
    run = ADDITIVE if place in (*EARLY, "additive settlements") else MASKED
    said = {}
    for name, frame in spoiled.items():
        end = make(monkeypatch)
        said[name] = refusal(end, frame, run)
        if said[name].endswith("stopped"):
            stopped = facts(end)
            for later in (true, LATER["bundles_to"]["0"]):
                with suppress(ProtocolError):
                    assert end.takes(later) == []
                assert facts(end) == stopped
        else:
            end.takes(true)
    text = "\n".join(f"{name}: {answer}" for name, answer in said.items())
    hold(f"spoiled/{place.lower().replace(' ', '-')}", text)


@pytest.mark.parametrize("proof", ["MACs", "certificate"])
def test_a_party_reveals_what_is_known_after_either_proof(judged: Party, proof: str) -> None:
    batch = MASKED["batch"]
    frame = batch["macs_to"]["0"] if proof == "MACs" else batch["certificate"]
    assert judged.takes(frame) == []
    assert judged.takes(batch["bundles_to"]["0"]) == [batch["reveals"]["0"]]


def test_a_party_goes_on_after_a_second_proof_of_the_same_verdict(judged: Party) -> None:
    # After a restart the coordinator may hold other MACs, or too few of them.
    batch = MASKED["batch"]
    for proof in (batch["macs_to"]["0"], batch["certificate"], batch["macs_to"]["0"]):
        assert judged.takes(proof) == []
    assert judged.takes(batch["bundles_to"]["0"]) == [batch["reveals"]["0"]]
    assert judged.takes(batch["certificate"]) == []
    assert judged.takes(batch["bundles_to"]["0"]) == [batch["reveals"]["0"]]


def test_a_lost_party_takes_the_certified_release(monkeypatch: pytest.MonkeyPatch) -> None:
    party = Party(MASKED, LOST, monkeypatch)
    party.sets_up()
    assert party.takes(MASKED["batch"]["settlement"]) == []
    head = MASKED["transcript_heads"]["after_settlement"]
    assert party.round.transcript.head.hex() == head


@given(SPOILED["settlements"]["of another run"])
def test_a_settlement_of_another_run_changes_nothing(revealed: Party, frame: bytes) -> None:
    assert revealed.takes(frame) == []
    assert revealed.takes(MASKED["batch"]["settlement"]) == []
    head = MASKED["transcript_heads"]["after_settlement"]
    assert revealed.round.transcript.head.hex() == head


@sampled()
@given(SPOILED["bundles_to_seat_0"]["nothing of seat 3 opened"])
def test_a_party_opens_no_share_that_its_dealer_spoiled(certified: Party, frame: bytes) -> None:
    (reply,) = certified.takes(frame)
    known = expect(wire.decode(bytes.fromhex(MASKED["batch"]["reveals"]["0"])), Reveal)
    disclosures = list(known.disclosures)
    disclosures[2] = b""  # seat 3 is the third survivor
    assert expect(wire.decode(bytes.fromhex(reply)), Reveal).disclosures == tuple(disclosures)
    assert [one.hex() for one in certified.round.batch.wrong_dealers] == [
        MASKED["parties"][3]["fingerprint"]
    ]


@sampled()
@pytest.mark.parametrize(
    ("seats", "frame"),
    [
        pytest.param(seats, frame, id=name)
        for seats, kind in (([3], "dropped of seat 3"), ([3, 4], "dropped of seats 3 and 4"))
        for name, frame in SPOILED["reveals_of_seat_0"][kind].items()
    ],
)
def test_the_coordinator_drops_a_spoiled_disclosure_and_names_who_is_at_fault(
    seats: list[int], frame: str
) -> None:
    coordinator = certified_coordinator()
    coordinator.receive(bytes.fromhex(frame))
    holder, *dealers = (
        bytes.fromhex(MASKED["parties"][seat]["fingerprint"]) for seat in (0, *seats)
    )
    shows_none = frame == SPOILED["reveals_of_seat_0"]["dropped of seat 3"]["none"]
    assert coordinator.batch.share_faults == tuple(
        ShareFault(dealer, holder, named=(dealer, holder) if shows_none else (holder,))
        for dealer in dealers
    )


def test_a_dealer_that_signed_the_hash_of_another_secret_is_named() -> None:
    spoiled = SPOILED["hash_of_another_secret_by_seat_0"]
    coordinator = proposing_coordinator(bundles={"0": spoiled["bundle"]})
    take(coordinator, MASKED["batch"]["verdicts"])
    coordinator.batch.certify()
    for seat, reveal in spoiled["reveals"].items():
        peer = bytes.fromhex(MASKED["parties"][int(seat)]["fingerprint"])
        coordinator.receive(bytes.fromhex(reveal), peer=peer)
    with pytest.raises(WrongShareError) as caught:
        coordinator.batch.open_total()
    assert caught.value.peer == MASKED["parties"][0]["fingerprint"]


# A second reader -------------------------------------------------------------------------------


@both_forms
def test_a_second_reader_finds_run_id_roots_and_keys(name: str) -> None:
    run, reader = RUNS[name], RunReader(RUNS[name])
    assert reader.run_id.hex() == run["run_id"]
    assert reader.plan_digest.hex() == run["batch"]["plan_digest"]
    for pair in run["pairs"]:
        seats = tuple(pair["seats"])
        assert reader.root(*seats).hex() == pair["root"]
        assert reader.root(*seats, epoch=1).hex() == pair["root_of_epoch_1"]
        assert reader.stream_key(*seats).hex() == pair["stream_key"]


@both_forms
def test_a_second_reader_opens_the_known_sum(name: str) -> None:
    assert RunReader(RUNS[name]).opened_sum() == RUNS[name]["sum"]


@both_forms
def test_a_second_reader_with_all_keys_reads_every_vector(name: str) -> None:
    run, reader = RUNS[name], RunReader(RUNS[name])
    for seat in reader.ys:
        assert reader.vector_of(seat) == run["parties"][seat]["x"]


@both_forms
def test_the_sum_is_that_of_the_vectors(name: str) -> None:
    run = RUNS[name]
    present = [party["x"] for party in run["parties"] if party["y"]]
    wrapped = [(sum(column) + 2**31) % 2**32 - 2**31 for column in zip(*present, strict=True)]
    assert wrapped == run["sum"]
    assert any(number < 0 for party in present for number in party)


@pytest.mark.parametrize(
    "y", [pytest.param(y, id=name) for name, y in RUNS["additive"]["spoiled_sums"].items()]
)
def test_a_spoiled_y_opens_another_sum(y: str) -> None:
    run = RUNS["additive"]
    true = {seat: bytes.fromhex(party["y"]) for seat, party in enumerate(run["parties"])}
    assert reference_sum.opened_sum(true) == run["sum"]
    spoiled = {**true, 0: bytes.fromhex(y)}
    form = AdditiveSum()
    total = form.empty_total(len(run["sum"]))
    for body in spoiled.values():
        form.merge(total, form.ring.from_bytes(body))
    opened = form.unshard(total).tolist()
    assert opened == reference_sum.opened_sum(spoiled)
    assert all(one != other for one, other in zip(opened, run["sum"], strict=True))


def reading(part: str, **changed: Any) -> RunReader:
    """Read the additive run with other frames of its setup or batch."""
    return RunReader({**ADDITIVE, part: {**ADDITIVE[part], **changed}})


ALIVE = [0, 2, 3, 4]
READ: dict[str, tuple[dict[str, str], Callable[[bytes], object]]] = {
    "record": (EARLY["records"], lambda frame: reading("setup", record=frame.hex())),
    "plan": (EARLY["plans"], lambda frame: reading("batch", plan=frame.hex())),
    "envelopes": (
        EARLY["envelopes"],
        lambda frame: reading("setup", envelopes_to=[frame.hex(), *SETUP["envelopes_to"][1:]]),
    ),
    "closing": (
        EARLY["closings"],
        lambda frame: reading("setup", closings=[frame.hex(), *SETUP["closings"][1:]]),
    ),
    "additive settlement": (
        EARLY["settlements"],
        lambda frame: RunReader(ADDITIVE).settled(
            frame, 0, entries=[RunReader(ADDITIVE).contribution(0)]
        ),
    ),
    "proposal": (
        SPOILED["proposals_to_seat_0"], lambda frame: RunReader(MASKED).proposed(frame, holder=0),
    ),
    "verdict": (
        SPOILED["verdicts_of_seat_0"], lambda frame: RunReader(MASKED).verdict_of(frame, 0),
    ),
    "MACs": (
        SPOILED["macs_to_seat_0"],
        lambda frame: RunReader(MASKED).require_agreed(frame, 0, agreed=ALIVE),
    ),
    "MACs of a verdict": (
        SPOILED["verdict_macs_of_seat_0"], lambda frame: RunReader(MASKED).macs_of(frame, 0),
    ),
    "release": (
        SETTLEMENTS["released, to seat 0"] | SETTLEMENTS["of another run"],
        lambda frame: settled_by_seat_0(frame, agreed=ALIVE),
    ),
    "release to a lost party": (
        SETTLEMENTS["released, to seat 1"],
        lambda frame: RunReader(MASKED).settled(frame, LOST, entries=[]),
    ),
    "void settlement": (
        SETTLEMENTS["void, to seats 0 and 1"], lambda frame: settled_by_seat_0(frame, agreed=[]),
    ),
    "bundle": (
        SPOILED["bundles_to_seat_0"]["refused"],
        lambda frame: RunReader(MASKED).columns_of(frame, holder=0),
    ),
    "bundle of a dealer": (
        SPOILED["bundles_of_seat_0"], lambda frame: RunReader(MASKED).dealing_in(frame, dealer=0),
    ),
    "reveal": (
        SPOILED["reveals_of_seat_0"]["refused"],
        lambda frame: RunReader(MASKED).disclosed_in(frame, holder=0),
    ),
}  # fmt: skip
"""Spoiled messages, and how the second reader reads such a message."""


@pytest.mark.parametrize(
    ("read", "frame"),
    [
        pytest.param(read, bytes.fromhex(frame), id=f"{place}: {name}")
        for place, (spoiled, read) in READ.items()
        for name, frame in spoiled.items()
    ],
)
def test_a_second_reader_refuses_a_spoiled_message(
    read: Callable[[bytes], object], frame: bytes
) -> None:
    with pytest.raises(Refused):
        read(frame)


@sampled()
@given(SPOILED["certificates_to_seat_0"])
def test_a_second_reader_finds_no_proof_of_the_verdict(frame: bytes) -> None:
    reader = RunReader(MASKED)
    try:
        seats = reader.certified(frame)
    except Refused:
        return
    assert seats != reader.proposed(bytes.fromhex(MASKED["batch"]["proposal"]), holder=0)


def settled_by_seat_0(frame: bytes, *, agreed: list[int]) -> list[int] | None:
    reader = RunReader(MASKED)
    entries = [reader.contribution(0), reader.contribution(0, without_reveal=True)]
    return reader.settled(frame, 0, entries=entries, agreed=agreed)


def test_a_second_reader_reads_proposals_verdicts_certificates_and_settlements() -> None:
    reader, batch = RunReader(MASKED), MASKED["batch"]
    closed, alive = batch["closed"], [0, 2, 3, 4]
    for known, seats, given_by in ((batch, alive, alive), (closed, [], range(5))):
        assert reader.proposed(bytes.fromhex(known["proposal"]), holder=0) == seats
        assert [int(seat) for seat in known["verdicts"]] == list(given_by)
        for seat, verdict in known["verdicts"].items():
            assert reader.verdict_of(bytes.fromhex(verdict), int(seat)) == seats
        assert reader.certified(bytes.fromhex(known["certificate"])) == seats
    assert settled_by_seat_0(bytes.fromhex(batch["settlement"]), agreed=alive) == alive
    assert reader.settled(bytes.fromhex(batch["settlement"]), LOST, entries=[]) == alive
    assert settled_by_seat_0(bytes.fromhex(closed["settlement"]), agreed=[]) is None
    assert reader.verdict_digest(alive).hex() == batch["verdict_digest"]


def test_a_second_reader_finds_the_known_macs_where_they_belong() -> None:
    reader, batch = RunReader(MASKED), MASKED["batch"]
    for holder, frame in batch["macs_to"].items():
        reader.require_agreed(bytes.fromhex(frame), int(holder), agreed=[0, 2, 3, 4])
    for sender, frame in batch["verdict_macs"].items():
        macs = reader.macs_of(bytes.fromhex(frame), int(sender))
        assert len(set(macs)) == len(macs) == 4


@sampled()
@given(SPOILED["bundles_to_seat_0"]["nothing of seat 3 opened"])
def test_a_second_reader_opens_no_share_that_its_dealer_spoiled(frame: bytes) -> None:
    assert set(RunReader(MASKED).columns_of(frame, holder=0)) == {2, 4}


@sampled()
@given(SPOILED["reveals_of_seat_0"]["dropped of seat 3"])
def test_a_second_reader_drops_a_spoiled_disclosure(frame: bytes) -> None:
    reader: Callable[..., dict[int, Any]] = RunReader(MASKED).disclosed_in
    assert set(reader(frame, holder=0)) == {0, 2, 4}


def test_a_second_reader_computes_the_known_entries_of_a_settlement() -> None:
    reader, batch = RunReader(MASKED), MASKED["batch"]
    assert reader.opening_digest.hex() == batch["opening_digest"]
    assert batch["contributions"].keys() == batch["reveals"].keys()
    for seat, known in batch["contributions"].items():
        entry = reader.contribution(int(seat)).hex()
        without = reader.contribution(int(seat), without_reveal=True).hex()
        assert (entry, without) == (known["entry"], known["entry_without_reveal"])


def test_a_second_reader_names_the_dealer_of_another_secret() -> None:
    spoiled = SPOILED["hash_of_another_secret_by_seat_0"]
    bundles = {**MASKED["batch"]["bundles"], "0": spoiled["bundle"]}
    batch = {**MASKED["batch"], "bundles": bundles, "reveals": spoiled["reveals"]}
    with pytest.raises(Refused, match=r"\b0\b"):
        RunReader({**MASKED, "batch": batch}).opened_sum()

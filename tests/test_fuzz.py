"""200,000 broken inputs: every door answers with a value or a coded error, in bounded memory.

Hypothesis chooses seeds, and shrinks to one that fails; each seed stands for a batch of inputs that
`mutations` makes. The input that did it is in the error's text.
"""

from __future__ import annotations

import contextlib
import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from party.errors import PartyError
from pate_fed.errors import PateFedError
from pate_fed.releases import NoisyRelease
from pate_fed.terms import BatchTerms, RunTerms
from protocols import wire
from protocols.dealing import Dealt, deal, disclose, read_disclosure
from protocols.envelope import SealingKey, open_shares, seal, seal_shares
from protocols.errors import ConflictingMessageError, ProtocolError
from protocols.identity import PublicIdentity
from protocols.masked import MaskedSum
from protocols.messages import BlameRequest, Certificate, Plan, ShareBundle, Verdict, VerdictMacs
from protocols.rounds import PartyState, PlanClaim
from protocols.rounds.round_journal import MOST_UNSERVED
from protocols.rounds.verdicts import take_proof
from protocols.shamir import elements_to_secrets
from protocols.suites import SUITES
from protocols.transcript_verifier import verify_transcript
from protocols.values import decode_value, encode_value
from protocols.wire import MESSAGE_TYPES
from tests.support.federation import Federation, ready_federation
from tests.support.markers import more, sampled
from tests.support.mutations import encoded, mutated, mutated_value
from tests.support.rounds import NOW, MemoryRun, ready_run
from tests.support.vectors import read_vectors

CODED = (ProtocolError, PateFedError, PartyError)
BATCH = 250
QUOTAS = {
    "frames": 70_000,
    "messages": 30_000,
    "packets": 20_000,
    "values": 30_000,
    "run terms": 10_000,
    "batch terms": 10_000,
    "releases": 10_000,
    "share envelopes": 5_000,
    "share columns": 5_000,
    "disclosures": 5_000,
    "secret words": 5_000,
    "envelopes": 8_000,
    "sealing keys": 2_000,
    "signatures": 2_000,
    "a party": 3_000,
    "a coordinator": 3_000,
    "a masked coordinator": 2_000,
    "a holder": 2_000,
    "verdicts": 2_000,
    "proofs of a verdict": 2_000,
    "proposals": 2_000,
    "a node": 2_000,
    "row requests": 2_000,
    "statements": 2_000,
    "transcripts": 3_000,
}
"""Inputs for each door."""
SHARES = {"an eighth": 8, "all": 1}
LEAST = 1_000
played = dict(QUOTAS)
"""Inputs for each door now: an exhaustive run plays all of them."""


@pytest.fixture(autouse=True, params=["an eighth", more("all")])
def _share(request: pytest.FixtureRequest) -> None:
    """Play a share of each door's inputs."""
    for name, quota in QUOTAS.items():
        share = quota // SHARES[request.param] // BATCH * BATCH
        played[name] = max(share, min(quota, LEAST))


FRAMES = [bytes.fromhex(item["frame"]) for item in read_vectors("wire_frames")["good"].values()]
FRAMES += [bytes.fromhex(frame) for frame in read_vectors("wire_frames")["spoiled"].values()]
Door = Callable[[bytes], object]


@pytest.mark.parametrize(
    "door",
    [
        pytest.param(lambda data: {}[data], id="an error with no code"),
        pytest.param(lambda data: bytes(4 * 2**20), id="too much memory"),
    ],
)
def test_a_door_that_breaks_is_found(door: Door) -> None:
    with pytest.raises(AssertionError):
        fuzz("signatures", door, lambda chance: b"x")


def test_there_are_200_000_inputs() -> None:
    assert sum(QUOTAS.values()) >= 200_000
    assert all(quota % BATCH == 0 for quota in QUOTAS.values())


def fuzz(name: str, door: Door, make: Callable[[random.Random], bytes]) -> None:
    """Put a door's quota of inputs through it."""
    seen = 0

    def batch(seed: int) -> None:
        nonlocal seen
        chance = random.Random(seed)  # noqa: S311 - picks what to break
        inputs = [make(chance) for _ in range(BATCH)]
        for data in inputs:
            knock(door, data)
        # The same inputs again, a few of them, with an eye on memory.
        for data in inputs[:5]:
            assert memory_of(door, data) <= 300 * len(data) + 2**20, data.hex()
        seen += len(inputs)

    batches = played[name] // BATCH
    run = settings(
        max_examples=batches,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        database=None,
    )(given(st.integers(0, 2**64 - 1))(batch))
    run()
    # Hypothesis may end early where it thinks that it saw all: the rest of the quota is ours.
    for seed in range(max(0, batches - seen // BATCH)):
        batch(seed)
    assert seen >= played[name]


def knock(door: Door, data: bytes) -> None:
    """Hand one input to a door; anything but a value or a coded error fails and shows the input."""
    try:
        with contextlib.suppress(*CODED):
            door(data)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} for {data[:2_000].hex()}") from error


def memory_of(door: Door, data: bytes) -> int:
    tracemalloc.start()
    try:
        knock(door, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# The wire --------------------------------------------------------------------------------------


def test_frames() -> None:
    def door(data: bytes) -> None:
        signed = wire.decode(data)
        # What is taken is what would have been written.
        assert wire.digest_of(signed.message) == signed.digest

    fuzz("frames", door, lambda chance: mutated(chance, FRAMES))


def test_fields_of_every_message() -> None:
    corpus = [cbor2.loads(frame) for frame in FRAMES[: len(MESSAGE_TYPES)]]

    def make(chance: random.Random) -> bytes:
        version, number, fields, signature = chance.choice(corpus)
        changed = mutated_value(chance, fields)
        if chance.random() < 0.3:
            changed = mutated_value(chance, changed)
        return encoded([version, number, changed, signature])

    fuzz("messages", wire.decode, make)


def test_packets() -> None:
    vectors = read_vectors("packets")
    corpus = [bytes.fromhex(item["packet"]) for item in vectors["good"].values()]
    corpus += [bytes.fromhex(packet) for packet in vectors["spoiled"].values()]
    fuzz(
        "packets",
        lambda data: wire.unpack(data, max_bytes=10_000),
        lambda chance: mutated(chance, corpus),
    )


TERMS = Federation(weights={1: (1, 1, 3)}).run.terms
BATCH_TERMS = BatchTerms(TERMS, (4, 1, 9))
RELEASE = NoisyRelease(np.array([1, -1, 2, -1]), np.array([0, 1, 0, 2]))
RECORDS: list[dict[str, Any]] = [TERMS.as_record(), BATCH_TERMS.as_record(), RELEASE.as_record()]


def test_values() -> None:
    corpus = [encode_value(record) for record in RECORDS]
    corpus += [encode_value([1.5, None, True, {"a": [b"x", "y", -7]}]), *FRAMES[:4]]

    def door(data: bytes) -> None:
        assert encode_value(decode_value(data)) == data

    fuzz("values", door, lambda chance: mutated(chance, corpus))


@sampled()
@pytest.mark.parametrize(
    ("name", "kind", "record"),
    [
        pytest.param("run terms", RunTerms, RECORDS[0], id="run terms"),
        pytest.param("batch terms", BatchTerms, RECORDS[1], id="batch terms"),
        pytest.param("releases", NoisyRelease, RECORDS[2], id="releases"),
    ],
)
def test_records(name: str, kind: Any, record: dict[str, Any]) -> None:
    def make(chance: random.Random) -> bytes:
        changed = mutated_value(chance, record)
        if chance.random() < 0.3:
            changed = mutated_value(chance, changed)
        return encoded(changed)

    def door(data: bytes) -> None:
        value = decode_value(data)
        # What is taken is what would have been written.
        assert encode_value(kind.from_record(value).as_record()) == data

    fuzz(name, door, make)


# Shares ----------------------------------------------------------------------------------------

PARTIES, DEALER, HOLDER, DROPPED = 5, 1, 3, [4]


def dealt() -> Dealt:
    return deal(
        [bytes([place]) * 32 for place in range(PARTIES)],
        seat=DEALER,
        sender=b"d" * 32,
        plan_digest=b"p" * 32,
        threshold=4,
        random_bytes=random.Random(1).randbytes,  # noqa: S311 - shares that a test breaks
    )


def spoiled(chance: random.Random, corpus: list[bytes]) -> bytes:
    """Mostly of the right length, so that what is behind the first check is met, too."""
    data = chance.choice(corpus)
    if chance.random() < 0.5:
        return mutated(chance, corpus)
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
    return bytes(changed)


def test_share_envelopes() -> None:
    key = b"k" * 32
    corpus = [
        seal_shares(content, key, dealing_digest=bytes(32))
        for content in (b"", b"x", bytes(32), bytes(3_000))
    ]

    def door(data: bytes) -> None:
        open_shares(data, key, dealing_digest=bytes(32))
        assert data in corpus

    fuzz("share envelopes", door, lambda chance: spoiled(chance, corpus))


def test_share_columns() -> None:
    shares = dealt()
    good = shares.columns[HOLDER]

    def door(data: bytes) -> None:
        disclose(data, shares.message, dealer=DEALER, holder=HOLDER, dropped=DROPPED)
        assert data == good

    fuzz("share columns", door, lambda chance: spoiled(chance, [good, *shares.columns]))


def test_disclosures() -> None:
    shares = dealt()
    column = shares.columns[HOLDER]
    good = disclose(column, shares.message, dealer=DEALER, holder=HOLDER, dropped=DROPPED)

    def door(data: bytes) -> None:
        read_disclosure(data, shares.message, dealer=DEALER, holder=HOLDER, dropped=DROPPED)
        assert data == good

    fuzz("disclosures", door, lambda chance: spoiled(chance, [good, column]))


def test_words_that_shares_join_to() -> None:
    """Holders that lie together choose what comes out of the polynomial: any field elements."""
    corpus = [np.arange(16, dtype="<u4").tobytes(), np.full(16, 65_536, dtype="<u4").tobytes()]

    def door(data: bytes) -> None:
        words = np.frombuffer(data[: 64 * (len(data) // 64)], dtype="<u4").astype(np.int64)
        (secret,) = elements_to_secrets(words.reshape(-1, 16)[:1] % 65_537)
        assert len(secret) == 32

    fuzz("secret words", door, lambda chance: spoiled(chance, corpus).ljust(64, b"\0"))


# Keys ------------------------------------------------------------------------------------------

IDS = {"run_id": bytes(32), "sender": b"s" * 32, "receiver": b"r" * 32}


def test_envelopes() -> None:
    keys = [SealingKey(suite) for suite in SUITES]
    corpus = [seal(bytes(32), key.public_bytes, suite=key.suite, **IDS) for key in keys]

    def door(data: bytes) -> None:
        # What opens is what was sealed: no change of an envelope opens to something else.
        for key in keys:
            try:
                assert key.open(data, **IDS) == bytes(32)
            except ProtocolError:
                continue
            assert data in corpus

    fuzz("envelopes", door, lambda chance: mutated(chance, corpus))


def test_sealing_keys() -> None:
    keys = [SealingKey(suite) for suite in SUITES]
    corpus = [key.public_bytes for key in keys]

    def door(data: bytes) -> None:
        for key in keys:
            knock(lambda data: seal(bytes(32), data, suite=key.suite, **IDS), data)  # noqa: B023

    fuzz("sealing keys", door, lambda chance: mutated(chance, corpus))


def test_signatures() -> None:
    def door(data: bytes) -> None:
        identity = PublicIdentity(data[:32])
        identity.verify(purpose="plan", digest=data[32:64], signature=data[64:])

    fuzz("signatures", door, lambda chance: mutated(chance, [bytes(128), bytes(range(128))]))


# Both ends -------------------------------------------------------------------------------------


def resigned(chance: random.Random, frame: bytes, signer: Any) -> bytes:
    """A frame with changed fields and a true signature, where a message can be made of them."""
    version, number, fields, _ = cbor2.loads(frame)
    changed = encoded([version, number, mutated_value(chance, fields), bytes(64)])
    try:
        message = wire.decode(changed).message
    except ProtocolError:
        return changed
    return wire.sign(message, signer).frame if message.PURPOSE else wire.contain(message)


def test_a_party() -> None:
    run = ready_run(3)
    corpus = [run.open_plan(4), run.coordinator.setup.offer.frame, *FRAMES]
    me, rebuilt = run.coordinator.seats[0], 0
    journals = [run.journals[me]]

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutated(chance, corpus)
        return resigned(chance, chance.choice(corpus[:2]), run.coordinator_identity)

    def door(data: bytes) -> None:
        nonlocal run, me, rebuilt
        if run.parties[me].state is PartyState.STOPPED and rebuilt < 100:
            # A conflict stopped it, as it must: the next input meets a party that is ready again.
            run, rebuilt = MemoryRun(3), rebuilt + 1
            run.set_up()
            me = run.coordinator.seats[0]
            journals.append(run.journals[me])
            corpus[:2] = [run.open_plan(4), run.coordinator.setup.offer.frame]
        event = run.parties[me].receive(data, now=NOW).event
        if event is not None:  # a plan that the coordinator truly signed
            run.parties[me].refuse("PF-301")

    fuzz("a party", door, make)
    # At most its signed promise not to serve a plan, and never a share of votes.
    assert {step for journal in journals for step in journal.steps} <= {"abandon"}
    assert rebuilt


def test_a_coordinator() -> None:
    run = ready_run(3)
    seats = run.coordinator.seats
    plan = run.open_plan(4)
    ys = []
    for seat in seats:
        run.to_party("plan", seat, plan)
        ys += run.parties[seat].contribute(np.arange(4))
    identities = [run.identities[seat] for seat in seats]

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutated(chance, [*ys, *FRAMES])
        place = chance.randrange(2)
        version, number, fields, _ = cbor2.loads(ys[place])
        changed = encoded([version, number, mutated_value(chance, fields), bytes(64)])
        try:
            message: Any = wire.decode(changed).message
        except ProtocolError:
            return changed
        if getattr(message, "body", b"1") == cbor2.loads(ys[place])[2][2]:
            return changed
        return wire.sign(message, identities[place]).frame

    def door(data: bytes) -> None:
        run.coordinator.receive(data, peer=seats[data[-1] % 2] if data else seats[0])

    fuzz("a coordinator", door, make)
    # Whatever came: the three true y's still open a sum, or one liar's y is in it; or a liar signed
    # a y of another length, and the others can show it.
    for seat, y in zip(seats, ys, strict=True):
        with contextlib.suppress(ConflictingMessageError):
            run.coordinator.receive(y, peer=seat)
    batch = run.coordinator.batch
    liars = set(seats).difference(batch.survivors)
    if not liars:
        assert batch.open_total().shape == (4,)
        return
    batch.settle(released=False, result=b"")
    assert batch.claim_of(run.coordinator.settled[-1]) == PlanClaim.abandoned_by(liars, seats=seats)


def revealing() -> tuple[MemoryRun, dict[bytes, list[bytes]]]:
    """A masked run whose set is certified: what each party of it is told next."""
    run = ready_run(5, form=MaskedSum)
    plan = run.open_plan(4)
    for seat in run.coordinator.seats:
        run.to_party("plan", seat, plan)
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(np.arange(4))))
    run.agree(run.coordinator.batch.propose())
    return run, run.coordinator.batch.certify()


def test_a_masked_coordinator() -> None:
    run, told = revealing()
    reveals = {}
    for seat, frames in told.items():
        for frame in frames:
            for reveal in run.to_party("certificate", seat, frame):
                reveals[seat] = reveal
    culprit, *honest = reveals
    corpus = [reveals[culprit], *FRAMES]

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.4:
            return mutated(chance, corpus)
        return resigned(chance, reveals[culprit], run.identities[culprit])

    def door(data: bytes) -> None:
        run.coordinator.receive(data, peer=culprit)

    fuzz("a masked coordinator", door, make)
    # Whatever the culprit showed: the others' shares open the exact sum.
    for seat in honest:
        run.coordinator.receive(reveals[seat], peer=seat)
    assert np.array_equal(run.coordinator.batch.open_total(), 5 * np.arange(4))


def test_a_holder() -> None:
    run, told = revealing()
    me = run.coordinator.seats[0]
    proof, bundle = told[me]
    run.to_party("certificate", me, proof)
    plan = run.parties[me].batch.open
    assert plan is not None
    assert plan.holder is not None
    assert plan.verdict is not None
    holder, verdict = plan.holder, plan.verdict

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.4:
            return mutated(chance, [bundle])
        return resigned(chance, bundle, run.coordinator_identity)

    def door(data: bytes) -> None:
        message = wire.expect(wire.decode(data), ShareBundle)
        reveal, wrong = holder.reveal(verdict, message)
        # A changed share is opened to nobody.
        assert [
            seat
            for seat, shown in zip(verdict.survivors, reveal.disclosures, strict=True)
            if not shown
        ] == list(wrong)

    fuzz("a holder", door, make)
    assert run.to_party("shares", me, bundle)


def judged() -> tuple[MemoryRun, dict[bytes, bytes], dict[bytes, list[bytes]]]:
    """A masked run before its verdicts are in: the proposals, and what each party says to one."""
    run = ready_run(5, form=MaskedSum)
    plan = run.open_plan(4)
    for seat in run.coordinator.seats:
        run.to_party("plan", seat, plan)
        run.to_coordinator("y", seat, list(run.parties[seat].contribute(np.arange(4))))
    proposals = run.coordinator.batch.propose()
    return run, proposals, {seat: run.to_party("p", seat, f) for seat, f in proposals.items()}


def test_verdicts() -> None:
    run, _, said = judged()
    culprit, *honest = said

    def make(chance: random.Random) -> bytes:
        frame = chance.choice(said[culprit])
        if chance.random() < 0.4:
            return mutated(chance, [frame, *FRAMES])
        return resigned(chance, frame, run.identities[culprit])

    def door(data: bytes) -> None:
        run.coordinator.receive(data, peer=culprit)

    fuzz("verdicts", door, make)
    # Whatever the culprit said: the others' verdicts certify the set.
    for seat in honest:
        run.to_coordinator("verdict", seat, said[seat])
    told = run.coordinator.batch.certify()
    run.show(told, mute=[culprit])
    assert np.array_equal(run.coordinator.batch.open_total(), 5 * np.arange(4))


@sampled()
@pytest.mark.parametrize("by_macs", [False, True], ids=["certificates", "MACs"])
def test_proofs_of_a_verdict(by_macs: bool) -> None:
    """No changed proof lets a party show its shares."""
    run, _, said = judged()
    for seat, frames in said.items():
        run.to_coordinator("verdict", seat, frames)
    me, told = run.coordinator.seats[0], run.coordinator.batch.certify()
    good = told[me][0] if by_macs else run.coordinator.open_plan.certificate_frame
    party = run.parties[me]
    plan = party.batch.open
    assert plan is not None

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.4:
            return spoiled(chance, [good])
        return resigned(chance, good, run.coordinator_identity)

    def door(data: bytes) -> None:
        message = wire.decode(data).message
        if not isinstance(message, VerdictMacs | Certificate):
            return
        plan.is_certified = False
        try:
            take_proof(message, plan, run=party)
        finally:
            # As many as are needed must be right: the rest may be anything.
            if plan.is_certified:
                assert right_in(message) >= 4

    def right_in(message: VerdictMacs | Certificate) -> int:
        true = wire.decode(good).message
        if isinstance(message, VerdictMacs):
            assert isinstance(true, VerdictMacs)
            return 1 + sum(a == b for a, b in zip(message.macs, true.macs, strict=True))
        assert isinstance(true, Certificate)
        assert message.verdict == true.verdict
        return sum(a == b for a, b in zip(message.signatures, true.signatures, strict=False))

    fuzz("proofs of a verdict", door, make)
    run.show(told)
    assert np.array_equal(run.coordinator.batch.open_total(), 5 * np.arange(4))


def test_proposals() -> None:
    """Whatever is proposed: a party gives one verdict on each plan, of a set that it is in."""
    run, proposals, said = judged()
    me = run.coordinator.seats[0]
    verdicts: set[bytes] = set()
    party, rebuilt = run.parties[me], 0
    known = {run.coordinator.open_plan.digest}

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.4:
            return mutated(chance, [proposals[me], *FRAMES])
        return resigned(chance, proposals[me], run.coordinator_identity)

    def door(data: bytes) -> None:
        nonlocal party, rebuilt
        if party.state is PartyState.STOPPED and rebuilt < 50:
            party, rebuilt = run.restart(me), rebuilt + 1
        received = party.receive(data, now=NOW)
        assert not isinstance(received.event, Plan)
        for reply in received.replies:
            message = wire.decode(reply).message
            if isinstance(message, Verdict):
                verdicts.add(reply)

    fuzz("proposals", door, make)
    given: dict[bytes, set[tuple[bytes, ...]]] = {}
    for frame in [*verdicts, said[me][-1]]:
        verdict = wire.expect(wire.decode(frame), Verdict)
        given.setdefault(verdict.plan_digest, set()).add(verdict.survivors)
    assert all(len(sets) == 1 for sets in given.values())
    # Of a plan that never came nothing is ever opened.
    assert all(sets == {()} for plan, sets in given.items() if plan not in known)
    assert len(given) <= 1 + MOST_UNSERVED
    assert rebuilt


def test_a_node() -> None:
    federation = ready_federation()
    node = federation.nodes[0]
    corpus = [wire.pack([frame]) for frame in FRAMES] + federation.transport.packets[:12]

    def door(data: bytes) -> None:
        answers = wire.unpack(node.receive(data), max_bytes=2**20)
        assert all(wire.decode(answer) for answer in answers)

    fuzz("a node", door, lambda chance: mutated(chance, corpus))
    assert federation.steps[0] == []  # nothing was charged, noted or voted on


def asked_about_a_row() -> tuple[MemoryRun, bytes, list[bytes]]:
    """A void batch, the request about a row of it, and what all parties state."""
    run = ready_run(3)
    run.sum([np.array([1, 2, 3, 4])] * 3, row_words=2)
    run.settle(released=False)
    request = run.coordinator.blame.ask(1)
    statements = []
    for seat in run.coordinator.seats:
        run.to_party("row", seat, request)
        statements += run.parties[seat].state_sums(row_words=2)
    return run, request, statements


def test_requests_about_a_row() -> None:
    run, request, _ = asked_about_a_row()

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutated(chance, [request])
        return resigned(chance, request, run.coordinator_identity)

    def door(data: bytes) -> None:
        received = run.parties[run.coordinator.seats[0]].receive(data, now=NOW)
        assert not received.replies or data == request  # the row that it told, the only one

    fuzz("row requests", door, make)
    asked = wire.decode(request).message
    assert isinstance(asked, BlameRequest)
    other = wire.sign(replace(asked, row=0), run.coordinator_identity).frame
    with contextlib.suppress(ProtocolError):  # it may have come before: nothing is told after that
        door(other)
    # Another row, truly signed, stopped it.
    assert run.parties[run.coordinator.seats[0]].state is PartyState.STOPPED


def test_statements_about_a_row() -> None:
    run, _, statements = asked_about_a_row()
    seat = run.coordinator.seats[0]

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutated(chance, statements[:1])
        return resigned(chance, statements[0], run.identities[seat])

    def door(data: bytes) -> None:
        run.coordinator.receive(data, peer=seat)

    fuzz("statements", door, make)
    for other, statement in zip(run.coordinator.seats[1:], statements[1:], strict=True):
        run.coordinator.receive(statement, peer=other)
    blame = run.coordinator.blame.name([7, 7, 7])
    # Whatever came: the honest are not named alone, and every pair has the liar in it.
    assert set(blame.parties) <= {seat}
    assert all(seat in pair for pair in blame.pairs)


# Files -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_transcripts() -> None:
    vectors = read_vectors("written_transcripts")
    # Of more verdicts than are needed one may go, and the transcript is as good.
    del vectors["good"]["masked, more verdicts than needed"]
    good = {text.encode() for text in vectors["good"].values()}
    corpus = [*sorted(good), *(item["text"].encode() for item in vectors["spoiled"].values())]
    written = [
        [json.loads(line) for line in text.splitlines()] for text in vectors["good"].values()
    ]

    def make(chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            return mutated(chance, corpus)
        rows = chance.choice(written)
        place = chance.randrange(len(rows))
        changed = json.loads(json.dumps(rows))
        changed[place] = _json_of(mutated_value(chance, changed[place]))
        return "".join(json.dumps(row, sort_keys=True) + "\n" for row in changed).encode()

    def door(data: bytes) -> None:
        verdict = verify_transcript(data.decode("utf-8", errors="replace"))
        assert verdict.is_good == (data in good)

    fuzz("transcripts", door, make)


def _json_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_json_of(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json_of(item) for key, item in value.items()}
    return value

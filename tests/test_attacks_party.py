"""A party that cheats, against a whole coordinator and whole peers, in every kind of run.

What must hold: it is named where that can be known, the batch is void and stays charged, nothing of
it comes out, and the next batch is whole; or its lie changes nothing that anybody can see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.errors import PartyFailedError, SetupError, VoidBatchError
from pate_fed.charges import noise_of
from pate_fed.mechanisms import keyed_stream
from protocols import wire
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.messages import KeyStatement, MaskedVector
from tests.support.attacked import (
    KINDS,
    MOST_BYTES,
    PARTIES,
    Kind,
    votes_cast,
)
from tests.support.federation import (
    CLASSES,
    TEACHERS,
    Federation,
    LyingNode,
    holds_vector,
    labels_of,
    voting,
    wrapped,
)
from tests.support.markers import sampled

CULPRIT = 1
Forge = Callable[[Federation, MaskedVector], list[bytes]]


def changed_y(answer: bytes, forge: Callable[[MaskedVector], list[bytes]]) -> bytes:
    """An answer with other frames in the place of its y."""
    frames: list[bytes] = []
    for frame in wire.unpack(answer, max_bytes=MOST_BYTES):
        message = wire.decode(frame).message
        frames += forge(message) if isinstance(message, MaskedVector) else [frame]
    return wire.pack(frames)


def signed(federation: Federation, message: Message, *, by: int = CULPRIT) -> bytes:
    return wire.sign(message, federation.identities[by]).frame


def with_body(change: Callable[[bytes], bytes]) -> Forge:
    def forge(federation: Federation, y: MaskedVector) -> list[bytes]:
        return [signed(federation, dataclasses.replace(y, body=change(y.body)))]

    return forge


def _narrow(body: bytes) -> bytes:
    """The words of another ring: half as wide."""
    return np.frombuffer(body, dtype="<u4").astype("<u2").tobytes()


def _wide(body: bytes) -> bytes:
    return np.frombuffer(body, dtype="<u4").astype("<u8").tobytes()


def two_bodies(federation: Federation, y: MaskedVector) -> list[bytes]:
    other = dataclasses.replace(y, body=bytes(len(y.body)))
    return [signed(federation, y), signed(federation, other)]


def by_a_peers_key(federation: Federation, y: MaskedVector) -> list[bytes]:
    return [signed(federation, y, by=0)]


def by_a_strangers_key(federation: Federation, y: MaskedVector) -> list[bytes]:
    return [wire.sign(y, SigningIdentity.generate()).frame]


def in_a_peers_name(federation: Federation, y: MaskedVector) -> list[bytes]:
    peer = federation.identities[0].fingerprint
    return [signed(federation, dataclasses.replace(y, sender=peer))]


def of_another_plan(federation: Federation, y: MaskedVector) -> list[bytes]:
    return [signed(federation, dataclasses.replace(y, plan_digest=bytes(32)))]


Y_ATTACKS = [
    pytest.param(with_body(lambda body: body[:-4]), "PF-224", id="a word too few"),
    pytest.param(with_body(lambda body: body + bytes(4)), "PF-224", id="a word too many"),
    pytest.param(with_body(lambda body: body[:-1]), "PF-224", id="a byte too few"),
    pytest.param(with_body(_narrow), "PF-224", id="words of a narrower ring"),
    pytest.param(with_body(_wide), "PF-224", id="words of a wider ring"),
    pytest.param(two_bodies, "PF-223", id="other bytes under one id"),
    pytest.param(by_a_peers_key, "PF-222", id="a peer's signature"),
    pytest.param(by_a_strangers_key, "PF-222", id="a stranger's signature"),
    pytest.param(in_a_peers_name, "PF-228", id="a peer's name"),
    pytest.param(of_another_plan, "PF-225", id="another plan"),
]
EACH_KIND = [pytest.param(kind, id=str(kind)) for kind in KINDS]


@sampled()
@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize(("forge", "code"), Y_ATTACKS)
def test_a_bad_y_is_named_and_opens_nothing_of_its_sender(
    kind: Kind, forge: Forge, code: str
) -> None:
    """Additive: the batch is void, and its sender named. Masked: it is done without, and named."""
    federation = kind.ready()
    seen: list[str] = []
    failed = federation.run._messenger._failed

    def naming(seat: bytes, error: Any) -> Any:
        failure = failed(seat, error)
        seen.append(f"{failure.party} {failure.cause}")
        return failure

    federation.run._messenger._failed = naming  # type: ignore[method-assign]

    def on_answer(node: int, answer: bytes) -> bytes:
        if node != CULPRIT or not holds_vector(answer):
            return answer
        return changed_y(answer, lambda y: forge(federation, y))

    federation.transport.on_answer = on_answer
    # Two bodies: the first was taken, and is in the sum; the second is a conflict.
    survives = kind.form == "masked"
    if survives:
        assert federation.ask(0, 1).labels.tolist() == labels_of(0, 1)
        lost = (federation.names[CULPRIT],)
        assert federation.run.lost[0] == lost
    else:
        with pytest.raises(VoidBatchError) as void:
            federation.ask(0, 1)
        # A wrong length under its sender's name counts as a refusal.
        is_refusal = code == "PF-224"
        comes_back = is_refusal and not federation.run.terms.rule.at_parties
        assert void.value.reservation == ("cancelled" if comes_back else "forfeited")
        assert void.value.may_ask_again is is_refusal
        assert federation.names[CULPRIT] in str(void.value)
        assert federation.store.releases() == {}
    assert seen == [f"{federation.names[CULPRIT]} {code}"]
    if code == "PF-224" and not survives:
        return  # its own node, which signed a right one, is told of the other, and stops
    federation.heal()
    assert federation.ask(3, 4).labels.tolist() == labels_of(3, 4)


@sampled()
@pytest.mark.parametrize("form", ["additive", "masked"])
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        pytest.param({"expires_at": 1_001}, "PF-225", id="a key that expires before the run"),
        pytest.param({"expires_at": 999}, "PF-225", id="a key that has expired"),
        pytest.param({"expires_at": 2**40 - 1}, "PF-225", id="a key for ever"),
        pytest.param({"offer_digest": bytes(32)}, "PF-225", id="a key of another run"),
        pytest.param({"role": "coordinator"}, "PF-225", id="a key for another role"),
        pytest.param({"sealing_key": bytes(range(32))}, "PF-235", id="a key of a weaker suite"),
    ],
)
def test_an_expired_or_foreign_key_is_refused_at_the_door(
    form: str, changed: dict[str, Any], code: str
) -> None:
    federation = Kind(form, "coordinator").federation()

    def on_answer(node: int, answer: bytes) -> bytes:
        if node != CULPRIT:
            return answer
        [frame] = wire.unpack(answer, max_bytes=MOST_BYTES)
        statement = wire.decode(frame).message
        assert isinstance(statement, KeyStatement)
        return wire.pack([signed(federation, dataclasses.replace(statement, **changed))])

    federation.transport.on_answer = on_answer
    with pytest.raises(SetupError, match=rf"node {CULPRIT}: .*\[{code}\]"):
        federation.run.set_up()
    assert votes_cast(federation) == [0] * PARTIES


@pytest.mark.parametrize("form", ["additive", "masked"])
def test_an_expired_key_that_the_coordinator_lets_through_is_refused_by_every_peer(
    form: str,
) -> None:
    """Coordinator and culprit collude: the record holds a key that has expired."""
    federation = Kind(form, "coordinator").federation()
    exchange = federation.run.round.exchange
    collected = exchange.collected

    def spoiled() -> list[Any]:
        statements = collected()
        for place, one in enumerate(statements):
            if isinstance(one.message, KeyStatement) and place == 2:
                who = next(
                    i for i in federation.identities if i.public.key == one.message.identity_key
                )
                statements[place] = wire.sign(dataclasses.replace(one.message, expires_at=999), who)
        return statements

    exchange.collected = spoiled  # type: ignore[method-assign]
    with pytest.raises(PartyFailedError):
        federation.run.set_up()
    assert not any(node._round._setup._halves for node in federation.nodes)
    assert {node._round.run_id for node in federation.nodes} == {b""}


# Rows ---------------------------------------------------------------------------------------------


def let_lie(federation: Federation, lie: NDArray[np.int64] | None) -> None:
    """From here on the culprit adds something to its vectors."""
    culprit = federation.nodes[CULPRIT]
    culprit.__class__ = LyingNode
    culprit.lie = lie  # type: ignore[attr-defined]


def bound_of(federation: Federation) -> int:
    if not federation.run.terms.rule.at_parties:
        return 0
    noise = noise_of(federation.run.terms)
    return noise.row_sum_bound(2, CLASSES, senders=PARTIES)


@sampled()
@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("sign", [1, -1])
def test_rows_far_from_their_sum_void_the_batch(kind: Kind, sign: int) -> None:
    """One vote where the coordinator adds the noise; far too large noise where parties do.

    Who sent them is named in the first case; in the second nobody can tell.
    """
    federation = kind.ready()
    off = sign * max(1, 2 * bound_of(federation))
    let_lie(federation, np.array([[0, 0, 0], [0, 0, off]]))
    with pytest.raises(VoidBatchError) as void:
        federation.ask(0, 1)
    assert void.value.reservation == "forfeited"
    liar = federation.names[CULPRIT]
    named = {name for name in federation.names if name in str(void.value)}
    assert named == (set() if federation.run.terms.rule.at_parties else {liar})
    let_lie(federation, None)
    assert federation.ask(3, 4).labels.tolist() == labels_of(3, 4)
    for place in range(PARTIES):
        assert federation.party_states(place)[0] == "forfeited"


HONEST = [[TEACHERS, 0, 0], [TEACHERS - 1, 1, 0], [0, 0, TEACHERS]]


def let_vote_and_lie(
    kind: Kind, row: list[int], lie: NDArray[np.int64], *, seed: int = 0
) -> tuple[Any, ...]:
    """All that anybody can see of a batch but its labels, under noise that is fixed."""
    noises = {p: keyed_stream(bytes([p, seed] * 16), tag="noise of liars") for p in range(PARTIES)}
    federation = kind.ready(votes={0: voting(row)}, noises=noises)
    let_lie(federation, lie)
    try:
        answered: object = federation.ask(0, 1).answered
        federation.run.close()
    except VoidBatchError as void:
        answered = str(void)
    return (
        answered,
        tuple(len(packet) for packet in federation.transport.packets),
        tuple(federation.events),
        tuple(tuple(steps) for steps in federation.steps),
        tuple(entry.charged for entry in federation.charges),
        tuple(tuple(federation.party_states(p)) for p in range(PARTIES)),
        federation.run.is_over,
    )


SURE = 2**20
"""So many votes more that a row passes its check whatever honest hospitals voted: whether it passes
is an outcome that is charged for; all else must tell nothing."""
SIZES = [0, TEACHERS, 2**31 - 5 * TEACHERS, 2**31 - SURE - 1, 2**31 - 1]


@pytest.mark.slow
@sampled("size")
@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.parametrize("size", SIZES)
def test_a_lie_that_keeps_row_sums_shows_nothing_of_honest_votes(kind: Kind, size: int) -> None:
    """R11, R12: void or not, sizes, exchanges, charges are the same whatever a peer voted."""
    lie = wrapped(np.array([[SURE, size, -SURE - size], [size, SURE, -SURE - size]]))
    seen = {let_vote_and_lie(kind, row, lie) for row in HONEST}
    assert len(seen) == 1
    assert next(iter(seen))[0] == 2


AT_PARTIES = [each for each in EACH_KIND if each.values[0].place == "parties"]


@pytest.mark.slow
@sampled("kind")
@pytest.mark.parametrize("kind", AT_PARTIES)
def test_whether_a_lie_at_the_bound_voids_the_batch_follows_from_noise_alone(kind: Kind) -> None:
    """A row that is off by just the bound is void for about half of all noise: never by a vote."""
    bound = bound_of(kind.federation())
    lie = np.array([[SURE + bound, 0, -SURE], [0, SURE, -SURE]])
    verdicts = set()
    for seed in range(12):
        if len(verdicts) == 2:
            break
        seen = {let_vote_and_lie(kind, row, lie, seed=seed) for row in HONEST}
        assert len(seen) == 1
        verdicts.add(next(iter(seen))[0] == 2)
    assert verdicts == {True, False}  # the lie is one that decides something

"""No name, text or error shows a vote or a key."""

from __future__ import annotations

import logging
import traceback

import numpy as np
import pytest

from protocols import wire
from protocols.dealing import Dealt
from protocols.errors import ProtocolError
from protocols.masked import MaskedSum
from protocols.messages import Dealing, MaskedVector
from protocols.rounds import PartyRound, PartyState, Received
from protocols.rounds.opening.at_party import ShareHolder
from protocols.suites import SUITE_X25519
from tests.support.marker import forms_of_words
from tests.support.walk import WORDS, Walk

MARKER = 1_234_567_891
MARKED = np.full(WORDS, MARKER, dtype=np.int64)
NEEDLES = (str(MARKER), f"{MARKER:x}", np.array([MARKER], dtype="<u4").tobytes().hex())


def shown(value: object) -> str:
    return f"{value!r} {value!s} {value:}"


def assert_hidden(text: str, secrets: list[bytes]) -> None:
    for needle in NEEDLES:
        assert needle not in text
    for secret in secrets:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


def holder_of(party: PartyRound) -> ShareHolder | None:
    return None if party.batch.open is None else party.batch.open.holder


def shares_of(party: PartyRound) -> list[bytes]:
    holder = holder_of(party)
    column = b"" if holder is None else holder._column
    return [column[at : at + 34] for at in range(0, len(column), 34)]


def secrets_of(party: PartyRound) -> list[bytes]:
    setup = party._setup
    keys = [
        *setup._halves.values(),
        *setup._unconfirmed.values(),
        *party.roots._roots.values(),
    ]
    keys += shares_of(party)
    if setup._sealing_key is not None and setup._sealing_key.suite == SUITE_X25519:
        keys.append(setup._sealing_key._private_key.private_bytes_raw())
    keys.append(party.identity.private_key.private_bytes_raw())
    return keys


@pytest.mark.parametrize(
    "state",
    [
        PartyState.STATED,
        PartyState.SEALED,
        PartyState.CONFIRMED,
        PartyState.READY,
        PartyState.SENT,
    ],
    ids=lambda state: state.value,
)
def test_a_party_and_its_parts_show_no_key(state: PartyState) -> None:
    # Of the hybrid suite's private key the library gives no bytes to look for.
    walk = Walk(suite=SUITE_X25519).to(state)
    party = walk.run.parties[walk.me]
    secrets = secrets_of(party)
    parts = (
        party,
        party._setup,
        party._setup._sealing_key,
        party.roots,
        party.batch.open,
        party.identity,
        walk.run.coordinator,
    )
    for part in parts:
        assert_hidden(shown(part), secrets)


@pytest.mark.parametrize(
    "state",
    [PartyState.SENT, PartyState.JUDGED, PartyState.CERTIFIED, PartyState.REVEALED],
    ids=lambda s: s.value,
)
def test_a_party_of_a_masked_run_shows_no_share(state: PartyState) -> None:
    walk = Walk(form=MaskedSum).to(state)
    party = walk.run.parties[walk.me]
    secrets = secrets_of(party)
    assert bool(shares_of(party)) == (state is not PartyState.REVEALED)
    coordinator = walk.run.coordinator
    holder, tally = holder_of(party), coordinator.batch.total
    assert tally is not None
    parts = (
        party,
        party.batch.open,
        holder,
        None if holder is None else Dealt(wire.expect(holder.dealing, Dealing), (holder._column,)),
        party.roots,
        coordinator,
        tally,
        tally.shares,
        tally.verdicts,
    )
    for part in parts:
        assert_hidden(shown(part), secrets)


def test_what_carries_y_does_not_show_it() -> None:
    walk = Walk().to(PartyState.REVIEWING_PLAN)
    party = walk.run.parties[walk.me]
    (frame,) = party.contribute(MARKED)
    signed = wire.decode(frame)
    body = wire.expect(signed, MaskedVector).body
    again = party.receive(walk.run.coordinator.open_plan.frame, now=0)
    for value in (signed, signed.message, Received((frame,)), again):
        assert_hidden(shown(value), [body, body[:16]])
    assert shown(signed.message).startswith(f"MaskedVector({4 * WORDS} bytes)")


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(MARKED[:-1], id="too short"),
        pytest.param(MARKED * 2, id="outside the ring"),
        pytest.param(MARKED.astype(np.float64), id="floats"),
        pytest.param(MARKED.reshape(2, -1), id="two axes"),
    ],
)
def test_an_error_about_a_vector_shows_none_of_it(vector: np.ndarray) -> None:
    party = (walk := Walk().to(PartyState.REVIEWING_PLAN)).run.parties[walk.me]
    with pytest.raises(ProtocolError) as caught:
        party.contribute(vector)
    text = "".join(traceback.format_exception(caught.value))
    assert_hidden(text + repr(caught.value.args) + repr(vars(caught.value)), secrets_of(party))
    assert str(MARKER * 2) not in text


def test_no_message_of_a_run_holds_the_vector_and_nothing_is_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    walk, seen = Walk(4), bytearray()

    def listen(stage: str, to: bytes | None, frame: bytes) -> bytes:
        seen.extend(frame)
        return frame

    walk.run.tamper = listen
    walk.to(PartyState.REVIEWING_PLAN)
    for party in walk.run.parties.values():
        frames = party.contribute(MARKED)
        seen.extend(b"".join(frames))
    assert not any(form in seen for form in forms_of_words(MARKER))
    assert str(MARKER).encode() not in seen
    secrets = [secret for party in walk.run.parties.values() for secret in secrets_of(party)]
    assert not any(secret in seen for secret in secrets)
    assert not caplog.records
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")

"""A hospital at the coordinator's door: what a lying coordinator may answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from party.errors import JoinError
from party.site.joining import CoordinatorDoor
from party.site.site import Site
from pate_fed import __version__
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.membership_messages import Membership, MembershipQuery
from tests.support.hospital_site import invitation_of, membership_of

NOW = datetime(2026, 11, 21, tzinfo=UTC)
PEER = SigningIdentity.generate().public


class Meeting:
    """A hospital, and a coordinator that says what it likes."""

    def __init__(self, folder: Path) -> None:
        self.coordinator = SigningIdentity.generate()
        self.site = Site.create(folder / "site", invitation_of(self.coordinator.public))
        self.answer = membership_of(
            self.site.identity.fingerprint, {"South": PEER}, answered_at=int(NOW.timestamp())
        )

    def door(self, status: int, content: bytes = b"") -> CoordinatorDoor:
        transport = httpx.MockTransport(lambda _: httpx.Response(status, content=content))
        return CoordinatorDoor(self.site.membership(), clock=NOW.timestamp, transport=transport)

    def ask(self, content: bytes) -> Membership:
        door = self.door(200, content)
        try:
            return door.membership()
        finally:
            door.close()


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    return Meeting(tmp_path)


def test_a_good_answer_is_taken(meeting: Meeting) -> None:
    assert meeting.ask(wire.sign(meeting.answer, meeting.coordinator).frame) == meeting.answer


def test_the_question_says_the_version_of_this_software(meeting: Meeting) -> None:
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        return httpx.Response(200, content=wire.sign(meeting.answer, meeting.coordinator).frame)

    transport = httpx.MockTransport(answer)
    with closing(
        CoordinatorDoor(meeting.site.membership(), clock=NOW.timestamp, transport=transport)
    ) as door:
        door.membership()
    query = wire.expect(wire.decode(asked[0]), MembershipQuery)
    assert query.version == __version__


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda a: replace(a, peer_names=()), id="a key without a name"),
        pytest.param(lambda a: replace(a, peer_keys=()), id="a name without a key"),
        pytest.param(
            lambda a: replace(a, peer_names=("South", "South"), peer_keys=(PEER.key, bytes(32))),
            id="two keys for one name",
        ),
        pytest.param(
            lambda a: replace(a, peer_names=("South", "West"), peer_keys=(PEER.key, PEER.key)),
            id="two names for one key",
        ),
        pytest.param(lambda a: replace(a, party=bytes(32)), id="for another hospital"),
        pytest.param(lambda a: replace(a, state="king"), id="a state that is none"),
    ],
)
def test_a_lie_is_a_coded_error(meeting: Meeting, lie: Callable[[Membership], Membership]) -> None:
    with pytest.raises(JoinError):
        meeting.ask(wire.sign(lie(meeting.answer), meeting.coordinator).frame)


@pytest.mark.parametrize("state", ["requested", "member", "suspended", "revoked"])
def test_every_state_of_a_membership_is_heard(meeting: Meeting, state: str) -> None:
    frame = wire.sign(replace(meeting.answer, state=state), meeting.coordinator).frame
    assert meeting.ask(frame).state == state


def test_another_signature_is_refused(meeting: Meeting) -> None:
    with pytest.raises(JoinError):
        meeting.ask(wire.sign(meeting.answer, SigningIdentity.generate()).frame)


@pytest.mark.parametrize(
    "content", [b"", b"no frame", bytes(200_000)], ids=["none", "text", "long"]
)
def test_what_is_no_answer_is_a_coded_error(meeting: Meeting, content: bytes) -> None:
    with pytest.raises(JoinError):
        meeting.ask(content)


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        pytest.param(lambda door: door.join(bytes(16)), "invitation", id="join"),
        pytest.param(lambda door: door.membership(), "time", id="membership"),
        pytest.param(lambda door: door.fetch_pool(bytes(32)), "time", id="pool"),
    ],
)
def test_who_is_turned_away_hears_what_to_look_at(
    meeting: Meeting, ask: Callable[[CoordinatorDoor], object], named: str
) -> None:
    with closing(meeting.door(403)) as door, pytest.raises(JoinError, match=named) as caught:
        ask(door)
    assert "403" in str(caught.value)


def test_a_hospital_that_asks_too_often_is_told_to_wait(meeting: Meeting) -> None:
    with (
        closing(meeting.door(429)) as door,
        pytest.raises(JoinError, match="minute"),
    ):
        door.membership()

"""Enrollment: one request per invitation, approval by the words, and one answer to all else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import CapacityLimiter
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.database import Database, FederationAct, FederationAuditLog
from coordinator.errors import DatabaseError, EnrollmentError, SuperLinkError
from coordinator.federation import enrollment_app
from coordinator.federation.enrollment import Enrollment, NodeAtLink
from coordinator.federation.enrollment_app import MAX_BODY_BYTES, PREFIX, build
from coordinator.federation.home import FederationHome, FederationSettings
from coordinator.federation.rate_limit import RateLimit
from coordinator.federation.run_files import RunFiles
from coordinator.tally.tally_folder import TallyFolder, TallySettings
from pate_fed.votes import MAX_TOTAL_VOTES
from protocols import wire
from protocols.errors import (
    BadSignatureError,
    InvitationError,
    MalformedMessageError,
    ProtocolError,
)
from protocols.fingerprint_words import spoken
from protocols.identity import SigningIdentity
from protocols.invitation import CLOCK_SKEW_S, Invitation
from protocols.membership_messages import (
    MOST_VOTES,
    AuditHead,
    JoinRequest,
    Membership,
    MembershipQuery,
    NamedTally,
    PoolQuery,
)
from tests.support.door import Door


def broken(*_: object, **__: object) -> int:
    raise SuperLinkError("the SuperLink must answer", "nothing")


class SlowDoor:
    """A SuperLink at which somebody else is always faster."""

    def __init__(self, door: Door, overtake: Callable[[], None]) -> None:
        self._door, self._overtake = door, overtake
        self.came_late: list[str] = []

    def nodes(self) -> list[NodeAtLink]:
        return self._door.nodes()

    def register(self, public_key: bytes, *, name: str) -> int:
        self._overtake()
        if public_key in self._door.keys.values():
            self.came_late.append("register")
            raise SuperLinkError("the SuperLink must answer", "a key that is in use")
        return self._door.register(public_key, name=name)

    def unregister(self, node_id: int) -> None:
        self._overtake()
        if node_id not in self._door.keys:
            self.came_late.append("unregister")
            raise SuperLinkError("the SuperLink must answer", "no such node")
        self._door.unregister(node_id)


class Client:
    """Speaks to an app without a socket."""

    def __init__(self, app: Any) -> None:
        self._transport = httpx.ASGITransport(app)

    def post(self, path: str, *, content: bytes) -> httpx.Response:
        return self._send("POST", path, content)

    def get(self, path: str) -> httpx.Response:
        return self._send("GET", path, b"")

    def _send(self, method: str, path: str, content: bytes) -> httpx.Response:
        async def send() -> httpx.Response:
            base = "https://coordinator.example.org"
            async with httpx.AsyncClient(transport=self._transport, base_url=base) as client:
                return await client.request(method, path, content=content)

        return asyncio.run(send())


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **amount: float) -> None:
        self.now += timedelta(**amount)


def node_key() -> bytes:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_on_an_unknown_curve() -> bytes:
    """Written as one on P-384, but for the curve's number."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    text = base64.encodebytes(der.replace(bytes.fromhex("2b81040022"), bytes.fromhex("2b8104007f")))
    return b"-----BEGIN PUBLIC KEY-----\n" + text + b"-----END PUBLIC KEY-----\n"


@dataclass
class Hospital:
    """What a hospital has at home."""

    name: str = "North"
    identity: SigningIdentity = field(default_factory=SigningIdentity.generate)
    node_key: bytes = field(default_factory=node_key)

    def request(self, invitation: Invitation, clock: Clock, **changes: object) -> bytes:
        fields: dict[str, object] = {
            "coordinator": invitation.coordinator.fingerprint,
            "token": invitation.token,
            "party_name": self.name,
            "identity_key": self.identity.public.key,
            "node_key": self.node_key,
            "asked_at": int(clock().timestamp()),
        }
        return wire.sign(JoinRequest(**{**fields, **changes}), self.identity).frame  # type: ignore[arg-type]


@dataclass
class Federation:
    home: FederationHome
    enrollment: Enrollment
    clock: Clock
    door: Door = field(default_factory=Door)

    def read(self, frame: bytes) -> Membership:
        signed = wire.decode(frame)
        signed.verify(self.home.identity.public)
        return wire.expect(signed, Membership)

    def member(self, name: str = "North") -> Hospital:
        hospital = self.joined(name)
        self.approve(hospital)
        return hospital

    def join(self, hospital: Hospital, invitation: Invitation, **changes: object) -> Membership:
        request = hospital.request(invitation, self.clock, **changes)
        return self.read(self.enrollment.answer_join(request))

    def approve(self, hospital: Hospital) -> None:
        """As at the command line, where a SuperLink runs."""
        self.enrollment.approve(hospital.name, words=spoken(hospital.identity.fingerprint))
        self.enrollment.settle(self.door)

    def revoke(self, name: str) -> None:
        """As at the command line, where a SuperLink runs."""
        self.enrollment.revoke(name)
        self.enrollment.settle(self.door)

    def joined(self, name: str) -> Hospital:
        hospital = Hospital(name)
        self.join(hospital, self.enrollment.invite(name))
        return hospital

    def query(
        self,
        hospital: Hospital,
        audit_head: bytes = b"",
        *,
        found: bytes = b"",
        version: str = "",
        votes: int = 0,
        named: tuple[tuple[str, ...], tuple[int, ...]] = ((), ()),
        signed_by: SigningIdentity | None = None,
    ) -> bytes:
        query = MembershipQuery(
            self.home.identity.fingerprint,
            hospital.identity.fingerprint,
            int(self.clock().timestamp()),
            audit_head,
            hashlib.sha256(found).digest() if found else b"",
            version,
            votes,
            *named,
        )
        return wire.sign(query, signed_by or hospital.identity).frame

    def state(self, hospital: Hospital, votes: int) -> bytes:
        """Let a hospital say how many votes it has; return its query."""
        self.clock.pass_by(seconds=60)
        frame = self.query(hospital, votes=votes)
        self.enrollment.answer_membership(frame)
        return frame

    def votes(self) -> dict[str, int]:
        return {one.name: one.votes for one in self.enrollment.parties()}

    def told(self) -> list[tuple[object, ...]]:
        """The entries of the audit log about votes: who, before, after."""
        log = FederationAuditLog(self.enrollment._database)
        log.verify()
        return [
            (one["by"], one["subject"], one["before"]["votes"], one["after"]["votes"])
            for one in log.tables()
            if one["act"] == FederationAct.VOTES_CHANGED
        ]

    def ask(self, hospital: Hospital, audit_head: bytes = b"", *, found: bytes = b"") -> Membership:
        frame = self.query(hospital, audit_head, found=found)
        return self.read(self.enrollment.answer_membership(frame))


def client_of(federation: Federation, *, per_minute: int = 600) -> Client:
    rate = RateLimit(per_minute, clock=lambda: 0.0)  # all comes at once
    home, database = federation.home, federation.enrollment._database
    files = RunFiles(home, database)
    return Client(build(federation.enrollment, pools=home.path("pools"), results=files, rate=rate))


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    clock = Clock()
    settings = FederationSettings("lung study", "coordinator.example.org:8443")
    home = FederationHome.create(tmp_path / "fed", settings, now=clock())
    database = Database(home.database_url)
    enrollment = Enrollment(home, database, random_bytes=secrets.token_bytes, clock=clock)
    yield Federation(home, enrollment, clock)
    database.close()


class TestJoining:
    def test_a_hospital_is_a_member_after_its_words_were_compared(
        self, federation: Federation
    ) -> None:
        hospital = Hospital()
        invitation = federation.enrollment.invite("North")
        answer = federation.join(hospital, invitation)
        assert (answer.state, answer.peer_names) == ("requested", ())
        assert not federation.door.keys  # an invitation opens a request, not membership
        federation.approve(hospital)
        assert list(federation.door.keys.values()) == [hospital.node_key]
        assert federation.ask(hospital).state == "member"

    def test_a_hospital_hears_of_the_tally_that_was_accepted(
        self, federation: Federation, tmp_path: Path
    ) -> None:
        hospital, home = Hospital(), federation.home
        before = federation.enrollment.invite("North")
        assert (before.tally, federation.join(hospital, before).tally) == (None, None)
        settings = TallySettings("tally.example.org:8448", name="Notary")
        invite, now = home.invite_tally(now=federation.clock()), federation.clock()
        made = TallyFolder.create(tmp_path / "tally", settings, invite, now=now)
        home.accept_tally(made.card)
        named = NamedTally("Notary", made.identity.public)
        federation.approve(hospital)
        assert federation.ask(hospital).tally == named
        assert federation.enrollment.invite("South").tally == named

    def test_a_request_that_is_repeated_gets_the_same_answer(self, federation: Federation) -> None:
        hospital = Hospital()
        invitation = federation.enrollment.invite("North")
        request = hospital.request(invitation, federation.clock)
        first = federation.enrollment.answer_join(request)
        assert federation.enrollment.answer_join(request) == first
        assert len(federation.enrollment.parties()) == 1

    def test_members_hear_of_one_another(self, federation: Federation) -> None:
        north, south = federation.member("North"), federation.member("South")
        heard = federation.ask(north)
        assert heard.peer_names == ("South",)
        assert heard.peer_keys == (south.identity.public.key,)

    def test_an_invitation_survives_its_file(self, federation: Federation) -> None:
        invitation = federation.enrollment.invite("North")
        read = Invitation.from_json(invitation.to_json())
        assert read == invitation
        assert read.fingerprint == federation.home.fingerprint

    def test_neither_token_nor_file_is_shown(self, federation: Federation) -> None:
        invitation = federation.enrollment.invite("North")
        hospital = Hospital()
        request = wire.decode(hospital.request(invitation, federation.clock)).message
        for shown in (repr(invitation), str(invitation), repr(request)):
            assert invitation.token.hex() not in shown
            assert repr(invitation.token) not in shown
        stored = federation.home.path("coordinator.db").read_bytes()
        stored += federation.home.path("coordinator.db-wal").read_bytes()
        assert invitation.token not in stored
        assert invitation.token.hex().encode() not in stored


class TestWhoIsNotLetIn:
    def test_an_invitation_is_good_once(self, federation: Federation) -> None:
        invitation = federation.enrollment.invite("North")
        federation.join(Hospital(), invitation)
        with pytest.raises(EnrollmentError):
            federation.join(Hospital(), invitation)

    def test_an_invitation_expires(self, federation: Federation) -> None:
        invitation = federation.enrollment.invite("North")
        federation.clock.pass_by(days=7)
        with pytest.raises(EnrollmentError):
            federation.join(Hospital(), invitation)

    def test_one_that_was_withdrawn_opens_no_request(self, federation: Federation) -> None:
        invitation = federation.enrollment.invite("North")
        assert federation.enrollment.revoke("North") is None
        with pytest.raises(EnrollmentError):
            federation.join(Hospital(), invitation)

    def test_another_invitation_takes_the_place_of_the_first(self, federation: Federation) -> None:
        first = federation.enrollment.invite("North")
        federation.enrollment.invite("North")
        with pytest.raises(EnrollmentError):
            federation.join(Hospital(), first)

    def test_all_who_are_refused_hear_the_same(self, federation: Federation) -> None:
        used = federation.enrollment.invite("Used")
        federation.join(Hospital("Used"), used)
        fresh = federation.enrollment.invite("North")
        key = rsa.generate_private_key(65537, 2048).public_key()
        rsa_key = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        late = int(federation.clock().timestamp()) - CLOCK_SKEW_S - 1
        hospital = Hospital()
        refused = [
            hospital.request(fresh, federation.clock, token=bytes(16)),
            Hospital("Used").request(used, federation.clock),
            hospital.request(fresh, federation.clock, party_name="South"),
            hospital.request(fresh, federation.clock, coordinator=bytes(32)),
            hospital.request(fresh, federation.clock, node_key=rsa_key),
            hospital.request(fresh, federation.clock, node_key=b"no key"),
            hospital.request(fresh, federation.clock, node_key=key_on_an_unknown_curve()),
            hospital.request(fresh, federation.clock, asked_at=late),
        ]
        texts = set()
        for request in refused:
            with pytest.raises(EnrollmentError) as caught:
                federation.enrollment.answer_join(request)
            texts.add(str(caught.value))
        assert len(texts) == 1
        federation.join(hospital, fresh)

    def test_a_request_is_signed_by_the_identity_that_it_names(
        self, federation: Federation
    ) -> None:
        invitation = federation.enrollment.invite("North")
        thief, victim = Hospital(), Hospital()
        with pytest.raises(BadSignatureError):
            federation.join(thief, invitation, identity_key=victim.identity.public.key)

    @pytest.mark.parametrize("written", ["alike", "otherwise"])
    def test_nobody_can_name_the_node_of_another_hospital(
        self, federation: Federation, written: str
    ) -> None:
        """Else both would be let in as one node, and revoking one would put the other out."""
        victim = federation.member()
        stolen = victim.node_key if written == "alike" else victim.node_key + b"\n"
        thief = Hospital("South", node_key=stolen)
        with pytest.raises(EnrollmentError):
            federation.join(thief, federation.enrollment.invite("South"))
        assert list(federation.door.keys.values()) == [victim.node_key]
        assert federation.ask(victim).state == "member"

    def test_a_member_is_approved_once(self, federation: Federation) -> None:
        hospital = federation.member()
        words = spoken(hospital.identity.fingerprint)
        with pytest.raises(EnrollmentError, match="member"):
            federation.enrollment.approve("North", words=words)
        federation.revoke("North")
        with pytest.raises(EnrollmentError, match="revoked"):
            federation.enrollment.approve("North", words=words)

    def test_the_operator_sees_when_a_hospital_asked_and_by_how_much_its_clock_is_wrong(
        self, federation: Federation
    ) -> None:
        hospital = federation.member()
        [before] = federation.enrollment.parties()
        assert (before.seen_at, before.clock_skew_s) == (None, None)
        frame = federation.query(hospital)
        federation.clock.pass_by(seconds=20)  # the hospital's clock is behind
        federation.enrollment.answer_membership(frame)
        [after] = federation.enrollment.parties()
        assert (after.seen_at, after.clock_skew_s) == (federation.clock(), -20)

    def test_the_operator_sees_the_version_that_a_hospital_signed(
        self, federation: Federation
    ) -> None:
        hospital = federation.joined("North")

        def shown() -> str:
            return federation.enrollment.parties()[0].version

        assert shown() == ""
        frame = federation.query(hospital, version="9.8.7")
        federation.enrollment.answer_membership(frame)
        assert shown() == "9.8.7"
        forged = frame.replace(b"9.8.7", b"9.9.9")
        with pytest.raises(BadSignatureError):
            federation.enrollment.answer_membership(forged)
        assert shown() == "9.8.7"
        for bad in ("1" * 33, "1\n2", "\u0661"):
            with pytest.raises(MalformedMessageError):
                federation.query(hospital, version=bad)
        federation.ask(hospital)  # it tells none
        assert shown() == ""

    def test_other_words_on_the_telephone_stop_an_approval(self, federation: Federation) -> None:
        invitation = federation.enrollment.invite("North")
        thief, hospital = Hospital(), Hospital()
        federation.join(thief, invitation)
        with pytest.raises(EnrollmentError):
            federation.approve(hospital)
        assert not federation.door.keys

    def test_a_revoked_hospital_is_out_even_if_the_superlink_is_down(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hospital = federation.member()
        monkeypatch.setattr(federation.door, "unregister", broken)
        with pytest.raises(SuperLinkError):
            federation.revoke("North")
        assert federation.ask(hospital).state == "revoked"
        assert not federation.enrollment.is_settled()

    def test_a_revoked_identity_never_comes_back(self, federation: Federation) -> None:
        hospital = federation.member()
        federation.revoke("North")
        assert not federation.door.keys
        again = federation.enrollment.invite("North")
        with pytest.raises(EnrollmentError):
            federation.join(hospital, again)
        # The hospital with a new identity is a new party.
        federation.join(Hospital(), again)

    def test_a_suspended_hospital_hears_so_and_keeps_its_node(self, federation: Federation) -> None:
        hospital, other = federation.member("North"), federation.member("South")
        inside, enrollment = dict(federation.door.keys), federation.enrollment
        enrollment.suspend("North")
        enrollment.settle(federation.door)
        heard = federation.ask(hospital)
        assert (heard.state, heard.peer_names, heard.open_runs) == ("suspended", (), ())
        assert federation.ask(other).peer_names == ("North",)  # it will be back
        enrollment.reinstate("North")
        enrollment.settle(federation.door)
        assert federation.ask(hospital).state == "member"
        assert federation.door.keys == inside  # Flower would not take the key twice
        assert enrollment.is_settled()

    def test_a_stranger_hears_nothing_of_members(self, federation: Federation) -> None:
        federation.member()
        with pytest.raises(EnrollmentError):
            federation.ask(Hospital("Stranger"))

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param("", id="empty"),
            pytest.param("a" * 65, id="long"),
            pytest.param("../fed", id="a path"),
            pytest.param("North\n", id="a line break"),
            pytest.param("N\u043erth", id="letters that look alike"),
            pytest.param("North\u200b", id="one that is not seen"),
            pytest.param("North\u202e1", id="another direction"),
            pytest.param(" North", id="a space before"),
        ],
    )
    def test_a_name_must_be_readable(self, federation: Federation, name: str) -> None:
        with pytest.raises(EnrollmentError):
            federation.enrollment.invite(name)

    @pytest.mark.parametrize("name", ["Hôpital Saint-Louis", "Charité", "L'Hospital 12", "東京"])
    def test_a_hospital_has_the_name_that_it_has(self, federation: Federation, name: str) -> None:
        hospital = federation.member(name)
        assert federation.ask(hospital).state == "member"
        other = federation.member("South")
        assert federation.ask(other).peer_names == (name,)

    def test_a_name_is_one_however_it_was_typed(self, federation: Federation) -> None:
        composed, typed = "Charit\u00e9", "Charite\u0301"
        invitation = federation.enrollment.invite(typed)
        assert invitation.party == composed
        hospital = Hospital(composed)
        federation.join(hospital, invitation)
        federation.enrollment.approve(typed, words=spoken(hospital.identity.fingerprint))
        assert federation.enrollment.revoke(typed).name == composed

    @pytest.mark.parametrize("name", ["EAST Ward", "East  Ward", "east ward"])
    def test_a_name_like_anothers_is_refused(self, federation: Federation, name: str) -> None:
        federation.enrollment.invite("East Ward")
        with pytest.raises(EnrollmentError, match="East Ward"):
            federation.enrollment.invite(name)
        federation.member("East Ward")
        with pytest.raises(EnrollmentError, match="East Ward"):
            federation.enrollment.invite(name)
        federation.enrollment.revoke("East Ward")
        assert federation.enrollment.invite(name).party == name


class TestSpoiledInvitations:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param('"schema_version": 1', '"schema_version": 2', id="version"),
            pytest.param('"token": "', '"token": "zz', id="token"),
            pytest.param("BEGIN CERTIFICATE", "BEGIN NOTHING", id="certificate"),
            pytest.param('"expires_at": ', '"expires_at": "soon", "x": ', id="expiry"),
            pytest.param('"ca_fingerprint": "', '"ca_fingerprint": "00', id="fingerprint"),
            pytest.param("{", "[", id="no object"),
        ],
    )
    def test_a_changed_file_is_refused(self, federation: Federation, old: str, new: str) -> None:
        text = federation.enrollment.invite("North").to_json()
        assert old in text
        with pytest.raises((InvitationError, ProtocolError)):
            Invitation.from_json(text.replace(old, new, 1))

    def test_another_coordinators_key_changes_the_words(self, federation: Federation) -> None:
        invitation = federation.enrollment.invite("North")
        other = SigningIdentity.generate().public.key
        changed = invitation.to_json().replace(invitation.coordinator_key.hex(), other.hex())
        assert Invitation.from_json(changed).fingerprint != federation.home.fingerprint


class TestOverThePublicPort:
    @pytest.fixture
    def client(self, federation: Federation) -> Client:
        return client_of(federation)

    def test_a_hospital_joins(self, federation: Federation, client: Client) -> None:
        invitation = federation.enrollment.invite("North")
        answer = client.post(
            PREFIX + "join", content=Hospital().request(invitation, federation.clock)
        )
        assert answer.status_code == 200
        assert federation.read(answer.content).state == "requested"

    def test_members_alone_get_pools(self, federation: Federation, client: Client) -> None:
        member, stranger = federation.member(), Hospital("Stranger")
        pool = secrets.token_bytes(32)
        federation.home.path("pools", pool.hex()).write_bytes(b"public queries")
        now = int(federation.clock().timestamp())

        def ask(hospital: Hospital, digest: bytes, offset: int) -> tuple[int, bytes]:
            query = PoolQuery(
                federation.home.identity.fingerprint,
                hospital.identity.fingerprint,
                digest,
                offset,
                now,
            )
            content = wire.sign(query, hospital.identity).frame
            answer = client.post(PREFIX + "pool", content=content)
            return answer.status_code, answer.content

        assert ask(member, pool, 0) == (200, b"public queries")
        assert ask(member, pool, 7) == (200, b"queries")
        assert ask(member, pool, 99) == (200, b"")
        assert ask(member, bytes(32), 0) == (403, b"")
        assert ask(stranger, pool, 0) == (403, b"")
        federation.enrollment.suspend(member.name)
        assert ask(member, pool, 0) == (403, b"")
        federation.enrollment.reinstate(member.name)
        assert ask(member, pool, 0) == (200, b"public queries")
        federation.revoke(member.name)
        assert ask(member, pool, 0) == (403, b"")

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"\x84\x01\x16", id="cut"),
            pytest.param(bytes(MAX_BODY_BYTES + 1), id="too long"),
        ],
    )
    @pytest.mark.parametrize("path", ["join", "membership", "pool", "results"])
    def test_whatever_is_wrong_has_one_answer(self, client: Client, path: str, body: bytes) -> None:
        answer = client.post(PREFIX + path, content=body)
        assert (answer.status_code, answer.content) == (403, b"")

    def test_who_asks_too_often_is_told_so_and_nothing_is_looked_up_for_it(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = federation.query(federation.joined("North"))
        looked: list[bytes] = []
        answer = federation.enrollment.answer_membership
        monkeypatch.setattr(
            federation.enrollment,
            "answer_membership",
            lambda frame: (looked.append(frame), answer(frame))[1],
        )
        client = client_of(federation, per_minute=3)
        statuses = [client.post(PREFIX + "membership", content=asked).status_code for _ in range(9)]
        assert statuses == [200] * 3 + [429] * 6
        assert len(looked) == 3
        turned_away = client.post(PREFIX + "join", content=b"")
        assert (turned_away.status_code, turned_away.content) == (429, b"")
        assert int(turned_away.headers["retry-after"]) <= 60

    def test_who_would_queue_behind_many_is_told_to_come_back(
        self, federation: Federation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enrollment_app, "_MOST_QUEUED", 3)
        go_on = threading.Event()

        def wait(frame: bytes) -> bytes:
            assert go_on.wait(120)
            return frame

        limiter: list[CapacityLimiter] = []

        def limited(tokens: int) -> CapacityLimiter:
            limiter.append(CapacityLimiter(tokens))
            return limiter[-1]

        monkeypatch.setattr(federation.enrollment, "answer_membership", wait)
        monkeypatch.setattr(enrollment_app, "CapacityLimiter", limited)
        app = client_of(federation)._transport.app

        async def ask_all() -> list[int]:
            base = "https://coordinator.example.org"
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url=base
            ) as client:
                path = PREFIX + "membership"
                held = [asyncio.create_task(client.post(path, content=b"a")) for _ in range(5)]
                try:
                    async with asyncio.timeout(60):
                        while limiter[0].statistics().tasks_waiting < 3:  # two are worked on
                            await asyncio.sleep(0.001)
                        turned_away = await client.post(path, content=b"a")
                finally:
                    go_on.set()
                answers = [turned_away, *await asyncio.gather(*held)]
                return [answer.status_code for answer in answers]

        assert asyncio.run(ask_all()) == [429] + [200] * 5

    def test_nothing_can_be_read_by_address(self, client: Client) -> None:
        for path in ("join", "membership", "pool", "results"):
            assert client.get(PREFIX + path).status_code == 405
        assert client.get(PREFIX).status_code == 404


class TestWithoutASuperLink:
    """Members are approved and revoked while nobody serves; their nodes follow later."""

    def approve(self, federation: Federation, hospital: Hospital) -> None:
        federation.enrollment.approve(hospital.name, words=spoken(hospital.identity.fingerprint))

    def test_a_member_is_let_in_once_somebody_serves(self, federation: Federation) -> None:
        hospital = federation.joined("North")
        self.approve(federation, hospital)
        (member,) = federation.enrollment.parties()
        assert (member.state, member.node_id) == ("member", None)
        assert not federation.enrollment.is_settled()
        federation.enrollment.settle(federation.door)
        (member,) = federation.enrollment.parties()
        assert federation.door.keys[member.node_id or 0]
        assert federation.enrollment.is_settled()

    def test_settling_twice_lets_in_once(self, federation: Federation) -> None:
        self.approve(federation, federation.joined("North"))
        for _ in range(2):
            federation.enrollment.settle(federation.door)
        assert len(federation.door.keys) == 1

    def test_a_node_whose_number_was_lost_is_found_again(self, federation: Federation) -> None:
        """Killed between letting it in and noting so."""
        hospital = federation.joined("North")
        self.approve(federation, hospital)
        federation.door.register(hospital.node_key, name="North")
        federation.enrollment.settle(federation.door)
        assert len(federation.door.keys) == 1
        assert federation.enrollment.is_settled()

    def test_a_superlink_that_forgot_everybody_learns_its_members_again(
        self, federation: Federation
    ) -> None:
        self.approve(federation, federation.joined("North"))
        federation.enrollment.settle(federation.door)
        federation.door.keys.clear()
        federation.enrollment.settle(federation.door)
        assert len(federation.door.keys) == 1

    def test_who_was_revoked_meanwhile_and_strangers_are_put_out(
        self, federation: Federation
    ) -> None:
        self.approve(federation, federation.joined("North"))
        federation.enrollment.settle(federation.door)
        federation.enrollment.revoke("North")
        federation.door.register(node_key(), name="stranger")
        assert not federation.enrollment.is_settled()
        federation.enrollment.settle(federation.door)
        assert federation.door.keys == {}
        assert federation.enrollment.is_settled()

    def test_two_that_let_in_and_put_out_at_once_are_both_done(
        self, federation: Federation
    ) -> None:
        """`approve` at the command line, and the service beside it."""
        self.approve(federation, federation.joined("North"))
        number = federation.door.register(node_key(), name="stranger")
        slow = SlowDoor(federation.door, lambda: federation.enrollment.settle(federation.door))
        federation.enrollment.settle(slow)
        assert slow.came_late == ["unregister", "register"]
        assert number not in federation.door.keys
        assert len(federation.door.keys) == 1
        assert federation.enrollment.is_settled()

    @pytest.mark.parametrize("fails", ["register", "unregister"])
    def test_a_door_that_does_neither_is_told_of(
        self, federation: Federation, fails: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.approve(federation, federation.joined("North"))
        federation.door.register(node_key(), name="stranger")
        monkeypatch.setattr(federation.door, fails, broken)
        with pytest.raises(SuperLinkError):
            federation.enrollment.settle(federation.door)


class TestVotes:
    """The number that a hospital's node states, and nobody else types."""

    def test_the_last_number_is_kept_and_a_members_change_is_told(
        self, federation: Federation
    ) -> None:
        hospital = federation.joined("North")
        federation.state(hospital, 3)
        assert (federation.votes(), federation.told()) == ({"North": 3}, [])  # nobody let it in
        federation.approve(hospital)
        for votes in (3, 40, 40, 2**30 - 1):
            federation.state(hospital, votes)
        assert federation.votes() == {"North": 2**30 - 1}
        north = "North", "North"
        assert federation.told() == [(*north, 3, 40), (*north, 40, 2**30 - 1)]

    def test_a_query_that_states_none_changes_none(self, federation: Federation) -> None:
        """As of a command beside the node, which holds no plan to a number."""
        hospital = federation.member()
        federation.state(hospital, 12)
        federation.state(hospital, 0)
        assert federation.votes() == {"North": 12}

    def test_an_older_query_that_comes_again_changes_nothing(self, federation: Federation) -> None:
        hospital = federation.member()
        older, newer = federation.state(hospital, 12), federation.state(hospital, 5)
        told = federation.told()
        for again in (older, newer, older):
            assert federation.read(federation.enrollment.answer_membership(again))
        assert (federation.votes(), federation.told()) == ({"North": 5}, told)

    def test_of_two_queries_in_one_second_the_first_counts(self, federation: Federation) -> None:
        """Either may be the one that comes again: the next minute's decides."""
        hospital = federation.member()
        federation.state(hospital, 12)
        federation.enrollment.answer_membership(federation.query(hospital, votes=900))
        assert federation.votes() == {"North": 12}
        federation.state(hospital, 900)
        assert federation.votes() == {"North": 900}

    def test_those_of_named_data_sets_are_kept_beside(self, federation: Federation) -> None:
        hospital = federation.member()
        federation.clock.pass_by(seconds=60)
        query = federation.query(hospital, votes=12, named=(("eyes", "lungs"), (4, 9)))
        federation.enrollment.answer_membership(query)
        [party] = federation.enrollment.parties()
        assert [party.votes_on(one) for one in ("", "eyes", "lungs", "ears")] == [12, 4, 9, 0]

    @pytest.mark.parametrize(
        "named",
        [
            pytest.param((("eyes",), ()), id="no number"),
            pytest.param((("eyes", "eyes"), (1, 2)), id="twice"),
            pytest.param((("lungs", "eyes"), (1, 2)), id="out of order"),
            pytest.param((("Eyes\x1b[2J",), (1,)), id="a name that steers a terminal"),
        ],
    )
    def test_data_sets_without_clear_votes_are_malformed(
        self, federation: Federation, named: tuple[tuple[str, ...], tuple[int, ...]]
    ) -> None:
        hospital = federation.member()
        federation.clock.pass_by(seconds=60)
        with pytest.raises(MalformedMessageError):
            federation.enrollment.answer_membership(federation.query(hospital, named=named))
        [party] = federation.enrollment.parties()
        assert party.named_votes == {}

    def test_nobody_states_it_for_another(self, federation: Federation) -> None:
        north, south = federation.member("North"), federation.member("South")
        federation.state(north, 12)
        federation.clock.pass_by(seconds=60)
        forged = federation.query(north, votes=1, signed_by=south.identity)
        with pytest.raises(BadSignatureError):
            federation.enrollment.answer_membership(forged)
        assert federation.votes() == {"North": 12, "South": 0}

    def test_one_outside_the_range_is_refused(self, federation: Federation) -> None:
        hospital = federation.member()
        for votes in (-1, 2**30):
            with pytest.raises(ProtocolError):
                federation.state(hospital, votes)
        assert MOST_VOTES == MAX_TOTAL_VOTES

    def test_a_change_that_cannot_be_told_is_not_kept(self, federation: Federation) -> None:
        hospital = federation.member()
        federation.state(hospital, 12)
        with federation.enrollment._database.transaction() as connection:
            connection.exec_driver_sql("DROP TABLE audit")
        with pytest.raises(DatabaseError):
            federation.state(hospital, 900)
        assert federation.votes() == {"North": 12}


class TestAuditHeads:
    @staticmethod
    def head(records: int, link: bytes, identity: SigningIdentity) -> bytes:
        return wire.sign(AuditHead(identity.fingerprint, records, link), identity).frame

    def test_one_is_kept_and_given_back_until_it_was_found_and_a_newer_one_came(
        self, federation: Federation
    ) -> None:
        north, south = federation.member("North"), federation.joined("South")
        mine = north.identity
        first, second = self.head(5, bytes(32), mine), self.head(9, b"b" * 32, mine)
        assert federation.ask(north).audit_head == b""
        assert federation.ask(north, first).audit_head == first
        assert federation.ask(north, second, found=first).audit_head == second
        # A log that was put back signs fewer records; one that forked signs as many.
        for older in (self.head(4, bytes(32), mine), self.head(9, b"c" * 32, mine)):
            assert federation.ask(north, older, found=second).audit_head == second
        assert federation.ask(north).audit_head == second
        assert federation.ask(south).audit_head == b""

    @pytest.mark.parametrize("answers_lost", [1, 2, 7])
    def test_one_that_nobody_found_stays_however_often_the_answer_was_lost(
        self, federation: Federation, answers_lost: int
    ) -> None:
        north = federation.joined("North")
        mine = north.identity
        first, kept = self.head(5, bytes(32), mine), self.head(9, b"b" * 32, mine)
        federation.ask(north, first)
        federation.ask(north, kept, found=first)
        # A log that was put back to `first`, and grew past the one that is kept.
        for grown in range(answers_lost):
            federation.ask(north, self.head(10 + grown, b"f" * 32, mine), found=first)
            federation.ask(north, self.head(10 + grown, b"f" * 32, mine))
        assert federation.ask(north).audit_head == kept

    @pytest.mark.parametrize(
        "forged",
        [
            pytest.param(lambda self, me, other: self.head(5, bytes(32), other), id="another's"),
            pytest.param(
                lambda self, me, other: (
                    wire.sign(AuditHead(other.fingerprint, 5, bytes(32)), me).frame
                ),
                id="for another",
            ),
            pytest.param(lambda self, me, other: b"no frame", id="no frame"),
        ],
    )
    def test_what_is_no_head_of_its_own_is_refused(
        self, federation: Federation, forged: Any
    ) -> None:
        north, south = federation.joined("North"), federation.joined("South")
        with pytest.raises((EnrollmentError, ProtocolError)):
            federation.ask(north, forged(self, north.identity, south.identity))
        assert federation.ask(north).audit_head == b""

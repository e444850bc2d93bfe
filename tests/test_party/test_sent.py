"""What left the hospital is listed as it left: every frame, its bytes, its digest, its meaning."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from party.errors import StorageError
from party.owner import opened_records
from party.site.message_words import SENT_WORDS, words_of_sent
from party.storage import PartyDatabase, SentLog
from protocols import wire
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.membership_messages import MembershipQuery, PoolQuery
from protocols.wire import MESSAGE_TYPES
from tests.support.hospital_services import make_hospitals
from tests.support.page_hospital import recorded
from tests.test_party.test_cli import PateParty, pate_party
from tests.test_party.test_service import Running, stack

__all__ = ["pate_party", "stack"]

INSIDE = {"Envelope", "Dealing", "AuditHead", "ReportHeader"}
"""Messages that travel inside others."""

COORDINATOR = SigningIdentity.generate().public.fingerprint
DAY_S = 86_400.0


def test_every_kind_that_a_hospital_sends_has_words_and_no_other() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "messages.md"
    listed = re.findall(r"^- \*\*\d+ (\w+)\*\* \((party|both)", page.read_text("utf-8"), re.M)
    # A VectorHead is the signed part of a MaskedVector; the coordinator passes it on.
    assert {name for name, _ in listed} - INSIDE - {"VectorHead"} == set(SENT_WORDS)
    assert set(SENT_WORDS) <= {kind.__name__ for kind in MESSAGE_TYPES.values()}
    assert words_of_sent("News")[0] == "News"


class TestRuns:
    @pytest.mark.parametrize(
        "names",
        [
            pytest.param(("North", "South", "West"), id="additive"),
            pytest.param(("North", "South", "West", "East", "Mid"), id="masked"),
        ],
    )
    @pytest.mark.slow
    def test_every_frame_that_left_is_listed(
        self, tmp_path: Path, stack: ExitStack, names: tuple[str, ...]
    ) -> None:
        ports = tuple(9094 + place for place in range(len(names)))
        hospitals = make_hospitals(tmp_path, names=names, ports=ports)
        if len(names) > 3:
            hospitals.form = MaskedSum()
        hospitals.approve_all()
        running = Running(hospitals, stack)
        left = recorded(running.services[0])
        run = running.set_up()
        run.ask((0, 1))
        run.close()
        listed = running.services[0].sent.newest(1000)
        assert {one.digest for one in listed} == {hashlib.sha256(one).digest() for one in left}
        assert sum(one.size for one in listed) == sum(map(len, left))
        assert {one.kind for one in listed} <= set(SENT_WORDS)
        assert {one.run_id for one in listed if one.kind == "MaskedVector"} == {run.round.run_id}
        assert {one.coordinator for one in listed} == {hospitals.coordinator.public.fingerprint}

    def test_a_full_disk_delays_a_line_and_loses_none(
        self, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hospitals = make_hospitals(tmp_path)
        running = Running(hospitals, stack)
        service = running.services[0]
        note = SentLog.note_answer

        def fail(*_: object, **__: object) -> None:
            raise StorageError("the database must be there and writable", "a full disk")

        monkeypatch.setattr(SentLog, "note_answer", fail)
        first = wire.unpack(service.receive(b"no packet"), max_bytes=2**20)
        assert [type(wire.decode(one).message).__name__ for one in first] == ["Refusal"]
        assert service.sent.total() == (0, 0, 0)
        monkeypatch.setattr(SentLog, "note_answer", note)
        running.now += 1  # another refusal
        second = wire.unpack(service.receive(b"no packet"), max_bytes=2**20)
        assert service.sent.total()[1] == len(first) + len(second)


class TestLog:
    @pytest.fixture
    def log(self) -> SentLog:
        return SentLog(PartyDatabase.in_memory())

    def test_a_message_that_left_twice_is_one_line(self, log: SentLog) -> None:
        identity = SigningIdentity.generate()
        frame = membership_query(identity, at=1)
        for at in (1.0, 2.0):
            log.note_answer([frame], to=COORDINATOR, run=bytes(32), at=at)
        digest = hashlib.sha256(frame).digest()
        [one] = log.newest(5)
        assert (one.number, one.coordinator, one.kind) == (1, COORDINATOR, "MembershipQuery")
        assert (one.run_id, one.times, one.size) == (bytes(32), 2, 2 * len(frame))
        assert (one.digest, one.first_at, one.last_at) == (digest, 1.0, 2.0)

    def test_a_flood_of_messages_leaves_no_more_than_a_days_worth(
        self, log: SentLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("party.storage.sent.MOST_A_DAY", 20)
        identity = SigningIdentity.generate()
        frames = [membership_query(identity, at=at) for at in range(1, 41)]
        log.note_answer([*frames, frames[0]], to=COORDINATOR, run=b"", at=DAY_S + 5)
        rows, times, size = log.total()
        assert (rows, times, size) == (21, 41, sum(map(len, frames)) + len(frames[0]))
        assert [one.times for one in log.newest(1)] == [20]
        log.note_answer(frames[:1], to=bytes(32), run=b"", at=DAY_S + 5)  # another's are apart
        log.note_answer([membership_query(identity, at=99)], to=COORDINATOR, run=b"", at=2 * DAY_S)
        assert log.total()[0] == 22

    def test_requests_of_a_day_are_one_line_for_each_thing(self, log: SentLog) -> None:
        identity = SigningIdentity.generate()
        for at in (0, 60, int(DAY_S)):
            frame = membership_query(identity, at=at)
            log.note_request(frame, to=COORDINATOR, at=float(at))
        for pool in (bytes(32), bytes(32), b"\1" * 32):
            query = PoolQuery(COORDINATOR, identity.fingerprint, pool, 0, 1)
            log.note_request(wire.sign(query, identity).frame, to=COORDINATOR, at=1.0)
        found = [(one.kind, one.times) for one in reversed(log.newest(9))]
        assert found == [
            *(("MembershipQuery", 2), ("MembershipQuery", 1)),
            *(("PoolQuery", 2), ("PoolQuery", 1)),
        ]
        assert log.total()[:2] == (4, 6)
        assert [one.number for one in log.newest(1, skip=1)] == [log.newest(2)[1].number]


def membership_query(identity: SigningIdentity, *, at: int) -> bytes:
    query = MembershipQuery(COORDINATOR, identity.fingerprint, at, b"", b"", "1.0", 4, (), ())
    return wire.sign(query, identity).frame


def test_the_command_line_lists_what_left_and_what_was_done(
    pate_party: PateParty, tmp_path: Path
) -> None:
    site = make_hospitals(tmp_path).sites[0]
    with opened_records(site) as opened:
        frame = membership_query(site.identity, at=1)
        to = site.membership().coordinator.fingerprint
        opened.sent.note_request(frame, to=to, at=1.0)
    folder = ("--site", site.folder)
    shown = pate_party("sent", *folder, "--format", "json").json
    assert (shown["messages"], shown["bytes"]) == (1, len(frame))
    assert shown["shown"][0]["sha256"] == hashlib.sha256(frame).hexdigest()
    assert "to lung study" in pate_party("sent", *folder).out
    assert pate_party("pause", "--by", "M. Curie", *folder).code == 0
    said = pate_party("audit", "list", "--last", "1", *folder).out
    assert "paused; by M. Curie, command line" in said
    assert "after: paused" in said
    out = tmp_path / "log.jsonl"
    shown = pate_party("audit", "export", "--out", out, *folder, "--format", "json").json
    assert shown["entries"] == len(out.read_text("ascii").splitlines()) > 1
    assert out.stat().st_mode & 0o777 == 0o600
    assert json.loads(out.read_text("ascii").splitlines()[-1])["act"] == "exported"
    assert pate_party("audit", "export", "--out", out, *folder).code == 2

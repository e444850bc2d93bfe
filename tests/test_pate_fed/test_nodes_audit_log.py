"""Acts of both nodes are told as they were: edited, moved, left out, cut, written anew."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import database as at_coordinator
from party.storage import PartyDatabase, SiteAuditLog
from party.storage.site_audit_log import SiteAct
from pate_fed.nodes import audit_log
from pate_fed.nodes.audit_log import AuditEntry, AuditLog, Facts
from pate_fed.nodes.database import NodeDatabase
from protocols.errors import MalformedMessageError
from protocols.values import Value, encode_value

ENTRIES = 6
ACTS = at_coordinator.FederationAct
FORGED: Facts = {"by": "bert", "from": "page", "subject": "H"}
Tamper = Callable[["Logged"], Callable[[sqlite3.Connection], object]]


@dataclass(frozen=True)
class Logged:
    """A node's log, and the file that it lies in."""

    log: AuditLog
    database: NodeDatabase
    file: Path
    act: StrEnum
    code: str

    def add(self, place: int) -> None:
        before, after = {"state": "requested"}, {"state": "member", "teachers": 5 + place}
        who = {"by": "Anna", "from": "command line", "subject": f"H{place}"}
        facts: Facts = {**who, "before": before, "after": after, "run": bytes([place])}
        self.log.append(self.act, facts, at=100.25 + place)

    def forged(self, number: int) -> bytes:
        return AuditEntry(number, 100_250, self.act, FORGED).to_bytes()

    def tamper(self, tamper: Tamper) -> None:
        """Act as somebody who can write the file."""
        with closing(sqlite3.connect(self.file)) as file:
            tamper(self)(file)
            file.commit()


@pytest.fixture(params=["hospital", "coordinator"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Logged]:
    file = tmp_path / "node.db"
    if request.param == "hospital":
        with PartyDatabase.create(file) as site:
            yield Logged(SiteAuditLog(site), site, file, SiteAct.CHARGED, "PF-353")
    else:
        with at_coordinator.Database(f"sqlite:///{file}", is_new=True) as home:
            yield Logged(
                at_coordinator.FederationAuditLog(home), home, file, ACTS.APPROVED, "PF-442"
            )


@pytest.fixture
def filled(logged: Logged) -> Logged:
    for place in range(ENTRIES):
        logged.add(place)
    return logged


def edit(number: int) -> Tamper:
    return lambda of: (
        lambda file: file.execute(
            "UPDATE audit SET body = ? WHERE number = ?", (of.forged(number), number)
        )
    )


def move(*steps: tuple[int, int]) -> Tamper:
    return lambda _: (
        lambda file: file.executemany(
            "UPDATE audit SET number = ? WHERE number = ?", [(new, old) for old, new in steps]
        )
    )


def drop(*numbers: int) -> Tamper:
    return lambda _: (
        lambda file: file.executemany("DELETE FROM audit WHERE number = ?", zip(numbers))
    )


def close_up(number: int) -> Tamper:
    steps = [(later, later - 1) for later in range(number + 1, ENTRIES + 1)]

    def act(of: Logged) -> Callable[[sqlite3.Connection], object]:
        return lambda file: [drop(number)(of)(file), move(*steps)(of)(file)]

    return act


def statement(text: str) -> Tamper:
    return lambda _: lambda file: file.execute(text)


def write_anew(count: int) -> Tamper:
    """Write a whole chain, right in itself, that tells another story."""

    def act(of: Logged) -> Callable[[sqlite3.Connection], object]:
        def write(file: sqlite3.Connection) -> None:
            file.execute("DELETE FROM audit")
            link = hashlib.sha256(of.log.domain + b"first").digest()
            for number in range(1, count + 1):
                body = of.forged(number)
                link = hashlib.sha256(of.log.domain + b"record\0" + link + body).digest()
                file.execute("INSERT INTO audit VALUES (?, ?, ?)", (number, body, link))

        return write

    return act


class TestEntries:
    def test_they_are_there_again_in_order(self, filled: Logged) -> None:
        assert filled.log.verify() == filled.log.end[0] == ENTRIES
        numbers = [entry.number for entry in filled.log.entries()]
        assert numbers == list(range(1, ENTRIES + 1))
        [last] = filled.log.entries(first=ENTRIES)
        assert (last.at, last.act) == (105_250, filled.act)
        assert last.facts["after"] == {"state": "member", "teachers": 10}
        assert last.facts["run"] == bytes([5])

    def test_an_empty_log_is_whole_and_has_a_head(self, logged: Logged) -> None:
        log = logged.log
        assert (log.verify(), log.end[0], len(log.end[1])) == (0, 0, 32)
        assert log.verify(heads=[log.end]) == 0

    def test_the_chain_is_what_the_page_says(self, logged: Logged) -> None:
        """Computed here once more, from the bytes alone."""
        link = hashlib.sha256(logged.log.domain + b"first").digest()
        for place in range(2):
            logged.log.append(logged.act, {"by": "Anna"}, at=place)
            said = [place + 1, 1000 * place, logged.act.value, {"by": "Anna"}]
            body = encode_value(said)
            link = hashlib.sha256(logged.log.domain + b"record\0" + link + body).digest()
        assert logged.log.end[1] == link

    def test_an_export_can_be_checked_from_its_bytes_alone(self, filled: Logged) -> None:
        link = hashlib.sha256(filled.log.domain + b"first").digest()
        for table in filled.log.tables():
            body = bytes.fromhex(table["body"])
            link = hashlib.sha256(filled.log.domain + b"record\0" + link + body).digest()
            assert table["link"] == link.hex()
            entry = AuditEntry.from_bytes(body, filled.log.acts)
            assert entry.facts["subject"] == table["subject"]
        assert link == filled.log.end[1]

    def test_an_entry_is_stored_with_its_subject_or_not_at_all(self, filled: Logged) -> None:
        def fail_after_it() -> None:
            with filled.database.transaction() as connection:
                filled.log.append(filled.act, {}, at=1.0, connection=connection)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_after_it()
        assert filled.log.end[0] == filled.log.verify() == ENTRIES

    def test_many_are_checked_in_parts(self, logged: Logged) -> None:
        with logged.database.transaction() as connection:
            for _ in range(2_100):
                logged.log.append(logged.act, {}, at=1.0, connection=connection)
        assert logged.log.verify() == 2_100
        logged.tamper(edit(2_050))
        with pytest.raises(logged.log.fault) as caught:  # type: ignore[call-overload]
            logged.log.verify()
        assert caught.value.number == 2_050

    @given(
        facts=st.dictionaries(
            st.text(max_size=9),
            st.one_of(
                st.text(),
                st.binary(),
                st.integers(0, 2**63),
                st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3),
            ),
        )
    )
    def test_an_entry_comes_back_from_its_bytes(self, facts: Facts) -> None:
        entry = AuditEntry(7, 5, ACTS.ASKED, facts)
        assert AuditEntry.from_bytes(entry.to_bytes(), ACTS) == entry

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param([1, 2, "no such act", {}], id="act"),
            pytest.param([1, 2, "run paused"], id="short"),
            pytest.param([1, 2, "run paused", {"a": [1]}], id="list"),
            pytest.param([1, 2, "run paused", {"a": {"b": {}}}], id="nested twice"),
            pytest.param([1, 2, "run paused", {"a": True}], id="no number"),
            pytest.param("run paused", id="text"),
        ],
    )
    def test_what_is_no_entry_is_refused(self, body: Value) -> None:
        with pytest.raises(MalformedMessageError):
            AuditEntry.from_bytes(encode_value(body), ACTS)


class TestSearch:
    def test_it_finds_the_newest_entries_with_all_words(self, filled: Logged) -> None:
        def found(*words: str, most: int = 50) -> list[str]:
            tables, _ = filled.log.newest(words=words, most=most)
            return [one["subject"] for one in tables]

        assert found("anna", "MEMBER", most=2) == ["H5", "H4"]
        assert found("h3") == ["H3"]
        assert found(filled.act.value, "teachers 7") == ["H2"]
        assert found("run: 04") == ["H4"]
        assert found("' OR 1=1 --") == []

    @pytest.mark.parametrize("words", [(), ("anna",)])
    def test_older_ones_follow_page_by_page(
        self, filled: Logged, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit_log, "SEARCHED_AT_ONCE", 4)
        numbers, before = [], None
        while True:
            tables, before = filled.log.newest(words=words, before=before, most=2)
            numbers += [one["number"] for one in tables]
            if before is None:
                break
        assert numbers == list(range(ENTRIES, 0, -1))


class TestTampering:
    @pytest.mark.parametrize(
        ("tamper", "first"),
        [
            *[pytest.param(edit(n), n, id=f"entry {n} edited") for n in (1, 3, ENTRIES)],
            pytest.param(move((2, 9), (3, 2), (9, 3)), 2, id="neighbors swapped"),
            pytest.param(move((1, 9), (6, 1), (9, 6)), 1, id="first and last swapped"),
            pytest.param(drop(1), 1, id="first removed"),
            pytest.param(drop(4), 4, id="middle removed"),
            pytest.param(close_up(4), 4, id="middle removed, numbers closed up"),
            pytest.param(move((6, 7)), 6, id="gap before the last"),
            pytest.param(
                statement("UPDATE audit SET link = zeroblob(32) WHERE number = 5"), 5, id="link"
            ),
            pytest.param(
                statement(
                    "INSERT INTO audit SELECT number + 1, body, link FROM audit WHERE number = 6"
                ),
                7,
                id="last one twice",
            ),
        ],
    )
    def test_the_first_bad_entry_is_named(self, filled: Logged, tamper: Tamper, first: int) -> None:
        filled.tamper(tamper)
        with pytest.raises(filled.log.fault) as caught:  # type: ignore[call-overload]
            filled.log.verify()
        assert (caught.value.number, caught.value.code) == (first, filled.code)

    @pytest.mark.parametrize(
        ("tamper", "left", "first"),
        [
            *[
                pytest.param(
                    drop(*range(ENTRIES - cut + 1, ENTRIES + 1)),
                    ENTRIES - cut,
                    ENTRIES - cut + 1,
                    id=f"{cut} cut",
                )
                for cut in (1, 3, ENTRIES)
            ],
            *[
                pytest.param(write_anew(count), count, ENTRIES, id=f"{count} written anew")
                for count in (ENTRIES - 1, ENTRIES, ENTRIES + 2)
            ],
        ],
    )
    def test_only_a_head_kept_elsewhere_reveals_a_cut_or_a_new_chain(
        self, filled: Logged, tamper: Tamper, left: int, first: int
    ) -> None:
        kept = filled.log.end
        filled.tamper(tamper)
        assert filled.log.verify() == left  # the chain alone cannot know
        assert not filled.log.goes_on_from(*kept)
        with pytest.raises(filled.log.fault) as caught:  # type: ignore[call-overload]
            filled.log.verify(heads=[kept])
        assert caught.value.number == first

    def test_a_cut_stays_visible_to_the_head_after_more_acts(self, filled: Logged) -> None:
        kept = filled.log.end
        filled.tamper(drop(ENTRIES))
        for place in range(3):
            filled.add(place)
        assert filled.log.verify() == ENTRIES + 2
        with pytest.raises(filled.log.fault):  # type: ignore[call-overload]
            filled.log.verify(heads=[kept])

    def test_a_log_that_goes_on_honestly_satisfies_every_head(self, logged: Logged) -> None:
        heads = [logged.log.end]
        for place in range(5):
            logged.add(place)
            heads.append(logged.log.end)
        assert logged.log.verify(heads=[*heads, heads[2]]) == 5
        assert all(logged.log.goes_on_from(*head) for head in heads)

    def test_a_log_that_cannot_be_stored_says_so(self, filled: Logged) -> None:
        filled.tamper(statement("DROP TABLE audit"))
        with pytest.raises(filled.database.fault):
            filled.add(1)

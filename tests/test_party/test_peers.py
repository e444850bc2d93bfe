"""Pins: what our own people compared counts, what the coordinator says does not."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from party.errors import PinError, WordsDifferError
from party.peers import Pin, Pins, named_by, require_compared, standings
from protocols.fingerprint_words import spoken, words_of
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import Membership

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def identity() -> PublicIdentity:
    return SigningIdentity.generate().public


def membership(**peers: PublicIdentity) -> Membership:
    return Membership(
        party=bytes(32),
        federation="lung study",
        state="member",
        answered_at=int(NOW.timestamp()),
        peer_names=tuple(peers),
        peer_keys=tuple(one.key for one in peers.values()),
    )


def pin(name: str = "South", who: PublicIdentity | None = None, body: str = "") -> Pin:
    return Pin(name, body or name, who or identity(), "telephone", "M. Curie", NOW)


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return Pins(tmp_path / "peers.toml")


class TestPins:
    def test_what_was_pinned_is_there_after_a_restart(self, pins: Pins, tmp_path: Path) -> None:
        south, east = pin("South", body="Trust"), pin("East", body="Trust")
        pins.add(south)
        pins.add(east)
        again = Pins(tmp_path / "peers.toml")
        assert again.all() == (east, south)
        assert again.pins() == {one.identity.fingerprint: one.identity for one in (south, east)}
        assert set(again.checked().values()) == {"Trust"}
        assert stat.S_IMODE((tmp_path / "peers.toml").stat().st_mode) == 0o600

    def test_nobody_is_pinned_at_first(self, pins: Pins) -> None:
        assert not pins.all()
        assert not pins.checked()

    def test_a_removed_pin_counts_no_more(self, pins: Pins, tmp_path: Path) -> None:
        pins.add(pin())
        pins.remove("South")
        assert not pins.checked()
        assert not Pins(tmp_path / "peers.toml").pins()
        with pytest.raises(PinError):
            pins.remove("South")

    def test_a_name_or_an_identity_is_pinned_once(self, pins: Pins) -> None:
        south = pin()
        pins.add(south)
        for again in (pin("South"), pin("Another", south.identity)):
            with pytest.raises(PinError, match="once"):
                pins.add(again)
        assert pins.all() == (south,)

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param({"how": ""}, id="not said how"),
            pytest.param({"by": "  "}, id="not said by whom"),
            pytest.param({"name": "So\x1b[2Juth"}, id="a terminal's code"),
            pytest.param({"body": "x" * 201}, id="long"),
        ],
    )
    def test_a_pin_says_how_and_by_whom(self, change: dict[str, str]) -> None:
        fields = {"name": "South", "body": "South", "how": "telephone", "by": "M. Curie", **change}
        with pytest.raises(PinError):
            Pin(fields["name"], fields["body"], identity(), fields["how"], fields["by"], NOW)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param("schema_version = 1", "schema_version = 2", id="version"),
            pytest.param("schema_version = 1", "schema_version = 1\nmore = 1", id="more"),
            pytest.param('key = "', 'key = "00', id="a longer key"),
            pytest.param('how = "telephone"', "", id="not said how"),
            pytest.param('how = "telephone"', "how = 1", id="a number"),
            pytest.param("[[peers]]", "[[peers", id="no TOML"),
        ],
    )
    def test_a_spoiled_file_is_refused(
        self, pins: Pins, tmp_path: Path, old: str, new: str
    ) -> None:
        pins.add(pin())
        path = tmp_path / "peers.toml"
        text = path.read_text("utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(PinError):
            Pins(path)

    def test_a_file_with_one_peer_twice_is_refused(self, pins: Pins, tmp_path: Path) -> None:
        pins.add(pin())
        path = tmp_path / "peers.toml"
        text = path.read_text("utf-8")
        path.write_text(text + text.partition("\n")[2], encoding="utf-8")
        with pytest.raises(PinError):
            Pins(path)


class TestComparing:
    def test_words_and_digits_are_taken(self) -> None:
        one = identity()
        for said in (
            spoken(one.fingerprint),
            " ".join(words_of(one.fingerprint)).upper(),
            one.fingerprint.hex(),
        ):
            require_compared(one, said)

    @pytest.mark.parametrize("kept", [0, 1, 11])
    def test_fewer_words_are_not(self, kept: int) -> None:
        one = identity()
        with pytest.raises(WordsDifferError):
            require_compared(one, " ".join(words_of(one.fingerprint)[:kept]))

    def test_another_identitys_words_are_not(self) -> None:
        with pytest.raises(WordsDifferError):
            require_compared(identity(), spoken(identity().fingerprint))
        with pytest.raises(WordsDifferError):
            require_compared(identity(), identity().fingerprint.hex()[:32])


class TestHearsay:
    def test_it_never_counts(self, pins: Pins) -> None:
        south, invented = identity(), identity()
        pins.add(pin("South", south))
        found = standings(pins, membership(South=south, Invented=invented))
        assert [(one.name, one.pin is not None) for one in found] == [
            ("Invented", False),
            ("South", True),
        ]
        assert set(pins.checked()) == {south.fingerprint}

    def test_another_key_under_a_checked_name_is_shown_beside_it(self, pins: Pins) -> None:
        south, thief = identity(), identity()
        pins.add(pin("South", south))
        first, second = standings(pins, membership(South=thief))
        assert (first.identity, first.is_member) == (south, False)
        assert first.pin is not None
        assert (second.identity, second.is_member, second.pin) == (thief, True, None)

    def test_a_name_finds_one_member(self) -> None:
        south = identity()
        assert named_by(membership(South=south), "South") == south
        with pytest.raises(PinError):
            named_by(membership(South=south), "North")

    def test_pins_are_shown_without_a_coordinator(self, pins: Pins) -> None:
        pins.add(pin())
        assert [one.is_member for one in standings(pins, None)] == [False]

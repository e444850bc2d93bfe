"""Pins: what our own people compared counts, what the coordinator says does not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from party.errors import PinError, WordsDifferError
from party.site.peers import (
    FEDERATION,
    OWN,
    TALLY,
    Pin,
    known_words,
    listed_peers,
    named_by,
    require_compared,
)
from protocols.fingerprint_words import spoken, words_of
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.membership_messages import NamedTally
from tests.support.hospital_site import membership_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def identity() -> PublicIdentity:
    return SigningIdentity.generate().public


def pin(name: str = "South", who: PublicIdentity | None = None, body: str = "") -> Pin:
    return Pin(name, body or name, who or identity(), "telephone", "M. Curie", NOW.timestamp())


class TestPins:
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
            Pin(fields["name"], fields["body"], identity(), fields["how"], fields["by"], 1.0)


def compared_with(one: PublicIdentity, heard: str) -> None:
    require_compared(heard, "its own", {"its own": one.fingerprint})


class TestComparing:
    def test_words_and_digits_are_taken(self) -> None:
        one = identity()
        for said in (
            spoken(one.fingerprint),
            " ".join(words_of(one.fingerprint)).upper(),
            one.fingerprint.hex(),
        ):
            compared_with(one, said)

    @pytest.mark.parametrize("kept", [0, 1, 11])
    def test_fewer_words_are_not(self, kept: int) -> None:
        one = identity()
        with pytest.raises(WordsDifferError):
            compared_with(one, " ".join(words_of(one.fingerprint)[:kept]))

    def test_another_identitys_words_are_not(self) -> None:
        with pytest.raises(WordsDifferError):
            compared_with(identity(), spoken(identity().fingerprint))
        with pytest.raises(WordsDifferError):
            compared_with(identity(), identity().fingerprint.hex()[:32])

    @pytest.mark.parametrize("typed", [FEDERATION, TALLY, OWN])
    def test_words_of_something_else_are_named(self, typed: str) -> None:
        one, tally = identity(), NamedTally("Notary", identity())
        known = known_words(bytes(range(32)), identity(), tally)
        with pytest.raises(WordsDifferError) as refused:
            require_compared(spoken(known[typed]), "its own", {"its own": one.fingerprint, **known})
        assert refused.value.got == typed


class TestHearsay:
    def test_it_is_shown_as_nobodys_word(self) -> None:
        south, invented = identity(), identity()
        found = listed_peers(
            [pin("South", south)], membership_of(bytes(32), {"South": south, "Invented": invented})
        )
        assert [(one.name, one.pin is not None) for one in found] == [
            ("Invented", False),
            ("South", True),
        ]

    def test_another_key_under_a_checked_name_is_shown_beside_it(self) -> None:
        south, thief = identity(), identity()
        first, second = listed_peers(
            [pin("South", south)], membership_of(bytes(32), {"South": thief})
        )
        assert (first.identity, first.is_member) == (south, False)
        assert first.pin is not None
        assert (second.identity, second.is_member, second.pin) == (thief, True, None)

    def test_a_name_finds_one_member(self) -> None:
        south = identity()
        assert named_by(membership_of(bytes(32), {"South": south}), "South") == south
        with pytest.raises(PinError):
            named_by(membership_of(bytes(32), {"South": south}), "North")

    def test_pins_are_shown_without_a_coordinator(self) -> None:
        assert [one.is_member for one in listed_peers([pin()], None)] == [False]

"""What a hospital may be called: what people write, and nothing that could deceive them."""

from __future__ import annotations

import unicodedata

import pytest

from protocols import wire
from protocols.errors import MalformedMessageError
from protocols.fields import MAX_PARTIES
from protocols.identity import SigningIdentity
from protocols.membership_messages import Membership
from protocols.party_names import is_alike, is_party_name, normalized


@pytest.mark.parametrize(
    "name",
    [
        "North",
        "7",
        "St. Mary's",
        "H_1-2",
        "Hôpital Saint-Louis",
        "Universitätsspital Zürich",
        "Łódź",
        "Московская больница 67",
        "Ευαγγελισμός",
        "東京大学病院",
        "国立がん研究センター",
        "서울대학교병원",
        "מרכז רבין",
        "é" * 64,
    ],
)
def test_what_people_write_is_a_name(name: str) -> None:
    assert is_party_name(normalized(name))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("a" * 65, id="long"),
        pytest.param(" a", id="a space before"),
        pytest.param("a ", id="a space after"),
        pytest.param("a-", id="a sign after"),
        pytest.param("a/b", id="a path"),
        pytest.param("a\nb", id="a line break"),
        pytest.param("a\tb", id="a tab"),
        pytest.param("a\x1b[2Jb", id="a command to the screen"),
        pytest.param("a\u00a0b", id="another space"),
        pytest.param("a\u2009b", id="a thin space"),
        pytest.param("a\u200bb", id="a space without width"),
        pytest.param("a\u00adb", id="a hyphen that is not seen"),
        pytest.param("a\u202eb", id="another direction"),
        pytest.param("a\u2066b", id="a direction of its own"),
        pytest.param("\u05d0\u200f1", id="a mark of direction"),
        pytest.param("a\ufeffb", id="a byte order mark"),
        pytest.param("a\u3164b", id="a letter without shape"),
        pytest.param("\u115f", id="another letter without shape"),
        pytest.param("e\u0301", id="a letter and its mark"),
        pytest.param("\uff21", id="a wide letter"),
        pytest.param("\ufb01nal", id="two letters in one"),
        pytest.param("\U0001d400", id="a letter of mathematics"),
        pytest.param("\u0661", id="digits of another script"),
        pytest.param("a\u2019b", id="another apostrophe"),
        pytest.param("N\u043erth", id="a Cyrillic letter in a Latin name"),
        pytest.param("\u0391thens", id="a Greek letter in a Latin name"),
        pytest.param("\U0001f3e5", id="a picture"),
        pytest.param("a\ud800b", id="half a character"),
        pytest.param("\u0378", id="a character that is none"),
    ],
)
def test_what_could_deceive_is_none(name: str) -> None:
    assert not is_party_name(name)


@pytest.mark.parametrize(
    ("one", "other"), [("North", "NORTH"), ("A  B", "a b"), ("Straße", "STRASSE"), ("a", "a")]
)
def test_names_that_people_take_for_one_are_alike(one: str, other: str) -> None:
    assert is_alike(one, other)


def test_names_that_people_tell_apart_are_not() -> None:
    assert not is_alike("North", "South")
    assert not is_alike("A B", "AB")


def test_however_it_is_typed_a_name_is_one() -> None:
    for form in ("NFC", "NFD"):
        assert normalized(unicodedata.normalize(form, "Charité")) == "Charit\u00e9"


def membership(*names: str, federation: str = "lung study") -> Membership:
    keys = tuple(number.to_bytes(32, "big") for number in range(len(names)))
    return Membership(bytes(32), federation, "member", 0, names, keys, b"", (), "", b"")


def test_names_of_any_language_travel() -> None:
    coordinator = SigningIdentity.from_private_bytes(bytes(32))
    said = membership("Charité", "東京大学病院", federation="Étude pulmonaire")
    frame = wire.sign(said, coordinator).frame
    assert wire.expect(wire.decode(frame), Membership) == said


def test_as_many_of_the_longest_names_as_there_may_be_fit() -> None:
    coordinator = SigningIdentity.from_private_bytes(bytes(32))
    letters = "\U00020000" * 60  # four bytes each
    names = [f"{letters}{number:04}" for number in range(MAX_PARTIES)]
    said = membership(*names, federation=names[0])
    frame = wire.sign(said, coordinator).frame
    assert wire.expect(wire.decode(frame), Membership) == said


@pytest.mark.parametrize("name", ["a\u202eb", "a\x1bb", "N\u043erth", ""])
def test_a_name_that_could_deceive_is_refused_on_the_way(name: str) -> None:
    for names, federation in (((name,), "lung study"), ((), name)):
        with pytest.raises(MalformedMessageError):
            membership(*names, federation=federation)

"""People hear which word differs first."""

from __future__ import annotations

import pytest

from protocols.fingerprint_words import first_difference, spoken, words_of

KEY = bytes(range(32))


@pytest.mark.parametrize("place", [1, 7, 12])
def test_the_first_other_word_is_named(place: int) -> None:
    words = [*words_of(KEY)]
    words[place - 1 :] = ["pidgin"] * (13 - place)
    said = first_difference(KEY, " ".join(words))
    assert f"word {place} " in said
    assert "pidgin" in said


@pytest.mark.parametrize("typed", ["", "one", spoken(KEY) + " more"])
def test_too_few_or_too_many_are_counted(typed: str) -> None:
    assert first_difference(KEY, typed).startswith(str(len(typed.split())))

"""Names of hospitals and federations: letters of any script, nothing hidden.

A name reaches screens, logs and file names, and is read aloud. Control characters, marks that turn
the direction of a text and letters without a shape are refused.
"""

from __future__ import annotations

import unicodedata
from typing import Final

MOST_LETTERS: Final = 64
NAME_RULE: Final = (
    f"1 to {MOST_LETTERS} letters of any language, digits 0 to 9, spaces, '.', '_', '-' or \"'\", "
    "with a letter or digit at both ends, and must not mix Latin, Greek and Cyrillic letters"
)
"""The rule of `is_party_name`, for people."""

_LETTERS: Final = frozenset({"Lu", "Ll", "Lt", "Lo"})
_DIGITS: Final = frozenset("0123456789")
_BETWEEN: Final = frozenset(" ._-'")
_LONG_AND_AGAIN: Final = frozenset("\u30fc\u3005")  # as in every Japanese word for a center
_WITHOUT_SHAPE: Final = frozenset("\u115f\u1160\u3164\uffa0")  # letters too, for Unicode
_ALIKE: Final = frozenset({"LATIN", "GREEK", "CYRILLIC"})


def normalized(name: str) -> str:
    """Return a name in its one stored form, the same from any keyboard."""
    return unicodedata.normalize("NFC", name)


def is_party_name(name: str) -> bool:
    """Tell whether a hospital or a federation may have this name.

    1 to 64 letters of any script, digits 0 to 9, spaces, '.', '_', '-' and "'", with a letter or
    digit at both ends. The text is in Unicode's normal form NFKC, so it has only one spelling.
    Scripts with letters that look alike (Latin, Greek, Cyrillic) are never mixed.
    """
    return (
        0 < len(name) <= MOST_LETTERS
        and unicodedata.is_normalized("NFKC", name)
        and all(_is_letter(one) or one in _BETWEEN for one in name)
        and _is_letter(name[0])
        and _is_letter(name[-1])
        and len({unicodedata.name(one, "").partition(" ")[0] for one in name} & _ALIKE) <= 1
    )


def is_alike(one: str, other: str) -> bool:
    """Tell whether people could confuse two names: they differ in capitals or spaces only."""
    return _folded(one) == _folded(other)


def _is_letter(one: str) -> bool:
    if one in _WITHOUT_SHAPE:
        return False
    return one in _DIGITS or one in _LONG_AND_AGAIN or unicodedata.category(one) in _LETTERS


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())

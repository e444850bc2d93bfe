"""A fingerprint as words that two people can compare by telephone.

Each word stands for 11 bits, in the English list of BIP-39: common words with different first four
letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import zip_longest

from mnemonic import Mnemonic

WORDS = 12
"""Words to compare: 132 bits, too many to search for a second key that fits."""

_BITS = 11


def words_of(fingerprint: bytes) -> tuple[str, ...]:
    """Return the words of a fingerprint of 32 bytes."""
    number = int.from_bytes(fingerprint, "big") >> (8 * len(fingerprint) - WORDS * _BITS)
    places = [number >> _BITS * place & 2**_BITS - 1 for place in reversed(range(WORDS))]
    return tuple(_list()[place] for place in places)


def spoken(fingerprint: bytes) -> str:
    """Return the words in groups of four, as they are read aloud."""
    words = words_of(fingerprint)
    return "  ".join(" ".join(words[place : place + 4]) for place in range(0, WORDS, 4))


def is_same(fingerprint: bytes, heard: str) -> bool:
    """Tell whether the typed words are those of a fingerprint, all of them in order."""
    return heard_words(heard) == words_of(fingerprint)


def heard_words(heard: str) -> tuple[str, ...]:
    """Return the typed words, with any spacing."""
    return tuple(heard.lower().replace(",", " ").replace("-", " ").split())


def differing(fingerprint: bytes, heard: str) -> list[int]:
    """Return the places, from 1, of the typed words that are not those of a fingerprint."""
    both = zip_longest(words_of(fingerprint), heard_words(heard))
    return [place for place, (ours, typed) in enumerate(both, 1) if ours != typed]


def first_difference(fingerprint: bytes, heard: str) -> str:
    """Say how typed words differ first from those of a fingerprint, which they are not."""
    typed = heard_words(heard)
    if len(typed) != WORDS:
        return f"{len(typed)} of them"
    place = differing(fingerprint, heard)[0]
    return f"others: word {place} is {typed[place - 1]!a}"


def whose_words(heard: str, known: Mapping[str, bytes]) -> str:
    """Return the name of the known fingerprint whose words were typed; "" if it is none of them."""
    return next((name for name, one in known.items() if is_same(one, heard)), "")


@cache
def _list() -> tuple[str, ...]:
    return tuple(Mnemonic("english").wordlist)

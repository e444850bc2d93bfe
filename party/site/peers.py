"""The peers that this hospital's own people checked, and how.

The coordinator's list of members is hearsay: it may have invented a peer, to be left alone with one
hospital's votes. A peer counts once our people compared its words with its own people, on a line
that the coordinator does not control, and wrote down how. `party.site.people_decisions` keeps that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from party.errors import PinError, WordsDifferError
from protocols.fingerprint_words import first_difference, is_same, whose_words
from protocols.identity import PublicIdentity
from protocols.membership_messages import Membership, NamedTally
from protocols.party_names import normalized

MOST_LETTERS = 200

FEDERATION = "the federation's, which the operator's `pate-fed members` shows"
TALLY = "the tally's for hospitals, which its own people's `pate-fed tally words` shows"
OWN = "this hospital's own, which `pate-party status` shows"
"""Whose words people compare, and where these are read."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A peer that one of our people checked; parties of one body, its owner, count once."""

    name: str
    body: str
    identity: PublicIdentity
    how: str
    by: str
    at: float

    def __post_init__(self) -> None:
        for text in (self.name, self.body, self.how, self.by):
            if not (text.strip() and text.isprintable() and len(text) <= MOST_LETTERS):
                raise PinError(
                    f"name, body, how and by whom must be 1 to {MOST_LETTERS} printable letters",
                    f"{len(text)}",
                )


@dataclass(frozen=True, slots=True)
class ListedPeer:
    """The facts about a peer, for people.

    Its identity is the pinned one, or else the coordinator's. Without a pin nobody checked it, and
    it counts for nothing. It `is_member` if the coordinator names this identity as one.
    """

    name: str
    identity: PublicIdentity
    pin: Pin | None
    is_member: bool


def named_by(membership: Membership, name: str) -> PublicIdentity:
    """Return the identity that the coordinator gives for a member: to be compared, not believed."""
    pairs = zip(membership.peer_names, membership.peer_keys, strict=True)
    found = [PublicIdentity(key) for known, key in pairs if known == normalized(name)]
    if len(found) != 1:
        raise PinError(
            "a peer must be one member of this name, as the coordinator lists them",
            f"{len(found)} called {name!r}",
        )
    return found[0]


def words_of_peer(name: str) -> str:
    """Return whose words a peer's are, and where they are read."""
    return f"{name}'s, which its own people's `pate-party status` shows"


def known_words(
    federation: bytes, own: PublicIdentity | None, tally: NamedTally | None
) -> dict[str, bytes]:
    """Return the fingerprints whose words a person could take for others, by whose they are."""
    found = {FEDERATION: federation}
    if tally is not None:
        found[TALLY] = tally.identity.fingerprint
    return found if own is None else {**found, OWN: own.fingerprint}


def require_compared(heard: str, whose: str, known: Mapping[str, bytes]) -> None:
    """Compare the input of a person, the words or all 64 digits, with one of the fingerprints.

    `known` has it by `whose` it is, and others, so that their words are told apart.
    """
    digits = heard.replace(" ", "").replace(":", "").lower()
    if not (is_same(known[whose], heard) or digits == known[whose].hex()):
        differs = f"{first_difference(known[whose], heard)}: ask again; if it stays, stop"
        raise WordsDifferError(
            f"the 12 words must be {whose}", whose_words(heard, known) or differs
        )


def listed_peers(pins: Iterable[Pin], membership: Membership | None) -> tuple[ListedPeer, ...]:
    """Put our own checks beside the coordinator's word, if it was asked, by name."""
    named: dict[bytes, tuple[str, PublicIdentity]] = {}
    if membership is not None:
        for name, key in zip(membership.peer_names, membership.peer_keys, strict=True):
            identity = PublicIdentity(key)
            named[identity.fingerprint] = name, identity
    ours = {pin.identity.fingerprint: pin for pin in pins}
    checked = [
        ListedPeer(pin.name, pin.identity, pin, fingerprint in named)
        for fingerprint, pin in ours.items()
    ]
    heard = [
        ListedPeer(name, identity, None, is_member=True)
        for fingerprint, (name, identity) in named.items()
        if fingerprint not in ours
    ]
    return tuple(sorted((*checked, *heard), key=lambda one: (one.name, one.pin is None)))

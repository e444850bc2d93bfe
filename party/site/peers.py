"""The peers that this hospital's own people checked, and how.

The coordinator's list of members is hearsay: it may have invented a peer, to be left alone with one
hospital's votes. A peer counts once our people compared its words with its own people, on a line
that the coordinator does not control, and wrote down how. `party.site.people_decisions` keeps that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from party.errors import PinError, WordsDifferError
from protocols.fingerprint_words import is_same
from protocols.identity import PublicIdentity
from protocols.membership_messages import Membership
from protocols.party_names import normalized

MOST_LETTERS = 200


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


def require_compared(identity: PublicIdentity, compared: str) -> None:
    """Compare an identity with the input of its own people: the words, or all 64 digits."""
    digits = compared.replace(" ", "").replace(":", "").lower()
    if not (is_same(identity.fingerprint, compared) or digits == identity.fingerprint.hex()):
        raise WordsDifferError("the words must be those that the peer's own people read aloud")


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

"""Who takes part in a run, in seat order, with each one's node and refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocols.identity import PublicIdentity


@dataclass(frozen=True, slots=True)
class Member:
    """A party of the federation, as the coordinator enrolled it.

    Attributes:
        node: Number of its node; None where it is not known before it signs, or not let in yet. It
            names the party if it never signs.
    """

    name: str
    identity: PublicIdentity
    node: int | None = None


class Roster:
    """The parties of one run. A party's seat is its fingerprint.

    Attributes:
        statements: Those of its parties.
        nodes: The node of each party, by seat.
    """

    def __init__(self, members: tuple[Member, ...], statements: Mapping[bytes, bytes]) -> None:
        self.members = members
        self._by_seat = {member.identity.fingerprint: member for member in members}
        self.statements = {
            seat: frame for seat, frame in statements.items() if seat in self._by_seat
        }
        self.nodes: dict[bytes, int] = {}

    @property
    def identities(self) -> dict[bytes, PublicIdentity]:
        """Pinned identities, by seat."""
        return {seat: member.identity for seat, member in self._by_seat.items()}

    def name(self, seat: bytes) -> str:
        """Return the name of a party."""
        return self._by_seat[seat].name

    def names(self, seats: Iterable[bytes]) -> tuple[str, ...]:
        """Return the names of some of the parties, in seat order."""
        wanted = frozenset(seats)
        return tuple(member.name for seat, member in self._by_seat.items() if seat in wanted)

    def said_by(self, seat: bytes) -> list[bytes]:
        """Return the journal counters that a party signed in an earlier run, if any."""
        return [self.statements[seat]] if seat in self.statements else []


def in_seat_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return parties in the order of their seats."""
    by_seat = {member.identity.fingerprint: member for member in members}
    return tuple(by_seat[seat] for seat in sorted(by_seat))

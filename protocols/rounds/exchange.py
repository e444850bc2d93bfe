"""One exchange at the coordinator: its message type, who has to answer, and who did."""

from __future__ import annotations

from protocols.errors import WrongStateError
from protocols.rounds.states import CoordinatorState
from protocols.wire import Signed


class Exchange:
    """The exchange that the coordinator is in.

    Args:
        state: Which messages may come.
        parties: Who has to send one, in seat order.

    Attributes:
        state: Which messages may come.
    """

    def __init__(self, state: CoordinatorState, parties: tuple[bytes, ...]) -> None:
        self.state = state
        self._awaited = parties
        self._received: dict[bytes, Signed | None] = {}

    def begin(self, state: CoordinatorState, parties: tuple[bytes, ...] = ()) -> None:
        """Wait for a message of each of these parties; drop those of the exchange before."""
        self.state, self._awaited = state, parties
        self._received.clear()

    def take(self, sender: bytes, signed: Signed | None) -> None:
        """Note that a party answered, and keep its message unless it is None."""
        self._received[sender] = signed

    def collected(self) -> list[Signed]:
        """Hand over every party's message, in seat order; the same parties are awaited again.

        Raises:
            WrongStateError: some message is missing.
        """
        if self.missing:
            raise WrongStateError("an exchange must be over, once", self.state.value)
        messages = [self._received.pop(party) for party in self._awaited]
        return [signed for signed in messages if signed is not None]

    def message_of(self, party: bytes) -> Signed | None:
        """Return the message of a party; None if none came or was kept."""
        return self._received.get(party)

    def frames_of(self, parties: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the frame that each party sent; empty where none came."""
        messages = (self._received.get(party) for party in parties)
        return tuple(b"" if signed is None else signed.frame for signed in messages)

    @property
    def missing(self) -> tuple[bytes, ...]:
        """Parties whose message has not come, in seat order."""
        return tuple(party for party in self._awaited if party not in self._received)

    @property
    def heard(self) -> int:
        """Parties whose message has come."""
        return len(self._awaited) - len(self.missing)

    def require(self, state: CoordinatorState) -> None:
        """Refuse a step in any other state.

        Raises:
            WrongStateError: it is another.
        """
        if self.state is not state:
            raise WrongStateError(f"the state must be '{state.value}'", self.state.value)

"""Before a plan, at a party: its node says which queries it would refuse."""

from __future__ import annotations

from collections.abc import Sequence

from protocols import wire
from protocols.errors import WrongStateError
from protocols.messages import Readiness
from protocols.rounds.seating import SeatedRun, require_fresh
from protocols.wire import Signed


class PartyInquiry:
    """A party's end: its node says which of the queries it would serve."""

    def __init__(self, run: SeatedRun) -> None:
        self._run = run
        self._subject = b""

    def take(self, inquiry: Signed, *, now: float) -> None:
        """Let an inquiry wait for the node's answer, unless the run has expired."""
        require_fresh(self._run.known.record.expires_at, now=now)
        self._subject = inquiry.digest

    def accept(self, refused: Sequence[int]) -> tuple[bytes, ...]:
        """Answer that this party would serve the items, but for those at some places, ascending."""
        message = Readiness(self._waiting, self._run.me, tuple(refused))
        self._subject = b""
        return (wire.sign(message, self._run.identity).frame,)

    def refuse(self, reason: str) -> tuple[bytes, ...]:
        """Answer that this party would serve nothing of it; the reason is a public code."""
        subject, self._subject = self._waiting, b""
        return (self._run.refusal(subject, reason),)

    @property
    def _waiting(self) -> bytes:
        if not self._subject:
            raise WrongStateError("an inquiry must wait for an answer")
        return self._subject

"""Before a plan, at the coordinator: it asks whether the plan would be served."""

from __future__ import annotations

from protocols import wire
from protocols.errors import UnexpectedMessageError, UnknownPeerError
from protocols.messages import Inquiry, Readiness, Refusal
from protocols.rounds.live_run import LiveRun


class CoordinatorInquiry:
    """The coordinator's end.

    Args:
        run: The run.
    """

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def ask(self, terms: bytes) -> bytes:
        """Return the frame that asks parties whether they would serve a plan; changes nothing.

        Args:
            terms: The terms of the plan; canonical bytes that this library does not read.

        Raises:
            WrongStateError: a plan is open, or the run is not set up.
        """
        self._run.require_settled()
        return wire.sign(Inquiry(self._run.run_id, terms), self._run.identity).frame

    def read(self, frame: bytes, *, inquiry: bytes) -> tuple[bytes, Readiness | Refusal]:
        """Read a party's answer to an inquiry; changes nothing.

        Args:
            frame: The answer.
            inquiry: The frame that was sent.

        Returns:
            The party's fingerprint, and its signed answer.

        Raises:
            RemoteProtocolError: it is no party's answer to this inquiry.
        """
        signed = wire.decode(frame)
        message = signed.message
        if not isinstance(message, Readiness | Refusal):
            raise UnexpectedMessageError(
                "an answer must be that to an inquiry", type(message).__name__
            )
        if message.sender not in self._run.parties:
            raise UnknownPeerError("an answer must be a party's", "another's")
        signed.verify(self._run.parties[message.sender])
        # A party that refuses a frame before the inquiry reads no further.
        of_run = isinstance(message, Refusal) and message.subject == self._run.run_id
        if not of_run and message.subject != wire.decode(inquiry).digest:
            raise UnexpectedMessageError("an answer must be to this inquiry", "another")
        return message.sender, message

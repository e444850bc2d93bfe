"""Before a plan, at the coordinator: it asks whether the plan would be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from protocols import wire
from protocols.errors import UnexpectedMessageError, UnknownPeerError
from protocols.identity import PublicIdentity
from protocols.messages import Inquiry, Readiness, Refusal, RunReadiness
from protocols.rounds.live_run import LiveRun

Answer = TypeVar("Answer", RunReadiness, Readiness)


class CoordinatorInquiry:
    """The coordinator's end."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def ask(self, terms: bytes) -> bytes:
        """Return the frame that asks, with no plan open, whether parties would serve a plan."""
        self._run.require_settled()
        return wire.sign(Inquiry(self._run.run_id, terms), self._run.identity).frame

    def read(self, frame: bytes, *, inquiry: bytes) -> tuple[bytes, Readiness | Refusal]:
        """Read a party's answer to the inquiry in a frame that was sent; changes nothing.

        Returns the party's fingerprint, and its signed answer. Raises `RemoteProtocolError` where
        it is no party's answer to this inquiry.
        """
        message = _answer_in(frame, Readiness, parties=self._run.parties)
        # A party that refuses a frame before the inquiry reads no further.
        of_run = isinstance(message, Refusal) and message.subject == self._run.run_id
        if not of_run:
            _require_answer_to(inquiry, message)
        return message.sender, message


def read_run_answer(
    frame: bytes, *, inquiry: bytes, parties: Mapping[bytes, PublicIdentity]
) -> RunReadiness | Refusal:
    """Read a party's answer to the `RunInquiry` in a frame that was sent, at the coordinator."""
    message = _answer_in(frame, RunReadiness, parties=parties)
    _require_answer_to(inquiry, message)
    return message


def _answer_in(
    frame: bytes, kind: type[Answer], *, parties: Mapping[bytes, PublicIdentity]
) -> Answer | Refusal:
    signed = wire.decode(frame)
    message = signed.message
    if not isinstance(message, kind | Refusal):
        raise UnexpectedMessageError("an answer must be that to an inquiry", type(message).__name__)
    if message.sender not in parties:
        raise UnknownPeerError("an answer must be a party's")
    signed.verify(parties[message.sender])
    return message


def _require_answer_to(inquiry: bytes, message: RunReadiness | Readiness | Refusal) -> None:
    if message.subject != wire.decode(inquiry).digest:
        raise UnexpectedMessageError("an answer must be to this inquiry")

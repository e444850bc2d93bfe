"""A party's answer to each message: the same message again gets the same answer."""

from __future__ import annotations

from protocols.fields import Message
from protocols.messages import (
    BlameRequest,
    Certificate,
    Plan,
    RunOffer,
    RunRecord,
    SetProposal,
    Settlement,
    ShareBundle,
    VerdictMacs,
)
from protocols.wire import Signed

Frames = tuple[bytes, ...]


class Answers:
    """A party's answers in one run."""

    def __init__(self) -> None:
        self._answered: dict[tuple[object, ...], tuple[bytes, Frames]] = {}

    def find(self, message: Message) -> tuple[bytes, Frames] | None:
        """Return the digest of the message that was answered before, and its answer; None for none.

        It is of the same kind and subject, so perhaps another message.
        """
        return self._answered.get(_identify(message))

    def keep(self, signed: Signed, replies: Frames) -> None:
        """Note the answer to a message."""
        self._answered[_identify(signed.message)] = (signed.digest, replies)

    def decide(self, message: Message, replies: Frames) -> None:
        """Note the answer to a message that waited for a decision."""
        key = _identify(message)
        digest, _ = self._answered[key]
        self._answered[key] = (digest, replies)

    def drop_shares(self, plan_digest: bytes) -> None:
        """Never show the shares of a settled plan again."""
        key = _identify_shares(plan_digest)
        if key in self._answered:
            self._answered[key] = (self._answered[key][0], ())


def _identify(message: Message) -> tuple[object, ...]:
    """Name the subject of a message: two bodies for one name are a conflict."""
    match message:
        case RunOffer():
            return (RunOffer, message.nonce)
        case RunRecord():
            return (RunRecord, message.offer_digest)
        case Plan():
            return (Plan, message.epoch)
        case SetProposal():
            # One set, and one attempt to close the plan.
            return (SetProposal, message.plan_digest, bool(message.survivors))
        case ShareBundle():
            return _identify_shares(message.plan_digest)
        case Settlement() | BlameRequest():
            return (type(message), message.plan_digest)
        case VerdictMacs() | Certificate():
            return ("proof", message.plan_digest)
        case _:
            return (type(message),)


def _identify_shares(plan_digest: bytes) -> tuple[object, ...]:
    return (ShareBundle, plan_digest)

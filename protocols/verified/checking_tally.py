"""The tally's machine: it answers the coordinator's four requests, and checks each by itself.

It reads every header, opens its own parts, and takes from the coordinator only what it cannot
derive: the list, half of the coin, and the coordinator's answers and share.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.errors import (
    MalformedMessageError,
    TooFewPartiesError,
    UnexpectedMessageError,
)
from protocols.fields import Message
from protocols.identity import PublicIdentity
from protocols.verified.checking_end import CheckingEnd
from protocols.verified.vote_report import VoteBatch, read_header
from protocols.verified.vote_side import commitment_to_nonce, read_answers
from protocols.vote_messages import Acceptance, ListReceipt, ReportList, SumShare, VoteAnswers
from protocols.wire import Signed


class CheckingTally(CheckingEnd):
    """See the module, and `CheckingEnd`; `receive` answers a request."""

    is_tally = True

    def _answer(self, signed: Signed, message: Message) -> bytes:
        match message:
            case ReportList():
                return self._note_list(signed, message)
            case VoteAnswers():
                return self._tell_answers(signed, message)
            case Acceptance():
                self._require_enough(self._decided())
                self._require_equal(message, signed.frame)
                return self._exchange(
                    signed.frame, self._side.acceptance(self._decided(), self._coin)
                )
            case SumShare():
                self._elements(message)
                return self._open_share(signed.frame)
            case _:  # the table lists no other
                raise AssertionError(type(message).__name__)

    def _note_list(self, signed: Signed, told: ReportList) -> bytes:
        require_list(self.batch, told, hospitals=self._hospitals, least=self._least)
        side = self._side
        receipt = ListReceipt(
            self.batch.plan_digest, signed.digest, side.secrets.nonce, side.noise_commitment
        )
        return self._exchange(signed.frame, receipt)

    def _tell_answers(self, signed: Signed, theirs: VoteAnswers) -> bytes:
        told = self._history.said_by_other(ReportList)
        if commitment_to_nonce(self.batch, theirs.nonce) != told.nonce_commitment:
            raise UnexpectedMessageError("a nonce must be the one that the list committed to")
        read_answers(self.batch, self._history.listed, theirs)
        # Nothing else of `theirs` is in our answers.
        coin = self._coin_with(theirs.nonce)
        return self._exchange(signed.frame, self._side.answers(self._history.listed, coin))

    @property
    def _other_nonce(self) -> bytes:
        return self._history.said_by_other(VoteAnswers).nonce


def require_list(
    batch: VoteBatch,
    told: ReportList,
    *,
    hospitals: Mapping[bytes, PublicIdentity],
    least: int,
) -> None:
    """Check a list as the tally does before it notes it.

    Raises:
        MalformedMessageError: hospitals do not ascend, or one has no envelope.
        RemoteProtocolError: a header is not its hospital's, or of another plan; see `read_header`.
        TooFewPartiesError: fewer reports than the plan wants.
    """
    senders = [read_header(batch, frame, identities=hospitals).sender for frame in told.headers]
    if senders != sorted(set(senders)) or len(told.envelopes) != len(senders):
        raise MalformedMessageError("a list must have each hospital once, ascending")
    if len(senders) < least:
        raise TooFewPartiesError(received=len(senders), threshold=least)

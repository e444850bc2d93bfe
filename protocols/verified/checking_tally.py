"""The tally's machine: it answers the coordinator's four requests, and checks each by itself.

It reads every header, opens its own parts, and takes from the coordinator only what it cannot
derive: the list, half of the coin, and the coordinator's answers and share.
"""

from __future__ import annotations

from protocols.errors import UnexpectedMessageError
from protocols.fields import Message
from protocols.verified.checking_end import CheckingEnd
from protocols.verified.vote_side import (
    commitment_to_nonce,
    read_answers,
    read_sum_share,
    require_list,
)
from protocols.vote_messages import Acceptance, ReportList, SumShare, VoteAnswers
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
                read_sum_share(self.batch, message)
                return self._open_share(signed.frame)
            case _:  # the table lists no other
                raise AssertionError(type(message).__name__)

    def _note_list(self, signed: Signed, told: ReportList) -> bytes:
        require_list(self.batch, told, hospitals=self._hospitals, least=self._least)
        return self._exchange(signed.frame, self._side.receipt_of(told))

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

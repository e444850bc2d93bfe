"""The coordinator's machine: it collects reports, closes their list, and asks the tally.

machine.take_report(frame)          # of each hospital, until the list is closed
request = machine.close()
while request:                      # four calls
    request = machine.receive(tally_answers(request))
machine.opened
"""

from __future__ import annotations

from protocols import wire
from protocols.errors import (
    ConflictingMessageError,
    LateMessageError,
    TooFewPartiesError,
    UnexpectedMessageError,
    UnknownPeerError,
)
from protocols.fields import Message
from protocols.verified.check_history import CheckState
from protocols.verified.check_journal import Exchanged, ReportTaken
from protocols.verified.checking_end import CheckingEnd
from protocols.verified.vote_report import read_header
from protocols.verified.vote_side import read_answers, read_sum_share, report_taken
from protocols.vote_messages import Acceptance, ListReceipt, ReportList, SumShare, VoteAnswers
from protocols.wire import Signed


class CheckingCoordinator(CheckingEnd):
    """See the module, and `CheckingEnd`."""

    is_tally = False

    @property
    def reported(self) -> frozenset[bytes]:
        """Hospitals whose report came."""
        return frozenset(self._history.reports)

    @property
    def header_digests(self) -> dict[bytes, bytes]:
        """Digest of the signed header of each report, by hospital."""
        return {
            hospital: wire.digest_of(report.header)
            for hospital, report in self._history.reports.items()
        }

    def take_report(self, frame: bytes, *, sender: bytes | None = None) -> None:
        """Take a hospital's report into the list; the same one again changes nothing.

        `sender` is the hospital that it came from, where that is known.

        Whether it is of votes is found out later, by both ends.

        Raises:
            LateMessageError: the list is closed.
            ConflictingMessageError: the hospital's first report was another one, which counts.
            RemoteProtocolError: it is nobody's report of this batch, see `read_header`, or not its
                sender's.
        """
        report = report_taken(frame)
        if sender not in (None, report.header.sender):
            raise UnknownPeerError("a report must be of the hospital that it came from")
        read_header(self.batch, report.frame, identities=self._hospitals)
        if self.state is not CheckState.COLLECTING:
            raise LateMessageError("a report must come before the list is closed")
        hospital = report.header.sender
        if self._history.reports.get(hospital, report) != report:
            raise ConflictingMessageError(
                "a hospital must send one report of a batch", peer=hospital.hex()
            )
        if hospital not in self._history.reports:
            step = ReportTaken(frame)
            self._journal.append(step)
            self._history.apply(step, report)

    def close(self) -> bytes:
        """Close the list, and return what asks the tally first.

        Raises:
            TooFewPartiesError: fewer reports came than the plan wants; the list stays open.
        """
        if self.state is not CheckState.COLLECTING:
            return self.resend()
        if len(self._history.reports) < self._least:
            raise TooFewPartiesError(received=len(self._history.reports), threshold=self._least)
        return self._exchange(b"", self._side.list_of(self._history.listed))

    def _answer(self, signed: Signed, message: Message) -> bytes:
        match message:
            case ListReceipt():
                return self._told_our_answers(signed, message)
            case VoteAnswers():
                return self._told_our_acceptance(signed, message)
            case Acceptance():
                self._require_equal(message, signed.frame)
                return self._open_share(signed.frame)
            case SumShare():
                read_sum_share(self.batch, message)
                self._note(Exchanged(signed.frame, b""))
                return b""
            case _:  # the table lists no other
                raise AssertionError(type(message).__name__)

    def _told_our_answers(self, signed: Signed, receipt: ListReceipt) -> bytes:
        if receipt.list_digest != wire.digest_of(self._history.said_by_us(ReportList)):
            raise UnexpectedMessageError("the tally must have noted the list that it was told")
        coin = self._coin_with(receipt.nonce)
        return self._exchange(signed.frame, self._side.answers(self._history.listed, coin))

    def _told_our_acceptance(self, signed: Signed, theirs: VoteAnswers) -> bytes:
        if theirs.nonce != self._other_nonce:
            raise UnexpectedMessageError("the tally must answer with the nonce that it told")
        read_answers(self.batch, self._history.listed, theirs)
        decision = self._decide(theirs)
        frame = self._exchange(signed.frame, self._side.acceptance(decision, self._coin))
        self._decision = decision
        self._require_enough(decision)
        return frame

    @property
    def _other_nonce(self) -> bytes:
        return self._history.said_by_other(ListReceipt).nonce

"""What happened in a batch at one end, from its journal's steps: live and after a restart alike.

`COORDINATOR_CHECKS` and `TALLY_CHECKS` list what each end takes in which state. What they do not
list is an error, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, TypeAlias, TypeVar

from protocols import wire
from protocols.errors import BrokenJournalError, ProtocolError, UnexpectedMessageError
from protocols.fields import Message
from protocols.verified.check_journal import (
    CheckStep,
    CheckStopped,
    Exchanged,
    ReportTaken,
    SecretsDrawn,
)
from protocols.verified.vote_report import VoteBatch
from protocols.verified.vote_side import ListedReport, SideSecrets, report_taken, reports_in
from protocols.vote_messages import Acceptance, ListReceipt, ReportList, SumShare, VoteAnswers

M = TypeVar("M", bound=Message)


class CheckState(Enum):
    """Where a batch is at one end."""

    COLLECTING = "collecting"
    LISTED = "listed"
    ANSWERED = "answered"
    DECIDED = "decided"
    SHARED = "shared"
    OPENED = "opened"
    STOPPED = "stopped"


Transitions: TypeAlias = Mapping[CheckState, Mapping[type[Message], CheckState]]

COORDINATOR_CHECKS: Final[Transitions] = {
    # `close` leads from COLLECTING to LISTED.
    CheckState.COLLECTING: {},
    CheckState.LISTED: {ListReceipt: CheckState.ANSWERED},
    CheckState.ANSWERED: {VoteAnswers: CheckState.DECIDED},
    CheckState.DECIDED: {Acceptance: CheckState.SHARED},
    CheckState.SHARED: {SumShare: CheckState.OPENED},
    CheckState.OPENED: {},
    CheckState.STOPPED: {},
}
TALLY_CHECKS: Final[Transitions] = {
    CheckState.COLLECTING: {ReportList: CheckState.LISTED},
    CheckState.LISTED: {VoteAnswers: CheckState.ANSWERED},
    CheckState.ANSWERED: {Acceptance: CheckState.DECIDED},
    CheckState.DECIDED: {SumShare: CheckState.OPENED},
    CheckState.OPENED: {},
    CheckState.STOPPED: {},
}


class CheckHistory:
    """A batch until now.

    Attributes:
        state: Where it is.
        secrets: Once they are drawn.
        reports: By hospital: at the coordinator those that came, at the tally those of the list.
    """

    def __init__(self, batch: VoteBatch, *, is_tally: bool) -> None:
        self.state = CheckState.COLLECTING
        self.secrets: SideSecrets | None = None
        self.reports: dict[bytes, ListedReport] = {}
        self._batch, self._is_tally = batch, is_tally
        self._exchanges: list[tuple[Message | None, Exchanged]] = []

    @property
    def listed(self) -> tuple[ListedReport, ...]:
        """All reports, by ascending fingerprints."""
        return tuple(self.reports[hospital] for hospital in sorted(self.reports))

    @property
    def last_sent(self) -> bytes:
        """The last frame that left, or was about to; empty if none was."""
        return self._exchanges[-1][1].sent if self._exchanges else b""

    def answer_to(self, kind: type[Message]) -> tuple[Message, bytes] | None:
        """Return the message of a kind that was answered, and the answer; None if none was."""
        for message, exchange in self._exchanges:
            if type(message) is kind:
                return message, exchange.sent
        return None

    def said_by_other(self, kind: type[M]) -> M:
        """Return the other end's message of a kind."""
        return self._only(kind, (message for message, _ in self._exchanges))

    def said_by_us(self, kind: type[M]) -> M:
        """Return this end's message of a kind."""
        sent = (exchange.sent for _, exchange in self._exchanges)
        return self._only(kind, (wire.decode(frame).message for frame in sent if frame))

    def require_ours(self, message: Message) -> None:
        """Refuse a message of another plan."""
        if getattr(message, "plan_digest", None) != self._batch.plan_digest:
            raise UnexpectedMessageError("a message must be of the open plan")

    def next_state(self, message: Message) -> CheckState:
        """Look a transition up; `UnexpectedMessageError` where the table has none."""
        row = (TALLY_CHECKS if self._is_tally else COORDINATOR_CHECKS)[self.state]
        if type(message) not in row:
            allowed = ", ".join(kind.__name__ for kind in row) or "nothing"
            raise UnexpectedMessageError(
                f"in state '{self.state.value}' a message must be: {allowed}",
                type(message).__name__,
            )
        return row[type(message)]

    def apply(self, step: CheckStep, report: ListedReport | None = None) -> None:
        """Take a step; `BrokenJournalError` where it is of another batch, or not the next one.

        `report` is the step's, where it was read already.
        """
        try:
            if isinstance(step, ReportTaken):
                self._apply_report(report or report_taken(step.report))
            else:
                self._apply(step)
        except BrokenJournalError:
            raise
        except ProtocolError as error:
            raise BrokenJournalError("a journal must be of its batch and in order") from error

    def _apply(self, step: SecretsDrawn | Exchanged | CheckStopped) -> None:
        match step:
            case SecretsDrawn():
                if self.secrets is not None:
                    raise BrokenJournalError("secrets of a batch must be drawn once")
                self.secrets = SideSecrets(step.nonce, step.noise_seed)
            case Exchanged():
                message = wire.decode(step.received).message if step.received else None
                self.state = self._after(message)
                self._exchanges.append((message, step))
                if isinstance(message, ReportList):
                    self.reports = {each.header.sender: each for each in reports_in(message)}
            case CheckStopped():
                self.state = CheckState.STOPPED

    def _apply_report(self, report: ListedReport) -> None:
        self.require_ours(report.header)
        is_open = self.state is CheckState.COLLECTING and not self._is_tally
        if not is_open or report.header.sender in self.reports:
            raise BrokenJournalError("a report must be noted once, before the list is closed")
        self.reports[report.header.sender] = report

    def _after(self, message: Message | None) -> CheckState:
        """Return the state after an exchange; the coordinator's first one answers nothing."""
        if message is not None:
            self.require_ours(message)
            return self.next_state(message)
        if self._is_tally or self.state is not CheckState.COLLECTING:
            raise BrokenJournalError("an exchange must follow from a message")
        return CheckState.LISTED

    def _only(self, kind: type[M], messages: Iterable[Message | None]) -> M:
        for message in messages:
            if isinstance(message, kind):
                return message
        raise BrokenJournalError("a journal must have the messages that its state follows from")

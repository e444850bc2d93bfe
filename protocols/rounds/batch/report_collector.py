"""The coordinator's collection of a plan's reports, of which it opens nothing by itself."""

from __future__ import annotations

from protocols import wire
from protocols.errors import ConflictingMessageError, UnexpectedMessageError
from protocols.fields import KIB
from protocols.rounds.contribution import Contribution
from protocols.rounds.states import plan_of
from protocols.verified import CheckingCoordinator
from protocols.verified.prime_field import WIRE_TYPE
from protocols.vote_messages import VoteReport


class ReportCollector:
    """The reports of one open plan; its machine's journal has them after a restart, too.

    Attributes:
        declined: The signed refusal of each party that never sends.
        machine: The coordinator's end of the check.
    """

    def __init__(self, machine: CheckingCoordinator, *, seats: tuple[bytes, ...]) -> None:
        self.machine = machine
        self._seats = seats
        self.declined: dict[bytes, bytes] = {}

    @property
    def most_bytes(self) -> int:
        """Most bytes of a report."""
        layouts = [self.machine.batch.layout_of(seat) for seat in self._seats]
        most = max(each.witness_length + each.proof_length for each in layouts)
        return most * WIRE_TYPE.itemsize + 16 * KIB

    @property
    def senders(self) -> tuple[bytes, ...]:
        """Parties whose reports came, in seat order."""
        return tuple(seat for seat in self._seats if seat in self.machine.reported)

    @property
    def refusals(self) -> tuple[bytes, ...]:
        """Frames of `declined`, in seat order."""
        return tuple(self.declined[seat] for seat in self._seats if seat in self.declined)

    @property
    def contributions(self) -> dict[bytes, Contribution]:
        """Digests of the signed headers: of reports in the sum, or of all before it is decided."""
        decision, headers = self.machine.decision, self.machine.header_digests
        chosen = self.senders if decision is None else decision.accepted
        return {seat: Contribution(headers[seat]) for seat in self._seats if seat in chosen}

    def take(self, report: VoteReport, *, sender: bytes) -> None:
        """Take a party's report; see `CheckingCoordinator.take_report`.

        Raises:
            UnexpectedMessageError: it is of another plan, or of another party than sent it.
            ConflictingMessageError: the party refused.
        """
        if plan_of(report) != self.machine.batch.plan_digest:
            raise UnexpectedMessageError("a report must be for the open plan")
        if sender in self.declined:
            raise ConflictingMessageError("a party that refused a plan must not send for it")
        self.machine.take_report(wire.contain(report), sender=sender)

    def __repr__(self) -> str:
        return f"ReportCollector(senders={len(self.senders)})"

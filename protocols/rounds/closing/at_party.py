"""The end of a run at a party: it compares all last heads with its own."""

from __future__ import annotations

from protocols import wire
from protocols.errors import HistoryError, UnexpectedMessageError
from protocols.messages import Closing, HeadBundle, HeadStatement
from protocols.rounds.seating import (
    COORDINATOR,
    SeatedRun,
    require_enough_heads,
    verify_handed_over,
)


class PartyClosing:
    """A party's end; `heads_compared` are parties with our head, ours among them, in seat order."""

    def __init__(self, run: SeatedRun) -> None:
        self._run = run
        self.heads_compared: tuple[bytes, ...] = ()

    def state_head(self, closing: Closing) -> bytes:
        """Answer a closing of the same history with this party's head; return the frame."""
        run, head = self._run, self._run.transcript.head
        if closing.head != head:
            raise HistoryError("the coordinator must remember the same run", peer=COORDINATOR)
        statement = HeadStatement(run.run_id, run.me, head, run.epoch, run.journal.counter)
        return wire.sign(statement, run.identity).frame

    def compare(self, bundle: HeadBundle) -> None:
        """Compare all parties' heads with this party's own, and witness their journals' counters.

        Raises:
            HistoryError: a party signed another head. It names that party and the coordinator,
                which may have told the two of us two stories.
            TooFewHeadsError: too few heads. Any two comparisons with enough have a party in common,
                so two histories cannot both pass.
        """
        run, seating = self._run, self._run.known
        if len(bundle.statements) != len(seating.identities):
            raise UnexpectedMessageError("every seat's head must come", len(bundle.statements))
        counters = {}
        for (fingerprint, identity), frame in zip(
            seating.identities.items(), bundle.statements, strict=True
        ):
            if not frame:  # a party that was lost since
                continue
            signed = wire.decode(frame)
            statement = wire.expect(signed, HeadStatement)
            verify_handed_over(signed, identity)
            if statement.sender != fingerprint or statement.run_id != seating.run_id:
                raise UnexpectedMessageError("a head must be its seat's")
            if statement.head != run.transcript.head:
                raise HistoryError(
                    "all parties must remember the same run",
                    pair=(fingerprint.hex(), COORDINATOR),
                )
            counters[fingerprint] = statement.journal_counter
        require_enough_heads(bundle.statements, seating.form, floor=run.floor)
        heard = {*counters, run.me}
        counters.pop(run.me, None)
        run.journal.witness(counters)
        self.heads_compared = tuple(each for each in seating.fingerprints if each in heard)

"""The end of a run: all parties compare the last head of its transcript; two exchanges, both ends.

Each party signs the head that it remembers, the coordinator shows all of them to each, and each
compares. Two parties that were told two histories find out here at the latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocols import wire
from protocols.errors import HistoryError, UnexpectedMessageError, WrongStateError
from protocols.messages import Closing, HeadBundle, HeadStatement
from protocols.rounds.coordinator_journal import HeadsCollected, RunEnded, RunFinished
from protocols.rounds.live_run import LiveRun
from protocols.rounds.seating import (
    COORDINATOR,
    SeatedRun,
    require_enough_heads,
    require_run,
    verify_handed_over,
)
from protocols.rounds.states import CoordinatorState
from protocols.transcript import HeadsRecord, seal_files, transcript_lines


class PartyClosing:
    """A party's end.

    Attributes:
        heads_compared: Parties whose last head equals ours, in seat order; ours is among them.
            Empty before the comparison.
    """

    def __init__(self, run: SeatedRun) -> None:
        self._run = run
        self.heads_compared: tuple[bytes, ...] = ()

    def state_head(self, closing: Closing) -> bytes:
        """Answer a closing with the head that this party remembers; return the frame.

        Raises:
            HistoryError: the coordinator remembers another run.
        """
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


class CoordinatorClosing:
    """The coordinator's end: shows all heads to each party, and writes the transcript down."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def check_head(self, statement: HeadStatement) -> None:
        """Check a party's last head.

        Raises:
            HistoryError: of another history.
        """
        run = self._run
        require_run(statement.run_id, run.run_id)
        if statement.head != run.transcript.head:
            raise HistoryError("a party must remember the same run")
        if statement.epoch != run.known.epoch:
            raise HistoryError("the epoch must be the run's", statement.epoch)

    @property
    def frame(self) -> bytes:
        """Frame that ended the run, the same each time; empty before the end."""
        return b"" if self._run.history is None else self._run.history.closing

    @property
    def heads_frame(self) -> bytes:
        """Frame of all parties' heads, the same each time; empty before the end."""
        frames = () if self._run.history is None else self._run.history.head_frames
        return wire.contain(HeadBundle(self._run.run_id, frames)) if frames else b""

    @property
    def heads_compared(self) -> tuple[bytes, ...]:
        """Parties that signed the last head of this run, in seat order; none before `compare`."""
        frames = () if self._run.history is None else self._run.history.head_frames
        heads = zip(self._run.seats, frames, strict=bool(frames))
        return tuple(seat for seat, frame in heads if frame)

    def close(self) -> bytes:
        """End the run and return the frame that tells every party.

        Raises:
            WrongStateError: a plan is open, or the run is not set up.
        """
        run = self._run
        run.require_settled()
        frame = wire.sign(Closing(run.run_id, run.transcript.head), run.identity).frame
        run.do(RunEnded(frame))
        run.exchange.begin(CoordinatorState.CLOSING, run.seats)
        return frame

    def compare(self) -> bytes:
        """Return all parties' heads, for every party to compare.

        A party that was lost since has none: the others go on if they are enough.

        Raises:
            WrongStateError: the run is not closed, or its heads were compared before.
            TooFewHeadsError: too few heads came to tell one history from two.
        """
        run, exchange = self._run, self._run.exchange
        if self.heads_frame:
            raise WrongStateError("heads must be compared once")
        if exchange.state is not CoordinatorState.CLOSING:
            exchange.require(CoordinatorState.COMPARING)
        heads = exchange.frames_of(run.seats)
        require_enough_heads(heads, run.form)
        run.do(HeadsCollected(heads))
        exchange.begin(CoordinatorState.COMPARING, self.heads_compared)
        return self.heads_frame

    def finish(self) -> None:
        """Note that every party that showed a head has compared them all."""
        self._run.do(RunFinished(self._run.exchange.frames_of(self._run.seats)))

    def signed_transcript(self) -> list[dict[str, Any]]:
        """Return the transcript as it is written down: hashes, signatures and public keys."""
        run, known = self._run, self._run.known
        heads = [*known.heads]
        if not known.head_frames and known.closing:  # those that came, to show whose are missing
            signed = {seat: each for seat in run.seats if (each := run.exchange.message_of(seat))}
            entries = len(known.transcript.entries)
            heads.append(HeadsRecord("closing", entries, known.epoch, signed))
        parties = list(run.parties.values())
        return transcript_lines(known.transcript, heads, parties=parties, coordinator=run.identity)

    def seal_results(self, files: Mapping[str, str]) -> dict[str, Any]:
        """Bind the files of this run's results to its transcript; see `seal_files`."""
        return seal_files(files, head=self._run.transcript.head, coordinator=self._run.identity)

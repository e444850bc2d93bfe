"""The end of a run at the coordinator: it shows all heads, and writes the transcript down."""

from __future__ import annotations

from collections.abc import Mapping

from protocols import wire
from protocols.errors import HistoryError, WrongStateError
from protocols.messages import Closing, HeadBundle, HeadStatement
from protocols.rounds.coordinator_journal import HeadsCollected, RunEnded, RunFinished
from protocols.rounds.live_run import LiveRun
from protocols.rounds.seating import require_enough_heads, require_run
from protocols.rounds.states import CoordinatorState
from protocols.transcript import HeadsRecord, seal_files, transcript_lines


class CoordinatorClosing:
    """The coordinator's end: shows all heads to each party, and writes the transcript down."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def check_head(self, statement: HeadStatement) -> None:
        """Refuse a last head of another history, with `HistoryError`."""
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
        """End the run and return the frame that tells every party; no plan may be open."""
        run = self._run
        run.require_settled()
        frame = wire.sign(Closing(run.run_id, run.transcript.head), run.identity).frame
        run.do(RunEnded(frame))
        run.exchange.begin(CoordinatorState.CLOSING, run.seats)
        return frame

    def compare(self) -> bytes:
        """Return all parties' heads, for every party to compare, once.

        A party that was lost since has none: the others go on if they are enough to tell one
        history from two; otherwise `TooFewHeadsError` is raised.
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

    def signed_transcript(self) -> list[dict[str, object]]:
        """Return the transcript as it is written down: hashes, signatures and public keys."""
        run, known = self._run, self._run.known
        heads = [*known.heads]
        if not known.head_frames and known.closing:  # those that came, to show whose are missing
            signed = {seat: each for seat in run.seats if (each := run.exchange.message_of(seat))}
            entries = len(known.transcript.entries)
            heads.append(HeadsRecord("closing", entries, known.epoch, signed))
        parties = list(run.parties.values())
        return transcript_lines(known.transcript, heads, parties=parties, coordinator=run.identity)

    def seal_results(self, files: Mapping[str, str]) -> dict[str, object]:
        """Bind the files of this run's results to its transcript; see `seal_files`."""
        return seal_files(files, head=self._run.transcript.head, coordinator=self._run.identity)

"""The last journal counter that each party signed, over all runs (rule R4)."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select

from coordinator.database.federation_schema import StatementRow
from coordinator.database.run_attempt import RunAttempt
from pate_fed.nodes.database import put
from protocols import wire
from protocols.errors import ProtocolError
from protocols.messages import HeadStatement, KeyStatement, Ready

_STATEMENTS = select(StatementRow)


class Statements:
    """The parties' last statements in the database; they outlive every run."""

    def __init__(self, run: RunAttempt) -> None:
        self._run = run
        with run.transaction() as connection:
            self._frames = _frames_in(connection)

    def frames(self) -> dict[bytes, bytes]:
        """Return the frame of each party's last signed counter, by fingerprint."""
        return dict(self._frames)

    def save(self, frames: Mapping[bytes, bytes]) -> None:
        """Keep these statements, unless newer ones are known."""
        with self._run.transaction() as connection:
            known = _frames_in(connection)
            newer = _newer(known, frames)
            rows = ({"party": party, "frame": frame} for party, frame in newer.items())
            put(connection, StatementRow, *rows)
        self._frames = {**known, **newer}


def _frames_in(connection: Connection) -> dict[bytes, bytes]:
    return {row.party: row.frame for row in connection.execute(_STATEMENTS)}


def _newer(known: Mapping[bytes, bytes], frames: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the statements that are not older than the known ones.

    A resumed run brings its own statements. Another run may have brought newer ones since.
    """
    return {
        party: frame
        for party, frame in frames.items()
        if party not in known or _counter_of(frame) >= _counter_of(known[party])
    }


def _counter_of(frame: bytes) -> int:
    try:
        message = wire.decode(frame).message
    except ProtocolError:
        return 0  # tells nothing of a journal
    return (
        message.journal_counter if isinstance(message, KeyStatement | Ready | HeadStatement) else 0
    )

"""Files of finished runs, handed to the hospitals that took part in them, and to nobody else."""

from __future__ import annotations

import json
from typing import Final

from sqlalchemy import select

from coordinator.database import Database
from coordinator.database.federation_schema import AttemptRow, RunRow
from coordinator.errors import RunQueueError
from coordinator.federation.home import FederationHome
from pate_fed.regular_files import open_regular
from pate_fed.run_folder import SEAL, SEALED, TRANSCRIPT
from protocols.errors import ProtocolError
from protocols.identity import PublicIdentity

_MOST_IDENTITIES: Final = 2**20
"""Bytes of the first line of a transcript: the keys of at most 1,024 hospitals."""


class RunFiles:
    """The run directories of a federation, as its hospitals may read them."""

    def __init__(self, home: FederationHome, database: Database) -> None:
        self._home = home
        self._database = database

    def read(
        self, run_id: bytes, file: str, *, party: bytes, offset: int, most_bytes: int
    ) -> bytes:
        """Return a piece of a file, by name as in `FinishedRuns.content`; empty after its end.

        Raises:
            RunQueueError: there is no such run or file, it has not ended with labels, or the
                hospital did not take part; the error does not tell which.
            DatabaseError: the database does not answer.
        """
        known = next((one for one in (SEAL, *SEALED) if one == file), None)
        name = self._name_of(run_id)
        if known is None or name is None:
            raise _none()
        folder = self._home.results(name)
        try:
            with open_regular(folder / TRANSCRIPT) as transcript:
                first = transcript.readline(_MOST_IDENTITIES)
            if party not in _parties(first):
                raise _none()
            with open_regular(folder / known) as content:
                content.seek(offset)
                return content.read(most_bytes)
        except OSError as error:
            raise _none() from error

    def _name_of(self, run_id: bytes) -> str | None:
        with self._database.transaction() as connection:
            return connection.scalar(
                select(RunRow.name)
                .join(AttemptRow, AttemptRow.run == RunRow.number)
                .where(AttemptRow.run_id == run_id)
            )


def _parties(identities: bytes) -> frozenset[bytes]:
    """Return the fingerprints of all parties that a transcript's first line names."""
    try:
        keys = json.loads(identities)["parties"]
        return frozenset(PublicIdentity(bytes.fromhex(key)).fingerprint for key in keys)
    except (ValueError, LookupError, TypeError, RecursionError, ProtocolError):
        return frozenset()


def _none() -> RunQueueError:
    return RunQueueError("a run must have ended, and the hospital have taken part")

"""How many votes each patient cast in each run where records vote, in a party's database.

It is what the price of such a run rests on: a patient whose cap is used votes no more, however
often the run is set up, and whatever its batches came to. The counts are on disk before a vote
leaves.

A run has one row, as long as it has patients: how much is written depends on no vote. Patients have
tags, which nobody can compute, or link between runs, without the key of the hospital's identity.
That lies outside of the database, and the last `leave` removes it.

Only patients who were there at a run's first batch vote in it. So a patient who is removed leaves
no tag behind, and is not a new one after a return.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select, update

from party.errors import JournalDamagedError
from party.storage.journal_rows import count_write, require_whole, the_journal, transaction
from party.storage.party_database import PartyDatabase
from party.storage.site_schema import PatientVotesRow
from pate_fed.nodes.database import put
from protocols.identity import SigningIdentity

_DOMAIN: Final = b"pate-fed votes of a patient\0"
_TAG_BYTES: Final = 32
_NUMBER: Final = np.dtype("<u4")

_ALL = select(PatientVotesRow.scope, PatientVotesRow.tags, PatientVotesRow.votes)
_OF_RUN = _ALL.where(PatientVotesRow.scope == bindparam("run"))
_COUNT = (
    update(PatientVotesRow)
    .where(PatientVotesRow.scope == bindparam("run"))
    .values(votes=bindparam("new"))
)

TagOf = Callable[[bytes, str], bytes]
"""Gives the tag of a patient in the run of a scope."""


def tags_by(identity: SigningIdentity) -> TagOf:
    """Return the tags that a hospital of this identity gives its patients."""
    key = identity.private_bytes

    def tag(scope: bytes, patient: str) -> bytes:
        name = patient.encode("utf-8", "surrogateescape")
        return hmac.digest(key, _DOMAIN + scope + name, sha256)

    return tag


class PatientVotes:
    """The votes cast by patients, by `RunScope.digest` and tag. Secret, as votes are."""

    def __init__(self, database: PartyDatabase) -> None:
        self._database = database

    def used(self, scope: bytes, tags: Sequence[bytes], *, most: int) -> NDArray[np.int64]:
        """Return how many of `most` votes each patient used in a run; shape (patients,).

        One who was not there at its first batch has none left.
        """
        with transaction(self._database) as connection:
            row = connection.execute(_OF_RUN, {"run": scope}).one_or_none()
        if row is None:
            return np.zeros(len(tags), dtype=np.int64)
        known = dict(zip(_each(row.tags), _numbers(row.tags, row.votes).tolist(), strict=True))
        return np.array([known.get(tag, most) for tag in tags], dtype=np.int64)

    def keep(self, scope: bytes, tags: Sequence[bytes], used: NDArray[np.int64]) -> None:
        """Keep the votes that patients used in a run; no number ever falls."""
        with transaction(self._database) as connection:
            require_whole(the_journal(connection))
            row = connection.execute(_OF_RUN, {"run": scope}).one_or_none()
            if row is None:
                # Not in the table's order, by which a patient would be linked between runs.
                order = sorted(range(len(tags)), key=tags.__getitem__)
                kept = {
                    "scope": scope,
                    "tags": b"".join(tags[place] for place in order),
                    "votes": used[order].astype(_NUMBER).tobytes(),
                }
                put(connection, PatientVotesRow, kept)
            else:
                new = dict(zip(tags, used.tolist(), strict=True))
                before = _numbers(row.tags, row.votes)
                now = np.array([new.get(tag, 0) for tag in _each(row.tags)], dtype=np.int64)
                votes = np.maximum(before, now).astype(_NUMBER).tobytes()
                connection.execute(_COUNT, {"run": scope, "new": votes})
            count_write(connection)


def forget_patient(connection: Connection, patient: str, *, tag_of: TagOf) -> None:
    """Forget a patient's tag and votes in all runs, as part of a transaction."""
    for row in connection.execute(_ALL).all():
        tags = _each(row.tags)
        own = tag_of(row.scope, patient)
        if own in tags:
            place = tags.index(own)
            votes = np.delete(_numbers(row.tags, row.votes), place).tobytes()
            left = b"".join(tags[:place] + tags[place + 1 :])
            put(connection, PatientVotesRow, {"scope": row.scope, "tags": left, "votes": votes})


def _each(tags: bytes) -> list[bytes]:
    return [tags[start : start + _TAG_BYTES] for start in range(0, len(tags), _TAG_BYTES)]


def _numbers(tags: bytes, votes: bytes) -> NDArray[np.uint32]:
    if len(tags) * _NUMBER.itemsize != len(votes) * _TAG_BYTES:
        raise JournalDamagedError("the votes of patients must be one number for each")
    return np.frombuffer(votes, dtype=_NUMBER)

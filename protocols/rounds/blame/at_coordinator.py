"""The coordinator's record of a plan, to find out who spoiled a row of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import UnexpectedMessageError, WrongStateError
from protocols.messages import BlameRequest, StreamSums
from protocols.ring import Words
from protocols.secure_sum import SecureSum

OpenedStream = tuple[int, int, bytes]
"""Dealer's seat, seat that its key is with (its own for the self mask), key."""


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is named for a wrong row, by fingerprint in seat order.

    Attributes:
        parties: Those whose y does not come to its quota by their own statement: all cheated.
        pairs: Two ends that state different sums of their stream: at least one of them cheated.
        silent: Parties that were asked and stated nothing.
    """

    parties: tuple[bytes, ...] = ()
    pairs: tuple[tuple[bytes, bytes], ...] = ()
    silent: tuple[bytes, ...] = ()


class BlameCase:
    """The coordinator's record of one plan, to find out who spoiled a row of it."""

    def __init__(
        self,
        form: SecureSum,
        *,
        seats: tuple[bytes, ...],
        plan_digest: bytes,
        words: int,
        row_words: int,
    ) -> None:
        require_rows(words, row_words)
        self._form = form
        self._seats = seats
        self._row_words = row_words
        self._sums: dict[bytes, NDArray[np.uint64]] = {}
        self._opened: tuple[OpenedStream, ...] = ()
        self._row = -1
        self._stated: dict[bytes, tuple[int, ...]] = {}
        self.plan_digest = plan_digest

    @property
    def asked(self) -> tuple[bytes, ...]:
        """Parties whose y's were added, in seat order: each has to state."""
        return tuple(seat for seat in self._seats if seat in self._sums)

    def add(self, sender: bytes, masked: Words) -> None:
        """Keep the row sums of a y that is added to the total."""
        rows = masked.reshape(-1, self._row_words).sum(axis=1, dtype=np.uint64)
        self._sums[sender] = rows.astype(self._form.ring.word_type)

    def note_opened(self, streams: Iterable[OpenedStream]) -> None:
        """Keep the keys that opened the total, until a row is asked about: no party may lie there.

        They are known here in any case, and open nothing more than they did.
        """
        self._opened = tuple(streams)

    def ask(self, row: int, *, run_id: bytes) -> BlameRequest:
        """Choose the one row that is asked about; drop the records of the others.

        Raises `WrongStateError` where there is no such row, one was asked about before, or the sum
        was not opened where there are self masks.
        """
        rows = min((len(sums) for sums in self._sums.values()), default=0)
        is_hidden = self._form.survives_dropouts and not self._opened
        if self._row >= 0 or is_hidden or not 0 <= row < rows:
            raise WrongStateError("one row of an opened sum must be asked about, once", row)
        self._row = row
        self._sums = {seat: sums[row : row + 1].copy() for seat, sums in self._sums.items()}
        return BlameRequest(run_id, self.plan_digest, row)

    def take(self, message: StreamSums) -> None:
        """Keep a party's statement on the row that was asked: a sum for each seat, in the ring."""
        fits = (
            (message.plan_digest, message.row) == (self.plan_digest, self._row)
            and len(message.sums) == len(self._seats)
            and max(message.sums) < 1 << self._form.ring.bits
        )
        if not fits:
            raise UnexpectedMessageError("a statement must be of the row that was asked")
        self._stated[message.sender] = message.sums

    def name(self, quotas: Sequence[int]) -> Blame:
        """Compare all statements with the parties' `quotas`, the sums of their rows in seat order.

        Where all state, and the row of the sum is wrong, somebody is named.
        """
        if self._row < 0:
            raise WrongStateError("a row must be asked about before somebody is named")
        stated = {self._seats.index(party): sums for party, sums in self._stated.items()}
        known: dict[tuple[int, int], int] = {}
        for dealer, place, key in self._opened:
            sum_ = self._form.row_sum(key, self._row, row_words=self._row_words)
            known[dealer, place] = known[place, dealer] = sum_
        parties = tuple(
            self._seats[seat]
            for seat in sorted(stated)
            if not self._comes_out(seat, stated[seat], known, quota=quotas[seat])
        )
        pairs = tuple(
            (self._seats[seat], self._seats[peer])
            for seat in sorted(stated)
            for peer in sorted(stated)
            if seat < peer and stated[seat][peer] != stated[peer][seat]
        )
        silent = tuple(party for party in self.asked if party not in self._stated)
        return Blame(parties, pairs, silent)

    def _comes_out(
        self,
        seat: int,
        sums: tuple[int, ...],
        known: Mapping[tuple[int, int], int],
        *,
        quota: int,
    ) -> bool:
        """Tell whether a party's y fits its statement, and its statement the opened streams."""
        # A sum that nobody else knows could hide any lie: self masks are opened, or there are none.
        if sums[seat] != known.get((seat, seat), 0):
            return False
        if any(known.get((seat, place), value) != value for place, value in enumerate(sums)):
            return False
        signed = (value if seat <= place else -value for place, value in enumerate(sums))
        off = int(self._sums[self._seats[seat]][0]) - quota - sum(signed)
        return off % (1 << self._form.ring.bits) == 0

    def __repr__(self) -> str:
        return f"BlameCase(asked={len(self._sums)}, stated={len(self._stated)})"


def require_rows(words: int, row_words: int) -> None:
    """Refuse rows that do not fill a vector, or are a single word, whose sum would open it."""
    if row_words < 2 or words % row_words:
        raise WrongStateError("rows must have two words or more, and fill the vector", row_words)

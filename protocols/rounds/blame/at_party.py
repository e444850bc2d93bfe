"""What a party keeps of a void plan, to state the sums of one row of it."""

from __future__ import annotations

from collections.abc import Mapping

from protocols.errors import BlameError
from protocols.messages import BlameRequest
from protocols.rounds.seating import COORDINATOR
from protocols.secure_sum import SecureSum


class RowWitness:
    """A party's record of an answered plan, to state the sums of one row of it, once.

    Secret, in memory only. It is dropped at a release, at the next plan, and after use. Until then
    it holds the self mask b. A thief of this memory who also has the void batch's y can open it.
    Without b the thief would need shares of b from as many holders as open a sum. The pair keys
    follow from roots that are held until the next plan in any case.
    """

    __slots__ = ("_form", "_keys", "_parties", "_words")

    def __init__(
        self,
        form: SecureSum,
        *,
        words: int,
        seat: int,
        pair_keys: Mapping[int, bytes],
        self_key: bytes,
    ) -> None:
        self._form = form
        self._words = words
        self._parties = len(pair_keys) + 1
        self._keys = {**pair_keys, **({seat: self_key} if self_key else {})}

    def sums(self, row: int, *, row_words: int) -> tuple[int, ...]:
        """Add each stream over one row of `row_words`, modulo the ring; use it up.

        Returns one for each seat; at this party's own the sum of its self mask, 0 where it has
        none. Raises `BlameError` where there is no such row, or its sums were stated before.
        """
        if row_words < 2 or self._words % row_words or not 0 <= row < self._words // row_words:
            raise BlameError("a row must be one of the plan", row)
        if not self._keys:
            raise BlameError("a row must be asked about once")
        keys, self._keys = self._keys, {}
        return tuple(
            self._form.row_sum(keys[seat], row, row_words=row_words) if seat in keys else 0
            for seat in range(self._parties)
        )

    def __repr__(self) -> str:
        return f"RowWitness(words={self._words})"


class PartyBlame:
    """A party's end: what it kept of the void plan just before, for one question about a row."""

    def __init__(self) -> None:
        self._plan_digest, self._expires_at = b"", 0
        self._request: BlameRequest | None = None
        self.witness: RowWitness | None = None

    def keep(self, witness: RowWitness, *, plan_digest: bytes, expires_at: int) -> None:
        """Keep what a plan that is settled void was answered with, until the plan expires."""
        self.witness, self._plan_digest, self._expires_at = witness, plan_digest, expires_at

    def drop(self) -> None:
        """Forget the plan, and the question about it."""
        self.witness = self._request = None

    def take(self, request: BlameRequest, *, now: float) -> None:
        """Let a question about the void plan just before wait for the node's decision."""
        if now >= self._expires_at:
            self.witness = None
        if self.witness is None:
            raise BlameError("keys of the plan must be here still", peer=COORDINATOR)
        if request.plan_digest != self._plan_digest:
            raise BlameError("a row must be of the void plan just before")
        self._request = request

    @property
    def request(self) -> BlameRequest:
        """The question that waits."""
        assert self._request is not None
        return self._request

    def sums(self, *, row_words: int) -> tuple[int, ...]:
        """Add each stream over the row; see `RowWitness.sums`."""
        assert self.witness is not None
        return self.witness.sums(self.request.row, row_words=row_words)

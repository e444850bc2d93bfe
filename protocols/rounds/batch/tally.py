"""The coordinator's sum of one open plan: each y is added to a running total and not kept.

The total looks uniform until the last y is in. Where the form survives drop-outs, it does so until
enough parties have shown their shares.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.errors import (
    ConflictingMessageError,
    UnexpectedMessageError,
    WrongLengthError,
    WrongStateError,
)
from protocols.identity import PublicIdentity
from protocols.messages import (
    MaskedVector,
    Plan,
    Refusal,
    ShareBundle,
)
from protocols.ring import Words
from protocols.rounds.ballots import Ballots
from protocols.rounds.blame.at_coordinator import BlameCase
from protocols.rounds.contribution import Contribution, entry_of
from protocols.rounds.opening.at_coordinator import ShareCollector
from protocols.secure_sum import SecureSum, SignedKey
from protocols.wire import Signed


class Tally:
    """The coordinator's sum of one open plan; in memory only: after a restart the y's come again.

    Args:
        form: Secure sum of the run.
        identities: All parties of the run in seat order, by fingerprint.
        plan: The plan.
        plan_digest: Its digest.
        row_words: Words of a row, to trace who spoils one; 0 if rows are not traced.

    Attributes:
        shares: The parties' shares; None where the form has none.
        ballots: The parties' verdicts.
        case: Row sums that trace who spoiled a row; None if rows are not traced.
    """

    def __init__(
        self,
        form: SecureSum,
        *,
        identities: Mapping[bytes, PublicIdentity],
        plan: Plan,
        plan_digest: bytes,
        row_words: int = 0,
    ) -> None:
        self._form = form
        self._identities = identities
        self._seats = tuple(identities)
        self._plan_digest = plan_digest
        self._size = form.ring.size_of(plan.words)
        self._total: Words | None = form.empty_total(plan.words)
        self._vectors: dict[bytes, bytes] = {}
        self._declined: dict[bytes, bytes] = {}
        self.shares: ShareCollector | None = None
        if form.survives_dropouts:
            self.shares = ShareCollector(form, seats=self._seats, plan_digest=plan_digest)
        threshold = form.threshold(len(identities))
        self.ballots = Ballots(plan_digest, identities=identities, threshold=threshold)
        self.case: BlameCase | None = None
        if row_words:
            self.case = BlameCase(
                form,
                seats=self._seats,
                plan_digest=plan_digest,
                words=plan.words,
                row_words=row_words,
            )

    @property
    def y_bytes(self) -> int:
        """Length of a y, in bytes."""
        return self._size

    @property
    def senders(self) -> tuple[bytes, ...]:
        """Parties whose y's are in the total, in seat order."""
        return tuple(seat for seat in self._seats if seat in self._vectors)

    @property
    def declined(self) -> tuple[bytes, ...]:
        """Parties that signed that they never send, or a y of a wrong length, in seat order."""
        return tuple(seat for seat in self._seats if seat in self._declined)

    @property
    def refusals(self) -> tuple[bytes, ...]:
        """Frames of what they signed, in seat order; of a y its head."""
        return tuple(self._declined[seat] for seat in self.declined)

    def note_refusal(self, refusal: Refusal, frame: bytes) -> None:
        """Keep a party's promise: it is shown to all if the plan is void."""
        self._declined[refusal.sender] = frame

    def take_shares(
        self, bundle: ShareBundle, *, sender: bytes, before: Contribution | None
    ) -> None:
        """Keep a party's shares; see `ShareCollector.take_dealing`.

        Args:
            bundle: The shares.
            sender: Fingerprint of the party.
            before: Its signed contribution from before a restart, if others heard of it.
        """
        if self.shares is None:
            raise UnexpectedMessageError("this form must have no shares", "some")
        self.shares.take_dealing(
            bundle,
            sender=sender,
            identity=self._identities[sender],
            known_digest=b"" if before is None else before.dealing,
        )

    def add(self, signed: Signed, *, before: Contribution | None) -> None:
        """Add a party's y to the total.

        Args:
            signed: The `MaskedVector`, verified.
            before: The party's signed contribution from before a restart, if others heard of it.

        Raises:
            UnexpectedMessageError: of another plan, or without shares where the form has them.
            ConflictingMessageError: the party refused, or sent another y before.
            WrongLengthError: not the plan's length. Its head is kept: it counts as a refusal.
        """
        vector = wire.expect(signed, MaskedVector)
        if vector.plan_digest != self._plan_digest:
            raise UnexpectedMessageError("a vector must be for the open plan", "another")
        if vector.sender in self._declined:
            raise ConflictingMessageError(
                "a party that refused a plan must not send for it", "a vector"
            )
        if before is not None and before.vector != signed.digest:
            raise ConflictingMessageError(
                "a y must be the one that was added before", "another", peer=vector.sender.hex()
            )
        if self.shares is not None and not self.shares.has_dealt(vector.sender):
            raise UnexpectedMessageError("shares must come before a vector", "none")
        if len(vector.body) != self._size:
            self._declined[vector.sender] = wire.head_frame(signed)
            raise WrongLengthError(f"y must have {self._size} bytes", len(vector.body))
        assert self._total is not None
        words = self._form.ring.from_bytes(vector.body)
        self._form.merge(self._total, words)
        if self.case is not None:
            self.case.add(vector.sender, words)
        self._vectors[vector.sender] = signed.digest

    @property
    def contributions(self) -> dict[bytes, Contribution]:
        """Digests of each summed party's signed messages so far, by fingerprint."""
        if self.shares is None:
            return {seat: Contribution(digest) for seat, digest in self._vectors.items()}
        return {
            seat: self.shares.contribution_of(seat, vector_digest=digest)
            for seat, digest in self._vectors.items()
        }

    @property
    def can_open(self) -> bool:
        """Whether every y is in, or the survivors are fixed; False once the sum was opened."""
        is_whole = len(self._vectors) == len(self._seats)
        if self.shares is not None:
            is_whole = self.shares.is_fixed
        return is_whole and self._total is not None

    def streams(self) -> list[SignedKey]:
        """Join the keys of all streams that are still in the total; see `ShareCollector`."""
        return [] if self.shares is None else self.shares.streams()

    def open(self, streams: list[SignedKey]) -> NDArray[np.int64]:
        """Open the sum and forget the total. Secret.

        Raises:
            WrongStateError: some y or share is missing, or the sum was opened before.
        """
        if not self.can_open or self._total is None:
            raise WrongStateError("every y must be in, and the sum opened once", "another state")
        if self.case is not None and streams:
            alive = [self._seats.index(seat) for seat in self.senders]
            left = self._form.leftovers(alive, parties=len(self._seats))
            opened = zip(left, streams, strict=True)
            self.case.note_opened((dealer, seat, key) for (dealer, seat, _), (_, key) in opened)
        total, self._total = self._total, None
        values = self._form.unshard(total, streams=streams)
        total.fill(0)  # it holds the sum now
        return values

    def entries(self, added: Mapping[bytes, Contribution]) -> tuple[bytes, ...]:
        """Return each seat's entry in a settlement."""
        return tuple(entry_of(added.get(seat)) for seat in self._seats)

    def __repr__(self) -> str:
        return f"Tally(senders={len(self._vectors)})"

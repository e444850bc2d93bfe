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
from protocols.messages import MaskedVector, Plan, ShareBundle
from protocols.ring import Words
from protocols.rounds.blame.at_coordinator import BlameCase
from protocols.rounds.contribution import Contribution
from protocols.rounds.opening.at_coordinator import ShareCollector
from protocols.rounds.verdict_collector import VerdictCollector
from protocols.secure_sum import SecureSum, SignedKey
from protocols.wire import Signed


class RunningTotal:
    """The coordinator's sum of one open plan; in memory only: after a restart the y's come again.

    Attributes:
        declined: What each party signed that never sends, or of a y of a wrong length its head.
        shares: The parties' shares; None where the form has none.
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
        self.y_bytes = form.ring.size_of(plan.words)
        self._total: Words | None = form.empty_total(plan.words)
        self._vectors: dict[bytes, bytes] = {}
        self.declined: dict[bytes, bytes] = {}
        self.shares: ShareCollector | None = None
        if form.is_certified:
            self.shares = ShareCollector(form, seats=self._seats, plan_digest=plan_digest)
        threshold = form.threshold(len(identities))
        self.verdicts = VerdictCollector(plan_digest, identities=identities, threshold=threshold)
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
    def senders(self) -> tuple[bytes, ...]:
        """Parties whose y's are in the total, in seat order."""
        return tuple(seat for seat in self._seats if seat in self._vectors)

    @property
    def refusals(self) -> tuple[bytes, ...]:
        """Frames of `declined`, in seat order."""
        return tuple(self.declined[seat] for seat in self._seats if seat in self.declined)

    def take_shares(
        self, bundle: ShareBundle, *, sender: bytes, before: Contribution | None
    ) -> None:
        """Keep a party's shares; `before` as in `add`. See `ShareCollector.take_dealing`."""
        if self.shares is None:
            raise UnexpectedMessageError("this form must have no shares")
        known = b"" if before is None else before.dealing
        identity = self._identities[sender]
        self.shares.take_dealing(bundle, sender=sender, identity=identity, known_digest=known)

    def add(self, signed: Signed, *, before: Contribution | None) -> None:
        """Add a party's verified y to the total.

        `before` is the party's signed contribution from before a restart, if others heard of it.

        Raises:
            UnexpectedMessageError: of another plan, or without shares where the form has them.
            ConflictingMessageError: the party refused, or sent another y before.
            WrongLengthError: not the plan's length. Its head is kept: it counts as a refusal.
        """
        vector = wire.expect(signed, MaskedVector)
        if vector.plan_digest != self._plan_digest:
            raise UnexpectedMessageError("a vector must be for the open plan")
        if vector.sender in self.declined:
            raise ConflictingMessageError("a party that refused a plan must not send for it")
        if before is not None and before.vector != signed.digest:
            raise ConflictingMessageError(
                "a y must be the one that was added before", peer=vector.sender.hex()
            )
        if self.shares is not None and not self.shares.has_dealt(vector.sender):
            raise UnexpectedMessageError("shares must come before a vector")
        if len(vector.body) != self.y_bytes:
            self.declined[vector.sender] = wire.head_frame(signed)
            raise WrongLengthError(f"y must have {self.y_bytes} bytes", len(vector.body))
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

    def open(self, streams: list[SignedKey]) -> NDArray[np.int64]:
        """Open the sum, less the streams that are still in it, and forget the total. Secret.

        Raises `WrongStateError` where a y or share is missing, or the sum was opened before.
        """
        if not self.can_open or self._total is None:
            raise WrongStateError("every y must be in, and the sum opened once")
        if self.case is not None and streams:
            alive = [self._seats.index(seat) for seat in self.senders]
            left = self._form.leftovers(alive, parties=len(self._seats))
            opened = zip(left, streams, strict=True)
            self.case.note_opened((dealer, seat, key) for (dealer, seat, _), (_, key) in opened)
        total, self._total = self._total, None
        values = self._form.unshard(total, streams=streams)
        total.fill(0)  # it holds the sum now
        return values

    def __repr__(self) -> str:
        return f"RunningTotal(senders={len(self._vectors)})"

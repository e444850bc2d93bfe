"""A batch at a party: it checks the plan, hides its vector and helps to open the sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocols import wire
from protocols.errors import (
    HistoryError,
    InvalidVectorError,
    UnexpectedMessageError,
)
from protocols.identity import SigningIdentity
from protocols.messages import (
    Plan,
)
from protocols.pair_keys import MAX_SKIPPED_EPOCHS, PairRoots
from protocols.rounds.blame import RowWitness
from protocols.rounds.contribution import Contribution
from protocols.rounds.journal import RoundJournal
from protocols.rounds.opening import ShareHolder
from protocols.rounds.plans import PartyPlan
from protocols.rounds.seating import COORDINATOR, Seating, require_fresh
from protocols.transcript import Transcript

_SELF_KEY_BYTES = 32


def require_plan(
    plan: Plan,
    *,
    seating: Seating,
    transcript: Transcript,
    epoch: int,
    next_phase: tuple[int, int, int] | None,
    now: float,
) -> None:
    """Check that a plan continues what this party remembers.

    Args:
        plan: The plan.
        seating: The run.
        transcript: The run's chain as this party saw it.
        epoch: Highest epoch that this party moved to.
        next_phase: Batch, attempt and phase that may follow a released phase; None if none may.
        now: Unix time, in seconds.

    Raises:
        UnexpectedMessageError: it has expired, outlives its run, or is of a wrong phase or epoch.
        HistoryError: it continues another history.
    """
    require_fresh(plan.expires_at, now=now)
    if plan.expires_at > seating.record.expires_at:
        raise UnexpectedMessageError(
            "a plan must expire with its run at the latest", "later", peer=COORDINATOR
        )
    if plan.previous_head != transcript.head:
        raise HistoryError(
            "a plan must continue the history that this party remembers",
            "another head",
            peer=COORDINATOR,
        )
    if plan.phase != 0 and (plan.batch, plan.attempt, plan.phase) != next_phase:
        raise UnexpectedMessageError(
            "a later phase must follow the released one before it, once",
            plan.phase,
            peer=COORDINATOR,
        )
    if not epoch < plan.epoch <= epoch + MAX_SKIPPED_EPOCHS:
        raise UnexpectedMessageError(
            f"an attempt's epoch must be 1 to {MAX_SKIPPED_EPOCHS} ahead of {epoch}",
            plan.epoch,
            peer=COORDINATOR,
        )


def hide_vector(
    open_plan: PartyPlan,
    vector: NDArray[np.int64],
    *,
    seating: Seating,
    identity: SigningIdentity,
    roots: PairRoots,
    journal: RoundJournal,
    random_bytes: Callable[[int], bytes],
) -> tuple[bytes, ...]:
    """Turn a party's vector into y and the shares in front of it; store both before they leave.

    Journals the plan, moves the roots forward, computes y once and stores it, in this order.

    Args:
        open_plan: The plan; gets what was sent, the shares and the stream sums.
        vector: x, signed integers; shape (plan.words,). Secret.
        seating: The run.
        identity: Of this party.
        roots: Its roots, before the plan's epoch or at it.
        journal: Its journal.
        random_bytes: Cryptographic random numbers.

    Returns:
        The frames to send.

    Raises:
        InvalidVectorError: not the plan's length, or out of range.
        KeyReuseError: the plan was begun before.
    """
    plan, form = open_plan.known, seating.form
    if vector.shape != (plan.words,):
        raise InvalidVectorError(f"the vector must have {plan.words} words", vector.shape)
    size = plan.words * form.ring.word_type.itemsize
    answer = wire.VectorFrame(plan_digest=open_plan.digest, sender=seating.me, size=size)
    form.ring.encode(vector, out=form.ring.words_in(answer.body))  # or refused, before any key
    journal.begin(run_id=seating.run_id, epoch=plan.epoch, plan_digest=open_plan.digest)
    if plan.epoch > roots.epoch:
        roots.advance(plan.epoch)
    by_peer = roots.keys_for(open_plan.digest)
    keys = {
        seat: by_peer[peer] for seat, peer in enumerate(seating.fingerprints) if peer in by_peer
    }
    self_key = random_bytes(_SELF_KEY_BYTES) if form.survives_dropouts else b""
    words = form.ring.words_in(answer.body)
    form.hide(words, seat=seating.seat, pair_keys=keys, self_key=self_key)
    del words  # what is signed must not change any more
    frame, digest = answer.sign(identity)
    frames: tuple[bytes, ...] = (frame,)
    dealing_digest = b""
    if form.survives_dropouts:
        holder = ShareHolder(
            identity, seats=seating.identities, plan_digest=open_plan.digest, roots=roots
        )
        dealt = holder.deal(
            keys, self_key=self_key, threshold=seating.threshold, random_bytes=random_bytes
        )
        open_plan.holder, dealing_digest = holder, holder.dealing_digest
        frames = (dealt, frame)
    journal.keep(open_plan.digest, frames, expires_at=plan.expires_at)
    open_plan.sent = Contribution(digest, dealing_digest)
    open_plan.witness = RowWitness(
        form,
        plan_digest=open_plan.digest,
        words=plan.words,
        seat=seating.seat,
        pair_keys=keys,
        self_key=self_key,
    )
    return frames

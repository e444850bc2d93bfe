"""The end of a run: all parties compare the last head of its transcript; two exchanges, both ends.

Each party signs the head that it remembers, the coordinator shows all of them to each, and each
compares. Two parties that were told two histories find out here at the latest.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocols import wire
from protocols.errors import HistoryError, TooFewHeadsError, UnexpectedMessageError
from protocols.identity import SigningIdentity
from protocols.messages import Closing, HeadBundle, HeadStatement
from protocols.rounds.seating import (
    COORDINATOR,
    Seating,
    least_heads,
    require_run,
    verify_relayed,
)
from protocols.transcript import Transcript


@dataclass(frozen=True, slots=True)
class ComparedHeads:
    """What a party found when it compared heads.

    Attributes:
        parties: Those whose heads agree with its own, in seat order; it is one of them.
        counters: Journal counters that the others signed, by fingerprint.
    """

    parties: tuple[bytes, ...]
    counters: dict[bytes, int]


def state_head(
    closing: Closing,
    *,
    seating: Seating,
    transcript: Transcript,
    epoch: int,
    journal_counter: int,
    identity: SigningIdentity,
) -> bytes:
    """Answer a closing with the head that this party remembers; return the frame.

    Raises:
        HistoryError: the coordinator remembers another run.
    """
    if closing.head != transcript.head:
        raise HistoryError(
            "the coordinator must remember the same run", "another head", peer=COORDINATOR
        )
    statement = HeadStatement(seating.run_id, seating.me, transcript.head, epoch, journal_counter)
    return wire.sign(statement, identity).frame


def compare_heads(
    bundle: HeadBundle, *, seating: Seating, head: bytes, floor: int
) -> ComparedHeads:
    """Compare all parties' heads with this party's own.

    Args:
        bundle: All parties' signed heads, empty for a lost party.
        seating: The run.
        head: This party's head.
        floor: Fewest parties of a set that this party serves.

    Raises:
        HistoryError: a party signed another head. It names that party and the coordinator, which
            may have told the two of us two stories.
        TooFewHeadsError: too few heads. Any two comparisons with enough have a party in common,
            so two histories cannot both pass.
    """
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
        verify_relayed(signed, identity)
        if statement.sender != fingerprint or statement.run_id != seating.run_id:
            raise UnexpectedMessageError("a head must be its seat's", "another")
        if statement.head != head:
            raise HistoryError(
                "all parties must remember the same run",
                "another head",
                pair=(fingerprint.hex(), COORDINATOR),
            )
        counters[fingerprint] = statement.journal_counter
    least = max(least_heads(seating.form, parties=len(seating.identities)), floor)
    if len(counters) < least:
        raise TooFewHeadsError(received=len(counters), threshold=least)
    heard = {*counters, seating.me}
    counters.pop(seating.me, None)
    parties = tuple(each for each in seating.fingerprints if each in heard)
    return ComparedHeads(parties, counters)


def require_head(statement: HeadStatement, *, run_id: bytes, head: bytes, epoch: int) -> None:
    """Check a party's last head at the coordinator.

    Raises:
        HistoryError: of another history.
    """
    require_run(statement.run_id, run_id)
    if statement.head != head:
        raise HistoryError("a party must remember the same run", "another head")
    if statement.epoch != epoch:
        raise HistoryError("the epoch must be the run's", statement.epoch)

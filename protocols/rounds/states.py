"""States and transitions of both ends. What a table does not list is an error and changes nothing.

A party::

    NEW -RunOffer-> STATED -RunRecord-> REVIEWING_RUN =accept=> SEALED -EnvelopeBundle-> CONFIRMED
    CONFIRMED -SetupClosing-> READY -Plan-> REVIEWING_PLAN =contribute=> SENT -Settlement-> READY
    REVIEWING_PLAN =refuse=> REFUSED -Settlement-> READY -Closing-> CLOSED -HeadBundle-> DONE

Where the form survives drop-outs, a second exchange opens the sum of who is left::

    SENT -SurvivorSet-> OPENING -ShareBundle-> REVEALED -Settlement-> READY

After a void batch the coordinator may ask once who spoiled a row of it::

    READY -BlameRequest-> REVIEWING_ROW =state_sums, refuse=> READY

and a party that missed a part of a batch goes on after its settlement. In the additive form it can
be void only. Double arrows are calls by
the node: its guard stands between what is proposed and what is done.
From every state a broken promise leads to STOPPED, which has no way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from protocols.errors import UnexpectedMessageError
from protocols.messages import (
    BlameRequest,
    Closing,
    Confirmations,
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    KeyStatement,
    MaskedVector,
    Message,
    Plan,
    Ready,
    Refusal,
    Reveal,
    RunOffer,
    RunRecord,
    Settlement,
    SetupClosing,
    ShareBundle,
    StreamSums,
    SurvivorSet,
)


class PartyState(Enum):
    """Where a party is in a run."""

    NEW = "new"
    STATED = "stated"
    REVIEWING_RUN = "reviewing run"
    SEALED = "sealed"
    CONFIRMED = "confirmed"
    READY = "ready"
    REVIEWING_PLAN = "reviewing plan"
    SENT = "sent"
    OPENING = "opening"
    REVEALED = "revealed"
    REFUSED = "refused"
    REVIEWING_ROW = "reviewing row"
    CLOSED = "closed"
    DONE = "done"
    STOPPED = "stopped"


class CoordinatorState(Enum):
    """Where the coordinator is in a run: what it waits for."""

    OFFERED = "offered"
    RECORDED = "recorded"
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"
    READY = "ready"
    COLLECTING = "collecting"
    REVEALING = "revealing"
    BLAMING = "blaming"
    CLOSING = "closing"
    COMPARING = "comparing"
    DONE = "done"


PARTY_TRANSITIONS: Mapping[PartyState, Mapping[type[Message], PartyState]] = {
    PartyState.NEW: {RunOffer: PartyState.STATED},
    PartyState.STATED: {RunRecord: PartyState.REVIEWING_RUN},
    PartyState.REVIEWING_RUN: {},
    PartyState.SEALED: {EnvelopeBundle: PartyState.CONFIRMED},
    PartyState.CONFIRMED: {SetupClosing: PartyState.READY},
    PartyState.READY: {
        Plan: PartyState.REVIEWING_PLAN,
        Settlement: PartyState.READY,  # of a plan that never came; without its y void at best
        BlameRequest: PartyState.REVIEWING_ROW,
        Closing: PartyState.CLOSED,
    },
    PartyState.REVIEWING_PLAN: {Settlement: PartyState.READY},  # nothing was sent in time
    PartyState.SENT: {SurvivorSet: PartyState.OPENING, Settlement: PartyState.READY},
    PartyState.OPENING: {ShareBundle: PartyState.REVEALED, Settlement: PartyState.READY},
    PartyState.REVEALED: {Settlement: PartyState.READY},
    PartyState.REFUSED: {Settlement: PartyState.READY},
    PartyState.REVIEWING_ROW: {},
    PartyState.CLOSED: {HeadBundle: PartyState.DONE},
    PartyState.DONE: {},
    PartyState.STOPPED: {},
}

COORDINATOR_TRANSITIONS: Mapping[CoordinatorState, Mapping[type[Message], CoordinatorState]] = {
    # A stage is left when every party's message is in; until then the state stays.
    CoordinatorState.OFFERED: {
        KeyStatement: CoordinatorState.RECORDED,
        Refusal: CoordinatorState.OFFERED,
    },
    CoordinatorState.RECORDED: {
        EnvelopeBundle: CoordinatorState.DELIVERED,
        Refusal: CoordinatorState.RECORDED,
    },
    CoordinatorState.DELIVERED: {
        Confirmations: CoordinatorState.CONFIRMED,
        Refusal: CoordinatorState.DELIVERED,
    },
    CoordinatorState.CONFIRMED: {
        Ready: CoordinatorState.READY,
        Refusal: CoordinatorState.CONFIRMED,
    },
    CoordinatorState.READY: {},
    CoordinatorState.COLLECTING: {
        ShareBundle: CoordinatorState.COLLECTING,
        MaskedVector: CoordinatorState.READY,
        Refusal: CoordinatorState.COLLECTING,
    },
    CoordinatorState.REVEALING: {Reveal: CoordinatorState.READY},
    CoordinatorState.BLAMING: {
        StreamSums: CoordinatorState.READY,
        Refusal: CoordinatorState.BLAMING,
    },
    CoordinatorState.CLOSING: {
        HeadStatement: CoordinatorState.COMPARING,
        Refusal: CoordinatorState.CLOSING,  # of a party that lost the run
    },
    CoordinatorState.COMPARING: {
        Ready: CoordinatorState.DONE,
        Refusal: CoordinatorState.COMPARING,
    },
    CoordinatorState.DONE: {},
}

S = TypeVar("S", PartyState, CoordinatorState)


def next_state(table: Mapping[S, Mapping[type[Message], S]], state: S, message: Message) -> S:
    """Look a transition up.

    Raises:
        UnexpectedMessageError: the table has none; nothing changes.
    """
    row = table[state]
    if type(message) not in row:
        allowed = ", ".join(sorted(kind.__name__ for kind in row)) or "nothing"
        raise UnexpectedMessageError(
            f"in state '{state.value}' a message must be: {allowed}", type(message).__name__
        )
    return row[type(message)]

"""States and transitions of both ends. An unlisted message is an error and changes nothing.

A message moves a party on by `PARTY_TRANSITIONS`. Between a message and its answer the guard of
its node decides: from REVIEWING_RUN to SEALED, or to READY without pair keys, or to STOPPED, from
REVIEWING_PLAN to SENT or REFUSED, from REVIEWING_ROW to READY. A broken promise leads from every
state to STOPPED, which has no way out. Only a form with verdicts has JUDGED, CERTIFIED and
REVEALED. A party that missed a part of a batch goes on after its settlement.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from protocols import wire
from protocols.errors import UnexpectedMessageError
from protocols.fields import Message
from protocols.messages import (
    BlameRequest,
    Certificate,
    Closing,
    Confirmations,
    EnvelopeBundle,
    HeadBundle,
    HeadStatement,
    Inquiry,
    KeyStatement,
    MaskedVector,
    Plan,
    Ready,
    Refusal,
    Reveal,
    RunOffer,
    RunRecord,
    SetProposal,
    Settlement,
    SetupClosing,
    ShareBundle,
    StreamSums,
    Verdict,
    VerdictMacs,
)
from protocols.vote_messages import ReportHeader, VoteReport


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
    JUDGED = "judged"
    CERTIFIED = "certified"
    REVEALED = "revealed"
    REFUSED = "refused"
    REVIEWING_ROW = "reviewing row"
    CLOSED = "closed"
    DONE = "done"
    STOPPED = "stopped"


class CoordinatorState(Enum):
    """The coordinator's state in a run: the message that it waits for."""

    OFFERED = "offered"
    RECORDED = "recorded"
    DELIVERED = "delivered"
    CONFIRMED = "confirmed"
    READY = "ready"
    COLLECTING = "collecting"
    AGREEING = "agreeing"
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
        SetProposal: PartyState.JUDGED,  # to close a plan that never came
        Settlement: PartyState.READY,  # of a plan that never came
        Inquiry: PartyState.READY,
        BlameRequest: PartyState.REVIEWING_ROW,
        Closing: PartyState.CLOSED,
    },
    # Nothing was sent in time.
    PartyState.REVIEWING_PLAN: {
        SetProposal: PartyState.JUDGED,
        Settlement: PartyState.READY,
    },
    PartyState.SENT: {SetProposal: PartyState.JUDGED, Settlement: PartyState.READY},
    PartyState.JUDGED: {
        VerdictMacs: PartyState.CERTIFIED,
        Certificate: PartyState.CERTIFIED,
        Settlement: PartyState.READY,
    },
    PartyState.CERTIFIED: {ShareBundle: PartyState.REVEALED, Settlement: PartyState.READY},
    PartyState.REVEALED: {Settlement: PartyState.READY},
    PartyState.REFUSED: {SetProposal: PartyState.JUDGED, Settlement: PartyState.READY},
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
        VoteReport: CoordinatorState.READY,
        Refusal: CoordinatorState.COLLECTING,
    },
    CoordinatorState.AGREEING: {
        VerdictMacs: CoordinatorState.AGREEING,
        Verdict: CoordinatorState.READY,
        Refusal: CoordinatorState.AGREEING,
    },
    CoordinatorState.REVEALING: {
        Reveal: CoordinatorState.READY,
        Refusal: CoordinatorState.REVEALING,
    },
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
    """Look a transition up; `UnexpectedMessageError` where the table has none."""
    row = table[state]
    if type(message) not in row:
        allowed = ", ".join(sorted(kind.__name__ for kind in row)) or "nothing"
        raise UnexpectedMessageError(
            f"in state '{state.value}' a message must be: {allowed}", type(message).__name__
        )
    return row[type(message)]


def subject_of(message: Message) -> object:
    """Return what a message is about, beside its kind: two bodies for it are a conflict."""
    match message:
        case RunOffer():
            return message.nonce
        case RunRecord():
            return message.offer_digest
        case Plan():
            return message.epoch
        case SetProposal():
            return message.plan_digest, bool(message.survivors)  # one set, one attempt to close
        case Reveal():
            return message.opening_digest
        case Ready():
            return message.stage
        case VoteReport():
            return plan_of(message)
        case _:
            return getattr(message, "plan_digest", None)


def plan_of(report: VoteReport) -> bytes:
    """Return the digest of the plan that a report's header names; nothing of it is verified."""
    return wire.expect(wire.decode(report.header), ReportHeader).plan_digest

"""Every type of message by its number on the wire, and the version of them all."""

from __future__ import annotations

from protocols.messages.batch import (
    Inquiry,
    MaskedVector,
    Plan,
    Readiness,
    Refusal,
    Settlement,
    VectorHead,
)
from protocols.messages.blame import BlameRequest, StreamSums
from protocols.messages.closing import Closing, HeadBundle, HeadStatement
from protocols.messages.fields import Message
from protocols.messages.membership import (
    AuditHead,
    JoinRequest,
    Membership,
    MembershipQuery,
    PoolQuery,
    ResultsQuery,
)
from protocols.messages.opening import (
    Certificate,
    Dealing,
    Proposal,
    Reveal,
    ShareBundle,
    Verdict,
    VerdictMacs,
)
from protocols.messages.setup import (
    Confirmations,
    Envelope,
    EnvelopeBundle,
    KeyStatement,
    Ready,
    RunInquiry,
    RunOffer,
    RunReadiness,
    RunRecord,
    SetupClosing,
)

PROTOCOL_VERSION = 2

MESSAGE_TYPES: dict[int, type[Message]] = {
    message.TYPE: message
    for message in (
        RunOffer,
        KeyStatement,
        RunRecord,
        Envelope,
        EnvelopeBundle,
        Confirmations,
        SetupClosing,
        Ready,
        Plan,
        MaskedVector,
        Refusal,
        Settlement,
        Closing,
        HeadStatement,
        HeadBundle,
        Dealing,
        ShareBundle,
        Proposal,
        Reveal,
        BlameRequest,
        StreamSums,
        JoinRequest,
        MembershipQuery,
        Membership,
        PoolQuery,
        AuditHead,
        Verdict,
        Certificate,
        VerdictMacs,
        Inquiry,
        Readiness,
        ResultsQuery,
        RunInquiry,
        RunReadiness,
        VectorHead,
    )
}

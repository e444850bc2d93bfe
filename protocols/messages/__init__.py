"""Every message of a run, as a frozen value that is checked when it is made.

One run, in order (C the coordinator, P a party; `*` relayed between parties)::

    asking    C -> P  RunInquiry          would you take part? to each that is there
              P -> C  RunReadiness        what its people decided, and when
    setup     C -> P  RunOffer            who calls, which form, until when
              P -> C  KeyStatement        identity, sealing key and nonce for this run
              C -> P  RunRecord           all statements; its digest is the run's id
              P -> C  EnvelopeBundle *    a sealed share of the pair root for each peer
              C -> P  EnvelopeBundle      those addressed to this party
              P -> C  Confirmations *     a MAC under the pair root for each peer
              C -> P  SetupClosing        those for this party, and what all parties sent
              P -> C  Ready               transcript head
    batch     C -> P  Plan                the queries and their terms
              P -> C  MaskedVector        y, or Refusal
              C -> P  Settlement          released, or void; travels with the next message
    masked    P -> C  ShareBundle *       before y: hashes and sealed shares of this batch's keys
              C -> P  Proposal            whose y's to open, or that the plan is to be closed
              P -> C  VerdictMacs *       the verdict below, for each peer
              P -> C  Verdict             the party agrees, once for each plan
              C -> P  VerdictMacs         those for this party; or a Certificate
              C -> P  ShareBundle         hashes of all survivors, shares for this party
              P -> C  Reveal              its shares of the keys still in the sum, of no others
    blame     C -> P  BlameRequest        which row of a void plan was wrong
              P -> C  StreamSums          the sum of each of its streams over that row
    closing   C -> P  Closing             the run is over
              P -> C  HeadStatement *     transcript head, signed
              C -> P  HeadBundle          everybody's heads, to compare
              P -> C  Ready

There is a file for each stage, and `membership` for messages outside a run. `fields` has the
types of the fields, which carry their bounds; `catalog` has the numbers. `protocols.wire` gives the
bytes.
"""

from protocols.messages.batch import (
    Inquiry,
    MaskedVector,
    Plan,
    Readiness,
    Refusal,
    Settlement,
    VectorHead,
    require_vector_size,
)
from protocols.messages.blame import BlameRequest, StreamSums
from protocols.messages.catalog import MESSAGE_TYPES, PROTOCOL_VERSION
from protocols.messages.closing import Closing, HeadBundle, HeadStatement
from protocols.messages.fields import (
    DIGEST_BYTES,
    KIB,
    MAX_PARTIES,
    MAX_WORDS,
    MOST_WORDS_LETTERS,
    Letters,
    Line,
    Message,
    Range,
    Size,
    field_types,
)
from protocols.messages.membership import (
    MOST_OPEN_RUNS,
    AuditHead,
    JoinRequest,
    Membership,
    MembershipQuery,
    PoolQuery,
    ResultsQuery,
)
from protocols.messages.opening import (
    MAX_COLUMN_BYTES,
    VERDICT_MAC_BYTES,
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

__all__ = [
    "DIGEST_BYTES",
    "KIB",
    "MAX_COLUMN_BYTES",
    "MAX_PARTIES",
    "MAX_WORDS",
    "MESSAGE_TYPES",
    "MOST_OPEN_RUNS",
    "MOST_WORDS_LETTERS",
    "PROTOCOL_VERSION",
    "VERDICT_MAC_BYTES",
    "AuditHead",
    "BlameRequest",
    "Certificate",
    "Closing",
    "Confirmations",
    "Dealing",
    "Envelope",
    "EnvelopeBundle",
    "HeadBundle",
    "HeadStatement",
    "Inquiry",
    "JoinRequest",
    "KeyStatement",
    "Letters",
    "Line",
    "MaskedVector",
    "Membership",
    "MembershipQuery",
    "Message",
    "Plan",
    "PoolQuery",
    "Proposal",
    "Range",
    "Readiness",
    "Ready",
    "Refusal",
    "ResultsQuery",
    "Reveal",
    "RunInquiry",
    "RunOffer",
    "RunReadiness",
    "RunRecord",
    "Settlement",
    "SetupClosing",
    "ShareBundle",
    "Size",
    "StreamSums",
    "VectorHead",
    "Verdict",
    "VerdictMacs",
    "field_types",
    "require_vector_size",
]

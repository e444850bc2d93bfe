"""What each kind of message that leaves a hospital is, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SENT_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "RunReadiness": (
        "Answer before a run",
        "Whether this hospital would take part in a run: a public code, when its people decided "
        "or were asked, and what they wrote for the operator. Nothing about records.",
    ),
    "KeyStatement": (
        "Public keys",
        "The hospital's public keys for one run, and its journal's count.",
    ),
    "EnvelopeBundle": (
        "Sealed numbers for the other hospitals",
        "A random number for each other hospital, sealed so that only that one can read it. "
        "From these numbers two hospitals make the masks that hide votes.",
    ),
    "Confirmations": (
        "Check of shared numbers",
        "A check that this hospital and each other one hold the same random numbers.",
    ),
    "Ready": (
        "Receipt",
        "The hospital's signature: it took the coordinator's last message. "
        "It holds its journal's count.",
    ),
    "Readiness": (
        "Answer before a batch",
        "An answer before a batch: ready, or which public questions it would refuse.",
    ),
    "MaskedVector": (
        "Hidden votes",
        "The teachers' votes on one batch, hidden by masks. Alone it looks random. "
        "Only the sum over the hospitals can be opened.",
    ),
    "ShareBundle": (
        "Sealed key shares",
        "Key shares for one batch, each sealed for one other hospital, and their fingerprints.",
    ),
    "Verdict": (
        "Agreement on the hospitals of a sum",
        "The hospital's agreement that exactly these hospitals' sum may open, or that the "
        "batch is closed.",
    ),
    "VerdictMacs": (
        "Proofs of the agreement",
        "A short proof of the hospital's agreement for each other hospital.",
    ),
    "Reveal": (
        "Shares that open the sum",
        "Shares of other hospitals' keys. They open the agreed sum, and no hospital's votes.",
    ),
    "StreamSums": (
        "Sums of masks",
        "Sums of masks over one row. They find the hospital whose row was wrong, and tell no vote.",
    ),
    "Refusal": ("Refusal", "A refusal with a public code. It is sent before any teacher votes."),
    "VoteReport": (
        "Votes in two sealed parts",
        "The hospital's votes as two shares, each sealed to one organisation, with a proof that "
        "they are votes. One share alone tells nothing.",
    ),
    "HeadStatement": (
        "Fingerprint of the run's history",
        "The fingerprint of the run's history, and the journal's count, signed.",
    ),
    "JoinRequest": (
        "Request to join",
        "The request to join: the hospital's name, its public keys, the invitation's "
        "one-time code.",
    ),
    "MembershipQuery": (
        "Question for the members",
        "A question for the list of members. It holds the version of this program, the "
        "count of records in the audit log, and their fingerprint.",
    ),
    "PoolQuery": ("Request for public questions", "A request for the public questions of a run."),
    "ResultsQuery": ("Request for results", "A request for a file of a run's results."),
}
"""A title and a sentence, by the name of its type in `protocols.messages`."""


def words_of_sent(kind: str) -> tuple[str, str]:
    """Return title and sentence of a kind of message; an unknown kind is said to be one."""
    return SENT_WORDS.get(kind, (kind, "A message of a kind that this version does not know."))

"""What each kind of message that leaves a hospital is, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SENT_WORDS: Final[Mapping[str, str]] = {
    "KeyStatement": "The hospital's public keys for one run, and its journal's count.",
    "Envelope": "A random number for one other hospital, sealed so that only it can read it. "
    "From these numbers both make the masks that hide votes.",
    "Confirmations": "A check that this hospital and each other one hold the same random numbers.",
    "Ready": "The hospital's signature: it took the coordinator's last message. "
    "It holds its journal's count.",
    "Readiness": "An answer before a batch: ready, or which public questions it would refuse.",
    "MaskedVector": "The teachers' votes on one batch, hidden by masks. Alone it looks random. "
    "Only the sum over the hospitals can be opened.",
    "Dealing": "Fingerprints of the key shares that the other hospitals keep for this batch.",
    "ShareBundle": "Key shares for one batch, each sealed for one other hospital.",
    "Verdict": "The hospital's agreement that exactly these hospitals' sum may open, or that the "
    "batch is closed.",
    "Reveal": "Shares of other hospitals' keys. They open the agreed sum, and no hospital's votes.",
    "StreamSums": "Sums of masks over one row. They find the hospital whose row was wrong, and "
    "tell no vote.",
    "Refusal": "A refusal with a public code. It is sent before any teacher votes.",
    "HeadStatement": "The fingerprint of the run's history, and the journal's count, signed.",
    "JoinRequest": "The request to join: the hospital's name, its public keys, the invitation's "
    "one-time code.",
    "MembershipQuery": "A question for the list of members. It holds the count of records in the "
    "audit log and their fingerprint.",
    "PoolQuery": "A request for the public questions of a run.",
    "ResultsQuery": "A request for a file of a run's results.",
}
"""By the name of its type in `protocols.messages`."""


def words_of_sent(kind: str) -> str:
    """Return the words for a kind of message; an unknown kind is said to be one."""
    return SENT_WORDS.get(kind, "A message of a kind that this page does not know.")

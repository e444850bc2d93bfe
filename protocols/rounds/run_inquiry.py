"""Before an offer: the coordinator asks whether a party would take part; both ends.

It belongs to no run: it enters no history, and what a party is in the middle of goes on. So it can
go to each party that is there, as often as the coordinator likes, while others are away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from protocols import wire
from protocols.errors import SuiteError, UnexpectedMessageError, UnknownPeerError
from protocols.identity import PublicIdentity
from protocols.messages import Refusal, RunInquiry, RunReadiness
from protocols.rounds.seating import COORDINATOR, verify_handed_over
from protocols.secure_sum import SecureSum
from protocols.wire import Signed


def take(
    signed: Signed,
    inquiry: RunInquiry,
    *,
    coordinator: PublicIdentity,
    me: bytes,
    known_peers: Collection[bytes],
    forms: Mapping[str, SecureSum],
    suites: Collection[str],
) -> None:
    """Check at a party what it would check of an offer and its record.

    Args:
        signed: The frame.
        inquiry: Its message.
        coordinator: The pinned coordinator.
        me: This party's fingerprint.
        known_peers: Fingerprints of known peers; may contain this party.
        forms: Secure sums that this party knows, by name.
        suites: Names of the sealing suites that it accepts.

    Raises:
        RemoteProtocolError: it is not the coordinator's, or of a run that this party cannot be in.
        TooFewPartiesError: its form needs more parties.
    """
    verify_handed_over(signed, coordinator)
    if inquiry.coordinator != coordinator.fingerprint:
        raise UnknownPeerError(
            "an inquiry must name the pinned coordinator", "another", peer=COORDINATOR
        )
    form = forms.get(inquiry.form)
    if form is None or inquiry.ring_bits != form.ring.bits:
        raise UnexpectedMessageError(
            "the form and its ring must be known to this party", "others", peer=COORDINATOR
        )
    if inquiry.suite not in suites:
        raise SuiteError(
            "the suite must be one that this party accepts", "another", peer=COORDINATOR
        )
    if list(inquiry.seats) != sorted(set(inquiry.seats)):
        raise UnknownPeerError("seats must be in the order of fingerprints, none twice", "others")
    if me not in inquiry.seats:
        raise UnknownPeerError("our own seat must be in the run", "none", peer=COORDINATOR)
    form.require_enough(len(inquiry.seats))
    for seat in inquiry.seats:
        if seat != me and seat not in known_peers:
            raise UnknownPeerError("every party must be known here", "one not", peer=seat.hex())


def read(
    frame: bytes, *, inquiry: bytes, parties: Mapping[bytes, PublicIdentity]
) -> RunReadiness | Refusal:
    """Read a party's answer at the coordinator.

    Args:
        frame: The answer.
        inquiry: The frame that was sent.
        parties: The run's parties, by fingerprint.

    Raises:
        RemoteProtocolError: it is no party's answer to this inquiry.
    """
    signed = wire.decode(frame)
    message = signed.message
    if not isinstance(message, RunReadiness | Refusal):
        raise UnexpectedMessageError("an answer must be that to an inquiry", type(message).__name__)
    if message.sender not in parties:
        raise UnknownPeerError("an answer must be a party's", "another's")
    signed.verify(parties[message.sender])
    if message.subject != wire.decode(inquiry).digest:
        raise UnexpectedMessageError("an answer must be to this inquiry", "another")
    return message

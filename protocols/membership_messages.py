"""Messages of a hospital and its coordinator outside a run: joining, pools, results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from protocols.errors import MalformedMessageError
from protocols.fields import (
    KIB,
    MAX_PARTIES,
    Between,
    Digest,
    DigestOrNone,
    Key,
    KeyOrNone,
    Length,
    Message,
    Name,
    PartyName,
    PartyNameOrNone,
    SmallFrameOrNone,
    UnixTime,
    message,
)
from protocols.identity import KEY_BYTES, PublicIdentity
from protocols.party_names import is_party_name

MOST_OPEN_RUNS = 256
"""Most names of runs in an answer about a membership."""

MOST_DATA_SETS = 32
"""Most named data sets of a hospital."""

MOST_VOTES = 2**30 - 1
"""Most votes of a hospital on a query."""

_DATA_SET = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class NamedTally:
    """The tally of a federation as its coordinator names it: to be compared, not believed."""

    name: str
    identity: PublicIdentity

    @classmethod
    def of(cls, name: str, key: bytes) -> NamedTally | None:
        """Return it; None where both are empty. One without the other is malformed."""
        if not (name or key):
            return None
        if not is_party_name(name) or len(key) != KEY_BYTES:
            raise MalformedMessageError("a tally must have a name and a key")
        return cls(name, PublicIdentity(key))


@message(22, "join request")
class JoinRequest(Message):
    """A hospital asks to join a federation; the operator approves it after a telephone call.

    Attributes:
        token: The invitation's token, good for one request.
        party_name: The hospital's name, from the invitation.
        identity_key: Its Ed25519 key, compared by telephone.
        node_key: Its EC key for Flower, PEM: bound under the identity by this signature.
    """

    coordinator: Digest
    token: Annotated[bytes, Length(16, 16)]
    party_name: PartyName
    identity_key: Key
    node_key: Annotated[bytes, Length(1, KIB)]
    asked_at: UnixTime

    def __repr__(self) -> str:
        return f"JoinRequest({self.party_name})"


@message(23, "membership query")
class MembershipQuery(Message):
    """A hospital asks for the state of its request, and for the other members.

    Attributes:
        audit_head: Frame of its `AuditHead`, to be kept; empty if it has none to give.
        goes_on_from: SHA-256 of the frame that it was given back and found in its log; empty if
            there is none. A head that is kept gives way to nobody who did not find it.
        version: Version of the software that it runs; empty if it tells none.
        votes: Votes that its node casts on each query; 0 if it tells none.
        data_sets: Names of its further data sets, in order; a task may ask for one of them.
        named_votes: Votes that it casts on queries about each of these.
    """

    coordinator: Digest
    sender: Digest
    asked_at: UnixTime
    audit_head: SmallFrameOrNone
    goes_on_from: DigestOrNone
    version: Annotated[str, Length(0, 32)]
    votes: Annotated[int, Between(0, MOST_VOTES)]
    data_sets: Annotated[tuple[Name, ...], Length(0, MOST_DATA_SETS)]
    named_votes: Annotated[
        tuple[Annotated[int, Between(0, MOST_VOTES)], ...], Length(0, MOST_DATA_SETS)
    ]

    def votes_by_name(self) -> dict[str, int]:
        """Return the votes of each named data set; names without numbers are malformed."""
        names = self.data_sets
        is_clear = all(_DATA_SET.fullmatch(one) for one in names)
        if len(names) != len(self.named_votes) or list(names) != sorted(set(names)) or not is_clear:
            raise MalformedMessageError("every data set must have its votes, once and in order")
        return dict(zip(self.data_sets, self.named_votes, strict=True))


@message(24, "membership", most_bytes=384 * KIB)  # a letter takes up to 4 bytes
class Membership(Message):
    """The coordinator's answer to a request or a query.

    Attributes:
        state: "requested", "member", "suspended" or "revoked".
        peer_names: The other members. Their keys are checked by nobody until the hospital's own
            people did.
        peer_keys: Their Ed25519 keys, in the same order.
        audit_head: Frame of the `AuditHead` of the hospital that is kept; empty if it gave none.
        open_runs: Names of the runs that have not ended: people wait in vain for others.
        tally_name: The tally's name; empty if the federation has none.
        tally_key: Its Ed25519 key, which the hospital's own people compare; empty likewise.
    """

    party: Digest
    federation: PartyName
    state: Name
    answered_at: UnixTime
    peer_names: Annotated[tuple[PartyName, ...], Length(0, MAX_PARTIES)]
    peer_keys: Annotated[tuple[Key, ...], Length(0, MAX_PARTIES)]
    audit_head: SmallFrameOrNone
    open_runs: Annotated[tuple[Name, ...], Length(0, MOST_OPEN_RUNS)]
    tally_name: PartyNameOrNone
    tally_key: KeyOrNone

    @property
    def tally(self) -> NamedTally | None:
        """The federation's tally; None if it has none. Half a tally is malformed."""
        return NamedTally.of(self.tally_name, self.tally_key)


@message(25, "pool query")
class PoolQuery(Message):
    """A hospital asks for a part of a pool of public queries, from the byte `offset` on."""

    coordinator: Digest
    sender: Digest
    pool: Digest
    offset: Annotated[int, Between(0, 2**40)]
    asked_at: UnixTime


@message(32, "results query")
class ResultsQuery(Message):
    """A hospital that took part in a run asks for a part of one file of its results.

    `file` is a path in the run's directory, one of a fixed list; `offset` the first byte.
    """

    coordinator: Digest
    sender: Digest
    run: Digest
    file: Name
    offset: Annotated[int, Between(0, 2**40)]
    asked_at: UnixTime


@message(26, "audit head", most_bytes=256)
class AuditHead(Message):
    """Where a hospital's audit log stands, given away so that its end cannot be cut unnoticed.

    `head` is the link of the last of its `records`: it commits to all.
    """

    party: Digest
    records: Annotated[int, Between(0, 2**40)]
    head: Digest

"""A party's keys for a run, which both ends check alike."""

from __future__ import annotations

from protocols.envelope import require_key_of
from protocols.errors import (
    SuiteError,
    UnexpectedMessageError,
)
from protocols.messages import (
    KeyStatement,
)

ROLE_PARTY = "party"


def require_statement(
    statement: KeyStatement, sender: bytes, *, offer_digest: bytes, suite: str, expires_at: int
) -> None:
    """Check that a party's keys, which it signed, are for this offer.

    Raises:
        UnexpectedMessageError: they are for another.
        SuiteError: a key of another suite; names the party.
    """
    said = (statement.offer_digest, statement.role, statement.expires_at)
    if said != (offer_digest, ROLE_PARTY, expires_at):
        raise UnexpectedMessageError("a key statement must be for this offer")
    try:
        require_key_of(suite, statement.sealing_key)
    except SuiteError as error:
        raise error.from_peer(sender.hex()) from error

"""The facts of a run that a person approves, to compare with the coordinator's statement."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Final

from protocols import wire
from protocols.identity import PublicIdentity
from protocols.messages import KeyStatement, RunInquiry, RunRecord
from protocols.values import digest_of_values

_RUN_LABEL: Final = "approved run"


@dataclass(frozen=True, slots=True)
class RunScope:
    """The facts of a run that a person approves: they stay the same when it is offered again.

    The terms hold the run's name, so an approval is of one run, with one budget and one set of
    caps. An approval holds in one coordinator's federation alone. `seats` are fingerprints, in seat
    order, `tally` is the fingerprint of the second aggregator, empty where the form has none; the
    rest is as in the `RunRecord`.
    """

    coordinator: bytes
    terms: bytes
    seats: tuple[bytes, ...]
    form: str
    ring_bits: int
    suite: str
    threshold: int
    colluders: int
    dropouts: int
    tally: bytes

    @classmethod
    def of(cls, record: RunRecord | RunInquiry, *, seats: tuple[bytes, ...]) -> RunScope:
        """Return the scope of a run, from its record or the inquiry before it."""
        facts = {
            each.name: getattr(record, each.name)
            for each in fields(cls)
            if each.name not in ("seats", "tally")
        }
        return cls(seats=seats, tally=tally_of(record), **facts)

    @property
    def digest(self) -> bytes:
        """The key of an approval, 32 bytes."""
        return digest_of_values(_RUN_LABEL, list(astuple(self)))


def tally_of(record: RunRecord | RunInquiry) -> bytes:
    """Return the fingerprint of a run's second aggregator; empty where it has none."""
    if isinstance(record, RunInquiry) or not record.tally:
        return record.tally
    statement = wire.expect(wire.decode(record.tally), KeyStatement)
    return PublicIdentity(statement.identity_key).fingerprint

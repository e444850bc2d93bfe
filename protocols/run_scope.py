"""The facts of a run that a person approves, to compare with the coordinator's statement."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final

from protocols.messages import RunInquiry, RunRecord
from protocols.values import digest_of_values

_RUN_LABEL: Final = "approved run"


@dataclass(frozen=True, slots=True)
class RunScope:
    """The facts of a run that a person approves: they stay the same when it is offered again.

    The terms hold the run's name, so an approval is of one run, with one budget and one set of
    caps.

    Attributes:
        coordinator: Fingerprint of the coordinator: an approval holds in its federation alone.
        terms: As received, canonical CBOR.
        seats: Fingerprints of all parties, in seat order.
        form: The secure sum.
        ring_bits: Width of its words.
        suite: Sealing suite.
        threshold: Parties needed to open the sum.
        colluders: Parties that may collude with the coordinator.
        dropouts: Parties that may be lost.
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

    @classmethod
    def of(cls, record: RunRecord | RunInquiry, *, seats: tuple[bytes, ...]) -> RunScope:
        """Return the scope of a run.

        Args:
            record: Its record, or the inquiry before it.
            seats: Fingerprints of all parties, in seat order.
        """
        return cls(
            record.coordinator,
            record.terms,
            seats,
            record.form,
            record.ring_bits,
            record.suite,
            record.threshold,
            record.colluders,
            record.dropouts,
        )

    @property
    def digest(self) -> bytes:
        """The key of an approval, 32 bytes."""
        return digest_of_values(_RUN_LABEL, list(astuple(self)))

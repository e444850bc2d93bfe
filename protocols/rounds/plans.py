"""One plan at the coordinator: from its opening to its settlement, and when settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocols import wire
from protocols.messages import Certificate, Plan, SetProposal, Settlement
from protocols.rounds.contribution import Contribution
from protocols.wire import Signed


@dataclass(frozen=True, slots=True)
class OpenPlan:
    """A plan from its opening to its settlement, as the journal tells it.

    Attributes:
        proposal, closing: The proposal to open a set, and to close the plan, if it was made.
        fixed: Signed contribution until then of each survivor of the proposed set, by fingerprint.
        certificate_frame: Frame of the certificate; empty before it.
        opened: Signed contribution of each party in the sum, by fingerprint; empty before.
    """

    signed: Signed
    proposal: Signed | None = None
    closing: Signed | None = None
    fixed: Mapping[bytes, Contribution] = field(default_factory=dict)
    certificate_frame: bytes = b""
    opened: Mapping[bytes, Contribution] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return wire.expect(self.signed, Plan)

    @property
    def digest(self) -> bytes:
        """Digest of the plan."""
        return self.signed.digest

    @property
    def frame(self) -> bytes:
        """Frame of the plan, the same as often as it is sent."""
        return self.signed.frame

    @property
    def survivors(self) -> tuple[bytes, ...]:
        """The proposed set, in seat order; empty before it is proposed."""
        return () if self.proposal is None else wire.expect(self.proposal, SetProposal).survivors

    @property
    def last_proposed(self) -> tuple[bytes, ...] | None:
        """The set of the last proposal; empty to close the plan, None before any proposal."""
        proposal = self.closing if self.closing is not None else self.proposal
        return None if proposal is None else wire.expect(proposal, SetProposal).survivors

    @property
    def certificate(self) -> Certificate | None:
        """The certificate, for a set or to close the plan, if there is one."""
        if not self.certificate_frame:
            return None
        return wire.expect(wire.decode(self.certificate_frame), Certificate)

    @property
    def opens_a_set(self) -> bool:
        """Whether enough parties agreed to open a set: then the plan is never closed."""
        return self.certificate is not None and not self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether it is certified that the plan never opens."""
        return self.certificate is not None and not self.certificate.survivors

    @property
    def may_open(self) -> bool:
        """Whether its sum may still open: nobody was asked to close it."""
        return self.closing is None


@dataclass(frozen=True, slots=True)
class SettledPlan:
    """A plan that came to its end, with the frame of its settlement."""

    plan: Plan
    plan_digest: bytes
    settlement: Settlement = field(repr=False)
    frame: bytes = field(repr=False)

    @property
    def is_released(self) -> bool:
        """Whether its result was released."""
        return self.settlement.state == "released"

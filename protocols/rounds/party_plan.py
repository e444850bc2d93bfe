"""One plan at a party, from its arrival to its settlement."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.messages import Plan, Verdict
from protocols.rounds.blame.at_party import RowWitness
from protocols.rounds.bounds import ANY_SET, SetBound
from protocols.rounds.contribution import Contribution
from protocols.rounds.opening.at_party import ShareHolder


@dataclass(slots=True)
class PartyPlan:
    """One plan at a party, from its arrival to its settlement.

    Attributes:
        plan: The plan; None if it never arrived.
        is_refused: Whether this party signed that it will never send for it.
        bound: The journal's bound on the sets that may open for it (rule R3).
        sent: Digests of all that this party signed for it; None before its y.
        holder: This party's shares, until they are shown.
        witness: Stream sums for the case that a row is wrong.
        verdict: This party's one verdict, once it is signed.
        is_certified: Whether a certificate for that verdict came, for a set or to close the plan.
    """

    digest: bytes
    plan: Plan | None = None
    is_refused: bool = False
    bound: SetBound = ANY_SET
    sent: Contribution | None = None
    holder: ShareHolder | None = field(default=None, repr=False)
    witness: RowWitness | None = field(default=None, repr=False)
    verdict: Verdict | None = None
    is_certified: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether this party answered it: then it is in its transcript."""
        return self.is_refused or self.sent is not None

    @property
    def known(self) -> Plan:
        """The plan, which arrived."""
        assert self.plan is not None
        return self.plan

    @property
    def entries(self) -> tuple[bytes, ...]:
        """Entries that a settlement may list for this party: with its shares, or without."""
        if self.sent is None:
            return (b"",)
        return self.sent.digest, self.sent.without_reveal.digest

"""Which sets of parties may be opened for a query that was asked before (rule R3).

Any two sums that can be opened over one query must hold the same honest parties, over all runs,
forms and federations. A party cannot tell who is honest. It keeps, of every plan that it sent its y
for, its knowledge of the sets that may open (`PlanClaim`), and serves the query again only within
all of them (`bound_on`). The proof of both checks is in docs/decisions/0014-asking-again.md.

The teachers of a party for one task must be the same whenever it serves a query: the difference of
two sums over the same parties would show how the votes of new ones differ. For another task all
parties have other teachers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Self

from protocols.errors import KeyReuseError


@dataclass(frozen=True, slots=True)
class SetBound:
    """A bound on the set of parties that a plan may open, by fingerprint.

    It holds all that are `needed`, and others only if they are `allowed`; None for any.
    """

    needed: frozenset[bytes] = frozenset()
    allowed: frozenset[bytes] | None = None

    @classmethod
    def exactly(cls, parties: Collection[bytes]) -> Self:
        """Bound the set to these parties and no others."""
        return cls(frozenset(parties), frozenset(parties))

    def allows(self, parties: Collection[bytes]) -> bool:
        """Tell whether this set of parties may be opened."""
        chosen = frozenset(parties)
        return self.needed <= chosen and (self.allowed is None or chosen <= self.allowed)

    def leaves_room(self, seats: Collection[bytes], *, threshold: int) -> bool:
        """Tell whether a plan among `seats` may be served: some set within the bound can open.

        `threshold` is the fewest parties whose sum opens; all of them in the additive form.
        """
        present = frozenset(seats)
        possible = present if self.allowed is None else present & self.allowed
        return self.needed <= possible and len(possible) >= threshold

    def __and__(self, other: SetBound) -> SetBound:
        """Bind by both."""
        allowed = [each.allowed for each in (self, other) if each.allowed is not None]
        return SetBound(
            self.needed | other.needed, frozenset.intersection(*allowed) if allowed else None
        )


ANY_SET = SetBound()


@dataclass(frozen=True, slots=True)
class PlanClaim:
    """A party's knowledge of a plan that it sent its y for, or is about to.

    Attributes:
        openable: Bound on the sets that can open for it: any of them holds the honest parties of
            every set within the bound. None where nobody knows.
        is_free: Whether the same queries may be asked again within `openable`.
        task: Digest of the task that it served.
        teachers: Digest of the teachers that voted; empty in a simulation.
    """

    openable: SetBound | None
    is_free: bool = False
    task: bytes = b""
    teachers: bytes = b""

    @classmethod
    def sent(
        cls,
        seats: Collection[bytes],
        *,
        survives_dropouts: bool,
        task: bytes = b"",
        teachers: bytes = b"",
    ) -> Self:
        """Return the claim when a y is sent: all seats may open, or nobody knows which."""
        openable = None if survives_dropouts else SetBound.exactly(seats)
        return cls(openable, task=task, teachers=teachers)

    def never_opens(self, *, but_for: bytes = b"") -> bool:
        """Tell whether the plan's sum provably never opens.

        A certificate of "closed" proves that, and so do refusals of all parties. Its own refusal
        proves it to an honest party: `but_for` is the fingerprint of the party that asks and knows
        of itself that it is honest; empty for an observer.
        """
        if not self.is_free or self.openable is None:
            return False
        needed = self.openable.needed
        return not needed or (bool(but_for) and but_for not in needed)

    def gives_back(self, *, noise_at_parties: bool) -> bool:
        """Tell whether the charge for the plan may come back.

        It does where the sum `never_opens`. Refusals of some prove that unless all of them lie and
        help the coordinator. With noise at the coordinator the guarantee trusts it already, to add
        the noise and to show nothing else. Then the charge may come back within a bound of each
        party's own: beyond it a liar could let the coordinator look for nothing, again and again.
        With noise at the parties the coordinator is trusted with nothing, so the charge stays.
        """
        if self.openable is None:  # nobody named who refused
            return False
        return self.never_opens() or (self.is_free and not noise_at_parties)

    def learning(self, proven: PlanClaim) -> PlanClaim:
        """Return this claim with the facts that a settlement proved about its plan."""
        return replace(proven, task=self.task, teachers=self.teachers)

    @classmethod
    def abandoned_by(cls, refusers: Collection[bytes], *, seats: Collection[bytes]) -> Self:
        """Return the claim of an additive plan that some seats signed never to send for."""
        return cls(SetBound(frozenset(seats) - frozenset(refusers), frozenset(seats)), is_free=True)

    @classmethod
    def certified(cls, survivors: Collection[bytes]) -> Self:
        """Return the claim of a certificate: this set opens, or with none of them nothing ever."""
        if survivors:
            return cls(SetBound.exactly(survivors))
        return cls(ANY_SET, is_free=True)


def bound_on(earlier: Iterable[PlanClaim]) -> SetBound:
    """Return the bound on the set that a new plan may open, or raise `KeyReuseError`.

    `earlier` are the claims of all plans that asked one of its queries; each must be free.
    """
    bound = ANY_SET
    for claim in earlier:
        if not claim.is_free or claim.openable is None:
            raise KeyReuseError("no query may be answered twice")
        bound &= claim.openable
    return bound

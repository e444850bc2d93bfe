"""Who may be asked the queries of a void plan again (rule R3: one opened set per query).

In the additive form a void sum opens only if every seat sent its y. A seat that signed that it will
not send, and is honest, keeps it shut for ever. If all that signed lied, they are the coordinator's
allies, and the sum may be open to it: of all others. So who asks these queries again must have all
others, and nobody new, for then a second sum differs from the first in what the liars sent and in
nothing else. Without the first half two runs could each lack another honest party, without the
second have another one more, and their difference would be somebody's votes.

In the masked form a void sum opens only if `threshold` seats reveal shares for it. Who has revealed
nothing may be asked again: the honest ones among them are at most n - t in an opened sum, and
with c <= 2t - n - 1 colluders they are t - 1, fewer than open a second one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetrySet:
    """Among whom the queries of one void plan may be asked again.

    Attributes:
        needed: Fingerprints of parties that must all take part.
        allowed: Fingerprints of parties that may; all of `needed` are among them.
    """

    needed: frozenset[bytes]
    allowed: frozenset[bytes]

    def allows(self, seats: Collection[bytes]) -> bool:
        """Whether a run of these parties may ask them."""
        return self.needed <= set(seats) <= self.allowed

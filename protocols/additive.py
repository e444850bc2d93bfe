"""Additive secret sharing, n of n.

Party i splits its vector x_i into n shares. The share of each peer j is pseudorandom, expanded from
a key k_ij that only i and j know; the rest is the residual, which i publishes::

    y_i = x_i + sum over j > i of PRG(k_ij) - sum over j < i of PRG(k_ij)

Each stream enters twice, once with plus and once with minus, so the shares cancel in pairs:
the sum of all y_i is the sum of all x_i.

Guarantee. Against the coordinator together with any n - 2 parties, two honest parties i and j
remain, with a key k_ij that nobody else knows. Their y's are uniform given y_i + y_j, so only the
sum of their two vectors can be learned. Needs all n parties: a missing one leaves its peers'
streams uncancelled, and the total is noise.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.forms import Additive
from protocols.prg import add_streams
from protocols.ring import Words
from protocols.secure_sum import SecureSum


class AdditiveSum(Additive, SecureSum):
    """The additive form."""

    def hide(
        self,
        words: Words,
        *,
        seat: int,
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",  # noqa: ARG002 - the contract's
    ) -> None:
        """See `SecureSum.hide`: `words` then holds the residual."""
        self.require_enough(len(pair_keys) + 1)
        signed_keys = [(1 if seat < peer else -1, key) for peer, key in pair_keys.items()]
        add_streams(words, signed_keys, ring=self.ring, keystream=self.keystream)

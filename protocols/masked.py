"""Masked: additive sharing whose sum opens though some parties drop out.

Party i adds one more stream, of a key b_i of its own that is fresh for every plan::

    y_i = x_i + sum over j > i of PRG(k_ij) - sum over j < i of PRG(k_ij) + PRG(b_i)

and deals Shamir shares of b_i and of each k_ij to all parties; any t = floor(2n/3) + 1 shares open
one. Once t parties have signed the same set U of survivors, the sum of their y's still holds two
kinds of streams: PRG(b_j) of every j in U, and those of j with parties outside U. Only these keys
are opened. Of a survivor the parties open b_j but no key with another survivor. Of a party that
dropped out they open keys but not b_i: a y_i that comes late stays hidden.

Guarantee. Each party signs one verdict for a plan: a set U that it belongs to, or "closed". It
shows its shares only after it has seen t equal verdicts for its own U. Two certificates for one
plan would need 2(t - c) verdicts of the n - c honest parties, so c >= 2t - n. Against the
coordinator with at most c = 2t - n - 1 parties (n = 5: 2; 10: 3; 100: 33) at most one set opens per
plan. It holds at least t - c honest parties, and only their sum can be learned. A certificate for
"closed" proves that nothing opens: the honest parties that did not sign it and the colluders hold
at most n - t + c <= t - 1 shares of each key.

Source: Bonawitz et al. 2017, Practical Secure Aggregation. https://doi.org/10.1145/3133956.3133982
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from protocols.errors import InvalidVectorError
from protocols.forms import Masked
from protocols.prg import KEY_BYTES, add_streams
from protocols.ring import Words
from protocols.secure_sum import SecureSum


class MaskedSum(Masked, SecureSum):
    """The form that survives drop-outs."""

    def hide(
        self,
        words: Words,
        *,
        seat: int,
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",
    ) -> None:
        """See `SecureSum.hide`; needs a self key."""
        self.require_enough(len(pair_keys) + 1)
        if len(self_key) != KEY_BYTES:
            raise InvalidVectorError(f"a self key must have {KEY_BYTES} bytes", len(self_key))
        signed_keys = [(_sign(seat, peer), key) for peer, key in pair_keys.items()]
        signed_keys.append((1, self_key))
        add_streams(words, signed_keys, ring=self.ring, keystream=self.keystream)

    def leftovers(
        self, survivors: Collection[int], *, parties: int
    ) -> Iterator[tuple[int, int, int]]:
        """See `SecureSum.leftovers`."""
        yield from super().leftovers(survivors, parties=parties)
        dropped = [seat for seat in range(parties) if seat not in survivors]
        for dealer in survivors:
            yield dealer, dealer, 1
            for seat in dropped:
                yield dealer, seat, _sign(dealer, seat)


def _sign(seat: int, peer: int) -> int:
    return 1 if seat < peer else -1

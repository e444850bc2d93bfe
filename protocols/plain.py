"""The plain sum: every party sends its vector in the clear.

For tests, and for measuring what privacy costs. A deployment refuses it: the coordinator sees
every party's votes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from protocols.ring import Words
from protocols.secure_sum import SecureSum


class PlainSum(SecureSum):
    """No secrecy at all, behind the same contract."""

    name = "plain"
    smallest = 2

    def shard(
        self,
        vector: NDArray[np.int64],
        *,
        seat: int,  # noqa: ARG002 - the contract's
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",  # noqa: ARG002 - the contract's
    ) -> Words:
        """Return the vector itself; see `SecureSum.shard`."""
        self.require_enough(len(pair_keys) + 1)
        return self.ring.encode(vector)

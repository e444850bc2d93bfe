"""The plain sum: every party sends its vector in the clear.

For tests, and for measuring the cost of privacy. A deployment refuses it: the coordinator sees
every party's votes.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.forms import Plain
from protocols.ring import Words
from protocols.secure_sum import SecureSum


class PlainSum(Plain, SecureSum):
    """No secrecy at all, behind the same contract."""

    def hide(
        self,
        words: Words,  # noqa: ARG002 - the contract's
        *,
        seat: int,  # noqa: ARG002 - the contract's
        pair_keys: Mapping[int, bytes],
        self_key: bytes = b"",  # noqa: ARG002 - the contract's
    ) -> None:
        """Hide nothing: y is the vector itself; see `SecureSum.hide`."""
        self.require_enough(len(pair_keys) + 1)

"""The secure sum of every form, by the form's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.additive import AdditiveSum
from protocols.masked import MaskedSum
from protocols.plain import PlainSum
from protocols.secure_sum import SecureSum

SUMS: Final[Mapping[str, type[SecureSum]]] = {
    each.name: each for each in (AdditiveSum, MaskedSum, PlainSum)
}

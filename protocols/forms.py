"""Every form of the secure sum, by the name that plans and command lines use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocols.additive import AdditiveSum
from protocols.masked import MaskedSum
from protocols.plain import PlainSum
from protocols.secure_sum import SecureSum

FORMS: Final[Mapping[str, type[SecureSum]]] = {
    form.name: form for form in (AdditiveSum, MaskedSum, PlainSum)
}
"""All forms."""

DEPLOYED_FORMS: Final[Mapping[str, type[SecureSum]]] = {
    name: form for name, form in FORMS.items() if form.hides_vectors
}
"""The forms that a deployment may use: those that hide each party's vector."""


def usual_form(parties: int) -> str:
    """Return the default form of a deployment of this many parties.

    One that survives drop-outs, if there are enough parties: a restarting party then delays nobody.
    """
    return MaskedSum.name if parties >= MaskedSum.smallest else AdditiveSum.name

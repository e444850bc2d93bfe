"""Every form of the secure sum by name: how many parties it takes, and what it hides from whom.

`protocols.sums` has the sums themselves.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar, Final

from protocols.errors import TooFewHeadsError, TooFewPartiesError, TooFewSharesError


class Form(ABC):
    """The facts of a form.

    Class attributes:
        name: Name in plans and on the command line.
        smallest: Fewest parties for which the sum does not give one party's vector to another.
        survives_dropouts: Whether the sum of fewer than all parties opens.
        hides_vectors: Whether y hides x. A deployment refuses a form in which it does not.
        is_deployed: Whether a deployment can use it; simulations use all.
        has_pair_keys: Whether each two parties make a root when a run is set up.
        is_certified: Whether parties agree by verdicts on the set that opens.
        exchanges: Of a batch.
        adds_noise: Whether those who open the sum must add noise before it opens.
        most_votes: Most votes of a party on a query; None for any.
    """

    name: ClassVar[str]
    smallest: ClassVar[int]
    survives_dropouts: ClassVar[bool] = False
    hides_vectors: ClassVar[bool] = True
    is_deployed: ClassVar[bool] = True
    has_pair_keys: ClassVar[bool] = True
    is_certified: ClassVar[bool] = False
    exchanges: ClassVar[int] = 1
    adds_noise: ClassVar[bool] = False
    most_votes: ClassVar[int | None] = None

    @classmethod
    def threshold(cls, parties: int) -> int:
        """Number of parties, of this many, that the sum needs to open."""
        return parties

    @classmethod
    def require_survivors(cls, survivors: int, *, parties: int) -> None:
        """Refuse the vectors of fewer parties than `threshold`, with `TooFewSharesError`."""
        threshold = cls.threshold(parties)
        if survivors < threshold:
            raise TooFewSharesError(received=survivors, threshold=threshold)

    @classmethod
    def most_colluders(cls, parties: int) -> int:
        """Return how many of so many parties may collude with the coordinator, in vain."""
        return parties - 2

    @classmethod
    def require_enough(cls, parties: int) -> None:
        """Refuse fewer parties than `smallest`, with `TooFewPartiesError`."""
        if parties < cls.smallest:
            raise TooFewPartiesError(received=parties, threshold=cls.smallest)

    @classmethod
    def quorum(cls, parties: int) -> int:
        """Fewest parties, of this many, that end a run; any two such sets have one in common."""
        return parties // 2 + 1

    @classmethod
    def fewest_present(cls, parties: int) -> int:
        """Fewest parties, of this many, with which a run is set up: with fewer it never ends."""
        return parties if cls.has_pair_keys else max(cls.smallest, cls.quorum(parties))

    @classmethod
    def require_present(cls, present: int, *, parties: int) -> None:
        """Refuse a setup with fewer than `fewest_present`.

        Raises:
            TooFewPartiesError: fewer than `smallest`.
            TooFewHeadsError: too few to end the run.
        """
        cls.require_enough(present)
        least = cls.fewest_present(parties)
        if present < least:
            raise TooFewHeadsError(received=present, threshold=least)


class Additive(Form):
    """Shares that all parties must give."""

    name = "additive"
    smallest = 3


class Masked(Form):
    """The form that survives drop-outs; `protocols.masked` derives its numbers."""

    name = "masked"
    smallest = 5
    survives_dropouts = True
    is_certified = True
    exchanges = 3

    @classmethod
    def threshold(cls, parties: int) -> int:
        """See `Form.threshold`: t = floor(2n/3) + 1."""
        return 2 * parties // 3 + 1

    @classmethod
    def quorum(cls, parties: int) -> int:
        """See `Form.quorum`: those that certify a set."""
        return cls.threshold(parties)

    @classmethod
    def most_colluders(cls, parties: int) -> int:
        """See `Form.most_colluders`: c = 2t - n - 1."""
        return 2 * cls.threshold(parties) - parties - 1


class Plain(Form):
    """No secrecy at all."""

    name = "plain"
    smallest = 2
    hides_vectors = False
    is_deployed = False


class Verified(Form):
    """Two aggregators, the coordinator and the tally, check all votes and add noise each.

    `protocols.verified` has the protocol. A hospital sends one message, and needs no other one.
    """

    name = "verified"
    smallest = 3
    survives_dropouts = True
    has_pair_keys = False
    adds_noise = True
    most_votes: ClassVar[int] = 1000
    ring_bits: ClassVar[int] = 31
    """Of an element of its field, the integers modulo 2^31 - 1."""

    @classmethod
    def threshold(cls, parties: int) -> int:  # noqa: ARG003 - the contract's
        """See `Form.threshold`: as few as may begin."""
        return cls.smallest

    @classmethod
    def most_colluders(cls, parties: int) -> int:
        """See `Form.most_colluders`: all others, since the tally's noise remains."""
        return parties - 1


FORMS: Final[Mapping[str, type[Form]]] = {
    form.name: form for form in (Additive, Masked, Plain, Verified)
}

DEPLOYED_FORMS: Final[Mapping[str, type[Form]]] = {
    name: form for name, form in FORMS.items() if form.is_deployed
}
"""The forms that a deployment may use: they hide each party's vector."""


def usual_form(parties: int) -> str:
    """Return the default form of a deployment of this many parties.

    One that survives drop-outs, if there are enough parties: a restarting party then delays nobody.
    """
    return Masked.name if parties >= Masked.smallest else Additive.name

"""The tally of a federation: the one that our people pinned, beside the coordinator's word.

The coordinator could name itself as its tally. So a tally counts once our people compared its words
with its own people, and wrote down whose it is. Another key is never taken for the pinned one.
"""

from __future__ import annotations

from dataclasses import dataclass

from party.site.membership import MembershipSettings
from protocols.membership_messages import Membership, NamedTally


@dataclass(frozen=True, slots=True)
class TallyStanding:
    """The tally that is `pinned`, of the owner `body`, and the one that the coordinator `named`.

    Each is None for none; `named` also where the coordinator did not answer.
    """

    pinned: NamedTally | None
    body: str
    named: NamedTally | None

    @classmethod
    def of(cls, settings: MembershipSettings, membership: Membership | None) -> TallyStanding:
        """Put our pin beside the coordinator's answer."""
        named = None if membership is None else membership.tally
        return cls(settings.tally, settings.tally_body, named)

    @property
    def waiting(self) -> NamedTally | None:
        """The tally that our people have to compare; None if none waits."""
        if self.named is None or self.pinned is None:
            return self.named
        return None if self.named.identity == self.pinned.identity else self.named

    def __str__(self) -> str:
        waiting = self.waiting
        if self.pinned is None:
            return "none" if waiting is None else f"{waiting.name} waits to be compared: {_HOW}"
        ours = f"{self.pinned.name}, pinned, of {self.body}"
        if waiting is None:
            return ours
        return f"{ours}; THE COORDINATOR NAMES ANOTHER KEY, as {waiting.name}: {_HOW}"


_HOW = "pate-party tally"

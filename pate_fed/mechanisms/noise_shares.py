"""Noise at the parties: the share of the discrete Gaussian noise that each of them adds.

    noise = DistributedNoise(sigma=40.0, parties=12, colluders=2, dropouts=0)
    share = noise.draw(queries, classes, random_bytes=secrets.token_bytes)   # before anyone votes
    sent = share.add_to(votes)

Each entry of a share is a discrete Gaussian of variance sigma^2 / (n - c - d). For any c colluders
who know their own shares and any d lost parties, the other n - c - d shares hold noise of the
promised sigma, also against the opener of the sum. All sending parties add their shares, so labels
see more noise: `sum_sigma`.

A share narrower than 1 is refused: the sum of narrower ones is not close to a discrete Gaussian any
more (`pate_fed.accounting.distributed_law` says how close, and charges the difference).

Source:
    Kairouz, Liu, Steinke 2021, The distributed discrete Gaussian mechanism for federated learning
    with secure aggregation. https://arxiv.org/abs/2102.06387
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

from pate_fed.accounting.distributed_law import honest_shares, share_sigma
from pate_fed.accounting.ranges import in_range, probability, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.discrete_sampling import (
    discrete_variation_bound,
    largest_draw,
    sample_discrete_gaussian,
)
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.rule import AGGREGATORS, Rule
from pate_fed.votes import NoiseShare

ROW_SUM_FALSE_ALARM: Final = 1e-9
"""Chance per batch that honest noise exceeds `DistributedNoise.row_sum_bound`."""


@dataclass(frozen=True, slots=True)
class DistributedNoise:
    """The noise of a run, and how it is divided among the parties.

    Attributes:
        sigma: Standard deviation that the noise of n - c - d parties adds up to, in votes; above 0,
            and so large that a share's variance is at least 1.
        parties: n, at least 2: those who add it. At the aggregators these are the two of them.
        colluders: c: parties whose shares an attacker may know; at least 1, because each party
            knows its own. Every unchecked peer counts.
        dropouts: d: parties that may be lost before the sum opens; 0 in the additive form.
    """

    sigma: float
    parties: int
    colluders: int
    dropouts: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", in_range("sigma", self.sigma))
        for name, least in (("parties", 2), ("colluders", 1), ("dropouts", 0)):
            value = whole(name, getattr(self, name))
            if value < least:
                raise InvalidParameterError(f"{name} must be at least {least}", value)
            object.__setattr__(self, name, value)
        if self.shares < 1:
            raise InvalidParameterError(
                f"some of {self.parties} parties must be left honest and present", self.shares
            )
        share_sigma(self.sigma, self.shares)  # refuses shares that are too narrow

    @classmethod
    def of(cls, rule: Rule, parties: int) -> Self:
        """Divide the noise of a rule among its parties, or give it to each aggregator in full."""
        if not rule.opens_noisy:
            raise InvalidParameterError("noise must be the parties' to add", rule.noise_place)
        if rule.at_aggregators:
            return cls(rule.need("sigma2"), AGGREGATORS, colluders=1, dropouts=0)
        return cls(rule.need("sigma2"), parties, rule.colluders or 0, rule.dropouts or 0)

    @property
    def shares(self) -> int:
        """Honest shares that have to suffice: n - c - d."""
        return honest_shares(self.parties, colluders=self.colluders, dropouts=self.dropouts)

    @property
    def share_sigma(self) -> float:
        """Standard deviation of one share, in votes: sigma / sqrt(n - c - d), rounded up."""
        return share_sigma(self.sigma, self.shares)

    def draw(self, queries: int, classes: int, *, random_bytes: RandomBytes) -> NoiseShare:
        """Draw one party's share, fresh for one plan; within `variation` of the ideal law."""
        shape = (whole("queries", queries), whole("classes", classes))
        counts = sample_discrete_gaussian(shape, sigma=self.share_sigma, random_bytes=random_bytes)
        counts.flags.writeable = False
        return NoiseShare(counts)

    @property
    def variation(self) -> float:
        """Bound on the total variation distance between an entry of a share and its ideal law."""
        return discrete_variation_bound(self.share_sigma)

    def sum_sigma(self, senders: int) -> float:
        """Return the noise in an opened sum of so many parties' vectors, n - d to n, in votes."""
        if not self.parties - self.dropouts <= whole("senders", senders) <= self.parties:
            raise InvalidParameterError(
                f"senders must be between {self.parties - self.dropouts} and {self.parties}",
                senders,
            )
        return self.share_sigma * math.sqrt(senders)

    def row_sum_bound(
        self,
        queries: int,
        classes: int,
        *,
        senders: int,
        false_alarm: float = ROW_SUM_FALSE_ALARM,
    ) -> int:
        """Return how far a row of an honest sum may be off its votes (PROTOCOL rule R11).

        The noise of a row is a sum of C |U| discrete Gaussians. The moments E[e^(t X)] of each are
        at most those of a Gaussian (Canonne, Kamath, Steinke 2020). So with s^2 = C |U| sigma^2 /
        (n - c - d) it exceeds b with chance at most 2 e^(-b^2 / (2 s^2)).

        Q are the queries, C the classes, U the senders. `false_alarm` is the most chance
        that a row of an honest batch exceeds the bound.

        Returns:
            The smallest whole bound with Q 2 e^(-b^2 / (2 s^2)) at most `false_alarm`, in votes.
        """
        if min(whole("queries", queries), whole("classes", classes)) < 1:
            raise InvalidParameterError("queries and classes must be at least 1")
        row_sigma = self.sum_sigma(senders) * math.sqrt(classes)
        chance = probability("false_alarm", false_alarm)
        return math.ceil(row_sigma * math.sqrt(2 * math.log(2 * queries / chance)))

    def require_room(self, total_votes: int) -> None:
        """Refuse votes whose sum with the largest noise could leave the ring's signed range."""
        most = whole("total_votes", total_votes)
        most += self.parties * largest_draw(self.share_sigma)
        if most >= 2**31:
            raise InvalidParameterError("votes and noise must stay below 2^31", most)

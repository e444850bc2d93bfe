"""GNMax: the class with the most votes after Gaussian noise.

Who adds the noise is an argument: `shares` is None where the coordinator does. Where the parties
do, the clean sum exists nowhere. The opener of the sums sees every row, so every opened row is paid
for, and rows that no cap allows to be looked at must not be opened:

    mechanism = GaussianMax(sigma=8, shares=9)
    reserved = mechanism.worst_case_event(queries, queries, weight=5)    # before anybody votes
    release = mechanism.label(noisy, max_answers=queries)

Source:
    Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, Scalable private learning
    with PATE. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pate_fed.accounting.events import DistributedGaussianMaxEvent, GaussianMaxEvent, PrivacyEvent
from pate_fed.accounting.ranges import in_range, whole
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.mechanism import (
    Mechanism,
    Parameters,
    Size,
    Spec,
    require_noise_here,
    require_opened,
    require_shares,
    whole_votes,
)
from pate_fed.mechanisms.mechanism_words import pick
from pate_fed.mechanisms.noisy_max import NoisyMax
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease
from pate_fed.rule import Rule
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class GaussianMax(NoisyMax):
    """GNMax: answer every query with the argmax of counts plus Gaussian noise.

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: the label of each query answered, to everyone who sees labels. One
        change moves a row by at most sqrt(2) k votes in L2 norm. So K labels are mu-GDP with mu^2 =
        2 K k^2 / sigma^2, for all votes and all choices of queries, adaptive ones included. Trust:
        with noise at the coordinator it adds the noise and sees the exact sum; towards it nothing
        is guaranteed. How many parties may collude without seeing another's votes is the secure
        sum's matter; the labels' guarantee holds against all other parties.

        With noise at the parties every opened row of noisy counts is revealed to the opener of the
        sums (the coordinator's view), its argmax to everyone who sees labels (the public's). A row
        costs at most 2 d(k) in the coordinator's view. There d(k) is the divergence of the summed
        discrete noise when a count moves by k: at least order k^2 / (2 sigma^2) and hardly more. In
        the public's view a row costs the label-level supremum of the same noise. For all votes, and
        all choices of queries. Trust: in the coordinator's view nobody, as long as `shares` parties
        that are honest and present draw their shares as agreed and keep them; nobody sees the clean
        sum. Each party knows its own share, so it counts among the colluders that `shares` leaves
        out.

    Attributes:
        sigma: Standard deviation of the total noise in each count, in votes; above 0. With noise at
            the parties, the sigma of the sum of `shares` shares.
        shares: With noise at the parties, honest shares that have to suffice: n - c - d, at least
            1; None where the coordinator adds the noise.
    """

    name: ClassVar[str] = "gnmax"

    sigma: float
    shares: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", in_range("sigma", self.sigma))
        require_shares(self.shares, self.sigma)

    def add_noise(
        self, summed: SummedHistogram, *, noise: CoordinatorNoise, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add Gaussian noise of this standard deviation."""
        require_noise_here(self.shares)
        return noise.perturb(summed, sigma=self.sigma, random_bytes=random_bytes)

    def label(self, noisy: NoisyHistogram, *, max_answers: int) -> NoisyRelease:
        """Decide on every row that was opened with the promised noise of the parties in it."""
        most = whole("max_answers", max_answers)
        require_opened(noisy, most=most, sigma=self.sigma, shares=self.shares)
        return self.decide(noisy, max_answers=max_answers)

    def event_of_asks(self, asks: int, weight: float) -> PrivacyEvent:
        """Return the event of this many asks."""
        if self.shares is not None:
            return DistributedGaussianMaxEvent(asks, self.sigma, self.shares, whole_votes(weight))
        return GaussianMaxEvent(asks=asks, sigma=self.sigma, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters; the noise of the counts is "sigma2", as for all mechanisms."""
        shares: Parameters = {} if self.shares is None else {"shares": self.shares}
        return {
            "name": self.name,
            "vote_threshold": None,
            "sigma1": None,
            "sigma2": self.sigma,
            **shares,
        }


SIGMA2_SHARE: Final = 0.16
"""Noise per vote where every query is answered, and no better one is known."""


def _make(rule: Rule, parties: int, _: int) -> Mechanism:
    return GaussianMax(rule.need("sigma2"), shares=rule.shares(parties))


def _usual(size: Size) -> Mapping[str, float]:
    return {"sigma2": SIGMA2_SHARE * size.votes}


def _text(mechanism: Mapping[str, object]) -> str:
    return f"For each query {pick(mechanism)}."


SPEC: Final = Spec(
    name=GaussianMax.name,
    title="GNMax",
    parameters=("sigma2",),
    make=_make,
    usual=_usual,
    text=_text,
    at_parties=True,
)

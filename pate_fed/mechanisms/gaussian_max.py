"""GNMax and Confident-GNMax: the class with the most votes after Gaussian noise.

Who adds the noise is an argument: `shares` is None where the coordinator does. Where the parties
do, the clean sum exists nowhere. The opener of the sums sees every row, so every opened row is paid
for, and rows that no cap allows to be looked at must not be opened:

    mechanism = ConfidentGaussianMax(vote_threshold=40, sigma1=15, sigma2=8, shares=9)
    asks, answers = mechanism.caps(queries, max_answers=20, max_refusals=15)
    reserved = mechanism.worst_case_event(asks, answers, weight=5)       # before anybody votes
    first = mechanism.phase_one(noisy, max_answers=20, max_refusals=15)  # the first `asks` rows
    release = mechanism.phase_two(first, noisy_again)                    # rows first.passed only

The second phase is another vector, with fresh noise and keys, for the rows that passed.

Source:
    Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, Scalable private learning
    with PATE. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.events import (
    ConfidentGaussianMaxEvent,
    DistributedConfidentMaxEvent,
    DistributedGaussianMaxEvent,
    GaussianMaxEvent,
    PrivacyEvent,
)
from pate_fed.accounting.pate_bounds import gnmax_total_rdp, threshold_total_rdp
from pate_fed.accounting.ranges import in_range, whole
from pate_fed.errors import InvalidParameterError
from pate_fed.mechanisms.always_answering import AlwaysAnsweringMechanism
from pate_fed.mechanisms.first_phase import FirstPhase
from pate_fed.mechanisms.mechanism import (
    Mechanism,
    Options,
    Parameters,
    Size,
    Spec,
    assemble_release,
    noisy_winners,
    require_noise_here,
    require_opened,
    require_shares,
    whole_votes,
)
from pate_fed.mechanisms.noise import NoisePlan
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.mechanisms.words import number, pick
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.votes import NoisyHistogram, SummedHistogram


@dataclass(frozen=True, slots=True)
class GaussianMax(AlwaysAnsweringMechanism):
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

    @property
    def phase_sigmas(self) -> tuple[float, ...]:
        """The noise of the one phase."""
        return () if self.shares is None else (self.sigma,)

    def add_noise(
        self, summed: SummedHistogram, *, noise: NoisePlan, random_bytes: RandomBytes
    ) -> NoisyHistogram:
        """Add Gaussian noise of this standard deviation."""
        require_noise_here(self.shares)
        return noise.perturb(summed, sigma=self.sigma, random_bytes=random_bytes)

    def label(self, noisy: NoisyHistogram, *, max_answers: int) -> NoisyRelease:
        """Answer every row that was opened with the parties' noise in it.

        Args:
            noisy: The opened rows of a batch.
            max_answers: Answers that are left, at least as many as rows.

        Raises:
            InvalidParameterError: the coordinator is to add the noise, more rows were opened than
                may be answered, or their noise is less than was promised.
        """
        most = whole("max_answers", max_answers)
        require_opened(noisy, most=most, sigma=self.sigma, shares=self.shares)
        return self._winners(noisy, max_answers)

    def event_of_answers(self, answers: int, weight: float) -> PrivacyEvent:
        """Return the event of this many answers."""
        if self.shares is not None:
            return DistributedGaussianMaxEvent(
                answers, self.sigma, self.shares, whole_votes(weight)
            )
        return GaussianMaxEvent(answers=answers, sigma=self.sigma, weight=weight)

    def instance_rdp(
        self,
        counts: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        orders: NDArray[np.float64],
        *,
        weight: float,
    ) -> NDArray[np.float64]:
        """Sum the data-dependent bound over the answered queries."""
        answered = counts[outcomes == Outcome.ANSWERED]
        return gnmax_total_rdp(answered, orders, sigma=self.sigma, weight=weight)

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


@dataclass(frozen=True, slots=True)
class ConfidentGaussianMax(Mechanism):
    """Confident-GNMax: answer by GNMax where the noisy top count reaches a threshold.

    Guarantee:
        Neighbors: two worlds in which one teacher votes differently on every query (k teachers,
        with weight k). Revealed: for each query asked, a label or "no answer", to everyone who sees
        labels. The noisy top count is never revealed, and the label comes from fresh noise. One
        change moves the top count by at most k votes and a row by at most sqrt(2) k in L2 norm. So
        A asks with K answers are mu-GDP with mu^2 = A k^2/sigma1^2 + 2 K k^2/sigma2^2, for all
        votes and all choices of queries, adaptive ones included. Trust: as for GNMax.

        With noise at the parties there are two phases. First phase: a query passes if the largest
        entry of its row, noised with sigma1 per entry, reaches the threshold. Second phase: fresh
        rows with noise sigma2, of those that passed only; their argmax is the label. This check
        differs: the largest of C noisy entries is biased upward. A flat row of 250 votes with C =
        10, T = 200, sigma1 = 150 passes .73 of the time instead of .12. So the threshold is chosen
        for it (`pate_fed.mechanisms.pass_chances`). In the coordinator's view each row costs at
        most 2 d(k), as for GNMax, whether it passed or not. In the public's view the bit costs at
        most B for k = 1, and d(k), half of the row's price, for k > 1. B is the largest divergence
        of the noise's distribution function from itself one vote on. The label costs the same as
        that of GNMax. The phases draw their noise apart, and the second opens the rows that the
        first published as passed. Trust: as for GNMax in the coordinator's view; in the public's
        the coordinator, for threshold, noise and predictions as planned. The price is separate for
        check and label, always: a joint price needs a public that sees less than the opener of the
        sums, and vote rows that somebody has verified.

    Attributes:
        vote_threshold: Noisy top count from which a query is answered, in votes; finite.
        sigma1: Standard deviation of the noise in that check, in votes; above 0. With noise at the
            parties, the sigma of the sum of `shares` shares in each entry of a first row.
        sigma2: Standard deviation of the noise in each count, in votes; above 0. With noise at the
            parties, the same of a second row.
        shares: As for `GaussianMax`.
    """

    name: ClassVar[str] = "confident"

    vote_threshold: float
    sigma1: float
    sigma2: float
    shares: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        threshold = in_range("vote_threshold", self.vote_threshold)
        object.__setattr__(self, "vote_threshold", threshold)
        object.__setattr__(self, "sigma1", in_range("sigma1", self.sigma1))
        object.__setattr__(self, "sigma2", in_range("sigma2", self.sigma2))
        require_shares(self.shares, self.sigma1, self.sigma2)

    @property
    def phase_sigmas(self) -> tuple[float, ...]:
        """The noise of the check's rows, and of the labels'."""
        return () if self.shares is None else (self.sigma1, self.sigma2)

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: NoisePlan,
        random_bytes: RandomBytes,
        max_answers: int,
        max_refusals: int,
    ) -> NoisyRelease:
        """Check, then answer or refuse, in order, until the last allowed answer or refusal."""
        require_noise_here(self.shares)
        whole("max_answers", max_answers)
        whole("max_refusals", max_refusals)
        passed = self._passes(summed, noise=noise, random_bytes=random_bytes)
        # Fresh noise: reusing that of the check would void the bound.
        noisy = noise.perturb(summed, sigma=self.sigma2, random_bytes=random_bytes)
        return assemble_release(
            noisy_winners(noisy),
            passed,
            max_answers=max_answers,
            max_refusals=max_refusals,
        )

    def phase_one(
        self, noisy: NoisyHistogram, *, max_answers: int, max_refusals: int
    ) -> FirstPhase:
        """Decide which rows pass, in order, until the last allowed answer or refusal.

        Args:
            noisy: The opened first rows of a batch, noised with sigma1 by the parties.
            max_answers: Answers that are left, at least 0.
            max_refusals: Refusals that are left, at least 0.

        Raises:
            InvalidParameterError: the coordinator is to add the noise, a cap is not a whole number
                of at least 0, more rows were opened than the caps allow, or their noise is less
                than was promised.
        """
        asks, _ = self.caps(len(noisy.counts), max_answers=max_answers, max_refusals=max_refusals)
        require_opened(noisy, most=asks, sigma=self.sigma1, shares=self.shares)
        passed = self._largest_entries(noisy) >= self.vote_threshold
        decided = assemble_release(
            np.zeros(len(passed), dtype=np.int64),
            passed,
            max_answers=max_answers,
            max_refusals=max_refusals,
        )
        return FirstPhase(decided.outcomes)

    def phase_two(self, first: FirstPhase, noisy: NoisyHistogram) -> NoisyRelease:
        """Label the rows that passed with their argmax, the lowest class on ties.

        Args:
            first: The outcome of the first phase.
            noisy: The opened second rows of `first.passed`, in that order, noised with sigma2.

        Raises:
            InvalidParameterError: not exactly these rows were opened, or their noise is less than
                was promised.
        """
        passed = first.passed
        require_opened(noisy, most=len(passed), sigma=self.sigma2, shares=self.shares)
        if len(noisy.counts) != len(passed):
            raise InvalidParameterError(
                f"the second phase must open {len(passed)} rows", len(noisy.counts)
            )
        return first.as_release(noisy_winners(noisy))

    def caps(self, queries: int, *, max_answers: int, max_refusals: int) -> tuple[int, int]:
        """Return the most (asks, answers): rows that the first and the second phase may open.

        A run that ends with its last allowed answer or refusal has, before it, at most
        max_answers - 1 answers and max_refusals - 1 refusals.

        Args:
            queries: Queries that may be asked, at least 0.
            max_answers: Answers after which nothing more is asked, at least 0.
            max_refusals: Refusals after which nothing more is asked, at least 0.

        Raises:
            InvalidParameterError: a number is not a whole number of at least 0.
        """
        whole("queries", queries)
        if not (whole("max_answers", max_answers) and whole("max_refusals", max_refusals)):
            return 0, 0
        asks = min(queries, max_answers + max_refusals - 1)
        return asks, min(asks, max_answers)

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of this many asks and answers.

        With noise at the parties, the event of this many opened first and second rows.
        """
        if self.shares is not None:
            return DistributedConfidentMaxEvent(
                asks=asked,
                answers=answered,
                sigma1=self.sigma1,
                sigma2=self.sigma2,
                shares=self.shares,
                weight=whole_votes(weight),
            )
        return ConfidentGaussianMaxEvent(
            asks=asked, answers=answered, sigma1=self.sigma1, sigma2=self.sigma2, weight=weight
        )

    def instance_rdp(
        self,
        counts: NDArray[np.int64],
        outcomes: NDArray[np.int8],
        orders: NDArray[np.float64],
        *,
        weight: float,
    ) -> NDArray[np.float64]:
        """Sum the data-dependent bounds: the check of every query, the label of the answered."""
        checks = threshold_total_rdp(
            self._tops(counts),
            orders,
            vote_threshold=self.vote_threshold,
            sigma1=self.sigma1,
            weight=weight,
        )
        answered = counts[outcomes == Outcome.ANSWERED]
        return checks + gnmax_total_rdp(answered, orders, sigma=self.sigma2, weight=weight)

    def parameters(self) -> Parameters:
        """Return the parameters."""
        shares: Parameters = {} if self.shares is None else {"shares": self.shares}
        return {
            "name": self.name,
            "vote_threshold": self.vote_threshold,
            "sigma1": self.sigma1,
            "sigma2": self.sigma2,
            **shares,
        }

    def _passes(
        self, summed: SummedHistogram, *, noise: NoisePlan, random_bytes: RandomBytes
    ) -> NDArray[np.bool_]:
        return noise.passes(
            summed,
            vote_threshold=self.vote_threshold,
            sigma=self.sigma1,
            random_bytes=random_bytes,
        )

    def _largest_entries(self, noisy: NoisyHistogram) -> NDArray[np.float64]:
        return np.asarray(noisy.counts.max(axis=1))

    def _tops(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts that the check compares, without noise; shape (queries,)."""
        return np.asarray(counts.max(axis=1))


CONFIDENT_PARAMETERS: Final = ("vote_threshold", "sigma1", "sigma2")
SIGMA2_SHARE: Final = 0.16
"""Noise per vote where every query is answered, and no better one is known."""
_CHECK_SHARES: Final = {"vote_threshold": 0.5, "sigma1": 0.35, "sigma2": 0.2}
"""Parameters of a check and its label per vote, where no better ones are known.

Of a grid, at a joint price 12 % below that of 0.6, 0.3 and 0.16: at least as many right answers on
simulated votes of two and of ten classes, for teachers that are right on 70 to 92 % of all queries.
"""


def _make(options: Options) -> Mechanism:
    return GaussianMax(options.need("sigma2"), shares=options.shares)


def _make_confident(options: Options) -> Mechanism:
    needed = (options.need(name) for name in CONFIDENT_PARAMETERS)
    return ConfidentGaussianMax(*needed, shares=options.shares)


def _usual(size: Size) -> Mapping[str, float]:
    return {"sigma2": SIGMA2_SHARE * size.votes}


def usual_of_check(size: Size) -> Mapping[str, float]:
    """Return threshold and noise of Confident-GNMax for this many votes."""
    return {name: share * size.votes for name, share in _CHECK_SHARES.items()}


def _text(mechanism: Mapping[str, Any]) -> str:
    return f"For each query {pick(mechanism)}."


def _confident_text(mechanism: Mapping[str, Any]) -> str:
    if mechanism.get("shares") is not None:
        return (
            f"Noise of standard deviation {number(mechanism, 'sigma1')} votes is added to each "
            "vote count of a query. If no count reaches "
            f"{number(mechanism, 'vote_threshold')} votes, the query gets no answer. Otherwise "
            f"its votes are added up again, with fresh noise, and {pick(mechanism)}."
        )
    return (
        f"Noise of standard deviation {number(mechanism, 'sigma1')} votes is added to the highest "
        "vote count of a query. The query is answered only if the result is at least "
        f"{number(mechanism, 'vote_threshold')} votes. Then {pick(mechanism)}. "
        "All other queries get no answer."
    )


SPEC: Final = Spec(
    name=GaussianMax.name,
    title="GNMax",
    parameters=("sigma2",),
    prices=("gdp", "label"),
    make=_make,
    usual=_usual,
    text=_text,
    phases=1,
)
CONFIDENT_SPEC: Final = Spec(
    name=ConfidentGaussianMax.name,
    title="Confident-GNMax",
    parameters=CONFIDENT_PARAMETERS,
    prices=("gdp", "label", "joint"),
    make=_make_confident,
    usual=usual_of_check,
    text=_confident_text,
    refused_because="too little agreement after noise was added",
)

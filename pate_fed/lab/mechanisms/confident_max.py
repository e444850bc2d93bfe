"""Confident-GNMax: the papers' check and label, each with noise of its own. For simulations.

`pate_fed.mechanisms.threshold_max` draws noise once and costs 20 to 30 % less. This one is here for
the papers' experiments and for their data-dependent bounds.

Source:
    Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson 2018, Scalable private learning
    with PATE. https://arxiv.org/abs/1802.08908
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting.events import ConfidentGaussianMaxEvent, PrivacyEvent
from pate_fed.accounting.ranges import in_range
from pate_fed.mechanisms.coordinator_noise import CoordinatorNoise
from pate_fed.mechanisms.mechanism import (
    Mechanism,
    Parameters,
    Size,
    Spec,
    assemble_release,
    noisy_winners,
)
from pate_fed.mechanisms.mechanism_words import number, pick
from pate_fed.mechanisms.sampling import RandomBytes
from pate_fed.releases import NoisyRelease
from pate_fed.rule import Rule
from pate_fed.votes import SummedHistogram


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
    """

    name: ClassVar[str] = "confident"

    rule: Rule

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            name: in_range(name, self.rule.need(name)) for name in PARAMETERS
        }
        object.__setattr__(self, "rule", replace(self.rule, **checked))

    def release(
        self,
        summed: SummedHistogram,
        *,
        noise: CoordinatorNoise,
        random_bytes: RandomBytes,
        max_answers: int,
    ) -> NoisyRelease:
        """Check, then answer or refuse, in order, until the last allowed answer."""
        passed = self._passes(summed, noise=noise, random_bytes=random_bytes)
        # Fresh noise: reusing that of the check would void the bound.
        noisy = noise.perturb(summed, sigma=self.rule.need("sigma2"), random_bytes=random_bytes)
        return assemble_release(noisy_winners(noisy), passed, max_answers=max_answers)

    def event(self, asked: int, answered: int, *, weight: float = 1.0) -> PrivacyEvent:
        """Return the event of this many asks and answers."""
        noises = self.rule.need("sigma1"), self.rule.need("sigma2")
        return ConfidentGaussianMaxEvent(asked, answered, *noises, weight)

    def parameters(self) -> Parameters:
        """Return the parameters."""
        return {"name": self.name} | {name: self.rule.need(name) for name in PARAMETERS}

    def _passes(
        self, summed: SummedHistogram, *, noise: CoordinatorNoise, random_bytes: RandomBytes
    ) -> NDArray[np.bool_]:
        return noise.passes(
            summed,
            vote_threshold=self.rule.need("vote_threshold"),
            sigma=self.rule.need("sigma1"),
            random_bytes=random_bytes,
            offsets=self._offsets(summed),
        )

    def _offsets(self, summed: SummedHistogram) -> NDArray[np.int64] | None:  # noqa: ARG002
        """Return what the check takes off the counts first; None for nothing."""
        return None

    def tops(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the counts that the check compares, without noise; shape (queries,)."""
        return np.asarray(counts.max(axis=1))


PARAMETERS: Final = ("vote_threshold", "sigma1", "sigma2")
_CHECK_SHARES: Final = {"vote_threshold": 0.5, "sigma1": 0.35, "sigma2": 0.2}
"""Parameters of a check and its label per vote, where nobody chose any."""


def usual_of_check(size: Size) -> Mapping[str, float]:
    """Return threshold and noise of Confident-GNMax for this many votes."""
    return {name: share * size.votes for name, share in _CHECK_SHARES.items()}


def _text(mechanism: Mapping[str, object]) -> str:
    return (
        f"Noise of standard deviation {number(mechanism, 'sigma1')} votes is added to the highest "
        "vote count of a query. The query is answered only if the result is at least "
        f"{number(mechanism, 'vote_threshold')} votes. Then {pick(mechanism)}. "
        "All other queries get no answer."
    )


SPEC: Final = Spec(
    name=ConfidentGaussianMax.name,
    title="Confident-GNMax",
    parameters=PARAMETERS,
    make=lambda rule, _parties, _unit_votes: ConfidentGaussianMax(rule),
    usual=usual_of_check,
    text=_text,
    refused_because="too little agreement after noise was added",
)

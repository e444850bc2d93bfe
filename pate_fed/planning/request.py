"""The request for a plan: a federation, a budget, and the place of the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pate_fed.accounting.statement import PrivacyUnit
from pate_fed.errors import InvalidSettingError
from pate_fed.mechanisms.preview import ASSUMED_ACCURACY
from pate_fed.planning.options import require_in_range, require_rule
from pate_fed.rule import CAPS, Caps, Rule
from pate_fed.votes import MAX_TOTAL_VOTES

MOST_QUERIES: Final = 10_000


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A federation and a budget.

    Attributes:
        parties: Hospitals.
        teachers: Teachers per hospital.
        classes: Number of classes.
        epsilon: Budget.
        delta: In (0, 1).
        unit: Privacy unit.
        rule: The way from votes to labels: Threshold-GNMax, its open parameters to be chosen.
        weights: Votes that each teacher of a hospital casts, hospital by hospital; None for 1.
        party_epsilons: Budget of each hospital, instead of `epsilon`; None for that.
        caps: `max_asks` are the queries wanted; None for as many as the budget affords.
        teacher_accuracy: Assumed share of teachers that are right on an average query.
        expected_dropouts: Hospitals that may be lost in a batch, at the worst.
        form: Secure sum; None for the one that fits.
    """

    parties: int
    teachers: int
    classes: int
    epsilon: float
    delta: float
    unit: PrivacyUnit
    rule: Rule
    weights: tuple[int, ...] | None = None
    party_epsilons: tuple[float, ...] | None = None
    caps: Caps = CAPS
    teacher_accuracy: float = ASSUMED_ACCURACY
    expected_dropouts: int = 0
    form: str | None = None

    def __post_init__(self) -> None:
        require_in_range(self)
        self._check_federation()
        if self.votes > MAX_TOTAL_VOTES:
            raise InvalidSettingError(
                f"all hospitals together must cast at most {MAX_TOTAL_VOTES} votes", self.votes
            )
        require_rule(self.rule)
        if not 1 / self.classes < self.teacher_accuracy < 1:
            raise InvalidSettingError(
                "--teacher-accuracy must lie between that of guessing and 1", self.teacher_accuracy
            )

    def _check_federation(self) -> None:
        for name in ("weights", "party_epsilons"):
            given = getattr(self, name)
            if given is None:
                continue
            option = f"--{name.replace('_', '-')}"
            if len(given) != self.parties:
                raise InvalidSettingError(
                    f"{option} must have one entry for each of {self.parties} hospitals", len(given)
                )
        if self.expected_dropouts >= self.parties:
            raise InvalidSettingError(
                f"--expected-dropouts must be below {self.parties}", self.expected_dropouts
            )

    @property
    def votes(self) -> int:
        """Votes per query."""
        return sum(self.weights or (1,) * self.parties) * self.teachers

    @property
    def budgets(self) -> tuple[float, ...]:
        """Budget of each hospital's units."""
        return self.party_epsilons or (self.epsilon,) * self.parties

    @property
    def most_queries(self) -> int:
        """Queries that are wanted, or more than anybody plans."""
        return self.caps.max_asks or MOST_QUERIES

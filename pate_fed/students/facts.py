"""Public facts about released labels, beside the labels: a student may use it freely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pate_fed.class_shares import is_any_rare
from pate_fed.errors import InvalidParameterError


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """Public facts about the labels that a student learns from.

    Attributes:
        votes: Votes of all teachers on a query; 0 if nobody knows.
        sigma: Standard deviation of the noise in each count, in votes; 0 for labels without noise.
        shared_out: Whether teachers shared their votes out over the classes, rather than as they
            predict.
        prevalence: Share of each class among patients, as the literature or the operator says;
            shape (classes,), sums to 1. None if nobody says.
        by_label: Of each label, by its name, where inputs have several; empty for one.
    """

    votes: int = 0
    sigma: float = 0.0
    shared_out: bool = False
    prevalence: tuple[float, ...] | None = None
    records: float = 0.0
    by_label: Mapping[str, LabelFacts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shares = self.prevalence
        if shares is not None and not (
            min(shares) > 0 and abs(sum(shares) - 1) <= 1e-6 and len(shares) >= 2
        ):
            raise InvalidParameterError("prevalence must be shares above 0 that sum to 1")

    def of_each(
        self, labels: Sequence[str], prevalences: Sequence[tuple[float, ...] | None]
    ) -> LabelFacts:
        """Return the facts with the prevalence of each of several labels, or of the one."""
        if not labels:
            return replace(self, prevalence=prevalences[0])
        pairs = zip(labels, prevalences, strict=True)
        return replace(self, by_label={one: replace(self, prevalence=of) for one, of in pairs})

    def require_classes(self, classes: int) -> None:
        """Refuse a prevalence of another number of classes."""
        if self.prevalence is not None and len(self.prevalence) != classes:
            raise InvalidParameterError(
                f"--prevalence must give a share for each of {classes} classes",
                len(self.prevalence),
            )

    def decided_shares(
        self, classes: int, labels: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64] | None:
        """Return the share of the pool that each class should get, or None to decide as learned.

        Without prevalence nobody knows how many patients are ill: classes get their shares of the
        released labels, and the chances are a ranking. With it each class gets its prevalence.
        Where one of two classes is rare that would find few of the ill; then the shares lie between
        its prevalence and equal ones (0.3 + 0.4 times the prevalence), which is about where
        balanced accuracy is highest.
        """
        if not self.shared_out:
            return None
        even = np.full(classes, 1 / classes)
        if self.prevalence is None:
            if labels is None:
                return even
            counts = np.bincount(labels, minlength=classes) + 1  # no class gets nothing
            return np.asarray(counts / counts.sum())
        self.require_classes(classes)
        shares = np.array(self.prevalence)
        if classes == 2 and is_any_rare(shares):
            return np.asarray(0.6 * even + 0.4 * shares)
        return shares

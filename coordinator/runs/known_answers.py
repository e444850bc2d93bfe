"""What is known of a run's queries: from earlier runs, then its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from coordinator.database import Answer, RunStore
from coordinator.database.run_store import BatchState
from pate_fed.charges import mechanism_of
from pate_fed.mechanisms import HearsStudent
from pate_fed.releases import ABSTAIN, Outcome
from pate_fed.report.ended_run import Answers

_VOID: Final = (BatchState.VOID, BatchState.FREED)


class KnownAnswers:
    """What is known of a run's queries; `OpenRun` says more of each field."""

    __slots__ = ()

    store: RunStore
    earlier: Mapping[int, Answer]
    kept: Mapping[int, int]

    @property
    def outcomes(self) -> Answers:
        """The known outcomes of its queries: from earlier runs, then its own."""
        drawn = [
            (index, ABSTAIN, Outcome.REFUSED)
            if answer.label is None
            else (index, answer.label, Outcome.ANSWERED)
            for index, answer in self.earlier.items()
        ]
        return drawn + self.released

    @property
    def released(self) -> Answers:
        """Its own outcomes: every query of every released batch, in order."""
        return [
            (index, int(label), Outcome(int(outcome)))
            for indices, release in self.store.releases().values()
            for index, label, outcome in zip(indices, release.labels, release.outcomes, strict=True)
        ]

    @property
    def reinforced(self) -> dict[int, int]:
        """Labels that sure students kept for refused queries; they cost nothing."""
        terms, asked, kept = self.store.ledger().terms, self.store.asked(), {**self.kept}
        mechanism = mechanism_of(terms)
        for batch, (indices, release) in self.store.releases().items():
            predictions = asked[batch].predictions
            if predictions is None or not isinstance(mechanism, HearsStudent):
                continue
            rule = mechanism.with_predictions(predictions, total_votes=terms.total_votes)
            labels = rule.reinforced_labels(release)
            own = (release.outcomes == Outcome.REFUSED) & (labels != ABSTAIN)
            kept |= {indices[place]: int(labels[place]) for place in np.flatnonzero(own)}
        return kept

    @property
    def lessons(self) -> dict[int, int]:
        """The labels that a student learns from, by position in the pool."""
        answered = ((at, label) for at, label, what in self.outcomes if what is Outcome.ANSWERED)
        return {**dict(answered), **self.reinforced}

    @property
    def counts(self) -> dict[int, NDArray[np.float64]]:
        """Noisy counts that were released beside labels in this life, by position in the pool."""
        return {
            index: counts
            for indices, release in self.store.releases().values()
            if release.counts is not None
            for index, counts in zip(indices, release.counts, strict=False)
        }

    @property
    def drawn_in(self) -> dict[int, str]:
        """Name of the earlier run that drew an answer, by position in the pool."""
        return {index: answer.run for index, answer in self.earlier.items()}

    @property
    def voids(self) -> int:
        """Batches that were void, over all attempts."""
        return sum(each.state in _VOID for each in self.store.asked().values())

    @property
    def has_asked(self) -> bool:
        """Whether hospitals were asked anything, in any attempt."""
        return bool(self.store.asked())

    @property
    def has_answers(self) -> bool:
        """Whether anything was released."""
        return bool(self.drawn_in) or bool(self.store.releases())

"""Three judgments on a run for its first page, from recorded facts: a word, a sign and a tone."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pate_fed import wording
from pate_fed.record import Metrics, Privacy
from pate_fed.report import quality_words

Tone = Literal["good", "care", "bad"]

_SIGNS: Final[dict[Tone, str]] = {"good": "✓", "care": "!", "bad": "✕"}
# Tiers of Ponomareva et al. 2023, How to DP-fy ML (arXiv 2303.00654).
_STRONG, _REASONABLE = 1.0, 10.0


class Judgment(NamedTuple):
    """A fact in a word, and the reason for it; `tone` is its color, `sign` says it without one."""

    about: str
    tone: Tone
    word: str
    because: str

    @property
    def sign(self) -> str:
        """A letter for readers who see no color."""
        return _SIGNS[self.tone]


def judgments_of(metrics: Metrics, privacy: Privacy) -> tuple[Judgment, Judgment, Judgment]:
    """Judge a run's privacy cost, the trust that it needed, and its student."""
    return _cost(privacy), _trust(privacy), _worth(metrics)


def _cost(privacy: Privacy) -> Judgment:
    epsilon = privacy.views.public.epsilon
    if epsilon is None:
        return Judgment("Privacy", "bad", "No limit", "no ε bounds what the labels reveal")
    tier: tuple[Tone, str, str] = ("bad", "Weak", "above 10")
    if epsilon <= _STRONG:
        tier = ("good", "Strong", "at most 1")
    elif epsilon <= _REASONABLE:
        tier = ("care", "Moderate", "above 1, at most 10")
    tone, word, where = tier
    return Judgment("Privacy", tone, word, f"the public ε is {where}")


def _trust(privacy: Privacy) -> Judgment:
    if privacy.sum == "plain":
        return Judgment("Trust", "bad", "One server", "it read each hospital's votes")
    if privacy.views.coordinator.epsilon is None:
        return Judgment("Trust", "care", "One server", "no ε holds against the coordinator")
    why = "the coordinator and the tally" if privacy.at_aggregators else "several parties"
    return Judgment("Trust", "good", "Shared", f"{why} would have to collude")


def _worth(metrics: Metrics) -> Judgment:
    about, scores = "Worth it", metrics.scores
    if metrics.student is None:
        return Judgment(about, "bad", "No", "there is no student")
    if scores.student is None:
        return Judgment(about, "care", "Not known", "nobody measured the student")
    student = f"the student has {quality_words.score_text(metrics, 'student')}"
    if scores.student.decided_classes == 1 or any(quality_words.public_alarms(metrics)):
        return Judgment(about, "bad", "No", f"{student}: no better than a constant")
    if quality_words.beats(metrics, "best_hospital"):
        best = quality_words.score_text(metrics, "best_hospital")
        return Judgment(about, "bad", "Not for all", f"{student}, the best hospital alone {best}")
    if quality_words.beats(metrics, "private_baseline"):
        rival = quality_words.score_text(metrics, "private_baseline")
        return Judgment(about, "care", "Perhaps", f"{student}, noisy gradients {rival}")
    if scores.best_hospital is None:
        guess = wording.percent(scores.student.majority)
        return Judgment(about, "care", "Perhaps", f"{student}; a constant is right on {guess}")
    best = quality_words.score_text(metrics, "best_hospital")
    return Judgment(about, "good", "Yes", f"{student}, the best hospital alone {best}")

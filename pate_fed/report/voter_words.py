"""Who votes, in words: a hospital's teachers, or patients whose own records vote."""

from __future__ import annotations

from typing import Final, NamedTuple


class VoterWords(NamedTuple):
    """What reports say of the voters of a run.

    Attributes:
        noun: One voter.
        each: What each does, for the student's card.
        voted: How they came to their votes.
        explained: Technical words, each with its meaning.
        exact_sum: What an exact sum shows in the worst case.
        kept: What a hospital keeps to itself.
        erased: What becomes of a patient's votes when a hospital erases the patient.
        gaps: Limits of an epsilon whose unit is one patient.
    """

    noun: str
    each: str
    voted: str
    explained: tuple[tuple[str, str], ...]
    exact_sum: str
    kept: str
    erased: str
    gaps: tuple[str, ...]


def voter_words(*, records_vote: bool) -> VoterWords:
    """Return the words for patients whose own records vote, or for teachers."""
    return _PATIENTS if records_vote else _TEACHERS


_TEACHERS: Final = VoterWords(
    noun="teacher",
    each="each trained on records of its own",
    voted=("Each hospital trained models, its teachers. These voted on the class of each query."),
    explained=(
        ("Teacher", "a model that a hospital trained on its own records and keeps there."),
        ("Vote", "the class that a teacher predicts for a query."),
    ),
    exact_sum="If all teachers agree on a query, the exact sum shows how each of them voted.",
    kept="records and teachers",
    erased="a hospital can erase a patient and train again",
    gaps=(
        "A patient from whom two teachers of one hospital learned (possible where records have no "
        "patient ids, or wrong ones): epsilon counts one of these teachers. For this patient it is "
        "at least about twice as large; no number is computed.",
    ),
)

_PATIENTS: Final = VoterWords(
    noun="patient",
    each="each votes by the closest of its own records, if one is close enough to a query",
    voted=(
        "No teachers were trained: each patient with a record close to a query voted for the class "
        "of the closest one, up to a cap on the votes of one patient."
    ),
    explained=(
        ("Vote", "the class of a patient's record that is closest to a query."),
        ("Close", "within a radius around a query, which the public pool fixes."),
    ),
    exact_sum=(
        "The exact sum shows how many patients with a record close to a query are of each class: a "
        "query made around one known person can show this person's presence and class."
    ),
    kept="records",
    erased="a hospital can erase a patient, whose records then vote no more",
    gaps=(
        "One chosen query: with a row of the public pool made around one known person, the exact "
        "sum shows the coordinator this person's presence and class. You must trust it not to ask "
        "that.",
        "A patient under two ids in one hospital (possible where records have no patient ids, or "
        "wrong ones): each id votes, with a cap of its own, and epsilon counts one of them. For "
        "this patient it is at least about twice as large; no number is computed.",
    ),
)

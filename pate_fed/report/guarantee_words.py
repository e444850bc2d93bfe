"""The guarantee in words and its number, for a privacy officer.

The formal number follows from caps and a budget that were fixed before the run; the actual number
of answers does not enter it.
"""

from __future__ import annotations

import math
from typing import Final

from pate_fed.accounting.costs import FormalCost, NoisePlace, PrivacyUnit, neighbors
from pate_fed.accounting.ranges import probability
from pate_fed.errors import InvalidParameterError
from pate_fed.report.voter_words import voter_words

NOT_PROTECTED: Final = (
    "The coordinator's view: the coordinator holds the exact sum of the votes in memory until the "
    "batch is released. You must trust it to keep this sum secret, and not to choose questions "
    "against one hospital.",
    "The coordinator's noise: the coordinator alone adds the noise, and nobody checks this.",
    "Invented hospitals: a coordinator could invent hospitals that collude with it. People at each "
    "hospital check that the other hospitals are real. A hospital's computer votes only "
    "after people there have checked enough others.",
    "Correct labels: a hospital that votes wrongly, by mistake or on purpose, can make labels "
    "wrong.",
    "A patient with records in several hospitals: epsilon counts the records in one of them only. "
    "For a patient in two hospitals the true epsilon is about twice as large or more; it is not "
    "computed.",
    "The people in the public inputs: a label says something about the person whose row it is. "
    "Epsilon does not protect them. The operator must be allowed to show these rows.",
    "Choices made with the help of private records: epsilon does not count them. Example: somebody "
    "tries several vote thresholds on the real votes, and keeps the best.",
    "Other uses of the same records, for other models or published tables: epsilon is for this "
    "run alone.",
    "Numbers that privacy.json marks as not releasable: they depend on the votes and are for the "
    "coordinator's operator only.",
    "General facts about patients: if a student has learned that smoking is harmful, it says so "
    "about every smoker, even about one whose records were never used.",
    "Completion: the coordinator can end the run, and one bad message from one hospital can make a "
    "whole batch void: then none of the batch's labels is released.",
    "Participation: who took part, with how many votes, and which public inputs were asked, is no "
    "secret in the federation.",
    "Timing and traffic: an observer of the network sees who sent how much, and when.",
    "The last digits of the noise: the mathematics assumes exact noise, and the computer draws "
    "it with limited precision. For a single random number the chance that this matters is below "
    "one in a hundred billion (at a standard deviation of up to 100 votes). Epsilon does not count "
    "this; noise.delta_slack in privacy.json bounds it for the whole run.",
)
"""The limits of the guarantee, in plain words."""

NOT_PROTECTED_WITH_NOISE_AT_PARTIES: Final = (
    "More colluders than declared: epsilon in the coordinator's view needs enough hospitals "
    "that add their noise as agreed and keep it secret. A hospital that adds no noise, or tells "
    "the coordinator its noise, does not count.",
    "The coordinator's result: epsilon in the public's view trusts the coordinator to apply the "
    "threshold and to release the right labels.",
    "Correct labels: a hospital that adds wrong noise or wrong votes can choose labels, and nobody "
    "can tell.",
    NOT_PROTECTED[2],
    *NOT_PROTECTED[4:-1],
    "The last digits of the noise: a draw differs from the exact noise of the mathematics with a "
    "probability below 1e-30. Epsilon does not count this.",
)
"""The same where the hospitals add the noise."""

NOT_PROTECTED_WITH_NOISE_AT_AGGREGATORS: Final = (
    "Both aggregators together: the coordinator and the tally can read every vote if they work "
    "together, so they must belong to two organizations.",
    "The right result: one aggregator can spoil a batch, leave a hospital out, or make labels "
    "wrong, and nobody has checked the noise that it added.",
    "Correct labels: a hospital can cast its own number of votes as it likes; more than its "
    "number it cannot.",
    *NOT_PROTECTED[4:10],
    "Completion: either aggregator can end the run; then no more labels are released.",
    *NOT_PROTECTED[11:-1],
    NOT_PROTECTED_WITH_NOISE_AT_PARTIES[-1],
)
"""The same where two aggregators check the votes, and add the full amount of noise each."""

VOTES_IN_THE_CLEAR: Final = (
    "The coordinator's view of votes: they were summed in the clear, so it saw those of each "
    "hospital."
)
"""The additions of a plain sum to `NOT_PROTECTED`."""

SIMULATED_NOT_PROTECTED: Final = (
    "Simulations: epsilon does not protect against anybody who controls the one machine on which "
    "all hospitals ran. If the simulation was started with --seed, anybody can also compute the "
    "noise. The numbers hold for a real run with the same settings.",
    "The comparison models of a simulation (hospitals on their own, noisy gradients, all records "
    "without privacy) and the numbers of records in manifest.json: they come from private records, "
    "without noise.",
    "The records of the pool and of the test set: a simulation takes them from the same source as "
    "the private records and treats them as public; labels.csv, the student and its scores can "
    "show them.",
)
"""The additions of a simulation to `NOT_PROTECTED`."""


REMOVAL_NEIGHBORS: Final = (
    "Compared with the case in which one hospital casts no vote at all; all other votes are the "
    "same."
)
"""The cases of the smaller number that holds for a hospital's one vote."""

_FIXED_BEFORE: Final = "was fixed before the first query"
_FIXED_BEFORE_EACH: Final = "the part of each run was fixed before that run's first query"


def guarantee_sentence(
    formal: FormalCost,
    *,
    delta: float,
    unit: PrivacyUnit,
    weight: int,
    runs: int = 1,
    label_cap: int | None = None,
    patient_votes: int | None = None,
) -> str:
    """State the guarantee: its content, its audience, and the meaning of the two numbers."""
    cases = neighbors(unit, weight, label_cap=label_cap, patient_votes=patient_votes)
    whose = "one patient's records" if unit == "record" else "one hospital's records"
    return (
        f"For {formal.holds_for}: if {whose} were entirely different, the probability of any "
        f"outcome they see would change by a factor of at most e^epsilon = "
        f"{_up(math.exp(min(formal.epsilon, 700.0)))} (epsilon = {_up(formal.epsilon)}), plus "
        f"delta = {probability('delta', delta):g}. Neighbors: {cases} "
        f"Method: {formal.method}. Epsilon holds for every possible set of records, and "
        f"{_FIXED_BEFORE if runs == 1 else _FIXED_BEFORE_EACH}."
    )


DEALT_BY_CLASS: Final = (
    "the dealing of records to teachers by class (--partition dirichlet): a record of another "
    "class would also move other records to other teachers"
)
"""Printed beside every number of a simulation whose dealing looked at the records."""


def trust_sentence(noise_place: NoisePlace, *, records_vote: bool = False) -> str:
    """Say who must be trusted, and for which property."""
    if noise_place == "parties":
        return (
            "For the number in the coordinator's view, no hospital trusts the coordinator: only "
            "the noisy sum is opened, and the exact sum of the votes exists nowhere. Every "
            "hospital trusts enough others to add their part of the noise as agreed and to keep "
            "it secret. For the number in the public's view, every hospital also trusts the "
            "coordinator to use the declared threshold and predictions."
        )
    if noise_place == "aggregators":
        return (
            "Neither the coordinator nor the tally is trusted alone: both together check every row "
            "of votes without seeing it, each adds the full amount of noise, and neither sees a "
            "sum without the other's. Every hospital trusts that one of the two keeps its share, "
            "and the noise that it adds as agreed, from the other, however many hospitals work "
            "with that one. Together the two could read every vote. For the number in the public's "
            "view, and for right labels, it trusts both to do as agreed."
        )
    if noise_place != "coordinator":
        raise InvalidParameterError(
            'noise place must be "coordinator", "parties" or "aggregators"', noise_place
        )
    return (
        "Every hospital trusts the coordinator to add the declared noise, to keep the exact sum of "
        "all votes secret, and not to choose questions against one hospital. The coordinator holds "
        "the sum in memory until the batch is released. "
        "There is no differential privacy against the coordinator. "
        f"{voter_words(records_vote=records_vote).exact_sum}"
    )


def delta_warning(delta: float, *, units: int) -> str | None:
    """Warn of a delta from 1 / units on: it would allow to publish somebody's records whole."""
    if probability("delta", delta) * units < 1:
        return None
    return (
        f"delta = {delta:g} is not below 1/{units}. With {units} privacy units such a delta allows "
        "publishing one unit's records. Choose a smaller delta."
    )


def not_protected(
    *,
    simulated: bool,
    unit: PrivacyUnit,
    votes_in_the_clear: bool = False,
    noise_place: NoisePlace = "coordinator",
    records_vote: bool = False,
) -> tuple[str, ...]:
    """List the limits of the guarantee, in plain words."""
    gaps = {
        "coordinator": NOT_PROTECTED,
        "parties": NOT_PROTECTED_WITH_NOISE_AT_PARTIES,
        "aggregators": NOT_PROTECTED_WITH_NOISE_AT_AGGREGATORS,
    }
    return (
        *(SIMULATED_NOT_PROTECTED if simulated else ()),
        *((VOTES_IN_THE_CLEAR,) if votes_in_the_clear else ()),
        *gaps[noise_place],
        *(voter_words(records_vote=records_vote).gaps if unit == "record" else ()),
    )


def _up(value: float) -> str:
    """Write a number with 4 significant digits, rounded up, that is toward more privacy loss."""
    if value <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-15)) * unit:.4g}"

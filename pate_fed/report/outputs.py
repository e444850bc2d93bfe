"""Who sees which output of a run, and which number bounds what it reveals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pate_fed.record.privacy import Output
from pate_fed.report.voter_words import VoterWords, voter_words

if TYPE_CHECKING:
    from pate_fed.report.ended_run import UsedRun

POST_PROCESSING: Final = (
    "The student learns from the released labels and public inputs only. Computing anything from "
    "released labels costs no further privacy."
)

_PUBLIC, _OPERATOR = "views.public", "views.coordinator"
_TWO = (
    "sent in two parts, of which neither tells anything: an aggregator sees its own. Both "
    "aggregators together can read the votes"
)
_NOTHING = "no epsilon: you must trust the coordinator"


def trust_model(used: Sequence[UsedRun]) -> str:
    """Name the trust model of the runs whose labels are used, as NIST SP 800-226 does.

    Returns:
        "central": somebody holds an exact sum. "distributed": each hospital adds its noise before
        anything leaves it. "two aggregators": each of them adds the whole noise.
    """
    if all(run.terms.rule.at_aggregators for run in used):
        return "two aggregators"
    return "distributed" if all(run.terms.rule.at_parties for run in used) else "central"


def outputs(used: Sequence[UsedRun]) -> tuple[Output, ...]:
    """List what the runs made, from most to least secret."""
    hidden = all(run.form.hides_vectors for run in used)
    model = trust_model(used)
    noisy, verified = model != "central", model == "two aggregators"
    nobody = "nobody outside the hospital"
    voters = voter_words(records_vote=any(run.terms.do_records_vote for run in used))
    rows = (
        (f"a hospital's {voters.kept}", nobody, "they never leave the hospital"),
        (
            "one hospital's votes",
            f"{nobody}, except as the next column says" if hidden else "the coordinator",
            (_TWO if verified else _hidden_votes(voters, noisy=noisy)) if hidden else _NOTHING,
        ),
        (
            "exact sum of all votes on a query",
            "nobody" if noisy else "the coordinator, in memory until the batch is released",
            "it exists nowhere" if noisy else _NOTHING,
        ),
        (
            "noisy vote counts",
            "the coordinator and the tally" if verified else "the coordinator",
            f"{_OPERATOR}, views.tally" if verified else _OPERATOR if noisy else _NOTHING,
        ),
        ('labels and "no answer"', "the coordinator, all hospitals, readers", _PUBLIC),
        ("student and its card", "its users", f"{_PUBLIC} (post-processing)"),
    )
    return tuple(
        Output(output=output, seen_by=seen, bounded_by=bound) for output, seen, bound in rows
    )


def _hidden_votes(voters: VoterWords, *, noisy: bool) -> str:
    hidden, colluding = (
        "hidden before they leave",
        "too many hospitals collude with the coordinator",
    )
    if noisy:
        return (
            f"{hidden}. If {colluding}, all these colluders learn the votes, with the hospital's "
            "own noise added"
        )
    return (
        f"{hidden}, except in the exact sum. {voters.exact_sum} If {colluding}, all these "
        "colluders learn the votes"
    )

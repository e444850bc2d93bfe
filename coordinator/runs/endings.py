"""How a run ended, and why, in words for its people."""

from __future__ import annotations

from coordinator.runs.labeling import LabelingRun, absences
from coordinator.runs.later_steps import said
from coordinator.runs.open_run import OpenRun, rounds_of
from coordinator.runs.queue import RunState
from coordinator.runs.waits import RunWaits
from pate_fed.errors import NoLabelError
from pate_fed.evaluation_task import EvaluationTask
from pate_fed.releases import Outcome


def ending(run: OpenRun, notes: list[str]) -> tuple[RunState, str]:
    """Return how a run ended and why; what is missing in its results is part of the reason."""
    stopped_by = run.stopped_by
    if isinstance(stopped_by, RunWaits.HaltedError):
        return RunState.STOPPED, "; ".join(("by the operator", *notes))
    left_out, skipped = _left_out(run), run.skipped_words
    if stopped_by is not None:
        reason = [said(stopped_by), *left_out, *skipped, *_flaws(run), *notes]
        return end_of(run), "; ".join(reason)
    flaws = [*left_out, *skipped, *_flaws(run, last_void=run.last_void), *notes]
    is_short = skipped or (run.voids and run.left)  # voids used up the caps
    return end_of(run) if is_short else RunState.DONE, "; ".join(flaws)


def end_of(run: OpenRun, *, is_whole: bool = False) -> RunState:
    """Return how a run stands that ended before all was asked, unless it is whole."""
    if not run.has_answers:
        return RunState.FAILED
    return RunState.DONE if is_whole else RunState.INCOMPLETE


def _left_out(run: OpenRun) -> list[str]:
    """Say in a line each who is left out.

    Hospitals approved a run with exactly its members: without one of them it is another run.
    """
    fingerprints = {one.name: one.identity.fingerprint for one in run.members}
    return [
        f"{name} (fingerprint {fingerprints[name].hex()[:16]}) {reason}: ask for a new run without "
        "it"
        for name, reason in run.left_out.items()
    ]


def _flaws(run: OpenRun, *, last_void: str = "") -> list[str]:
    """List the faults of a run that is done."""
    flaws = [said(NoLabelError())] if _is_unanswered(run) else []
    if run.voids:  # of a batch that an earlier life gave up nothing else tells
        why = f", the last one by {last_void}" if last_void else ""
        flaws.append(f"{run.voids} of its batches are void{why}")
    labeling = run.labeling
    heard = rounds_of(run).closing.heads_compared
    lost = [one.name for one in labeling.members if one.identity.fingerprint not in heard]
    if lost:
        flaws.append(f"not there at the closing: {', '.join(lost)}")
    if isinstance(labeling, LabelingRun):
        flaws += absences(labeling.lost, labeling.rejected)
    for names in dict.fromkeys(labeling.share_faults):
        flaws.append(f"a share differed from its dealer's signed hashes: {' or '.join(names)}")
    return flaws


def _is_unanswered(run: OpenRun) -> bool:
    """Return whether all labels that a student could learn from were refused."""
    outcomes = () if isinstance(run.task, EvaluationTask) else run.outcomes
    return bool(outcomes) and all(what is Outcome.REFUSED for _, _, what in outcomes)

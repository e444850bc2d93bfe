"""The points of a run at which its coordinator may be stopped, and the door through which tests do.

A run calls its `OnStage` at each point. The called function is an argument of the run, so nothing
from outside the program can set it; the default does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class BatchStage(StrEnum):
    """The last finished step."""

    PLANNED = "planned"  # a batch, its worst case and its plan are stored, nothing is sent
    HEARD = "heard"  # one party's answer of an exchange was taken
    ANSWERED = "answered"  # the y's are in
    PROPOSED = "proposed"  # the set, or the list for the tally, is journalled, not sent
    AGREED = "agreed"  # the verdicts are in, or one more answer of the tally is noted
    CERTIFIED = "certified"  # the certificate is journalled, not sent
    REVEALED = "revealed"  # the shares are in
    OPENED = "opened"  # the sum is in memory, nothing was decided
    DECIDED = "decided"  # noise is drawn where it is ours, labels are in memory, nothing is stored
    STORED = "stored"  # release, charge and settlement are stored, nobody was told
    CLOSING_PROPOSED = "closing proposed"  # a plan is to be closed: journalled, not sent
    VOID_STORED = "void stored"  # a void batch, its charge and its settlement, nobody was told
    CLOSING = "closing"  # the closing is journalled, not sent
    COMPARING = "comparing"  # all heads are journalled, not shown
    FINISHED = "finished"  # every party has compared


OnStage = Callable[[BatchStage], None]


def pass_by(stage: BatchStage) -> None:
    """Do nothing: the run's `OnStage` outside of tests."""

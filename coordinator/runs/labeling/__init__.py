"""One labeling run: plan, reserve, collect shares, open the sum, release, commit.

The order is the point: see "Why this order", "Who holds each value" and "Restarts" in
`docs/explanation/architecture.md`. A stored result is settled and shown as it is after a crash. Any
other is collected again from the very same y's, and the coordinator's noise drawn afresh: nobody
has seen the result of the first draw.
"""

from coordinator.runs.labeling.job import Aggregation, LabelingJob, TallyLink, tolerated
from coordinator.runs.labeling.labeling_run import LabelingRun
from coordinator.runs.labeling.roster import Member, in_seat_order
from coordinator.runs.labeling.vote_checking import absences

__all__ = [
    "Aggregation",
    "LabelingJob",
    "LabelingRun",
    "Member",
    "TallyLink",
    "absences",
    "in_seat_order",
    "tolerated",
]

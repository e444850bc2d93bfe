"""One labeling run: plan, reserve, collect shares, open the sum, release, commit.

The order is the point. The worst case is reserved before a plan leaves, so no noise is ever drawn
without a charge. A release is stored with its charge before it is shown. A batch that fails after a
share may have left a party keeps its charge and releases nothing.

Where it adds the noise, the coordinator sees the exact sum of each batch, in memory, between
opening it and adding noise. Where the parties add it, the sum opens noisy, and the exact one exists
nowhere.
It never holds one party's histogram.

A run that was killed goes on: `LabelingRun.resume` takes it up from its journal and its store, and
`finish` brings the batch that was open to its end. Stored results are settled and shown as they
are; others are collected again from the very same y's. Where the noise is the coordinator's it is
drawn afresh, since nobody has seen the first draw's result.
"""

from coordinator.runs.labeling.job import LabelingJob, tolerated
from coordinator.runs.labeling.labeling_run import LabelingRun
from coordinator.runs.labeling.roster import Member, in_seat_order

__all__ = ["LabelingJob", "LabelingRun", "Member", "in_seat_order", "tolerated"]

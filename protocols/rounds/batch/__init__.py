"""One batch: a plan, the y's that answer it, and the settlement that ends it; both ends.

At a party a `PartyPlan` lives from the plan's arrival to its settlement. The coordinator has a
`Tally` of the plan, which keeps no y.
"""

from protocols.rounds.batch.at_coordinator import CoordinatorBatch, CoordinatorBlame
from protocols.rounds.batch.at_party import PartyBatch

__all__ = ["CoordinatorBatch", "CoordinatorBlame", "PartyBatch"]

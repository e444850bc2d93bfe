"""One batch: a plan, the y's that answer it, and the settlement that ends it; both ends.

At a party a `PartyPlan` lives from the plan's arrival to its settlement. The coordinator has a
`Tally` of the plan, which keeps no y.
"""

__all__: list[str] = []

"""One batch: a plan, the y's that answer it, and the settlement that ends it; both ends.

At a party a `PartyPlan` lives from the plan's arrival to its settlement. The coordinator has a
`RunningTotal` of the plan, which keeps no y, or a `ReportCollector`, which passes reports on.
"""

__all__: list[str] = []

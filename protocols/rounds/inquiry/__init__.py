"""Before a run, and before a plan: the coordinator asks whether it would be served; both ends.

Nothing changes: a question enters no history, and may come as often as the coordinator likes, while
others are away. The one about a run belongs to no run; `PartySetup` checks it.
"""

__all__: list[str] = []

"""The tally: a second organisation that checks votes and adds noise; the coordinator asks it."""

from coordinator.tally.cards import TallyCard, TallyInvite

__all__ = ["TallyCard", "TallyInvite"]

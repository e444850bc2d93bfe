"""The cost of votes, by every method side by side."""

from pate_fed.accounting.compare.case import VoteCase
from pate_fed.accounting.compare.table import compare, render_comparison

__all__ = ["VoteCase", "compare", "render_comparison"]

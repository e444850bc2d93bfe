"""The cost of votes, by every method side by side."""

from pate_fed.lab.compare.case import VoteCase
from pate_fed.lab.compare.table import compare, render_comparison

__all__ = ["VoteCase", "compare", "render_comparison"]

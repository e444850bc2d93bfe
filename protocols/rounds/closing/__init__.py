"""The end of a run: all parties compare the last head of its transcript; two exchanges, both ends.

Each party signs the head that it remembers, the coordinator shows all of them to each, and each
compares. Two parties that were told two histories find out here at the latest.
"""

__all__: list[str] = []

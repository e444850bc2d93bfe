"""The secure sum: additive secret sharing between parties, with a coordinator that learns the sum.

A library without I/O: messages in, messages out. It knows vectors of integers, not votes.
"""

__all__: list[str] = []

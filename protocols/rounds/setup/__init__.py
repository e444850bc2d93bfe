"""The setup of a run: who takes part, under which keys. Four exchanges, both ends.

The coordinator offers a run, each party states its keys, and the record of all statements fixes the
run: its digest is the run's id. Then each pair of parties makes a root from randomness of both,
sealed under that id, and both confirm it before any batch.
"""

__all__: list[str] = []

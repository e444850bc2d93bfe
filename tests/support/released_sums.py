"""A coordinator that released the labels of marked sums, and waits: its memory is looked at.

Argument: "deployed" or "simulated", what the runs are. After a line it keeps a copy, and waits.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from pate_fed.accounting import Outcomes
from pate_fed.mechanisms import DEPLOYED_MECHANISMS, SPECS
from tests.support.federation import CLASSES, Federation, unanimous
from tests.support.marker import MARKED_TEACHERS, MARKERS, marked_votes

SIGMA: Final = 20_000.0
PEERS: Final = {"additive": 2, "masked": 4}
_OTHER: Final = {"vote_threshold": 10.0, "sigma1": SIGMA, "confidence": 0.8, "test_delta": 1e-7}


def sums() -> list[tuple[int, ...]]:
    """The exact sums of all batches: marked votes, and those of unanimous peers."""
    return [
        tuple(
            mark + (peers * MARKED_TEACHERS if place == right else 0)
            for place, mark in enumerate(MARKERS)
        )
        for peers in PEERS.values()
        for right in range(CLASSES)
    ]


def marked(form: str, mechanism: str, *, simulated: bool) -> Federation:
    """A federation of which one hospital votes the marker histogram."""
    spec, parties = SPECS[mechanism], PEERS[form] + 1
    terms: dict[str, Any] = {
        "mechanism": mechanism,
        "sigma2": SIGMA if "sigma2" in spec.parameters else None,
        **{name: _OTHER[name] if name in spec.parameters else None for name in _OTHER},
    }
    votes = {place: unanimous(MARKED_TEACHERS) for place in range(parties)} | {1: marked_votes}
    policy = {"simulated": simulated}
    return Federation(
        parties=parties,
        teachers=MARKED_TEACHERS,
        votes=votes,
        terms=terms,
        form=form,
        simulated=simulated,
        policy=policy,
    )


def released(form: str, *, simulated: bool) -> Federation:
    """Ask two batches, over the network."""
    federation = marked(form, "threshold", simulated=simulated)
    federation.run.set_up()
    federation.ask(0, 1)
    federation.ask(2, 3)
    return federation


def decided(mechanism: str, *, simulated: bool) -> Federation:
    """Have the coordinator decide an opened sum, as it would by this mechanism."""
    federation = marked("additive", mechanism, simulated=simulated)
    decider = federation.run._decider
    for queries in (2, 60):  # NumPy keeps small arrays, others are the operating system's
        chances = np.full((queries, CLASSES), 1 / CLASSES) if SPECS[mechanism].learns else None
        words = np.empty(queries * CLASSES, dtype=np.int64)
        for place in range(len(words)):  # none of these lines makes a copy of a row
            words[place] = MARKERS[place % CLASSES]
            if place % CLASSES == place // CLASSES % CLASSES:
                words[place] += PEERS["additive"] * MARKED_TEACHERS
        opened = decider.open(words, queries=queries, places=range(3))
        rule = decider.rule_for(tuple(range(queries)), chances)
        release = decider.decide(opened, rule=rule, left=Outcomes(100, 100))
        assert release.asked == queries
    return federation


if __name__ == "__main__":
    is_simulated = sys.argv[1] == "simulated"
    there = [released(form, simulated=is_simulated) for form in PEERS]
    there += [decided(mechanism, simulated=is_simulated) for mechanism in DEPLOYED_MECHANISMS]
    print("released", flush=True)
    sys.stdin.readline()
    kept = np.array(sums()[:2])
    print("kept", flush=True)
    sys.stdin.readline()

"""The cost of all runs together for each hospital's units: their epsilons and deltas add up.

A run counts whole, by the one epsilon that is stated for it, as soon as it is open or has charged
anything: its guarantee is that of its caps, however few of its queries were answered.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.runs.queue import RunQueue

Cost: TypeAlias = tuple[float, float]
"""Epsilon and delta."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The facts of a run's request that give its epsilon a meaning.

    Attributes:
        fingerprints: Of their identities, in the same order.
        votes: Of each on a query, by fingerprint; empty for an evaluation.
        noise: Who adds the noise: "coordinator" or "parties".
    """

    hospitals: tuple[str, ...]
    fingerprints: tuple[bytes, ...]
    votes: Mapping[bytes, int]
    epsilon: float
    delta: float
    unit: str
    noise: str
    queries: int


@dataclass(frozen=True, slots=True)
class HospitalSpending:
    """The cost of runs for one hospital's units: epsilons and deltas add up.

    Attributes:
        runs: How many runs charged something.
    """

    hospital: str
    unit: str
    runs: int
    epsilon: float
    delta: float


class Spending:
    """The charges of all runs."""

    def __init__(self, queue: RunQueue) -> None:
        self._queue = queue
        self._known: dict[int, Terms] = {}  # a request never changes

    def terms(self) -> dict[int, Terms]:
        """Return the terms of each run, by its number."""
        # No lock of ours: a thread that held it and waited for the database's would wait for one
        # that has the database's and waits for ours. The worst without one is to read some twice.
        known = self._known
        newer = self._queue.requests(after=max(known, default=0))
        self._known = known = known | {number: _terms_in(text) for number, text in newer}
        return known

    def committed(self) -> dict[str, float]:
        """Return by hospital the epsilon of its runs that are open or have charged anything."""
        # In this order: a run that ends meanwhile counts too much, and never too little.
        open_runs, shares = self._queue.open_numbers(), self._queue.shares()
        terms, total = self.terms(), defaultdict[str, float](float)
        for one in _spent(terms[run] for run, share in shares.items() if share or run in open_runs):
            total[one.hospital] += one.epsilon
        return dict(total)

    def by_hospital(self) -> list[HospitalSpending]:
        """Return the spending for each hospital's units, the most first."""
        terms, shares = self.terms(), self._queue.shares()
        found = _spent(terms[run] for run, share in shares.items() if share and run in terms)
        return sorted(found, key=lambda one: (-one.epsilon, one.hospital))


def _spent(runs: Iterable[Terms]) -> list[HospitalSpending]:
    groups = defaultdict[tuple[tuple[str, ...], str], list[Cost]](list)
    for of in runs:
        groups[of.hospitals, of.unit].append((of.epsilon, of.delta))
    found = defaultdict[tuple[str, str], list[tuple[int, float, float]]](list)
    for (hospitals, unit), costs in groups.items():  # mostly the same hospitals
        epsilons, deltas = zip(*costs, strict=True)
        total = len(costs), math.fsum(epsilons), math.fsum(deltas)
        for hospital in hospitals:
            found[hospital, unit].append(total)
    return [_added_up(hospital, unit, totals) for (hospital, unit), totals in found.items()]


def _added_up(hospital: str, unit: str, totals: list[tuple[int, float, float]]) -> HospitalSpending:
    runs, epsilons, deltas = zip(*totals, strict=True)
    return HospitalSpending(hospital, unit, sum(runs), math.fsum(epsilons), math.fsum(deltas))


def _terms_in(text: str) -> Terms:
    record = json.loads(text)
    asked = record.get("evaluation")
    evaluation = asked or {"settings": {}}
    settings = record["settings"] | evaluation["settings"]  # an evaluation has a price of its own
    fingerprints = tuple(bytes.fromhex(one["fingerprint"]) for one in record["parties"])
    votes = [int(one["teachers"]) for one in record["parties"]]
    return Terms(
        hospitals=tuple(one["name"] for one in record["parties"]),
        fingerprints=fingerprints,
        votes={} if asked else dict(zip(fingerprints, votes, strict=True)),
        epsilon=float(record["epsilon"]),
        delta=float(settings["delta"]),
        unit=str(settings["unit"]),
        noise=str(settings["rule"]["noise_place"]),
        queries=len(record["queries"]),
    )

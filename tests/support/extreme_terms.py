"""Terms at the ends of their ranges, and everything that a hospital or a coordinator prices.

As a program: prices all cases of the command line under a limit of memory, and writes a line for
each. A case that runs out of memory ends it.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from pate_fed.accounting import PrivacyLedger
from pate_fed.accounting.ranges import RANGES
from pate_fed.charging import RunLedger, lifelong_charge, require_room_for_life
from pate_fed.errors import PateFedError
from pate_fed.federation import NO_TASK, RunTerms
from pate_fed.mechanisms import SPECS, Size
from pate_fed.pricing import cost_of_runs, formal_cost_at, public_cost_at
from pate_fed.votes import TeacherWeights

MOST_BYTES: Final = 2**30
"""Memory beside that of the modules within which every price must be found."""

MOST_CPU_S: Final = 120
"""A net for each case: what never ends is ended. The longest takes 15 seconds."""


def usual_terms() -> dict[str, RunTerms]:
    """Return terms of each mechanism, by each price and place of noise that it can have."""
    found = {}
    for name, spec in SPECS.items():
        for place in ("coordinator", "parties"):
            for pricing in spec.prices_with(place):
                if pricing != "none":
                    found[f"{name}, {pricing}, {place}"] = _terms(name, pricing, place)
    return found


def _terms(name: str, pricing: str, place: str) -> RunTerms:
    spec = SPECS[name]
    options = {**spec.usual(Size(60, 1, 1e-5))}
    may_refuse, at_parties = spec.may_refuse, place == "parties"
    return RunTerms(
        name="extreme",
        pool_digest=bytes(32),
        task_digest=NO_TASK,
        classes=3,
        weights=(TeacherWeights.equal(20),) * 3,
        mechanism=name,
        **{one: options.get(one) for one in _OPTIONS},  # type: ignore[arg-type]
        noise_place=place,  # type: ignore[arg-type]
        unit="record",
        pricing=pricing,  # type: ignore[arg-type]
        orders=(9.0,) * 3 if pricing in ("label", "joint", "renyi") else (),
        max_asks=5 if may_refuse else 3,
        max_answers=3,
        max_refusals=3 * may_refuse,
        budgets=(5.0,) * 3,
        delta=1e-5,
        colluders=1 if at_parties else None,
        dropouts=0 if at_parties else None,
    )


_OPTIONS: Final = ("vote_threshold", "sigma1", "sigma2", "confidence", "test_delta")


def changes(terms: RunTerms, together: int) -> Iterator[dict[str, Any]]:
    """Yield changes of this many fields at once to ends of their ranges, if terms allow them."""
    ends = [
        {one.name: end}
        for one in fields(terms)
        if one.name in RANGES and getattr(terms, one.name) not in (None, ())
        for end in _ends(one.name, terms)
    ]
    for several in itertools.combinations(ends, together):
        changed = {name: end for one in several for name, end in one.items()}
        if len(changed) == together and _are_terms(terms, changed):
            yield changed


def _ends(name: str, terms: RunTerms) -> list[Any]:
    if name == "weights":
        few = (TeacherWeights.equal(1),) * 3
        many = TeacherWeights.equal(1, weight=2**29), *(TeacherWeights.equal(2**28),) * 2
        # The last: as many votes as the joint price of three classes is known for.
        return [few, many, (TeacherWeights.equal(333),) * 3]
    held = getattr(terms, name)
    least, most = RANGES[name].least, RANGES[name].largest
    if isinstance(held, tuple):
        return [(least,) * len(held), (most,) * len(held)]
    if isinstance(held, int):
        return [int(least), int(most)]
    # Also where prices are known, but at the end of that.
    inner = {"sigma1": [0.05, 1e4], "sigma2": [0.05, 0.2, 1e4]}.get(name, [])
    return [least, *inner, most]


def _are_terms(terms: RunTerms, changed: dict[str, Any]) -> bool:
    changed = _with_caps(changed, terms)
    try:
        replace(terms, **changed)
    except PateFedError:
        return False
    return True


def _with_caps(changed: dict[str, Any], terms: RunTerms) -> dict[str, Any]:
    """Let the cap on asks follow the others."""
    answers = changed.get("max_answers", terms.max_answers)
    refusals = changed.get("max_refusals", terms.max_refusals)
    return {"max_asks": max(answers, refusals, answers + refusals - 1), **changed}


def price(terms: RunTerms) -> dict[str, float | str]:
    """Price terms by every way that a node does; a coded error is an answer, too."""
    return {name: _priced(way, terms) for name, way in _WAYS.items()}


def _priced(way: Any, terms: RunTerms) -> float | str:
    try:
        return float(way(terms))
    except PateFedError as error:
        return error.code


def _at_guard(terms: RunTerms) -> float:
    ledger = PrivacyLedger.for_life(5.0, 1e-5, additive_delta=5e-6)
    run_ledger = RunLedger.of(terms, seat=0)
    worst = run_ledger.worst_case(1)
    charge = lifelong_charge(terms, worst, weight=terms.unit_votes_at(0), ledger=ledger)
    assert charge is not None
    share = ledger.share_of(charge)
    run_ledger.reserve("review", worst)
    return share


def _for_life(terms: RunTerms) -> float:
    require_room_for_life(terms, terms.max_asks)
    return 0.0


_WAYS: Final = {
    "guard": _at_guard,
    "formal": lambda terms: formal_cost_at(terms, 0).epsilon,
    "public": lambda terms: public_cost_at(terms, 0).epsilon,
    "stated": lambda terms: cost_of_runs([terms], 0, unit=terms.unit).epsilon,
    "life": _for_life,
}


def main(kind: str, together: str) -> None:
    """Price every case of a kind of terms."""
    terms = usual_terms()[kind]
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    room = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    for changed in [{}, *changes(terms, int(together))]:
        start = time.process_time()
        until = math.ceil(start) + MOST_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
        found = price(replace(terms, **_with_caps(changed, terms)))
        case = {name: str(end)[:40] for name, end in changed.items()}
        print(
            json.dumps({"case": case, "found": found, "s": time.process_time() - start}), flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

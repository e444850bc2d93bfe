"""Terms at the ends of their ranges, and everything that a hospital or a coordinator prices.

As a program: prices all cases of the command line under a limit of memory, and writes a line for
each. A case that runs out of memory ends it. With "review" a hospital reviews hostile terms.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pate_fed.lab.mechanisms  # noqa: F401 - adds what only simulations run to SPECS
from party.decision.guard import Guard
from party.errors import RefusalError
from party.site.policy import Policy
from pate_fed.accounting import PrivacyLedger
from pate_fed.accounting.composition import MOST_ASKS
from pate_fed.accounting.ranges import RANGES
from pate_fed.charges import RunLedger, lifelong_charge
from pate_fed.errors import PateFedError
from pate_fed.mechanisms import SPECS, Size, specs_with
from pate_fed.planning.budgets import share_for_life
from pate_fed.prices import charged_price, removal_price, run_price
from pate_fed.series import price_of_runs
from pate_fed.terms import NO_TASK, RunTerms
from pate_fed.votes import TeacherWeights
from tests.support.rules import run_terms, with_other

MOST_BYTES: Final = 2**30
"""Memory beside that of the modules within which every price must be found."""

MOST_CPU_S: Final = 120
"""A net for each case: what never ends is ended. The longest takes 15 seconds."""

MOST_REVIEW_S: Final = 20
"""The same for the review of a run by a hospital: a coordinator may offer as many as it likes."""


def usual_terms() -> dict[str, RunTerms]:
    """Return terms of each mechanism that has a price, by each place of noise that it can have."""
    return {
        f"{name}, {place}": _terms(name, place)
        for place in ("coordinator", "parties")
        for name, spec in specs_with(place).items()
        if spec.is_private
    }


def _terms(name: str, place: str) -> RunTerms:
    spec = SPECS[name]
    options = {**spec.usual(Size(60, 1, 1e-5))}
    may_refuse, at_parties = spec.may_refuse, place == "parties"
    return run_terms(
        name="extreme",
        pool_digest=bytes(32),
        task_digest=NO_TASK,
        classes=3,
        weights=(TeacherWeights.equal(20),) * 3,
        mechanism=name,
        **options,
        noise_place=place,
        unit="record",
        max_asks=5 if may_refuse else 3,
        max_answers=3,
        budgets=(5.0,) * 3,
        delta=1e-5,
        colluders=1 if at_parties else None,
        dropouts=0 if at_parties else None,
    )


def changes(terms: RunTerms, together: int) -> Iterator[dict[str, Any]]:
    """Yield changes of this many fields at once to ends of their ranges, if terms allow them."""
    ends = [
        {one.name: end}
        for table in (terms, terms.rule, terms.caps)
        for one in fields(table)
        if one.name in RANGES and getattr(table, one.name) not in (None, ())
        for end in _ends(one.name, getattr(table, one.name))
    ]
    for several in itertools.combinations(ends, together):
        found = {name: end for one in several for name, end in one.items()}
        if len(found) == together and _are_terms(terms, found):
            yield found


def _ends(name: str, held: Any) -> list[Any]:
    if name == "weights":
        few = (TeacherWeights.equal(1),) * 3
        many = TeacherWeights.equal(1, weight=2**29), *(TeacherWeights.equal(2**28),) * 2
        return [few, many, (TeacherWeights.equal(333),) * 3]
    least, most = RANGES[name].least, RANGES[name].largest
    if isinstance(held, tuple):
        return [(least,) * len(held), (most,) * len(held)]
    if isinstance(held, int):
        return [int(least), int(most)]
    # Also where prices are known, but at the end of that.
    inner = {"sigma1": [0.05, 1e4], "sigma2": [0.05, 0.2, 1e4]}.get(name, [])
    return [least, *inner, most]


def _are_terms(terms: RunTerms, ends: dict[str, Any]) -> bool:
    try:
        with_other(terms, **_with_caps(ends, terms))
    except PateFedError:
        return False
    return True


def _with_caps(ends: dict[str, Any], terms: RunTerms) -> dict[str, Any]:
    """Let caps fit each other where one alone is changed."""
    answers = ends.get("max_answers", terms.caps.most.answers)
    asks = ends.get("max_asks", max(answers, terms.caps.most.asks))
    if not terms.spec.may_refuse:
        answers = asks = ends.get("max_asks", answers)
    return {**ends, "max_asks": asks, "max_answers": answers}


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
    worst = RunLedger.of(terms, at_party=True).worst_case(1)
    charge = lifelong_charge(terms, worst, weight=terms.unit_votes_at(0))
    assert charge is not None
    return ledger.share_of(charge)


def _removal(terms: RunTerms) -> float:
    cost = removal_price(terms, 0)
    return 0.0 if cost is None else cost.epsilon


_WAYS: Final = {
    "guard": _at_guard,
    "charged": lambda terms: charged_price(terms, 0).epsilon,
    "stated": lambda terms: run_price(terms).epsilon,
    "removal": _removal,
    "rounds": lambda terms: price_of_runs([terms, terms], 0, unit="party").epsilon,
    "life": share_for_life,
}


def hostile_terms() -> Iterator[RunTerms]:
    """Yield terms whose price might take long, in a review by an owner who allows any of them."""
    for kind in ("threshold, coordinator", "gnmax, coordinator", "threshold, parties"):
        usual = usual_terms()[kind]
        for sigma, asks, classes, heavy in itertools.product(
            (1e-6, 0.3, 1.0, 3.0, 30.0, 1e7), (1, MOST_ASKS, 2**31 - 1), (2, 10_000), (1, 2**20)
        ):
            most = min(asks, int(RANGES["max_asks"].most))
            with contextlib.suppress(PateFedError):
                yield with_other(
                    usual,
                    sigma2=sigma,
                    max_asks=most,
                    max_answers=most,
                    classes=classes,
                    weights=(TeacherWeights.equal(20, weight=heavy), *usual.weights[1:]),
                    budgets=(0.01,) * 3,  # no quick bound is enough
                )


def review(terms: RunTerms) -> str:
    """Return the reason by which a hospital's guard refuses terms; empty if it does not."""
    guard = Guard(Policy(), terms.weights[0], {})  # a policy says nothing about a price
    ledger = PrivacyLedger.for_life(5.0, 1e-5)
    try:
        guard.review_price(RunLedger.of(terms, at_party=True), seat=0, ledger=ledger)
    except RefusalError as error:
        return error.reason.value
    return ""


def main(kind: str, together: str) -> None:
    """Price every case of a kind of terms, or review all hostile terms."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    room = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    if kind == "review":
        for terms in hostile_terms():
            start = _limited(MOST_REVIEW_S)
            found = {"review": review(terms)}
            case = {"sigma2": str(terms.rule.sigma2), "max_asks": str(terms.caps.max_asks)}
            case |= {
                "classes": str(terms.classes),
                "noise": terms.rule.noise_place,
                "weight": str(terms.unit_votes_at(0)),
            }
            print(json.dumps({"case": case, "found": found, "s": time.process_time() - start}))
        return
    usual = usual_terms()[kind]
    for ends in [{}, *changes(usual, int(together))]:
        start = _limited(MOST_CPU_S)
        prices = price(with_other(usual, **_with_caps(ends, usual)))
        case = {name: str(end)[:40] for name, end in ends.items()}
        line = {"case": case, "found": prices, "s": time.process_time() - start}
        print(json.dumps(line), flush=True)


def _limited(seconds: int) -> float:
    """End this process if it works for longer; return the time that it worked until now."""
    start = time.process_time()
    until = math.ceil(start) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
    return start


def priced_in_a_child(*arguments: str) -> list[dict[str, Any]]:
    """Price all cases in a process with a limit of memory, which must end well."""
    child = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert child.returncode == 0, f"{child.stdout[-300:]}\n{child.stderr[-1_500:]}"
    return [json.loads(line) for line in child.stdout.splitlines()]


if __name__ == "__main__":
    main(*sys.argv[1:])

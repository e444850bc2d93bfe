"""How exact and how fast votes are rebuilt, beside the vote-leak paper's descent along a gradient.

The 30 histograms of the paper, 10,000 answers, five repeats. The paper's search is timed twice in
the same run: with the integrals as its released code writes them (a loop over 12 sigma, gradient by
differences), and with ours. CPU time, medians, actions in turns. Then canaries of 20 seeds beside
true and false claims. Run from the repository root: ``python -m benchmarks.audit --data-dir DIR``
(two minutes; ``--format json`` for other programs, ``--quick`` for a look).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import scipy
from numpy.typing import NDArray

from benchmarks.bars import Bar, Figure, cpu_seconds, report
from pate_fed.accounting.gaussian_dp import gdp_epsilon
from pate_fed.audit import Answers, Noise, Target, normalized_error, rebuild_votes
from pate_fed.audit.audit_case import price
from pate_fed.lab.canary import canary_audit, releases_of
from pate_fed.lab.gradient_descent import descend
from pate_fed.lab.mechanisms import ConfidentGaussianMax, ImmutableMax
from pate_fed.mechanisms import GaussianMax, LaplaceMax, Mechanism, keyed_stream
from pate_fed.rule import Rule

ANSWERS, TEACHERS, CLASSES = 10_000, 250, 10
SEED = 2022
BARS = {("mnist", 40): 0.07, ("svhn", 40): 0.045, ("mnist", 60): 0.035, ("svhn", 60): 0.022}
SIGMAS = (40, 60, 80, 100)
MOST_MILLISECONDS = 5.0
LEAST_RATIO = 100.0


def histograms(folder: Path) -> dict[str, list[NDArray[np.int64]]]:
    stored = np.load(folder / "pate_votes" / "mnist_svhn_15_queries_250_teachers.npz")
    return {
        name: [np.bincount(row.astype(np.int64), minlength=CLASSES) for row in stored[name]]
        for name in ("mnist", "svhn")
    }


def errors(
    rows: dict[str, list[NDArray[np.int64]]], repeats: int
) -> tuple[list[Bar], list[Figure]]:
    """Rebuild every histogram; the errors of ours and of the paper's search."""
    bars, figures = [], []
    for name, votes in rows.items():
        for sigma in SIGMAS:
            noise, rng = Noise(float(sigma)), np.random.default_rng(SEED)
            ours, theirs = [], []
            for one in votes * repeats:
                answers = Target(noise).ask(one, asks=ANSWERS, rng=rng)
                found = rebuild_votes(answers, noise, teachers=TEACHERS).votes
                ours.append(normalized_error(found, one))
                theirs.append(normalized_error(descend(answers, noise, teachers=TEACHERS), one))
            words = f"mean normalized L1 error, {name.upper()}, sigma {sigma}"
            figures.append(Figure(f"{words}: the paper's search x 1,000", 1e3 * np.mean(theirs)))
            if (name, sigma) in BARS:
                bar = 1e3 * BARS[name, sigma]
                bars.append(Bar(f"{words} x 1,000", 1e3 * float(np.mean(ours)), bar, is_most=True))
            else:
                figures.append(Figure(f"{words}: ours x 1,000", 1e3 * float(np.mean(ours))))
    return bars, figures


def plain_chances(votes: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """The integral as the released code writes it: class by class, places one vote apart."""
    found = []
    for k, own in enumerate(votes):
        places = np.arange(own - 6 * sigma, own + 6 * sigma)
        together = np.exp(-0.5 * ((places - own) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
        for i, other in enumerate(votes):
            if i != k:
                together = together * scipy.special.ndtr((places - other) / sigma)
        found.append(np.trapezoid(together))
    return np.array(found)


def plain_model(
    votes: NDArray[np.float64], noise: Noise
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Chances, and their slopes by differences."""
    here = plain_chances(votes, noise.sigma)
    step = 1e-4
    columns = [
        (plain_chances(votes + step * one, noise.sigma) - here) / step for one in np.eye(len(votes))
    ]
    return here, np.array(columns)


def speed(rows: dict[str, list[NDArray[np.int64]]], rounds: int) -> tuple[list[Bar], list[Figure]]:
    """Time one histogram: the median and the slowest of 30."""
    noise, rng = Noise(40.0), np.random.default_rng(SEED)
    asked = [
        Target(noise).ask(one, asks=ANSWERS, rng=rng) for votes in rows.values() for one in votes
    ]
    ours = [
        cpu_seconds(lambda a=a: rebuild_votes(a, noise, teachers=TEACHERS), rounds=rounds)[0]
        for a in asked
    ]
    few: list[Answers] = asked[::6]
    mine, loop, kept = cpu_seconds(
        lambda: [rebuild_votes(a, noise, teachers=TEACHERS) for a in few],
        lambda: [descend(a, noise, teachers=TEACHERS, model=plain_model) for a in few],
        lambda: [descend(a, noise, teachers=TEACHERS) for a in few],
        rounds=max(1, rounds // 3),
    )
    each = 1e3 / len(few)
    return [
        Bar(
            "milliseconds per histogram, median of 30",
            1e3 * float(np.median(ours)),
            MOST_MILLISECONDS,
            is_most=True,
        ),
        Bar(
            "milliseconds per histogram, the slowest of 30",
            1e3 * max(ours),
            MOST_MILLISECONDS,
            is_most=True,
        ),
        Bar(
            f"gradient loop {each * loop:.0f} ms / ours {each * mine:.1f} ms, a histogram",
            loop / mine,
            LEAST_RATIO,
        ),
    ], [Figure("the paper's search with our integrals, a histogram", each * kept, "ms")]


def canaries(seeds: int) -> list[Bar]:
    """Hold bounds on epsilon, at 99.99 %, against true claims and false ones."""
    bars = []
    for name, rule in (
        ("GNMax", GaussianMax(3.0)),
        ("Confident", ConfidentGaussianMax(Rule("confident", 11.0, 3.0, 3.0))),
        ("LNMax", LaplaceMax(0.5)),
    ):
        found = max(
            _bound(rule, seed, trials=4_000, queries=4, delta=1e-3) for seed in range(seeds)
        )
        claim = price(rule, 4, delta=1e-3)
        words = f"canary, {name}: largest bound of {seeds} seeds / claim"
        bars.append(Bar(words, found / claim, 1.0, is_most=True))
    strong, beside = LaplaceMax(0.5), {"trials": 100_000, "queries": 1, "delta": 1e-9}
    bars.append(
        Bar(
            "canary, LNMax beside a lead of 5: bound / claim",
            _bound(strong, 5, lead=2, **beside) / price(strong, 1, delta=1e-9),
            0.5,
        )
    )
    nzc = _bound(ImmutableMax(0.5), 7, trials=40_000, queries=4, delta=1e-3)
    bars.append(
        Bar("canary, NZC's argmax: bound / claim", nzc / price(LaplaceMax(0.5), 4, delta=1e-3), 1.0)
    )
    # One answer at noise sigma is a Gaussian mechanism of mu = sqrt(2) / sigma: an exact claim.
    weak = _bound(GaussianMax(0.7), 6, trials=20_000, queries=1, delta=0.3)
    exact = gdp_epsilon(float(np.sqrt(2)), 0.3)
    bars.append(Bar("canary, noise 30 % too small: bound / claim", weak / exact, 1.0))
    return bars


def _bound(
    rule: Mechanism, seed: int, *, trials: int, queries: int, delta: float, lead: int = 0
) -> float:
    """Return the bound for a vote that turns a lead of 2 `lead` + 1 into one of 2 `lead` - 1."""
    here, there = (np.tile([[10 + more + lead, 11 - more - lead]], (queries, 1)) for more in (0, 1))
    release = releases_of(rule, keyed_stream(b"%d" % seed, tag="canary"))
    return canary_audit(release, here, there, trials=trials, delta=delta, confidence=0.9999).epsilon


def main() -> None:
    """Measure, and print the bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args()
    rows = histograms(options.data_dir)
    bars, figures = errors(rows, 1 if options.quick else 5)
    more, others = speed(rows, 1 if options.quick else 7)
    more += canaries(2 if options.quick else 20)
    report([*bars, *more], as_json=options.format == "json", figures=[*figures, *others])


if __name__ == "__main__":
    main()

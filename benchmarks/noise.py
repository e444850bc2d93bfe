"""How fast noise at the parties is, beside OpenDP's sampler, and that its law is right.

CPU time, medians, actions in turns, one thread. Ratios travel between machines; rates do not, so
they are stated as well. Run from the repository root: ``python -m benchmarks.noise`` (half a
minute; ``--format json`` for other programs, ``--quick`` for a look). It needs `opendp`, which the
extra `dev` installs.
"""

from __future__ import annotations

import math
import secrets
import tracemalloc

import numpy as np
import opendp.prelude as dp
from numpy.typing import NDArray
from scipy.stats import chi2

from benchmarks.bars import Bar, arguments, cpu_seconds, report
from pate_fed.mechanisms.discrete_sampling import sample_discrete_gaussian
from pate_fed.mechanisms.noise_shares import DistributedNoise
from pate_fed.mechanisms.sampling import keyed_stream

SIGMAS = (4.0, 10.0, 40.0, 100.0, 200.0)
DRAWS = 1_000_000
CHECKED_DRAWS = 5_000_000
OPENDP_DRAWS = 20_000
LEAST_P = 1e-6


def speed(sigma: float, rounds: int) -> list[Bar]:
    """Time the same noise from OpenDP's sampler and from ours, both from the system's source."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    theirs = dp.m.make_gaussian(*space, scale=sigma)
    zeros = [0] * OPENDP_DRAWS
    ours_seconds, numpy_seconds, their_seconds = cpu_seconds(
        lambda: sample_discrete_gaussian(DRAWS, sigma=sigma, random_bytes=secrets.token_bytes),
        lambda: np.random.default_rng(1).normal(0.0, sigma, DRAWS),
        lambda: theirs(zeros),
        rounds=rounds,
    )
    ours, numpy, opendp = (
        count / seconds / 1e6
        for count, seconds in (
            (DRAWS, ours_seconds),
            (DRAWS, numpy_seconds),
            (OPENDP_DRAWS, their_seconds),
        )
    )
    return [
        Bar(
            f"ours {ours:.0f} M/s / OpenDP {opendp:.3f} M/s: discrete Gaussian, sigma {sigma:g}",
            ours / opendp,
            100,
        ),
        Bar(
            f"the same / numpy's normal, {numpy:.0f} M/s, which is neither discrete nor secure",
            ours / numpy,
            0.15,
        ),
    ]


def p_value(noise: NDArray[np.int64], sigma: float) -> float:
    """Return the chi-square p of draws against the discrete Gaussian law."""
    reach = math.ceil(6 * sigma) + 2
    far = np.arange(-10 * reach, 10 * reach + 1)
    weights = np.exp(-(far**2) / (2 * sigma**2))
    expected = weights / weights.sum() * noise.size
    inner = far[expected >= 20]
    low, high = int(inner.min()), int(inner.max())
    seen = np.bincount(np.clip(noise, low - 1, high + 1) - (low - 1), minlength=len(inner) + 2)
    middle = expected[expected >= 20]
    tail = (noise.size - middle.sum()) / 2
    wanted = np.concatenate([[tail], middle, [tail]])
    return float(chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1))


def law(sigma: float) -> list[Bar]:
    """Test five million draws from the system's source, by chi-square."""
    noise = sample_discrete_gaussian(CHECKED_DRAWS, sigma=sigma, random_bytes=secrets.token_bytes)
    name = f"p of chi-square on {CHECKED_DRAWS:,} draws, sigma {sigma:g}"
    return [Bar(name, p_value(noise, sigma), LEAST_P)]


def share(rounds: int) -> list[Bar]:
    """Time one party's share of a batch, and measure the memory beside it."""
    noise = DistributedNoise(40.0, 10, 1, 0)
    queries, classes = 10_000, 10
    (seconds,) = cpu_seconds(
        lambda: noise.draw(queries, classes, random_bytes=secrets.token_bytes), rounds=rounds
    )
    stream = keyed_stream(b"memory", tag="benchmark")
    noise.draw(1, classes, random_bytes=stream)
    tracemalloc.start()
    held = noise.draw(10 * queries, classes, random_bytes=stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return [
        Bar("milliseconds for a share of 10,000 x 10, 10 parties", 1e3 * seconds, 50, is_most=True),
        Bar(
            "MiB beside a share while it is drawn, 100,000 x 10",
            (peak - held.counts.nbytes) / 2**20,
            1.5,
            is_most=True,
        ),
    ]


def main() -> None:
    """Measure, and print the bars."""
    options = arguments(__doc__)
    rounds = 3 if options.quick else 7
    bars = [bar for sigma in SIGMAS for bar in speed(sigma, rounds)]
    bars += [bar for sigma in (SIGMAS[:1] if options.quick else SIGMAS) for bar in law(sigma)]
    bars += share(rounds)
    report(bars, as_json=options.format == "json")


if __name__ == "__main__":
    main()

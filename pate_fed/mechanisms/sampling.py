"""Gaussian and Laplace noise from random bytes, on a grid on which adding votes is exact.

A draw is the inverse normal distribution function of a 64-bit word, times sigma, rounded to a
multiple of 1/64 vote. Votes are whole, so n + round(Z) = round(n + Z): the result is a rounding of
the exact Gaussian mechanism's output, hence as private. Every value is a multiple of 1/64 far below
2^46, so the sum is exact in double arithmetic and its low bits say nothing about n. This closes the
leak that floating-point noise has (Mironov 2012).

A price of a label or of a check is that of the ideal law, and a label of rounded counts would have
another one. So the rest that rounding cut off decides a tie (`split_gaussian`): the rest is less
than the grid, hence the decision is that of n + Z before rounding, on any votes.

Distance of a draw from an ideal Gaussian, rounded alike: the boundaries of its cells are off by at
most 1.5e-16 + 9e-16 |z| sigmas (z = noise / sigma; double arithmetic), and the words are 2^-64
apart. Hence a total variation distance of at most `total_variation_bound(sigma)`, about 5.6e-14
sigma a draw, which epsilon does not count: 1,000 checks at sigma 150 come to 9e-9. A finer grid
makes it larger (at 2^-20 vote 16,000 times) and gains nothing. Given all other draws, a decision
has one boundary, which is off by as much: a chance of less than 7e-15 a draw that it differs from
the ideal one's. Laplace noise is made likewise, from the logarithm of a word; its bound is
`laplace_variation_bound`, and its price is that of the noisy counts: a tie costs nothing.

Source:
    Mironov 2012, On significance of the least significant bits for differential privacy.
    https://doi.org/10.1145/2382196.2382264
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import scipy
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from pate_fed.accounting.ranges import RANGES, positive
from pate_fed.errors import InvalidParameterError

RandomBytes = Callable[[int], bytes]
"""Returns that many unpredictable bytes; each call gives new ones."""

GRID: Final = 2.0**-6
"""Noise is a multiple of this, in votes."""

LARGEST_SIGMA: Final = RANGES["sigma"].most
"""Largest sigma: at 9.2 sigma, noise and a sum of votes still fit a double exactly."""

_WORD_BYTES = 8


def sample_gaussian(
    shape: int | tuple[int, ...], *, sigma: float, random_bytes: RandomBytes
) -> NDArray[np.float64]:
    """Draw independent Gaussian noise, rounded to a multiple of `GRID`.

    The source gives 8 bytes per draw. Noise is in votes, within 9.2 sigma, and sigma at most
    `LARGEST_SIGMA`.
    """
    return split_gaussian(shape, sigma=sigma, random_bytes=random_bytes)[0]


def split_gaussian(
    shape: int | tuple[int, ...], *, sigma: float, random_bytes: RandomBytes
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw independent Gaussian noise, in two parts.

    Arguments and errors are those of `sample_gaussian`.

    Returns:
        The result of `sample_gaussian`, and the rest of each draw: between -`GRID` / 2 and `GRID` /
        2, and independent of the number it is added to.
    """
    if positive("sigma", sigma) > LARGEST_SIGMA:
        raise InvalidParameterError(f"sigma must be at most {LARGEST_SIGMA:g}", sigma)
    is_positive, tail = _signs_and_tails(shape, random_bytes)
    # In the lower tail ndtri keeps its relative precision: (m + 1/2) / 2^64, 2^-65 to 1/2.
    magnitude = -scipy.special.ndtri(tail * 2.0**-64)
    noise = np.where(is_positive, magnitude, -magnitude)
    scaled = noise * (sigma / GRID)
    # Half goes to even, which adding whole votes does not change: 1/GRID is even.
    on_grid = np.rint(scaled)
    rest = scaled - on_grid
    return (on_grid * GRID).reshape(shape), (rest * GRID).reshape(shape)


def total_variation_bound(sigma: float) -> float:
    """Bound the total variation distance between a draw and an ideal Gaussian, rounded alike."""
    # Each boundary of a cell lies off by at most 1.5e-16 + 9e-16 |z|; times the density, summed
    # over all boundaries, sigma / GRID times its mean 8.7e-16. The words add 2^-64 for each
    # of 18.4 sigma / GRID boundaries, the cut at 9.2 sigma 2^-64.
    boundaries = positive("sigma", sigma) / GRID
    # Decisions before rounding differ from the ideal ones less often than 7e-15.
    return boundaries * (8.7e-16 + 18.4 * 2.0**-64) + 9e-15


def sample_laplace(
    shape: int | tuple[int, ...], *, gamma: float, random_bytes: RandomBytes
) -> NDArray[np.float64]:
    """Draw independent Laplace noise of scale 1 / gamma, rounded to a multiple of `GRID`.

    The source gives 8 bytes per draw. Noise is in votes, within 44.4 / gamma, and gamma at
    least 1 / `LARGEST_SIGMA`.
    """
    if positive("gamma", gamma) < 1 / LARGEST_SIGMA:
        raise InvalidParameterError(f"gamma must be at least {1 / LARGEST_SIGMA:g}", gamma)
    is_positive, tail = _signs_and_tails(shape, random_bytes)
    magnitude = -np.log(tail * 2.0**-63)  # the log of (m + 1/2) / 2^63 is exponential
    noise = np.where(is_positive, magnitude, -magnitude)
    on_grid = np.rint(noise / (gamma * GRID)) * GRID
    return np.asarray(on_grid.reshape(shape), dtype=np.float64)


def laplace_variation_bound(gamma: float) -> float:
    """Bound the total variation distance between a draw and ideal Laplace noise, rounded alike."""
    # In units of 1 / gamma a boundary z of a cell lies off by at most 1.2e-16 + 4.5e-16 |z|: the
    # tail and its log, the log's own rounding, the division. Times the density e^-|z| / 2,
    # summed over all boundaries; the words add 2^-64 for each of 2 * 44.4 / (gamma GRID).
    boundaries = 1 / (positive("gamma", gamma) * GRID)
    return boundaries * (5.7e-16 + 88.8 * 2.0**-64) + 1e-15


def keyed_stream(seed: bytes, *, tag: str) -> RandomBytes:
    """Make a source of bytes that a seed determines. For simulations and tests only.

    Anyone who knows the seed can recompute the noise: a real run passes `secrets.token_bytes`.

    Another tag, its purpose, gives an unrelated stream.

    Returns:
        A source that continues its stream from call to call: AES-256-CTR under a key that HKDF
        derives from seed and tag. The same seed and tag give the same bytes for ever.
    """
    info = b"pate-fed keyed stream\n" + tag.encode()
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(seed)
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def next_bytes(count: int) -> bytes:
        return encryptor.update(bytes(count))

    return next_bytes


def exactly(random_bytes: RandomBytes, count: int) -> bytes:
    """Take this many bytes from a source; refuse another number."""
    drawn = random_bytes(count)
    if len(drawn) != count:
        raise InvalidParameterError(f"random_bytes must give {count} bytes", len(drawn))
    return drawn


def _signs_and_tails(
    shape: int | tuple[int, ...], random_bytes: RandomBytes
) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Return of a word for each draw the top bit, and m + 1/2 for m, the 63 bits below it."""
    draws = int(np.prod(shape, dtype=np.int64))
    words = np.frombuffer(exactly(random_bytes, draws * _WORD_BYTES), dtype="<u8")
    return words >> np.uint64(63), (words & np.uint64(2**63 - 1)).astype(np.float64) + 0.5

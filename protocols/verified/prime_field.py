"""The integers modulo a Mersenne prime 2^b - 1, in arrays; and their extension by a root of -1.

Every product of two elements fits a machine word, and 2^b = 1 makes its remainder two additions.
As 2^b - 1 is 3 modulo 4, -1 has no root in it: F_p[i] with i^2 = -1 is the field of p^2 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.errors import InvalidVectorError
from protocols.prg import expand
from protocols.ring import Ring

Elements = NDArray[np.uint64]
"""Elements of F_p, each in [0, p). Of the extension: shape (2, ...), real parts first."""

WIRE_TYPE = np.dtype("<u4")
"""An element as it travels."""

_BITS = (5, 7, 31)
_BLOCK = 2**15
_SPARE = 64


@dataclass(frozen=True, slots=True)
class PrimeField:
    """F_p for p = 2^bits - 1: 31 bits in every run; 5 and 7 let tests try everything."""

    bits: int = 31

    def __post_init__(self) -> None:
        if self.bits not in _BITS:
            raise InvalidVectorError("field bits must be 5, 7 or 31", self.bits)

    @property
    def prime(self) -> int:
        """The prime, p."""
        return int(2**self.bits - 1)

    def reduced(self, values: Elements) -> Elements:
        """Return values below p^2 modulo p, in their own room."""
        above = values >> np.uint64(self.bits)
        values &= np.uint64(self.prime)
        values += above
        # Below 2p now: where p must not be taken off, the difference wraps around, and is larger.
        np.minimum(values, values - np.uint64(self.prime), out=values)
        return values

    def add(self, left: Elements, right: Elements) -> Elements:
        """Return the sum."""
        return self.reduced(left + right)

    def subtract(self, left: Elements, right: Elements | np.uint64) -> Elements:
        """Return the difference."""
        return self.reduced(left + (np.uint64(self.prime) - right))

    def multiply(self, left: Elements, right: Elements | np.uint64) -> Elements:
        """Return the product, of shapes that numpy broadcasts."""
        return self.reduced(left * right)

    def invert(self, values: Elements) -> Elements:
        """Return 1/x of each; none may be 0."""
        inverses = [pow(int(value), -1, self.prime) for value in values.ravel()]
        return np.array(inverses, dtype=np.uint64).reshape(values.shape)

    def combine(self, weights: Elements, values: Elements) -> Elements:
        """Return the matrix product; shapes (rows, inner) and (inner, columns).

        A sum of less than 2^32 reduced products fits a word.
        """
        found = np.empty((len(weights), values.shape[1]), dtype=np.uint64)
        # Some columns at a time, so that the products stay in the cache.
        step = max(1, _BLOCK // max(1, len(values)))
        for start in range(0, values.shape[1], step):
            part = values[:, start : start + step]
            for row, weight in enumerate(weights):
                total = self.multiply(weight[:, None], part).sum(axis=0, dtype=np.uint64)
                found[row, start : start + step] = self._modulo(total)
        return found

    def falling(self, values: Elements, count: int) -> Elements:
        """Return x (x - 1) ... (x - count + 1): 0 for 0 to count - 1, and for nothing else.

        Two factors at a time, from both ends: (x - j) (x - k + j) = x (x - k) + j (k - j), with k =
        count - 1. So half as many products are made, of which none needs more than one remainder.
        """
        last, offsets = self._pairs(count)
        flat = values.ravel()
        found = np.empty_like(flat)
        for start in range(0, len(flat), _BLOCK):
            part = flat[start : start + _BLOCK]
            pair = self.multiply(part, self.subtract(part, np.uint64(last))) if last else part
            # A product is less than the sum of all offsets above p: it fits, and so does the next.
            product = pair.copy()
            for offset in offsets:
                product *= pair + np.uint64(offset)
                self.reduced(product)
            if count % 2 and last:
                product *= part + np.uint64(self.prime - last // 2)
            found[start : start + _BLOCK] = self._modulo(product)
        return found.reshape(values.shape)

    def draw(self, key: bytes, length: int) -> Elements:
        """Expand a 32-byte key, used for nothing else, into uniform elements; shape (length,).

        Each is the next word's lowest bits, but for p itself, which is left out.
        """
        spare = _SPARE
        while True:
            words = expand(key, length + spare, ring=Ring()).astype(np.uint64)
            drawn: Elements = words & np.uint64(self.prime)
            drawn = drawn[drawn != self.prime]
            if len(drawn) >= length:
                return drawn[:length]
            spare += length // 2 ** (self.bits - 2) + spare  # the stream goes on: its start stays

    def multiply_complex(self, left: Elements, right: Elements) -> Elements:
        """Return the product in the extension; shapes (2, ...)."""
        # Both are below 2 p^2, so that one remainder leaves them below 2 p.
        real = left[0] * right[0] + (np.uint64(self.prime**2) - left[1] * right[1])
        imaginary = left[0] * right[1] + left[1] * right[0]
        product = self.reduced(np.stack([real, imaginary]))
        np.minimum(product, product - np.uint64(self.prime), out=product)
        return product

    def invert_complex(self, values: Elements) -> Elements:
        """Return 1/x of each in the extension; none may be 0; shape (2, n)."""
        norm = self.add(self.multiply(values[0], values[0]), self.multiply(values[1], values[1]))
        conjugate = np.stack([values[0], self.subtract(np.zeros_like(values[1]), values[1])])
        return self.multiply(conjugate, self.invert(norm))

    def falling_complex(self, values: Elements, count: int) -> Elements:
        """See `falling`, in the extension; shape (2, ...)."""
        last, offsets = self._pairs(count)
        pair = self.multiply_complex(values, self._less(values, last)) if last else values
        product = pair
        for offset in offsets:
            product = self.multiply_complex(product, self._less(pair, -offset))
        if count % 2 and last:
            product = self.multiply_complex(product, self._less(values, last // 2))
        return product

    def _less(self, values: Elements, number: int) -> Elements:
        """Take a whole number off elements of the extension."""
        return np.stack([self.subtract(values[0], np.uint64(number % self.prime)), values[1]])

    def _pairs(self, count: int) -> tuple[int, list[int]]:
        """Return k, and j (k - j) for all pairs of `falling` but the first."""
        last = count - 1
        offsets = [place * (last - place) for place in range(1, count // 2)]
        if sum(offsets) >= self.prime:
            raise InvalidVectorError(f"there must be fewer factors below {self.prime}")
        return last, offsets

    def interpolation(self, places: range, point: Elements) -> Elements:
        """Return the weights with which values at `places` give a polynomial's value at a point.

        Args:
            places: Consecutive whole numbers below p.
            point: In the extension, none of the places; shape (2, 1).

        Returns:
            Lagrange's coefficients; shape (2, places).
        """
        away = self._away(places, point)
        scaled = self.multiply(self.invert_complex(away), self._barycentric(len(places)))
        return self.multiply_complex(self.vanishing(places, point), scaled)

    def extrapolation(self, places: range, targets: range) -> Elements:
        """Return the weights with which values at `places` give a polynomial's values at `targets`.

        Both are consecutive whole numbers below p, the targets above; shape (targets, places).
        """
        at, nodes = np.array(targets, np.uint64), np.array(places, np.uint64)
        inverses = self.invert(np.arange(1, targets.stop - places.start, dtype=np.uint64))
        scaled = self.multiply(
            inverses[at[:, None] - nodes - np.uint64(1)],
            self.vanishing_at(places, targets)[:, None],
        )
        return self.multiply(scaled, self._barycentric(len(nodes)))

    def vanishing(self, places: range, point: Elements) -> Elements:
        """Return the product of (point - place) over all places; shape (2, 1), as the point's."""
        factors = self._away(places, point)
        while factors.shape[1] > 1:
            half = factors.shape[1] // 2
            products = self.multiply_complex(factors[:, :half], factors[:, half : 2 * half])
            factors = np.concatenate([products, factors[:, 2 * half :]], axis=1)
        return factors

    def vanishing_at(self, places: range, targets: range) -> Elements:
        """See `vanishing`, at whole numbers above the places; shape (targets,)."""
        at = np.array(targets, dtype=np.uint64)
        product = np.ones_like(at)
        for place in places:
            product = self.multiply(product, at - np.uint64(place))
        return product

    def _away(self, places: range, point: Elements) -> Elements:
        real = self.subtract(point[0], np.array(places, dtype=np.uint64))
        return np.stack([real, np.broadcast_to(point[1], real.shape)])

    def to_bytes(self, values: Elements) -> bytes:
        """Write elements as they travel."""
        return values.astype(WIRE_TYPE).tobytes()

    def from_bytes(
        self, content: bytes, length: int, refuse: Callable[[str], Exception]
    ) -> Elements:
        """Read so many elements; raises what `refuse` makes of a rule."""
        if len(content) != length * WIRE_TYPE.itemsize:
            raise refuse(f"there must be {length} elements of {WIRE_TYPE.itemsize} bytes")
        values = np.frombuffer(content, dtype=WIRE_TYPE).astype(np.uint64)
        if values.size and int(values.max()) >= self.prime:
            raise refuse("an element must be below the prime")
        return values

    def _barycentric(self, count: int) -> Elements:
        """Return 1 / prod of (node - other nodes), for consecutive nodes: +- 1 / (j! (n-1-j)!)."""
        factorials = [1]
        for number in range(1, count):
            factorials.append(factorials[-1] * number % self.prime)
        products = [
            (-1) ** (count - 1 - place) * factorials[place] * factorials[count - 1 - place]
            for place in range(count)
        ]
        return np.array(
            [pow(product % self.prime, -1, self.prime) for product in products], dtype=np.uint64
        )

    def _modulo(self, totals: Elements) -> Elements:
        return totals % np.uint64(self.prime)

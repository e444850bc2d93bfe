"""Verified votes a second time, in slow Python integers, from the formulas: polynomials by their
coefficients, divided in the field, evaluated term by term."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Complex: TypeAlias = tuple[int, int]
Polynomial: TypeAlias = list[int]
"""Coefficients, the constant one first."""


def drawn(key: bytes, length: int, bits: int) -> list[int]:
    """Expand a key: the lowest bits of each 32-bit word, without the prime itself."""
    prime = 2**bits - 1
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(15) + b"\x02")).encryptor()
    found: list[int] = []
    while len(found) < length:
        word = int.from_bytes(cipher.update(bytes(4)), "little") % 2**bits
        if word != prime:
            found.append(word)
    return found


def hashed(label: bytes, *pieces: bytes) -> bytes:
    domain = b"pate-fed/1/verified votes\0"
    return hashlib.sha256(domain + label + b"\0" + b"".join(pieces)).digest()


def times(left: Polynomial, right: Polynomial, prime: int) -> Polynomial:
    product = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] = (product[i + j] + a * b) % prime
    return product


def plus(left: Polynomial, right: Polynomial, prime: int) -> Polynomial:
    length = max(len(left), len(right))
    padded = [each + [0] * (length - len(each)) for each in (left, right)]
    return [(a + b) % prime for a, b in zip(*padded, strict=True)]


def divided(top: Polynomial, bottom: Polynomial, prime: int) -> tuple[Polynomial, Polynomial]:
    """Divide by a polynomial whose first coefficient is 1; quotient and rest."""
    rest, quotient = list(top), [0] * max(len(top) - len(bottom) + 1, 1)
    for place in range(len(top) - len(bottom), -1, -1):
        factor = rest[place + len(bottom) - 1]
        quotient[place] = factor
        for offset, value in enumerate(bottom):
            rest[place + offset] = (rest[place + offset] - factor * value) % prime
    return quotient, rest[: len(bottom) - 1]


def vanishing(height: int, prime: int) -> Polynomial:
    found = [1]
    for place in range(1, height + 1):
        found = times(found, [-place % prime, 1], prime)
    return found


def through(values: Sequence[int], prime: int) -> Polynomial:
    """The polynomial with these values at 1, 2, ..."""
    found: Polynomial = [0]
    for k, value in enumerate(values, 1):
        term = [value % prime]
        for other in range(1, len(values) + 1):
            if other != k:
                term = times(term, [-other % prime, 1], prime)
                term = [each * pow(k - other, -1, prime) % prime for each in term]
        found = plus(found, term, prime)
    return found


def falling(polynomial: Polynomial, base: int, prime: int) -> Polynomial:
    found = polynomial
    for less in range(1, base):
        found = times(found, plus(polynomial, [-less % prime], prime), prime)
    return found


def columns_of(
    digits: Sequence[int], masks: Sequence[Sequence[int]], height: int, prime: int
) -> list[Polynomial]:
    """Return w_m of each column of the grid."""
    width = len(masks[0])
    padded = [*digits, *[0] * (height * width - len(digits))]
    found = []
    for m in range(width):
        values = through([padded[row * width + m] for row in range(height)], prime)
        blind = times(vanishing(height, prime), [masks[0][m], masks[1][m]], prime)
        found.append(plus(values, blind, prime))
    return found


def quotient(
    columns: Sequence[Polynomial], weights: Sequence[int], *, base: int, height: int, prime: int
) -> tuple[Polynomial, Polynomial]:
    """Divide the weighted sum of R(w_m) by Z; the rest is 0 where all digits are below the base."""
    total: Polynomial = [0]
    for column, weight in zip(columns, weights, strict=True):
        scaled = [weight * value % prime for value in falling(column, base, prime)]
        total = plus(total, scaled, prime)
    return divided(total, vanishing(height, prime), prime)


def at(polynomial: Polynomial, place: Complex, prime: int) -> Complex:
    """Evaluate at a point of the extension by a root of -1."""
    real, imaginary = 0, 0
    for coefficient in reversed(polynomial):
        real, imaginary = (
            (real * place[0] - imaginary * place[1] + coefficient) % prime,
            (real * place[1] + imaginary * place[0]) % prime,
        )
    return real, imaginary


def are_votes(rows: Sequence[Sequence[int]], votes: int) -> bool:
    """What a proof shows, of whole numbers."""
    return all(min(row) >= 0 and sum(row) == votes for row in rows)

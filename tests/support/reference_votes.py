"""Verified votes a second time, in slow Python integers, from the formulas: polynomials by their
coefficients, divided in the field, evaluated term by term."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
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


@cache
def vanishing(height: int, prime: int) -> Polynomial:
    found = [1]
    for place in range(1, height + 1):
        found = times(found, [-place % prime, 1], prime)
    return found


@cache
def basis(length: int, prime: int) -> tuple[Polynomial, ...]:
    """For each of 1, 2, ... the polynomial that is 1 there and 0 at the others."""
    found = []
    for k in range(1, length + 1):
        term = [1]
        for other in range(1, length + 1):
            if other != k:
                term = times(term, [-other % prime, 1], prime)
                term = [each * pow(k - other, -1, prime) % prime for each in term]
        found.append(term)
    return tuple(found)


def through(values: Sequence[int], prime: int) -> Polynomial:
    """The polynomial with these values at 1, 2, ..."""
    terms = basis(len(values), prime)
    return [
        sum(value * term[power] for value, term in zip(values, terms, strict=True)) % prime
        for power in range(len(values))
    ]


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


# A whole report ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """A batch's numbers, as the page of the wire format names them."""

    queries: int
    columns: int
    votes: int
    digits: int
    base: int
    height: int
    repetitions: int = 4
    bits: int = 31

    @property
    def prime(self) -> int:
        return 2**self.bits - 1

    @property
    def entries(self) -> int:
        return self.queries * self.columns * self.digits

    @property
    def width(self) -> int:
        return -(-self.entries // self.height)

    @property
    def points(self) -> int:
        return (self.base - 1) * self.height + self.base + 1

    @property
    def elements(self) -> int:
        return self.entries + 2 * self.width + self.repetitions * self.points


@dataclass(frozen=True)
class Drawn:
    """What a hospital draws for one report."""

    masks: bytes
    seed: bytes
    blind: bytes


@dataclass(frozen=True)
class Report:
    """Both payloads, and the two values that bind them."""

    coordinator: bytes
    tally: bytes
    bindings: tuple[bytes, bytes]


def written(elements: Iterable[int]) -> bytes:
    return b"".join(element.to_bytes(4, "little") for element in elements)


def digits_of(rows: Sequence[Sequence[int]], numbers: Numbers) -> list[int]:
    places = [numbers.base**place for place in range(numbers.digits)]
    return [number // place % numbers.base for row in rows for number in row for place in places]


def weights_of(numbers: Numbers, bindings: tuple[bytes, bytes], context: bytes) -> list[list[int]]:
    width = numbers.width
    flat = drawn(hashed(b"r", context, *bindings), numbers.repetitions * width, numbers.bits)
    return [flat[start : start + width] for start in range(0, len(flat), width)]


def bindings_of(
    numbers: Numbers, coordinator: bytes, tally: bytes, context: bytes
) -> tuple[bytes, bytes]:
    witness = coordinator[: 4 * (numbers.entries + 2 * numbers.width)]
    blinded = witness + coordinator[-32:]
    return hashed(b"binding A", context, blinded), hashed(b"binding B", context, tally)


def report(numbers: Numbers, digits: Sequence[int], *, context: bytes, made_of: Drawn) -> Report:
    """Prove digits, be they right or not: a quotient of a sum that Z does not divide has a rest,
    which is left out."""
    prime, width = numbers.prime, numbers.width
    masks = drawn(made_of.masks, 2 * width, numbers.bits)
    key = hashed(b"tally's share", context, made_of.seed)
    of_tally = drawn(key, numbers.elements, numbers.bits)
    split = numbers.entries + 2 * width
    witness = [
        (own - other) % prime
        for own, other in zip([*digits, *masks], of_tally[:split], strict=True)
    ]
    sent = written(witness)
    bindings = bindings_of(numbers, sent + made_of.blind, made_of.seed, context)
    columns = columns_of(digits, [masks[:width], masks[width:]], numbers.height, prime)
    proof: list[int] = []
    for weights in weights_of(numbers, bindings, context):
        found, _ = quotient(columns, weights, base=numbers.base, height=numbers.height, prime=prime)
        first = numbers.height + 1
        proof += [at(found, (x, 0), prime)[0] for x in range(first, first + numbers.points)]
    shared = [(own - other) % prime for own, other in zip(proof, of_tally[split:], strict=True)]
    return Report(sent + written(shared) + made_of.blind, made_of.seed, bindings)


# Its check ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Where shares are evaluated, and how rows are weighed."""

    place: Complex
    sums: list[Complex]


def point_of(numbers: Numbers, coin: bytes) -> Point:
    queries = numbers.queries
    flat = drawn(hashed(b"point", coin), 1 + 2 * queries + 64, numbers.bits)
    real, imaginary = flat[1 : 1 + queries], flat[1 + queries : 1 + 2 * queries]
    other = next(element for element in flat[1 + 2 * queries :] if element)
    return Point((flat[0], other), list(zip(real, imaginary, strict=True)))


def read(payload: bytes, numbers: Numbers) -> list[int]:
    """Elements of the coordinator's payload, or `ValueError`."""
    if len(payload) != 4 * numbers.elements + 32:
        raise ValueError("length")
    elements = [
        int.from_bytes(payload[start : start + 4], "little")
        for start in range(0, 4 * numbers.elements, 4)
    ]
    if max(elements) >= numbers.prime:
        raise ValueError("an element")
    return elements


def expanded(seed: bytes, numbers: Numbers, context: bytes) -> list[int]:
    """Elements of the tally's payload, or `ValueError`."""
    if len(seed) != 32:
        raise ValueError("length")
    return drawn(hashed(b"tally's share", context, seed), numbers.elements, numbers.bits)


def answer(
    numbers: Numbers, elements: Sequence[int], point: Point, *, takes_off_votes: bool
) -> list[Complex]:
    prime, width = numbers.prime, numbers.width
    digits, rest = elements[: numbers.entries], elements[numbers.entries :]
    masks, proof = [rest[:width], rest[width : 2 * width]], rest[2 * width :]
    found = [
        at(column, point.place, prime)
        for column in columns_of(digits, masks, numbers.height, prime)
    ]
    # Values are given from height + 1 on: as a polynomial of the place less the height.
    moved = ((point.place[0] - numbers.height) % prime, point.place[1])
    for start in range(0, len(proof), numbers.points):
        found.append(at(through(proof[start : start + numbers.points], prime), moved, prime))
    real = imaginary = 0
    each = numbers.columns * numbers.digits
    for query, weight in enumerate(point.sums):
        row = digits[query * each : (query + 1) * each]
        total = sum(
            digit * numbers.base ** (place % numbers.digits) for place, digit in enumerate(row)
        ) - (numbers.votes if takes_off_votes else 0)
        real, imaginary = (
            (real + weight[0] * total) % prime,
            (imaginary + weight[1] * total) % prime,
        )
    return [*found, (real, imaginary)]


def accepts(
    numbers: Numbers,
    weights: Sequence[Sequence[int]],
    point: Point,
    answers: Sequence[Sequence[Complex]],
) -> bool:
    """Decide from both answers."""
    prime, width = numbers.prime, numbers.width
    total = [((a[0] + b[0]) % prime, (a[1] + b[1]) % prime) for a, b in zip(*answers, strict=True)]
    outputs = []
    for value in total[:width]:
        product = (1, 0)
        for less in range(numbers.base):
            product = product_of(product, ((value[0] - less) % prime, value[1]), prime)
        outputs.append(product)
    z = at(vanishing(numbers.height, prime), point.place, prime)
    for row, stated in zip(weights, total[width:-1], strict=True):
        left = tuple(
            sum(weight * value[part] for weight, value in zip(row, outputs, strict=True)) % prime
            for part in range(2)
        )
        if left != product_of(stated, z, prime):
            return False
    return total[-1] == (0, 0)


def product_of(left: Complex, right: Complex, prime: int) -> Complex:
    return (
        (left[0] * right[0] - left[1] * right[1]) % prime,
        (left[0] * right[1] + left[1] * right[0]) % prime,
    )


def judged(numbers: Numbers, sent: Report, *, context: bytes, coin: bytes) -> str:
    """What becomes of a report: "malformed", "unbound", "invalid" or "accepted"."""
    try:
        both = read(sent.coordinator, numbers), expanded(sent.tally, numbers, context)
    except ValueError:
        return "malformed"
    if sent.bindings != bindings_of(numbers, sent.coordinator, sent.tally, context):
        return "unbound"
    point = point_of(numbers, coin)
    answers = [
        answer(numbers, elements, point, takes_off_votes=place == 0)
        for place, elements in enumerate(both)
    ]
    weights = weights_of(numbers, sent.bindings, context)
    return "accepted" if accepts(numbers, weights, point, answers) else "invalid"

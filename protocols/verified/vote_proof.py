"""A hospital proves that its rows are votes, and two aggregators check it without seeing any.

The digits w_m(1), ..., w_m(G) of each column of the grid are values of a polynomial. An entry is a
digit if R(entry) = entry (entry - 1) ... (entry - base + 1) is 0, so all are if ::

    Z(X) = (X - 1) ... (X - G)   divides   sum over m of r_m R(w_m(X))

for random r_m. The hospital gives the quotient H. Digits, masks and H are shared: the tally's share
is expanded from a seed, the coordinator's is the rest. Both evaluate their shares at one random
point t of the extension, tell each other, and add: R(w_m(t)) need only be computed of the sums.

Each w_m is blinded by Z(X) (s_m + s'_m X), which is 0 where the digits are. Two masks, since a
point of the extension has two coordinates: so w_m(t) is uniform, whatever the digits are, for each
t outside F_p. With one mask two votes could be told apart.

The r come from a hash of both bound shares, so that nobody chooses digits after them; t from both
aggregators, after the list of reports is closed.

Source: Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai 2019, Zero-knowledge proofs on secret-shared
data via fully linear PCPs, theorem 4.3. https://eprint.iacr.org/2019/188 With two changes: the r
weigh the outputs of parallel gadgets, and blinding is by multiples of Z.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from protocols.errors import InvalidVectorError, MalformedMessageError
from protocols.prg import KEY_BYTES
from protocols.verified.prime_field import WIRE_TYPE, Elements
from protocols.verified.vote_layout import VoteLayout

BLIND_BYTES = 32

_DOMAIN = b"pate-fed/1/verified votes\0"
_EXACT = 2**53
"""Whole numbers below it are exact in floating point, and so are their sums."""

_AT_ONCE = 2**15
"""Values that stay in the cache, with what is made of them."""

_TRIES = 64


@dataclass(frozen=True, slots=True, repr=False)
class ProvedVotes:
    """What a hospital sends: a payload for each aggregator, and what binds it. Secret.

    Attributes:
        coordinator: Witness and quotients, less the tally's share, then a blind.
        tally: The seed of its share.
    """

    coordinator: bytes
    tally: bytes


@dataclass(frozen=True, slots=True, repr=False)
class VoteShare:
    """One aggregator's share of a hospital's report. Secret; alone it is uniform.

    Attributes:
        digits: Shape (entries,).
        masks: Shape (2, width).
        quotients: Shape (repetitions, proof points).
        binding: Of this payload, 32 bytes; the hospital's signed header has it.
    """

    digits: Elements
    masks: Elements
    quotients: Elements
    binding: bytes

    @classmethod
    def of_tally(cls, layout: VoteLayout, payload: bytes, *, context: bytes) -> VoteShare:
        """Expand the tally's share from its payload."""
        if len(payload) != KEY_BYTES:
            raise MalformedMessageError(f"a seed must have {KEY_BYTES} bytes", len(payload))
        elements = _tally_elements(layout, payload, context)
        return cls._cut(layout, elements, _bind(b"B", context, payload))

    @classmethod
    def of_coordinator(cls, layout: VoteLayout, payload: bytes, *, context: bytes) -> VoteShare:
        """Read the coordinator's share from its payload."""
        field, length = layout.field, layout.witness_length + layout.proof_length
        elements = field.from_bytes(payload[:-BLIND_BYTES], length, MalformedMessageError)
        witness = payload[: layout.witness_length * WIRE_TYPE.itemsize]
        return cls._cut(layout, elements, _bind(b"A", context, witness + payload[-BLIND_BYTES:]))

    @classmethod
    def _cut(cls, layout: VoteLayout, elements: Elements, binding: bytes) -> VoteShare:
        digits, masks, quotients = np.split(elements, [layout.entries, layout.witness_length])
        return cls(
            digits,
            masks.reshape(2, layout.width),
            quotients.reshape(layout.repetitions, layout.proof_points),
            binding,
        )


def prove(
    layout: VoteLayout,
    rows: NDArray[np.int64],
    *,
    context: bytes,
    random_bytes: Callable[[int], bytes],
) -> ProvedVotes:
    """Share a batch of rows with a proof that each of them is of `layout.votes` votes.

    Args:
        layout: The plan's, of this hospital's number of votes.
        rows: Votes; shape (queries, columns). Secret.
        context: Digest of all that both aggregators know of this report: plan, batch, attempt,
            hospital. A report is of one context alone.
        random_bytes: The operating system's randomness.

    Raises:
        InvalidVectorError: the rows are no such votes.
    """
    layout.require_rows(rows)
    return prove_digits(layout, layout.digits_of(rows), context=context, random_bytes=random_bytes)


def prove_digits(
    layout: VoteLayout,
    digits: Elements,
    *,
    context: bytes,
    random_bytes: Callable[[int], bytes],
) -> ProvedVotes:
    """See `prove`, for digits that nobody has checked; shape (entries,)."""
    field = layout.field
    masks = field.draw(random_bytes(KEY_BYTES), 2 * layout.width).reshape(2, layout.width)
    seed, blind = random_bytes(KEY_BYTES), random_bytes(BLIND_BYTES)
    of_tally = _tally_elements(layout, seed, context)
    split = layout.witness_length
    witness = field.subtract(np.concatenate([digits, masks.ravel()]), of_tally[:split])
    sent = field.to_bytes(witness)
    weights = challenge(
        layout, _bind(b"A", context, sent + blind), _bind(b"B", context, seed), context=context
    )
    quotients = _quotients(layout, layout.grid_of(digits), masks, weights)
    proof = field.to_bytes(field.subtract(quotients.ravel(), of_tally[split:]))
    return ProvedVotes(coordinator=sent + proof + blind, tally=seed)


def challenge(
    layout: VoteLayout, coordinator_binding: bytes, tally_binding: bytes, *, context: bytes
) -> Elements:
    """Return the r of both bound shares; shape (repetitions, width)."""
    key = _hash(b"r", context, coordinator_binding, tally_binding)
    return layout.field.draw(key, layout.repetitions * layout.width).reshape(-1, layout.width)


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """One point for all reports of a layout and batch, and the weights that evaluate shares there.

    Attributes:
        layout: Of these reports.
        place: The point, t; shape (2, 1), as all numbers of the extension.
        vanishing: Z(t); shape (2, 1).
        data: Weights of the grid's rows; shape (2, height).
        quotient: Weights of a quotient's values; shape (2, proof points).
        sums: Weights of the rows' sums, at random; shape (2, queries).
    """

    layout: VoteLayout
    place: Elements
    vanishing: Elements
    data: Elements
    quotient: Elements
    sums: Elements

    @classmethod
    def of(cls, layout: VoteLayout, coin: bytes) -> EvaluationPoint:
        """Derive the point from 32 bytes that both aggregators made together, for one batch."""
        drawn = layout.field.draw(_hash(b"point", coin), 1 + 2 * layout.queries + _TRIES)
        sums, imaginary = np.split(drawn[1:], [2 * layout.queries])
        # The masks blind nothing at a point of F_p itself: it is drawn again.
        place = np.array([[drawn[0]], [imaginary[imaginary > 0][0]]], dtype=np.uint64)
        return cls.at(layout, place=place, sums=sums.reshape(2, layout.queries))

    @classmethod
    def at(cls, layout: VoteLayout, *, place: Elements, sums: Elements) -> EvaluationPoint:
        """Prepare a point outside F_p, or raise `InvalidVectorError`."""
        if not place[1, 0]:
            raise InvalidVectorError("an evaluation point must lie outside the prime field")
        field = layout.field
        return cls(
            layout,
            place,
            field.vanishing(layout.data_points, place),
            field.interpolation(layout.data_points, place),
            field.interpolation(layout.quotient_points, place),
            sums,
        )

    def answer(self, share: VoteShare, *, takes_off_votes: bool) -> Elements:
        """Return what an aggregator tells the other one of a report; shape (2, answer length).

        They are its shares of every w_m(t), of every H_i(t), and of the weighted sum of how much
        each row's sum differs from its votes, which one of the two takes off. It depends on this
        share and the point alone: so nothing that the other one says can be in it.
        """
        layout, field = self.layout, self.layout.field
        masks = field.add(
            _real(share.masks[0]), field.multiply_complex(self.place, _real(share.masks[1]))
        )
        columns = field.add(
            field.combine(self.data, layout.grid_of(share.digits)),
            field.multiply_complex(self.vanishing, masks),
        )
        sums = layout.numbers_of(share.digits).sum(axis=1, dtype=np.uint64) % _word(field.prime)
        if takes_off_votes:
            sums = field.subtract(sums, _word(layout.votes))
        differences = field.combine(self.sums, sums[:, None])
        quotients = field.combine(self.quotient, share.quotients.T)
        return np.concatenate([columns, quotients, differences], axis=1)

    def accepts(self, weights: Elements, answer: Elements, other_answer: Elements) -> bool:
        """Decide from both answers whether a report's rows are votes; both ends decide alike.

        Args:
            weights: Of `challenge`; shape (repetitions, width).
            answer: Of one aggregator.
            other_answer: Of the other one.
        """
        layout, field = self.layout, self.layout.field
        total = field.add(answer, other_answer)
        columns, quotients, differences = np.split(
            total, [layout.width, layout.width + layout.repetitions], axis=1
        )
        outputs = field.falling_complex(columns, layout.base)
        left = field.combine(weights, outputs.T).T
        right = field.multiply_complex(quotients, self.vanishing)
        return not differences.any() and np.array_equal(left, right)


def _quotients(layout: VoteLayout, grid: Elements, masks: Elements, weights: Elements) -> Elements:
    """Return H_i at the proof points; shape (repetitions, proof points)."""
    field = layout.field
    extrapolation, vanishing = _extrapolation(layout)
    found = np.empty((layout.repetitions, layout.proof_points), dtype=np.uint64)
    at = np.array(layout.quotient_points, dtype=np.uint64)
    most = int(grid.max(initial=0)) * layout.height * field.prime
    exact = grid.astype(np.float64) if most < _EXACT else None
    step = max(1, _AT_ONCE // layout.width)
    for start in range(0, layout.proof_points, step):
        part = slice(start, start + step)
        rows = extrapolation[part]
        values = (
            field.combine(rows, grid)
            if exact is None
            # Whole numbers below 2^53: exact, in whichever order they are added.
            else (rows.astype(np.float64) @ exact).astype(np.uint64) % _word(field.prime)
        )
        blinds = field.add(masks[0], field.multiply(masks[1], at[part, None]))
        values = field.add(values, field.multiply(blinds, vanishing[part, None]))
        found[:, part] = field.combine(weights, field.falling(values, layout.base).T)
    return field.multiply(found, field.invert(vanishing))


@lru_cache(maxsize=4)
def _extrapolation(layout: VoteLayout) -> tuple[Elements, Elements]:
    """Weights from the grid's rows to the proof points, and Z there."""
    places, targets = layout.data_points, layout.quotient_points
    found = layout.field.extrapolation(places, targets), layout.field.vanishing_at(places, targets)
    for each in found:
        each.flags.writeable = False
    return found


def _tally_elements(layout: VoteLayout, seed: bytes, context: bytes) -> Elements:
    length = layout.witness_length + layout.proof_length
    return layout.field.draw(_hash(b"tally's share", context, seed), length)


def _bind(side: bytes, context: bytes, content: bytes) -> bytes:
    return _hash(b"binding " + side, context, content)


def _hash(label: bytes, *pieces: bytes) -> bytes:
    """Hash labelled pieces: all but the last have one length for each label."""
    return hashlib.sha256(_DOMAIN + label + b"\0" + b"".join(pieces)).digest()


def _real(values: Elements) -> Elements:
    """Place elements of F_p in the extension."""
    return np.stack([values, np.zeros_like(values)])


def _word(number: int) -> np.uint64:
    return np.uint64(number)

"""Verified votes: what is proved, what is refused, how often a lie passes, and what is seen."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocols.errors import InvalidVectorError, MalformedMessageError
from protocols.verified.prime_field import Elements, PrimeField
from protocols.verified.vote_layout import VoteLayout
from protocols.verified.vote_proof import (
    EvaluationPoint,
    ProvedVotes,
    VoteShare,
    challenge,
    prove,
    prove_digits,
)
from protocols.vote_messages import MAX_ANSWER_BYTES
from tests.support import reference_votes as slow
from tests.support.markers import more

CONTEXT = b"plan, batch, attempt and hospital"[:32]
COIN = bytes(range(32))
FIELD = PrimeField()
P = FIELD.prime
SMALL = VoteLayout.of(queries=7, columns=4, votes=3)
LAYOUTS = [
    SMALL,
    VoteLayout.of(queries=5, columns=3, votes=1),
    VoteLayout.of(queries=9, columns=10, votes=25),
    VoteLayout.of(queries=4, columns=3, votes=100),
    VoteLayout(6, 3, 7, digits=3, base=2, height=8),
]
TINY = VoteLayout(1, 2, 1, digits=1, base=2, height=2, repetitions=1, field=PrimeField(5))


def votes(layout: VoteLayout, seed: int = 0) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    chances = np.full(layout.columns, 1 / layout.columns)
    return rng.multinomial(layout.votes, chances, size=layout.queries).astype(np.int64)


def words(*values: int) -> Elements:
    return np.array(values, dtype=np.uint64)


def opened(
    layout: VoteLayout, proved: ProvedVotes, context: bytes = CONTEXT
) -> tuple[VoteShare, VoteShare]:
    return (
        VoteShare.of_coordinator(layout, proved.coordinator, context=context),
        VoteShare.of_tally(layout, proved.tally, context=context),
    )


def accepted(layout: VoteLayout, first: VoteShare, second: VoteShare, coin: bytes = COIN) -> bool:
    point = EvaluationPoint.of(layout, coin)
    weights = challenge(layout, first.binding, second.binding, context=CONTEXT)
    answer = point.answer(first, takes_off_votes=True)
    return point.accepts(weights, answer, point.answer(second, takes_off_votes=False))


def proved(layout: VoteLayout, digits: Elements) -> tuple[VoteShare, VoteShare]:
    return opened(layout, prove_digits(layout, digits, context=CONTEXT, random_bytes=os.urandom))


# The field ---------------------------------------------------------------------------------------

EDGES = st.sampled_from([0, 1, 2, P // 2, P // 2 + 1, P - 2, P - 1]) | st.integers(0, P - 1)


class TestField:
    @given(st.lists(st.tuples(EDGES, EDGES, EDGES, EDGES), min_size=1, max_size=5))
    @settings(max_examples=100, deadline=None)
    def test_arithmetic_is_that_of_python(self, rows: list[tuple[int, ...]]) -> None:
        a, b, c, d = (words(*column) for column in zip(*rows, strict=True))
        for found, expected in [
            (FIELD.add(a, b), [(x + y) % P for x, y, _, _ in rows]),
            (FIELD.subtract(a, b), [(x - y) % P for x, y, _, _ in rows]),
            (FIELD.multiply(a, b), [x * y % P for x, y, _, _ in rows]),
            (FIELD.falling(a, 3), [x * (x - 1) * (x - 2) % P for x, *_ in rows]),
            (
                FIELD.multiply_complex(np.stack([a, b]), np.stack([c, d])).ravel(),
                [(x * z - y * w) % P for x, y, z, w in rows]
                + [(x * w + y * z) % P for x, y, z, w in rows],
            ),
        ]:
            assert found.tolist() == expected

    def test_inverses_undo_their_numbers(self) -> None:
        values = np.stack([words(0, 3, P - 1, 7), words(1, 0, P - 1, P - 5)])
        undone = FIELD.multiply_complex(values, FIELD.invert_complex(values))
        assert undone.tolist() == [[1] * 4, [0] * 4]
        assert FIELD.multiply(values[0, 1:], FIELD.invert(values[0, 1:])).tolist() == [1] * 3

    @pytest.mark.parametrize("shape", [(2, 5, 3), (1, 3000, 40), (4, 1, 1)])
    def test_matrix_products_are_exact(self, shape: tuple[int, int, int]) -> None:
        rows, inner, columns = shape
        left = FIELD.draw(b"l" * 32, rows * inner).reshape(rows, inner)
        right = FIELD.draw(b"r" * 32, inner * columns).reshape(inner, columns)
        expected = left.astype(object) @ right.astype(object) % P
        assert (FIELD.combine(left, right) == expected.astype(np.uint64)).all()
        large = np.full_like(left, P - 1), np.full_like(right, P - 1)
        assert (FIELD.combine(*large) == inner % P).all()

    @pytest.mark.parametrize("bits", [5, 7, 31])
    def test_drawn_elements_are_those_of_the_formula(self, bits: int) -> None:
        for length in (0, 1, 70, 3000):
            found = PrimeField(bits).draw(b"k" * 32, length)
            assert found.tolist() == slow.drawn(b"k" * 32, length, bits)

    def test_drawn_elements_are_uniform(self) -> None:
        counts = np.bincount(PrimeField(5).draw(b"u" * 32, 310_000).astype(int), minlength=31)
        assert len(counts) == 31
        assert ((counts - 10_000) ** 2 / 10_000).sum() < 76  # 30 degrees of freedom: 1 in 100,000

    def test_polynomials_are_evaluated_everywhere(self) -> None:
        values = FIELD.draw(b"v" * 32, 9)
        polynomial = slow.through(values.tolist(), P)
        place = np.array([[12345], [6789]], dtype=np.uint64)
        found = FIELD.combine(FIELD.interpolation(range(1, 10), place), values[:, None])
        assert tuple(found.ravel().tolist()) == slow.at(polynomial, (12345, 6789), P)
        z = slow.vanishing(9, P)
        assert tuple(FIELD.vanishing(range(1, 10), place).ravel().tolist()) == slow.at(
            z, (12345, 6789), P
        )
        targets = range(10, 25)
        onward = FIELD.combine(FIELD.extrapolation(range(1, 10), targets), values[:, None])
        assert onward.ravel().tolist() == [slow.at(polynomial, (t, 0), P)[0] for t in targets]
        assert FIELD.vanishing_at(range(1, 10), targets).tolist() == [
            slow.at(z, (t, 0), P)[0] for t in targets
        ]

    def test_other_primes_are_refused(self) -> None:
        with pytest.raises(InvalidVectorError):
            PrimeField(11)


# The proof against slow integers -----------------------------------------------------------------


class TestFormulas:
    @pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.numbers[:5]))
    def test_shares_join_to_digits_masks_and_quotients_of_the_formulas(
        self, layout: VoteLayout
    ) -> None:
        rows = votes(layout)
        digits = layout.digits_of(rows)
        first, second = proved(layout, digits)
        field = layout.field
        assert (field.add(first.digits, second.digits) == digits).all()
        assert (layout.numbers_of(digits) == rows).all()
        masks = field.add(first.masks, second.masks).tolist()
        columns = slow.columns_of(digits.tolist(), masks, layout.height, P)
        weights = challenge(layout, first.binding, second.binding, context=CONTEXT)
        for i in range(layout.repetitions):
            quotient, rest = slow.quotient(
                columns, weights[i].tolist(), base=layout.base, height=layout.height, prime=P
            )
            assert not any(rest)
            at_points = [slow.at(quotient, (y, 0), P)[0] for y in layout.quotient_points]
            assert field.add(first.quotients[i], second.quotients[i]).tolist() == at_points
        assert accepted(layout, first, second)

    def test_answers_are_the_polynomials_at_the_point(self) -> None:
        digits = SMALL.digits_of(votes(SMALL))
        first, second = proved(SMALL, digits)
        point = EvaluationPoint.of(SMALL, COIN)
        total = FIELD.add(
            point.answer(first, takes_off_votes=True), point.answer(second, takes_off_votes=False)
        )
        place = (int(point.place[0, 0]), int(point.place[1, 0]))
        masks = FIELD.add(first.masks, second.masks).tolist()
        columns = slow.columns_of(digits.tolist(), masks, SMALL.height, P)
        assert [tuple(pair) for pair in total[:, : SMALL.width].T.tolist()] == [
            slow.at(column, place, P) for column in columns
        ]
        assert not total[:, -1].any()

    def test_bindings_and_challenge_are_hashes_of_both_parts(self) -> None:
        report = prove(SMALL, votes(SMALL), context=CONTEXT, random_bytes=os.urandom)
        first, second = opened(SMALL, report)
        witness = report.coordinator[: 4 * SMALL.witness_length]
        blind = report.coordinator[-32:]
        assert first.binding == slow.hashed(b"binding A", CONTEXT, witness, blind)
        assert second.binding == slow.hashed(b"binding B", CONTEXT, report.tally)
        key = slow.hashed(b"r", CONTEXT, first.binding, second.binding)
        weights = challenge(SMALL, first.binding, second.binding, context=CONTEXT)
        assert weights.ravel().tolist() == slow.drawn(key, 4 * SMALL.width, 31)

    @pytest.mark.parametrize("seed", [*range(12), *map(more, range(12, 120))])
    def test_decisions_are_those_of_whole_numbers(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        layout = LAYOUTS[seed % len(LAYOUTS)]
        rows = votes(layout, seed)
        for _ in range(rng.integers(0, 3)):
            query, column = rng.integers(layout.queries), rng.integers(layout.columns)
            rows[query, column] += rng.integers(-1, 2)
        digits = layout.digits_of(np.maximum(rows, 0))
        if rows.min() < 0:
            digits[0] = np.uint64(P - 1)
        is_true = slow.are_votes(rows.tolist(), layout.votes)
        assert accepted(layout, *proved(layout, digits)) is is_true


# Those who cheat ---------------------------------------------------------------------------------


def _moved(rows: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    column = int(rows[0].argmax())
    return [(0, column, -1), (1, int(rows[1].argmax()), 1)]


LIES: dict[str, Callable[[NDArray[np.int64]], list[tuple[int, int, int]]]] = {
    "a thousand more here, less there": lambda _: [(0, 0, 1000), (0, 1, -1000)],
    "one vote too many": lambda _: [(2, 1, 1)],
    "one vote too few": lambda rows: [(2, int(rows[2].argmax()), -1)],
    "less than none": lambda rows: [(1, 0, -1 - int(rows[1, 0])), (1, 1, 1 + int(rows[1, 0]))],
    "a vote of another query": _moved,
    "halves of the field": lambda _: [(0, 0, P // 2 + 1), (0, 1, P // 2 + 1)],
    "an empty row": lambda rows: [(3, c, -int(rows[3, c])) for c in range(rows.shape[1])],
    "a row of the prime's votes": lambda _: [(0, 0, P // 2), (0, 1, P - P // 2)],
}


class TestLies:
    @pytest.mark.parametrize("lie", LIES)
    @pytest.mark.parametrize(("queries", "given_votes"), [(8, 1), (8, 25), (5, 100)], ids=str)
    def test_rows_that_are_no_votes_are_refused(
        self, lie: str, queries: int, given_votes: int
    ) -> None:
        layout = VoteLayout.of(queries=queries, columns=4, votes=given_votes)
        rows = votes(layout, 3)
        digits = layout.digits_of(rows)
        for query, column, change in LIES[lie](rows):
            place = (query * layout.columns + column) * layout.digits
            digits[place] = (int(digits[place]) + change) % P
        for coin in (COIN, b"c" * 32):
            assert not accepted(layout, *proved(layout, digits), coin=coin)

    def test_a_digit_too_large_is_refused_though_the_numbers_are_right(self) -> None:
        layout = VoteLayout.of(queries=3, columns=3, votes=100)
        rows = votes(layout, 1)
        digits = layout.digits_of(rows)
        place = int(np.flatnonzero(digits.reshape(-1, 2)[:, 1])[0])
        digits[2 * place] += np.uint64(layout.base)
        digits[2 * place + 1] -= np.uint64(1)
        assert (layout.numbers_of(digits) == rows).all()
        assert not accepted(layout, *proved(layout, digits))

    @pytest.mark.parametrize(
        "part", ["digits", "masks", "quotients", "binding"], ids=lambda part: part
    )
    @pytest.mark.parametrize("side", [0, 1], ids=["coordinator", "tally"])
    def test_a_changed_share_is_refused(self, part: str, side: int) -> None:
        shares = list(proved(SMALL, SMALL.digits_of(votes(SMALL))))
        value = getattr(shares[side], part)
        if isinstance(value, bytes):
            changed: object = value[:-1] + bytes([value[-1] ^ 1])
        else:
            changed = value.copy()
            assert isinstance(changed, np.ndarray)
            changed.flat[0] = (int(changed.flat[0]) + 1) % P
        shares[side] = replace(shares[side], **{part: changed})  # type: ignore[arg-type]
        assert not accepted(SMALL, shares[0], shares[1])

    def test_parts_of_two_reports_do_not_fit(self) -> None:
        one, other = (proved(SMALL, SMALL.digits_of(votes(SMALL))) for _ in range(2))
        assert accepted(SMALL, *one)
        assert not accepted(SMALL, one[0], other[1])

    def test_a_report_of_another_context_is_refused(self) -> None:
        report = prove(SMALL, votes(SMALL), context=b"x" * 32, random_bytes=os.urandom)
        assert not accepted(SMALL, *opened(SMALL, report))

    def test_votes_of_another_number_are_refused(self) -> None:
        more_votes = replace(SMALL, votes=SMALL.votes - 1)
        assert not accepted(more_votes, *proved(more_votes, SMALL.digits_of(votes(SMALL))))

    @pytest.mark.parametrize("offset", range(SMALL.answer_length))
    def test_an_offset_of_any_element_of_an_answer_is_refused(self, offset: int) -> None:
        first, second = proved(SMALL, SMALL.digits_of(votes(SMALL)))
        point = EvaluationPoint.of(SMALL, COIN)
        weights = challenge(SMALL, first.binding, second.binding, context=CONTEXT)
        answer = point.answer(first, takes_off_votes=True)
        answer[0, offset] = (int(answer[0, offset]) + 1) % P
        assert not point.accepts(weights, answer, point.answer(second, takes_off_votes=False))

    def test_masks_of_zero_hurt_their_hospital_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are accepted; both ends' answers then show w_m(t) without a mask."""
        true, calls = PrimeField.draw, 0

        def draw(field: PrimeField, key: bytes, length: int) -> Elements:
            nonlocal calls
            calls += 1
            drawn = true(field, key, length)
            return np.zeros_like(drawn) if calls == 1 else drawn

        with monkeypatch.context() as patched:
            patched.setattr(PrimeField, "draw", draw)
            report = prove(SMALL, votes(SMALL), context=CONTEXT, random_bytes=os.urandom)
        shares = opened(SMALL, report)
        assert not FIELD.add(shares[0].masks, shares[1].masks).any()
        assert accepted(SMALL, *shares)

    def test_a_hospital_draws_two_masks_for_each_column(self) -> None:
        drawn = []
        for _ in range(2):
            first, second = proved(SMALL, SMALL.digits_of(votes(SMALL)))
            drawn.append(FIELD.add(first.masks, second.masks))
        assert drawn[0].shape == (2, SMALL.width)
        assert (drawn[0] != drawn[1]).all()
        assert (drawn[0][0] != drawn[0][1]).all()


class TestPayloads:
    @pytest.mark.parametrize("change", [-4, -1, 1, 4])
    def test_a_payload_of_another_length_is_refused(self, change: int) -> None:
        report = prove(SMALL, votes(SMALL), context=CONTEXT, random_bytes=os.urandom)
        payload = (report.coordinator + bytes(4))[: len(report.coordinator) + change]
        with pytest.raises(MalformedMessageError):
            VoteShare.of_coordinator(SMALL, payload, context=CONTEXT)
        with pytest.raises(MalformedMessageError):
            VoteShare.of_tally(SMALL, (report.tally + bytes(4))[: 32 + change], context=CONTEXT)

    @pytest.mark.parametrize("value", [P, P + 1, 2**32 - 1])
    def test_an_element_has_one_form(self, value: int) -> None:
        report = prove(SMALL, votes(SMALL), context=CONTEXT, random_bytes=os.urandom)
        for place in (0, SMALL.witness_length, SMALL.witness_length + SMALL.proof_length - 1):
            payload = bytearray(report.coordinator)
            payload[4 * place : 4 * place + 4] = value.to_bytes(4, "little")
            with pytest.raises(MalformedMessageError):
                VoteShare.of_coordinator(SMALL, bytes(payload), context=CONTEXT)

    @pytest.mark.parametrize(
        "change",
        [
            lambda rows: rows[1:],
            lambda rows: rows - 1,
            lambda rows: rows + 1,
            lambda rows: rows[:, :-1],
        ],
        ids=["a row less", "less than none", "votes too many", "a column less"],
    )
    def test_a_hospital_proves_no_rows_that_are_no_votes(
        self, change: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> None:
        with pytest.raises(InvalidVectorError):
            prove(SMALL, change(votes(SMALL)), context=CONTEXT, random_bytes=os.urandom)

    @pytest.mark.parametrize(
        "numbers",
        [
            {"queries": 0, "columns": 2, "votes": 1},
            {"queries": 1, "columns": 2, "votes": 0},
            {"queries": 1, "columns": 2, "votes": 1001},
            {"queries": 1, "columns": 2**30, "votes": 3},
            {"queries": 420_000, "columns": 10, "votes": 25},
        ],
    )
    def test_a_layout_that_cannot_be_is_refused(self, numbers: dict[str, int]) -> None:
        with pytest.raises(InvalidVectorError):
            VoteLayout.of(**numbers)
        with pytest.raises(InvalidVectorError):
            replace(SMALL, base=SMALL.votes)
        with pytest.raises(InvalidVectorError):
            VoteLayout(1, 2, 1, digits=1, base=2, height=14, field=PrimeField(5))


# How often a lie passes --------------------------------------------------------------------------

TRIALS = 2_000_000


def _require_rate(passed: int, trials: int, chance: float) -> None:
    """Within 4 standard errors."""
    error = (chance * (1 - chance) / trials) ** 0.5
    assert abs(passed / trials - chance) < 4 * error


class TestSoundness:
    def test_an_aggregators_answer_about_a_large_batch_is_a_message(self) -> None:
        layout = VoteLayout.of(queries=400_000, columns=10, votes=25)
        assert 2 * 4 * layout.answer_length <= MAX_ANSWER_BYTES

    def test_of_a_layout_is_what_its_plan_says(self) -> None:
        layout = VoteLayout.of(queries=10_000, columns=10, votes=25)
        assert layout.offline_bits >= 120
        assert layout.online_bits >= 50
        assert layout.online_bits == pytest.approx(
            np.log2(float(P) ** 2 - P) - np.log2(26 * (layout.height + 1))
        )

    @pytest.mark.parametrize(("bits", "repetitions"), [(5, 1), (5, 2), (7, 1), (7, 2)])
    def test_two_wrong_digits_of_a_grid_row_cancel_as_seldom_as_is_said(
        self, bits: int, repetitions: int
    ) -> None:
        field = PrimeField(bits)
        outputs = field.falling(words(5, 9), 2)
        assert outputs.all()
        weights = field.draw(b"w" * 32, TRIALS * repetitions * 2).reshape(TRIALS, repetitions, 2)
        cancels = field.multiply(weights, outputs).sum(axis=2) % np.uint64(field.prime) == 0
        _require_rate(int(cancels.all(axis=1).sum()), TRIALS, field.prime**-repetitions)

    @pytest.mark.parametrize("bits", [5, 7])
    def test_a_wrong_sum_of_a_row_passes_as_seldom_as_is_said(self, bits: int) -> None:
        field = PrimeField(bits)
        weights = field.draw(b"z" * 32, TRIALS * 4).reshape(TRIALS, 2, 2)
        wrong = words(1, field.prime - 1)  # a vote of one query, cast on another one
        sums = field.reduced(field.multiply(weights, wrong).sum(axis=2, dtype=np.uint64))
        _require_rate(int((sums == 0).all(axis=1).sum()), TRIALS, field.prime**-2)

    @pytest.mark.parametrize("bits", [5, 7])
    def test_forged_quotients_pass_at_their_roots_alone(self, bits: int) -> None:
        """The liar gives a quotient that is right at as many points as it can choose."""
        field = PrimeField(bits)
        layout = VoteLayout(2, 2, 1, 1, 2, height=4, repetitions=1, field=field)
        digits = words(5, field.prime - 4, 0, 1)  # sums are right, two digits are not
        first, second = proved(layout, digits)
        weights = challenge(layout, first.binding, second.binding, context=CONTEXT)
        passed = 0
        places = list(product(range(field.prime), range(1, field.prime)))[:: field.prime // 7]
        for a, b in places:
            point = EvaluationPoint.at(
                layout, place=np.array([[a], [b]], np.uint64), sums=np.ones((2, 2), np.uint64)
            )
            answers = (
                point.answer(first, takes_off_votes=True),
                point.answer(second, takes_off_votes=False),
            )
            passed += point.accepts(weights, *answers)
        assert passed <= layout.base * (layout.height + 1)
        assert passed / len(places) <= 2**-layout.online_bits

    @pytest.mark.parametrize("bits", [5, more(7)])
    def test_as_many_planted_roots_as_fit_let_a_lie_pass_at_them_and_hardly_elsewhere(
        self, bits: int
    ) -> None:
        """Of degree 10, a difference must have a given rest modulo Z: six roots can be chosen."""
        field = PrimeField(bits)
        p = field.prime
        layout = VoteLayout(2, 2, 1, 1, 2, height=4, repetitions=1, field=field)
        digits = words(5, p - 4, 0, 1)
        first, second = proved(layout, digits)
        weights = challenge(layout, first.binding, second.binding, context=CONTEXT)
        masks = field.add(first.masks, second.masks).tolist()
        columns = slow.columns_of(digits.tolist(), masks, layout.height, p)
        total: list[int] = [0]
        for weight, column in zip(weights[0].tolist(), columns, strict=True):
            scaled = [weight * value % p for value in slow.falling(column, layout.base, p)]
            total = slow.plus(total, scaled, p)
        z = slow.vanishing(layout.height, p)
        roots = [(a, b) for a, b in ((2, 1), (3, 5), (9, 4))]
        chosen = [1]
        for a, b in roots:  # x^2 - 2 a x + a^2 + b^2 is 0 at a + b i and a - b i alone
            chosen = slow.times(chosen, [(a * a + b * b) % p, -2 * a % p, 1], p)
        nodes = range(1, layout.height + 1)
        rest = [
            slow.at(total, (x, 0), p)[0] * pow(slow.at(chosen, (x, 0), p)[0], -1, p) % p
            for x in nodes
        ]
        difference = slow.times(slow.through(rest, p), chosen, p)
        quotient, none = slow.divided(slow.plus(total, [-each % p for each in difference], p), z, p)
        assert not any(none)
        stated = words(*(slow.at(quotient, (x, 0), p)[0] for x in layout.quotient_points))
        first = replace(first, quotients=field.subtract(stated[None], second.quotients))
        passed = set()
        for a, b in product(range(p), range(1, p)):
            point = EvaluationPoint.at(
                layout, place=np.array([[a], [b]], np.uint64), sums=np.ones((2, 2), np.uint64)
            )
            answers = (
                point.answer(first, takes_off_votes=True),
                point.answer(second, takes_off_votes=False),
            )
            if point.accepts(weights, *answers):
                passed.add((a, b))
        planted = {place for a, b in roots for place in ((a, b), (a, p - b))}
        assert planted <= passed
        assert len(passed) <= layout.base * (layout.height + 1)

    @pytest.mark.slow
    def test_a_whole_forged_report_passes_as_seldom_as_is_said(self) -> None:
        """Weights that cancel give a true quotient; otherwise the point must hit a root."""
        layout = VoteLayout(2, 2, 1, 1, 2, height=2, repetitions=1, field=PrimeField(5))
        digits = words(5, 31 - 4, 0, 1)  # both wrong ones in one row of the grid
        trials = 10_000
        coins = (place.to_bytes(32, "big") for place in range(trials))
        passed = sum(accepted(layout, *proved(layout, digits), coin=coin) for coin in coins)
        least, most = 1 / 31, 1 / 31 + 2**-layout.online_bits
        error = (most * (1 - most) / trials) ** 0.5
        assert least - 4 * error < passed / trials < most + 4 * error

    @pytest.mark.parametrize(("bits", "repetitions"), [(5, 1), (7, 1), (5, 2)])
    def test_with_few_repetitions_a_liar_finds_weights_that_cancel(
        self, bits: int, repetitions: int
    ) -> None:
        """Trying seeds before anything is sent: why a plan has four repetitions."""
        layout = VoteLayout(
            1, 2, 1, 1, 2, height=2, repetitions=repetitions, field=PrimeField(bits)
        )
        layout = replace(layout, queries=2)  # a grid of two columns: digits of a row may cancel
        digits = words(5, layout.field.prime - 4, 0, 1)
        tries = 20 * layout.field.prime**repetitions
        lucky = (proved(layout, digits) for _ in range(tries))
        coins = [bytes([coin]) * 32 for coin in range(6)]
        assert any(
            all(accepted(layout, first, second, coin=coin) for coin in coins)
            for first, second in lucky
        )


# What an aggregator sees -------------------------------------------------------------------------


ALL_MASKS = np.array(list(product(range(31), repeat=2)), dtype=np.uint64).T
"""Every pair of masks modulo 31; shape (2, 961)."""


def _at_point(masks: Elements, digits: Elements, place: Elements) -> set[tuple[int, int]]:
    """Return w(t) for each pair of masks: of a grid whose columns all hold the same digits."""
    pairs = masks.shape[1]
    layout = replace(TINY, queries=pairs)
    point = EvaluationPoint.at(layout, place=place, sums=np.zeros((2, pairs), np.uint64))
    share = VoteShare(
        np.repeat(digits, pairs), masks, np.zeros((1, layout.proof_points), np.uint64), b""
    )
    found = point.answer(share, takes_off_votes=False)[:, :pairs]
    return set(zip(*found.tolist(), strict=True))


class TestWhatIsSeen:
    def test_every_value_at_every_point_comes_from_one_pair_of_masks_whatever_the_votes(
        self,
    ) -> None:
        """All 930 points outside F_31, all 961 pairs of masks, all votes of a row of two."""
        everything = set(product(range(31), repeat=2))
        for place in product(range(31), range(1, 31)):
            at = np.array([[place[0]], [place[1]]], dtype=np.uint64)
            for digits in (words(1, 0), words(0, 1)):
                assert _at_point(ALL_MASKS, digits, at) == everything

    def test_one_mask_would_tell_two_votes_apart(self) -> None:
        at = np.array([[3], [7]], dtype=np.uint64)
        one = ALL_MASKS[:, ALL_MASKS[1] == 0]
        seen = [_at_point(one, digits, at) for digits in (words(1, 0), words(0, 1))]
        assert seen[0].isdisjoint(seen[1])

    def test_a_point_in_the_prime_field_is_refused(self) -> None:
        with pytest.raises(InvalidVectorError):
            EvaluationPoint.at(
                TINY, place=np.array([[3], [0]], np.uint64), sums=np.zeros((2, 1), np.uint64)
            )

    def test_no_coin_gives_a_point_in_the_prime_field(self) -> None:
        for coin in range(2000):
            assert EvaluationPoint.of(TINY, coin.to_bytes(32, "big")).place[1, 0] > 0

    def test_the_other_answer_follows_from_what_an_aggregator_has(self) -> None:
        """Given w(t), which is uniform, and its own share, it can compute the other's answer."""
        first, second = proved(SMALL, SMALL.digits_of(votes(SMALL)))
        point = EvaluationPoint.of(SMALL, COIN)
        own = point.answer(first, takes_off_votes=True)
        other = point.answer(second, takes_off_votes=False)
        columns = FIELD.add(own, other)[:, : SMALL.width]  # uniform, by the test above
        weights = challenge(SMALL, first.binding, second.binding, context=CONTEXT)
        outputs = FIELD.combine(weights, FIELD.falling_complex(columns, SMALL.base).T).T
        quotients = FIELD.multiply_complex(outputs, FIELD.invert_complex(point.vanishing))
        simulated = np.concatenate([columns, quotients, np.zeros((2, 1), np.uint64)], axis=1)
        assert (FIELD.subtract(simulated, own) == other).all()

    def test_the_tally_cannot_try_all_votes_against_the_coordinators_binding(self) -> None:
        """It knows its own share: only the blind keeps it from trying 2 x 961 small reports."""
        field, digits = TINY.field, words(1, 0)
        report = prove_digits(TINY, digits, context=CONTEXT, random_bytes=os.urandom)
        first, second = opened(TINY, report)
        own = np.concatenate([second.digits, second.masks.ravel()])
        found = Counter[bool]()
        for votes_tried in (words(1, 0), words(0, 1)):
            for masks in product(range(31), repeat=2):
                witness = field.subtract(np.concatenate([votes_tried, words(*masks)]), own)
                sent = field.to_bytes(witness)
                assert slow.hashed(b"binding A", CONTEXT, sent) != first.binding
                with_blind = slow.hashed(b"binding A", CONTEXT, sent, report.coordinator[-32:])
                found[with_blind == first.binding] += 1
        assert found == {True: 1, False: 2 * 961 - 1}

    def test_shares_of_two_votes_are_uniform(self) -> None:
        counts = np.zeros((2, 31), dtype=int)
        for place, digits in enumerate((words(1, 0), words(0, 1))):
            for _ in range(1500):
                first, _ = proved(TINY, digits)
                counts[place] += np.bincount(
                    np.concatenate([first.digits, first.masks.ravel()]).astype(int), minlength=31
                )
        expected = counts.sum(axis=1, keepdims=True) / 31
        assert (((counts - expected) ** 2 / expected).sum(axis=1) < 76).all()

"""Writes vectors of verified votes: reports with their check, and reports with one fault each.

From the slow integers of `reference_votes` only, as `make_protocol_vectors`.
Run from the repository root: ``python -m tests.support.make_verified_vectors``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tests.support import reference_votes as slow
from tests.support.make_format_vectors import some_bytes
from tests.support.make_protocol_vectors import write_vectors
from tests.support.reference_votes import Drawn, Numbers, Report

Row = dict[str, Any]
CONTEXT, OTHER_CONTEXT = some_bytes("context of a report"), some_bytes("context of another")
COIN = some_bytes("coin")
P = 2**31 - 1

ONE_DIGIT = Numbers(queries=3, columns=4, votes=3, digits=1, base=4, height=16)
TWO_DIGITS = Numbers(queries=2, columns=3, votes=40, digits=2, base=7, height=16)
WIDE = Numbers(queries=9, columns=4, votes=1, digits=1, base=2, height=16)
ROWS = [[2, 0, 1, 0], [0, 3, 0, 0], [1, 1, 0, 1]]
LARGE_ROWS = [[40, 0, 0], [6, 7, 27]]
WIDE_ROWS = [[int(column == query % 4) for column in range(4)] for query in range(9)]


def made_of(name: str) -> Drawn:
    return Drawn(*(some_bytes(f"{part} of {name}") for part in ("masks", "seed", "blind")))


def shown(numbers: Numbers, sent: Report, *, context: bytes = CONTEXT) -> Row:
    return {
        "numbers": asdict(numbers),
        "context": context.hex(),
        "coordinator": sent.coordinator.hex(),
        "tally": sent.tally.hex(),
        "bindings": [binding.hex() for binding in sent.bindings],
    }


def good(name: str, numbers: Numbers, rows: Sequence[Sequence[int]]) -> Row:
    drawn = made_of(name)
    digits = slow.digits_of(rows, numbers)
    sent = slow.report(numbers, digits, context=CONTEXT, made_of=drawn)
    point = slow.point_of(numbers, COIN)
    shares = slow.read(sent.coordinator, numbers), slow.expanded(sent.tally, numbers, CONTEXT)
    answers = [
        slow.answer(numbers, share, point, takes_off_votes=place == 0)
        for place, share in enumerate(shares)
    ]
    assert slow.judged(numbers, sent, context=CONTEXT, coin=COIN) == "accepted"
    return {
        **shown(numbers, sent),
        "rows": [list(row) for row in rows],
        "drawn": {part: value.hex() for part, value in asdict(drawn).items()},
        "weights": slow.weights_of(numbers, sent.bindings, CONTEXT),
        "place": list(point.place),
        "answers": [[list(value) for value in each] for each in answers],
    }


def spoiled() -> Row:
    drawn = made_of("a spoiled report")

    def proved(
        numbers: Numbers = ONE_DIGIT,
        rows: Sequence[Sequence[int]] = ROWS,
        changed: Sequence[tuple[int, int]] = (),
    ) -> Report:
        digits = slow.digits_of(rows, numbers)
        for place, change in changed:
            digits[place] = (digits[place] + change) % P
        return slow.report(numbers, digits, context=CONTEXT, made_of=drawn)

    def case(sent: Report, *, numbers: Numbers = ONE_DIGIT, context: bytes = CONTEXT) -> Row:
        found = slow.judged(numbers, sent, context=context, coin=COIN)
        assert found != "accepted"
        return {**shown(numbers, sent, context=context), "found": found}

    true, other = (
        proved(),
        slow.report(
            ONE_DIGIT,
            slow.digits_of(ROWS, ONE_DIGIT),
            context=CONTEXT,
            made_of=made_of("another report"),
        ),
    )
    half = (P + 1) // 2
    witness, all_elements = ONE_DIGIT.entries + 2 * ONE_DIGIT.width, ONE_DIGIT.elements

    def element(place: int, value: int | None = None) -> Report:
        """The report with an element of the coordinator's payload changed, or set to a value."""
        payload = true.coordinator
        old = int.from_bytes(payload[4 * place : 4 * place + 4], "little")
        new = (old + 1) % P if value is None else value
        written = new.to_bytes(4, "little")
        return replace(true, coordinator=payload[: 4 * place] + written + payload[4 * place + 4 :])

    def bound(sent: Report) -> Report:
        """The report with bindings that fit: its hospital's signature is over these."""
        bindings = slow.bindings_of(ONE_DIGIT, sent.coordinator, sent.tally, CONTEXT)
        return replace(sent, bindings=bindings)

    def flipped(content: bytes, place: int) -> bytes:
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    fewer = replace(ONE_DIGIT, votes=2)
    return {
        "a thousand votes more for one class, fewer for another": case(
            proved(changed=[(0, 1000), (1, -1000)])
        ),
        "a vote too many": case(proved(changed=[(1, 1)])),
        "a vote less than none": case(proved(changed=[(0, 1), (1, -1)])),
        "a vote missing": case(proved(changed=[(0, -1)])),
        "halves of the field": case(proved(changed=[(0, half - 2), (2, half)])),
        "an empty row": case(proved(changed=[(0, -2), (2, -1)])),
        "a vote moved to another query": case(proved(changed=[(0, -1), (6, 1)])),
        "a digit too large under a right number": case(
            proved(TWO_DIGITS, LARGE_ROWS, [(8, 7), (9, -1)]), numbers=TWO_DIGITS
        ),
        "two wrong digits in one row of the grid": case(
            proved(WIDE, WIDE_ROWS, [(0, 4), (2, -4)]), numbers=WIDE
        ),
        "votes of another hospital": case(
            slow.report(
                replace(fewer, base=4),
                slow.digits_of(ROWS, ONE_DIGIT),
                context=CONTEXT,
                made_of=drawn,
            ),
            numbers=replace(fewer, base=4),
        ),
        "a share of a digit changed, bound anew": case(bound(element(0))),
        "a share of a mask changed, bound anew": case(bound(element(ONE_DIGIT.entries))),
        "a share of a quotient changed": case(element(witness)),
        "the last share of a quotient changed": case(element(all_elements - 1)),
        "a share of a digit changed": case(element(0)),
        "a share of a mask changed": case(element(witness - 1)),
        "blind changed": case(
            replace(true, coordinator=flipped(true.coordinator, len(true.coordinator) - 1))
        ),
        "seed changed": case(replace(true, tally=flipped(true.tally, 0))),
        "seed changed, bound anew": case(bound(replace(true, tally=flipped(true.tally, 0)))),
        "binding of the coordinator's part changed": case(
            replace(true, bindings=(flipped(true.bindings[0], 31), true.bindings[1]))
        ),
        "binding of the tally's part changed": case(
            replace(true, bindings=(true.bindings[0], flipped(true.bindings[1], 31)))
        ),
        "bindings swapped": case(replace(true, bindings=true.bindings[::-1])),
        "the tally's part of another report": case(bound(replace(true, tally=other.tally))),
        "of another context": case(true, context=OTHER_CONTEXT),
        "a digit's share is the prime": case(element(0, P)),
        "a quotient's share is the prime": case(element(all_elements - 1, P)),
        "an element with its top bit set": case(element(3, 2**31)),
        "the largest word": case(element(witness, 2**32 - 1)),
        "payload cut by one byte": case(replace(true, coordinator=true.coordinator[:-1])),
        "payload cut by an element": case(replace(true, coordinator=true.coordinator[4:])),
        "payload one byte longer": case(replace(true, coordinator=true.coordinator + b"\0")),
        "payload an element longer": case(replace(true, coordinator=bytes(4) + true.coordinator)),
        "payload empty": case(replace(true, coordinator=b"")),
        "seed cut by one byte": case(replace(true, tally=true.tally[:-1])),
        "seed one byte longer": case(replace(true, tally=true.tally + b"\0")),
        "seed empty": case(replace(true, tally=b"")),
    }


def verified_votes() -> Row:
    return {
        "what": "reports of votes with their check, and reports that a check must find",
        "coin": COIN.hex(),
        "good": {
            "one digit": good("one digit", ONE_DIGIT, ROWS),
            "two digits": good("two digits", TWO_DIGITS, LARGE_ROWS),
            "several columns of the grid": good("several columns", WIDE, WIDE_ROWS),
        },
        "spoiled": spoiled(),
    }


VECTORS: dict[str, Callable[[], Row]] = {"verified_votes": verified_votes}


def main() -> None:
    write_vectors(VECTORS)


if __name__ == "__main__":
    main()

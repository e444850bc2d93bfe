"""Numbers and facts of a run in plain words, the same in report, summary and model card."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from difflib import get_close_matches
from typing import NamedTuple, TypeGuard

LEDGER_STATES = {
    "committed": "labels released; the charge is final",
    "forfeited": "void: no label released; its sum may still open, so the charge is final",
    "cancelled": "void: no label released; its sum can never open, so nothing is charged",
    "returned": "void: no label released; other hospitals signed that its sum can never open, so "
    "nothing is charged",
}
"""The state of a batch's reservation, in words."""


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return the likely name for an unknown one, in brackets; "" if none is close."""
    likely = get_close_matches(name, sorted(known), 1)
    return f" (did you mean {prefix}{likely[0]}?)" if likely else ""


def percent(share: float | None) -> str:
    """Format a share from 0 to 1 as a percentage with one decimal."""
    return "not measured" if share is None else f"{100 * share:.1f} %"


def room_words(runs: int) -> str:
    """Say how many more runs a budget has room for."""
    if not runs:
        return "no room for another run like this one"
    return f"room for about {count(runs)} more run{'' if runs == 1 else 's'} like this one"


def count(number: float) -> str:
    """Format a number with thousands apart; a whole one without decimals."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.6g}" if abs(number) < 1e6 else f"{number:,.0f}"


def epsilon_text(epsilon: float | None, *, absent: str = "no number", padded: bool = False) -> str:
    """Format an epsilon with three decimals, rounded up: never less than it is.

    `padded` keeps zeros at the end, as in a column of numbers.
    """
    if epsilon is None:
        return absent
    rounded = Decimal(repr(float(epsilon))).quantize(Decimal("0.001"), rounding=ROUND_CEILING)
    text = format(rounded, "f")
    return text if padded else text.rstrip("0").rstrip(".")


def delta_text(delta: float) -> str:
    """Format a delta as people write it: 1e-5."""
    mantissa, _, exponent = f"{delta:.3e}".partition("e")
    if not delta:
        return "0"
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def chance_text(delta: float) -> str:
    """Format a small chance in words: "1 in 100,000", rounded toward the larger chance."""
    return f"1 in {math.floor(round(1 / delta, 6)):,}" if delta > 0 else "none"


def size_text(size: float) -> str:
    """Format a number of bytes in four digits: "1.5 MB"."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:,.4g} GB"


def plural(number: int, one: str, many: str = "") -> str:
    """Format a count: "1 query", "30 queries"."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def sets_promise(coverage: float, *, labels: int, labels_needed: int) -> str:
    """Say what a student's sets of classes hold, by the released labels that calibrated them."""
    share = f"{100 * coverage:.10g} %"
    if labels < labels_needed:
        return (
            f"each set holds all classes: {share} coverage needs {labels_needed:,} held-out labels "
            f"or more, and there {'is' if labels == 1 else 'are'} {labels:,}"
        )
    return (
        "the label that the hospitals would release for a row like the pool's is in its set with "
        f"probability {share} or more, calibrated on {labels:,} held-out labels"
    )


def odds_factor(epsilon: float) -> str:
    """Return the largest factor by which odds can move: e to the epsilon, rounded up."""
    if epsilon > 20:
        return "more than 100 million"
    factor = math.exp(epsilon)
    return f"{math.ceil(factor * 10) / 10:g}" if factor < 10 else f"{math.ceil(factor):,}"


def flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """List a nested table as dotted names and texts, in order of the names.

    Lists of tables are left out: `lists_of_tables` has them.
    """
    for key in sorted(table, key=str):
        value, name = table[key], f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        elif _is_list_of_tables(value):
            continue
        elif isinstance(value, list):
            yield name, _list_text(value)
        else:
            yield name, _plain(value)


class TableList(NamedTuple):
    """A list of tables as one table: a row each, texts; "" where a table lacks the column."""

    name: str
    columns: list[str]
    rows: list[list[str]]


def lists_of_tables(table: Mapping[str, object], prefix: str = "") -> Iterator[TableList]:
    """Find the lists of tables in a nested table; columns of text stand last, they are long."""
    for key in sorted(table, key=str):
        value, name = table[key], f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from lists_of_tables(value, f"{name}.")
        elif _is_list_of_tables(value):
            texts = {column: False for row in value for column in row}
            for row in value:
                for column, cell in row.items():
                    texts[column] |= isinstance(cell, str)
            columns = sorted(texts, key=lambda column: (texts[column], column))
            rows = [
                [_plain(row[column]) if column in row else "" for column in columns]
                for row in value
            ]
            yield TableList(name, columns, rows)


def _is_list_of_tables(value: object) -> TypeGuard[list[Mapping[str, object]]]:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)
    )


def _list_text(values: list[object]) -> str:
    """Format a list; many entries that are all alike only once."""
    texts = [_plain(value) for value in values]
    if len(texts) > _LISTED and len(set(texts)) == 1:
        return f"{texts[0]} ({len(texts)} times)"
    return ", ".join(texts) or "none"


_LISTED = 3


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)

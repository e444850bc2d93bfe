"""The cost of votes as a table, a row for each method; and the same in words."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from pate_fed.accounting.costs import PrivacyUnit, neighbors
from pate_fed.lab.compare.case import MethodCost, VoteCase
from pate_fed.lab.compare.formal_rows import formal_rows
from pate_fed.lab.compare.private_rows import per_instance_rows, sanitized_row

_PUBLIC = 'public: labels and "no answer"s'


def compare(case: VoteCase, *, unit: PrivacyUnit) -> dict[str, Any]:
    """Price votes by every method.

    Returns:
        "asked", "expected_answered", "teachers", "classes", and "epsilon": for each method its
        number, None where it has none, with unit, neighbors, view, method, whether it may be shown,
        and the conditions of that. Of Interactive-GNMax "expected_reinforced" too: how many labels
        a confident student would keep.
    """
    about = {
        "unit": unit,
        "neighbors": neighbors(unit, weight=case.weight),
        "view": _PUBLIC,
    }
    formal = formal_rows(case)
    rows = {**formal, **per_instance_rows(case), "sanitized": sanitized_row(case)}
    return {
        "schema_version": 1,
        "asked": len(case.votes),
        **_expected(case),
        "teachers": case.teachers,
        "classes": case.classes,
        "delta": case.delta,
        "epsilon": {
            name: {
                "epsilon": row.epsilon,
                **about,
                "method": row.method,
                "releasable": row.releasable,
                "releasable_note": _note(row, is_formal=name in formal),
                **row.details,
            }
            for name, row in rows.items()
        },
    }


def render_comparison(found: dict[str, Any]) -> str:
    """Write the result of `compare` for people: one block per method, at most 80 columns."""
    lines = [
        f"{found['asked']:,} queries of {found['classes']} classes, "
        f"{found['teachers']:,} teachers; delta {found['delta']:g}",
        f"{found['expected_answered']:,.1f} answers are expected "
        "(from these votes: PRIVATE, operator only)",
        "",
    ]
    for name, row in found["epsilon"].items():
        lines.append(f"{name:20} {_number(row)}")
        note = "" if row["releasable_note"] is None else f"{row['releasable_note']}; "
        lines += textwrap.wrap(
            f"{note}unit {row['unit']}; view {row['view']}; method: {row['method']}",
            78,
            initial_indent="  ",
            subsequent_indent="  ",
        )
    lines.append("")
    lines += textwrap.wrap(f"neighbors: {found['epsilon']['formal_gdp']['neighbors']}", 80)
    return "\n".join(lines)


def _number(row: dict[str, Any]) -> str:
    if row["epsilon"] is None:
        return "no number"
    order = f" at order {row['order']:.4g}" if row.get("order") is not None else ""
    shown = "" if row["releasable"] else "; PRIVATE, operator only"
    rounded_up = math.ceil(row["epsilon"] * 1e4) / 1e4
    return f"epsilon {rounded_up:.4f}{order}{shown}"


def _note(row: MethodCost, *, is_formal: bool) -> str | None:
    """State the conditions for showing a number; None where there is no number."""
    if row.epsilon is None:
        return None
    if not is_formal:
        return "private because it depends on these votes"
    if row.releasable:
        return "may be shown if the caps were fixed without the votes"
    return "private because caps that are not whole are expectations from votes"


def _expected(case: VoteCase) -> dict[str, float]:
    chances = case.chances
    expected = {"expected_answered": float(chances.sum())}
    if case.is_sure is not None:
        expected["expected_reinforced"] = float((1 - chances)[case.is_sure].sum())
    return expected

"""The words and the picture of `pate-fed plan`: the proposal, its cost, its rate of answers."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any, Final

from pate_fed.accounting.statement import Pricing
from pate_fed.planning.at_coordinator import BOUNDS
from pate_fed.report.plots import price_plot, standalone


def render_plan(found: dict[str, Any]) -> str:
    """Write the result of `plan` for people: the proposal, its cost, and how that grows."""
    return _at_parties(found) if found["noise"] == "parties" else _at_coordinator(found)


def _at_coordinator(found: dict[str, Any]) -> str:
    best, epsilon = found["best"], found["best"]["epsilon"]
    rule = best["mechanism"]
    lines = [
        f"{found['parties']} hospitals, {found['votes']} votes a query, "
        f"{found['classes']} classes; budget epsilon {_budgets_shown(best['parties'])} "
        f"at delta {found['budget']['delta']:g}",
        *_unfit_lines(found),
        "",
        f"Ask {best['queries']:,} queries with",
        f"  --vote-threshold {rule['vote_threshold']:g} --sigma1 {rule['sigma1']:g} "
        f"--sigma2 {rule['sigma2']:g}",
        f"  --max-answers {rule['max_answers']} --max-refusals {rule['max_refusals']}",
        f"and expect {best['expected_answered']:.0f} answers, {best['expected_right']:.0f} of them "
        f"right, if teachers are right {found['assumed_teacher_accuracy']:.0%} of the time.",
        "",
        f"It costs {_whom(best)}epsilon {_rounded_up(epsilon['smallest'])} at most; "
        f"unit {found['unit']};",
        f"view {found['view']};",
        *textwrap.wrap(f"method: {epsilon['method']}.", 80),
        *textwrap.wrap(f"neighbors: {found['neighbors']}", 80),
        *textwrap.wrap(_sum_line(found["sum"]), 80),
        *_party_lines(best["parties"]),
        "",
        f"formal epsilon {_for_whom(best)}of a run that expects so many answers:",
    ]
    points = [(point["answers"], _least(point)) for point in best["epsilon_over_answers"]]
    largest = max(epsilon for _, epsilon in points)
    for answers, least in points:
        lines.append(
            f"{answers:8.0f} {'#' * max(1, round(50 * least / largest))} {_rounded_up(least)}"
        )
    return "\n".join(lines)


def draw_plan(found: dict[str, Any]) -> str:
    """Draw formal epsilon over expected answers: one line per bound.

    Returns:
        A self-contained SVG picture.
    """
    best = found["best"]
    lines = {
        _NAMES[bound]: [
            (point["answers"], point[f"epsilon_{bound}"])
            for point in best["epsilon_over_answers"]
            if point[f"epsilon_{bound}"] is not None
        ]
        for bound in BOUNDS
    }
    says = (
        f"Formal epsilon, unit {found['unit']}, public view, delta {found['budget']['delta']:g}, "
        f"of runs that expect up to {best['expected_answered']:.0f} answers."
    )
    budget = best["decides"]["budget"]
    return standalone(
        price_plot(
            {name: points for name, points in lines.items() if points}, budget=budget, summary=says
        )
    )


_NAMES: Final[dict[Pricing, str]] = {
    "gdp": "exact Gaussian composition",
    "label": "label level",
    "joint": "joint price (valid votes)",
}


def _least(point: dict[str, Any]) -> float:
    epsilons = [point[f"epsilon_{bound}"] for bound in BOUNDS]
    return float(min(epsilon for epsilon in epsilons if epsilon is not None))


def _party_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Write the limit of each hospital's units, where hospitals differ; alike ones once."""
    kinds: dict[tuple[int, int, float, float], list[str]] = {}
    for row in rows:
        kind = (row["votes"], row["unit_votes"], row["budget"], row["epsilon"])
        kinds.setdefault(kind, []).append(row["party"])
    if len(kinds) == 1:
        return []
    tightest_first = sorted(kinds.items(), key=lambda item: -item[0][3] / item[0][2])
    lines = ["hospital by hospital (same delta, unit and view), the tightest first:"]
    for (votes, moved, budget, epsilon), names in tightest_first:
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        lines.append(
            f"  {who:22} {votes:5} votes, {moved} of one unit; "
            f"epsilon {_rounded_up(epsilon)} of {budget:g}"
        )
    return lines


def _sum_line(advice: dict[str, Any]) -> str:
    """Write the advice of `advised_sum` in one sentence."""
    form = advice["form"]
    return f"--sum {form}: {advice['why']}." if form else f"No secure sum fits: {advice['why']}."


def _budgets_shown(rows: list[dict[str, Any]]) -> str:
    """Write the budgets of all hospitals: one, or from the smallest to the largest."""
    budgets = [row["budget"] for row in rows]
    least, most = min(budgets), max(budgets)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}, each hospital its own,"


def _whom(best: dict[str, Any]) -> str:
    """Name the hospital that a number is for, where hospitals differ."""
    kinds = {(row["unit_votes"], row["budget"]) for row in best["parties"]}
    if len(kinds) == 1:
        return ""
    decides = best["decides"]
    return f"{decides['party']}, the closest to its budget of {decides['budget']:g}, "


def _for_whom(best: dict[str, Any]) -> str:
    return f"for {best['decides']['party']} " if _whom(best) else ""


def _unfit_lines(found: dict[str, Any]) -> list[str]:
    """Report that the wanted queries cost too much."""
    wanted, fit = found["requested_queries"], found["best"]["queries"]
    if wanted is None or wanted <= fit:
        return []
    return textwrap.wrap(
        f"{wanted:,} queries do not fit this budget: {fit:,} do. More teachers, more noise or a "
        "larger budget would allow more.",
        80,
    )


def _rounded_up(epsilon: float) -> str:
    """Write an epsilon with four decimals, never less than it is."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def _at_parties(found: dict[str, Any]) -> str:
    best, shares = found["best"], found["shares"]
    lines = [
        *_wrapped(
            f"{found['parties']} hospitals, {found['votes']} votes a query, "
            f"{found['classes']} classes; budget epsilon {_budgets_shown(best['parties'])} "
            f"at delta {found['budget']['delta']:g}"
        ),
        *_wrapped(
            f"Noise at the parties: {shares['parties']} hospitals - {shares['colluders']} whose "
            f"noise an attacker may know - {shares['dropouts']} that may be lost = "
            f"{shares['suffice']} shares that have to hold the noise."
        ),
        *_wrapped(_sum_line(found["sum"])),
        *_unfit_lines(found),
        "",
        *_offer_lines(
            best, found, head="Recommended: plain GNMax, one exchange less.", in_full=True
        ),
    ]
    for other in found["others"]:
        in_full = other["decides"]["neighbors"] != best["decides"]["neighbors"]
        lines += [
            "",
            *_offer_lines(other, found, head="Or refuse where teachers disagree:", in_full=in_full),
        ]
        lines += ["", *_passing_lines(other, found)]
    return "\n".join(lines)


def _offer_lines(
    offer: Mapping[str, Any], found: Mapping[str, Any], *, head: str, in_full: bool
) -> list[str]:
    rule, phases = offer["mechanism"], offer["noise_shares"]
    check = (
        []
        if rule["vote_threshold"] is None
        else [
            f"  --vote-threshold {rule['vote_threshold']:g} --sigma1 {rule['sigma1']:g}",
            f"  --max-answers {rule['max_answers']} --max-refusals {rule['max_refusals']}",
        ]
    )
    return [
        head,
        f"Ask {_plural(offer['queries'], 'query', 'queries')} with",
        f"  --noise parties --sum {found['sum']['form']} --colluders "
        f"{found['shares']['colluders']} --mechanism {rule['name']} --sigma2 {rule['sigma2']:g}",
        *check,
        *_wrapped(
            f"and expect {offer['expected_answered']:.0f} answers, "
            f"{offer['expected_right']:.0f} of them right, if teachers are right "
            f"{found['assumed_teacher_accuracy']:.0%} of the time; "
            f"{_plural(offer['exchanges'], 'exchange', 'exchanges')} a batch."
        ),
        *_share_lines(phases),
        *_price_lines(offer, found, in_full=in_full),
        *_hospital_lines(offer["parties"]),
    ]


def _share_lines(phases: list[dict[str, Any]]) -> list[str]:
    lines = []
    for phase in {phase["sigma"]: phase for phase in phases}.values():
        lines += _wrapped(
            f"Noise {phase['sigma']:g}: each hospital adds {phase['share_sigma']:.4g} to every "
            f"count, and {phase['sum_sigma']:.4g} is there if all send. Shares are wide enough "
            f"from {phase['least_sigma']:g} on. That they are discrete is in the price: "
            f"{_percent(phase['correction'])} more than Gaussian noise."
        )
    return lines


def _price_lines(offer: Mapping[str, Any], found: Mapping[str, Any], *, in_full: bool) -> list[str]:
    whom = f" for {offer['decides']['party']}" if _differ(offer["parties"]) else ""
    prices = offer["prices"]
    if not in_full:
        said = ", ".join(
            f"epsilon {_rounded_up(price['epsilon'])} in the {view}'s view"
            for view, price in prices.items()
        )
        return _wrapped(
            f"It costs{whom} at most {said}; delta, unit, views, methods, sources and neighbors "
            "as above."
        )
    lines = [f"It costs{whom} at most (delta {found['budget']['delta']:g}; unit {found['unit']}):"]
    for view, price in prices.items():
        lines += textwrap.wrap(
            f"epsilon {_rounded_up(price['epsilon'])} in the {view}'s view: {price['view']}. "
            f"Method: {price['method']}. Source: {price['source']}.",
            80,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    return [
        *lines,
        "The budget bounds the coordinator's view.",
        *_wrapped(f"Neighbors: {offer['decides']['neighbors']}"),
    ]


def _hospital_lines(rows: list[dict[str, Any]]) -> list[str]:
    if not _differ(rows):
        return []
    kinds: dict[tuple[int, float, float, int], list[str]] = {}
    for row in rows:
        kind = (row["unit_votes"], row["budget"], row["epsilon"], row["affords"])
        kinds.setdefault(kind, []).append(row["party"])
    lines = ["hospital by hospital, the tightest first (same delta and unit):"]
    for (moved, budget, epsilon, affords), names in sorted(
        kinds.items(), key=lambda item: -item[0][2] / item[0][1]
    ):
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        lines.append(
            f"  {who:20} {_plural(moved, 'vote', 'votes')} a unit; epsilon {_rounded_up(epsilon)} "
            f"of {budget:g}; alone {_plural(affords, 'query', 'queries')}"
        )
    return lines


def _passing_lines(offer: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    rule = offer["mechanism"]
    return [
        *_wrapped(
            f"How often a row passes --vote-threshold {rule['vote_threshold']:g}. The check with "
            f"noise at the parties looks at the largest of {found['classes']} noisy counts, so "
            "rows without a lead pass more often than by the coordinator's check of the same "
            "threshold and sigma1:"
        ),
        "  top votes      lead    noise at the parties    noise at the coordinator",
        *(
            f"{row['top_votes']:11} {row['lead']:9} {row['passes']:23.4f} "
            f"{row['passes_at_coordinator']:27.4f}"
            for row in offer["passing"]
        ),
    ]


def _differ(rows: list[dict[str, Any]]) -> bool:
    return len({(row["unit_votes"], row["budget"]) for row in rows}) > 1


def _plural(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _percent(share: float) -> str:
    return "less than 0.01 %" if share < 1e-4 else f"{100 * share:.2f} %"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 80, break_on_hyphens=False)

"""The words and the picture of `pate-fed plan`: the proposal, its cost, its rate of answers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from pate_fed import wording
from pate_fed.planning.forecast import ForecastTable, PartyPrice, Price
from pate_fed.planning.plan import QueryPlan
from pate_fed.planning.sum_advice import SumAdvice
from pate_fed.report.plots import price_plot, standalone
from pate_fed.rule import RECORDS_VOTE


def render_plan(found: QueryPlan) -> str:
    """Write the result of `plan` for people: the proposal, its cost, and how that grows."""
    best, delta = found["forecast"], wording.delta_text(found["budget"]["delta"])
    rule, noise = best["mechanism"], ""
    votes = f"{_most(best['mechanism'])}{found['votes']} votes a query"
    lines = [
        *_wrapped(
            f"{found['parties']} hospitals, {votes}, {found['classes']} classes; budget "
            f"epsilon {_budgets_shown(best['parties'])} "
            f"at delta {delta}"
        ),
        *_wrapped(_sum_line(found["sum"])),
    ]
    if (shares := found["shares"]) is not None:
        noise = f"--noise parties --sum {found['sum']['form']} --colluders {shares['colluders']} "
        lines += _wrapped(
            f"Noise at the parties: {shares['parties']} hospitals - {shares['colluders']} whose "
            f"noise an attacker may know - {shares['dropouts']} that may be lost = "
            f"{shares['suffice']} shares that have to hold the noise."
        )
    if found["noise"] == "aggregators":
        noise = f"--sum {found['sum']['form']} "
        lines += _wrapped(
            "Noise at both aggregators: the coordinator and the tally add the full amount each, so "
            "that either one's is enough against the other. A deployment needs a tally."
        )
    lines += [
        "",
        f"Ask {wording.plural(best['queries'], 'query', 'queries')} with",
        *_options(
            f"{_voters(rule)}{noise}--mechanism {rule['name']} {_threshold(rule)}"
            f"--sigma2 {rule['sigma2']:g}"
        ),
        *_wrapped(
            f"and expect {wording.plural(round(best['expected_answered']), 'answer')}, "
            f"{best['expected_right']:.0f} right, if single votes are right "
            f"{found['assumed_teacher_accuracy']:.0%} of the time."
        ),
        *_share_lines(best["noise_share"], found["noise"]),
        "",
        *_wrapped(f"It costs {_whom(best)}at most (delta {delta}; unit {found['unit']}):"),
        *_price_lines(best["prices"]),
        *_wrapped(f"Neighbors: {found['neighbors']}"),
        *_party_lines(best["parties"]),
        "",
        f"epsilon {_for_whom(best)}of a run that expects so many answers (view: {_view(found)}):",
    ]
    points = [(point["answers"], point["epsilon"]) for point in best["epsilon_over_answers"]]
    largest = max(epsilon for _, epsilon in points)
    for answers, epsilon in points:
        bar = "#" * max(1, round(50 * epsilon / largest))
        lines.append(f"{answers:8.0f} {bar} {_epsilon(epsilon)}")
    return "\n".join(lines)


def _options(line: str) -> list[str]:
    return textwrap.wrap(
        line, 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


def _voters(rule: Mapping[str, str | float | None]) -> str:
    """Write who votes, where it is not the hospitals' teachers."""
    votes = rule["patient_votes"]
    return "" if votes is None else f"--teacher {RECORDS_VOTE} --votes-per-patient {votes:g} "


def _most(rule: Mapping[str, str | float | None]) -> str:
    """Say that patients without a record close to a query do not vote."""
    return "" if rule["patient_votes"] is None else "at most "


def _threshold(rule: Mapping[str, str | float | None]) -> str:
    threshold = rule["vote_threshold"]
    return "" if threshold is None else f"--vote-threshold {threshold:g} "


def draw_plan(found: QueryPlan) -> str:
    """Draw epsilon over expected answers, as a self-contained picture in SVG."""
    best = found["forecast"]
    points = [(point["answers"], point["epsilon"]) for point in best["epsilon_over_answers"]]
    says = (
        f"Epsilon, unit {found['unit']}, view: {_view(found)}, delta "
        f"{wording.delta_text(found['budget']['delta'])}, of runs that expect up to "
        f"{best['expected_answered']:.0f} answers."
    )
    budget = best["decides"]["budget"]
    return standalone(price_plot(points, budget=budget, view=_view(found), summary=says))


def _view(found: QueryPlan) -> str:
    """Name the view of the chart's numbers."""
    return "coordinator or tally" if "tally" in found["forecast"]["prices"] else found["view"]


def _party_lines(rows: list[PartyPrice]) -> list[str]:
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
            f"epsilon {_epsilon(epsilon)} of {budget:g}"
        )
    return lines


def _sum_line(advice: SumAdvice) -> str:
    """Write the advice of `advised_sum` in one sentence."""
    form = advice["form"]
    return f"--sum {form}: {advice['why']}." if form else f"No secure sum fits: {advice['why']}."


def _budgets_shown(rows: list[PartyPrice]) -> str:
    """Write the budgets of all hospitals: one, or from the smallest to the largest."""
    budgets = [row["budget"] for row in rows]
    least, most = min(budgets), max(budgets)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}, each hospital its own,"


def _whom(best: ForecastTable) -> str:
    """Name the hospital that a number is for, where hospitals differ."""
    kinds = {(row["unit_votes"], row["budget"]) for row in best["parties"]}
    if len(kinds) == 1:
        return ""
    decides = best["decides"]
    return f"{decides['party']}, the closest to its budget of {decides['budget']:g}, "


def _for_whom(best: ForecastTable) -> str:
    return f"for {best['decides']['party']} " if _whom(best) else ""


def _epsilon(epsilon: float) -> str:
    return wording.epsilon_text(epsilon, padded=True)


def _share_lines(share: dict[str, float] | None, noise: str) -> list[str]:
    if share is None:
        return []
    who, when = (
        ("each aggregator", "in labels")
        if noise == "aggregators"
        else ("each hospital", "there if all send")
    )
    return _wrapped(
        f"Noise {share['sigma']:g}: {who} adds {share['share_sigma']:.4g} to every count, "
        f"and {share['sum_sigma']:.4g} is {when}. Shares are wide enough from "
        f"{share['least_sigma']:g} on. That they are discrete is in the price: "
        f"{_percent(share['correction'])} more than Gaussian noise."
    )


def _price_lines(prices: Mapping[str, Price]) -> list[str]:
    lines = []
    for view, price in prices.items():
        lines += textwrap.wrap(
            f"epsilon {_epsilon(price['epsilon'])} in the {view}'s view: {price['view']}. "
            f"Method: {price['method']}.",
            80,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    if "tally" in prices:
        lines.append("The budget bounds the views of the coordinator and of the tally.")
    elif len(prices) > 1:
        lines.append("The budget bounds the coordinator's view.")
    return lines


def _percent(share: float) -> str:
    return "less than 0.01 %" if share < 1e-4 else f"{100 * share:.2f} %"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 80, break_on_hyphens=False)

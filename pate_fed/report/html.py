"""One self-contained page on a run, for a hospital's privacy officer, read from top to bottom.

The page asks nobody for anything: style and pictures stand in it, there is no script, and its own
policy forbids the rest. Every text that came from data or settings is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from pate_fed import wording
from pate_fed.mechanisms import NOBODY_IS_PROTECTED, spec_of
from pate_fed.report import plots, price_words, publication_words, quality_words
from pate_fed.report.quality_words import YARDSTICKS
from pate_fed.report.run_directory import RunRecord


def _percent(share: float | None) -> str:
    return wording.percent(share).replace(" %", "\N{NO-BREAK SPACE}%")


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("pate_fed.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(
    percent=_percent,
    count=wording.count,
    epsilon=wording.epsilon_text,
    delta=wording.delta_text,
    odds=wording.odds_factor,
    chance=wording.chance_text,
    unassuming=price_words.unassuming,
    area=quality_words.area_text,
    interval=quality_words.interval_text,
)
_ENVIRONMENT.globals.update(plural=wording.plural)

_SOURCES = (
    "PATE, GNMax and LNMax: Papernot et al. 2017 (arXiv 1610.05755) and 2018 (arXiv 1802.08908)",
    "Exact composition of Gaussian mechanisms: Dong, Roth and Su 2022, Gaussian Differential "
    "Privacy (arXiv 1905.02383)",
    "Renyi differential privacy: Mironov 2017 (arXiv 1702.07476); its conversion to ε and δ (CKS): "
    "Canonne, Kamath and Steinke 2020 (arXiv 2004.00010)",
    "Filters (running totals), which keep a budget for any next queries: Feldman and Zrnic 2021 "
    "(arXiv 2008.11193) for RDP, Smith and Thakurta 2022 (arXiv 2210.17520) for GDP",
    "Stable argmax: Dwork and Lei 2009; Smith and Thakurta 2013",
    "Label level and joint price: proofs in the documentation of pate_fed",
)


_LONGEST_OPEN = 400
"""Longest entry of the manifest, in letters, that stands open in the page."""


def render_report(run: RunRecord) -> str:
    """Render the report of a run; the same run gives the same bytes.

    Args:
        run: The record from `RunDirectory.read_back` or `read_run`.

    Returns:
        An HTML page that needs no other file.
    """
    metrics, privacy = run.metrics, run.privacy
    classes, spec = _classes(metrics), spec_of(privacy["mechanism"]["name"])
    simulated = wording.is_simulated(metrics, privacy)
    return _ENVIRONMENT.get_template("report.html.j2").render(
        m=metrics,
        p=privacy,
        simulated=simulated,
        data=run.settings.get("data"),
        begun_on=run.manifest["begun_on"],
        has_own_data=publication_words.has_own_data(run),
        files=publication_words.files(run),
        measured=simulated or any(share is not None for share in metrics["accuracy"].values()),
        released=_released(run),
        secrecy=wording.secrecy_text(privacy, simulated=simulated),
        unit=wording.unit_text(privacy),
        short_unit=wording.short_unit(privacy),
        neighbors=privacy["neighbors"].rstrip(". "),
        mechanism=spec.title,
        mechanism_text=spec.text(privacy["mechanism"]),
        refused_because=spec.refused_because,
        nobody=NOBODY_IS_PROTECTED,
        protects_nobody=price_words.protects_nobody(privacy),
        price=price_words.price(privacy),
        method=price_words.headline_method(privacy),
        assumption=price_words.assumption(privacy),
        not_covered=price_words.not_covered(privacy),
        without=price_words.without_trust(privacy),
        bounds=price_words.bounds(privacy),
        caps=price_words.caps_text(privacy),
        at_parties=price_words.is_at_parties(privacy),
        charged_view=price_words.charged_view(privacy),
        charged_formal=price_words.charged_formal(privacy),
        budget_method=price_words.budget_method(privacy),
        charged_method=price_words.charged_method(privacy),
        parties=privacy["parties"],
        alike=price_words.are_alike(privacy["parties"]),
        most_open=price_words.MOST_OPEN_HOSPITALS,
        longest_open=_LONGEST_OPEN,
        uneven=price_words.differ(privacy["parties"], "epsilon"),
        own_budgets=price_words.differ(privacy["parties"], "budget"),
        spread=price_words.spread,
        alarms=list(quality_words.alarms(metrics)),
        better_alone=quality_words.better_alone(metrics),
        by_class=quality_words.by_class(metrics),
        student_kind=metrics["student"],
        classes=classes,
        max_classes=plots.MAX_CLASSES,
        states=wording.LEDGER_STATES,
        accuracy_plot=Markup(_accuracy_plot(metrics)),  # noqa: S704 - escapes its texts
        classes_plot=Markup(_classes_plot(classes)),  # noqa: S704
        charged_plot=Markup(_charged_plot(privacy)),  # noqa: S704
        digests=run.digests,
        manifest=list(wording.flatten(run.manifest)),
        manifest_lists=list(wording.lists_of_tables(run.manifest)),
        settings=list(wording.flatten(run.settings)),
        effort=_effort(metrics),
        sent=_sent(metrics),
        labels=len(run.labels),
        sources=_SOURCES,
    )


_EFFORT: Mapping[str, str] = {
    "closing": "at the end",
    "from_parties": "from all hospitals together",
    "per_batch": "per batch",
    "to_parties": "to all hospitals together",
    "yardsticks": "comparison models",
}


def _effort(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        (f"{table}: {_EFFORT.get(name, name)}", text)
        for table in ("exchanges", "seconds")
        for name, text in wording.flatten(metrics[table])
    ]
    for name, text in wording.flatten(metrics["bytes"]):
        size = f"{int(text):,} ({wording.size_text(int(text))})" if text.isdecimal() else text
        rows.append((f"bytes: {_EFFORT.get(name, name)}", size))
    return rows


def _sent(metrics: Mapping[str, Any]) -> str:
    """Write the mean size of one hospital's messages; "" where nobody counted them."""
    size = metrics["bytes"]["from_parties"]
    return wording.size_text(size / metrics["parties"]) if size and metrics["parties"] else ""


def _classes(metrics: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    rows = wording.class_rows(metrics)
    if len(rows) > plots.MAX_CLASSES:  # the plot shows the first ones
        rows.sort(key=lambda row: -row[1] - row[2])
    return rows


def _released(run: RunRecord) -> list[tuple[str, int]]:
    """Count released labels by class, of all classes that the run had."""
    counts = Counter(label for _, label in run.labels if label)
    source = run.settings.get("source")
    known = source.get("classes", ()) if isinstance(source, Mapping) else ()
    return [(name, counts[name]) for name in dict.fromkeys((*known, *sorted(counts)))]


def _accuracy_plot(metrics: Mapping[str, Any]) -> str:
    bars = [(name, metrics["accuracy"][key]) for key, name in YARDSTICKS]
    says = "; ".join(f"{name}: {wording.percent(share)}" for name, share in bars)
    return plots.accuracy_plot(bars, summary=f"Bars of accuracy on held-out inputs. {says}.")


def _classes_plot(classes: list[tuple[str, int, int]]) -> str:
    if not classes:
        return ""
    says = "; ".join(f"{name}: {answered} and {refused}" for name, answered, refused in classes)
    return plots.classes_plot(
        classes, summary=f"Bars of queries answered and without an answer. {says}."
    )


def _charged_plot(privacy: Mapping[str, Any]) -> str:
    charged = privacy["charged"]
    if not charged:
        return ""
    cap, last = price_words.charged_formal(privacy)["epsilon"], charged[-1]
    order = privacy["budget"]["order"]
    says = (
        f"A line of the epsilon charged over the queries asked"
        f"{'' if order is None else f', at the fixed Renyi order {order:.4g}'}. It ends at epsilon "
        f"{wording.epsilon_text(last['epsilon'])} after "
        f"{wording.plural(last['asked'], 'query', 'queries')}; the formal cap, the guarantee, is "
        f"{wording.epsilon_text(cap)}. "
        f"{price_words.charged_view(privacy).capitalize()} view, unit: "
        f"{wording.short_unit(privacy)}."
    )
    points = [(row["asked"], row["epsilon"]) for row in charged]
    return plots.charged_plot(points, cap=cap, summary=says)

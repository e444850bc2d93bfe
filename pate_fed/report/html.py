"""One self-contained page on a run, for a hospital's privacy officer, read from top to bottom.

The page asks nobody for anything: style and pictures stand in it, there is no script, and its own
policy forbids the rest. Every text that came from data or settings is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jinja2
from markupsafe import Markup, escape

from pate_fed import wording
from pate_fed.mechanisms import NOBODY_IS_PROTECTED, spec_of
from pate_fed.public_images import SHEET_CELL, SHEET_COLUMNS
from pate_fed.record import Audit, Manifest, Metrics, Privacy
from pate_fed.record.metrics import EvaluationScores
from pate_fed.report import (
    editions,
    judgments,
    plots,
    price_words,
    publication_words,
    quality_words,
    sent_words,
    thumbnails,
)
from pate_fed.report.run_directory import FinishedRun
from pate_fed.report.voter_words import voter_words


def _percent(share: float | None) -> str:
    return _unbroken(wording.percent(share))


def _unbroken(text: str) -> str:
    """Keep each number and its percent sign on one line."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("pate_fed.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters.update(
    percent=_percent,
    count=wording.count,
    epsilon=wording.epsilon_text,
    delta=wording.delta_text,
    odds=wording.odds_factor,
    chance=wording.chance_text,
    area=quality_words.area_text,
    interval=quality_words.interval_text,
    span=quality_words.span_text,
    size=wording.size_text,
)
ENVIRONMENT.globals.update(plural=wording.plural)
"""Escapes every text; also for other pages of a run."""

_SOURCES = (
    "PATE, GNMax and LNMax: Papernot et al. 2017 (arXiv 1610.05755) and 2018 (arXiv 1802.08908)",
    "Exact composition of Gaussian mechanisms: Dong, Roth and Su 2022, Gaussian Differential "
    "Privacy (arXiv 1905.02383)",
    "Renyi differential privacy: Mironov 2017 (arXiv 1702.07476); its conversion to ε and δ (CKS): "
    "Canonne, Kamath and Steinke 2020 (arXiv 2004.00010)",
    "Budgets for life, which no choice of runs exceeds: Feldman and Zrnic 2021 (arXiv 2008.11193)",
    "Records that vote, with a cap on each patient: Smith and Thakurta 2022 (arXiv 2210.17520)",
    "Stable argmax: Dwork and Lei 2009; Smith and Thakurta 2013",
    "A threshold on the same noisy counts, and the cost of labels alone: proofs in the "
    "documentation of pate_fed",
)


MOST_CLASSES = 12
"""Most classes that the first page names."""

_LONGEST_OPEN = 400
"""Longest entry of the manifest, in letters, that stands open in the page."""


def render_report(run: FinishedRun, *, notes: list[str] | None = None) -> str:
    """Render the report of a run; the same run gives the same bytes.

    The page lists `notes`, of what could not be made of this run, and adds those of pictures
    that cannot be drawn.
    """
    metrics, privacy = run.metrics, run.privacy
    notes = [] if notes is None else notes
    pictures = _pictures(run, notes)
    spec, simulated = spec_of(privacy.mechanism.name), run.is_simulated
    return ENVIRONMENT.get_template("report.html.j2").render(
        run=run,
        m=metrics,
        p=privacy,
        simulated=simulated,
        has_own_data=publication_words.has_own_data(run),
        public_edition=run.manifest.is_public,
        no_edition=editions.no_public_edition(run),
        words=_words(privacy),
        voters=voter_words(records_vote=privacy.do_records_vote),
        classes_text=_classes_text(run),
        files=publication_words.files(run),
        strips=thumbnails.strips_of(run),
        sheet=thumbnails.sheet_address(run),
        sheet_width=SHEET_COLUMNS * SHEET_CELL,
        measured=simulated or metrics.is_measured,
        accuracy_of=partial(quality_words.accuracy_of, metrics),
        e_majority=_majority(metrics.evaluation),
        released=_released(run),
        secrecy=price_words.secrecy_text(privacy, simulated=simulated),
        unit=price_words.unit_text(privacy),
        short_unit=price_words.short_unit(privacy),
        neighbors=privacy.neighboring_definition.rstrip(". "),
        mechanism=spec.title,
        mechanism_text=spec.text(privacy.mechanism.as_json()),
        refused_because=spec.refused_because,
        nobody=NOBODY_IS_PROTECTED,
        price_words=price_words,
        longest_open=_LONGEST_OPEN,
        bars=quality_words.accuracy_bars(metrics),
        judgments=judgments.judgments_of(metrics, privacy),
        alarms=list(map(_unbroken, quality_words.alarms(metrics))),
        sets_text=_unbroken(quality_words.sets_text(metrics)),
        better_models=list(map(_unbroken, quality_words.better_models(metrics))),
        interval_of=quality_words.interval_of,
        classes=_classes(metrics),
        max_confused=MOST_CLASSES,
        max_classes=plots.MAX_CLASSES,
        states=wording.LEDGER_STATES,
        **pictures,
        warnings=[*metrics.warnings, *notes],
        **_manifest_rows(run.manifest),
        settings=list(wording.flatten(run.settings.as_json())),
        effort=_effort(metrics),
        **_sent(run),
        sources=_SOURCES,
    )


def _manifest_rows(manifest: Manifest) -> dict[str, object]:
    """List the manifest; who has the keys of a simulation's split can repeat its draws."""
    table = {name: value for name, value in manifest.as_json().items() if name != "split"}
    if manifest.is_public:
        table = {name: value for name, value in table.items() if value not in (None, [], {})}
    return {
        "manifest": list(wording.flatten(table)),
        "manifest_lists": list(wording.lists_of_tables(table)),
    }


def plain_page(notes: Sequence[str]) -> str:
    """Return a page in place of one that could not be rendered; it needs no template."""
    lines = "".join(f"<li>{escape(note)}</li>\n" for note in notes)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Run</title></head>\n'
        "<body><h1>This page could not be written</h1>\n<p>The run is whole: its labels are in "
        "<code>labels.csv</code>, its cost is in <code>privacy.json</code>. "
        "<code>pate-fed report</code> writes this page anew.</p>\n"
        f"<ul>\n{lines}</ul></body></html>\n"
    )


def _pictures(run: FinishedRun, notes: list[str]) -> dict[str, Markup]:
    """Draw all plots, by their names in the template; one that fails is empty, and noted."""
    plots_of: dict[str, Callable[[], str]] = {
        "classes_plot": lambda: _classes_plot(_classes(run.metrics)),
        "leak_plot": lambda: _leak_plot(run.audit),
    }
    drawn = {}
    for name, draw in plots_of.items():
        try:
            text = draw()
        except Exception as error:  # a picture is no reason to have no report
            text = ""
            notes.append(f"a picture could not be drawn ({name}): {type(error).__name__}")
        drawn[name] = Markup(text)  # noqa: S704 - a plot escapes its texts
    return drawn


_EFFORT: Mapping[str, str] = {
    "closing": "at the end",
    "from_parties": "from all hospitals together",
    "per_batch": "per batch",
    "to_parties": "to all hospitals together",
    "yardsticks": "comparison models",
}


def _effort(metrics: Metrics) -> list[tuple[str, str]]:
    exchanges = metrics.exchanges.as_json() if metrics.exchanges else {}
    rows = [
        (f"{table}: {_EFFORT.get(name, name)}", text)
        for table, content in (("exchanges", exchanges), ("seconds", metrics.seconds))
        for name, text in wording.flatten(content)
    ]
    return rows + [
        (f"bytes: {_EFFORT.get(name, name)}", f"{size:,} ({wording.size_text(size)})")
        for name, size in sorted(metrics.bytes or ())
    ]


def _classes_text(run: FinishedRun) -> str:
    """Name the classes; "" where nobody knows."""
    names = [name for name, _, _ in quality_words.class_rows(run.metrics)]
    names = names or list(run.settings.classes)
    more = f" and {len(names) - MOST_CLASSES} more" if len(names) > MOST_CLASSES else ""
    return ", ".join(names[:MOST_CLASSES]) + more


def _sent(run: FinishedRun) -> dict[str, object]:
    """Say what left the hospitals; "" and nothing where no packet is on record."""
    listed = sent_words.senders(run.sent)
    parties, sent = run.metrics.parties, run.metrics.bytes and run.metrics.bytes.from_parties
    mean = sent / parties if sent and parties else 0
    said = f"{wording.size_text(mean)} on average" if mean else ""
    return {
        "senders": listed,
        "senders_alike": len({one[1:] for one in listed}) == 1,
        "kinds": sent_words.kinds(run),
        "sent_whole": sent_words.is_whole(run),
        "most_listed": sent_words.MOST_LISTED,
        "each": sent_words.each_text(listed) if listed else said,
        "bytes_of_all": sent,
    }


def _majority(evaluation: EvaluationScores | None) -> float | None:
    """Return the share of the most common class among held-out patients."""
    groups = evaluation.by_class if evaluation else {}
    return max((row.share for row in groups.values() if row.share is not None), default=None)


def _words(privacy: Privacy) -> list[tuple[str, str]]:
    """Explain each technical word that the page uses, a sentence each."""
    adder = "each hospital adds" if privacy.at_parties else "the coordinator adds"
    others, tally = "or the coordinator", []
    if privacy.at_aggregators:
        adder, others = "the coordinator and the tally add", "the coordinator, or the tally"
        tally = [
            ("Tally", "a second organization: it checks and adds the votes with the coordinator.")
        ]
    unit = price_words.short_unit(privacy)
    return [
        ("Query", "one public input that the hospitals are asked to label."),
        *voter_words(records_vote=privacy.do_records_vote).explained,
        ("Label", "the class released for a query: the one with the most votes, noise included."),
        (
            "Student",
            "a model that learned from released labels and public inputs, not from records.",
        ),
        *tally,
        (
            "Noise",
            f"random numbers that {adder} to the vote counts, to hide each single vote.",
        ),
        (
            "ε (epsilon)",
            "the privacy cost: a limit on how much released results reveal. Smaller is better.",
        ),
        ("δ (delta)", "the small probability that the promise of ε may fail."),
        ("Unit", f"the records that ε protects as a whole: here {unit}."),
        (
            "Neighbors",
            "the two cases that ε compares: in one all records are as they are, in the other "
            "those of one unit are replaced.",
        ),
        ("View", f"against whom ε holds: the public (all readers), {others}."),
        ("Method", "the mathematics that computed ε."),
        ("Cap, budget", "limits on queries and ε. They are fixed before the run."),
        ("Secret shares, masks", "ways to hide votes so that only the sum of all can be read."),
        ("Batch", "queries that are asked together. A void batch releases nothing."),
    ]


def _classes(metrics: Metrics) -> list[tuple[str, int, int]]:
    rows = quality_words.class_rows(metrics)
    if len(rows) > plots.MAX_CLASSES:  # the plot shows the first ones
        rows.sort(key=lambda row: -row[1] - row[2])
    return rows


def _released(run: FinishedRun) -> list[tuple[str, int]]:
    """Count released labels by class, of all classes that the run had."""
    counts = Counter(label for _, label in run.labels if label)
    known = run.settings.classes
    return [(name, counts[name]) for name in dict.fromkeys((*known, *sorted(counts)))]


def _classes_plot(classes: list[tuple[str, int, int]]) -> str:
    if not classes:
        return ""
    says = "; ".join(f"{name}: {answered} and {refused}" for name, answered, refused in classes)
    return plots.classes_plot(
        classes, summary=f"Bars of queries answered and without an answer. {says}."
    )


def _leak_plot(audit: Audit | None) -> str:
    if audit is None:
        return ""
    says = "; ".join(
        f"{wording.plural(one.asks, 'answer')}: {wording.percent(one.mean_error)}"
        for one in audit.curve
    )
    return plots.leak_plot(audit.curve, summary=f"Mean error of an attacker by answers. {says}.")

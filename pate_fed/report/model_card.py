"""The card of a student: its model, its use, its cost.

A student may be published, and its card with it. So the card says nothing that depends on private
data beyond the released labels: no per-instance number, and no yardstick of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pate_fed import wording
from pate_fed.mechanisms import NOBODY_IS_PROTECTED, spec_of
from pate_fed.report import editions, price_words, quality_words

_SIMULATED = """\
> **Simulated.** This student comes from a rehearsal on one computer. The privacy numbers hold for
> a real run with these settings; they protect no records here.

"""

_NOBODY = f"**{NOBODY_IS_PROTECTED}.**\n\n"
_NO_LIMITS = "- see the known limitations of pate_fed\n"


def render_model_card(
    metrics: Mapping[str, Any], privacy: Mapping[str, Any], settings: Mapping[str, Any]
) -> str:
    """Write the model card of a run's student.

    Args:
        metrics: Content of `metrics.json`.
        privacy: Content of `privacy.json`.
        settings: The resolved settings.

    Returns:
        Markdown; names that came from data are escaped.
    """
    simulated = wording.is_simulated(metrics, privacy)
    parts = [
        "# Student model\n\n",
        _SIMULATED if simulated else "",
        "".join(f"> **{_escape(said)}**\n\n" for said in quality_words.public_alarms(metrics)),
        _what_it_is(metrics, settings),
        _NOBODY if price_words.protects_nobody(privacy) else "",
        _use(settings),
        _accuracy(metrics, privacy),
        _privacy(privacy),
        _limits(metrics, privacy),
        _settings(settings),
    ]
    return "".join(parts).rstrip("\n") + "\n"


def _what_it_is(metrics: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    queries, source = metrics["queries"], _source(settings)
    names = [name for name, _, _ in wording.class_rows(metrics)] or source.get("classes", ())
    classes = ", ".join(map(_escape, names)) or "not listed"
    target = f"- target: {_escape(source['label'])}\n" if source.get("label") else ""
    kind = f"- kind: {_escape(metrics['student']['kind'])}\n" if metrics["student"] else ""
    return (
        f"A classifier trained on {wording.plural(queries['answered'], 'label')} that "
        f"{wording.plural(metrics['parties'], 'hospital')} released together (PATE) for public "
        f"inputs. It has seen no private records.\n\n"
        f"{target}- classes: {classes}\n{kind}"
        f"- queries: {queries['asked']:,} asked, {queries['answered']:,} answered, "
        f"{queries['refused']:,} without an answer\n"
        f"- teachers: {metrics['teachers']:,}, each trained on records of its own\n\n"
    )


def _source(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    source = settings.get("source")
    return source if isinstance(source, Mapping) else {}


def _accuracy(metrics: Mapping[str, Any], privacy: Mapping[str, Any]) -> str:
    rows = [("student, on held-out public test inputs", quality_words.accuracy_text(metrics))]
    if held_out := quality_words.held_out_text(metrics, privacy):
        rows.append(("student, on patients whom hospitals kept back", held_out))
    rows.append(("released labels", quality_words.labels_text(metrics)))
    lines = "".join(f"| {name} | {text} |\n" for name, text in rows)
    return f"## Accuracy\n\n| model | accuracy |\n| --- | --- |\n{lines}\n{_by_class(metrics)}"


def _by_class(metrics: Mapping[str, Any]) -> str:
    rows, scores = quality_words.by_class(metrics), metrics["scores"]["student"]
    if not rows:
        return ""
    lines = "".join(
        f"| {_escape(row.name)} | {row.records:,} | {_share(row.recall, row.recall_interval)} | "
        f"{_share(row.precision, row.precision_interval)} |\n"
        for row in rows
    )
    return (
        "| class | test inputs | found (recall) | right when said (precision) |\n"
        f"| --- | --- | --- | --- |\n{lines}\n"
        "In brackets: 95 % intervals. The student also states how sure it is of each answer. This "
        f"probability is off by {wording.percent(scores['calibration_error'])} on average: do not "
        "use it as a patient's risk.\n\n"
    )


def _share(share: float | None, interval: Sequence[float] | None) -> str:
    if share is None:
        return "none"
    return f"{wording.percent(share)} ({quality_words.span_text(interval)})"


def _privacy(privacy: Mapping[str, Any]) -> str:
    public = privacy["views"]["public"]["formal"]
    operator = privacy["views"]["coordinator"]["formal"]
    removal, not_covered = price_words.removal_text(privacy), price_words.not_covered(privacy)
    spec = spec_of(privacy["mechanism"]["name"])
    rows = [
        ("epsilon", _rounded_up(public["epsilon"])),
        ("delta", wording.delta_text(privacy["delta"])),
        ("privacy unit", wording.unit_text(privacy)),
        ("neighbors", privacy["neighboring_definition"]),
        ("view", "public: all who see the released labels, this model included"),
        ("method", f"{public['method']}; holds for {public['holds_for']}"),
        *([("had a hospital cast no vote", removal)] if removal else []),
        *([("not covered", not_covered)] if not_covered else []),
        (
            "coordinator's view",
            "no epsilon: you must trust it"
            if operator["epsilon"] is None
            else f"epsilon {wording.epsilon_text(operator['epsilon'])} ({operator['method']})",
        ),
        (
            "mechanism",
            f"{spec.title}. {spec.text(privacy['mechanism'])}",
        ),
        ("noise", f"at the {privacy['noise']['place']}; source: {privacy['noise']['source']}"),
        ("in words", privacy["guarantee"]),
        ("trust", privacy["threat_model"]),
    ]
    lines = "".join(f"| {name} | {_escape(text)} |\n" for name, text in rows)
    return f"## Privacy\n\n| item | value |\n| --- | --- |\n{lines}\n"


def _rounded_up(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{wording.epsilon_text(epsilon)}, rounded up"


def _use(settings: Mapping[str, Any]) -> str:
    purpose = settings.get("purpose")
    stated = (
        _escape(purpose) if purpose else "nobody stated one; state it before you use this model"
    )
    return (
        f"## Use\n\n- purpose: {stated}\n"
        "- intended: research on inputs like the public inputs that the student learned from\n"
        "- not for: decisions about a patient (it is no medical device); other columns, units, "
        "devices or patient groups\n"
        "- first: test it on your own patients, class by class\n\n"
    )


def _limits(metrics: Mapping[str, Any], privacy: Mapping[str, Any]) -> str:
    known = [
        f"it learned from {wording.plural(metrics['queries']['answered'], 'label')}, and some of "
        "them may be wrong: noise was added on purpose",
        "it knows public inputs and released labels only: on groups of patients that are rare "
        "there it may be wrong more often",
    ]
    if metrics["scores"]["student"] is None:
        known.append("nobody measured its accuracy")
    limits = "".join(f"- {one}\n" for one in known)
    gaps = "".join(f"- {_escape(limit)}\n" for limit in privacy["unprotected"])
    return f"## Known limits\n\n{limits}\n## Not protected\n\n{gaps or _NO_LIMITS}\n"


def _settings(settings: Mapping[str, Any]) -> str:
    """List the settings that anybody may see: a card goes where its student goes."""
    allowed = editions.PUBLIC | editions.PUBLIC_WITH_POOL
    rows = "".join(
        f"| {_escape(name)} | {_escape(text)} |\n"
        for name, text in wording.flatten(_chosen(settings))
        if editions.is_listed(f"run.{name}", allowed)
    )
    return f"## Settings\n\n| setting | value |\n| --- | --- |\n{rows}"


def _chosen(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings that are None: they do not apply."""
    return {
        name: _chosen(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if value is not None
    }


def _escape(text: object) -> str:
    """Keep a text a text: no markup, no new cell, no new line."""
    flat = "".join(letter if letter.isprintable() else " " for letter in str(text))
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#" else letter for letter in flat)

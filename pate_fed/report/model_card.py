"""The card of a student: its model, its use, its cost.

A student may be published, and its card with it. So the card says nothing that depends on private
data beyond the released labels: no per-instance number, and no yardstick of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pate_fed import wording
from pate_fed.mechanisms import NOBODY_IS_PROTECTED, spec_of
from pate_fed.report import price_words, quality_words

_SIMULATED = """\
> **Simulated.** This student comes from a rehearsal on one computer. A real run with these
> settings would have the same privacy numbers, but here they protect no records.

"""

_NOBODY = f"**{NOBODY_IS_PROTECTED}.**\n\n"
_NO_LIMITS = "- see the known limitations of pate_fed\n"
_LOCAL = ("out", "dir", "file")


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
        _what_it_is(metrics),
        _NOBODY if price_words.protects_nobody(privacy) else "",
        _accuracy(metrics),
        _privacy(privacy),
        _use(),
        _limits(privacy),
        _settings(settings),
    ]
    return "".join(parts).rstrip("\n") + "\n"


def _what_it_is(metrics: Mapping[str, Any]) -> str:
    queries = metrics["queries"]
    classes = ", ".join(_escape(name) for name, _, _ in wording.class_rows(metrics)) or "not listed"
    return (
        f"A classifier trained on {wording.plural(queries['answered'], 'label')} that "
        f"{wording.plural(metrics['parties'], 'hospital')} released together with PATE, and on "
        f"public inputs. It has seen no private records.\n\n"
        f"- classes: {classes}\n"
        f"- queries: {queries['asked']:,} asked, {queries['answered']:,} answered, "
        f"{queries['refused']:,} without an answer\n"
        f"- teachers: {metrics['teachers']:,}, each trained on records that no other one has\n\n"
    )


def _accuracy(metrics: Mapping[str, Any]) -> str:
    scores = metrics["scores"]["student"]
    rows = [("student, on held-out public test inputs", quality_words.accuracy_text(metrics))]
    if scores is not None:
        rows.append(("the same", quality_words.ranking_text(scores)))
    rows.append(("released labels", wording.percent(metrics["accuracy"]["labels"])))
    lines = "".join(f"| {name} | {text} |\n" for name, text in rows)
    return f"## Accuracy\n\n| model | accuracy |\n| --- | --- |\n{lines}\n{_by_class(metrics)}"


def _by_class(metrics: Mapping[str, Any]) -> str:
    rows = quality_words.by_class(metrics)
    if not rows:
        return ""
    lines = "".join(
        f"| {_escape(row.name)} | {row.records:,} | {_share(row.recall)} | "
        f"{_share(row.precision)} |\n"
        for row in rows
    )
    return f"| class | test inputs | recall | precision |\n| --- | --- | --- | --- |\n{lines}\n"


def _share(share: float | None) -> str:
    return "none" if share is None else wording.percent(share)


def _privacy(privacy: Mapping[str, Any]) -> str:
    public = privacy["views"]["public"]["formal"]
    operator = privacy["views"]["coordinator"]["formal"]
    assumption = price_words.assumption(privacy)
    row_sums = price_words.row_sums_kept(privacy)
    not_covered = price_words.not_covered(privacy)
    price, method = price_words.price(privacy), price_words.formal_method(privacy)
    spec = spec_of(privacy["mechanism"]["name"])
    rows = [
        ("epsilon", _rounded_up(public["epsilon"])),
        ("delta", wording.delta_text(privacy["delta"])),
        ("privacy unit", wording.unit_text(privacy)),
        ("neighbors", privacy["neighboring_definition"]),
        ("view", "public: all who see the released labels, this model included"),
        ("method", f"{method}; holds for {public['holds_for']}"),
        ("charged", f"{price.name}: {price.charges}"),
        *([("assumes", assumption)] if assumption else []),
        *([("holds if", row_sums)] if row_sums else []),
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


def _use() -> str:
    return (
        "## Use\n\n"
        "For research on inputs like the public ones it was tested on. It is no medical device: "
        "do not decide about a patient with it. Test it on your own data first.\n\n"
    )


def _limits(privacy: Mapping[str, Any]) -> str:
    limits = "".join(f"- {_escape(limit)}\n" for limit in privacy["unprotected"])
    return f"## Not protected\n\n{limits or _NO_LIMITS}\n"


def _settings(settings: Mapping[str, Any]) -> str:
    rows = "".join(
        f"| {_escape(name)} | {_escape(text)} |\n"
        for name, text in wording.flatten(_chosen(settings))
        if not name.endswith(_LOCAL)  # paths tell about a machine, not about the student
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

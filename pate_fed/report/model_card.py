"""The card of a student: its model, its use, its cost.

A student may be published, and its card with it. So the card says nothing that depends on private
data beyond the released labels: no per-instance number, and no yardstick of the run.
"""

from __future__ import annotations

from pate_fed import wording
from pate_fed.class_shares import ENOUGH_RECORDS
from pate_fed.mechanisms import NOBODY_IS_PROTECTED, spec_of
from pate_fed.record import Metrics, Privacy, Settings
from pate_fed.report import price_words, quality_words
from pate_fed.report.voter_words import voter_words

_SIMULATED = """\
> **Simulated.** This student comes from a rehearsal on one computer. The privacy numbers hold for
> a real run with these settings; they protect no records here.

"""

_NOBODY = f"**{NOBODY_IS_PROTECTED}.**\n\n"
_LARGE_TEACHERS = (
    f"; one with at least {ENOUGH_RECORDS} records and no rare class names each as often as it saw "
    "it"
)
_SHIFTED = (
    "A label in `labels.csv` is no diagnosis. It means: more noisy votes for this class than the "
    "other queries of its batch got. Noisy counts are shifted so that each class wins about "
    "equally often.\n\n"
)
_NO_LIMITS = "- see the known limitations of pate_fed\n"


def render_model_card(metrics: Metrics, privacy: Privacy, settings: Settings) -> str:
    """Write the model card of a run's student, as Markdown; names from data are escaped."""
    simulated = metrics.simulated or privacy.simulated
    parts = [
        "# Student model\n\n",
        _SIMULATED if simulated else "",
        "".join(f"> **{_escape(said)}**\n\n" for said in quality_words.public_alarms(metrics)),
        _what_it_is(metrics, privacy, settings),
        _NOBODY if privacy.protects_nobody else "",
        _use(settings),
        _accuracy(metrics, privacy, settings),
        _privacy(privacy),
        _limits(metrics, privacy),
        _settings(settings),
    ]
    return "".join(parts).rstrip("\n") + "\n"


def _what_it_is(metrics: Metrics, privacy: Privacy, settings: Settings) -> str:
    queries, voters = metrics.queries, voter_words(records_vote=privacy.do_records_vote)
    names = [name for name, _, _ in quality_words.class_rows(metrics)] or settings.classes
    classes = ", ".join(map(_escape, names)) or "not listed"
    target = f"- target: {_escape(settings.target)}\n" if settings.target else ""
    kind = f"- kind: {_escape(metrics.student.kind)}\n" if metrics.student else ""
    return (
        f"A classifier trained on {wording.plural(queries.answered, 'label')} that "
        f"{wording.plural(metrics.parties, 'hospital')} released together (PATE) for public "
        f"inputs. It has seen no private records.\n\n"
        f"{target}- classes: {classes}\n{kind}"
        f"- queries: {queries.asked:,} asked, {queries.answered:,} answered, "
        f"{queries.refused:,} without an answer\n"
        f"- {voters.noun}s: {metrics.teachers:,}, {voters.each}\n\n"
    )


def _accuracy(metrics: Metrics, privacy: Privacy, settings: Settings) -> str:
    rows = [("student, on held-out public test inputs", quality_words.accuracy_text(metrics))]
    scores = metrics.scores.student
    for name, one in ((scores and scores.by_label) or {}).items():
        rows.append((f"of it, {_escape(name)}", quality_words.ranking_text(one)))
    if held_out := quality_words.held_out_text(metrics, privacy):
        rows.append(("student, on patients whom hospitals kept back", held_out))
    rows.append(("released labels", quality_words.labels_text(metrics)))
    lines = "".join(f"| {name} | {text} |\n" for name, text in rows)
    return (
        f"## Accuracy\n\n| model | accuracy |\n| --- | --- |\n{lines}\n"
        f"{_meaning(metrics, privacy, settings)}{_by_class(metrics)}{_sets(metrics)}"
    )


def _meaning(metrics: Metrics, privacy: Privacy, settings: Settings) -> str:
    """Say what a released label of a table means: votes are shared out over the classes."""
    is_table = bool(settings.target or (metrics.data and metrics.data.columns))
    if not is_table or settings.class_balance == "natural":
        return ""
    if privacy.do_records_vote:
        return "" if spec_of(privacy.mechanism.name).may_refuse else _SHIFTED
    named = (
        "ranked above the median of the public pool"
        if len(metrics.per_class) == 2
        else "among the rows of the public pool that rank highest for this class"
    )
    return (
        f"A label in `labels.csv` is no diagnosis. It means: {named}, by most teachers and noise. "
        "Each teacher names all classes for equal shares of the public pool"
        f"{'' if settings.class_balance == 'equal' else _LARGE_TEACHERS}.\n\n"
    )


def _by_class(metrics: Metrics) -> str:
    scores = metrics.scores.student
    if scores is None or not scores.per_class:
        return ""
    lines = "".join(
        f"| {_escape(name)} | {row.records:,} | {_share(row.recall, row.records)} | "
        f"{_share(row.precision, row.decided)} |\n"
        for name, row in scores.per_class.items()
    )
    return (
        "| class | test inputs | found (recall) | right when said (precision) |\n"
        f"| --- | --- | --- | --- |\n{lines}\n"
        "In brackets: 95 % intervals. The student also states how sure it is of each answer. This "
        f"probability is off by {wording.percent(scores.calibration_error)} on average: do not "
        "use it as a patient's risk.\n\n"
    )


def _sets(metrics: Metrics) -> str:
    sets = metrics.student.sets if metrics.student else None
    if sets is None:
        return ""
    scores = metrics.scores.student
    by_class = (
        []
        if scores is None or not scores.per_class
        else [
            f"{_escape(name)} {_share(row.covered, row.records)}"
            for name, row in scores.per_class.items()
        ]
    )
    return (
        f"Sets of classes: {quality_words.sets_text(metrics)}. "
        f"A class is in a set if its probability is {sets.least_chance:.6g} or more, or the "
        "largest. This says nothing of one class alone"
        f"{': true class in its set, ' + '; '.join(by_class) if by_class else ''}.\n\n"
    )


def _share(share: float | None, records: int) -> str:
    if share is None:
        return "none"
    interval = quality_words.interval_of(share, records)
    return f"{wording.percent(share)} ({quality_words.span_text(interval)})"


def _privacy(privacy: Privacy) -> str:
    public = privacy.views.public
    operator = privacy.views.coordinator
    removal, not_covered = price_words.removal_text(privacy), privacy.views.public.not_covered
    spec = spec_of(privacy.mechanism.name)
    rows = [
        ("epsilon", _rounded_up(public.epsilon)),
        ("delta", wording.delta_text(privacy.delta)),
        ("privacy unit", price_words.unit_text(privacy)),
        ("neighbors", privacy.neighboring_definition),
        ("view", "public: all who see the released labels, this model included"),
        ("method", f"{public.method}; holds for {public.holds_for}"),
        *([("had a hospital cast no vote", removal)] if removal else []),
        *([("not covered", not_covered)] if not_covered else []),
        (
            "coordinator's view",
            "no epsilon: you must trust it"
            if operator.epsilon is None
            else f"epsilon {wording.epsilon_text(operator.epsilon)} ({operator.method})",
        ),
        *(
            []
            if privacy.views.tally is None
            else [("tally's view", "as the coordinator's: it sees the same noisy counts")]
        ),
        (
            "mechanism",
            f"{spec.title}. {spec.text(privacy.mechanism.as_json())}",
        ),
        ("noise", f"at the {privacy.noise.place}; source: {privacy.noise.source}"),
        ("in words", privacy.guarantee),
        ("trust", privacy.threat_model),
    ]
    lines = "".join(f"| {name} | {_escape(text)} |\n" for name, text in rows)
    return f"## Privacy\n\n| item | value |\n| --- | --- |\n{lines}\n"


def _rounded_up(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{wording.epsilon_text(epsilon)}, rounded up"


def _use(settings: Settings) -> str:
    purpose = settings.purpose
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


def _limits(metrics: Metrics, privacy: Privacy) -> str:
    known = [
        f"it learned from {wording.plural(metrics.queries.answered, 'label')}, and some of "
        "them may be wrong: noise was added on purpose",
        "it knows public inputs and released labels only: on groups of patients that are rare "
        "there it may be wrong more often",
    ]
    if metrics.scores.student is None:
        known.append("nobody measured its accuracy")
    limits = "".join(f"- {one}\n" for one in known)
    gaps = "".join(f"- {_escape(limit)}\n" for limit in privacy.unprotected)
    return f"## Known limits\n\n{limits}\n## Not protected\n\n{gaps or _NO_LIMITS}\n"


def _settings(settings: Settings) -> str:
    """List the settings that anybody may see: a card goes where its student goes."""
    rows = "".join(
        f"| {_escape(name)} | {_escape(text)} |\n"
        for name, text in wording.flatten(settings.public_edition(with_pool=True).as_json())
    )
    return f"## Settings\n\n| setting | value |\n| --- | --- |\n{rows}"


def _escape(text: object) -> str:
    """Keep a text a text: no markup, no new cell, no new line."""
    flat = "".join(letter if letter.isprintable() else " " for letter in str(text))
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#" else letter for letter in flat)

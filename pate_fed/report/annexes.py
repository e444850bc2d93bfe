"""Two annexes for the controller: a data-protection impact assessment, and an EHDS-style one.

What the run knows is filled in; every other field is blank and marked. Each annex fits a page.
"""

from __future__ import annotations

from typing import NamedTuple

from pate_fed import wording
from pate_fed.record.privacy import Output
from pate_fed.report import html, price_words, quality_words, sent_words
from pate_fed.report.run_directory import FinishedRun

_MOST_NAMED = 8
"""Most hospitals that an annex names: it has to fit a page."""


class Field(NamedTuple):
    """One field of an annex.

    Attributes:
        known: What the run knows of it; "" for nothing.
        blank: What the controller must add; "" for nothing.
    """

    question: str
    known: str
    blank: str = ""


class Risk(NamedTuple):
    """A risk to patients, what limits it, and the rest of it."""

    risk: str
    limit: str
    rest: str


def render_annexes(run: FinishedRun) -> str:
    """Render the annexes of a run; the same run gives the same bytes."""
    return html.ENVIRONMENT.get_template("annexes.html.j2").render(
        simulated=run.is_simulated,
        public_edition=run.manifest.is_public,
        begun_on=run.manifest.begun_on,
        run_id=run.manifest.run_id,
        assessment=_assessment(run),
        risks=_risks(run),
        health_data=_health_data(run),
    )


def _assessment(run: FinishedRun) -> list[Field]:
    """Answer Art. 35(7) (a), (b) and (d) of the GDPR; `_risks` answers (c)."""
    purpose = run.settings.purpose or ""
    return [
        Field("Controllers (Art. 26)", _hospitals(run), "names, contact, agreement"),
        Field("Processors (Art. 28)", "the coordinator, a server that relays messages, adds the "
              "votes up and trains the student", "its operator, contract"),
        Field("Purpose", purpose, "" if purpose else "purpose, legitimate interest"),
        Field("Legal basis (Art. 6, 9(2), 89)", "", "e.g. Art. 9(2)(j) and national law"),
        Field("What is done", _processing(run)),
        Field("Data and data subjects", _data(run), "categories, number of patients, period"),
        Field("Recipients", "; ".join(f"{one.output}: {one.seen_by}" for one in _seen(run))),
        Field("Storage and deletion", "the hospitals keep records and teachers; the coordinator "
              "keeps labels, student, and fingerprints, keys and signatures of messages",
              "periods"),
        Field("Third countries (Art. 44)", "", "none, or which"),
        Field("Necessity, proportionality", "records are not pooled: hidden votes on public "
              "inputs, keys and signatures leave a hospital; the budget is fixed before the run",
              "why less would not do"),
        Field("Rights of data subjects", "a hospital can erase a patient and train again; released "
              "labels cannot be taken back", "information, objection, opt-out"),
        Field("Measures (d)", _measures(run), "organizational measures"),
        Field("Advice of the data-protection officer (Art. 35(2)); prior consultation (Art. 36)",
              "", "advice, date; needed or not, why"),
    ]  # fmt: skip


def _risks(run: FinishedRun) -> list[Risk]:
    """Answer Art. 35(7)(c)."""
    at_parties, verified = run.privacy.at_parties, run.privacy.at_aggregators
    return [
        Risk("A reader of labels or student learns about a patient", _cost(run),
             f"δ = {wording.delta_text(run.privacy.delta)}; general facts about patients"),
        Risk("The coordinator learns exact sums of votes",
             "the coordinator and the tally add noise each, and neither holds a sum without the "
             "other's" if verified else
             "each hospital adds noise before anything leaves it" if at_parties else
             "votes are hidden: it sees those of one hospital only if all teachers agree, or if "
             "too many other hospitals collude with it"
             if run.privacy.sum != "plain" else
             "nothing: it saw all votes",
             "both together" if verified else
             "colluding hospitals" if at_parties else "no ε holds against it: contract, audit"),
        Risk("Messages are intercepted or changed", "TLS, signatures, a chain of fingerprints",
             "who sent how much, and when"),
        Risk("A wrong label or student harms a patient", _quality(run),
             "it is no medical device; test it on own patients"),
        Risk("The same records are used again", "each hospital keeps one budget for all runs",
             "other systems that the budget does not know"),
    ]  # fmt: skip


def _health_data(run: FinishedRun) -> list[Field]:
    """Describe the use as an application under the European Health Data Space asks for it."""
    return [
        Field("Applicant, health data user", "", "name, contact, affiliation"),
        Field("Data holders", _hospitals(run), "contacts"),
        Field("Permit, request (Art. 67 to 69)", "", "number, date, access body"),
        Field("Purpose (Art. 53)", run.settings.purpose or "", "which item of Art. 53(1)"),
        Field("Prohibited uses (Art. 54)", "the card forbids decisions about a person with the "
              "student", "confirm"),
        Field("Legal basis", "", "GDPR Art. 6, 9(2); national law; ethics approval"),
        Field("Data sets (Art. 77)", _data(run), "catalogue entry, period, population, quality"),
        Field("Minimization (Art. 66)", "records stay at the hospital; labels of public inputs and "
              "a student that learned from them leave the federation", "why these columns"),
        Field("Opt-out (Art. 71)", "", "how patients who opted out were left out before training"),
        Field("Processing environment (Art. 73)", "each hospital computes at home; the coordinator "
              "gets hidden votes" if run.privacy.sum != "plain" else
              "each hospital computes at home; the coordinator gets votes in the clear",
              "environment, who had access"),
        Field("Safeguards", _measures(run)),
        Field("Output", f"{wording.plural(run.metrics.queries.answered, 'label')} and "
              f"{wording.plural(run.metrics.queries.refused, '“no answer”', '“no answer”s')} "
              "for public inputs; a student; no record, no count of patients"),
        Field("Output check", f"{_cost(run)}. Public edition: made from a list of allowed fields",
              "who checked, date, released or not"),
        Field("Publication (Art. 61)", "the report in its public edition; the student's card",
              "where, when"),
        Field("Remaining risk", f"{wording.plural(len(run.privacy.unprotected), 'gap')} in the "
              "report's section “What remains risky”", "accepted by, date"),
    ]  # fmt: skip


def _hospitals(run: FinishedRun) -> str:
    count = wording.plural(run.metrics.parties, "hospital")
    if run.is_simulated:
        return f"{count}, made up: a rehearsal"
    names = [party.party for party in run.privacy.parties]
    more = " and others (privacy.json: parties)" if len(names) > _MOST_NAMED else ""
    return f"{count}: {', '.join(names[:_MOST_NAMED])}{more}"


def _processing(run: FinishedRun) -> str:
    queries, listed = run.metrics.queries, sent_words.senders(run.sent)
    sent = f" Each hospital sent {sent_words.each_text(listed)} (sent.csv)." if listed else ""
    learns = "A student learns from them." if run.metrics.student else "No model learned."
    return (
        f"Each hospital trains models (teachers) on its records, {run.metrics.teachers:,} in "
        f"all. They vote on {queries.asked:,} public inputs; the sum of all votes gets noise, "
        f"and {wording.plural(queries.answered, 'label')} came out. "
        f"{learns}{sent}"
    )


def _data(run: FinishedRun) -> str:
    label, data = run.settings.target, run.metrics.data
    counted = (
        f"{wording.plural(data.patients.private, 'patient')}, "
        f"{wording.plural(data.records.private, 'record')}"
        if data
        else "records of patients; their number is known to each hospital alone"
    )
    return f"{counted}{f'; target: {label}' if label else ''}"


def _seen(run: FinishedRun) -> list[Output]:
    return [one for one in run.privacy.outputs if "nobody" not in one.seen_by]


def _cost(run: FinishedRun) -> str:
    privacy = run.privacy
    if privacy.views.public.epsilon is None:
        return "no finite ε holds"
    return (
        f"ε = {wording.epsilon_text(privacy.views.public.epsilon)}, "
        f"δ = {wording.delta_text(privacy.delta)}; unit {price_words.short_unit(privacy)}, "
        "neighbors differ in these records alone; "
        f"public view; method {price_words.headline_method(privacy)}"
    )


def _measures(run: FinishedRun) -> str:
    privacy = run.privacy
    place = "each hospital" if privacy.at_parties else "the coordinator"
    if privacy.at_aggregators:
        place = "the coordinator and at the tally"
    return (
        f"{_cost(run)}; noise added at {place}; "
        f"secure sum: {privacy.sum}; each hospital decides on each run by its policy, and keeps "
        "an audit log; signed transcript"
    )


def _quality(run: FinishedRun) -> str:
    if run.metrics.scores.student is None:
        return "nothing: its accuracy was not measured"
    return f"accuracy {quality_words.accuracy_text(run.metrics)}"

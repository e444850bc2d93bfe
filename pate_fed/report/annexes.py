"""Two annexes for the controller: a data-protection impact assessment, and an EHDS-style one.

What the run knows is filled in; every other field is blank and marked. Each annex fits a page.
"""

from __future__ import annotations

from typing import NamedTuple

from pate_fed import wording
from pate_fed.record import Privacy
from pate_fed.record.privacy import Output
from pate_fed.report import html, price_words, quality_words, sent_words
from pate_fed.report.run_directory import FinishedRun
from pate_fed.report.voter_words import VoterWords, voter_words

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
    purpose, signed = run.settings.purpose or "", bool(run.manifest.transcript_head)
    return [
        Field("Controllers (Art. 26)", _hospitals(run), "names, contact, agreement"),
        _processors(run),
        Field("Purpose", purpose, "" if purpose else "purpose, legitimate interest"),
        Field("Legal basis (Art. 6, 9(2), 89)", "", "e.g. Art. 9(2)(j) and national law"),
        Field("What is done", _processing(run)),
        Field("Data and data subjects", _data(run), "categories, number of patients, period"),
        Field("Recipients", "; ".join(f"{one.output}: {one.seen_by}" for one in _seen(run))),
        Field("Storage and deletion", f"the hospitals keep {_voters(run).kept}; the coordinator "
              f"keeps labels, student and fingerprints of messages{_SIGNED if signed else ''}"
              f"{_SEALED if signed and run.privacy.at_aggregators else ''}",
              "periods"),
        Field("Third countries (Art. 44)", "", "none, or which"),
        Field("Necessity, proportionality", "records are not pooled: hidden votes on public "
              "inputs, keys and signatures leave a hospital; the budget is fixed before the run",
              "why less would not do"),
        Field("Rights of data subjects", f"{_voters(run).erased}; released labels cannot be taken "
              "back", "information, objection, opt-out"),
        Field("Measures (d)", _measures(run), "organizational measures"),
        Field("Advice of the data-protection officer (Art. 35(2)); prior consultation (Art. 36)",
              "", "advice, date; needed or not, why"),
    ]  # fmt: skip


def _risks(run: FinishedRun) -> list[Risk]:
    """Answer Art. 35(7)(c)."""
    at_parties, verified = run.privacy.at_parties, run.privacy.at_aggregators
    chained = ", a chain of fingerprints" if run.manifest.transcript_head else ""
    return [
        Risk("A reader of labels or student learns about a patient", _cost(run),
             f"δ = {wording.delta_text(run.privacy.delta)}; general facts about patients"),
        Risk(f"The coordinator {'or the tally ' if verified else ''}learns exact sums of votes",
             "the coordinator and the tally add noise each, and neither holds a sum without the "
             "other's" if verified else
             "each hospital adds noise before anything leaves it" if at_parties else
             f"{_voters(run).exact_sum} Votes of one hospital are hidden unless too many other "
             "hospitals collude with it"
             if run.privacy.sum != "plain" else
             "nothing: it saw all votes",
             "both together learn every vote" if verified else
             "colluding hospitals" if at_parties else "no ε holds against it: contract, audit"),
        Risk("Messages are intercepted or changed", f"TLS, signatures{chained}",
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
        Field("Opt-out (Art. 71)", "", "how patients who opted out were left out before any vote"),
        Field("Processing environment (Art. 73)", "each hospital computes at home; "
              f"{_receiver(run.privacy)}",
              "environment, who had access"),
        Field("Safeguards", _measures(run)),
        Field("Output", f"{wording.plural(run.metrics.queries.answered, 'label')} and "
              f"{wording.plural(run.metrics.queries.refused, '“no answer”', '“no answer”s')} "
              f"for public inputs; a student; no record{_COUNTS[run.privacy.do_records_vote]}"),
        Field("Output check", f"{_cost(run)}. Public edition: made from a list of allowed fields",
              "who checked, date, released or not"),
        Field("Publication (Art. 61)", "the report in its public edition; the student's card",
              "where, when"),
        Field("Remaining risk", f"{wording.plural(len(run.privacy.unprotected), 'gap')} in the "
              "report's section “What remains risky”", "accepted by, date"),
    ]  # fmt: skip


_SIGNED = ", with keys and signatures"
_SEALED = "; it and the tally keep sealed votes and keys for an audit, then erase them"
_DECIDED = (
    "each hospital decides on each run by its policy, and keeps an audit log; signed transcript"
)
_UNDECIDED = "no transcript: nothing is signed"
_COUNTS = {
    False: ", no count of patients",
    True: "; the number of each hospital's patients, which is that of its votes",
}
"""What leaves of numbers of patients, by whether records vote."""


def _voters(run: FinishedRun) -> VoterWords:
    return voter_words(records_vote=run.privacy.do_records_vote)


def _processors(run: FinishedRun) -> Field:
    does = "a server that relays messages, adds the votes up and trains the student"
    if run.privacy.at_aggregators:
        return Field(
            "Processors (Art. 28)",
            f"the coordinator, {does}; the tally, a server of a second organization that checks "
            "and adds the votes with it",
            "both operators, contracts",
        )
    return Field("Processors (Art. 28)", f"the coordinator, {does}", "its operator, contract")


def _receiver(privacy: Privacy) -> str:
    if privacy.sum == "plain":
        return "the coordinator gets votes in the clear"
    if privacy.at_aggregators:
        return "the coordinator and the tally get one part of the votes each"
    return "the coordinator gets hidden votes"


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
    voters = _voters(run)
    return (
        f"{voters.voted} There were {wording.plural(run.metrics.teachers, voters.noun)} and "
        f"{wording.plural(queries.asked, 'query', 'queries')} (public inputs). The sum of all "
        f"votes got noise, and {wording.plural(queries.answered, 'label')} came out. {learns}{sent}"
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
        f"secure sum: {privacy.sum}; {_DECIDED if run.manifest.transcript_head else _UNDECIDED}"
    )


def _quality(run: FinishedRun) -> str:
    if run.metrics.scores.student is None:
        return "nothing: its accuracy was not measured"
    return f"the student on test inputs: {quality_words.accuracy_text(run.metrics)}"

"""What must hold after any failure, checked on what both sides can show.

No charge lost, none doubled, no query answered twice with fresh noise, and a run that ends or waits
with a reason that `status` shows. What was said on the wire is the witness against both ledgers:
hospitals write it down as it comes and before it goes, outside of anything that they rely on.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import click

from coordinator.cli.runs import status
from coordinator.operator import Coordinator
from coordinator.runs.queue import ENDED, Run, RunState
from coordinator.runs.request import RunRequest
from pate_fed.accounting import EntryState, Outcomes, PrivacyLedger
from pate_fed.charges import lifelong_charge, outcomes_of
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import FORMAT
from pate_fed.releases import NoisyRelease, Outcome
from pate_fed.terms import BatchTerms, RunTerms
from protocols import wire
from protocols.errors import ProtocolError
from protocols.forms import FORMS
from protocols.messages import (
    Certificate,
    MaskedVector,
    Plan,
    Ready,
    Reveal,
    Settlement,
    ShareBundle,
    Verdict,
)
from protocols.transcript_verifier import verify_transcript
from protocols.values import decode_value
from protocols.vote_messages import ReportHeader, VoteReport
from tests.support.federation import messages


class Fault(StrEnum):
    """What a failure may not do."""

    LOST = "a charge is lost"
    DOUBLED = "a charge is doubled"
    AGAIN = "a query is answered twice"
    LABELS = "labels are not what was released"
    BACK = "a journal went back"
    SILENT = "a run does not say where it stands"
    STORY = "a transcript does not hold"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that does not hold."""

    fault: Fault
    what: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.what}"


@dataclass(frozen=True, slots=True)
class HospitalSeen:
    """What a hospital shows, and what went in and out at its door over all its lives.

    Attributes:
        name: What people call it.
        ledger: What it was charged for life.
        exchanges: Packets that came, in order, and what it gave away for each, or was about to;
            empty where it died before.
        voted: Digests of the plans that its teachers were asked for, in order.
    """

    name: str
    ledger: PrivacyLedger
    exchanges: tuple[tuple[bytes, bytes], ...]
    voted: tuple[bytes, ...]

    @property
    def sent(self) -> Iterator[Any]:
        """All messages that it gave away."""
        for _, packet in self.exchanges:
            yield from messages_in(packet)


@dataclass(frozen=True, slots=True)
class RunSeen:
    """What a coordinator shows of a run.

    Attributes:
        run: As the queue has it.
        shown: As `pate-fed status` shows it, as text.
        table: As it shows it, as JSON.
        labels: Released classes by query, as exported; None if there is nothing to export.
        batches: States of its ledger's entries, as exported.
        transcript: As exported; empty if there is none.
    """

    run: Run
    request: RunRequest
    shown: str
    table: dict[str, Any]
    labels: Mapping[int, int] | None = None
    batches: tuple[str, ...] = ()
    transcript: str = ""


@dataclass(frozen=True)
class Seen:
    """A federation after whatever happened to it.

    Attributes:
        form: Its secure sum.
        hospitals: All of them.
        runs: All of them; of one pool one, if their costs are to be looked at.
        forgotten: Plans that a coordinator from a backup cannot know.
    """

    form: str
    hospitals: tuple[HospitalSeen, ...]
    runs: tuple[RunSeen, ...]
    forgotten: frozenset[bytes] = frozenset()

    @cached_property
    def said(self) -> Said:
        """What was said on the wire."""
        return Said.of(self.hospitals)


@dataclass
class Said:
    """Everything on the wire, by plan.

    Attributes:
        plans: Terms by digest, in the order that they were heard.
        vectors: The y's, or the reports, by plan and hospital.
        heard: Plans that each hospital received.
        settlements: State and result as each plan was settled.
        closed: Plans that were settled as void with a proof that their sums never open.
        reveals: Hospitals that revealed for a plan.
        verdicts: Sets that each hospital agreed to, by plan and hospital; none to close the plan.
    """

    plans: dict[bytes, BatchTerms] = field(default_factory=dict)
    vectors: dict[tuple[bytes, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    heard: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    settlements: dict[bytes, set[tuple[str, bytes]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    closed: set[bytes] = field(default_factory=set)
    reveals: dict[bytes, set[str]] = field(default_factory=lambda: defaultdict(set))
    verdicts: dict[tuple[bytes, str], set[tuple[bytes, ...]]] = field(
        default_factory=lambda: defaultdict(set)
    )

    @classmethod
    def of(cls, hospitals: Iterable[HospitalSeen]) -> Said:
        """Read what every hospital wrote down."""
        said = cls()
        for one in hospitals:
            for received, sent in one.exchanges:
                said._hear(one.name, received, sent)
        return said

    def _hear(self, name: str, received: bytes, sent: bytes) -> None:
        opening = b""
        for message in messages_in(received):
            match message:
                case Plan():
                    digest = wire.digest_of(message)
                    terms = BatchTerms.from_record(decode_value(message.terms))
                    self.plans.setdefault(digest, terms)
                    self.heard[name].add(digest)
                case Settlement():
                    self.settlements[message.plan_digest].add((message.state, message.result))
                    if _is_proof(message):
                        self.closed.add(message.plan_digest)
                case ShareBundle():
                    opening = message.plan_digest
        for message in messages_in(sent):
            match message:
                case MaskedVector():
                    self.vectors[message.plan_digest, name].add(message.body)
                case VoteReport():
                    header = wire.expect(wire.decode(message.header), ReportHeader)
                    self.vectors[header.plan_digest, name].add(wire.digest_of(message))
                case Reveal():
                    self.reveals[opening].add(name)
                case Verdict():
                    self.verdicts[message.plan_digest, name].add(message.survivors)

    def releases(self) -> dict[bytes, NoisyRelease]:
        """What was released, by plan; of a plan that was settled twice, one of the two."""
        return {
            plan: NoisyRelease.from_record(decode_value(result))
            for plan, settled in self.settlements.items()
            for state, result in settled
            if state == "released"
        }

    def queries(self, plan: bytes) -> list[tuple[bytes, int]]:
        """What a plan asks: pools and positions."""
        terms = self.plans[plan]
        return [(terms.run.pool_digest, index) for index in terms.indices]


def runs_seen(coordinator: Coordinator) -> tuple[RunSeen, ...]:
    """Read what a coordinator shows of all its runs."""
    return tuple(_run_seen(coordinator, run) for run in coordinator.queue.all())


def _run_seen(coordinator: Coordinator, run: Run) -> RunSeen:
    folder = coordinator.home.results(run.name)
    shown, table = shown_by_status(coordinator, run.name)
    while (now := coordinator.queue.find(run.name)) != run:  # a service is at work
        run, (shown, table) = now, shown_by_status(coordinator, run.name)
    request = RunRequest.from_json(coordinator.queue.request(run.name))
    if not folder.is_dir() or request.evaluation is not None:
        # An evaluation's folder has the labels and the ledger of the run that it is of.
        return RunSeen(run, request, shown, table)
    names = request.class_names
    with (folder / "labels.csv").open() as file:
        rows = [(int(row["query_id"]), row["label"]) for row in csv.DictReader(file)]
    labels = {index: names.index(label) for index, label in rows if label in names}
    privacy = json.loads((folder / "privacy.json").read_text())
    return RunSeen(
        run,
        request,
        shown,
        table,
        labels,
        tuple(entry["state"] for entry in privacy["ledger"]),
        (folder / "transcript.jsonl").read_text(),
    )


def shown_by_status(coordinator: Coordinator, name: str) -> tuple[str, Mapping[str, Any]]:
    """What `pate-fed status` prints of a run, as text and as JSON."""
    printed = []
    for output_format in (Format.TEXT, Format.JSON):
        command = click.Context(click.Command("status"))
        command.meta[FORMAT] = output_format
        with redirect_stdout(io.StringIO()) as out, command:
            status(name, home=coordinator.home.folder)
        printed.append(out.getvalue())
    [table] = json.loads(printed[1])["runs"]
    return printed[0], table


def violations(seen: Seen) -> list[Violation]:
    """Look at everything; nothing is found where all is well."""
    return [
        *_hospital_charges(seen),
        *_coordinator_charges(seen),
        *_answers(seen),
        *_openings(seen),
        *_labels(seen),
        *_counters(seen),
        *_states(seen),
    ]


def require_sound(seen: Seen, *, note: str = "") -> None:
    """Fail with all that is found."""
    found = violations(seen)
    assert not found, "\n".join([note, *map(str, found)])


# Charges --------------------------------------------------------------------------------------


def _hospital_charges(seen: Seen) -> Iterator[Violation]:
    said = seen.said
    releases = said.releases()
    for one in seen.hospitals:
        entries = {entry.entry_id: entry for entry in one.ledger.entries}
        counted = Counter(entry.entry_id for entry in one.ledger.entries)
        for name, times in counted.items():
            if times > 1 or bytes.fromhex(name) not in said.heard[one.name]:
                yield Violation(Fault.DOUBLED, f"{one.name} has {times} for {_short(name)}")
        answered = {plan for plan, name in said.vectors if name == one.name}
        for plan in answered | set(one.voted):
            entry = entries.get(plan.hex())
            if entry is None or (entry.state is EntryState.CANCELLED and plan not in said.closed):
                yield Violation(Fault.LOST, f"{one.name} has none for {_short(plan)}")
            elif entry.state is EntryState.COMMITTED:
                terms, release = said.plans[plan].run, releases.get(plan)
                if release is None or entry.release_digest != release.digest:
                    yield Violation(Fault.LOST, f"{one.name} paid {_short(plan)} for another")
                    continue
                price = lifelong_charge(terms, outcomes_of(release), weight=terms.unit_votes_at(0))
                if entry.spent != price:
                    yield Violation(Fault.LOST, f"{one.name} paid otherwise for {_short(plan)}")


def _coordinator_charges(seen: Seen) -> Iterator[Violation]:
    """Hold what a run says that it cost against what was released, and what was asked at most."""
    said, releases = seen.said, seen.said.releases()
    shared = {plan for plan, _ in said.vectors} - said.closed
    pools = Counter(one.request.pool for one in seen.runs)
    for one in seen.runs:
        progress = one.run.progress
        mine = [
            plan
            for plan, terms in said.plans.items()
            if terms.run.pool_digest == one.request.pool and plan not in seen.forgotten
        ]
        if not mine or pools[one.request.pool] > 1 or one.run.state not in ENDED:
            continue
        size = max(len(said.plans[plan].indices) for plan in mine)
        paid = [
            outcomes_of(releases[plan])
            if plan in releases
            else _worst(len(said.plans[plan].indices))
            for plan in mine
            if plan in releases or plan in shared
        ]
        # Where nobody is known to have shared, a void batch may have been charged, or not.
        void = progress.void - sum(plan in said.closed for plan in mine)
        unsure = void - sum(plan in shared and plan not in releases for plan in mine)
        terms = said.plans[mine[0]].run
        low = _share(terms, paid)
        high = _share(terms, [*paid, *[_worst(size)] * unsure])
        if progress.share < low * (1 - 1e-9):
            yield Violation(Fault.LOST, f"{one.run.name} says {progress.share}, cost {low}")
        if progress.share > high * (1 + 1e-9):
            yield Violation(Fault.DOUBLED, f"{one.run.name} says {progress.share}, cost {high}")
        if one.labels is not None:
            committed = sum(state == EntryState.COMMITTED.value for state in one.batches)
            told = sum(plan in releases for plan in mine)
            # Of what was released before a run was ended its hospitals may not have heard.
            most = len(mine) if one.run.reason else told
            if not told <= committed <= most:
                fault = Fault.LOST if committed < told else Fault.DOUBLED
                yield Violation(fault, f"{one.run.name} has {committed} released batches")


def _is_proof(settlement: Settlement) -> bool:
    """Whether somebody signed that he never sends, or enough that the plan is closed."""
    if not settlement.certificate:
        return bool(settlement.refusals)
    return not wire.expect(wire.decode(settlement.certificate), Certificate).survivors


def _worst(queries: int) -> Outcomes:
    return Outcomes(queries, queries)


def _share(terms: RunTerms, paid: Iterable[Outcomes]) -> float:
    """What a run was charged of its cost: every ask costs the same, whatever came out."""
    return sum(outcomes.asks for outcomes in paid) / terms.caps.most.asks


# Answers --------------------------------------------------------------------------------------


def _answers(seen: Seen) -> Iterator[Violation]:
    said = seen.said
    for (plan, name), bodies in said.vectors.items():
        if len(bodies) > 1:
            yield Violation(Fault.AGAIN, f"{name} sent {len(bodies)} vectors for {_short(plan)}")
    for (plan, name), agreed in said.verdicts.items():
        if len(agreed) > 1:
            yield Violation(Fault.AGAIN, f"{name} gave {len(agreed)} verdicts on {_short(plan)}")
    for one in seen.hospitals:
        for plan, times in Counter(one.voted).items():
            if times > 1:
                yield Violation(Fault.AGAIN, f"{one.name} voted {times} times on {_short(plan)}")
    for plan, settled in said.settlements.items():
        # Whoever forgot that a plan was released may call it void; nobody releases it again.
        ways = {way for way in settled if way[0] == "released" or plan not in seen.forgotten}
        if len(ways) > 1:
            yield Violation(Fault.AGAIN, f"{_short(plan)} was settled in {len(ways)} ways")


def _openings(seen: Seen) -> Iterator[Violation]:
    said = seen.said
    opened, released = defaultdict(set), defaultdict(set)
    for plan in said.plans:
        for query in said.queries(plan):
            if _may_have_opened(seen, plan):
                opened[query].add(plan)
    for plan, release in said.releases().items():
        for query, outcome in zip(said.queries(plan), release.outcomes, strict=True):
            if outcome != Outcome.NOT_ASKED:
                released[query].add(plan)
    for word, found in (("opened", opened), ("released", released)):
        for (_, index), plans in found.items():
            if len(plans) > 1:
                yield Violation(Fault.AGAIN, f"query {index} was {word} for {len(plans)} plans")


def _may_have_opened(seen: Seen, plan: bytes) -> bool:
    """Whether hospitals gave enough away for the sum of a plan to be known."""
    form = FORMS[seen.form]
    least = form.threshold(len(seen.hospitals))
    if form.is_certified:
        return len(seen.said.reveals[plan]) >= least
    return sum(digest == plan for digest, _ in seen.said.vectors) >= least


def _labels(seen: Seen) -> Iterator[Violation]:
    said, releases = seen.said, seen.said.releases()
    for one in seen.runs:
        told = {
            index: int(label)
            for plan, release in releases.items()
            for (pool, index), label, outcome in zip(
                said.queries(plan), release.labels, release.outcomes, strict=True
            )
            if pool == one.request.pool
            and outcome == Outcome.ANSWERED
            and plan not in seen.forgotten
        }
        if one.labels is None:
            continue
        changed = [index for index in told if one.labels.get(index) != told[index]]
        if changed:
            yield Violation(Fault.LABELS, f"{one.run.name}: queries {changed}")
        if one.run.progress.answered != len(one.labels):
            yield Violation(Fault.LABELS, f"{one.run.name} counts {one.run.progress.answered}")
        unheard = set(one.labels) - set(told)
        # Whoever ended the run heard of all of it.
        if unheard and not one.run.reason:
            yield Violation(Fault.LABELS, f"{one.run.name}: nobody heard of {sorted(unheard)}")
        if one.transcript:
            verdict = verify_transcript(one.transcript)
            # A run that a hospital was lost in may lack its last signature, and says so.
            lacks_heads = verdict.must == "the parties' last signed heads must come"
            is_open_ended = one.run.reason and (lacks_heads or verdict.kind == "heads closing")
            if not (verdict.is_good or is_open_ended):
                yield Violation(Fault.STORY, f"{one.run.name}: {verdict.must}, got {verdict.got}")


# Where they stand -----------------------------------------------------------------------------


def _counters(seen: Seen) -> Iterator[Violation]:
    for one in seen.hospitals:
        signed, ready = [], set[Ready]()
        for message in one.sent:
            if hasattr(message, "journal_counter") and message not in ready:
                signed.append(message.journal_counter)
            if isinstance(message, Ready):  # asked again, a node shows whose it is by the same one
                ready.add(message)
        if signed != sorted(signed):
            yield Violation(Fault.BACK, one.name)


def _states(seen: Seen) -> Iterator[Violation]:
    for one in seen.runs:
        run = one.run
        rests = run.state in (*ENDED, RunState.WAITING, RunState.PAUSED)
        is_whole = run.state is RunState.DONE and (
            run.progress.answered + run.progress.refused == run.progress.queries
        )
        if not rests or not (is_whole or run.reason):
            yield Violation(Fault.SILENT, f"{run.name} is {run.state.value}: {run.reason!r}")
        why = f"{run.state.value}: {run.reason}" if run.reason else run.state.value
        if one.shown.splitlines()[0].split(maxsplit=1) != [run.name, why]:
            yield Violation(Fault.SILENT, f"{run.name} is {why}, and shown as {one.shown!r}")
        names = [each["hospital"] for each in one.table["hospitals"]]
        of_run = {key: value for key, value in one.table.items() if key != "hospitals"}
        if of_run != run.as_table() or names != sorted(each.name for each in one.request.parties):
            yield Violation(Fault.SILENT, f"{run.name} is not what its table shows: {one.table}")
        if not all(math.isfinite(value) for value in asdict(run.progress).values()):
            yield Violation(Fault.SILENT, f"{run.name} counts {run.progress}")


def messages_in(packet: bytes) -> list[Any]:
    """What a packet holds; nothing if it is none."""
    try:
        return list(messages(packet)) if packet else []
    except ProtocolError:
        return []


def _short(digest: bytes | str) -> str:
    return (digest if isinstance(digest, str) else digest.hex())[:12]

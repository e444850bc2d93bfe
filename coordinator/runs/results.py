"""A run's directory, written from its tables and its transcripts."""

from __future__ import annotations

import json
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coordinator.runs.later_steps import NO_STUDENT, attempt
from coordinator.runs.open_run import OpenRun
from pate_fed.errors import MissingExtraError
from pate_fed.planning import RunSettings
from pate_fed.record import SCHEMA_VERSION, Manifest, Metrics, Privacy, Settings
from pate_fed.record.manifest import EvaluatedRun, LostSetup, PartitionProof, SplitKeys
from pate_fed.releases import Outcome
from pate_fed.report import (
    FinishedRun,
    RunDirectory,
    plain_page,
    render_annexes,
    render_model_card,
    render_report,
)
from pate_fed.report.ended_run import EndedRun, UsedRun, metrics_table, privacy_table
from pate_fed.report.run_directory import SentPacket, digests_of
from pate_fed.report.thumbnails import sheet_of
from pate_fed.report.warning_words import end_warnings, party_warnings, slack_warnings
from pate_fed.run_folder import ANNEXES, EARLIER, IMAGES, MODEL_CARD, REPORT, SEAL, STUDENT
from pate_fed.version import __version__
from protocols.forms import FORMS, Form
from protocols.rounds import CoordinatorRound
from protocols.suites import SUITE_MLKEM768_X25519, SUITE_X25519

if TYPE_CHECKING:
    from pate_fed.data.preprocessing import Preprocessing
    from pate_fed.students import Student

_SEALING: Mapping[str, str] = {
    SUITE_MLKEM768_X25519: (
        "sealed with ML-KEM-768 and X25519 together. Nobody can open recorded messages later, even "
        "with a quantum computer, unless both methods are broken."
    ),
    SUITE_X25519: (
        "sealed with X25519 alone. A later quantum computer could open a recording, and so read "
        "the messages of single hospitals."
    ),
}
"""The meaning of each sealing suite, for people: goes on from `_sealed`."""

_VERSIONS_OF = ("flwr", "torch", "scikit-learn", "numpy", "scipy", "cryptography")


@dataclass(frozen=True, slots=True, eq=False)
class EarlierSetup:
    """A setup of a run that failed, so that the run was set up anew."""

    round: CoordinatorRound
    reason: str


def _sealed(form: type[Form]) -> str:
    if form.adds_noise:
        return "Each hospital's report comes in two parts, for coordinator and tally"
    return "The coordinator relays messages between hospitals"


def privacy_of(
    run: OpenRun,
    *,
    earlier: Sequence[UsedRun],
    budgets: Mapping[str, float] = MappingProxyType({}),
) -> Privacy:
    """Return the content of `privacy.json`, and warn of what it tells; see `EndedRun`.

    `budgets` has, by name, each hospital's budget of the whole series of a simulation.
    """
    settings, labeling = run.request.settings, run.labeling
    form = FORMS[settings.form]
    privacy = privacy_table(
        ended=EndedRun(
            terms=labeling.terms,
            parties=tuple(member.name for member in labeling.members),
            ledger=run.store.ledger(),
            releases={batch: release for batch, (_, release) in run.store.releases().items()},
            instance=labeling.per_instance_cost,
            form=form,
            earlier=tuple(earlier),
            is_dealt_by_class=run.simulated and settings.partition == "dirichlet",
            asks_nothing=not run.left and not run.store.asked(),
            budgets=tuple(budgets[one.name] for one in labeling.members) if budgets else (),
        ),
        sealing=f"{_sealed(form)}, {_SEALING[settings.suite]}" if form.hides_vectors else "",
        seed=settings.seed,
        simulated=run.simulated,
    )
    run.warnings += [
        *slack_warnings(privacy),
        *end_warnings(
            labeling.terms,
            is_over=labeling.is_over,
            ledger=privacy.ledger,
            queries=len(run.request.queries) - len(run.earlier),
            void=run.unreleased,
            voids=run.voids,
        ),
        *(f"{said}." for said in run.skipped_words),
        *party_warnings(
            lost=labeling.lost,
            share_faults=labeling.share_faults,
            not_heard=labeling.not_heard,
            parties=len(labeling.members),
        ),
        *labeling.notes,
    ]
    return privacy


def metrics_of(
    run: OpenRun, *, student: Student | None, seconds: Mapping[str, float], **measured: Any
) -> Metrics:
    """Return the content of `metrics.json`; `measured` is what only a simulation measures."""
    only_simulated: dict[str, Any] = {"data": None, "truth": None, "scores": None, "yardsticks": {}}
    return metrics_table(
        parties=len(run.request.parties),
        teachers=run.request.settings.all_teachers,
        pool=len(run.pool),
        queries=run.request.queries,
        outcomes=run.outcomes,
        void=run.unreleased,
        reinforced=len(run.reinforced),
        student=student,
        sent=run.traffic.sent,
        received=run.traffic.received,
        exchanges=run.exchanges,
        batches=len(run.store.ledger().states),
        seconds=seconds,
        warnings=run.warnings,
        earlier_runs=Counter(run.drawn_in.values()),
        **(only_simulated | measured),
    )


def write_results(
    out: Path,
    *,
    run: OpenRun,
    metrics: Metrics,
    privacy: Privacy,
    student: Student | None,
    preprocessing: Preprocessing | None,
    settings: RunSettings | None = None,
    others: Mapping[str, object] = MappingProxyType({}),
    partition: PartitionProof | None = None,
    split: SplitKeys | None = None,
    row_names: Sequence[str] | None = None,
    earlier: Sequence[EarlierSetup] = (),
    notes: list[str],
) -> None:
    """Write a run directory: labels, prices and transcript, or nothing; then the rest.

    The rest is the student, its card and the pages. What of it fails is a line in `notes`, in the
    warnings of `metrics` and in the report.

    A run that asked nobody has no transcript. `settings` are the request's where none are given,
    and `others` are such as a federation knows better; `earlier` are the failed setups, oldest
    first. Only a simulation has a `partition`, a `split` and `row_names` of its pool.

    Raises:
        RunDirectoryError: it exists, or cannot be written.
    """
    table = (settings or run.request.settings).as_record(**others)
    manifest = manifest_table(run, partition=partition, split=split, earlier=earlier)
    class_names, round_ = run.request.class_names, run.labeling.round
    with RunDirectory.open_new(out) as directory:
        directory.write_record(table, privacy, manifest)
        directory.write_labels(
            (
                (index, class_names[label] if outcome is Outcome.ANSWERED else "")
                for index, label, outcome in run.outcomes
                if outcome is not Outcome.NOT_ASKED
            ),
            drawn_in=run.drawn_in,
            reinforced={query: class_names[label] for query, label in run.reinforced.items()},
            row_names=row_names,
            labels=(settings or run.request.settings).data.several_labels,
        )
        if run.pool.images is not None:
            released = [
                (str(index), class_names[label] if outcome is Outcome.ANSWERED else "")
                for index, label, outcome in run.outcomes
            ]
            sheet = attempt(notes, IMAGES, partial(sheet_of, run.pool.images, released))
            if sheet is not None:
                directory.write_images(sheet)
        if earlier:
            lost = (line for setup in earlier for line in transcript_of(setup.round))
            directory.write_transcript(lost, name=EARLIER)
        if round_ is not None and round_.run_id:
            directory.write_transcript(transcript_of(round_))
        if run.traffic.packets:
            directory.write_sent(sent_of(run))
        way = preprocessing, class_names
        metrics = write_student(
            directory, student, way, metrics=metrics, again=run.again, notes=notes
        )
        directory.write_record(metrics)
        write_card(directory, metrics, privacy, table, notes=notes)
        if round_ is not None and round_.run_id:
            files = digests_of(directory.folder)
            directory.write_json(SEAL, round_.closing.seal_results(files))
        write_pages(directory, notes=notes)


def write_student(
    directory: RunDirectory,
    student: Student | None,
    way: tuple[Preprocessing | None, tuple[str, ...]],
    *,
    metrics: Metrics,
    again: str,
    notes: list[str],
) -> Metrics:
    """Write a student's folder; where that fails, there is none, and the returned metrics say so.

    `way` is how raw rows become its inputs, and the names of its classes.
    """
    if student is None:
        return metrics
    read, class_names = way

    def write() -> bool:
        folder = directory.student_directory()
        student.save(folder)
        if read is not None:
            from pate_fed.data.stored_preprocessing import write_preprocessing  # noqa: PLC0415

            for each in student.folders(folder):
                write_preprocessing(each, read, class_names=class_names)
        return True

    if attempt(notes, "the student's folder", write):
        return metrics
    shutil.rmtree(directory.folder / STUDENT, ignore_errors=True)
    said = f"{NO_STUDENT} {notes[-1]}. {again}."
    return metrics.with_student(None, None, warnings=(*metrics.warnings, said))


def write_card(
    directory: RunDirectory,
    metrics: Metrics,
    privacy: Privacy,
    settings: Settings,
    *,
    notes: list[str],
) -> None:
    """Write the card of a run's student, if there is one; where that fails, there is none."""
    folder = directory.folder / STUDENT
    if not folder.is_dir():
        return

    def write() -> bool:
        card = render_model_card(metrics, privacy, settings)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8")
        return True

    if not attempt(notes, "the model card", write):
        (folder / MODEL_CARD).unlink(missing_ok=True)


def write_pages(directory: RunDirectory, *, notes: list[str]) -> None:
    """Write both pages of a run; one that fails becomes a plain page that says so."""
    record = attempt(notes, "the record for the pages", directory.read_back)

    def page(render: Callable[[FinishedRun], str], name: str) -> str:
        made = None if record is None else attempt(notes, name, lambda: render(record))
        return plain_page(notes) if made is None else made

    directory.write_annexes(page(render_annexes, ANNEXES))
    directory.write_report(page(partial(render_report, notes=notes), REPORT))


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that a run's manifest names."""
    try:
        return {name: version(name) for name in _VERSIONS_OF}
    except PackageNotFoundError as error:
        raise MissingExtraError(
            "pate_fed must be installed with the packages that it needs", f"no {error.name}"
        ) from error


def sent_of(run: OpenRun) -> Iterator[SentPacket]:
    """Name the hospital of each packet; a node that is none of the run's sent nothing of it."""
    names = run.labeling.names_by_node
    return (
        SentPacket(names[one.node], one.kinds, one.size, one.digest.hex())
        for one in run.traffic.packets
        if one.node in names
    )


def transcript_of(setup: CoordinatorRound) -> Iterator[str]:
    """Return the lines of a setup's transcript."""
    return (json.dumps(line, sort_keys=True) for line in setup.closing.signed_transcript())


def manifest_table(
    run: OpenRun,
    *,
    earlier: Sequence[EarlierSetup] = (),
    partition: PartitionProof | None = None,
    split: SplitKeys | None = None,
    evaluated: EvaluatedRun | None = None,
) -> Manifest:
    """Return the content of `manifest.json`; arguments as for `write_results`."""
    settings, labeling, round_ = run.request.settings, run.labeling, run.labeling.round
    compared = () if round_ is None else round_.closing.heads_compared
    return Manifest(
        schema_version=SCHEMA_VERSION,
        begun_on=run.attempt.begun_on().isoformat(),
        pate_fed=__version__,
        python=platform.python_version(),
        versions=installed_versions(),
        seed=settings.seed,
        suite=settings.suite,
        federation=run.home.settings.name if run.home else "",
        # Only a simulation knows the owner of each record.
        partition=partition,
        split=split,
        pool_sha256=run.request.pool.hex(),
        run_id="" if round_ is None else round_.run_id.hex(),
        transcript_head="" if round_ is None else round_.transcript.head.hex(),
        heads_compared=tuple(seat.hex() for seat in compared),
        not_heard=labeling.not_heard,
        earlier_setups=tuple(
            LostSetup(
                run_id=setup.round.run_id.hex(),
                transcript_head=setup.round.transcript.head.hex(),
                reason=setup.reason,
            )
            for setup in earlier
        ),
        evaluated=evaluated,
    )

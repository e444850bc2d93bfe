"""Results of runs that this hospital took part in: fetched from the coordinator, then checked.

The coordinator decides neither path nor size: names are of a fixed list, sizes are bounded. Files
that differ from the run's seal are not kept. The report is made here, of the checked files: a page
that somebody else made could hold anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from party.errors import ResultsError, TaskError
from party.site.limited_child import run_limited
from party.storage.site_audit_log import SiteAct
from pate_fed.errors import RunDirectoryError
from pate_fed.nodes.audit_log import AuditEntry
from pate_fed.nodes.owner_files import as_fault
from pate_fed.regular_files import read_regular
from pate_fed.run_folder import (
    EARLIER,
    LABELS,
    MANIFEST,
    METRICS,
    PRIVACY,
    SEAL,
    SEALED,
    SETTINGS,
    STUDENT,
    TRANSCRIPT,
    publish,
    refuse_existing,
    whole_folder,
)
from protocols.errors import BadSignatureError
from protocols.identity import PublicIdentity
from protocols.transcript import altered_file, verify_seal
from protocols.transcript_verifier import MAX_BYTES as MAX_TRANSCRIPT_BYTES
from protocols.transcript_verifier import TranscriptCheck, separate, verify_transcript

MAX_SEAL_BYTES: Final = 2**16
MAX_TABLE_BYTES: Final = 2**24
"""Of a file that is read whole, and is small."""

MAX_FILE_BYTES: Final = MAX_TRANSCRIPT_BYTES
"""Of labels, transcript and model."""

_PAGES: Final = "pate_fed.report.pages"
_PAGES_S: Final = 300.0
_PAGES_BYTES: Final = 2**32

SHORTEST_ID: Final = 8
_NEEDED: Final = frozenset({SETTINGS, MANIFEST, METRICS, PRIVACY, LABELS, TRANSCRIPT})


class ResultsDoor(Protocol):
    """Where results come from: `enrollment.CoordinatorDoor` is one."""

    def results_pieces(self, run: bytes, file: str) -> Iterator[bytes]:
        """Return the pieces of a file, in order."""


@dataclass(frozen=True, slots=True)
class AnsweredRun:
    """A run that this hospital answered in, as its own audit log has it; times are Unix seconds.

    `head` is the last one of the transcript, which it signed; empty if it did not come to that.
    """

    run: bytes
    coordinator: bytes
    at: float
    batches: int = 0
    head: bytes = b""


def answered_runs(records: Iterable[AuditEntry]) -> tuple[AnsweredRun, ...]:
    """Return the runs that this hospital answered in, oldest first."""
    agreed: dict[bytes, tuple[bytes, float]] = {}
    batches: dict[bytes, int] = {}
    heads: dict[bytes, bytes] = {}
    for record in records:
        match record.act, record.facts:
            case SiteAct.RUN_ACCEPTED, {"run": bytes(run), "coordinator": bytes(coordinator)}:
                agreed[run] = coordinator, record.at / 1000
            case SiteAct.BATCH_ANSWERED, {"run": bytes(run)}:
                batches[run] = batches.get(run, 0) + 1
            case SiteAct.RUN_CLOSED, {"run": bytes(run), "head": bytes(head)}:
                heads[run] = head
    return tuple(
        AnsweredRun(run, coordinator, at, batches[run], heads.get(run, b""))
        for run, (coordinator, at) in agreed.items()
        if run in batches
    )


def find_run(runs: Iterable[AnsweredRun], digits: str) -> AnsweredRun:
    """Return the one run that a person means by the first digits of its id."""
    prefix = digits.strip().lower()
    found = [one for one in runs if one.run.hex().startswith(prefix)]
    if len(prefix) < SHORTEST_ID or len(found) != 1:
        raise ResultsError(
            "a run must be one that `pate-party results` lists, at least the first "
            f"{SHORTEST_ID} digits of its id",
            f"{len(found)} that begin so",
        )
    return found[0]


def fetch_results(
    door: ResultsDoor,
    answered: AnsweredRun,
    out: Path,
    *,
    coordinator: PublicIdentity,
    party: PublicIdentity,
) -> TranscriptCheck:
    """Fetch the run directory of a run, check all of it, and only then put it where it belongs.

    The transcript is of this run, good, of this coordinator and with this hospital in it; it ends
    in the head that this hospital signed, where it signed one. Every file is sealed with it.
    Otherwise nothing is kept.

    Returns the verdict on the transcript. Nothing may be at `out`.
    """
    refuse_existing(out)
    seal = b"".join(_bounded(door.results_pieces(answered.run, SEAL), SEAL, MAX_SEAL_BYTES))
    names = _sealed_names(seal, coordinator)
    with whole_folder(out, publish) as folder:
        digests = {name: _fetch(door, answered.run, name, folder) for name in names}
        transcript = _text_in(folder / TRANSCRIPT)
        lost = folder / EARLIER
        verdict = _checked(
            transcript,
            separate(_text_in(lost)) if lost.exists() else [],
            answered,
            coordinator=coordinator,
            party=party,
        )
        _require_sealed(seal, transcript, digests, coordinator=coordinator)
        (folder / SEAL).write_bytes(seal)
        _make_pages(folder)
    return verdict


def _make_pages(folder: Path) -> None:
    """Have the report made, by a program of its own: this one reads and draws no such files."""
    try:
        said = run_limited(
            _PAGES,
            str(folder),
            given=b"",
            must="the files of a run must make its report",
            seconds=_PAGES_S,
            most_bytes=_PAGES_BYTES,
        )
    except TaskError as error:
        raise ResultsError(error.must, error.got) from error
    if said:
        must, got = json.loads(said)
        raise RunDirectoryError(must, got)


def _text_in(path: Path) -> str:
    return read_regular(path).decode("utf-8", errors="replace")


def _sealed_names(seal: bytes, coordinator: PublicIdentity) -> tuple[str, ...]:
    """Return the list of files, after checking its signature."""
    try:
        said = json.loads(seal)
        verify_seal(said, coordinator=coordinator)
        named = set(said["files"])
    except (BadSignatureError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ResultsError("the seal must be as the run's coordinator signed it") from error
    if not _NEEDED <= named <= set(SEALED):
        raise ResultsError("the seal must name the files of a run, and no others")
    return tuple(name for name in SEALED if name in named)


def _fetch(door: ResultsDoor, run: bytes, name: str, folder: Path) -> str:
    path, digest = folder / name, hashlib.sha256()
    if path.parent != folder:
        (folder / STUDENT).mkdir(exist_ok=True)
    with as_fault(ResultsError, f"{name} must be writable"), path.open("xb") as file:
        most = MAX_TABLE_BYTES if path.suffix in (".json", ".toml", ".md") else MAX_FILE_BYTES
        for piece in _bounded(door.results_pieces(run, name), name, most):
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def _bounded(pieces: Iterator[bytes], name: str, most: int) -> Iterator[bytes]:
    count = 0
    for piece in pieces:
        count += len(piece)
        if count > most:
            raise ResultsError(f"{name} must have at most {most} bytes")
        yield piece


def _checked(
    transcript: str,
    earlier: list[str],
    answered: AnsweredRun,
    *,
    coordinator: PublicIdentity,
    party: PublicIdentity,
) -> TranscriptCheck:
    by = coordinator.fingerprint.hex()
    verdict = verify_transcript(transcript, coordinator=by)
    setups = [
        verdict,
        *(verify_transcript(each, coordinator=by, may_be_open=True) for each in earlier),
    ]
    for setup in setups:
        if not setup.is_good:
            raise ResultsError(
                f"the transcript must be whole: line {setup.line}: {setup.must}", setup.got
            )
    ours = [setup for setup in setups if setup.run_id == answered.run.hex()]
    if not ours or any(party.fingerprint.hex() not in setup.parties for setup in setups):
        raise ResultsError("the transcript must be of this run, with this hospital")
    if answered.head and ours[0].head != answered.head.hex():
        raise ResultsError(
            "the transcript must end in the head that this hospital signed: keep this line, and "
            "compare with the other hospitals",
            f"the head {ours[0].head}",
        )
    return verdict


def _require_sealed(
    seal: bytes, transcript: str, digests: dict[str, str], *, coordinator: PublicIdentity
) -> None:
    try:
        altered = altered_file(
            seal.decode(), transcript=transcript, digests=digests, coordinator=coordinator
        )
    except (BadSignatureError, ValueError, LookupError, TypeError) as error:
        raise ResultsError("the seal must be of this run") from error
    if altered:
        raise ResultsError(f"{altered} must be as it was sealed")

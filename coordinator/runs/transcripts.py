"""Checks a run directory: its transcript, and that its files are those that were sealed with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from coordinator.errors import AlteredResultsError, BrokenTranscriptError
from pate_fed.errors import RunDirectoryError
from pate_fed.record import Manifest, Privacy
from pate_fed.record.manifest import LostSetup
from pate_fed.regular_files import read_regular
from pate_fed.report.run_directory import digests_of
from pate_fed.run_folder import EARLIER, MANIFEST, PRIVACY, SEAL, TRANSCRIPT
from protocols.errors import BadSignatureError
from protocols.identity import PublicIdentity
from protocols.transcript import altered_file
from protocols.transcript_verifier import MAX_BYTES, TranscriptCheck, separate, verify_transcript


def check_transcript(
    run_dir: Path, *, coordinator: str | None = None, parties: Sequence[str] = ()
) -> TranscriptCheck:
    """Check the transcript of a run; return the verdict, a good one.

    Fingerprints, in hex, are those that the coordinator and all parties must have; None and none
    allow any.

    Raises:
        RunDirectoryError: the transcript or the manifest cannot be read, or nothing was signed.
        BrokenTranscriptError: it is broken; names the first bad line.
        AlteredResultsError: a file is not as the coordinator sealed it; names the file.
    """
    manifest = Manifest.read(_read(run_dir / MANIFEST))
    if not manifest.transcript_head:
        raise RunDirectoryError(_why_unsigned(run_dir, manifest))
    text = _read(run_dir / TRANSCRIPT)
    verdict = _verified(text, coordinator=coordinator, parties=parties)
    _require_named(manifest, verdict)
    setups = manifest.earlier_setups
    lost = separate(_read(run_dir / EARLIER)) if setups else []
    if len(lost) != len(setups):
        raise BrokenTranscriptError(
            f"{EARLIER} must have each earlier setup", f"{len(lost)} of them", line=1, kind=""
        )
    for setup, transcript in zip(setups, lost, strict=True):
        # A hospital was lost in it: the others may not have been enough to close it.
        earlier = _verified(
            transcript,
            coordinator=verdict.coordinator,
            parties=verdict.parties,
            may_be_open=True,
        )
        _require_named(setup, earlier)
    _require_sealed(run_dir, text)
    return verdict


def transcript_table(verdict: TranscriptCheck) -> dict[str, object]:
    """Return a good verdict as plain data."""
    return {
        "good": verdict.is_good,
        "entries": verdict.entries,
        "run_id": verdict.run_id,
        "head": verdict.head,
        "coordinator": verdict.coordinator,
        "parties": list(verdict.parties),
        "heads_compared": list(verdict.heads_compared),
        "not_heard": list(verdict.not_heard),
    }


def is_of_two_ends(run_dir: Path) -> bool:
    """Tell whether coordinator and tally added the noise of a run, as far as its files tell."""
    path = run_dir / PRIVACY
    return path.exists() and Privacy.read(_read(path)).at_aggregators


def _verified(
    text: str, *, coordinator: str | None, parties: Sequence[str], may_be_open: bool = False
) -> TranscriptCheck:
    verdict = verify_transcript(
        text, coordinator=coordinator, parties=parties, may_be_open=may_be_open
    )
    if verdict.line is not None:
        got = verdict.got or "another"
        raise BrokenTranscriptError(verdict.must, got, line=verdict.line, kind=verdict.kind)
    return verdict


def _require_named(named: Manifest | LostSetup, verdict: TranscriptCheck) -> None:
    """Check that a transcript is this run's, and not another one that is good too."""
    if (named.run_id, named.transcript_head) != (verdict.run_id, verdict.head):
        raise BrokenTranscriptError(
            "the transcript must be that of the manifest's run", line=1, kind=""
        )


def _require_sealed(run_dir: Path, transcript: str) -> None:
    """Check that every file but the report is the one that the run's coordinator signed."""
    identities = transcript.splitlines()[0]
    coordinator = PublicIdentity(bytes.fromhex(json.loads(identities)["coordinator"]))
    seal, found = _read(run_dir / SEAL), digests_of(run_dir)
    try:
        altered = altered_file(seal, transcript=transcript, digests=found, coordinator=coordinator)
    except (BadSignatureError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise AlteredResultsError(
            "the seal must be as the run's coordinator signed it", file=SEAL
        ) from error
    if altered:
        got = "none" if altered not in found else "another content"
        raise AlteredResultsError("a file must be as it was sealed", got, file=altered)


def _why_unsigned(run_dir: Path, manifest: Manifest) -> str:
    """Say why a run has no transcript, and what can be checked in its place."""
    if not is_of_two_ends(run_dir):
        return "a run must have asked something to have a transcript: there is nothing to check"
    what = (
        "its noise was drawn afresh, so nobody can draw it again"
        if manifest.seed is None
        else "its labels can be drawn again, `pate-fed simulate --config RUN_DIR/run.toml --out "
        "NEW`, and must be the same"
    )
    return (
        f"a simulation of --sum verified signs no transcript: {what}. `pate-fed audit VOTES.npy` "
        "with its --mechanism and --sigma2 attacks votes of yours. A deployed run of this form has "
        "a transcript, and `pate-fed transcript audit-side` checks either end, its noise included"
    )


def _read(path: Path) -> str:
    try:
        return read_regular(path, most_bytes=MAX_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise RunDirectoryError(f"{path.name} must be readable", error.strerror) from error

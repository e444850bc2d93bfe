"""Remove one patient: from the records, and from the one teacher of each task that saw them.

Where records vote nothing is trained anew; the count of the patient's votes is removed, too.

Every other patient stays with the same teacher, so that one patient still moves one vote over all
runs. Every other teacher keeps its bytes.

Records, teachers and settings lie in several files. All new ones are written beside the old ones
first. Then the audit log's record decides: with it the removal is done, without it nothing
happened. `finish` completes or undoes an interrupted removal; nothing else may use the site before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from party.errors import DataChangedError, ErasureError, TeachersError
from party.site.held_out_patients import is_held_out
from party.site.own_table import examine, registered_digest
from party.site.records_left import RecordsLeft, records_without
from party.site.site import Site
from party.site.site_state import require_somebody
from party.site.tasks import kept_pools, read_task
from party.site.training import (
    SHARES_FILE,
    json_bytes,
    kept_folders,
    read_files,
    read_manifest,
    shares_in,
    untrained,
    voter_name,
    with_manifest,
    write_folder,
)
from party.storage import PartyDatabase, SiteAuditLog
from party.storage.patient_votes import forget_patient, tags_by
from party.storage.site_audit_log import SiteAct
from pate_fed.cells import plain
from pate_fed.data.dataset import Records
from pate_fed.data.task import LearningTask
from pate_fed.nodes import write_file
from pate_fed.nodes.audit_log import Facts
from pate_fed.nodes.owner_files import as_fault
from pate_fed.regular_files import read_regular
from pate_fed.teachers.teacher import INDEX_FILE

PLAN_FILE = "removal.json"
NOT_RECALLED = (
    "labels that were released stay with their readers",
    "students that learned from these labels stay as they are",
    "charges stay in the ledger: the answers were given",
    "copies and backups, which this program does not know, still hold the patient",
)
"""The traces that no removal can call back, for people."""

_KEY_BYTES = 32
_NEXT = ".next"


@dataclass(frozen=True, slots=True)
class Removal:
    """A removal that is done; `sha256` is that of the records without the patient, hex."""

    rows: int
    teachers: int
    kept_teachers: int
    sha256: str


@dataclass(frozen=True, slots=True)
class _Retrained:
    """A task's files with one teacher trained anew, or none where the patient taught none."""

    folder: Path
    files: dict[str, bytes]
    trained: int
    kept: int


def remove_patient(
    site: Site,
    patient: str,
    *,
    database: PartyDatabase,
    is_run_open: Callable[[frozenset[bytes]], bool],
    by: str,
    clock: Callable[[], float],
    random_bytes: Callable[[int], bytes],
) -> tuple[Site, Removal]:
    """Remove a patient's rows or images, and train anew the teachers that learned from them.

    The node must not run. `is_run_open` tells whether one of the coordinators with these
    fingerprints, whose runs were not closed here, still has one. Returns the site with its new
    settings, and what was done.

    Raises:
        ErasureError: no such patient, a run is open, or a task's teachers cannot be retrained.
        DataError, DataChangedError: no usable table would remain, or it is not the registered one.
        TeachersError: kept teachers or the new files cannot be read or written.
    """
    require_somebody(by)
    database.become_node()
    site = finish(site, database).using(site.data_set)
    log = SiteAuditLog(database)
    _require_closed(site, log, is_run_open)
    left = records_without(site, plain(patient))
    retrained = [
        _retrain(site, folder, left, plain(patient), random_bytes=random_bytes)
        for folder in kept_folders(site)
        if _is_of(site, folder)
    ]
    trained = sum(one.trained for one in retrained)
    plan = json_bytes(
        {
            "records": site.data.file,
            "data_set": site.data_set,
            "before": site.data.digest,
            "after": left.digest,
            "rows": left.rows,
            "erased": [str(one) for one in left.erased],
            "teachers": [one.folder.name for one in retrained],
            "nonce": random_bytes(_KEY_BYTES).hex(),
        }
    )
    try:
        _stage(site, left, retrained, plan)
    except BaseException:
        _undo(site, json.loads(plan))
        raise
    facts: Facts = {
        "before": bytes.fromhex(site.data.digest),
        "after": bytes.fromhex(left.digest),
        "plan": hashlib.sha256(plan).digest(),
        "teachers": trained,
        "by": by,
        "from": "command line",
    }
    with database.transaction() as connection:
        if site.has_keys:  # without them nobody can tell whose a tag is
            name = voter_name(site, plain(patient))
            forget_patient(connection, name, tag_of=tags_by(site.identity))
        log.append(SiteAct.PATIENT_REMOVED, facts, at=clock(), connection=connection)
    database.forget_erased()
    site = finish(site, database)
    return site, Removal(left.removed, trained, sum(one.kept for one in retrained), left.digest)


def finish(site: Site, database: PartyDatabase) -> Site:
    """Complete a removal that was decided, or undo one that was not; usually there is none.

    The node must not run then. Returns the site with the settings that hold. Where files cannot be
    moved nothing is lost, and the next call tries again.
    """
    if not is_pending(site):
        return site
    database.become_node()
    content = read_regular(site.path(PLAN_FILE))
    plan = _plan_of(content)
    site = Site.open(site.folder)
    digest = hashlib.sha256(content).digest()
    is_decided = plan is not None and any(
        record.act is SiteAct.PATIENT_REMOVED and record.facts.get("plan") == digest
        for record in SiteAuditLog(database).entries()
    )
    if plan is not None and is_decided:
        site = _complete(site, plan)
    else:
        _undo(site, plan)
    site.path(PLAN_FILE).unlink(missing_ok=True)
    return site


def is_pending(site: Site) -> bool:
    """Tell whether an interrupted removal must be finished first."""
    return site.path(PLAN_FILE).exists()


def require_finished(site: Site) -> None:
    """Refuse while a removal is neither done nor undone."""
    if is_pending(site):
        raise ErasureError(
            "an interrupted removal of a patient must be finished: `pate-party start` does"
        )


# Before anything is written ---------------------------------------------------------------------


def _require_closed(
    site: Site, log: SiteAuditLog, is_run_open: Callable[[frozenset[bytes]], bool]
) -> None:
    accepted: dict[bytes, bytes] = {}
    for record in log.entries():
        match record.act, record.facts:
            case SiteAct.RUN_ACCEPTED, {"run": bytes(run), "coordinator": bytes(coordinator)}:
                accepted[run] = coordinator
            case SiteAct.RUN_CLOSED, {"run": bytes(run)}:
                accepted.pop(run, None)
    current = {one.coordinator.fingerprint for one in site.current}
    unclosed = frozenset(accepted.values()) & current
    if unclosed and is_run_open(unclosed):
        raise ErasureError(
            "no run may be open while a patient is removed: let the operator end it, or leave its "
            "federation",
            "an open run",
        )


# Teachers ---------------------------------------------------------------------------------------


def _retrain(
    site: Site,
    folder: Path,
    left: RecordsLeft,
    patient: str,
    *,
    random_bytes: Callable[[int], bytes],
) -> _Retrained:
    manifest = read_manifest(folder)
    if manifest.get("data") != site.data.digest:
        raise ErasureError(
            f"teachers/{folder.name} must be of the registered table, the only one that is known: "
            "move the folder away, or delete it",
            "teachers of another table",
        )
    if manifest.get("teacher_model") != site.settings.teacher_model:
        raise ErasureError(
            f"teachers/{folder.name} must be of the teacher_model in the settings: move the folder "
            "away, or delete it",
            "another kind",
        )
    task = _task_of(site, folder)
    old = read_files(folder, manifest.get("files"))
    shares = shares_in(folder, old, fault=ErasureError)
    place = next((at for at, share in enumerate(shares) if patient in share), None)
    bound_to = {name: value for name, value in manifest.items() if name != "files"}
    if place is None and is_held_out(patient, float(manifest.get("held_out", 0.0))):
        return _Retrained(
            folder, with_manifest(old, {**bound_to, "data": left.digest}), 0, len(shares)
        )
    if place is None:
        raise ErasureError(
            f"{SHARES_FILE} of teachers/{folder.name} must name every patient of the table",
        )
    share = [one for one in shares[place] if one != patient]
    if not share:
        raise ErasureError(
            "every teacher must keep a patient: set more records_per_teacher, delete the folder "
            f"teachers/{folder.name}, and try again: all its teachers are then new",
            "a teacher of this patient alone",
        )
    ensemble = untrained(site, task, manifest)
    models = {name: content for name, content in old.items() if name != SHARES_FILE}
    ensemble.restore(models, classes=task.classes)
    records = task.encode(left.before, patient_column=site.data.patient_id)
    rng = np.random.default_rng(int.from_bytes(random_bytes(_KEY_BYTES), "big"))
    ensemble.retrain(place, _select(records, share), rng=rng, public=task.pool.views)
    new = ensemble.dump()
    own = f"teacher-{place + 1:04d}"
    kept = {
        name: content
        for name, content in old.items()
        if name in new and name != INDEX_FILE and name.partition(".")[0] != own
    }
    shares[place] = share
    files = {**new, **kept, SHARES_FILE: json_bytes(shares)}
    content = with_manifest(files, {**bound_to, "data": left.digest})
    return _Retrained(folder, content, 1, len(shares) - 1)


def _is_of(site: Site, folder: Path) -> bool:
    """Tell whether the teachers in a folder learned from the data set in use."""
    others = (one.settings.data.digest for one in site.data_sets if one.data_set != site.data_set)
    return read_manifest(folder).get("data") not in set(others)


def _task_of(site: Site, folder: Path) -> LearningTask:
    for pool in kept_pools(site):
        task = read_task(site, bytes.fromhex(pool.name))
        if isinstance(task, LearningTask) and task.digest.hex() == folder.name:
            return task
    raise ErasureError(
        f"the task of teachers/{folder.name} must be kept under pools: delete the teachers' folder "
        "if no run needs it",
        "no such task",
    )


def _select(records: Records, patients: Iterable[str]) -> Records:
    wanted = set(patients)
    return records.select([row for row, one in enumerate(records.unit_ids) if one in wanted])


# Files ------------------------------------------------------------------------------------------


def _staged(file: Path) -> Path:
    return file.with_name(f".{file.name}{_NEXT}")


def _stage(site: Site, left: RecordsLeft, retrained: Iterable[_Retrained], plan: bytes) -> None:
    """Write everything new beside the old; the plan first, so that `finish` finds the rest."""
    file, data = Path(site.data.file), site.data
    with as_fault(TeachersError, "records and teachers must be writable"):
        write_file(site.path(PLAN_FILE), plan)
        if left.content is not None:
            write_file(_staged(file), left.content, mode=file.stat().st_mode & 0o777)
        for one in retrained:
            write_folder(one.folder.with_name(f".{one.folder.name}{_NEXT}"), one.files)
    if data.kind == "table":  # the new file must be as usable as the old one
        examine(
            _staged(file),
            label=data.label,
            patient_id=data.patient_id,
            floor=data.floor,
            reading=data.reading,
        )


def _undo(site: Site, plan: Mapping[str, Any] | None) -> None:
    if plan is not None:
        _staged(Path(plan["records"])).unlink(missing_ok=True)
    for left in site.path("teachers").glob(f".*{_NEXT}"):
        shutil.rmtree(left)
    site.path(PLAN_FILE).unlink(missing_ok=True)


def _complete(site: Site, plan: Mapping[str, Any]) -> Site:
    """Put everything staged in its place; each step may be done already."""
    file = Path(plan["records"])
    with as_fault(TeachersError, "records and teachers must be movable"):
        for one in map(Path, plan["erased"]):
            if one.is_dir():
                shutil.rmtree(one)
            else:
                one.unlink(missing_ok=True)
        if _staged(file).exists():
            _staged(file).replace(file)
        for name in plan["teachers"]:
            folder = site.path("teachers", name)
            staged = folder.with_name(f".{name}{_NEXT}")
            if staged.exists():
                shutil.rmtree(folder, ignore_errors=True)
                staged.rename(folder)
    site = site.using(plan["data_set"])
    if registered_digest(site) != plan["after"]:
        raise DataChangedError(f"{file.name} must be the records without the patient")
    data = replace(site.settings.data, digest=plan["after"], rows=plan["rows"])
    return site.save(replace(site.settings, data=data))


def _plan_of(content: bytes) -> dict[str, Any] | None:
    """Return a plan; None for one that cannot be read, which was never decided."""
    try:
        plan = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return plan if isinstance(plan, dict) else None

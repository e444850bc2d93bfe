"""Teachers, trained once for a task on the site's own records, and kept for every run of it.

They are kept without pickle, with a manifest that binds them to the table's hash, to the task and
to their own bytes. After any change they are refused, never silently trained anew. Another
teacher's vote on an answered query would be a second look at the same patients.

Where records vote nothing is trained or kept: the voters are read from the registered table each
time. So a new patient votes in the next run, and one who was removed in none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from party.errors import DataError, PartyError, TeachersError
from party.site.held_out_patients import taught
from party.site.own_table import read_registered, require_unchanged
from party.site.site import Site
from pate_fed.data.dataset import Records
from pate_fed.data.task import LearningTask, OwnRecords
from pate_fed.errors import UnreadableFileError
from pate_fed.nodes.owner_files import as_fault, write_file
from pate_fed.regular_files import read_regular
from pate_fed.rule import RECORDS_VOTE
from pate_fed.shards import deal_to_teachers, require_disjoint, rows_by_unit
from pate_fed.teachers import CONVOLUTION, TeacherEnsemble, make_ensemble

MANIFEST_FILE = "manifest.json"
SHARES_FILE = "shares.json"
"""Patients of each teacher, so that one patient can be removed and no other teacher changes."""

SCHEMA_VERSION = 1
RANDOMNESS = "drawn from the operating system for this training alone, and not kept"
_KEY_BYTES = 32
_PARTIAL = ".partial"

Tell = Callable[[int, int], None]
"""Called with the number of teachers trained, and of all."""


def ready_teachers(
    site: Site,
    task: LearningTask,
    *,
    random_bytes: Callable[[int], bytes],
    tell: Tell | None = None,
) -> TeacherEnsemble:
    """Return the teachers of a task: the stored ones, or new ones if there are none.

    New ones are trained and kept. All records of a patient go to one teacher, so that a patient
    moves one vote; those of patients who are held out go to none. While another process trains in
    this site it waits: teachers that are not stored may not vote.

    Raises `TeachersError` where stored ones do not fit or new ones cannot be written, an error of
    the table where it does not fit the task or has fewer patients than teachers.
    """
    site = site.using(task.data_set)
    if site.settings.do_records_vote:
        return record_voters(site, task)[0]
    folder = folder_of(site, task)
    if not folder.exists():
        with _alone(folder.parent):
            if not folder.exists():
                return _train(site, task, random_bytes=random_bytes, tell=tell)
    return load_teachers(site, task)


def load_teachers(site: Site, task: LearningTask) -> TeacherEnsemble:
    """Read the stored teachers of a task, if they fit table, task and settings."""
    site = site.using(task.data_set)
    if site.settings.do_records_vote:
        return record_voters(site, task)[0]
    folder = folder_of(site, task)
    manifest = require_current(site, task)
    files = read_files(folder, manifest.get("files"))
    files.pop(SHARES_FILE, None)
    ensemble = untrained(site, task, manifest)
    try:
        ensemble.restore(files, classes=task.classes)
    except UnreadableFileError as error:
        raise TeachersError(error.must, error.got) from error
    if ensemble.teachers != site.settings.teachers:
        raise TeachersError(f"{site.settings.teachers} teachers must be kept", ensemble.teachers)
    return ensemble


def record_voters(site: Site, task: LearningTask) -> tuple[TeacherEnsemble, tuple[str, ...]]:
    """Return the table's patients as voters, but for those held out, and their names in order.

    Raises an error of the table where it is not the registered one, or does not fit the task.
    """
    site = site.using(task.data_set)
    text = read_registered(site)
    require_label(site, task)
    records = taught_records(site, task, text)
    rows_of = rows_by_unit(records.unit_ids)
    voters = make_ensemble(RECORDS_VOTE, task.kind)
    voters.fit(
        [records.select(rows) for rows in rows_of.values()],
        classes=task.classes,
        rng=np.random.default_rng(0),  # draws nothing
        public=task.pool.views,
    )
    return voters, tuple(voter_name(site, one) for one in rows_of)


def voter_name(site: Site, patient: str) -> str:
    """Return the name by which a patient's votes are counted.

    An id says who somebody is in its own column alone. Without ids a patient is a row of this very
    table: in another one it may be someone else.
    """
    data = site.settings.data
    return f"{data.patient_id or data.digest} {patient}"


def require_current(site: Site, task: LearningTask) -> dict[str, Any]:
    """Return the manifest of the stored teachers of a task, if they fit table and settings."""
    site = site.using(task.data_set)
    manifest = require_bound(site, task)
    require_unchanged(site)
    return manifest


def require_bound(site: Site, task: LearningTask) -> dict[str, Any]:
    """Do as `require_current`, and take the table to be the registered one: it is not read."""
    site = site.using(task.data_set)
    if site.settings.do_records_vote:
        return _bound_to(site, task)
    manifest = read_manifest(folder_of(site, task))
    for name, value in _bound_to(site, task).items():
        if manifest.get(name) != value:
            raise TeachersError(f"kept teachers must be of the {name} that they were trained with")
    return manifest


def of_another_table(site: Site) -> tuple[str, ...]:
    """Name the folders of teachers, which do not vote, that are not of a registered table."""
    found: list[str] = []
    if site.settings.do_records_vote:
        return ()
    registered = {one.settings.data.digest for one in site.data_sets}
    for folder in kept_folders(site):
        try:
            manifest = read_manifest(folder)
        except TeachersError:
            continue  # refused anyhow, whatever the table
        if manifest.get("data") not in registered:
            found.append(folder.name)
    return tuple(found)


def teachers_digest(site: Site, task: LearningTask) -> bytes:
    """Return the digest of the stored teachers of a task, 32 bytes; another after any training.

    Where records vote it is another for each table.
    """
    site = site.using(task.data_set)
    facts: object = _bound_to(site, task)
    if not site.settings.do_records_vote:
        facts = read_manifest(folder_of(site, task)).get("files")
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()


def folder_of(site: Site, task: LearningTask) -> Path:
    """Return the folder of a task's teachers."""
    return site.path("teachers", task.digest.hex())


def kept_folders(site: Site) -> list[Path]:
    """Return the folders of all kept teachers, one for each task."""
    return sorted(one for one in site.path("teachers").glob("[!.]*") if one.is_dir())


def require_label(site: Site, task: LearningTask) -> None:
    """Refuse, with `DataError`, a task that predicts another column than the registered label."""
    site = site.using(task.data_set)
    label = site.settings.data.label
    if label != task.label:
        raise DataError(
            f"the table's label must be the task's, {task.label!r}: register the table with that "
            "--label (`pate-party data add`)",
            repr(label),
        )


def taught_records(site: Site, task: LearningTask, text: OwnRecords) -> Records:
    """Return the registered table's records that teachers of a task learn from."""
    site = site.using(task.data_set)
    everybody = task.encode(text, patient_column=site.settings.data.patient_id or None)
    return taught(everybody, site.settings.held_out)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time train in a site; another's teachers are then there."""
    with as_fault(TeachersError, "teachers must be writable"):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with as_fault(TeachersError, "teachers must be on a disk of this machine"):
            fcntl.flock(lock, fcntl.LOCK_EX)  # removed even if the process is killed
        yield
    finally:
        os.close(lock)


def _train(
    site: Site,
    task: LearningTask,
    *,
    random_bytes: Callable[[int], bytes],
    tell: Tell | None,
) -> TeacherEnsemble:
    text = read_registered(site)
    require_label(site, task)
    records = taught_records(site, task, text)
    rng = np.random.default_rng(int.from_bytes(random_bytes(_KEY_BYTES), "big"))
    count = site.settings.teachers
    units = list(rows_by_unit(records.unit_ids).values())
    shards = deal_to_teachers(units, teachers=count, rng=rng)
    require_disjoint(records, shards)  # epsilon counts one vote per patient
    bound_to = _bound_to(site, task)
    ensemble = untrained(site, task, bound_to)
    ensemble.fit(
        [records.select(shard.rows) for shard in shards],
        classes=task.classes,
        rng=rng,
        public=task.pool.views,
        on_trained=None if tell is None else lambda done: tell(done, count),
    )
    shares = [list(dict.fromkeys(records.unit_ids[row] for row in shard.rows)) for shard in shards]
    files = {**ensemble.dump(), SHARES_FILE: json_bytes(shares)}
    _keep(folder_of(site, task), with_manifest(files, bound_to))
    return ensemble


def untrained(site: Site, task: LearningTask, manifest: Mapping[str, Any]) -> TeacherEnsemble:
    """Make untrained teachers of the kind of those with this manifest."""
    settings = site.settings
    return make_ensemble(
        settings.teacher_model,
        task.kind,
        device=settings.device if settings.teacher_model == CONVOLUTION else "cpu",
        records=manifest.get("patients_per_teacher"),
        teachers=manifest["teachers"],
        folders=settings.data_folders,
    )


def require_teachers(site: Site, task: LearningTask) -> None:
    """Refuse, before anything is trained, a kind of teacher that cannot learn what a task asks."""
    if not site.settings.do_records_vote:
        untrained(site, task, _bound_to(site, task))


def json_bytes(value: object) -> bytes:
    """Return a value as a small file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def with_manifest(files: dict[str, bytes], bound_to: dict[str, object]) -> dict[str, bytes]:
    """Return the files of teachers with the manifest that binds them to `bound_to`."""
    manifest = {
        **bound_to,
        "randomness": RANDOMNESS,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    return {**files, MANIFEST_FILE: json_bytes(manifest)}


def _bound_to(site: Site, task: LearningTask) -> dict[str, object]:
    settings, data = site.settings, site.settings.data
    return {
        "schema_version": SCHEMA_VERSION,
        "task": task.digest.hex(),
        "data": data.digest,
        "patient_id": data.patient_id,
        "held_out": settings.held_out,
        "teachers": settings.teachers,
        "patients_per_teacher": settings.patients_per_teacher,
        "teacher_model": settings.teacher_model,
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest in a folder of teachers."""
    try:
        manifest = json.loads(read_regular(folder / MANIFEST_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise TeachersError(
            f"teachers must be kept with a readable {MANIFEST_FILE}", type(error).__name__
        ) from error
    if not isinstance(manifest, dict):
        raise TeachersError(f"{MANIFEST_FILE} must be as it was written")
    return manifest


def read_files(folder: Path, listed: Any) -> dict[str, bytes]:
    """Read the files that a manifest lists, each as it was written."""
    if not isinstance(listed, dict):
        raise TeachersError(f"{MANIFEST_FILE} must list the teachers' files")
    files = {}
    for name, digest in listed.items():
        if Path(name).name != name:
            raise TeachersError("a teacher's file must lie beside its manifest")
        with as_fault(TeachersError, f"{name} must be readable"):
            content = read_regular(folder / name)
        if hashlib.sha256(content).hexdigest() != digest:
            raise TeachersError(f"{name} must be as it was written")
        files[name] = content
    return files


def shares_in(
    folder: Path, files: Mapping[str, bytes], *, fault: type[PartyError]
) -> list[list[str]]:
    """Return the patients of each teacher, from the files in a folder of teachers."""
    if SHARES_FILE not in files:
        raise fault(
            f"teachers/{folder.name} must say which teacher has which patient: delete the folder, "
            "and try again; new teachers are trained at the next start",
            "teachers of an older version",
        )
    shares: list[list[str]] = json.loads(files[SHARES_FILE])
    return shares


def _keep(folder: Path, files: dict[str, bytes]) -> None:
    """Write a folder whole or not at all; the caller must hold the lock."""
    partial = folder.with_name(f".{folder.name}{_PARTIAL}")
    with as_fault(TeachersError, "teachers must be writable"):
        for left in folder.parent.glob(f".*{_PARTIAL}"):  # nobody's: a crash left it
            shutil.rmtree(left, ignore_errors=True)
        write_folder(partial, files)
        partial.rename(folder)


def write_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Write a new folder and its files, and wait until these are on disk."""
    folder.mkdir(mode=0o700)
    for name, content in files.items():
        write_file(folder / name, content)

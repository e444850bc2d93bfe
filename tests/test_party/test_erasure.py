"""Erasure: one patient leaves, one teacher changes, and no crash leaves a half."""

from __future__ import annotations

import gzip
import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.errors import DataError, ErasureError, JournalLockedError
from party.service import PartyService
from party.site import erasure
from party.site.own_table import add, read_registered
from party.site.site import Site
from party.site.tasks import fetch_task
from party.site.training import folder_of, load_teachers, ready_teachers, teachers_digest
from party.storage import Journal, SiteAuditLog
from party.storage.site_audit_log import SiteAct
from pate_fed.data.reading import Reading, read_table
from pate_fed.data.task import LearningTask
from tests.support.hospital_site import LABEL, PATIENT, make_site, public_task, write_own_table
from tests.support.markers import sampled
from tests.test_party.test_cli import PateParty, error_code, pate_party
from tests.test_party.test_tasks import Door

__all__ = ["pate_party"]

LEAVER = "p7"


@pytest.fixture
def task(tmp_path: Path) -> LearningTask:
    return public_task(tmp_path)


def trained_site(folder: Path, task: LearningTask) -> Site:
    """A hospital whose four teachers of one task are trained and kept."""
    folder.mkdir()
    table = write_own_table(folder / "own.csv")
    site, _ = add(make_site(folder / "site"), table, label=LABEL, patient_id=PATIENT)
    fetch_task(site, Door(task.to_bytes()), task.pool.digest)
    ready_teachers(site, task, random_bytes=secrets.token_bytes)
    return site


@pytest.fixture
def site(tmp_path: Path, task: LearningTask) -> Site:
    return trained_site(tmp_path / "hospital", task)


def remove(site: Site, patient: str = LEAVER, *, is_run_open: bool = False) -> Site:
    with site.open_database() as database:
        return erasure.remove_patient(
            site,
            patient,
            database=database,
            is_run_open=lambda _: is_run_open,
            by="M. Curie",
            clock=lambda: 1e9,
            random_bytes=secrets.token_bytes,
        )[0]


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file but the database's, which is written to when it is opened."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("party.db", ".room"))
    }


def test_one_teacher_changes_and_no_other(site: Site, task: LearningTask) -> None:
    folder, table = folder_of(site, task), Path(site.data.file)
    before, votes = content_of(folder), load_teachers(site, task).vote(task.pool.views)
    shares = json.loads(before["shares.json"])
    [place] = [at for at, share in enumerate(shares) if LEAVER in share]
    lines, digest = table.read_bytes().splitlines(), teachers_digest(site, task)

    changed = remove(site)

    after = content_of(folder)
    models = {name for name in before if name.startswith("teacher-")}
    assert {name for name in models if before[name] != after[name]} == {
        f"teacher-{place + 1:04d}.safetensors"
    }
    assert json.loads(after["shares.json"]) == [
        [one for one in share if one != LEAVER] for share in shares
    ]
    others = np.arange(4) != place
    new_votes = load_teachers(Site.open(site.folder), task).vote(task.pool.views)
    np.testing.assert_array_equal(new_votes[others], votes[others])
    assert teachers_digest(changed, task) != digest
    kept = [line for line in lines if not line.startswith(LEAVER.encode() + b",")]
    assert table.read_bytes().splitlines() == kept
    assert changed.settings.data.rows == len(kept) - 1
    assert all(f'"{LEAVER}"'.encode() not in one for one in content_of(site.folder).values())


def test_a_removal_changes_no_number_of_teachers(site: Site, task: LearningTask) -> None:
    """Else another vote would tell of it, and every patient have other teachers."""
    before = site.settings
    for patient in (LEAVER, *(f"p{number}" for number in range(20, 32))):
        site = remove(site, patient)
    assert (site.settings.teachers, site.settings.data.rows) == (before.teachers, 54)
    assert load_teachers(site, task).teachers == before.teachers
    again, _ = add(site, Path(site.data.file), label=LABEL, patient_id=PATIENT)
    noted = replace(site.settings.data, notes=again.settings.data.notes)
    assert again.settings == replace(site.settings, data=noted)  # the table, registered once more
    assert load_teachers(again, task).teachers == before.teachers


def test_the_act_is_on_record_without_the_patient(site: Site) -> None:
    old = site.data.digest
    changed = remove(site)
    with site.open_database() as database:
        SiteAuditLog(database).verify()
        [record] = [
            one for one in SiteAuditLog(database).entries() if one.act is SiteAct.PATIENT_REMOVED
        ]
    digests = {name for name, said in record.facts.items() if isinstance(said, bytes)}
    assert {len(record.facts[name]) for name in digests} == {32}
    others = {name: said for name, said in record.facts.items() if name not in digests}
    assert others
    assert LEAVER not in repr(others)
    assert record.facts["before"] == bytes.fromhex(old)
    assert record.facts["after"] == bytes.fromhex(changed.data.digest)
    assert (record.facts["teachers"], record.facts["by"]) == (1, "M. Curie")


def no_column(site: Site) -> Site:
    return add(site, Path(site.data.file), label=LABEL, patient_id=None)[0]


def other_table(site: Site) -> Site:
    table = Path(site.data.file)
    table.write_text(table.read_text("utf-8") + "p99,50,male,yes\n", encoding="utf-8")
    return add(site, table, label=LABEL, patient_id=PATIENT)[0]


def older_version(site: Site) -> Site:
    [path] = site.path("teachers").glob("*/manifest.json")
    manifest = json.loads(path.read_text("utf-8"))
    del manifest["files"]["shares.json"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return site


def task_gone(site: Site) -> Site:
    for path in site.path("pools").iterdir():
        path.unlink()
    return site


def open_run(site: Site) -> Site:
    coordinator = site.membership().coordinator.fingerprint
    with site.open_database() as database:
        for run in (b"a" * 32, b"b" * 32):
            detail = {"run": run, "coordinator": coordinator}
            SiteAuditLog(database).append(SiteAct.RUN_ACCEPTED, detail, at=1.0)
        SiteAuditLog(database).append(SiteAct.RUN_CLOSED, {"run": b"a" * 32}, at=2.0)
    return site


@sampled()
@pytest.mark.parametrize(
    ("prepare", "patient"),
    [
        pytest.param(lambda site: site, "p99", id="unknown patient"),
        pytest.param(no_column, LEAVER, id="no column of patients"),
        pytest.param(other_table, LEAVER, id="teachers of another table"),
        pytest.param(older_version, LEAVER, id="teachers of an older version"),
        pytest.param(task_gone, LEAVER, id="a task that is gone"),
        pytest.param(open_run, LEAVER, id="a run in progress"),
    ],
)
def test_a_refusal_changes_nothing(
    site: Site, prepare: Callable[[Site], Site], patient: str
) -> None:
    site = prepare(site)
    before = content_of(site.folder.parent)
    with pytest.raises(ErasureError):
        remove(site, patient, is_run_open=prepare is open_run)
    assert content_of(site.folder.parent) == before


def test_a_run_whose_coordinator_ended_it_is_none(site: Site) -> None:
    remove(open_run(site), is_run_open=False)


def test_nobody_is_removed_under_a_node_that_runs(site: Site) -> None:
    with site.open_database() as running:
        Journal(running)
        with pytest.raises(JournalLockedError):
            remove(site)


def test_the_last_patients_stay(tmp_path: Path) -> None:
    table = write_own_table(tmp_path / "own.csv", patients=2)
    site, _ = add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT)
    before = content_of(tmp_path)
    with pytest.raises(DataError):
        remove(site, "p1")
    assert content_of(tmp_path) == before


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_every_other_line_keeps_its_bytes(tmp_path: Path, is_packed: bool) -> None:
    lines = [
        b'\xef\xbb\xbf"patient","a\nge",sick\r\n',
        b'"p1","1",yes\r\n',
        b"\r\n",
        b' p2 ,"2\n2",no\r\n',
        b"p3,3,no\r\n",
        b"p2,4,yes\r\n",
        b"p4,5,yes",
    ]
    table = tmp_path / "own.csv"
    content = b"".join(lines)
    table.write_bytes(gzip.compress(content) if is_packed else content)
    site, _ = add(make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT)
    remove(site, "p2")
    left = table.read_bytes()
    kept = [lines[0], lines[1], lines[4], lines[6]]
    assert (gzip.decompress(left) if is_packed else left) == b"".join(kept)


def test_other_forms_of_files_lose_the_patient_alone(tmp_path: Path) -> None:
    columns = {PATIENT: ["p1", "p2", "p3"], "age": ["1,5", "2,5", "3,5"], LABEL: ["yes", "no", ""]}
    rows = [";".join(one) for one in (columns, *zip(*columns.values(), strict=True))]
    wide = tmp_path / "own.csv"
    wide.write_bytes("\r\n".join([*rows, ""]).encode("utf-16"))
    commas = Reading(separator=";", decimal=",", drops_unlabeled=True)
    pa, parquet = (pytest.importorskip(one) for one in ("pyarrow", "pyarrow.parquet"))
    packed = tmp_path / "own.parquet"
    parquet.write_table(pa.table({**columns, LABEL: ["yes", "no", "no"]}), packed)
    for path, reading in ((wide, commas), (packed, Reading())):
        site, _ = add(
            make_site(tmp_path / path.suffix[1:]).using("eyes"),
            path,
            label=LABEL,
            patient_id=PATIENT,
            reading=reading,
        )
        before = read_table(path, reading)
        with pytest.raises(DataError if path == wide else ErasureError):
            remove(site, "p2" if path == wide else "nobody")  # p3 alone has no label
        assert read_table(path, reading).columns == before.columns
    site = remove(site, "p2")
    assert read_table(packed).column(PATIENT) == ("p1", "p3")
    assert site.data_set == "eyes"
    assert read_registered(site).column(PATIENT) == ("p1", "p3")
    assert Site.open(site.folder).settings.data.file == ""


def test_rows_without_a_label_of_others_stay_where_they_are(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    lines = [f"{PATIENT},age,{LABEL}", "p1,1,yes", "p2,2,", "p3,3,no", "p4,4,yes", "p3,5,"]
    table.write_bytes("\n".join(lines).encode())
    reading = Reading(drops_unlabeled=True)
    site, _ = add(
        make_site(tmp_path / "site"), table, label=LABEL, patient_id=PATIENT, reading=reading
    )
    remove(site, "p3")
    assert table.read_text("utf-8").splitlines() == [*lines[:3], lines[4]]


def test_a_folder_of_files_is_joined_first(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    folder.mkdir()
    for name in ("a", "b"):
        rows = f"{PATIENT},age,{LABEL}\n{name}1,1,yes\n{name}2,2,no\n"
        (folder / f"{name}.csv").write_text(rows, "utf-8")
    site, summary = add(make_site(tmp_path / "site"), folder, label=LABEL, patient_id=PATIENT)
    assert summary.patients == 4
    with pytest.raises(ErasureError):
        remove(site, "a1")


class KilledError(BaseException):
    """The process ends here."""


class Killer:
    """Ends the process at the nth touch of a file in a folder; a dead one touches nothing more."""

    def __init__(self) -> None:
        self.folder = ""
        self.left = 0
        self.touched = 0
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        touching = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
        if not self.folder or event not in touching:
            return
        if event == "open" and not arguments[2] & 0o3:  # for reading
            return
        if str(arguments[0]).startswith(self.folder) or event == "os.remove":
            self.touched += 1
            if self.touched > self.left:
                raise KilledError


@pytest.mark.slow  # a hospital for every file operation
def test_a_kill_at_any_moment_leaves_no_half(tmp_path: Path, task: LearningTask) -> None:
    killer, ends, is_dead, step = Killer(), set(), True, 0
    while is_dead:
        site = trained_site(tmp_path / f"hospital {step}", task)
        rows = site.settings.data.rows
        killer.folder, killer.left, killer.touched = str(site.folder.parent), step, 0
        try:
            remove(site)
            is_dead = False
        except KilledError:
            step += 1
        finally:
            killer.folder = ""
        if erasure.is_pending(site):
            with pytest.raises(ErasureError):
                PartyService(Site.open(site.folder), clock=lambda: 1e9)
        with site.open_database() as database:
            found = erasure.finish(Site.open(site.folder), database)
            kinds = [one.act for one in SiteAuditLog(database).entries()]
        is_done = kinds.count(SiteAct.PATIENT_REMOVED) == 1
        table = Path(found.data.file).read_bytes()
        [shares] = site.path("teachers").glob("*/shares.json")
        assert (LEAVER.encode() + b"," in table) is not is_done
        assert (f'"{LEAVER}"' in shares.read_text("utf-8")) is not is_done
        assert found.settings.data.rows == rows - 2 * is_done
        assert load_teachers(found, task).teachers == 4
        assert not [path for path in site.folder.parent.rglob("*") if path.suffix == ".next"]
        assert not erasure.is_pending(found)
        ends.add((is_dead, is_done))
    assert ends == {(True, False), (True, True), (False, True)}
    assert step > 20


def test_the_command_says_what_cannot_be_recalled(pate_party: PateParty, site: Site) -> None:
    line = ("data", "remove", "--patient", LEAVER, "--site", site.folder)
    shown = pate_party(*line, "--format", "json").json
    assert (shown["rows"], shown["teachers"], shown["kept_teachers"]) == (2, 1, 3)
    assert len(shown["not_recalled"]) == 4
    ended = pate_party(*line)
    assert (ended.code, error_code(ended)) == (5, "PF-377")

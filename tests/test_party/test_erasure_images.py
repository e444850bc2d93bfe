"""A patient with images leaves: the files, the list, one teacher, and nothing of the others."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from party.errors import DataError, ErasureError
from party.site import erasure
from party.site.own_table import add, read_registered, require_unchanged, units_of
from party.site.site import Site
from party.site.tasks import fetch_task
from party.site.training import folder_of, load_teachers, ready_teachers
from pate_fed.data.new_task import make_task
from pate_fed.data.task import LearningTask
from tests.support.hospital_site import make_site
from tests.support.own_images import (
    CLASSES,
    LABEL,
    picture,
    write_class_folders,
    write_public_images,
)
from tests.test_party.test_erasure import KilledError, Killer, content_of, remove
from tests.test_party.test_tasks import Door

LEAVER = "p007"


def as_folders(folder: Path) -> Path:
    own = write_class_folders(folder / "own")
    again = own / "dark" / LEAVER  # in two classes, one of them deeper, and beside a report
    (again / "series 2").mkdir(parents=True)
    Image.fromarray(picture(np.random.default_rng(3), 0)).save(again / "series 2" / "9.png")
    (again / "report.txt").write_text("of this patient")
    return own


def as_list(folder: Path) -> Path:
    own = write_class_folders(folder / "own")
    lines = [f"path,{LABEL},person"]
    for file in sorted(own.rglob("*.png")):
        name = file.relative_to(own)
        lines.append(f"./{name},{name.parts[0]},{name.parts[1]}")
    path = own / "list.csv"
    path.write_text("\r\n".join(lines) + "\r\n", newline="")
    return path


def as_archive(folder: Path) -> Path:
    rng = np.random.default_rng(4)
    units = [f"p{place // 2:03}" for place in range(80)]
    images = np.stack([picture(rng, place // 2 % 2) for place in range(80)])
    path = folder / "own.npz"
    path.parent.mkdir(parents=True)
    labels = [CLASSES[place // 2 % 2] for place in range(80)]
    np.savez(path, images=images, labels=labels, patients=units)
    return path


FORMS: dict[str, tuple[Callable[[Path], Path], str | None]] = {
    "folders": (as_folders, None),
    "list": (as_list, "person"),
    "archive": (as_archive, None),
}


def trained(folder: Path, form: str, *, model: str = "auto") -> tuple[Site, LearningTask]:
    make, column = FORMS[form]
    task = make_task(write_public_images(folder / "pool"), label=LABEL, classes=CLASSES)
    site = make_site(folder / "site")
    site = site.save(replace(site.settings, teacher_model=model))
    site, _ = add(site, make(folder / "hospital"), label=LABEL, patient_id=column)
    fetch_task(site, Door(task.to_bytes()), task.pool.digest)
    ready_teachers(site, task, random_bytes=secrets.token_bytes)
    return site, task


@pytest.mark.parametrize("form", FORMS)
def test_the_patients_images_go_and_one_teacher_is_new(tmp_path: Path, form: str) -> None:
    site, task = trained(tmp_path, form)
    folder = folder_of(site, task)
    before, held, rows = content_of(folder), content_of(tmp_path / "hospital"), site.data.rows
    shares = json.loads(before["shares.json"])
    [place] = [at for at, share in enumerate(shares) if LEAVER in share]

    changed = remove(site, LEAVER)

    after = content_of(folder)
    [changed_one] = [
        one for one in before if one.startswith("teacher-") and before[one] != after[one]
    ]
    assert changed_one.startswith(f"teacher-{place + 1:04d}.")
    assert LEAVER not in units_of(changed)
    assert len(set(units_of(changed))) == 39
    assert changed.data.rows == rows - (3 if form == "folders" else 2)
    assert changed.settings.teachers == site.settings.teachers
    left = content_of(tmp_path / "hospital")
    files = {name: content for name, content in held.items() if name.endswith((".png", ".txt"))}
    kept = {name: content for name, content in files.items() if LEAVER not in name}
    assert {name: left[name] for name in left if name.endswith((".png", ".txt"))} == kept
    if form == "folders":
        assert not list((tmp_path / "hospital").rglob(f"*{LEAVER}*"))
    if form == "list":
        lines = held["own/list.csv"].splitlines(keepends=True)
        others = [one for one in lines if LEAVER.encode() not in one]
        assert left["own/list.csv"].splitlines(keepends=True) == others
    require_unchanged(changed)
    votes = load_teachers(changed, task).vote(task.pool.views)
    assert (votes == np.arange(60) % 2).mean() > 0.95
    assert all(LEAVER.encode() not in one for one in content_of(site.folder).values())
    add(changed, Path(changed.data.file), label=LABEL, patient_id=FORMS[form][1])


@pytest.mark.slow  # torch
def test_a_convolution_is_trained_anew_without_the_patient(tmp_path: Path) -> None:
    site, task = trained(tmp_path, "folders", model="convolution")
    changed = remove(site, LEAVER)
    assert load_teachers(changed, task).teachers == site.settings.teachers


def a_link(site: Site) -> None:
    one = Path(site.data.file, "dark", LEAVER, "series 2", "9.png")
    target = one.rename(site.folder.parent / "elsewhere.png")
    one.symlink_to(target)


@pytest.mark.parametrize(
    ("form", "spoil", "patient"),
    [
        pytest.param("folders", None, "p999", id="an unknown patient"),
        pytest.param("list", None, "p999", id="an unknown patient of a list"),
        pytest.param("folders", None, "../dark/p000", id="a path"),
        pytest.param("folders", None, "..", id="a folder above"),
        pytest.param("folders", None, "", id="nobody"),
        pytest.param("folders", a_link, LEAVER, id="a link"),
    ],
)
def test_a_refusal_changes_nothing(
    tmp_path: Path, form: str, spoil: Callable[[Site], None] | None, patient: str
) -> None:
    site, _ = trained(tmp_path, form)
    if spoil is not None:
        spoil(site)
    before = content_of(tmp_path)
    with pytest.raises(ErasureError):
        remove(site, patient)
    assert content_of(tmp_path) == before


def test_folders_that_cannot_be_changed_are_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, _ = trained(tmp_path, "folders")
    before = content_of(tmp_path)
    with monkeypatch.context() as changed:  # whoever runs tests may be root
        changed.setattr("os.access", lambda path, *_, **__: not str(path).endswith("series 2"))
        with pytest.raises(ErasureError):
            remove(site, LEAVER)
    assert content_of(tmp_path) == before


def test_images_of_which_nobody_says_whose_they_are_stay(tmp_path: Path) -> None:
    own = tmp_path / "own"
    for place in range(20):
        file = own / CLASSES[place % 2] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(np.random.default_rng(place), place % 2)).save(file)
    site, _ = add(make_site(tmp_path / "site"), own, label=LABEL, patient_id=None)
    with pytest.raises(ErasureError):
        remove(site, "1")


def test_the_last_patients_stay(tmp_path: Path) -> None:
    own = write_class_folders(tmp_path / "own", patients=2)
    site, _ = add(make_site(tmp_path / "site"), own, label=LABEL, patient_id=None)
    with pytest.raises(DataError):
        remove(site, "p001")
    assert len(read_registered(site).labels) == 4  # type: ignore[union-attr]


@pytest.mark.slow  # a hospital for every file operation
@pytest.mark.parametrize("form", ["folders", "list"])
def test_a_kill_at_any_moment_leaves_no_half(tmp_path: Path, form: str) -> None:
    killer, ends, is_dead, step = Killer(), set(), True, 0
    while is_dead:
        place = tmp_path / str(step)
        make, column = FORMS[form]
        site, _ = add(
            make_site(place / "site"), make(place / "own"), label=LABEL, patient_id=column
        )
        rows = site.data.rows
        killer.folder, killer.left, killer.touched = str(place), step, 0
        try:
            remove(site, LEAVER)
            is_dead = False
        except KilledError:
            step += 1
        finally:
            killer.folder = ""
        with site.open_database() as database:
            found = erasure.finish(Site.open(site.folder), database)
        require_unchanged(found)
        is_gone = LEAVER not in units_of(found)
        assert is_gone is (found.data.rows < rows)
        assert not list(place.rglob(f"*{erasure._NEXT}"))
        ends.add(is_gone)
    assert ends == {True, False}

"""Tasks that come from the coordinator: only what was asked for, checked again at every reading."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from party.errors import TaskError
from party.site.site import Site
from party.site.tasks import fetch_task, read_task
from pate_fed.data.task import LearningTask
from tests.support.hospital_site import make_site, public_task


class Door:
    """A coordinator that says one thing."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked = 0

    def fetch_pool(self, digest: bytes) -> bytes:
        self.asked += 1
        return self.content


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_site(tmp_path / "site")


@pytest.fixture
def task(tmp_path: Path) -> LearningTask:
    return public_task(tmp_path)


def test_a_task_is_fetched_once_and_kept(site: Site, task: LearningTask) -> None:
    door, digest = Door(task.to_bytes()), task.pool.digest
    for _ in range(2):
        assert fetch_task(site, door, digest).digest == task.digest
    assert door.asked == 1
    path = site.path("pools", digest.hex())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_task(Site.open(site.folder), digest).digest == task.digest


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(
            lambda task: replace(task, rows=task.rows.pick(range(59))).to_bytes(), id="another pool"
        ),
        pytest.param(lambda task: task.to_bytes()[:-1], id="cut"),
        pytest.param(lambda task: b"", id="nothing"),
        pytest.param(lambda task: b"\x93NUMPY" + bytes(100), id="an array"),
    ],
)
def test_what_was_not_asked_for_is_not_kept(
    site: Site, task: LearningTask, spoil: Callable[[LearningTask], bytes]
) -> None:
    with pytest.raises(TaskError):
        fetch_task(site, Door(spoil(task)), task.pool.digest)
    assert not list(site.path("pools").iterdir())


def test_a_kept_file_that_changed_is_refused(site: Site, task: LearningTask) -> None:
    fetch_task(site, Door(task.to_bytes()), task.pool.digest)
    path = site.path("pools", task.pool.digest.hex())
    path.write_bytes(replace(task, rows=task.rows.pick(range(59))).to_bytes())
    with pytest.raises(TaskError, match="pool"):
        read_task(site, task.pool.digest)
    with pytest.raises(TaskError):
        fetch_task(site, Door(task.to_bytes()), task.pool.digest)


def test_a_task_that_nobody_fetched_is_not_there(site: Site, task: LearningTask) -> None:
    with pytest.raises(TaskError, match="readable"):
        read_task(site, task.pool.digest)


@pytest.mark.parametrize("digest", [b"", bytes(31), b"../" * 11])
def test_a_digest_is_no_path(site: Site, task: LearningTask, digest: bytes) -> None:
    door = Door(task.to_bytes())
    with pytest.raises(TaskError):
        fetch_task(site, door, digest)
    assert not door.asked

"""A file that is read is regular, and no longer than its reader allows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from party.errors import SiteError
from party.site.own_table import file_digest
from party.site.site import SiteSettings
from party.site.status_file import read_status
from pate_fed.data.csv_file import read_csv
from pate_fed.data.vote_file import load_vote_counts
from pate_fed.nodes import read_settings
from pate_fed.regular_files import open_regular, read_regular


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**33)  # of holes: it takes no room


MAKERS = [
    pytest.param(make_pipe, id="a pipe that nobody writes to"),
    pytest.param(make_device, id="a device without an end"),
    pytest.param(make_large, id="eight gigabytes"),
    pytest.param(Path.mkdir, id="a folder"),
]


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_no_regular_file_of_bounded_size_is_not_read(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "file")
    for read in (open_regular, read_regular):
        with pytest.raises(OSError):  # noqa: PT011 - the kind that each reader tells with its code
            read(tmp_path / "file")


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_regular(link, most_bytes=3) == b"abc"
    with pytest.raises(OSError, match="2 bytes"):
        read_regular(path, most_bytes=2)


READERS: dict[str, Callable[[Path], object]] = {
    "party.toml": lambda path: read_settings(
        path, SiteSettings, version=1, advice="be there", fault=SiteError
    ),
    "status": read_status,
    "a table": read_csv,
    "a table's digest": file_digest,
    "votes": load_vote_counts,
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", READERS)
def test_each_reader_has_a_code_for_it(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / "file.npy")
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the node's own, each of another tree
        READERS[name](tmp_path / "file.npy")
    assert raised.value.code.startswith(("PF-1", "PF-3"))  # type: ignore[attr-defined]

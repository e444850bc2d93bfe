"""The chained file of both ends: its bytes are for ever, and one end's is not the other's.

What it survives is tried through its owners: test_party/test_file_journal.py and
test_coordinator/test_run_files.py.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from coordinator.run_files import STEPS
from party.file_journal import FORMAT, FileJournal
from protocols.chained_log import MAX_RECORD_BYTES, ChainedLog, LogFaults


class LockedError(Exception):
    pass


class DamagedError(Exception):
    pass


class StorageError(Exception):
    pass


FAULTS = LogFaults(LockedError, DamagedError, StorageError)


def test_the_bytes_of_a_partys_journal_are_those_of_its_first_version(tmp_path: Path) -> None:
    """Computed by the code that wrote journals before this module was one."""
    with FileJournal(tmp_path / "j") as journal:
        journal.claim([b"q" * 32])
        journal.begin(run_id=b"r" * 32, epoch=1, plan_digest=b"p" * 32)
        journal.keep(b"p" * 32, b"y" * 100)
        journal.witness({b"peer": 3})
        journal.erase(b"p" * 32)
        journal.halt(9)
        journal.resume()
        head = journal.head.hex()
    written = (tmp_path / "j" / "journal").read_bytes()
    assert hashlib.sha256(written).hexdigest() == (
        "451367f21840444337918ef4cfab176e68bbfb5a3469e7b7fdbf2c8bc215a312"
    )
    assert head == "51bbe076696af179736282689375ec8b585615f93a00e3411cf2f39c71a5d48f"


def test_one_ends_records_do_not_fit_the_others_log(tmp_path: Path) -> None:
    assert STEPS.first_link != FORMAT.first_link
    record, link = STEPS.record(STEPS.first_link, b"\x80")
    assert FORMAT.record(STEPS.first_link, b"\x80") != (record, link)
    (tmp_path / "log").write_bytes(FORMAT.first_line + record)
    log = ChainedLog(tmp_path / "log", form=FORMAT, faults=FAULTS)
    with pytest.raises(DamagedError):
        list(log.replay())
    log.close()


def test_its_owners_errors_are_raised(tmp_path: Path) -> None:
    log = ChainedLog(tmp_path / "log", form=STEPS, faults=FAULTS)
    assert list(log.replay()) == []
    with pytest.raises(LockedError):
        ChainedLog(tmp_path / "log", form=STEPS, faults=FAULTS)
    with pytest.raises(StorageError):
        log.append(["too much", bytes(MAX_RECORD_BYTES)])
    log.append(["fits"])
    log.close()
    with pytest.raises(StorageError):
        log.append(["closed"])
    again = ChainedLog(tmp_path / "log", form=STEPS, faults=FAULTS)
    assert list(again.replay()) == [["fits"]]
    again.close()

"""The chained file of both ends: its bytes are for ever, and one end's is not the other's.

What it survives is tried through its owners: test_party/test_file_journal.py and
test_coordinator/test_run_files.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


from party.file_journal import FORMAT, FileJournal
from party.journal import SketchedQueries
from protocols.chained_log import MAX_RECORD_BYTES, ChainedLog, LogFaults
from protocols.rounds import RetrySet
from tests.support.make_format_vectors import some_bytes
from tests.support.vectors import read_vectors


class LockedError(Exception):
    pass


class DamagedError(Exception):
    pass


class StorageError(Exception):
    pass


FAULTS = LogFaults(LockedError, DamagedError, StorageError)


def test_a_party_writes_the_known_journal(tmp_path: Path) -> None:
    """The file of the vectors, by a second implementation, from the calls that it stands for."""
    known = read_vectors("journals")
    plan, peer, run = some_bytes("plan"), some_bytes("peer"), some_bytes("run")
    first, second, third = (some_bytes(f"query {place}") for place in range(3))
    sketch = np.arange(33, dtype=np.float32)[np.newaxis] / 8
    with FileJournal(tmp_path / "j") as journal:
        journal.keep_sketches(
            SketchedQueries((first, second), np.repeat(sketch, 2, axis=0), np.array([False, True]))
        )
        journal.claim([first, second], plan_digest=plan)
        journal.begin(run_id=run, epoch=1, plan_digest=plan)
        frames = (some_bytes("shares", 60), some_bytes("y", 100))
        journal.keep(plan, frames, expires_at=2_000)
        journal.witness({peer: 12})
        journal.erase(plan)
        both = frozenset({some_bytes("one party"), peer})
        journal.release(plan, RetrySet(both - {peer}, both))
        journal.abandon(some_bytes("plan 1"))
        journal.halt(100)
        journal.resume()
        journal.claim([first, third], plan_digest=some_bytes("plan 2"), seats=both)
        journal.begin(run_id=run, epoch=2, plan_digest=some_bytes("plan 2"))
        assert journal.head.hex() == known["good"]["head"]
    assert (tmp_path / "j" / "journal").read_bytes().hex() == known["good"]["file"]


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

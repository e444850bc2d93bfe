"""A run in files: the reference form, used by tests; the service uses its database.

Its steps are in a chained log, its results in one document that is replaced whole. One folder,
readable by its owner alone::

    steps       the round's journal, a `ChainedLog`; it is locked as long as it is open
    results     ledger, batches and releases: a line with a checksum, then JSON

and one file beside the runs, ``statements``, of what parties signed of their journals' counters.
Both documents are written to another file, which then takes their place, with `fsync` before and
after: a crash leaves the old one or the new one. No vote, share or sum is in any of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from coordinator.errors import RunDamagedError, RunLockedError, RunStorageError
from coordinator.store import AskedBatch, BatchState, MemoryStore
from pate_fed.accounting import OutcomeLedger, Outcomes, PrivacyLedger
from pate_fed.charging import RunLedger
from pate_fed.errors import PateFedError
from pate_fed.mechanisms import FirstPhase
from pate_fed.releases import NoisyRelease
from protocols.chained_log import ChainedLog, LogFaults, LogFormat, write_file
from protocols.errors import BrokenJournalError
from protocols.rounds import CoordinatorJournal
from protocols.rounds.coordinator_journal import Step, step_from_record, step_to_record

STEPS = LogFormat(b"pate-fed coordinator journal 1\n", b"pate-fed/1/coordinator journal\0")
_FAULTS = LogFaults(RunLockedError, RunDamagedError, RunStorageError)
_RESULTS = "pate-fed results 1"
_STATEMENTS = "pate-fed statements 1"


class FileCoordinatorJournal(CoordinatorJournal):
    """The steps of one run in a file. One process at a time may have it open.

    Args:
        folder: The run's; made if it is missing, its parent must be there.

    Raises:
        RunLockedError: another process (or object) has it open.
        RunDamagedError: it does not fit itself.
        RunStorageError: it cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        _make(folder)
        self._log = ChainedLog(folder / "steps", form=STEPS, faults=_FAULTS)
        try:
            self._steps = [step_from_record(body) for body in self._log.replay()]
        except BrokenJournalError as error:
            self.close()
            raise RunDamagedError(error.must, error.got) from error
        except BaseException:
            self.close()
            raise

    def append(self, step: Step) -> None:
        """See `CoordinatorJournal.append`."""
        self._log.append(step_to_record(step))
        self._steps.append(step)

    def steps(self) -> tuple[Step, ...]:
        """See `CoordinatorJournal.steps`."""
        return tuple(self._steps)

    def close(self) -> None:
        """Let go of the file; nothing more can be written."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FileCoordinatorJournal(steps={len(self._steps)})"


class FileStore(MemoryStore):
    """A run's results in a file. The journal beside it holds the lock.

    Every change writes the whole document, so a run of very many batches wants a database.

    Args:
        folder: The run's; made if it is missing, its parent must be there.
        ledger: The run's, empty: what is on disk has to be of the same budgets and caps.
        statements: File of all runs of this coordinator; made if it is missing.

    Raises:
        RunDamagedError: a document does not fit itself, or is of other terms.
        RunStorageError: a file cannot be read or written.
    """

    def __init__(self, folder: Path, ledger: RunLedger, *, statements: Path) -> None:
        _make(folder)
        self._file = folder / "results"
        self._statements_file = statements
        known = _read(statements, _STATEMENTS) or {}
        super().__init__(ledger, statements=_hex_pairs(known))
        record = _read(self._file, _RESULTS)
        if record is not None:
            try:
                self._load(record)
            except (LookupError, TypeError, ValueError, PateFedError) as error:
                raise RunDamagedError("a run's results must be readable", "others") from error

    def save_ledger(self, ledger: RunLedger) -> None:
        """See `RunStore.save_ledger`."""
        super().save_ledger(ledger)
        self._write()

    def save_first_phase(self, batch: int, first: FirstPhase) -> None:
        """See `RunStore.save_first_phase`."""
        super().save_first_phase(batch, first)
        self._write()

    def save_release(
        self, ledger: RunLedger, *, batch: int, indices: tuple[int, ...], release: NoisyRelease
    ) -> None:
        """See `RunStore.save_release`."""
        super().save_release(ledger, batch=batch, indices=indices, release=release)
        self._write()

    def save_run_id(self, run_id: bytes) -> None:
        """See `RunStore.save_run_id`."""
        super().save_run_id(run_id)
        self._write()

    def save_statements(self, statements: Mapping[bytes, bytes]) -> None:
        """See `RunStore.save_statements`."""
        super().save_statements(statements)
        record = {party.hex(): frame.hex() for party, frame in self._statements.items()}
        _write(self._statements_file, _STATEMENTS, record)

    def _write(self) -> None:
        _write(self._file, _RESULTS, self._record())

    def _record(self) -> dict[str, Any]:
        ledger = self.ledger()
        return {
            "run_id": self._run_id.hex(),
            "costs": [cost.to_record() for cost in ledger.costs],
            "outcomes": ledger.outcomes.to_record(),
            "batches": [self._batch_record(each) for each in self.asked().values()],
        }

    def _batch_record(self, asked: AskedBatch) -> dict[str, Any]:
        _, release = self._releases.get(asked.number, ((), None))
        first = self._first_phases.get(asked.number)
        left = asked.left
        return {
            "number": asked.number,
            "indices": list(asked.indices),
            "left": [left.refusals, left.answers, left.asks],
            "predictions": None if asked.predictions is None else asked.predictions.tolist(),
            "state": asked.state.value,
            "first_phase": None if first is None else first.as_record(),
            "release": None if release is None else release.as_record(),
        }

    def _load(self, record: dict[str, Any]) -> None:
        costs = tuple(PrivacyLedger.from_record(each) for each in record["costs"])
        outcomes = OutcomeLedger.from_record(record["outcomes"])
        empty = self._ledger
        same = outcomes.caps == empty.outcomes.caps and [_budget(each) for each in costs] == [
            _budget(each) for each in empty.costs
        ]
        if not same:
            raise RunDamagedError("a run's results must be of its terms", "others")
        self._ledger = replace(empty, costs=costs, outcomes=outcomes)
        self._run_id = bytes.fromhex(record["run_id"])
        for each in record["batches"]:
            self._load_batch(each)

    def _load_batch(self, record: dict[str, Any]) -> None:
        number, indices = record["number"], tuple(record["indices"])
        predictions = record["predictions"]
        self._asked[number] = AskedBatch(
            number,
            indices,
            Outcomes(*record["left"]),
            None if predictions is None else np.array(predictions, dtype=np.float64),
            BatchState(record["state"]),
        )
        if record["first_phase"] is not None:
            self._first_phases[number] = FirstPhase.from_record(record["first_phase"])
        if record["release"] is not None:
            self._releases[number] = indices, NoisyRelease.from_record(record["release"])

    def __repr__(self) -> str:
        return f"FileStore(batches={len(self._asked)})"


def _budget(ledger: PrivacyLedger) -> tuple[float, float, float | None, float]:
    return ledger.epsilon, ledger.delta, ledger.order, ledger.additive_delta


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise RunStorageError("a run's folder must be made", error.strerror) from error


def _write(path: Path, title: str, record: dict[str, Any]) -> None:
    body = json.dumps(record, sort_keys=True).encode()
    try:
        write_file(path, f"{title} {hashlib.sha256(body).hexdigest()}\n".encode() + body)
    except OSError as error:
        raise RunStorageError("a run's files must be written", error.strerror) from error


def _read(path: Path, title: str) -> dict[str, Any] | None:
    """Return a document's content; None if there is none yet."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunStorageError("a run's files must be read", error.strerror) from error
    line, _, body = content.partition(b"\n")
    if line != f"{title} {hashlib.sha256(body).hexdigest()}".encode():
        raise RunDamagedError(f"{path.name} must be as it was written", "otherwise")
    record = json.loads(body)
    if not isinstance(record, dict):
        raise RunDamagedError(f"{path.name} must be a table", "otherwise")
    return record


def _hex_pairs(record: dict[str, Any]) -> dict[bytes, bytes]:
    try:
        return {bytes.fromhex(party): bytes.fromhex(frame) for party, frame in record.items()}
    except (TypeError, ValueError) as error:
        raise RunDamagedError("statements must be readable", "others") from error

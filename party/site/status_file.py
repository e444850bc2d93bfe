"""The status of a hospital's node, for others on its machine: states, codes and counts, no vote."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from party.errors import NodeStartError, StorageError
from pate_fed.nodes import checked, write_file
from pate_fed.regular_files import MOST_SETTINGS_BYTES, read_regular

if TYPE_CHECKING:
    from party.storage import PartyDatabase

SCHEMA_VERSION = 1
FILE = "status.json"
FRESH_S = 60.0
"""Longest time between two writes of a live node."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FederationStatus:
    """The node's status in one federation; digests and ids are in hex, times 0 without an event.

    Counts are since the start; batches that were charged, then answered or passed over in silence,
    are answered ones. `state` is "connecting" or "ready", `membership` "requested", "member" or
    "revoked", from the coordinator's last answer, at `heard_at`; empty before the first.
    """

    state: str = "connecting"
    run: str = ""
    round_state: str = ""
    transcript_head: str = ""
    last_message_at: float = 0.0
    last_refusal: str = ""
    last_refusal_at: float = 0.0
    last_fault: str = ""
    last_fault_at: float = 0.0
    runs_accepted: int = 0
    batches_answered: int = 0
    batches_refused: int = 0
    supernode_starts: int = 0
    membership: str = ""
    heard_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """The node's status: "starting", "running", "paused" or "stopped".

    `at` is the Unix time of writing, in seconds; `tasks` counts approved tasks whose teachers are
    ready, `waiting` approvals that wait for a person. `trouble` is the code of the fault that keeps
    the node or an approved task from answering; empty if there is none.
    """

    state: str
    at: float
    pid: int
    tasks: int = 0
    waiting: int = 0
    trouble: str = ""
    federations: dict[str, FederationStatus] = field(default_factory=dict)

    def is_alive(self, *, now: float) -> bool:
        """Tell whether the node wrote its status a moment ago."""
        return self.state != "stopped" and now - self.at <= FRESH_S


class LiveStatus:
    """The status that a running node writes; a failure to write it stops nothing."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._said_at = 0.0
        self.status = Status("starting", clock(), os.getpid())
        self.store_fault = ""

    @property
    def is_due(self) -> bool:
        """Whether a live node has to write it again."""
        return not 0 <= self._clock() - self._said_at < FRESH_S / 4

    def say(self, **changed: Any) -> None:
        """Write the status of a node that has started, with changes; one that stopped stays so."""
        if self.status.state == "stopped":
            changed["state"] = "stopped"
        self._said_at = self._clock()
        self.write(**changed)

    def write(self, **changed: Any) -> None:
        """Write the status, with changes."""
        self.status = replace(self.status, at=self._clock(), **changed)
        try:
            write_status(self._path, self.status)
        except OSError as error:
            _log.error("the status cannot be written: %s", error.strerror)
            self.store_fault = StorageError.code

    def try_to_store(self, database: PartyDatabase) -> None:
        """Try whether anything can be stored: otherwise everything is refused."""
        try:
            database.require_room()
        except StorageError as error:
            if not self.store_fault:
                _log.error("nothing can be stored: %s", error)
            self.store_fault = error.code
        else:
            self.store_fault = ""


def write_status(path: Path, status: Status) -> None:
    """Replace the status, whole or not at all."""
    content = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(status)}, indent=1)
    write_file(path, (content + "\n").encode())


def read_status(path: Path) -> Status | None:
    """Return the status; None where no node ever started, `NodeStartError` if it is malformed."""
    try:
        record = json.loads(read_regular(path, most_bytes=MOST_SETTINGS_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise NodeStartError(f"{path.name} must be readable", type(error).__name__) from error
    if not isinstance(record, dict) or record.pop("schema_version", None) != SCHEMA_VERSION:
        raise NodeStartError(f"{path.name} must be of version {SCHEMA_VERSION}")
    status = checked(Status, record, where=f"{path.name}: ", fault=NodeStartError)
    if asdict(status) != record:  # a field is not there
        raise NodeStartError(f"{path.name} must be as it was written")
    return status


def known_status(path: Path) -> Status | None:
    """Return the status; None where there is none that this version can read."""
    try:
        return read_status(path)
    except NodeStartError:
        return None

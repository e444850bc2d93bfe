"""A hospital's database: one SQLite file. One process is its node; the erased is gone."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Connection

from party.errors import JournalLockedError, StorageDamagedError, StorageError, StorageVersionError
from party.storage.site_schema import SiteRow
from pate_fed.nodes import is_locked, take_lock
from pate_fed.nodes.database import NodeDatabase
from pate_fed.nodes.owner_files import OWNER_ONLY, as_fault

_ROOM_FILE = ".room"
_ROOM_BYTES = 2**20
"""More than one batch of usual size takes."""


class PartyDatabase(NodeDatabase):
    """A hospital's database; see `NodeDatabase`. One of the processes that open it is its node."""

    package = "party.storage"
    newest = "0001"
    tables = SiteRow.metadata
    fault = StorageError
    version_fault = StorageVersionError
    damage_fault = StorageDamagedError
    emptied = "the database must hold what was made with the site"
    pragmas = ("secure_delete=ON",)  # deleted content is overwritten

    _node_lock = -1

    def __init__(self, url: str, *, is_new: bool = False) -> None:
        super().__init__(url, is_new=is_new, upgrades=True)

    @classmethod
    def at(cls, path: Path) -> PartyDatabase:
        """Open the database in a file; see `PartyDatabase`."""
        return cls(f"sqlite:///{path}")

    @classmethod
    def create(cls, path: Path) -> PartyDatabase:
        """Make one in a new file; see `PartyDatabase`."""
        return cls(f"sqlite:///{path}", is_new=True)

    # Calls ------------------------------------------------------------------------------------

    def become_node(self) -> None:
        """Claim the journal and the ledger for this process, until `close`; again is nothing."""
        if self._is_in_memory or self._node_lock >= 0:
            return
        try:
            self._node_lock = take_lock(_lock_of(self.path))
        except BlockingIOError as error:
            raise JournalLockedError(
                "one process must be a site's node", "a second one: the node runs already"
            ) from error
        except OSError as error:
            raise StorageError("the node's lock must be made", error.strerror) from error

    @property
    def is_node(self) -> bool:
        """Whether this process may write journal and ledger."""
        is_ours = self._is_in_memory or self._node_lock >= 0
        return is_ours and os.getpid() == self._process

    def require_room(self, size: int = 0) -> None:
        """Store something, as a decision would be stored with `size` bytes, and take it back."""
        if self._is_in_memory:
            return
        room = self.path.with_name(_ROOM_FILE)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with as_fault(StorageError, "the disk must have room"):
            held = os.open(room, flags, OWNER_ONLY)
            try:
                # A write goes to disk twice: ahead, and in its place.
                os.posix_fallocate(held, 0, _ROOM_BYTES + 2 * size)
            finally:
                os.close(held)
                room.unlink(missing_ok=True)
        self.try_to_write()

    def close(self) -> None:
        """Let go of the file, and of the node's lock."""
        super().close()
        if self._node_lock >= 0:
            os.close(self._node_lock)
            self._node_lock = -1

    @property
    def path(self) -> Path:
        """Its file."""
        assert self._engine.url.database is not None
        return Path(self._engine.url.database)

    def __repr__(self) -> str:
        return f"PartyDatabase({'in memory' if self._is_in_memory else self.path.name})"

    def _require_whole(self, connection: Connection) -> None:
        """Only the owner can know the losses of a damaged journal."""
        if connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok":
            raise StorageDamagedError("the database must fit itself", "damage")


def has_node(path: Path) -> bool:
    """Tell whether a process is the node of the database in a file; see `is_locked`."""
    return is_locked(_lock_of(path))


def _lock_of(path: Path) -> Path:
    """Return a node's lock file: closing one that SQLite locks would drop SQLite's locks."""
    return path.with_name(f"{path.name}.lock")

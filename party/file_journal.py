"""A party's journal in files: the reference form, used by tests; a service uses its database.

What it was told before it acted is there after any crash (rule R4).

One folder, readable by its owner alone::

    journal     one append-only file: a first line, then records
    vectors/    one file for each y that may have to be sent again, named for its plan's digest

The file is a `ChainedLog`. A record that a crash left unfinished at its end was never reported as
written: it is dropped. Anything else that does not fit is damage, which stops the party: only its
owner can know what was answered.

What answers a plan has a file of its own, so that it can be erased: how many frames (1 byte), the
length of each (4 bytes), then the frames one after another. The record holds the file's hash.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from party.errors import JournalDamagedError, JournalLockedError, JournalStorageError
from party.journal import MemoryJournal, SketchedQueries
from pate_fed.query_sketches import SKETCH_BYTES, from_bytes, to_bytes
from protocols.chained_log import ChainedLog, LogFaults, LogFormat, sync_folder, write_file
from protocols.errors import KeyReuseError, RestoredJournalError
from protocols.rounds import RetrySet

FIRST_LINE = b"pate-fed journal 1\n"
FORMAT = LogFormat(FIRST_LINE, b"pate-fed/1/journal\0")
_FAULTS = LogFaults(JournalLockedError, JournalDamagedError, JournalStorageError)
_SKETCHES_OF_A_RECORD = 10_000


class FileJournal(MemoryJournal):
    """Both journals of a party, in a folder. One process at a time may have it open.

    Args:
        folder: Where it is; made if it is missing, its parent must be there.

    Raises:
        JournalLockedError: another process (or object) has it open.
        JournalDamagedError: it does not fit itself.
        JournalStorageError: it cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._vectors = folder / "vectors"
        self._kept: dict[bytes, bytes] = {}
        self._log = _open(folder, self._vectors)
        try:
            self._replay()
            with self._log.storage("be read"):
                self._drop_leftovers()
        except BaseException:
            self.close()
            raise

    # What others may know ---------------------------------------------------------------------

    @property
    def head(self) -> bytes:
        """Link of the last record, 32 bytes: it commits to all of them and to their order."""
        return self._log.head

    # Calls ------------------------------------------------------------------------------------

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """See `RoundJournal.begin`."""
        self._require_new(run_id=run_id, epoch=epoch, plan_digest=plan_digest)
        self._append(["begin", run_id, epoch, plan_digest])

    def abandon(self, plan_digest: bytes) -> None:
        """See `RoundJournal.abandon`."""
        if self._is_new_promise(plan_digest):
            self._append(["abandon", plan_digest])

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """See `RoundJournal.keep`."""
        self._require_open(plan_digest)
        pieces = (_index_of(frames), *frames)
        with self._log.writing():
            # The y first: a record must never speak of one that is not there.
            write_file(self._vector_of(plan_digest), *pieces)
        self._append(["keep", plan_digest, _digest_of(pieces), expires_at])

    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        """See `RoundJournal.find`; raises `JournalDamagedError` if the y was changed or lost."""
        digest = self._kept.get(plan_digest)
        if digest is None:
            return None
        try:
            with self._log.storage("be read"):
                pieces = _read_pieces(self._vector_of(plan_digest))
        except JournalStorageError as error:
            raise JournalDamagedError("a y that was kept must be there", "none") from error
        if _digest_of(pieces) != digest:
            raise JournalDamagedError("a y must be the one that was kept", "another")
        _, *frames, _ = pieces
        return tuple(frames)

    def fix_survivors(self, plan_digest: bytes, survivors_digest: bytes) -> None:
        """See `RoundJournal.fix_survivors`."""
        if self._is_new_set(plan_digest, survivors_digest):
            self._append(["survivors", plan_digest, survivors_digest])

    def erase(self, plan_digest: bytes) -> None:
        """See `RoundJournal.erase`."""
        if plan_digest not in self._kept:
            return
        self._append(["erase", plan_digest])
        with self._log.writing():
            self._vector_of(plan_digest).unlink(missing_ok=True)
            sync_folder(self._vectors)

    def claim(
        self,
        queries: Sequence[bytes],
        *,
        plan_digest: bytes,
        seats: Collection[bytes] | None = None,
    ) -> None:
        """See `QueryJournal.claim`."""
        self._require_unanswered(queries, plan_digest=plan_digest, seats=seats)
        self._append(["claim", plan_digest, list(queries)])

    def release(self, plan_digest: bytes, retry: RetrySet) -> None:
        """See `QueryJournal.release`."""
        if self._is_to_release(plan_digest):
            others = sorted(retry.allowed - retry.needed)
            self._append(["release", plan_digest, sorted(retry.needed), others])

    def keep_sketches(self, batch: SketchedQueries) -> None:
        """See `QueryJournal.keep_sketches`."""
        sketches, near = to_bytes(batch.sketches), batch.near.tolist()
        for start in range(0, len(batch.queries), _SKETCHES_OF_A_RECORD):
            part = slice(start, start + _SKETCHES_OF_A_RECORD)
            items = zip(batch.queries[part], sketches[part], near[part], strict=True)
            self._append(["sketches", [list(item) for item in items]])

    def witness(self, counters: Mapping[bytes, int]) -> None:
        """See `RoundJournal.witness`."""
        news = self._news(counters)
        if news:
            self._append(["witness", [[peer, count] for peer, count in sorted(news.items())]])

    def halt(self, counter: int) -> None:
        """See `RoundJournal.halt`."""
        if counter > self._halted_at:
            self._append(["halt", counter])

    def resume(self) -> None:
        """Go on after a halt, because the owner said so; the counter moves past what was signed.

        The owner vouches that no query that was answered meanwhile is missing here.
        """
        if self._halted_at:
            self._append(["resume"])

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
        return f"FileJournal(records={self.counter})"

    # Records ----------------------------------------------------------------------------------

    def _append(self, body: list[Any]) -> None:
        """Write a record, wait until it is on disk, and only then act on it."""
        self._log.append(body)
        self._apply(body)

    def _apply(self, body: list[Any]) -> None:
        """Do in memory what a record says; whatever does not fit is damage."""
        match body:
            case ["begin", bytes(run_id), int(epoch), bytes(plan_digest)]:
                self._note_begin(run_id=run_id, epoch=epoch, plan_digest=plan_digest)
            case ["abandon", bytes(plan_digest)]:
                if not self._is_new_promise(plan_digest):
                    raise JournalDamagedError("a plan must be abandoned once", "again")
                self._note_abandoned(plan_digest)
            case ["keep", bytes(plan_digest), bytes(digest), int(expires_at)]:
                self._require_open(plan_digest)
                self._answered.add(plan_digest)
                self._kept[plan_digest] = digest
                self._expiries[plan_digest] = expires_at
            case ["survivors", bytes(plan_digest), bytes(digest)]:
                if not self._is_new_set(plan_digest, digest):
                    raise JournalDamagedError("a survivor set must be noted once", "again")
                self._survivors[plan_digest] = digest
            case ["erase", bytes(plan_digest)]:
                del self._kept[plan_digest], self._expiries[plan_digest]
            case ["halt", int(counter)]:
                self._halted_at = counter
            case ["resume"]:
                self._counter = max(self._counter, self._halted_at)
                self._halted_at = 0
            case _:
                self._apply_knowledge(body)
        self._counter += 1

    def _apply_knowledge(self, body: list[Any]) -> None:
        """Do the same for records of queries and of peers."""
        match body:
            case ["claim", bytes(plan_digest), [*queries]] if _are_bytes(queries):
                self._note_claim(plan_digest, queries)
            case ["release", bytes(plan_digest), [*needed], [*others]] if _are_bytes(needed):
                if not (_are_bytes(others) and self._is_to_release(plan_digest)):
                    raise JournalDamagedError("queries must be claimed to be freed", "none")
                everybody = frozenset(needed) | frozenset(others)
                self._note_release(plan_digest, RetrySet(frozenset(needed), everybody))
            case ["sketches", [*items]]:
                self._note_sketches(*zip(*map(_sketch_of, items), strict=True))
            case ["witness", [*pairs]]:
                self._witnessed.update(map(_counter_of, pairs))
            case _:
                raise JournalDamagedError("a record must be of a known kind", "another")

    # Opening ----------------------------------------------------------------------------------

    def _replay(self) -> None:
        for body in self._log.replay():
            try:
                self._apply(body)
            except (
                KeyReuseError,
                RestoredJournalError,
                LookupError,
                TypeError,
                ValueError,
            ) as error:
                raise JournalDamagedError("records must fit one another", "others") from error

    def _drop_leftovers(self) -> None:
        """Remove files of y's that were not kept in the end, or that should be gone."""
        known = {self._vector_of(plan).name for plan in self._kept}
        for file in self._vectors.iterdir():
            if file.name not in known:
                file.unlink()
        sync_folder(self._vectors)

    def _vector_of(self, plan_digest: bytes) -> Path:
        return self._vectors / plan_digest.hex()


def _open(folder: Path, vectors: Path) -> ChainedLog:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        vectors.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise JournalStorageError("a journal must be opened", error.strerror) from error
    return ChainedLog(folder / "journal", form=FORMAT, faults=_FAULTS)


def _index_of(frames: tuple[bytes, ...]) -> bytes:
    """What stands before the frames in their file: how many, and the length of each."""
    return bytes([len(frames)]) + b"".join(len(frame).to_bytes(4, "big") for frame in frames)


def _read_pieces(file: Path) -> tuple[bytes, ...]:
    """Read the index, the frames and what follows, each where it will stay; to be checked."""
    with file.open("rb") as stored:
        room = os.fstat(stored.fileno()).st_size
        count = stored.read(1)
        lengths = stored.read(4 * count[0] if count else 0)
        sizes = [int.from_bytes(lengths[at : at + 4], "big") for at in range(0, len(lengths), 4)]
        # A length that was changed must not ask for more memory than there is file.
        frames = [stored.read(min(size, room)) for size in sizes]
        return (count + lengths, *frames, stored.read())


def _digest_of(pieces: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _counter_of(pair: object) -> tuple[bytes, int]:
    match pair:
        case [bytes(peer), int(count)]:
            return peer, count
        case _:
            raise JournalDamagedError("a witness must be a counter", "another")


def _sketch_of(item: object) -> tuple[bytes, bytes, bool]:
    match item:
        case [bytes(query), bytes(sketch), bool(near)] if len(sketch) == SKETCH_BYTES:
            from_bytes(sketch)  # refuses what is no number
            return query, sketch, near
        case _:
            raise JournalDamagedError("a sketch must be of a query", "another")


def _are_bytes(items: list[Any]) -> bool:
    return all(type(item) is bytes for item in items)

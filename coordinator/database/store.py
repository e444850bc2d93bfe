"""What the coordinator must not lose: its ledger, what it asked and what it released.

`MemoryStore` keeps it in memory, for simulations and tests. The round's own steps are in a
`CoordinatorJournal`. Where a batch begins and where it ends, both are written `together`: a charge
and the step that it is for are stored as a whole or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pate_fed.accounting import Outcomes
from pate_fed.charging import RunLedger
from pate_fed.mechanisms import FirstPhase
from pate_fed.releases import NoisyRelease
from protocols import wire
from protocols.errors import ProtocolError
from protocols.messages import HeadStatement, KeyStatement, Ready


class BatchState(StrEnum):
    """What became of a batch that was asked."""

    OPEN = "open"
    RELEASED = "released"
    VOID = "void"
    FREED = "freed"  # void, and its queries may be asked again: its sum never opens


@dataclass(frozen=True, slots=True, eq=False)
class AskedBatch:
    """A batch as it was asked.

    Attributes:
        number: Its number in the run.
        indices: Positions in the pool.
        left: What the caps allowed before it was reserved.
        predictions: What the student believed, if it was asked with that; float64, shape
            (queries, classes). Public.
        state: What became of it.
    """

    number: int
    indices: tuple[int, ...]
    left: Outcomes
    predictions: NDArray[np.float64] | None = field(default=None, repr=False)
    state: BatchState = BatchState.OPEN

    @property
    def entry_id(self) -> str:
        """Its name in the ledger."""
        return f"batch {self.number}"


class RunStore(ABC):
    """Durable memory of a run, over all times that it is set up.

    An implementation on disk syncs before it returns.
    """

    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """Store all that is written inside, here and in the run's journal, or nothing of it."""

    @abstractmethod
    def ledger(self) -> RunLedger:
        """Return the newest ledger."""

    @abstractmethod
    def save_ledger(self, ledger: RunLedger) -> None:
        """Replace the ledger."""

    @abstractmethod
    def save_asked(self, ledger: RunLedger, asked: AskedBatch) -> None:
        """Store a batch together with the ledger that holds its worst case, in one step."""

    @abstractmethod
    def save_first_phase(self, batch: int, first: FirstPhase) -> None:
        """Store what the first phase of a batch decided."""

    @abstractmethod
    def save_release(
        self, ledger: RunLedger, *, batch: int, indices: tuple[int, ...], release: NoisyRelease
    ) -> None:
        """Store a release together with the ledger that was charged for it, in one step."""

    @abstractmethod
    def save_void(self, ledger: RunLedger, *, batch: int, is_freed: bool) -> None:
        """Store that a batch is void, together with its ledger.

        Args:
            ledger: The run's, with the batch settled.
            batch: Its number.
            is_freed: Whether its queries may be asked again.
        """

    @abstractmethod
    def asked(self) -> dict[int, AskedBatch]:
        """Return each batch that was asked, by its number, in order."""

    @abstractmethod
    def first_phase(self, batch: int) -> FirstPhase | None:
        """Return what the first phase of a batch decided, if it was stored."""

    @abstractmethod
    def releases(self) -> dict[int, tuple[tuple[int, ...], NoisyRelease]]:
        """Return the indices and release of each released batch, by its number, in order."""

    @abstractmethod
    def run_id(self) -> bytes:
        """Return the id under which it was set up this time; empty before it was."""

    @abstractmethod
    def save_run_id(self, run_id: bytes) -> None:
        """Note under which id it is set up this time."""

    @abstractmethod
    def statements(self) -> dict[bytes, bytes]:
        """Return the frame of each party's last signed counter, by fingerprint, over all runs."""

    @abstractmethod
    def save_statements(self, statements: Mapping[bytes, bytes]) -> None:
        """Keep these statements, unless newer ones are known (rule R4); they outlive the run."""


class MemoryStore(RunStore):
    """A run in memory.

    Args:
        ledger: The run's, empty.
        statements: Of earlier runs.
    """

    def __init__(
        self, ledger: RunLedger, *, statements: Mapping[bytes, bytes] | None = None
    ) -> None:
        self._ledger = ledger
        self._asked: dict[int, AskedBatch] = {}
        self._first_phases: dict[int, FirstPhase] = {}
        self._releases: dict[int, tuple[tuple[int, ...], NoisyRelease]] = {}
        self._run_id = b""
        self._statements = dict(statements or {})

    def together(self) -> AbstractContextManager[None]:
        """See `RunStore.together`; in memory nothing fails half-way."""
        return nullcontext()

    def ledger(self) -> RunLedger:
        """See `RunStore.ledger`."""
        return self._ledger

    def save_ledger(self, ledger: RunLedger) -> None:
        """See `RunStore.save_ledger`."""
        self._ledger = ledger

    def save_asked(self, ledger: RunLedger, asked: AskedBatch) -> None:
        """See `RunStore.save_asked`."""
        self._asked[asked.number] = asked
        self.save_ledger(ledger)

    def save_first_phase(self, batch: int, first: FirstPhase) -> None:
        """See `RunStore.save_first_phase`."""
        self._first_phases[batch] = first

    def save_release(
        self, ledger: RunLedger, *, batch: int, indices: tuple[int, ...], release: NoisyRelease
    ) -> None:
        """See `RunStore.save_release`."""
        self._ledger = ledger
        self._releases[batch] = (indices, release)
        self._end(batch, BatchState.RELEASED)

    def save_void(self, ledger: RunLedger, *, batch: int, is_freed: bool) -> None:
        """See `RunStore.save_void`."""
        self._end(batch, BatchState.FREED if is_freed else BatchState.VOID)
        self.save_ledger(ledger)

    def asked(self) -> dict[int, AskedBatch]:
        """See `RunStore.asked`."""
        return {batch: self._asked[batch] for batch in sorted(self._asked)}

    def first_phase(self, batch: int) -> FirstPhase | None:
        """See `RunStore.first_phase`."""
        return self._first_phases.get(batch)

    def releases(self) -> dict[int, tuple[tuple[int, ...], NoisyRelease]]:
        """See `RunStore.releases`."""
        return {batch: self._releases[batch] for batch in sorted(self._releases)}

    def run_id(self) -> bytes:
        """See `RunStore.run_id`."""
        return self._run_id

    def save_run_id(self, run_id: bytes) -> None:
        """See `RunStore.save_run_id`."""
        self._run_id = run_id

    def statements(self) -> dict[bytes, bytes]:
        """See `RunStore.statements`."""
        return dict(self._statements)

    def save_statements(self, statements: Mapping[bytes, bytes]) -> None:
        """See `RunStore.save_statements`."""
        self._statements.update(newer_statements(self._statements, statements))

    def _end(self, batch: int, state: BatchState) -> None:
        if batch in self._asked:  # what the student believed is not needed any more
            self._asked[batch] = replace(self._asked[batch], state=state, predictions=None)


def newer_statements(
    known: Mapping[bytes, bytes], statements: Mapping[bytes, bytes]
) -> dict[bytes, bytes]:
    """Return the statements that are not older than the known ones.

    A resumed run brings its own statements. Another run may have brought newer ones since.
    """
    return {
        party: frame
        for party, frame in statements.items()
        if party not in known or _counter_of(frame) >= _counter_of(known[party])
    }


def _counter_of(frame: bytes) -> int:
    try:
        message = wire.decode(frame).message
    except ProtocolError:
        return 0  # tells nothing of a journal
    return (
        message.journal_counter if isinstance(message, KeyStatement | Ready | HeadStatement) else 0
    )

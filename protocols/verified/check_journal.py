"""An aggregator's memory of one batch: by it a report meets one coin for ever.

A step is written durably before the bytes that follow from it leave. After a crash the same bytes
go out again, and nothing else ever does. There is one journal for each plan. It is never begun
anew, nor is an older copy put in its place: a second coin tells the other end something of votes.
It holds no vote and no exact sum: sealed parts, what both ends told, and this end's secrets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from protocols.errors import BrokenJournalError


@dataclass(frozen=True, slots=True)
class ReportTaken:
    """A report whose header is good came to the coordinator."""

    report: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretsDrawn:
    """This end's secrets of the batch."""

    nonce: bytes = field(repr=False)
    noise_seed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A frame of the other end came, and the answer is about to be sent; either may be empty."""

    received: bytes = field(repr=False)
    sent: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CheckStopped:
    """Nothing of this batch leaves any more: the code why, and the frame that came, if one did."""

    code: bytes
    frame: bytes = field(repr=False)


CheckStep: TypeAlias = ReportTaken | SecretsDrawn | Exchanged | CheckStopped
_STEPS: dict[str, Callable[..., CheckStep]] = {
    "report": ReportTaken,
    "secrets": SecretsDrawn,
    "exchange": Exchanged,
    "stop": CheckStopped,
}


class CheckJournal(ABC):
    """The steps of one batch at one end. An implementation on disk syncs each before it returns."""

    @abstractmethod
    def append(self, step: CheckStep) -> None:
        """Note a step, before anything follows from it."""

    @abstractmethod
    def append_charged(self, step: Exchanged, *, accepted: tuple[bytes, ...]) -> None:
        """Charge what the batch opens of these hospitals, and note the step, in one transaction.

        Raises an error of its own where the ledger refuses: neither is noted then, and nothing
        opens.
        """

    @abstractmethod
    def steps(self) -> tuple[CheckStep, ...]:
        """Return all steps, oldest first."""


class MemoryCheckJournal(CheckJournal):
    """A batch's steps in memory, for simulations and tests.

    Args:
        charge: Called with the accepted hospitals before the sum opens; raises to refuse.
    """

    def __init__(self, charge: Callable[[tuple[bytes, ...]], None]) -> None:
        self._steps: list[CheckStep] = []
        self._charge = charge

    def append(self, step: CheckStep) -> None:
        """See `CheckJournal.append`."""
        self._steps.append(step)

    def append_charged(self, step: Exchanged, *, accepted: tuple[bytes, ...]) -> None:
        """See `CheckJournal.append_charged`."""
        self._charge(accepted)
        self._steps.append(step)

    def steps(self) -> tuple[CheckStep, ...]:
        """See `CheckJournal.steps`."""
        return tuple(self._steps)

    def __repr__(self) -> str:
        return f"MemoryCheckJournal(steps={len(self._steps)})"


def check_step_to_record(step: CheckStep) -> tuple[str, tuple[bytes, ...]]:
    """Return a step as plain data: its word, its fields."""
    word = next(word for word, kind in _STEPS.items() if kind is type(step))
    return word, tuple(getattr(step, each.name) for each in fields(step))


def check_step_from_record(word: str, values: tuple[bytes, ...]) -> CheckStep:
    """Read plain data back; `BrokenJournalError` where it is no step."""
    kind = _STEPS.get(word)
    if kind is None or not all(type(value) is bytes for value in values):
        raise BrokenJournalError("a step must be of a known kind, with its fields")
    try:
        return kind(*values)
    except TypeError as error:
        raise BrokenJournalError("a step must be of a known kind, with its fields") from error

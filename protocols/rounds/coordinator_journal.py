"""The coordinator's memory of a run, by which it goes on after a crash: its steps, in order.

A step is written durably before the frame that follows from it leaves, so the journal knows all
that any party was told. It holds nothing secret: frames that are no y and no share, and digests of
y's, dealings and reveals. It never holds anything opened.

A run begins with `SetupFinished`. Then come its plans, each as `PlanOpened`, in a form that
survives drop-outs `PlanProposed` (once for a set, once to close the plan) and `PlanCertified`, then
`ContributionsFixed`, then `PlanSettled`, which may come sooner. At the end come `RunEnded`,
`HeadsCollected` and `RunFinished`. `history` applies them, live and after a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from protocols.errors import BrokenJournalError
from protocols.rounds.contribution import Contribution

Frames: TypeAlias = tuple[bytes, ...]
"""A frame of each party, in seat order."""
Contributions: TypeAlias = tuple[Contribution | None, ...]
"""Each party's signed contribution to a plan until then, in seat order; None for those without."""


@dataclass(frozen=True, slots=True)
class SetupFinished:
    """Every party is ready: the run exists. All four are frames, of each party in seat order."""

    offer: bytes
    record: bytes
    confirmations: Frames
    ready: Frames


@dataclass(frozen=True, slots=True)
class PlanOpened:
    """A plan is about to be sent."""

    plan: bytes


@dataclass(frozen=True, slots=True)
class PlanProposed:
    """A set to open, or the end of the open plan, is about to be proposed.

    The survivors' contributions have to come again as they were after a restart: holders are shown
    them.
    """

    proposal: bytes
    contributions: Contributions


@dataclass(frozen=True, slots=True)
class PlanCertified:
    """Enough parties gave the same verdict on the open plan; the proof is about to be sent."""

    certificate: bytes


@dataclass(frozen=True, slots=True)
class ContributionsFixed:
    """The contributions to the open plan are fixed: their sum is about to be opened."""

    contributions: Contributions


@dataclass(frozen=True, slots=True)
class PlanSettled:
    """A settlement is about to be sent."""

    settlement: bytes


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run's end is about to be told."""

    closing: bytes


@dataclass(frozen=True, slots=True)
class HeadsCollected:
    """The parties' heads, empty for a lost party, are about to be shown."""

    heads: Frames


@dataclass(frozen=True, slots=True)
class RunFinished:
    """Every party that showed a head has compared them all, and said so."""

    ready: Frames


Step: TypeAlias = (
    SetupFinished
    | PlanOpened
    | PlanProposed
    | PlanCertified
    | ContributionsFixed
    | PlanSettled
    | RunEnded
    | HeadsCollected
    | RunFinished
)
_WORDS: dict[str, type[Any]] = {
    "setup": SetupFinished,
    "plan": PlanOpened,
    "proposal": PlanProposed,
    "certificate": PlanCertified,
    "opened": ContributionsFixed,
    "settlement": PlanSettled,
    "closing": RunEnded,
    "heads": HeadsCollected,
    "finished": RunFinished,
}


class CoordinatorJournal(ABC):
    """The steps of one run. An implementation on disk syncs each step before it returns."""

    @abstractmethod
    def append(self, step: Step) -> None:
        """Note a step, before anything follows from it."""

    @abstractmethod
    def steps(self) -> tuple[Step, ...]:
        """Return all steps, oldest first."""


class MemoryCoordinatorJournal(CoordinatorJournal):
    """A run's steps in memory, for simulations and tests."""

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def append(self, step: Step) -> None:
        """See `CoordinatorJournal.append`."""
        self._steps.append(step)

    def steps(self) -> tuple[Step, ...]:
        """See `CoordinatorJournal.steps`."""
        return tuple(self._steps)

    def __repr__(self) -> str:
        return f"MemoryCoordinatorJournal(steps={len(self._steps)})"


def step_to_record(step: Step) -> list[Any]:
    """Return a step as plain data: its word, then its fields."""
    word = next(word for word, kind in _WORDS.items() if kind is type(step))
    return [word, *(_plain(getattr(step, each.name)) for each in fields(step))]


def _plain(value: bytes | Frames | Contributions) -> Any:
    if isinstance(value, bytes):
        return value
    return [each if isinstance(each, bytes) else _digests_of(each) for each in value]


def _digests_of(each: Contribution | None) -> list[bytes]:
    return [] if each is None else [each.vector, each.dealing, each.reveal]


def step_from_record(record: list[Any]) -> Step:
    """Read plain data back, the inverse of `step_to_record`; `BrokenJournalError` if it is none."""
    word, *values = record or [None]
    kind = _WORDS.get(word) if isinstance(word, str) else None
    if kind is None or len(values) != len(fields(kind)):
        raise BrokenJournalError("a step must be of a known kind, with its fields")
    readers = {"bytes": _bytes, "Frames": _frames, "Contributions": _contributions}
    named = zip(fields(kind), values, strict=True)
    step: Step = kind(*(readers[str(each.type)](value) for each, value in named))
    return step


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise BrokenJournalError("a field of a step must be bytes", type(value).__name__)
    return value


def _frames(value: object) -> Frames:
    return tuple(_bytes(each) for each in _listed(value))


def _contributions(value: object) -> Contributions:
    digests = [_frames(each) for each in _listed(value)]
    if not {len(each) for each in digests} <= {0, 3}:
        raise BrokenJournalError("a contribution must be three digests, or none")
    return tuple(Contribution(*each) if each else None for each in digests)


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BrokenJournalError("a field of a step must be a list", type(value).__name__)
    return value

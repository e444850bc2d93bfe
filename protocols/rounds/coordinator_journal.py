"""The coordinator's memory of a run, by which it goes on after a crash: its steps, in order.

A step is written durably before the frame that follows from it leaves, so the journal knows all
that any party was told. It holds nothing secret: frames that all parties received, and digests of
y's, dealings and reveals. It never holds a y, a share, or anything opened.

A run begins with `SetupFinished`. Then come its plans, each as `PlanOpened`, in a form that
survives drop-outs `PlanProposed` (once for a set, once to close the plan) and `PlanCertified`, then
`SumOpened`, then `PlanSettled`, which may come sooner. At the end come `RunClosed`,
`HeadsCollected` and `RunFinished`. `history` applies them, live and after a restart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

from protocols.errors import BrokenJournalError
from protocols.rounds.contribution import Contribution


@dataclass(frozen=True, slots=True)
class SetupFinished:
    """Every party is ready: the run exists.

    Attributes:
        offer: Frame of the offer.
        record: Frame of the run record.
        confirmations: Digest and signature of each party's confirmations, in seat order.
        ready: Frame in which each party said that it is ready, in seat order.
    """

    offer: bytes
    record: bytes
    confirmations: tuple[tuple[bytes, bytes], ...]
    ready: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PlanOpened:
    """A plan is about to be sent."""

    plan: bytes


@dataclass(frozen=True, slots=True)
class PlanProposed:
    """A proposal about the open plan is about to be sent.

    Attributes:
        proposal: Frame of the `Proposal`: a set of survivors, or to close the plan.
        contributions: Each survivor's signed contribution until then, in seat order; None for the
            others. After a restart it has to come again as it was: holders are shown it.
    """

    proposal: bytes
    contributions: tuple[Contribution | None, ...]


@dataclass(frozen=True, slots=True)
class PlanCertified:
    """Enough parties gave the same verdict on the open plan; the proof is about to be sent.

    Attributes:
        certificate: Frame of the `Certificate`.
    """

    certificate: bytes


@dataclass(frozen=True, slots=True)
class SumOpened:
    """The sum of the open plan is about to be opened.

    Attributes:
        contributions: Each summed party's signed contribution until then, in seat order; None for
            others.
    """

    contributions: tuple[Contribution | None, ...]


@dataclass(frozen=True, slots=True)
class PlanSettled:
    """A settlement is about to be sent."""

    settlement: bytes


@dataclass(frozen=True, slots=True)
class RunClosed:
    """The run's end is about to be told."""

    closing: bytes


@dataclass(frozen=True, slots=True)
class HeadsCollected:
    """The parties' heads, in seat order and empty for a lost party, are about to be shown."""

    heads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RunFinished:
    """Every party that showed a head has compared them all; each one's result, in seat order."""

    ready: tuple[bytes, ...]


Step: TypeAlias = (
    SetupFinished
    | PlanOpened
    | PlanProposed
    | PlanCertified
    | SumOpened
    | PlanSettled
    | RunClosed
    | HeadsCollected
    | RunFinished
)


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
    """Return a step as plain data, a word first."""
    match step:
        case SetupFinished():
            pairs = [list(pair) for pair in step.confirmations]
            return ["setup", step.offer, step.record, pairs, list(step.ready)]
        case PlanOpened():
            return ["plan", step.plan]
        case PlanProposed():
            return [
                "proposal",
                step.proposal,
                [_digests_of(each) for each in step.contributions],
            ]
        case PlanCertified():
            return ["certificate", step.certificate]
        case SumOpened():
            return ["opened", [_digests_of(each) for each in step.contributions]]
        case PlanSettled():
            return ["settlement", step.settlement]
        case RunClosed():
            return ["closing", step.closing]
        case HeadsCollected():
            return ["heads", list(step.heads)]
        case RunFinished():
            return ["finished", list(step.ready)]


def step_from_record(record: list[Any]) -> Step:
    """Read plain data back; the inverse of `step_to_record`.

    Raises:
        BrokenJournalError: it is no step.
    """
    match record:
        case ["setup", bytes(offer), bytes(run_record), [*pairs], [*ready]]:
            confirmations = tuple(_pair(pair) for pair in pairs)
            return SetupFinished(offer, run_record, confirmations, _all_bytes(ready))
        case ["plan", bytes(frame)]:
            return PlanOpened(frame)
        case ["proposal", bytes(frame), [*items]]:
            return PlanProposed(frame, tuple(_contribution(item) for item in items))
        case ["certificate", bytes(frame)]:
            return PlanCertified(frame)
        case ["opened", [*items]]:
            return SumOpened(tuple(_contribution(item) for item in items))
        case ["settlement", bytes(frame)]:
            return PlanSettled(frame)
        case ["closing", bytes(frame)]:
            return RunClosed(frame)
        case ["heads", [*frames]]:
            return HeadsCollected(_all_bytes(frames))
        case ["finished", [*frames]]:
            return RunFinished(_all_bytes(frames))
        case _:
            raise BrokenJournalError("a step must be of a known kind", "another")


def _pair(value: object) -> tuple[bytes, bytes]:
    match value:
        case [bytes(digest), bytes(signature)]:
            return digest, signature
        case _:
            raise BrokenJournalError("a confirmation must have digest and signature", "others")


def _digests_of(each: Contribution | None) -> list[bytes]:
    return [] if each is None else [each.vector, each.dealing, each.reveal]


def _contribution(value: object) -> Contribution | None:
    match value:
        case []:
            return None
        case [bytes(vector), bytes(dealing), bytes(reveal)]:
            return Contribution(vector, dealing, reveal)
        case _:
            raise BrokenJournalError("a contribution must be three digests, or none", "another")


def _all_bytes(values: list[Any]) -> tuple[bytes, ...]:
    if not all(type(value) is bytes for value in values):
        raise BrokenJournalError("a step must hold frames or digests", "others")
    return tuple(values)

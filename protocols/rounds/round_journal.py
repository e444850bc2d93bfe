"""A party's memory, by which a key never meets two vectors (rule R4).

The order is: journal the plan's digest, compute y once, store y, send y. An implementation on disk
syncs each step before it returns. A party journals each promise before it leaves: never to send for
a plan (rule R3), or its one verdict on it. No promise is ever withdrawn.

A journal has a counter that never goes back. The party signs it in every run, and its peers
remember it: a counter below a signed one tells that somebody restored the journal from a backup.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from protocols.forms import FORMS, Form
from protocols.identity import PublicIdentity
from protocols.rounds.bounds import PlanClaim

MOST_UNSERVED = 16
"""Most plans of one run that a party abandons or closes without serving them. It bounds the disk
that promises take. A run ends after two void batches, far below this."""


@dataclass(frozen=True)
class RunNote:
    """A journal's note of a run, to check its settlements even after a restart.

    Attributes:
        coordinator: Fingerprint of its coordinator: no other may speak of it.
        form: Name of its secure sum.
        keys: Ed25519 keys of all parties, in seat order.
    """

    run_id: bytes
    coordinator: bytes
    form: str
    keys: tuple[bytes, ...]

    @property
    def sum_form(self) -> type[Form]:
        """The secure sum of the run."""
        return FORMS[self.form]

    @cached_property
    def identities(self) -> dict[bytes, PublicIdentity]:
        """All parties in seat order, by fingerprint."""
        identities = (PublicIdentity(key) for key in self.keys)
        return {identity.fingerprint: identity for identity in identities}


class RoundJournal(ABC):
    """A party's memory of the runs and plans that it served.

    A journal that was halted begins, promises, claims and frees nothing: those calls raise
    `RestoredJournalError`.
    """

    @property
    @abstractmethod
    def counter(self) -> int:
        """How often this journal was written to, over its whole life; below 2^32."""

    @abstractmethod
    def enter(self, run: RunNote) -> None:
        """Note that this party agrees to a run. The same run again changes nothing."""

    @abstractmethod
    def run(self, run_id: bytes) -> RunNote | None:
        """Return the note of a run; None if this party never agreed to it."""

    @abstractmethod
    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        """Note that a vector is about to be computed for a plan.

        Raises `KeyReuseError` where the plan was begun, abandoned or decided before, or the run's
        epoch is not ahead.
        """

    @abstractmethod
    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        """Note that nothing was sent for a plan, and that nothing ever will be.

        The queries that were claimed for it are free again: this party's votes never left. The same
        plan again changes nothing. A halted journal refuses: a record that it lost may be of a y.

        Raises `KeyReuseError` where a y was ever kept for it, be it erased since; or the run has
        `MOST_UNSERVED` plans already that were never begun.
        """

    @abstractmethod
    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        """Store the frames that answer a plan, at least one, before they are sent.

        They may be megabytes: no need to join them. After `expires_at`, in Unix seconds, nobody
        needs them. Raises `KeyReuseError` where the plan was not begun, has other frames, is
        abandoned or decided.
        """

    @abstractmethod
    def find(self, plan_digest: bytes) -> tuple[bytes, ...] | None:
        """Return the stored frames of a plan, to be sent again as they are."""

    @abstractmethod
    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        """Note this party's one verdict on a plan, before it is signed; nothing begins after it.

        The plan may be one that never reached this party. Raises `KeyReuseError` where another
        verdict stands; or the run has `MOST_UNSERVED` plans already that were never begun.
        """

    @abstractmethod
    def verdict_on(self, plan_digest: bytes) -> bytes:
        """Return the digest of this party's verdict on a plan; empty if it gave none."""

    @abstractmethod
    def run_of(self, plan_digest: bytes) -> bytes:
        """Return the run for which a plan was begun, abandoned or decided; empty if none was."""

    @abstractmethod
    def resolve(self, plan_digest: bytes, claim: PlanClaim) -> None:
        """Note a settlement's proof about a plan; nothing changes if it claimed no queries.

        A plan that is known to be free stays free.
        """

    @abstractmethod
    def erase(self, plan_digest: bytes) -> None:
        """Drop a settled plan's frames; its digest stays, so that it is never begun again."""

    @abstractmethod
    def sweep(self, *, now: float) -> None:
        """Drop the frames of all plans that have expired, as `erase` does (rule R9)."""

    @abstractmethod
    def witness(self, counters: Mapping[bytes, int]) -> None:
        """Remember the counters of peers' journals, by fingerprint, as the peers signed them."""

    @abstractmethod
    def witnessed(self) -> Mapping[bytes, int]:
        """Return the highest counter that each known peer signed, by fingerprint."""

    @abstractmethod
    def halt(self, counter: int) -> None:
        """Note that this party signed `counter`, which the journal never reached.

        The hospital must join anew.
        """

    @abstractmethod
    def require_room(self, size: int) -> None:
        """Refuse unless an answer of so many bytes could be kept now.

        An implementation on disk raises an error of its own if it could not.
        """

    @abstractmethod
    def require_whole(self) -> None:
        """Refuse if the journal was halted: records may be missing."""

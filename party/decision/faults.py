"""The last fault of a node: its code for our own people, and its public reason."""

from __future__ import annotations

import logging
from collections.abc import Callable

from party.errors import (
    ApprovalError,
    JournalStorageError,
    PartyError,
    Reason,
    RefusalError,
    StorageError,
)
from party.site.people_decisions import Approval, ApprovalState
from pate_fed.errors import PateFedError
from protocols.errors import ProtocolError
from protocols.run_scope import RunScope

_log = logging.getLogger(__name__)


Decided = Callable[[RunScope], Approval | None]
"""Gives the decision of a hospital's people on a run; None where they were not asked."""


class Faults:
    """Keeps the last packet's fault, "" for none, and finds the public reasons of refusals."""

    def __init__(self, decided: Decided = lambda _: None) -> None:
        self.decided = decided
        self.code = ""

    def note(self, error: Exception) -> None:
        """Keep the code of an error for our own people: it does not leave the site."""
        if isinstance(error, PartyError | ProtocolError | PateFedError):
            self.code = error.code
        else:
            self.code = Reason.FAULT.value

    def reason_of(self, error: Exception, scope: RunScope | None = None) -> Reason:
        """Turn any error of a review into a refusal (rule R14).

        A refusal that people can end says whether they rejected the run.
        """
        reason = self._reason_of(error)
        if scope is not None and reason in (Reason.POOL, Reason.APPROVAL, Reason.TALLY):
            decision = self.decision_on(scope)
            if decision is not None and decision.state is ApprovalState.REJECTED:
                return Reason.REJECTED
        return reason

    def decision_on(self, scope: RunScope) -> Approval | None:
        """Return the decision of people on a run; None where none is known."""
        try:
            return self.decided(scope)
        except Exception as error:  # the refusal itself stands
            self.note(error)
            _log.error("a decision cannot be read: %s", type(error).__name__)
            return None

    def noted(self, tell: Callable[[], None], reason: Reason) -> Reason:
        """Note a refusal; return its reason, or a better one that `tell` knows and raises."""
        try:
            tell()
        except RefusalError as error:
            return error.reason
        except Exception as error:
            self.note(error)
            _log.error("a refusal could not be written down: %s", type(error).__name__)
        return reason

    def _reason_of(self, error: Exception) -> Reason:
        if isinstance(error, RefusalError):
            return error.reason
        if isinstance(error, ApprovalError):
            return Reason.APPROVAL
        self.note(error)
        _log.error("a review failed: %s", type(error).__name__)
        return reason_for(error)


def reason_for(error: Exception) -> Reason:
    """Return the public reason for an error that nobody foresaw."""
    cannot_store = isinstance(error, StorageError | JournalStorageError)
    return Reason.STORAGE if cannot_store else Reason.FAULT

"""The last fault of a node: its code for our own people, and its public reason."""

from __future__ import annotations

import logging

from party.errors import (
    ApprovalError,
    JournalStorageError,
    PartyError,
    Reason,
    RefusalError,
    StorageError,
)
from pate_fed.errors import PateFedError
from protocols.errors import ProtocolError

_log = logging.getLogger(__name__)


class Faults:
    """Keeps the code of the last fault.

    Attributes:
        code: Code of the last packet's fault, ours or its sender's; empty if it had none.
    """

    def __init__(self) -> None:
        self.code = ""

    def note(self, error: Exception) -> None:
        """Keep the code of an error for our own people: it does not leave the site."""
        if isinstance(error, PartyError | ProtocolError | PateFedError):
            self.code = error.code
        else:
            self.code = Reason.FAULT.value

    def reason_of(self, error: Exception) -> Reason:
        """Turn any error of a review into a refusal (rule R14)."""
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

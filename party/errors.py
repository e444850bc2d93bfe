"""Why a party refuses: stable public codes, and nothing else.

A code is all that leaves the site: no text of an exception, no number, no name.
"""

from __future__ import annotations

from enum import StrEnum

from pate_fed.errors import CodedError, PateFedError, Shown
from pate_fed.nodes import one_line, place_of
from protocols.errors import ProtocolError


class Reason(StrEnum):
    """Public code of a refusal."""

    FAULT = "PF-301"  # something unexpected went wrong at the party
    TOO_FEW_PARTIES = "PF-310"  # below this party's floor
    UNCHECKED_PEERS = "PF-311"  # too few peers were checked by its own people
    FORM = "PF-312"  # form, threshold, colluders or drop-outs not allowed
    TERMS = "PF-313"  # terms that cannot be read or contradict the run
    POOL = "PF-314"  # a query pool that its owner did not approve
    MECHANISM = "PF-315"  # mechanism, noise or delta outside its policy
    UNIT = "PF-316"  # privacy unit or quota does not fit this party
    QUERIES = "PF-317"  # a query asked before, outside the pool, or too many
    BUDGET = "PF-318"  # the run's budget or its own would be exceeded
    SIMULATED = "PF-319"  # simulated where it must not be, or the reverse
    VOIDS = "PF-320"  # too many batches of the run were void
    PRICING = "PF-321"  # a price that its ledgers cannot add up
    APPROVAL = "PF-322"  # a person at the hospital has to approve the run first
    PAUSED = "PF-323"  # its people paused it
    TASK = "PF-324"  # a task other than the one that it keeps for the pool
    PENDING = "PF-325"  # so much waits for its people already that it was not noted
    STORAGE = "PF-326"  # its disk is full or may not be written
    EVALUATION = "PF-327"  # an evaluation that its owner's rules or records do not allow
    REJECTED = "PF-328"  # a person at the hospital rejected the run or its pool
    TALLY = "PF-329"  # a verified run whose tally its people did not compare, or of one owner
    ROW = "PF-338"  # a row whose stream sums may not be asked


class PartyError(CodedError):
    """Base of all errors of `party`; see `CodedError`."""

    code = "PF-300"


class PartyUsageError(PartyError, ValueError):
    """A command line that cannot be read."""

    code = "PF-302"


class JournalError(PartyError):
    """A journal that cannot be used: the party stops."""

    code = "PF-330"


class JournalLockedError(JournalError):
    """Another process has the journal open."""

    code = "PF-331"


class JournalDamagedError(JournalError):
    """A journal that does not fit itself: only its owner can know the answered queries."""

    code = "PF-332"


class JournalStorageError(JournalError):
    """A journal that cannot be read or written."""

    code = "PF-333"


class SiteError(PartyError, ValueError):
    """A site's folder that cannot be made or used."""

    code = "PF-340"


class MembershipError(SiteError):
    """A federation that must be named, that this hospital is not in, or that it is in already."""

    code = "PF-375"


class JoinError(PartyError):
    """A coordinator that cannot be reached, is another one, or refuses us.

    Attributes:
        is_refusal: Whether the coordinator itself refused: it did not take the request.
    """

    code = "PF-341"

    def __init__(self, must: str, got: Shown = "", *, is_refusal: bool = False) -> None:
        self.is_refusal = is_refusal
        super().__init__(must, got)


class WordsDifferError(PartyError):
    """The words that people compared are not those of the fingerprint."""

    code = "PF-342"


class PinError(PartyError):
    """A peer that cannot be pinned, or is not."""

    code = "PF-343"


class DataError(PartyError):
    """The hospital's records are not registered, or cannot be."""

    code = "PF-344"


class DataChangedError(PartyError):
    """The hospital's table is not the one that was registered."""

    code = "PF-345"


class TeachersError(PartyError):
    """Kept teachers that do not fit the table, the task or their own files."""

    code = "PF-346"


class ErasureError(PartyError):
    """A patient who cannot be removed now."""

    code = "PF-377"


class PageError(PartyError):
    """The hospital's page cannot be served where it was told to, or not to this browser.

    Attributes:
        status: HTTP's, of an answer to a browser.
    """

    code = "PF-378"

    def __init__(self, must: str, got: Shown = "", *, status: int = 400) -> None:
        self.status = status
        super().__init__(must, got)


class TaskError(PartyError):
    """A task's file that is absent, or another than the one asked for."""

    code = "PF-360"


class ResultsError(PartyError):
    """Results of a run that are not there, or not as its coordinator sealed them."""

    code = "PF-376"


class UnitError(PartyError):
    """A systemd unit that cannot be written."""

    code = "PF-347"


class NotConfirmedError(PartyError):
    """A step that a person must agree to, and did not."""

    code = "PF-348"


class PartyInternalError(PartyError):
    """A fault of this program, named by kind and place only."""

    code = "PF-349"


class StorageError(PartyError):
    """The site's database cannot be opened or written."""

    code = "PF-350"


CANNOT_STORE = (StorageError.code, JournalStorageError.code)
"""Codes of a node that cannot store; it answers nothing until it can."""


class StorageVersionError(StorageError):
    """A newer version of this program wrote the database."""

    code = "PF-351"


class StorageDamagedError(StorageError):
    """A database that does not fit itself: only its owner can know the missing part."""

    code = "PF-352"


class BrokenSiteLogError(PartyError):
    """An audit log that somebody changed, put in another order or cut short.

    Attributes:
        number: Its first record that is wrong or missing, from 1.
    """

    code = "PF-353"

    def __init__(self, must: str, got: Shown = "", *, number: int) -> None:
        self.number = number
        super().__init__(f"record {number} of the audit log: {must}", got)


class RecordError(PartyError):
    """A record that contradicts those before it."""

    code = "PF-354"


class ApprovalError(PartyError):
    """Something to decide on that is not there, or not as it was asked."""

    code = "PF-371"


class TooManyPendingError(ApprovalError):
    """As much waits for a person as may: people have to decide before more is noted."""

    code = "PF-372"


class NodeStartError(PartyError):
    """The node cannot be started, or is not running."""

    code = "PF-373"


class NotReadyError(PartyError):
    """The doctor found a fault to mend before the node starts."""

    code = "PF-374"


class RefusalError(PartyError):
    """The guard refuses.

    Attributes:
        reason: The code that may leave the site.
    """

    def __init__(self, reason: Reason, must: str, got: Shown = "") -> None:
        self.reason = reason
        super().__init__(must, got)


Fault = PartyError | PateFedError | ProtocolError
"""An error of ours, with its code."""


def fault_of(error: Exception) -> Fault:
    """Return an error of ours as it is, and any other by its kind and place: a fault of ours."""
    if isinstance(error, PartyError | PateFedError | ProtocolError):
        return error
    return PartyInternalError("this program must not fail", place_of(error))


def code_of(fault: Fault) -> str:
    """Return the code of a fault; of a refusal the public one."""
    return fault.reason.value if isinstance(fault, RefusalError) else fault.code


def fault_line(fault: Fault) -> str:
    """Say a fault in one line that begins with its code."""
    return f"{code_of(fault)}: {one_line(str(fault))}"

"""Everything that can go wrong in `coordinator`, each with a stable code.

What an error shows is said at `CodedError`.
"""

from __future__ import annotations

from pate_fed.errors import CodedError, Shown, as_typed


class CoordinatorError(CodedError):
    """Base of all errors of `coordinator`; see `CodedError`."""

    code = "PF-400"


class UsageError(CoordinatorError, ValueError):
    """A command line that cannot be read."""

    code = "PF-402"


class SetupError(CoordinatorError):
    """The run could not be set up: a party failed or refused."""

    code = "PF-410"


class VoidBatchError(CoordinatorError):
    """A batch is void: none of its labels was released.

    Attributes:
        reservation: The state of its budget: "forfeited" or "cancelled".
        may_ask_again: Whether its queries may be asked again, in another batch: its sum will never
            open.
    """

    code = "PF-411"

    def __init__(
        self, must: str, got: Shown = "", *, reservation: str, may_ask_again: bool = False
    ) -> None:
        self.reservation = reservation
        self.may_ask_again = may_ask_again
        again = "may" if may_ask_again else "may not"
        super().__init__(
            must,
            f"{as_typed(got)}; its budget is {reservation}, its queries {again} be asked again",
        )


class SpoiledBatchError(VoidBatchError):
    """A batch is void because a party broke the protocol, or a row of its sum was wrong.

    Attributes:
        named: The parties at fault, one line each, by name; nothing about counts. Empty where a row
            was wrong and nobody can be named.
    """

    code = "PF-419"

    def __init__(
        self,
        must: str,
        got: Shown = "",
        *,
        reservation: str,
        named: tuple[str, ...],
        parties: tuple[str, ...] = (),
        may_ask_again: bool = False,
    ) -> None:
        self.named = named
        self.parties = parties
        found = "; ".join(named) or "nobody could be named"
        super().__init__(
            must,
            f"{as_typed(got)} ({found})".lstrip(),
            reservation=reservation,
            may_ask_again=may_ask_again,
        )


class PartyFailedError(CoordinatorError):
    """A party broke the protocol, or was silent.

    Attributes:
        cause: Stable code of its fault.
        is_silent: Whether no answer came at all.
    """

    code = "PF-412"

    def __init__(
        self, must: str, got: Shown = "", *, party: str, cause: str, is_silent: bool = False
    ) -> None:
        self.party = party
        self.cause = cause
        self.is_silent = is_silent
        super().__init__(must, f"{as_typed(got)} from {party} [{cause}]".lstrip())


class PartyRefusedError(PartyFailedError):
    """A party's guard refused, before any vote."""

    code = "PF-413"


class BrokenTranscriptError(CoordinatorError):
    """A transcript that was edited, cut short, put in another order, or never closed.

    Attributes:
        line: Number of its first bad line, from 1.
        kind: Kind of that line, as far as it can be read.
    """

    code = "PF-414"

    def __init__(self, must: str, got: Shown = "", *, line: int, kind: str) -> None:
        self.line = line
        self.kind = kind
        name = f" ({kind})" if kind else ""
        super().__init__(f"line {line}{name} of the transcript: {must}", got)


class AlteredResultsError(CoordinatorError):
    """A file, by its path in a run's directory, that differs from the coordinator's seal."""

    code = "PF-418"

    def __init__(self, must: str, got: Shown = "", *, file: str) -> None:
        self.file = file
        super().__init__(f"{file}: {must}", got)


class RunStateError(CoordinatorError):
    """The state of a run on disk cannot be used: the run does not go on."""

    code = "PF-415"


class RunLockedError(RunStateError):
    """Another process has the run open."""

    code = "PF-416"


class RunDamagedError(RunStateError):
    """A run's files do not fit themselves, or each other: nobody can know the releases."""

    code = "PF-417"


class SuperLinkError(CoordinatorError):
    """Flower's SuperLink refused, or cannot be reached."""

    code = "PF-430"


class CertificateError(CoordinatorError):
    """A certificate that cannot be read, made or used."""

    code = "PF-431"


class HomeError(CoordinatorError):
    """A federation's folder that cannot be made or used."""

    code = "PF-432"


class EnrollmentError(CoordinatorError):
    """A hospital that cannot be invited, approved or let in so."""

    code = "PF-433"


class PersonError(CoordinatorError):
    """A person who cannot be added, changed or signed in so."""

    code = "PF-434"


class ConsoleError(CoordinatorError):
    """A request that the console refuses, with an HTTP status, such as for its role or session."""

    code = "PF-435"

    def __init__(self, must: str, got: Shown = "", *, status: int = 400) -> None:
        self.status = status
        super().__init__(must, got)


class SuspendedError(CoordinatorError):
    """A run needs a hospital that the operator suspended."""

    code = "PF-436"


class BudgetRuleError(CoordinatorError):
    """A budget that one person cannot raise, or that does not hold a run."""

    code = "PF-437"


class DatabaseError(CoordinatorError):
    """A database that cannot be opened, or did not store its input."""

    code = "PF-440"


class DatabaseVersionError(DatabaseError):
    """Another version of this program wrote the database."""

    code = "PF-441"


class BrokenAuditLogError(CoordinatorError):
    """An audit log that somebody changed, put in another order or cut short.

    Attributes:
        number: Its first entry that is wrong or missing, from 1.
    """

    code = "PF-442"

    def __init__(self, must: str, got: Shown = "", *, number: int) -> None:
        self.number = number
        super().__init__(f"entry {number} of the audit log: {must}", got)


class RunRequestError(CoordinatorError):
    """A run that cannot be requested in this way."""

    code = "PF-445"


class RunQueueError(CoordinatorError):
    """A run that is unknown, or is in no state to be paused, resumed, stopped or exported."""

    code = "PF-446"


class RunEndedError(CoordinatorError):
    """The run that was followed failed or was stopped, or a run expired."""

    code = "PF-447"


class ServiceError(CoordinatorError):
    """A service that cannot be started: another one has the folder, or a port is taken."""

    code = "PF-448"


class TallySetupError(CoordinatorError):
    """A tally's folder, card or invitation that cannot be made or used."""

    code = "PF-450"


class TallyUnreachableError(CoordinatorError):
    """The tally did not answer: another try may succeed."""

    code = "PF-451"


class TallyBehindError(TallyUnreachableError):
    """The tally's database is older than what it told: nothing is asked of it until its people act.

    It never knew the head that a call carried, or answered with an older one.
    """

    code = "PF-456"


class CoordinatorBehindError(TallyUnreachableError):
    """The coordinator's database is older than what the tally told it."""

    code = "PF-457"


class TallyRefusedError(CoordinatorError):
    """The tally refused: the same call is refused again.

    Attributes:
        reason: Public code of its refusal.
    """

    code = "PF-452"

    def __init__(self, must: str, got: Shown = "", *, reason: str) -> None:
        self.reason = reason
        super().__init__(must, f"{as_typed(got)} [{reason}]".lstrip())


class UnservedRunError(CoordinatorError):
    """A run or a batch that a tally does not serve: its form, its hospitals, its terms."""

    code = "PF-453"


class UnknownOfferError(CoordinatorError):
    """A run that a tally made no key for, or whose key went into another run or was erased."""

    code = "PF-454"


class OpenedRowError(CoordinatorError):
    """A row that was opened before in the same run."""

    code = "PF-455"


class DemoError(CoordinatorError):
    """A step of the demonstration did not go as it must; says which, and what was printed."""

    code = "PF-460"


class InternalError(CoordinatorError):
    """A fault of this program; its text is not shown, because it could hold a secret."""

    code = "PF-490"

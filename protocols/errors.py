"""Everything that can go wrong in `protocols`, each with a stable code.

One rule says what an error shows: what broke a rule, where that is public (a size, a count, a
number of a row, epoch or version, the name of a state, message, form or suite, a code), and
nothing where it may be private. So an error takes a whole number or a text, and no value of any
other type: no bytes, vector or key can enter one.
"""

from __future__ import annotations

from typing import ClassVar


class ProtocolError(Exception):
    """Base of all errors of `protocols`.

    Attributes:
        code: Stable code, for people and programs.
        must: The rule.
        got: What broke it; empty where that may be private, or says no more than the rule.
    """

    code: ClassVar[str] = "PF-200"

    def __init__(self, must: str, got: int | str = "") -> None:
        if type(got) not in (int, str):
            raise TypeError("an error must show a whole number or a text")
        self.must = must
        self.got = str(got)
        super().__init__(f"{must}, got {self.got}" if self.got else must)


class LocalProtocolError(ProtocolError):
    """We erred."""

    code = "PF-210"


class KeyReuseError(LocalProtocolError):
    """A key would meet a second vector, which would open both."""

    code = "PF-211"


class WrongStateError(LocalProtocolError):
    """A call that this state does not allow; nothing changed."""

    code = "PF-212"


class InvalidVectorError(LocalProtocolError, ValueError):
    """A vector that the ring cannot hold."""

    code = "PF-213"


class RestoredJournalError(LocalProtocolError):
    """A party's journal is older than its last signed counter: a backup was put in its place.

    Attributes:
        shown: Counter that this party signed.
        counter: Counter of the journal now.
    """

    code = "PF-214"

    def __init__(self, *, shown: int, counter: int) -> None:
        self.shown = shown
        self.counter = counter
        super().__init__(f"the journal must have reached {shown}, which we signed", counter)


class InvalidSharingError(LocalProtocolError, ValueError):
    """An impossible secret sharing: its threshold, its holders or its secrets."""

    code = "PF-215"


class KeysGoneError(LocalProtocolError):
    """A plan of a run whose keys are gone here: its code is the reason to abandon it."""

    code = "PF-242"


class BrokenJournalError(LocalProtocolError):
    """A coordinator's journal that contradicts itself, or is of another run or identity."""

    code = "PF-248"


class UnfinishedSetupError(LocalProtocolError):
    """A run that was not set up when its coordinator stopped: it is given up, nothing was asked."""

    code = "PF-249"


class RemoteProtocolError(ProtocolError):
    """A peer erred.

    Attributes:
        peer: The peer: a fingerprint in hex, or "coordinator"; empty where it cannot be known.
        pair: Two peers, where the word of one stands against the other's; empty otherwise.
    """

    code = "PF-220"

    def __init__(
        self,
        must: str,
        got: int | str = "",
        *,
        peer: str = "",
        pair: tuple[()] | tuple[str, str] = (),
    ) -> None:
        self.peer = peer
        self.pair = pair
        super().__init__(must, got)

    def from_peer(self, peer: str) -> RemoteProtocolError:
        """Return the same error with the sender's name on it."""
        return type(self)(self.must, self.got, peer=peer, pair=self.pair)


class MalformedMessageError(RemoteProtocolError, ValueError):
    """Bytes that are no message, or not its canonical form."""

    code = "PF-221"


class BadSignatureError(RemoteProtocolError):
    """A signature that the pinned key did not make."""

    code = "PF-222"


class ConflictingMessageError(RemoteProtocolError):
    """The same message id came again with other bytes."""

    code = "PF-223"


class WrongLengthError(RemoteProtocolError, ValueError):
    """A vector of another length than the plan's."""

    code = "PF-224"


class UnexpectedMessageError(RemoteProtocolError):
    """A message that this state does not allow, or of another run or plan; nothing changed."""

    code = "PF-225"


class BrokenEnvelopeError(RemoteProtocolError):
    """An envelope that does not open."""

    code = "PF-226"


class KeyConfirmationError(RemoteProtocolError):
    """A peer holds another pair root than ours."""

    code = "PF-227"


class UnknownPeerError(RemoteProtocolError):
    """A peer whose identity is not pinned, or appears twice in a run."""

    code = "PF-228"


class HistoryError(RemoteProtocolError):
    """Two ends remember different runs."""

    code = "PF-229"


class RefusedError(RemoteProtocolError):
    """A party refused.

    Attributes:
        reason: Its stable code.
    """

    code = "PF-230"

    def __init__(self, reason: str, *, peer: str) -> None:
        self.reason = reason
        super().__init__("every party must agree to the plan", f"a refusal ({reason})", peer=peer)

    def from_peer(self, peer: str) -> RefusedError:
        """Return the same error with the sender's name on it."""
        return RefusedError(self.reason, peer=peer)


class SuiteError(RemoteProtocolError, ValueError):
    """A sealing suite that is unknown, not accepted here, or mixed with another."""

    code = "PF-235"


class WrongShareError(RemoteProtocolError, ValueError):
    """A share, or a secret joined from shares, that differs from its dealer's hashes."""

    code = "PF-236"


class LateMessageError(UnexpectedMessageError):
    """An answer to a plan that is settled, or whose survivors are fixed; nothing changed."""

    code = "PF-243"


class FalseRefusalError(RemoteProtocolError):
    """A settlement with a refusal of another plan, or of a party whose vector is listed."""

    code = "PF-244"


class BlameError(RemoteProtocolError, ValueError):
    """A party does not answer a request for a row's sums: its plan is not void, or was asked.

    Also where the keys are gone: after the next plan, after the plan expired, after a restart.
    """

    code = "PF-245"


class FalseCertificateError(RemoteProtocolError, ValueError):
    """A certificate with too few verdicts, with others' signatures, or of another plan or set."""

    code = "PF-246"


class VerdictError(RemoteProtocolError):
    """A proposal that this party must not agree to; nothing changed.

    It is not in the proposed set, its journal does not allow the set, or it gave another verdict on
    the plan.
    """

    code = "PF-247"


class _TooFewError(ProtocolError):
    """Fewer than there must be.

    Attributes:
        received: How many there are.
        threshold: How many there must be.
    """

    rule: ClassVar[str]

    def __init__(self, *, received: int, threshold: int) -> None:
        self.received = received
        self.threshold = threshold
        super().__init__(self.rule.format(threshold), received)


class TooFewPartiesError(_TooFewError):
    """Fewer parties than the sum needs."""

    code = "PF-240"
    rule = (
        "a secure sum needs at least {} parties: with fewer, one party learns another's votes "
        "from the sum"
    )


class TooFewSharesError(_TooFewError):
    """Fewer holders of shares than the sum needs to open."""

    code = "PF-241"
    rule = "at least {} holders must be left to open a sum"


class TooFewHeadsError(_TooFewError):
    """Too few parties at the start or the end of a run to tell one history from two."""

    code = "PF-251"
    rule = "a run needs at least {} parties to compare its last heads"


class InvitationError(ProtocolError):
    """A malformed or altered invitation."""

    code = "PF-250"

"""A tally's book: it states keys for runs, and answers about plans. Bytes in, bytes out.

It trusts nothing that the coordinator says: it reads record and plan itself, keeps its own account
of what was opened, and charges a batch in the step that opens it. A refused call changes nothing,
except that two ends which contradict each other stop their batch.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import Connection

from coordinator.database.check_rows import SqlCheckJournal
from coordinator.errors import UnknownOfferError, UnservedRunError
from coordinator.tally.book_rows import (
    StatedRun,
    erase_ended,
    note_opened,
    note_plan,
    note_rejected,
    note_statement,
    read_charges,
    require_unopened,
    stated_run,
)
from coordinator.tally.calls import MOST_PACKET_BYTES
from coordinator.tally.heads import FIRST, Head, extend_head, hear_head, newest_head
from coordinator.tally.served_run import ServedRun, noise_law, require_served
from coordinator.tally.tally_database import TallyDatabase
from coordinator.tally.tally_schema import TallyStepRow
from pate_fed.charges import RunLedger, noise_of, outcomes_of
from pate_fed.terms import BatchTerms
from pate_fed.votes import NoisyHistogram
from protocols import wire
from protocols.envelope import SealingKey
from protocols.errors import MalformedMessageError, UnexpectedMessageError, UnknownPeerError
from protocols.fields import DIGEST_BYTES
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.messages import KeyStatement, Plan, RunOffer
from protocols.rounds.seating import ROLE_TALLY, require_fresh
from protocols.verified import (
    TALLY_CHECKS,
    CheckingTally,
    Exchanged,
    VoteBatch,
    open_noisy_sum,
)
from protocols.verified.vote_side import read_sum_share
from protocols.vote_messages import Acceptance, SumShare
from protocols.wire import Signed

MOST_RUN_DAYS: Final = 30
"""A run may last so long: after it, and the audit window, its key is erased."""

DAY_S: Final = 86400
_LOCKS: Final = 64


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call's record, plan and message, each checked by itself."""

    run: ServedRun
    plan: Signed
    terms: BatchTerms
    message: Signed

    @property
    def batch(self) -> VoteBatch:
        return self.run.batch_of(self.plan, self.terms)


class TallyBook:
    """A tally's answers. It may be called from several threads; one at a time works on a plan.

    Args:
        identity: The tally's.
        coordinator: Pinned.
        clock: Unix seconds.
    """

    def __init__(
        self,
        database: TallyDatabase,
        *,
        identity: SigningIdentity,
        coordinator: PublicIdentity,
        clock: Callable[[], float],
    ) -> None:
        self._database, self._identity, self._coordinator = database, identity, coordinator
        self._clock = clock
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))

    def state(self, frame: bytes) -> bytes:
        """Answer a signed `RunOffer` with the frame of a `KeyStatement`, always the same.

        Raises:
            RemoteProtocolError: it is not the coordinator's, or has expired.
            UnservedRunError: it is simulated, of another form, or ends after `MOST_RUN_DAYS`.
        """
        signed = wire.decode(frame)
        offer = wire.expect(signed, RunOffer)
        signed.verify(self._coordinator)
        if offer.coordinator_key != self._coordinator.key:
            raise UnknownPeerError("an offer must name its coordinator")
        require_served(offer)
        with self._database.transaction() as connection:
            known = stated_run(connection, signed.digest)
            if known is not None:
                return known.statement
            now = self._clock()
            require_fresh(offer.expires_at, now=now)
            if offer.expires_at > now + MOST_RUN_DAYS * DAY_S:  # its key would be kept as long
                raise UnservedRunError(f"a run must end within {MOST_RUN_DAYS} days")
            key = SealingKey(offer.suite)
            statement = KeyStatement(
                offer_digest=signed.digest,
                identity_key=self._identity.public.key,
                sealing_key=key.public_bytes,
                nonce=secrets.token_bytes(DIGEST_BYTES),
                role=ROLE_TALLY,
                expires_at=offer.expires_at,
                journal_counter=0,
            )
            said = wire.sign(statement, self._identity).frame
            note_statement(
                connection, signed.digest, statement=said, key=key, expires_at=offer.expires_at
            )
            extend_head(connection)
        return said

    def check(self, packet: bytes) -> bytes:
        """Answer a packet of a run's record, a plan, and the coordinator's request about it.

        Raises:
            ProtocolError: a frame is not the coordinator's, of another run or plan, or not allowed
                in this state; see `CheckingTally.receive`.
            UnservedRunError: the run or the plan is not this tally's to serve.
            InvalidTermsError: terms cannot be read.
            UnknownOfferError: there is no key for the run's offer, or it went into another record.
            OpenedRowError: a row was opened before.
            OutcomeCapError: the batch does not fit the run's caps.
            DatabaseError: nothing can be stored now.
        """
        asked = self._read(packet)
        with self._locks[asked.plan.digest[0] % _LOCKS]:
            return self._answer(asked, self._stated(asked))

    def hear(self, carried: bytes) -> None:
        """Take the head that a call carries, before it is answered; none is that of a new end.

        Raises:
            MalformedMessageError: it is no head.
            TallyBehindError: this database is older than the coordinator's memory of it.
            CoordinatorBehindError: the coordinator's memory is older than it was.
            DatabaseError: nothing can be stored now.
        """
        head = Head.of_bytes(carried) if carried else FIRST
        if head is None:
            raise MalformedMessageError("a call must carry a head", "other bytes")
        with self._database.transaction() as connection:
            hear_head(connection, head)

    @property
    def head(self) -> bytes:
        """Where it stands, for an answer to carry."""
        with self._database.transaction() as connection:
            return newest_head(connection).to_bytes()

    def erase_ended(self, *, days: int) -> int:
        """Erase keys and steps of runs that expired so many days ago; return the number of keys."""
        return erase_ended(self._database, ended_before=int(self._clock()) - days * DAY_S)

    # One call ---------------------------------------------------------------------------------

    def _read(self, packet: bytes) -> _Asked:
        frames = wire.unpack(packet, max_bytes=MOST_PACKET_BYTES)
        if len(frames) != 3:
            raise MalformedMessageError("a packet must have record, plan and request", len(frames))
        run = ServedRun.of(frames[0], coordinator=self._coordinator)
        plan, terms = run.plan_of(frames[1], coordinator=self._coordinator)
        message = wire.decode(frames[2])
        message.verify(self._coordinator)
        return _Asked(run, plan, terms, message)

    def _stated(self, asked: _Asked) -> StatedRun:
        """Return what was stated for the run, if its record has it."""
        record = asked.run.record
        with self._database.transaction() as connection:
            known = stated_run(connection, record.offer_digest)
        if known is None or known.statement != record.tally:
            raise UnknownOfferError("a record must have our statement for its offer")
        if (known.suite, known.expires_at) != (record.suite, record.expires_at):
            raise UnexpectedMessageError("a record must be of its offer")
        if known.key is None:
            raise UnknownOfferError("a run's key must be there", "one that was erased")
        return known

    def _answer(self, asked: _Asked, known: StatedRun) -> bytes:
        run, plan, places = asked.run, asked.plan, asked.terms.indices

        def along(connection: Connection, number: int) -> None:
            if not number:
                note_plan(connection, run, plan.digest, plan.frame)
            extend_head(connection)

        def charge(connection: Connection, step: Exchanged, _: tuple[bytes, ...]) -> None:
            charged = _charged(read_charges(connection, run), asked, step)
            note_opened(connection, run, plan.digest, places=places, charges=charged)

        journal = SqlCheckJournal(
            self._database.transaction, TallyStepRow, plan.digest, along=along, charge=charge
        )
        assert known.key is not None
        machine = CheckingTally(
            asked.batch,
            identity=self._identity,
            key=known.key,
            other=self._coordinator,
            hospitals=run.hospitals,
            least_parties=run.record.threshold,
            journal=journal,
            random_bytes=secrets.token_bytes,
            draw_noise=noise_law(run.terms),
        )
        if type(asked.message.message) in TALLY_CHECKS[machine.state]:
            self._require_may_open(asked)
        try:
            return machine.receive(asked.message.frame)
        finally:
            if isinstance(asked.message.message, Acceptance):
                self._note_rejected(machine)

    def _require_may_open(self, asked: _Asked) -> None:
        """Refuse a step of a plan that has expired, or could never open."""
        plan = wire.expect(asked.plan, Plan)
        require_fresh(plan.expires_at, now=self._clock())
        with self._database.transaction() as connection:
            require_unopened(connection, asked.run, asked.terms.indices)
            _reserved(read_charges(connection, asked.run), asked)

    def _note_rejected(self, machine: CheckingTally) -> None:
        decision = machine.decision
        if decision is not None:
            with self._database.transaction() as connection:
                note_rejected(connection, machine.batch.plan_digest, decision.rejected)


def _charged(charges: RunLedger, asked: _Asked, step: Exchanged) -> RunLedger:
    """Return a run's charges with a batch that opens now: all its rows, and its answers.

    The tally knows both shares, and so the labels. A coordinator that tells another share than it
    keeps changes the number of answers that is counted here, not what a row costs. The tally knows
    no student that learns meanwhile: it counts the answers of teachers alone, which are no fewer.
    """
    run, entry = asked.run, asked.plan.digest.hex()
    left, reserved = charges.left, _reserved(charges, asked)
    theirs, own = (
        read_sum_share(asked.batch, wire.expect(wire.decode(frame), SumShare))
        for frame in (step.received, step.sent)
    )
    noise = noise_of(run.terms)
    opened = open_noisy_sum(own, theirs).astype(np.float64)
    noisy = NoisyHistogram(opened, noise.sum_sigma(noise.parties))
    release = run.rule.label(noisy, max_answers=left.answers)
    paid = reserved.paid_for(entry, outcomes_of(release))
    return reserved.commit(entry, paid, release.digest)


def _reserved(charges: RunLedger, asked: _Asked) -> RunLedger:
    return charges.reserve(asked.plan.digest.hex(), charges.worst_case(len(asked.terms.indices)))

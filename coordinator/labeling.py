"""One labeling run: plan, reserve, collect shares, open the sum, release, commit.

The order is the point. The worst case is reserved before a plan leaves, so no noise is ever drawn
without a charge; a release is stored with its charge before it is shown; and a batch that fails
after a share may have left a party keeps its charge and releases nothing.

Where it adds the noise, the coordinator sees the exact sum of each batch, in memory, between
opening it and adding noise. Where the parties add it, the sum opens noisy, and the exact one exists
nowhere.
It never holds one party's histogram.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import (
    CoordinatorError,
    PartyFailedError,
    PartyRefusedError,
    SetupError,
    SpoiledBatchError,
    VoidBatchError,
)
from coordinator.store import RunStore
from coordinator.transport import Silence, Transport
from pate_fed.accounting import NO_OUTCOMES, Outcomes, PerInstanceCost, PerInstanceMeter
from pate_fed.charging import RunLedger, noise_of, outcomes_of, rule_of
from pate_fed.errors import InvalidParameterError, PateFedError, RowSumError
from pate_fed.federation import MOST_VOID_BATCHES, BatchTerms, PhaseTerms, RunTerms
from pate_fed.mechanisms import (
    DistributedConfidentMax,
    DistributedGaussianMax,
    DistributedInteractiveMax,
    DistributedMechanism,
    FirstPhase,
    InteractiveGaussianMax,
    Mechanism,
    NoisePlan,
    RandomBytes,
)
from pate_fed.queries import QueryPool
from pate_fed.releases import NoisyRelease
from pate_fed.votes import (
    NoisyHistogram,
    SummedHistogram,
    TeacherWeights,
    open_noisy_sum,
    open_sum,
)
from protocols import wire
from protocols.envelope import DEFAULT_SUITE
from protocols.errors import (
    LateMessageError,
    ProtocolError,
    RefusedError,
    TooFewSharesError,
    UnexpectedMessageError,
)
from protocols.identity import PublicIdentity, SigningIdentity
from protocols.plain import PlainSum
from protocols.rounds import CoordinatorRound
from protocols.secure_sum import SecureSum

SETUP_ANSWER_BYTES = 5 * 2**20
"""Largest answer while a run is set up: a bundle of envelopes."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Between two tries to reach a silent party; each pause is twice the one before."""

_MOST_TOLD = wire.MAX_PACKET_FRAMES - 3
"""Settlements that fit into a packet with what comes behind them."""
_NOTHING = "no answer"
"""Why there is no answer where an empty packet came."""

_CODE = re.compile(r"PF-\d{3}")
_log = logging.getLogger(__name__)

Failure = ProtocolError | CoordinatorError | PateFedError


@dataclass(frozen=True, slots=True)
class Member:
    """A party of the federation, as the coordinator enrolled it.

    Attributes:
        name: What people call it.
        identity: Its pinned identity.
        weights: Votes that each of its teachers casts per query.
    """

    name: str
    identity: PublicIdentity
    weights: TeacherWeights


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is asked to do; `RunTerms` without what only the federation knows.

    Attributes:
        terms: Makes the terms from the parties in seat order.
        simulated: Whether the run is a simulation.
        lifetime_s: Seconds after which the run and its plans expire.
        suite: Sealing suite of the run, the same for all.
        patience_s: Seconds for which a batch waits for a party that is silent, at the longest
            until its plan expires.
    """

    terms: Callable[[tuple[Member, ...]], RunTerms]
    simulated: bool
    lifetime_s: int = 24 * 3600
    suite: str = DEFAULT_SUITE
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A batch: its number and its terms."""

    batch: int
    terms: BatchTerms


class SilenceError(Exception):
    """No packet came; `code` says why."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


class LabelingRun:
    """A run over one transport, from setup to closing.

    Args:
        transport: Reaches the parties.
        identity: The coordinator's identity.
        form: Secure sum.
        members: The parties, all of whom take part.
        pool: Public inputs that may be asked about.
        settings: What the run is asked to do.
        store: Makes room for ledger and releases; given the run's empty ledger.
        random_bytes: Cryptographic random numbers for protocol nonces.
        noise_bytes: Source of the noise: the operating system's, or a keyed stream in a
            simulation. Not used where the parties add the noise.
        clock: Unix time, in seconds.
        sleep: Waits for so many seconds.

    Raises:
        TooFewPartiesError: fewer members than the form needs.
        InvalidParameterError: the terms name a mechanism or noise that cannot be.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        identity: SigningIdentity,
        form: SecureSum,
        members: list[Member],
        pool: QueryPool,
        settings: Settings,
        store: Callable[[RunLedger], RunStore],
        random_bytes: RandomBytes,
        noise_bytes: RandomBytes,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._patience_s = settings.patience_s
        self._transport = transport
        self._members = {member.identity.fingerprint: member for member in members}
        self._form = form
        self._pool = pool
        self._noise_bytes = noise_bytes
        self._expires_at = int(clock()) + settings.lifetime_s
        self._round = CoordinatorRound(
            identity=identity,
            form=form,
            parties={fp: member.identity for fp, member in self._members.items()},
            nonce=random_bytes(32),
            expires_at=self._expires_at,
            simulated=settings.simulated,
            suite=settings.suite,
        )
        self.terms = settings.terms(self.members)
        self.mechanism: Mechanism | DistributedMechanism = rule_of(self.terms)
        if self.terms.at_parties:
            for phase in range(self.terms.phases):
                noise_of(self.terms, phase=phase).require_room(self.terms.total_votes)
        self._store = store(RunLedger.of(self.terms))
        self._nodes: dict[bytes, int] = {}
        self._settlement: bytes | None = None
        self._unheard: dict[bytes, list[bytes]] = {seat: [] for seat in self._round.seats}
        self._batch = 0
        self._words = 0
        self._voids = 0
        self._lost: list[tuple[str, ...]] = []
        self._not_heard: tuple[str, ...] = ()
        self._asked: set[int] = set()
        self._meter: PerInstanceMeter | None = None
        if isinstance(self.mechanism, Mechanism):
            self._meter = PerInstanceMeter(
                self.mechanism, delta=self.terms.delta, weight=float(self.terms.unit_votes)
            )

    # What others may know ---------------------------------------------------------------------

    @property
    def round(self) -> CoordinatorRound:
        """The protocol's end of this run."""
        return self._round

    @property
    def members(self) -> tuple[Member, ...]:
        """The parties, in seat order."""
        return tuple(self._members[seat] for seat in self._round.seats)

    @property
    def lost(self) -> tuple[tuple[str, ...], ...]:
        """For each batch that could be opened without them, the parties that were lost in it."""
        return tuple(self._lost)

    @property
    def not_heard(self) -> tuple[str, ...]:
        """Parties that were lost at the closing: nobody compared their heads, in seat order."""
        return self._not_heard

    @property
    def is_over(self) -> bool:
        """Whether a cap is reached, or too many batches were void."""
        return self.left == NO_OUTCOMES or self._voids >= MOST_VOID_BATCHES

    @property
    def left(self) -> Outcomes:
        """What the caps still allow."""
        return self._store.ledger().left

    @property
    def asks_left(self) -> int:
        """Queries that may still be asked, whatever the other caps say."""
        return self._store.ledger().outcomes.asks_left

    # Calls ------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Enrol all parties in the run and make their pair roots; four exchanges.

        Raises:
            SetupError: not every party answered the offer.
            PartyFailedError: a party failed, refused or was silent; says which.
        """
        self._find_nodes()
        record = self._round.record(
            terms=wire.encode_value(self.terms.as_record()), **self._tolerated
        )
        self._require(self._broadcast([record]))
        for frames in (self._round.deliver, self._round.close_setup):
            self._require(self._exchange({seat: [frame] for seat, frame in frames().items()}))

    def ask(
        self, indices: tuple[int, ...], *, predictions: NDArray[np.float64] | None = None
    ) -> NoisyRelease:
        """Ask one batch; one exchange, or two where the form survives drop-outs.

        With noise at the parties a check opens rows of its own, hence as many exchanges again.

        Args:
            indices: Positions in the pool, none of which was asked before, but in a void batch
                whose error said that they may be asked again.
            predictions: For Interactive-GNMax, the student's chances of each class, from released
                labels and public inputs only; shape (queries, classes). None before there is a
                student.

        Returns:
            What was released; it is stored and charged already.

        Raises:
            InvalidParameterError: a query was asked before, or is not in the pool; or predictions
                came that do not fit.
            OutcomeCapError: a cap of the run is reached; nothing happened.
            BudgetExhaustedError: its worst case does not fit a budget; nothing happened.
            VoidBatchError: a party broke the rules, refused or was silent; nothing of the batch
                was released, and the error says what became of its budget. A `SpoiledBatchError`
                names whose row was wrong, as far as that can be found out.
        """
        self._pool.ask(indices)
        if not self._asked.isdisjoint(indices):
            raise InvalidParameterError("no query may be asked twice", "one that was asked")
        rule = self._rule_for(indices, predictions)
        digest = b"" if predictions is None else _digest_of(predictions)
        entry_id = f"batch {self._batch}"
        ledger = self._store.ledger()
        left = ledger.left
        self._store.save_ledger(ledger.reserve(entry_id, ledger.worst_case(len(indices))))
        self._asked.update(indices)
        batch, self._batch = self._batch, self._batch + 1
        asked = _Asked(batch, BatchTerms(self.terms, indices, digest))
        try:
            if isinstance(rule, DistributedConfidentMax):
                release = self._ask_in_two_phases(asked, rule, left=left)
            else:
                release = self._decide(rule, self._open_first(asked), left=left)
        except (ProtocolError, CoordinatorError, PateFedError) as error:
            raise self._void(entry_id, indices, error) from error
        ledger = self._store.ledger().commit(entry_id, outcomes_of(release), release.digest)
        self._store.save_release(ledger, batch=batch, indices=indices, release=release)
        if self._round.has_open_plan:  # else the first phase has said it all
            self._settle(release)
        return release

    def close(self) -> None:
        """End the run: all parties settle, and compare their transcripts; two exchanges.

        A party that does not answer, or has lost the run, does not fail it; `not_heard` names it.

        Raises:
            PartyFailedError: a party failed or remembers another run, or too many were lost; says
                which.
        """
        lost = self._require_lost_only(self._tell(self._round.close()))
        try:
            heads = self._round.compare()
        except TooFewSharesError as error:
            raise lost[0] from error
        heard = self._round.heads_compared
        self._not_heard = tuple(
            self._members[seat].name for seat in self._round.seats if seat not in heard
        )
        self._require_lost_only(self._exchange({seat: [heads] for seat in heard}))

    @staticmethod
    def _require_lost_only(failures: list[PartyFailedError]) -> list[PartyFailedError]:
        """Raise what is worse than a lost party: somebody who remembers another run, above all."""
        for failure in failures:
            has_no_run = isinstance(failure, PartyRefusedError) and (
                failure.cause == UnexpectedMessageError.code
            )
            if not (failure.is_silent or has_no_run):
                raise failure
        return failures

    @property
    def per_instance_cost(self) -> PerInstanceCost | None:
        """What the run cost on the votes that it met. Private: not to be published.

        None with noise at the parties: nobody sees the votes that it would be computed from.
        """
        return None if self._meter is None else self._meter.cost

    # Helpers ----------------------------------------------------------------------------------

    def _ask_in_two_phases(
        self, asked: _Asked, rule: DistributedConfidentMax, *, left: Outcomes
    ) -> NoisyRelease:
        """Open the check's rows, say what passed, and open fresh rows of that; as many exchanges.

        Everything that a cap may stop is cut off before: what is opened is paid for.
        """
        noisy = self._open_first(asked)
        assert isinstance(noisy, NoisyHistogram)
        first = rule.phase_one(noisy, max_answers=left.answers, max_refusals=left.refusals)
        first_plan = self._round.plan_digest
        self._settle(first)
        if not len(first.passed):
            return first.as_release()
        terms = PhaseTerms(first_plan, tuple(first.passed.tolist()), first.digest)
        words = self._collect(
            asked.batch,
            terms.as_record(),
            words=len(terms.rows) * self.terms.classes,
            phase=1,
        )
        return rule.phase_two(first, self._noisy(words, queries=len(terms.rows), phase=1))

    def _settle(self, result: NoisyRelease | FirstPhase) -> None:
        """Close the open plan; parties hear of it with the next message."""
        self._settlement = self._round.settle(
            released=True, result=wire.encode_value(result.as_record())
        )

    def _decide(
        self,
        rule: Mechanism | DistributedMechanism,
        opened: SummedHistogram | NoisyHistogram,
        *,
        left: Outcomes,
    ) -> NoisyRelease:
        """Turn an opened sum into labels; adds noise only where it is the coordinator's to add."""
        if isinstance(opened, NoisyHistogram):
            assert isinstance(rule, DistributedGaussianMax)
            return rule.label(opened, max_answers=left.answers)
        assert not isinstance(rule, DistributedMechanism)
        release = rule.release(
            opened,
            noise=NoisePlan(),
            random_bytes=self._noise_bytes,
            max_answers=left.answers,
            max_refusals=left.refusals,
        )
        assert self._meter is not None
        self._meter.add(opened.counts, release, rule=rule)
        return release

    def _rule_for(
        self, indices: tuple[int, ...], predictions: NDArray[np.float64] | None
    ) -> Mechanism | DistributedMechanism:
        """Return the mechanism of one batch; the student's predictions are public."""
        if predictions is None:
            return self.mechanism
        if not isinstance(self.mechanism, InteractiveGaussianMax | DistributedInteractiveMax):
            raise InvalidParameterError(
                "predictions must be for 'interactive'", self.terms.mechanism
            )
        if predictions.shape != (len(indices), self.terms.classes):
            raise InvalidParameterError(
                f"predictions must have shape {(len(indices), self.terms.classes)}",
                predictions.shape,
            )
        return self.mechanism.with_predictions(predictions, total_votes=self.terms.total_votes)

    def _find_nodes(self) -> None:
        """Offer the run to every node; who signs tells which party a node is."""
        nodes = self._transport.nodes()
        offer = wire.pack([self._round.offer()])
        failures: list[str] = []
        for node, answer in self._transport.exchange(dict.fromkeys(nodes, offer)).items():
            try:
                for frame in self._frames(answer):
                    self._nodes[self._round.receive(frame)] = node
            except RefusedError as error:
                failures.append(f"node {node}: a refusal [{_cause_of(error)}]")
            except ProtocolError as error:
                failures.append(f"node {node}: {error} [{error.code}]")
            except SilenceError as error:
                failures.append(f"node {node}: {error.code}")
        missing = self._round.missing
        if failures or missing:
            first = failures[0] if failures else f"no word of {self._members[missing[0]].name}"
            raise SetupError(
                f"all {len(self._round.seats)} parties must take part",
                f"{len(self._round.seats) - len(missing)} of them ({first})",
            )

    def _open_first(self, asked: _Asked) -> SummedHistogram | NoisyHistogram:
        """Ask a batch, and open the sum of its first vector."""
        terms = asked.terms
        words = self._collect(asked.batch, terms.as_record(), words=terms.words, phase=0)
        if self.terms.at_parties:
            return self._noisy(words, queries=len(terms.indices), phase=0)
        return open_sum(
            words,
            queries=len(terms.indices),
            classes=self.terms.classes,
            total_votes=self._votes_in_sum,
        )

    def _collect(
        self, batch: int, terms: dict[str, Any], *, words: int, phase: int
    ) -> NDArray[np.int64]:
        """Ask for one vector and add it up. Secret where the parties add no noise."""
        plan = self._round.plan(
            batch=batch,
            attempt=0,
            words=words,
            expires_at=self._expires_at,
            terms=wire.encode_value(terms),
            phase=phase,
            row_words=self.terms.classes if self._traces_rows else 0,
        )
        self._words = words
        self._reveal(self._wait(plan, self._tell(plan)))
        return self._round.open_total()

    def _noisy(self, words: NDArray[np.int64], *, queries: int, phase: int) -> NoisyHistogram:
        """Check the rows of a sum that holds the parties' noise."""
        noise, senders = noise_of(self.terms, phase=phase), len(self._round.survivors)
        shape = {"queries": queries, "classes": self.terms.classes}
        return open_noisy_sum(
            words,
            **shape,
            total_votes=self._votes_in_sum,
            sigma=noise.sum_sigma(senders),
            row_sum_bound=noise.row_sum_bound(**shape, senders=senders),
        )

    def _wait(self, plan: bytes, failures: list[PartyFailedError]) -> list[PartyFailedError]:
        """Send a plan again to those who were silent, as it is, while there is hope and time.

        Who broke the protocol or refused is not waited for, and nobody where that voids the batch.
        """
        deadline = min(self._clock() + self._patience_s, self._expires_at)
        pause = _FIRST_PAUSE_S
        while self._clock() < deadline and self._may_come(failures):
            self._sleep(min(pause, deadline - self._clock()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            silent = {failure.party for failure in failures if failure.is_silent}
            waited = self._tell(plan, only=silent)
            failures = [failure for failure in failures if not failure.is_silent] + waited
        return failures

    def _may_come(self, failures: list[PartyFailedError]) -> bool:
        """Whether silent parties are all that a batch lacks."""
        silent = sum(failure.is_silent for failure in failures)
        needed = self._form.threshold(len(self._round.seats))
        return bool(silent) and len(self._round.survivors) + silent >= needed

    def _reveal(self, failures: list[PartyFailedError]) -> None:
        """Do without who failed, in a second exchange, if the form can.

        Raises:
            PartyFailedError: the form needs all parties, or more than are left; names the first.
        """
        if not self._form.survives_dropouts:
            self._require(failures)
            return
        if len(self._round.survivors) < self._form.threshold(len(self._round.seats)):
            self._require(failures)
        lost = self._exchange(self._round.fix_survivors())
        self._lost.append(tuple(failure.party for failure in (*failures, *lost)))

    @property
    def _votes_in_sum(self) -> int:
        """Votes per query of the parties whose vectors are in the sum."""
        seats = self._round.seats
        return sum(self.terms.quotas[seats.index(seat)] for seat in self._round.survivors)

    @property
    def _tolerated(self) -> dict[str, int]:
        """How many parties may collude with us, and how many may drop out."""
        if self.terms.colluders is not None and self.terms.dropouts is not None:
            return {"colluders": self.terms.colluders, "dropouts": self.terms.dropouts}
        parties = len(self._round.seats)
        dropouts = parties - self._form.threshold(parties)
        colluders = self._form.most_colluders(parties) if self._form.survives_dropouts else 1
        return {"colluders": colluders, "dropouts": dropouts}

    def _void(self, entry_id: str, indices: tuple[int, ...], error: Failure) -> VoidBatchError:
        """Settle a failed batch: what may have been sent stays charged.

        Its queries may be asked again if no hospital can object (rule R3): in the additive form
        once somebody signed that it never will send, in the masked one while nobody was asked to
        reveal. That is another batch, with a number, a charge and noise of its own: each entry of
        a ledger is one plan, and what was charged for a void one stays charged (rule R13).
        """
        # Else the error would keep the frames of `open_sum`, and the sum in them, alive.
        traceback.clear_frames(error.__traceback__)
        ledger = self._store.ledger()
        nothing_left = self._round.nothing_was_shared and not self._round.phase
        settled = ledger.cancel(entry_id) if nothing_left else ledger.forfeit(entry_id)
        self._store.save_ledger(settled)
        if self._form.survives_dropouts:
            is_shut = not self._round.survivors_are_fixed
        else:
            is_shut = bool(self._round.declined)
        may_ask_again = is_shut and not self._round.phase
        if may_ask_again:
            self._asked.difference_update(indices)
        self._settlement = self._round.settle(released=False, result=b"")
        self._voids += 1
        must = "every party must keep to the protocol for a batch to be released"
        got = f"{error.must}, got {error.got}"
        reservation = "cancelled" if nothing_left else "forfeited"
        if isinstance(error, RowSumError) and self._traces_rows:
            named = self._who_spoiled(error.row)
            return SpoiledBatchError(must, got, reservation=reservation, named=named)
        return VoidBatchError(must, got, reservation=reservation, may_ask_again=may_ask_again)

    @property
    def _traces_rows(self) -> bool:
        """Whether it can be found out who spoiled a row.

        With noise at the parties a row's sum is secret; the plain form has no streams to compare.
        """
        return not self.terms.at_parties and self._form.name != PlainSum.name

    def _who_spoiled(self, row: int) -> tuple[str, ...]:
        """Ask whose row it was; one exchange. Returns a line for each who is named."""
        request = self._round.ask_for_sums(row)
        asked = {self._members[seat].name for seat in self._round.missing}
        failures = self._tell(request, only=asked)
        causes = {failure.party: failure.cause for failure in failures}
        blame = self._round.name_liars(self.terms.quotas)
        name = {seat: member.name for seat, member in self._members.items()}
        named = [f"{name[seat]}: its row is not its votes" for seat in blame.parties]
        named += [f"{name[one]} and {name[two]}: one of them lies" for one, two in blame.pairs]
        named += [
            f"{name[seat]}: it does not say [{causes.get(name[seat], 'PF-412')}]"
            for seat in blame.silent
        ]
        for line in named:
            _log.warning("a batch is void; %s", line)
        return tuple(named)

    def _exchange(self, frames: Mapping[bytes, list[bytes]]) -> list[PartyFailedError]:
        """Send frames by party and take all answers; return who failed, in seat order."""
        packets = {self._nodes[seat]: wire.pack(items) for seat, items in frames.items()}
        answers = self._transport.exchange(packets)
        failures: list[PartyFailedError] = []
        for seat in frames:
            try:
                for frame in self._frames(answers[self._nodes[seat]]):
                    self._receive(frame, seat)
                if seat in self._round.missing:
                    failures.append(self._silent(seat, _NOTHING))
            except ProtocolError as error:
                failures.append(self._failed(seat, error))
            except SilenceError as error:
                failures.append(self._silent(seat, error.code))
        return failures

    def _receive(self, frame: bytes, seat: bytes) -> None:
        """Take a frame. What was under way for too long is refused, and is no fault."""
        try:
            self._round.receive(frame, peer=seat)
        except LateMessageError:
            return

    def _broadcast(self, frames: list[bytes]) -> list[PartyFailedError]:
        return self._exchange(dict.fromkeys(self._round.seats, frames))

    def _tell(self, frame: bytes, *, only: Collection[str] | None = None) -> list[PartyFailedError]:
        """Send a frame to all, or to some, behind the settlements each may not have heard of.

        Who missed more than a packet holds is told a part of it, and is silent until it has all.
        """
        frames = {
            seat: told[:_MOST_TOLD] if len(told) > _MOST_TOLD else [*told, frame]
            for seat, told in self._settled().items()
            if only is None or self._members[seat].name in only
        }
        failures = self._exchange(frames)
        causes = {failure.party: failure.cause for failure in failures}
        for seat, sent in frames.items():
            # A part of what it missed is answered by nothing at all.
            heard = _NOTHING if sent[-1] is not frame else None
            if causes.get(self._members[seat].name) == heard:
                del self._unheard[seat][: len(sent)]
        return failures

    def _settled(self) -> dict[bytes, list[bytes]]:
        """Return by party the settlements that travel with the next message.

        Who missed a batch needs them all: its history has to be the others'. One that comes twice
        changes nothing.
        """
        settlement, self._settlement = self._settlement, None
        if settlement is not None:
            for told in self._unheard.values():
                told.append(settlement)
        return self._unheard

    def _frames(self, answer: bytes | Silence) -> list[bytes]:
        if isinstance(answer, Silence):
            raise SilenceError(answer.code)
        return wire.unpack(answer, max_bytes=self._max_answer_bytes)

    @property
    def _max_answer_bytes(self) -> int:
        words = max(self._words, 1)
        return max(SETUP_ANSWER_BYTES, 4 * words + 8 * 1024 + self._round.most_share_bytes)

    def _failed(self, seat: bytes, error: ProtocolError) -> PartyFailedError:
        """Put the party's name to what it sent."""
        name = self._members[seat].name
        if isinstance(error, RefusedError):
            cause = _cause_of(error)
            return PartyRefusedError(error.must, "a refusal", party=name, cause=cause)
        return PartyFailedError(error.must, error.got, party=name, cause=error.code)

    def _silent(self, seat: bytes, code: str) -> PartyFailedError:
        name = self._members[seat].name
        return PartyFailedError(
            "every party must answer", "none", party=name, cause=code, is_silent=True
        )

    def _require(self, failures: list[PartyFailedError]) -> None:
        if failures:
            raise failures[0]


def _cause_of(error: RefusedError) -> str:
    """Code of a refusal. The text is the party's: only a code may go on to screens and reports."""
    return error.reason if _CODE.fullmatch(error.reason) else error.code


def _digest_of(predictions: NDArray[np.float64]) -> bytes:
    shape = ",".join(str(size) for size in predictions.shape)
    body = np.ascontiguousarray(predictions, dtype="<f8").tobytes()
    return hashlib.sha256(f"pate-fed predictions {shape}\n".encode() + body).digest()

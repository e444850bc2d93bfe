"""Hostile peers: hospitals' real nodes, and a coordinator that tells each of them what it likes.

A `World` has hospitals, each with one journal and one ledger for life, and one node for each
federation that it is in. All coordinators are one attacker. It has some of the hospitals on its
side: the liars. A `Run` is one run of one federation in the attacker's hands, with one batch.

A `Loot` holds everything that the attacker saw of a run. It tells which sums of honest hospitals'
votes the attacker can open, by the arithmetic alone: whatever any rule says. `World.votes_read`
combines the sums of all runs and returns the votes of one hospital, if they follow.

At the end of this file each rule can be taken out, to see that an attack succeeds without it.
"""

from __future__ import annotations

import copy
import hmac
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from party.decision.guard import Guard
from party.decision.node import PartyNode
from party.errors import Reason
from party.site.party_task import PartyTask, tasks_of
from party.site.policy import Policy
from party.storage import Journal, LedgerStore, PartyDatabase
from party.storage.query_journal import QueryJournal
from pate_fed.accounting import PrivacyLedger
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.terms import NO_TASK, BatchTerms, RunTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.dealing import Labels, read_disclosure
from protocols.envelope import open_shares
from protocols.errors import WrongShareError
from protocols.fields import DIGEST_BYTES, VERDICT_MAC_BYTES, Message
from protocols.identity import SigningIdentity
from protocols.messages import (
    Certificate,
    Dealing,
    MaskedVector,
    Plan,
    Refusal,
    Reveal,
    SetProposal,
    Settlement,
    ShareBundle,
    Verdict,
    VerdictMacs,
)
from protocols.prg import expand
from protocols.ring import Words
from protocols.rounds import (
    ANY_SET,
    CoordinatorRound,
    PlanClaim,
    SetBound,
    lost_runs,
    settlement,
    verdicts,
)
from protocols.rounds.batch import at_party
from protocols.rounds.opening.at_party import STAGE
from protocols.rounds.verdicts import VERDICT_STAGE
from protocols.secure_sum import SecureSum
from protocols.shamir import SHARE_BYTES, Elements, Shamir, elements_to_secrets, split_shares
from protocols.suites import SUITES
from protocols.sums import SUMS
from protocols.values import encode_value
from tests.support.rules import run_terms

CLASSES = 3
TEACHERS = 7
ORDER = 20.0
EPSILON = 1e6
MOST_BYTES = 2**28
QUICK_SUITE = min(SUITES, key=len)
"""X25519 alone: the sealing is not attacked here."""
WEIGHTS = TeacherWeights.equal(TEACHERS)
Places = Collection[int]


class ForgetfulQueries(QueryJournal):
    """A liar's queries: none that it answered binds it later."""

    def claim(self, queries: Sequence[bytes], *, plan_digest: bytes, claim: PlanClaim) -> None:
        """Note nothing."""


@dataclass
class Hospital:
    """One hospital, over all runs and federations."""

    identity: SigningIdentity
    journal: Journal
    ledger: LedgerStore
    votes: NDArray[np.int64]
    nodes: list[PartyNode] = field(default_factory=list)


class World:
    """Hospitals, liars among them, and the attacker who coordinates every federation.

    Places of hospitals are in the order of their fingerprints. `uncoded` names the honest ones that
    met an error without a code.

    Args:
        hospitals: How many there are.
        liars: Places of those that help the attacker.
        queries: Number of questions. The pool has as many others, to which teachers happen to
            say the same: query `index + queries` gets the votes of query `index`.
        federations: How many federations every hospital is in.
        policy: What the owners of all hospitals allow, beside the defaults.
        seed: Of votes and queries.
    """

    def __init__(
        self,
        hospitals: int,
        *,
        liars: Places = (),
        queries: int = 4,
        federations: int = 1,
        policy: Mapping[str, Any] | None = None,
        seed: int = 1,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.queries = queries
        self.pool = QueryPool(rng.normal(size=(2 * queries, 8)) * 10)
        self.liars = frozenset(liars)
        self.now = 1_000.0
        self.coordinators = [SigningIdentity.generate() for _ in range(federations)]
        self.runs: list[Run] = []
        self.uncoded: list[int] = []
        people = [SigningIdentity.generate() for _ in range(hospitals)]
        people.sort(key=lambda identity: identity.fingerprint)
        self._pins = {identity.fingerprint: identity.public for identity in people}
        self.policy = Policy(
            **{
                "approved_pools": frozenset({self.pool.digest}),
                "forms": frozenset({"additive", "masked"}),
                "suites": frozenset({QUICK_SUITE}),
                "most_epsilon": 2 * EPSILON,
                **(policy or {}),
            }
        )
        self.hospitals: list[Hospital] = []
        for place, identity in enumerate(people):
            votes = np.tile(rng.integers(0, CLASSES, size=(TEACHERS, queries)), 2)
            budget = PrivacyLedger(EPSILON, 1e-5, order=ORDER)
            database = PartyDatabase.in_memory()
            journal = Journal(database)
            if place in self.liars:
                journal.queries = ForgetfulQueries(database)
            ledger = LedgerStore(database, budget=budget)
            self.hospitals.append(Hospital(identity, journal, ledger, votes))
            self.restart(place)

    @property
    def honest(self) -> list[int]:
        """Places of the hospitals that keep to the rules."""
        return [place for place in range(len(self.hospitals)) if place not in self.liars]

    def restart(self, place: int) -> None:
        """Give a hospital new processes: all that they know is in its journal and its ledger."""
        hospital = self.hospitals[place]
        hospital.nodes = [self._open_node(hospital, identity) for identity in self.coordinators]

    def _open_node(self, hospital: Hospital, coordinator: SigningIdentity) -> PartyNode:
        def vote(batch: QueryBatch) -> NDArray[np.int64]:
            return hospital.votes[:, list(batch.indices)]

        bodies = {fingerprint: fingerprint.hex() for fingerprint in self._pins}
        return PartyNode(
            identity=hospital.identity,
            coordinator=coordinator.public,
            known_peers=self._pins,
            guard=Guard(policy=self.policy, weights=WEIGHTS, checked_peers=bodies),
            tasks=tasks_of(PartyTask(self.pool, vote)),
            forms={name: make() for name, make in SUMS.items() if make.hides_vectors},
            journal=hospital.journal,
            ledger=hospital.ledger,
            random_bytes=secrets.token_bytes,
            clock=lambda: self.now,
        )

    def terms(self, parties: int, **changed: Any) -> RunTerms:
        """The terms of a run among so many hospitals, by default with noise at the coordinator."""
        fields: dict[str, Any] = {
            "name": "run",
            "pool_digest": self.pool.digest,
            "task_digest": NO_TASK,
            "classes": CLASSES,
            "weights": (WEIGHTS,) * parties,
            "mechanism": "gnmax",
            "sigma2": 4.0,
            "unit": "record",
            "max_asks": 1_000,
            "max_answers": 1_000,
            "budgets": (EPSILON,) * parties,
            "delta": 1e-5,
        }
        return run_terms(**(fields | changed))

    # What the attacker learns -----------------------------------------------------------------

    def truth(self, place: int, question: int) -> NDArray[np.int64]:
        """One hospital's votes on a question, counted by class."""
        return np.bincount(self.hospitals[place].votes[:, question], minlength=CLASSES)

    def votes_read(self, victim: int) -> dict[int, NDArray[np.int64]]:
        """Combine all sums that the attacker can open; return what follows for one hospital.

        Returns:
            By question, the counts that the attacker computes for the victim; no entry for a
            question whose sums leave the victim's votes open.
        """
        by_question: dict[int, list[tuple[frozenset[int], NDArray[np.int64]]]] = {}
        for run in self.runs:
            for parties, rows in run.loot.sums():
                for index, row in zip(run.indices, rows, strict=True):
                    by_question.setdefault(index % self.queries, []).append((parties, row))
        read = {}
        for question, sums in by_question.items():
            counts = self._combined(sums, victim)
            if counts is not None:
                read[question] = counts
        return read

    def _combined(
        self, sums: Sequence[tuple[frozenset[int], NDArray[np.int64]]], victim: int
    ) -> NDArray[np.int64] | None:
        """Solve for one hospital's row: a combination of the sums that holds it alone."""
        holds = np.array([[place in parties for place in self.honest] for parties, _ in sums])
        wanted = np.array([place == victim for place in self.honest], dtype=float)
        weights, *_ = np.linalg.lstsq(holds.T.astype(float), wanted, rcond=None)
        if not np.allclose(holds.T @ weights, wanted, atol=1e-9):
            return None
        counts = weights @ np.array([row for _, row in sums], dtype=float)
        return np.rint(counts).astype(np.int64)

    def is_read(self, victim: int) -> bool:
        """Whether the attacker computes the exact votes of a hospital on every question."""
        read = self.votes_read(victim)
        return len(read) == self.queries and all(
            np.array_equal(counts, self.truth(victim, question))
            for question, counts in read.items()
        )

    def assert_nothing_is_read(self) -> None:
        """No hospital's votes follow from what was opened, and what was opened is one set each.

        Any two sums over one question hold the same honest hospitals, or none in common.
        """
        for victim in self.honest:
            assert self.votes_read(victim) == {}
        opened: dict[int, set[frozenset[int]]] = {}
        for run in self.runs:
            for parties, _ in run.loot.sums():
                for index in run.indices:
                    opened.setdefault(index % self.queries, set()).add(parties)
        for sets in opened.values():
            for one, other in combinations(sets, 2):
                assert not one & other, f"{sorted(one)} and {sorted(other)}"


# One run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a hospital answered to one packet."""

    frames: tuple[bytes, ...]

    @property
    def messages(self) -> list[Message]:
        return [wire.decode(frame).message for frame in self.frames]

    @property
    def codes(self) -> list[str]:
        return [each.reason for each in self.messages if isinstance(each, Refusal)]

    def frame_of(self, kind: type[Message]) -> bytes:
        """The one frame with a message of this kind."""
        [frame] = [one for one in self.frames if type(wire.decode(one).message) is kind]
        return frame


class Run:
    """One run in the hands of the attacker, with one batch.

    Seats are those of `places`, in order. All methods name hospitals by their places.

    Args:
        world: The hospitals.
        places: Those that take part.
        form: Name of the secure sum.
        colluders: How many colluders the run record promises; the most that the form allows if
            None.
        federation: Whose coordinator calls.
        terms: Changes to `World.terms`.
    """

    def __init__(
        self,
        world: World,
        places: Places,
        form: str,
        *,
        colluders: int | None = None,
        federation: int = 0,
        **terms: Any,
    ) -> None:
        self.world = world
        self.places = tuple(sorted(places))
        self.form: SecureSum = SUMS[form]()
        self.federation = federation
        self.identity = world.coordinators[federation]
        people = [world.hospitals[place].identity for place in self.places]
        self.coordinator = CoordinatorRound(
            identity=self.identity,
            form=self.form,
            parties={identity.fingerprint: identity.public for identity in people},
            nonce=secrets.token_bytes(32),
            expires_at=int(world.now) + 3_600,
            simulated=False,
            suite=QUICK_SUITE,
        )
        self.parties = len(self.places)
        self.threshold = self.form.threshold(self.parties)
        self.colluders = self.form.most_colluders(self.parties) if colluders is None else colluders
        if terms.get("noise_place") == "parties":
            dropouts = self.parties - self.threshold
            terms = {"colluders": self.colluders, "dropouts": dropouts, **terms}
        self.terms = world.terms(self.parties, **terms)
        self.indices: tuple[int, ...] = ()
        self.plan_frame = self.plan_digest = b""
        self.words = 0
        self.answers: dict[int, Answer] = {}
        self.verdicts: dict[tuple[int, ...], dict[int, bytes]] = {}
        self.macs: dict[tuple[int, ...], dict[int, tuple[bytes, ...]]] = {}
        self.loot = Loot(self)
        world.runs.append(self)

    # Peers ------------------------------------------------------------------------------------

    @property
    def liars(self) -> list[int]:
        return [place for place in self.places if place in self.world.liars]

    @property
    def honest(self) -> list[int]:
        return [place for place in self.places if place not in self.world.liars]

    def key_of(self, place: int) -> SigningIdentity:
        """The identity of a hospital, which only the liars among them lend to the attacker."""
        return self.world.hospitals[place].identity

    def fingerprint(self, place: int) -> bytes:
        """Name a hospital as messages do."""
        return self.key_of(place).fingerprint

    def node(self, place: int) -> PartyNode:
        """A hospital's node in this federation."""
        return self.world.hospitals[place].nodes[self.federation]

    def tell(self, place: int, *frames: bytes) -> Answer:
        """Hand a packet to a hospital."""
        node = self.node(place)
        answer = node.receive(wire.pack(list(frames)))
        if place not in self.world.liars and node.fault == Reason.FAULT.value:
            self.world.uncoded.append(place)
        return Answer(tuple(wire.unpack(answer, max_bytes=MOST_BYTES)))

    def sign(self, message: Message) -> bytes:
        return wire.sign(message, self.identity).frame

    def speak_as(self, federation: int) -> None:
        """Go on by the coordinator of another federation, to the hospitals' nodes in that one."""
        self.federation = federation
        self.identity = self.world.coordinators[federation]

    # Setup and plan ---------------------------------------------------------------------------

    def set_up(self) -> Run:
        """Set the run up as an honest coordinator does.

        Raises:
            RefusedError: a hospital refuses the run.
        """
        self._exchange(dict.fromkeys(self.places, self.coordinator.setup.offer.frame))
        record = self.coordinator.setup.make_record(
            terms=encode_value(self.terms.as_record()),
            colluders=self.colluders,
            dropouts=self.parties - self.threshold,
        )
        self._exchange(dict.fromkeys(self.places, record))
        for step in (self.coordinator.setup.deliver, self.coordinator.setup.close):
            self._exchange({self.places[self._seat(seat)]: frame for seat, frame in step().items()})
        return self

    def _seat(self, fingerprint: bytes) -> int:
        return self.coordinator.seats.index(fingerprint)

    def _exchange(self, frames: Mapping[int, bytes]) -> None:
        for place, frame in frames.items():
            for reply in self.tell(place, frame).frames:
                self.coordinator.receive(reply, peer=self.fingerprint(place))

    def plan(self, indices: Sequence[int]) -> bytes:
        """Make the plan of the batch; tell nobody yet."""
        asked = BatchTerms(self.terms, tuple(indices))
        self.indices, self.words = asked.indices, asked.words
        self.plan_frame = self.coordinator.batch.plan(
            batch=0,
            words=asked.words,
            expires_at=int(self.world.now) + 3_000,
            terms=encode_value(asked.as_record()),
        )
        self.plan_digest = wire.decode(self.plan_frame).digest
        return self.plan_frame

    def other_plan(self, indices: Sequence[int], *, like: int) -> Run:
        """Make another plan of this run, one that continues what a hospital remembers.

        Returns:
            The run once more, with its own batch.
        """
        other = copy.copy(self)
        asked = BatchTerms(self.terms, tuple(indices))
        other.indices, other.words = asked.indices, asked.words
        plan = Plan(
            run_id=self.coordinator.run_id,
            epoch=self.node(like)._round.epoch + 1,
            batch=1,
            previous_head=self.node(like).transcript_head,
            words=other.words,
            expires_at=int(self.world.now) + 3_000,
            terms=encode_value(asked.as_record()),
        )
        other.plan_frame = self.sign(plan)
        other.plan_digest = wire.digest_of(plan)
        other.answers, other.verdicts, other.macs, other.loot = {}, {}, {}, Loot(other)
        self.world.runs.append(other)
        return other

    def ask(self, indices: Sequence[int], *, of: Places | None = None) -> dict[int, list[str]]:
        """Send the plan; return the codes of the hospitals that refuse it."""
        if not self.plan_frame:
            self.plan(indices)
        refused = {}
        for place in self.places if of is None else of:
            answer = self.tell(place, self.plan_frame)
            self.answers[place] = answer
            if answer.codes:
                refused[place] = answer.codes
            elif answer.frames:
                self.loot.take_answer(place, answer)
        return refused

    # Verdicts and shares ----------------------------------------------------------------------

    def proposal(self, survivors: Places) -> bytes:
        """The proposal to open these hospitals, or with none of them to close the plan."""
        message = SetProposal(self.coordinator.run_id, self.plan_digest, self._names(survivors))
        return self.sign(message)

    def propose(self, survivors: Places, *, to: Places) -> dict[int, list[str]]:
        """Ask for verdicts; keep them, and return the codes of those that refuse."""
        refused = {}
        for place in to:
            answer = self.tell(place, self.proposal(survivors))
            for frame in answer.frames:
                signed = wire.decode(frame)
                match signed.message:
                    case VerdictMacs(macs=macs):
                        self.macs.setdefault(_key(survivors), {})[place] = macs
                    case Verdict():
                        assert signed.message == self.verdict(survivors)
                        given = self.verdicts.setdefault(_key(survivors), {})
                        given[place] = signed.signature
            if answer.codes:
                refused[place] = answer.codes
        return refused

    def verdict(self, survivors: Places) -> Verdict:
        return Verdict(self.plan_digest, self._names(survivors))

    def certificate(self, survivors: Places, *, spoiled: Places = ()) -> bytes:
        """Make the certificate for a set, as far as it can be made; liars sign everything."""
        signatures = dict(self.verdicts.get(_key(survivors), {}))
        for place in self.liars:
            if place in survivors or not survivors:
                signed = wire.sign(self.verdict(survivors), self.key_of(place))
                signatures[place] = signed.signature
        signatures |= dict.fromkeys(spoiled, bytes(64))
        signers = tuple(sorted(signatures))
        if not signers:
            return b""
        return wire.contain(
            Certificate(
                self.plan_digest,
                self._names(survivors),
                tuple(map(self.fingerprint, signers)),
                tuple(signatures[place] for place in signers),
            )
        )

    def macs_for(self, survivors: Places, *, holder: int) -> VerdictMacs:
        """The MACs that prove a set to one holder, as far as they are there; liars make theirs."""
        digest = wire.digest_of(self.verdict(survivors))
        given = self.macs.get(_key(survivors), {})
        macs = []
        for place in self.places:
            if place in self.liars and place in survivors and place != holder:
                key = self.loot.sending[place, holder]
                macs.append(hmac.digest(key, digest, "sha256")[:VERDICT_MAC_BYTES])
            elif place != holder:
                seat = self.places.index(holder) - (place < holder)
                macs.append(given[place][seat] if place in given else b"")
        return VerdictMacs(self.plan_digest, tuple(macs))

    def count_verdicts(self, survivors: Places) -> int:
        """How many verdicts the attacker has for a set, the liars' included."""
        frame = self.certificate(survivors)
        return len(wire.expect(wire.decode(frame), Certificate).signers) if frame else 0

    def reveal(
        self,
        survivors: Places,
        *,
        to: Places,
        certificate: bytes = b"",
        by_macs: bool = False,
        change: Callable[[VerdictMacs], VerdictMacs] = lambda macs: macs,
    ) -> dict[int, list[str]]:
        """Show a proof and shares; keep what is revealed, return the codes of the others."""
        refused = {}
        for place in to:
            proof = certificate or self.certificate(survivors)
            if by_macs:
                proof = wire.contain(change(self.macs_for(survivors, holder=place)))
            answer = self.tell(place, proof, self.bundle(survivors, holder=place))
            for message in answer.messages:
                if isinstance(message, Reveal):
                    self.loot.take_reveal(message, survivors, holder=place)
            if answer.codes:
                refused[place] = answer.codes
        return refused

    def bundle(self, survivors: Places, *, holder: int) -> bytes:
        """The dealings and shares for one holder."""
        dealers = [place for place in sorted(survivors) if place != holder]
        dealings = tuple(self.loot.dealings[dealer] for dealer in dealers)
        envelopes = tuple(self.loot.envelopes[dealer, holder] for dealer in dealers)
        return wire.contain(ShareBundle(self.plan_digest, dealings, envelopes))

    def open(self, survivors: Places) -> dict[int, list[str]]:
        """Do all that opens a set: verdicts, proofs of both kinds, shares. Return who refuses."""
        members = [place for place in self.honest if place in survivors]
        refused = self.propose(survivors, to=members)
        willing = [place for place in members if place not in refused]
        if self.count_verdicts(survivors) >= self.threshold:
            for place in willing:
                refused |= self.reveal(survivors, to=[place], by_macs=bool(place % 2))
        return refused

    def close(self, *, to: Places | None = None) -> bytes:
        """Propose to close the plan; return the certificate, empty if too few agree."""
        self.propose((), to=self.honest if to is None else to)
        return self.certificate(()) if self.count_verdicts(()) >= self.threshold else b""

    # Settlements ------------------------------------------------------------------------------

    def refusal(self, place: int) -> bytes:
        """A liar's promise that it sent nothing."""
        message = Refusal(self.plan_digest, self.fingerprint(place), "PF-242")
        return wire.sign(message, self.key_of(place)).frame

    def settlement(self, *, refused_by: Places = (), certificate: bytes = b"") -> Settlement:
        """The settlement that says that nothing came of the plan."""
        return Settlement(
            run_id=self.coordinator.run_id,
            plan_digest=self.plan_digest,
            state="void",
            words=self.words,
            contributions=(b"",) * self.parties,
            refusals=tuple(self.refusal(place) for place in sorted(refused_by)),
            certificate=certificate,
            result=b"",
        )

    def void(
        self,
        *,
        to: Places | None = None,
        refused_by: Places = (),
        certificate: bytes = b"",
    ) -> dict[int, list[str]]:
        """Tell hospitals that the batch is void; return the codes of those that object."""
        frame = self.sign(self.settlement(refused_by=refused_by, certificate=certificate))
        answers = {place: self.tell(place, frame) for place in (self.honest if to is None else to)}
        return {place: answer.codes for place, answer in answers.items() if answer.codes}

    def _names(self, survivors: Places) -> tuple[bytes, ...]:
        return tuple(self.fingerprint(place) for place in sorted(survivors))


def _key(survivors: Places) -> tuple[int, ...]:
    return tuple(sorted(survivors))


# What the attacker saw ----------------------------------------------------------------------------


class Loot:
    """All that the attacker saw of one run: y's, shares, and everything that the liars know."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.vectors: dict[int, Words] = {}
        self.dealings: dict[int, bytes] = {}
        self.envelopes: dict[tuple[int, int], bytes] = {}
        self.sending: dict[tuple[int, int], bytes] = {}
        self._keys: dict[int, dict[bytes, bytes]] = {}
        self._receiving: dict[tuple[int, int], bytes] = {}
        self._shares: dict[tuple[int, int], dict[int, Elements]] = {}
        self._joined: dict[tuple[int, int], bytes | None] = {}

    def take_answer(self, place: int, answer: Answer) -> None:
        """Keep what a hospital answered to the plan, and the keys of a liar."""
        run = self._run
        y = wire.expect(wire.decode(answer.frame_of(MaskedVector)), MaskedVector)
        self.vectors[place] = run.form.ring.from_bytes(y.body)
        if run.form.survives_dropouts:
            bundle = wire.expect(wire.decode(answer.frame_of(ShareBundle)), ShareBundle)
            self.dealings[place] = bundle.dealings[0]
            holders = [holder for holder in run.places if holder != place]
            for holder, envelope in zip(holders, bundle.envelopes, strict=True):
                self.envelopes[place, holder] = envelope
        if place in run.world.liars:
            self._take_keys(place)

    def _take_keys(self, liar: int) -> None:
        run, roots = self._run, self._run.node(liar)._round.roots
        self._keys[liar] = roots.keys_for(run.plan_digest)
        for peer in run.places:
            if peer != liar:
                name, plan = run.fingerprint(peer), run.plan_digest
                key = roots.receiving_key(name, plan_digest=plan, stage=STAGE)
                self._receiving[peer, liar] = key
                key = roots.sending_key(name, plan_digest=plan, stage=VERDICT_STAGE)
                self.sending[liar, peer] = key

    def take_reveal(self, reveal: Reveal, survivors: Places, *, holder: int) -> None:
        """Keep the shares that a holder shows."""
        dropped = [self._seat(place) for place in self._run.places if place not in survivors]
        for dealer, disclosed in zip(sorted(survivors), reveal.disclosures, strict=True):
            if not disclosed:
                continue
            elements = read_disclosure(
                disclosed,
                self._dealing(dealer),
                dealer=self._seat(dealer),
                holder=self._seat(holder),
                dropped=dropped,
            )
            for seat, share in zip((self._seat(dealer), *dropped), elements, strict=True):
                self._note(dealer, self._run.places[seat], holder, share)

    def sums(self) -> Iterator[tuple[frozenset[int], NDArray[np.int64]]]:
        """Yield every sum that can be opened: whose votes it holds, and its rows."""
        run = self._run
        self._open_columns()
        self._joined.clear()
        present = [place for place in run.honest if place in self.vectors]
        for size in range(1, len(present) + 1):
            for parties in combinations(present, size):
                keys = list(self._keys_in(parties))
                if all(key is not None for _, key in keys):
                    rows = run.form.ring.decode(self._total(parties, keys))
                    yield frozenset(parties), rows.reshape(len(run.indices), -1)

    def _keys_in(self, parties: Sequence[int]) -> Iterator[tuple[int, bytes | None]]:
        """Yield the streams that are in the sum of some honest y's, until a key is missing."""
        run, seat = self._run, self._seat
        for place in parties:
            if run.form.survives_dropouts:
                yield 1, self._secret(place, place)
                if self._secret(place, place) is None:
                    return
            for other in run.places:
                if other not in parties:
                    key = self._pair_key(place, other)
                    yield 1 if seat(place) < seat(other) else -1, key
                    if key is None:
                        return

    def _total(self, parties: Sequence[int], keys: Sequence[tuple[int, bytes | None]]) -> Words:
        """Add y's and take all streams off."""
        run = self._run
        total = run.form.empty_total(run.words)
        for place in parties:
            run.form.merge(total, self.vectors[place])
        for sign, key in keys:
            assert key is not None
            stream = expand(key, run.words, ring=run.form.ring)
            total = total - stream if sign == 1 else total + stream
        return total

    def _pair_key(self, place: int, other: int) -> bytes | None:
        if other in self._keys:
            return self._keys[other][self._run.fingerprint(place)]
        return self._secret(place, other) or self._secret(other, place)

    def _secret(self, dealer: int, place: int) -> bytes | None:
        """A dealer's secret with another hospital, or its self mask."""
        if (dealer, place) not in self._joined:
            self._joined[dealer, place] = self._join(dealer, place)
        return self._joined[dealer, place]

    def _join(self, dealer: int, place: int) -> bytes | None:
        run = self._run
        if not run.form.survives_dropouts or dealer not in self.dealings:
            return None
        shares = {self._seat(h): s for h, s in self._shares.get((dealer, place), {}).items()}
        if len(shares) < run.threshold:
            return None
        holders = tuple(sorted(shares)[: run.threshold])
        rows = np.array([shares[holder] for holder in holders])[:, None, :]
        joined = Shamir(run.threshold, run.parties).join(rows, holders=holders)
        try:
            [secret] = elements_to_secrets(joined)
        except WrongShareError:
            return None
        labels = Labels.of(self._dealing(dealer), dealer=self._seat(dealer))
        signed = self._dealing(dealer).secret_hash(self._seat(place))
        return secret if labels.of_secret(self._seat(place), secret) == signed else None

    def _open_columns(self) -> None:
        """Open what honest dealers sealed for the liars."""
        for (dealer, liar), key in self._receiving.items():
            if dealer not in self.dealings:
                continue
            digest = wire.decode(self.dealings[dealer]).digest
            column = open_shares(self.envelopes[dealer, liar], key, dealing_digest=digest)
            for seat, place in enumerate(self._run.places):
                start = DIGEST_BYTES + SHARE_BYTES * seat
                [share] = split_shares(column[start : start + SHARE_BYTES])
                self._note(dealer, place, liar, share)

    def _note(self, dealer: int, place: int, holder: int, share: Elements) -> None:
        self._shares.setdefault((dealer, place), {})[holder] = share

    def _dealing(self, dealer: int) -> Dealing:
        return wire.expect(wire.decode(self.dealings[dealer]), Dealing)

    def _seat(self, place: int) -> int:
        return self._run.places.index(place)


# Rules that a test takes out ----------------------------------------------------------------------

Patch = pytest.MonkeyPatch
TakenOut = Callable[[Patch], None]


def without_refusers_bound(patch: Patch) -> None:
    """A refusal frees a query for any set."""
    patch.setattr(
        PlanClaim,
        "abandoned_by",
        classmethod(lambda cls, refusers, *, seats: cls(ANY_SET, is_free=True)),
    )


def without_bound_on_sets(patch: Patch) -> None:
    """Every set is within every bound."""
    patch.setattr(SetBound, "allows", lambda self, parties: True)


def without_bound_on_seats(patch: Patch) -> None:
    """Every run leaves room for a set within the bound."""
    patch.setattr(SetBound, "leaves_room", lambda self, seats, *, threshold: True)


def without_any_bound(patch: Patch) -> None:
    """Earlier plans bind nothing."""
    patch.setattr("party.storage.query_journal.bound_on", lambda earlier: ANY_SET)


def without_bound_in_verdicts(patch: Patch) -> None:
    """A party agrees to a set whatever its journal knows."""
    require = verdicts.require_open_set
    patch.setattr(
        verdicts,
        "require_open_set",
        lambda survivors, **fields: require(survivors, **{**fields, "bound": ANY_SET}),
    )


def with_void_as_proof(patch: Patch) -> None:
    """A settlement that says "void" frees the queries of any plan."""
    prove = settlement.proven_claim

    def believe(settlement: Any, **fields: Any) -> PlanClaim | None:
        if settlement.state == "void":
            return PlanClaim(ANY_SET, is_free=True)
        return prove(settlement, **fields)

    for module in (at_party, lost_runs):
        patch.setattr(module, "proven_claim", believe)


def without_proof_of_closing(patch: Patch) -> None:
    """A settlement's certificate is believed as it is."""
    patch.setattr(
        settlement, "require_certificate", lambda certificate, **fields: certificate.verdict
    )


def without_proof_of_opening(patch: Patch) -> None:
    """A party shows its shares without enough verdicts, be they signed or authenticated."""
    patch.setattr(
        verdicts, "require_certificate", lambda certificate, **fields: certificate.verdict
    )
    patch.setattr(verdicts, "require_macs", lambda message, verdict, **fields: None)


def without_one_verdict(patch: Patch) -> None:
    """A party forgets its verdict on a plan."""
    patch.setattr(Journal, "decide", lambda self, plan, verdict, *, run_id: None)

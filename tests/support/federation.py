"""A small federation in memory: coordinator, parties, and every packet in the test's hands."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.database import Database, RunStore
from coordinator.database.run_store import StoredBatch
from coordinator.runs.labeling import LabelingJob, LabelingRun, Member
from coordinator.runs.transport import Silence, Transport
from party.decision.guard import Guard
from party.decision.node import PartyNode
from party.site.party_task import PartyTask, tasks_of
from party.site.policy import Policy
from party.storage import Journal, LedgerStore, PartyDatabase
from party.storage.ledger_store import RunCharges
from party.storage.query_journal import QueryJournal
from pate_fed.accounting import OutcomeEntry, PrivacyLedger, order_for_life
from pate_fed.charges import RunLedger
from pate_fed.lab.per_instance import PerInstanceMeter
from pate_fed.mechanisms import RandomBytes, keyed_stream, spec_of
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.releases import NoisyRelease
from pate_fed.terms import NO_TASK, RunTerms
from pate_fed.votes import TeacherWeights
from protocols import wire
from protocols.additive import AdditiveSum
from protocols.fields import Message
from protocols.identity import SigningIdentity
from protocols.masked import MaskedSum
from protocols.messages import MaskedVector, Refusal, Settlement
from protocols.plain import PlainSum
from protocols.rounds import PlanClaim
from protocols.secure_sum import SecureSum
from tests.support.copied import Copies
from tests.support.rules import run_terms, with_other
from tests.support.stores import run_in_memory

NOW = 1_000.0
CLASSES = 3
TEACHERS = 200
POOL = 24
ORDER = order_for_life(5.0, 1e-5)
"""Renyi order at which the hospitals' budgets add up."""
SIGMA = 20.0
"""Small beside 600 votes: a label is the class voted for in all but one run in 10^100."""

FORMS: dict[str, Callable[[], SecureSum]] = {
    form.name: form for form in (AdditiveSum, MaskedSum, PlainSum)
}

Answer = bytes | Silence | None
OnQuery = Callable[[int, bytes], bytes | None]
OnAnswer = Callable[[int, bytes], Answer]
Votes = Callable[[QueryBatch], Any]


def expected_class(index: int, classes: int = CLASSES) -> int:
    """The class that well-behaved teachers vote for."""
    return index % classes


def labels_of(*indices: int) -> list[int]:
    """What unanimous teachers answer."""
    return [expected_class(index) for index in indices]


def unanimous(teachers: int, classes: int = CLASSES) -> Votes:
    """Teachers that all know the answer."""

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        row = np.array([expected_class(index, classes) for index in batch.indices], dtype=np.int64)
        return np.tile(row, (teachers, 1))

    return vote


def voting(row: Sequence[int] | NDArray[np.int64]) -> Votes:
    """Teachers whose histogram is `row` on every query."""

    def vote(batch: QueryBatch) -> NDArray[np.int64]:
        return np.repeat(np.repeat(np.arange(CLASSES), row)[:, None], len(batch), axis=1)

    return vote


def kinds(packet: bytes) -> list[str]:
    """Names of the messages in a packet."""
    frames = wire.unpack(packet, max_bytes=2**30)
    return [type(wire.decode(frame).message).__name__ for frame in frames]


def messages(packet: bytes) -> list[Message]:
    return [wire.decode(frame).message for frame in wire.unpack(packet, max_bytes=2**30)]


def refusal_of(answer: bytes) -> str:
    """The code of an answer that is a refusal and nothing else."""
    [message] = messages(answer)
    assert isinstance(message, Refusal)
    return message.reason


def holds_vector(answer: bytes) -> bool:
    """Whether a party's answer holds its y."""
    return "MaskedVector" in kinds(answer)


class MemoryTransport(Transport):
    """Hands packets to nodes in this process, through a test's hands.

    Attributes:
        on_query: Given node and packet, returns what arrives; None: lost on the way.
        on_answer: Given node and answer, returns what arrives.
        packets: Every packet that arrived anywhere, in order.
    """

    def __init__(self, doors: Sequence[Any], events: list[str]) -> None:
        super().__init__()
        self.doors = list(doors)
        self.events = events
        self.on_query: OnQuery = lambda node, packet: packet
        self.on_answer: OnAnswer = lambda node, answer: answer
        self.packets: list[bytes] = []
        self.answers: list[tuple[int, bytes]] = []

    def nodes(self) -> list[int]:
        return list(range(len(self.doors)))

    def _carry(self, packets: Mapping[int, bytes]) -> dict[int, bytes | Silence]:
        self.events.append("exchange " + " ".join(kinds(next(iter(packets.values())))))
        answers: dict[int, bytes | Silence] = {}
        for node, packet in packets.items():
            self.packets.append(packet)
            arrived = self.on_query(node, packet)
            if arrived is None:
                continue
            answer = self.on_answer(node, self.doors[node].receive(arrived))
            if isinstance(answer, bytes):
                self.packets.append(answer)
                self.answers.append((node, answer))
            if answer is not None:
                answers[node] = answer
        return answers


class RecordingStore(RunStore):
    """A store that notes what was written, and when."""

    def __init__(self, *args: Any, events: list[str], **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.events = events

    def save_empty(self, ledger: RunLedger) -> None:
        """Start again with another ledger, unnoticed."""
        self._ledger = ledger

    def save_asked(self, ledger: RunLedger, asked: StoredBatch) -> None:
        self.events.append(f"ledger {ledger.states[-1].value}")
        super().save_asked(ledger, asked)

    def save_void(self, ledger: RunLedger, *, batch: int, is_freed: bool) -> None:
        self.events.append(f"ledger {ledger.states[-1].value}")
        super().save_void(ledger, batch=batch, is_freed=is_freed)

    def save_release(self, ledger: RunLedger, *, batch: int, release: NoisyRelease) -> None:
        self.events.append(f"release {ledger.states[-1].value}")
        super().save_release(ledger, batch=batch, release=release)


class RecordingLedger(LedgerStore):
    """A party's ledger that notes each write."""

    def __init__(self, database: PartyDatabase, ledger: PrivacyLedger, steps: list[str]) -> None:
        self.steps: list[str] = []
        super().__init__(database, budget=ledger)
        self.steps = steps

    def _save(self, ledger: PrivacyLedger, runs: Mapping[bytes, RunCharges]) -> None:
        if ledger is not self.load():
            self.steps.append(f"ledger {ledger.entries[-1].state.value}")
        super()._save(ledger, runs)


class RecordingQueries(QueryJournal):
    """The queries of a `RecordingJournal`."""

    def __init__(self, database: PartyDatabase, steps: list[str]) -> None:
        super().__init__(database)
        self.steps = steps

    def claim(self, queries: Sequence[bytes], **fields: Any) -> None:
        self.steps.append("claim")
        super().claim(queries, **fields)


class RecordingJournal(Journal):
    """A party's journal that notes each write."""

    def __init__(self, database: PartyDatabase, steps: list[str]) -> None:
        super().__init__(database)
        self.queries = RecordingQueries(database, steps)
        self.steps = steps

    def begin(self, *, run_id: bytes, epoch: int, plan_digest: bytes) -> None:
        self.steps.append("begin")
        super().begin(run_id=run_id, epoch=epoch, plan_digest=plan_digest)

    def abandon(self, plan_digest: bytes, *, run_id: bytes) -> None:
        super().abandon(plan_digest, run_id=run_id)
        self.steps.append("abandon")

    def keep(self, plan_digest: bytes, frames: tuple[bytes, ...], *, expires_at: int) -> None:
        self.steps.append("keep")
        super().keep(plan_digest, frames, expires_at=expires_at)

    def decide(self, plan_digest: bytes, verdict_digest: bytes, *, run_id: bytes) -> None:
        super().decide(plan_digest, verdict_digest, run_id=run_id)
        self.steps.append("decide")

    def resolve(self, plan_digest: bytes, claim: PlanClaim) -> None:
        before = self.counter
        super().resolve(plan_digest, claim)
        if self.counter > before:
            self.steps.append("free" if claim.is_free else "resolve")


class LyingNode(PartyNode):
    """A party that adds `lie` to its true vector, whatever the rules say."""

    lie: NDArray[np.int64] | None = None

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        honest = self._ballots.vector

        def vector(*arguments: Any, **named: Any) -> NDArray[np.int64]:
            true = honest(*arguments, **named)
            return true if self.lie is None else wrapped(true + self.lie.ravel())

        self._ballots.vector = vector  # type: ignore[method-assign]


def wrapped(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """What the ring makes of whole numbers: signed, modulo 2^32."""
    return (values + 2**31) % 2**32 - 2**31


class _FixedNoise:
    """A stream that begins when the first noise is drawn: until then it can be copied."""

    def __init__(self) -> None:
        self._stream: RandomBytes | None = None

    def __call__(self, count: int) -> bytes:
        if self._stream is None:
            self._stream = keyed_stream(bytes(32), tag="test noise")
        return self._stream(count)


class Federation:
    """A coordinator and its parties over a `MemoryTransport`.

    Maps are by the place of a party; parties that are not in one have the default. `terms` and
    `policy` hold the fields that differ from the default. `pool` is a number of inputs where
    nothing depends on what they are, `pool_inputs` the inputs where something does.
    """

    def __init__(
        self,
        *,
        parties: int = 3,
        teachers: int = TEACHERS,
        votes: Mapping[int, Votes] | None = None,
        terms: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        policies: Mapping[int, Mapping[str, Any]] | None = None,
        budgets: Mapping[int, float] | None = None,
        orders: Mapping[int, float] | None = None,
        weights: Mapping[int, tuple[int, ...]] | None = None,
        form: str = "additive",
        noise: RandomBytes | None = None,
        noises: Mapping[int, RandomBytes] | None = None,
        budget: float | None = None,
        simulated: bool = True,
        lifetime_s: int = 3600,
        pool: int = POOL,
        pool_inputs: NDArray[np.float64] | None = None,
        patience_s: float = 0.0,
        network: Callable[[list[LyingNode]], Transport] | None = None,
    ) -> None:
        self.now = NOW
        self.database = Database.in_memory()
        self.events: list[str] = []
        self.steps: list[list[str]] = [[] for _ in range(parties)]
        inputs = np.arange(2.0 * pool).reshape(pool, 2) if pool_inputs is None else pool_inputs
        self.pool = QueryPool(inputs)
        self.identity = SigningIdentity.generate()
        self.identities = [SigningIdentity.generate() for _ in range(parties)]
        self.names = [f"hospital-{place}" for place in range(parties)]
        self.pins = {identity.fingerprint: identity.public for identity in self.identities}
        self.form = form
        self.terms = {"classes": CLASSES, **(terms or {})}
        if budget is not None:
            self.terms["budgets"] = (budget,) * parties
        shared_policy = {
            "approved_pools": frozenset({self.pool.digest}),
            "least_checked_peers": 2,
            "forms": frozenset({form}),
            "simulated": True,
            **(policy or {}),
        }
        self.weights = [
            TeacherWeights.of((weights or {}).get(place, (1,) * teachers))
            for place in range(parties)
        ]
        self.nodes = [
            self._open_node(
                place,
                vote=(votes or {}).get(
                    place, unanimous(self.weights[place].teachers, self.terms["classes"])
                ),
                policy=Policy(**{**shared_policy, **(policies or {}).get(place, {})}),
                ledger=PrivacyLedger(
                    (budgets or {}).get(place, 5.0),
                    1e-5,
                    order=(orders or {}).get(place, ORDER),
                ),
                noise=(noises or {}).get(place),
            )
            for place in range(parties)
        ]
        self.transport = MemoryTransport(self.nodes, self.events)
        self.run = LabelingRun(
            self.job(
                transport=self.transport if network is None else network(self.nodes),
                simulated=simulated,
                meter=PerInstanceMeter.of,
                lifetime_s=lifetime_s,
                patience_s=patience_s,
                noise_bytes=noise or _FixedNoise(),
                sleep=self._pass_time,
            )
        )

    def job(self, **changed: Any) -> LabelingJob:
        """A run of all hospitals."""
        members = zip(self.names, self.identities, strict=True)
        asked: dict[str, Any] = {
            "transport": self.transport,
            "identity": self.identity,
            "form": FORMS[self.form](),
            "members": [Member(name, each.public) for name, each in members],
            "pool": self.pool,
            "terms": self.run_terms,
            "simulated": True,
            "lifetime_s": 3600,
            "store": self._open_store,
            "random_bytes": secrets.token_bytes,
            "noise_bytes": secrets.token_bytes,
            "clock": lambda: self.now,
        }
        return LabelingJob(**{**asked, **changed})

    def another_run(self, *, without: int | None = None) -> LabelingRun:
        """Another run by the same coordinator, which has lost the first one or has closed it."""
        places = [place for place in range(len(self.nodes)) if place != without]
        self.transport.nodes = lambda: places  # type: ignore[method-assign]
        members = [Member(self.names[at], self.identities[at].public) for at in places]
        return LabelingRun(self.job(members=members))

    def set_up_anew(self, *, owed: Mapping[bytes, Sequence[bytes]] | None = None) -> LabelingRun:
        """Set the same run up once more, with what it has, as after a hospital's restart.

        Args:
            owed: Settlements that hospitals are told; None for all that they may have missed.
        """
        before, store = self.run, self.store
        self.run = LabelingRun(
            self.job(
                meter=PerInstanceMeter.of,
                store=lambda _: store,
                sleep=self._pass_time,
                owed=before.round.unheard() if owed is None else owed,
            )
        )
        self.run.set_up()
        return self.run

    def _pass_time(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    # The network ---------------------------------------------------------------------------------

    def lose(self, *places: int) -> None:
        """From here on nothing arrives at some parties."""
        self.transport.on_query = lambda node, packet: None if node in places else packet

    def heal(self) -> None:
        """From here on every packet arrives as it was sent."""
        self.transport.on_query = lambda node, packet: packet
        self.transport.on_answer = lambda node, answer: answer

    # What a coordinator knows, and how it lies --------------------------------------------------

    def seats_of_nodes(self) -> dict[bytes, int]:
        """At which node the coordinator found each party, by seat."""
        return dict(self.run._context.roster.nodes)

    def unheard(self) -> dict[bytes, list[bytes]]:
        """Settlements that travel with the next message, by seat."""
        return {seat: list(told) for seat, told in self.run._messenger._unheard.items()}

    @property
    def settlement(self) -> bytes:
        """The last settlement, of which no party has heard."""
        [last] = {told[-1] for told in self.unheard().values()}
        return last

    def settle_otherwise(self, settlement: Settlement) -> None:
        """Have the coordinator tell another settlement than the true one."""
        assert self.settlement
        for told in self.run._messenger._unheard.values():
            told[-1] = wire.sign(settlement, self.identity).frame

    def change_terms(self, **changed: Any) -> RunTerms:
        """Have the coordinator go on by other terms than its rule and its ledger were made of."""
        terms = with_other(self.run.terms, **changed)
        object.__setattr__(self.run._context, "terms", terms)
        self.run._decider._terms = terms
        return terms

    def stop_clock(self) -> None:
        """Have the coordinator's clock be slow, or lie."""
        object.__setattr__(self.run._context.job, "clock", lambda: 0.0)

    def forget_asked(self) -> None:
        """Have the coordinator ask what it may not ask again."""
        self.run._batches.asked.clear()

    def forget_voids(self) -> None:
        """Have the coordinator ask on, however many batches were void."""
        self.run._batches.voids = 0

    def restart(self, place: int) -> PartyNode:
        """Give a party a new process: it has its journal, its ledger and its teachers."""
        old = self.nodes[place]
        node = LyingNode(
            identity=old._identity,
            coordinator=old._coordinator,
            known_peers=old._known_peers,
            guard=old._guard,
            tasks=old._tasks,
            forms=old._forms,
            journal=old._journal,
            ledger=old._ledger,
            random_bytes=old._random_bytes,
            clock=lambda: self.now,
        )
        self.nodes[place] = self.transport.doors[place] = node
        return node

    def _open_node(
        self,
        place: int,
        *,
        vote: Votes,
        policy: Policy,
        ledger: PrivacyLedger,
        noise: RandomBytes | None,
    ) -> LyingNode:
        bodies = dict(zip(self.pins, self.names, strict=True))
        steps, database = self.steps[place], PartyDatabase.in_memory()

        def voting(batch: QueryBatch) -> Any:
            steps.append("vote")
            return vote(batch)

        return LyingNode(
            identity=self.identities[place],
            coordinator=self.identity.public,
            known_peers=self.pins,
            guard=Guard(policy=policy, weights=self.weights[place], checked_peers=bodies),
            tasks=tasks_of(PartyTask(self.pool, voting, patients=self._patients(place))),
            forms={name: make() for name, make in FORMS.items()},
            journal=RecordingJournal(database, steps),
            ledger=RecordingLedger(database, ledger, steps),
            random_bytes=secrets.token_bytes,
            clock=lambda: self.now,
            noise_bytes=noise,
        )

    def _patients(self, place: int) -> tuple[str, ...] | None:
        """Where records vote, the patients of a party: one for each of its votes."""
        if "patient_votes" not in self.terms:
            return None
        return tuple(f"p{number}" for number in range(self.weights[place].teachers))

    @property
    def _at_parties(self) -> dict[str, Any]:
        """Terms that go with noise at the parties."""
        if self.terms.get("noise_place") != "parties":
            return {}
        parties = len(self.nodes)
        return {"colluders": 1, "dropouts": parties - FORMS[self.form]().threshold(parties)}

    def _open_store(self, ledger: RunLedger) -> RecordingStore:
        self.store = RecordingStore(
            run_in_memory(self.database),
            ledger,
            pool=self.pool,
            task_digest=NO_TASK,
            members=list(self.pins),
            events=self.events,
        )
        return self.store

    def run_terms(self, members: tuple[Member, ...]) -> RunTerms:
        """The default terms with this federation's changes."""
        mechanism = self.terms.get("mechanism", "threshold")
        weights = tuple(self.weights[self.names.index(one.name)] for one in members)
        fields: dict[str, Any] = {
            "name": "run",
            "pool_digest": self.pool.digest,
            "task_digest": NO_TASK,
            "weights": weights,
            "mechanism": mechanism,
            **_parameters(mechanism, total_votes=sum(each.votes for each in weights)),
            "unit": "record",
            "max_asks": 100,
            "max_answers": self.terms.get("max_asks", 100),
            "budgets": (5.0,) * len(members),
            "delta": 1e-5,
        }
        return run_terms(**{**fields, **self._at_parties, **self.terms})

    def ask(self, *indices: int) -> NoisyRelease:
        return self.run.ask(tuple(indices))

    def replace_vote(self, place: int, vote: Votes) -> None:
        """Put other teachers into the run that a party is in."""
        run = self.nodes[place]._agreed_run
        run.task = replace(run.task, vote=vote)

    @property
    def charges(self) -> tuple[OutcomeEntry, ...]:
        """What the run reserved from its caps."""
        return self.store.ledger().outcomes.entries

    def place_of(self, name: str) -> int:
        """Which node a name belongs to."""
        return self.names.index(name)

    def seat_of(self, place: int) -> int:
        """Which seat of the run a party has."""
        return self.run.round.seats.index(self.identities[place].fingerprint)

    def run_ledger(self, place: int) -> RunLedger:
        """What a party counts in the run."""
        return self.nodes[place]._agreed_run.account.ledger

    @property
    def coordinator_states(self) -> list[str]:
        """States of the coordinator's ledger entries."""
        return [state.value for state in self.store.ledger().states]

    def party_states(self, place: int) -> list[str]:
        """States of a party's ledger entries."""
        return [entry.state.value for entry in self.nodes[place].ledger.entries]

    def on_vectors_of(self, place: int, change: Callable[[bytes], Answer]) -> None:
        """Pass one party's answers with a y through `change`; leave all else alone."""

        def on_answer(node: int, answer: bytes) -> Answer:
            return change(answer) if node == place and holds_vector(answer) else answer

        self.transport.on_answer = on_answer

    def resigned(
        self, answer: bytes, change: Callable[[bytes], bytes], *, by: SigningIdentity
    ) -> bytes:
        """Change the body of the y in an answer, and sign it."""
        [vector] = [message for message in messages(answer) if isinstance(message, MaskedVector)]
        changed = MaskedVector(vector.plan_digest, vector.sender, change(vector.body))
        return wire.pack([wire.sign(changed, by).frame])


def _parameters(mechanism: str, *, total_votes: int) -> dict[str, float | None]:
    """Usual parameters of a mechanism; None for those that it has not."""
    usual = {
        "vote_threshold": 0.6 * total_votes,
        "sigma1": SIGMA,
        "sigma2": SIGMA,
        "confidence": 0.9,
        "test_delta": 1e-8,
    }
    needed = spec_of(mechanism).parameters
    return {name: value if name in needed else None for name, value in usual.items()}


_READY = Copies()


def ready_federation(**settings: Any) -> Federation:
    """Set up a federation of these settings, or copy one that was; see `Copies`."""
    made: Federation = _READY.of(_set_up, **settings)
    return made


def _set_up(**settings: Any) -> Federation:
    federation = Federation(**settings)
    federation.run.set_up()
    return federation

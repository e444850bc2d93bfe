"""A model of several plans, runs and forms, searched exhaustively (rule R3).

A `Scenario` fixes the hospitals, the liars among them, and up to three plans: form, seats, and
which plans ask the same query or queries that lie close to each other. `Search` then tries all that
a coordinator and the liars can do with it, in any order: deliver a plan, have a party refuse, tell
each party its own set or "closed", settle a plan with any evidence that exists, or settle it with
none. It visits every state once, and stops at the first that breaks a promise:

- An openable sum holds at least two honest parties; a masked one at least t less the liars.
- Two openable sums of related plans hold the same honest parties, or none in common. So no
  difference of two sums is one hospital's votes.
- A plan has at most one certificate.

The rules are the product's own. Each honest party of the model has a `PlainJournal`; bounds,
claims, verdicts and signers are checked by the functions that `PartyRound` and `Guard` call.
`Rules` holds these functions, so that a test can take one of them out.

The cryptography is abstract. The coordinator knows every pair key and every share of a liar. A sum
of honest parties opens if all of them sent, every self mask in it has t shares, and every key
between one of them and an honest party outside has t shares from one of its two ends.

Every plan stands in a run of its own, and all runs are open at once. A party in the product has one
run at a time for each federation, so it does less than a party of the model. Liars are the same in
all plans, and never more in a run than its form promises to withstand. Signatures hold: a liar
signs any verdict and any refusal, also two that disagree, but none in another party's name.

Two things keep the search small. States that differ by the names of hospitals count once. And with
`Stories.AGREED` a set is proposed to all at once, in the moment in which it gets its certificate: a
verdict outside every certificate opens nothing and frees nothing, and the party can still give it
later. For the same reason settlements are told just before the next plan, and
an additive plan is refused by all at once that did not serve it. `Stories.EACH` tells every party
any story of its own, at any time; tests compare both. MACs of verdicts count as their signatures:
an honest party sends both for the same set.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property, partial
from typing import Any, Final

from protocols.additive import AdditiveSum
from protocols.errors import (
    FalseCertificateError,
    KeyReuseError,
    TooFewSharesError,
    VerdictError,
)
from protocols.masked import MaskedSum
from protocols.rounds.bounds import PlanClaim, SetBound
from protocols.rounds.seating import LEAST_PARTIES
from protocols.rounds.settlement import note_settled
from protocols.rounds.verdicts import require_open_set, require_seats, require_signers
from protocols.secure_sum import SecureSum
from tests.support.plain_journal import PlainJournal

CLOSED: Final = 0
"""The verdict that no set opens: the set without parties."""

Parties = int
"""A set of hospitals: bit i stands for hospital i."""

Event = tuple[Any, ...]
"""What one party does or is told: a verb, the plan's place, and what the verb needs."""


@cache
def members(parties: Parties) -> tuple[int, ...]:
    """Return the hospitals of a set, in order."""
    return tuple(place for place in range(parties.bit_length()) if parties >> place & 1)


def subsets(parties: Parties) -> Iterator[Parties]:
    """Return every subset, the empty one last."""
    chosen = parties
    while chosen:
        yield chosen
        chosen = (chosen - 1) & parties
    yield 0


@cache
def _names(parties: Parties) -> tuple[bytes, ...]:
    """Return the fingerprints of a set, in seat order."""
    return tuple(bytes([place]) for place in members(parties))


# The question -------------------------------------------------------------------------------------


class Relation(Enum):
    """How the queries of two plans relate."""

    NONE = 0
    SAME = 1


@dataclass(frozen=True)
class PlanSpec:
    """A plan that the coordinator may deliver."""

    form: type[SecureSum]
    seats: Parties

    @cached_property
    def fingerprints(self) -> tuple[bytes, ...]:
        """Fingerprints of all parties, in seat order."""
        return _names(self.seats)

    @cached_property
    def threshold(self) -> int:
        """Fewest parties whose sum opens."""
        return self.form.threshold(self.seats.bit_count())

    @property
    def is_masked(self) -> bool:
        """Whether it opens by verdicts and shares."""
        return self.form.survives_dropouts

    def __str__(self) -> str:
        return f"{self.form.name} {members(self.seats)}"


@dataclass(frozen=True)
class Scenario:
    """Hospitals, liars and plans.

    Attributes:
        hospitals: How many; the liars are the last of them.
        liars: How many of them lie.
        plans: What the coordinator may ask.
        relations: How the queries of two plans relate, for each pair in the order of
            `itertools.combinations`.
    """

    hospitals: int
    liars: int
    plans: tuple[PlanSpec, ...]
    relations: tuple[Relation, ...] = ()

    @cached_property
    def honest(self) -> Parties:
        return (1 << self.hospitals - self.liars) - 1

    @cached_property
    def lying(self) -> Parties:
        return (1 << self.hospitals) - 1 & ~self.honest

    @cached_property
    def related(self) -> dict[tuple[int, int], Relation]:
        """How two plans relate, the earlier place first, where they do."""
        pairs = itertools.combinations(range(len(self.plans)), 2)
        relations = zip(pairs, self.relations, strict=True)
        return {pair: relation for pair, relation in relations if relation is not Relation.NONE}

    @cached_property
    def batches(self) -> tuple[tuple[bytes, ...], ...]:
        """What each plan asks: one query of its own, and for each relation one that it shares."""
        asked = [[f"own {plan}".encode()] for plan in range(len(self.plans))]
        for one, other in self.related:
            for plan in (one, other):
                asked[plan].append(f"shared {one} {other}".encode())
        return tuple(map(tuple, asked))

    @property
    def withstands_its_liars(self) -> bool:
        """Whether no run has more liars than its form promises to withstand."""
        return all(
            (plan.seats & self.lying).bit_count()
            <= plan.form.most_colluders(plan.seats.bit_count())
            for plan in self.plans
        )

    def __str__(self) -> str:
        related = ", ".join(
            f"{one} and {other} {relation.name.lower()}"
            for (one, other), relation in self.related.items()
        )
        plans = "; ".join(f"{place}: {plan}" for place, plan in enumerate(self.plans))
        return f"liars {members(self.lying)}; plans {plans}; {related}"


def scenarios(
    hospitals: int, plans: int, *, forms: Sequence[type[SecureSum]] = (AdditiveSum, MaskedSum)
) -> Iterator[Scenario]:
    """Return every scenario in which all hospitals have a seat, once up to names and order.

    A plan that shares no honest party with a related one has no part in a difference: such
    scenarios are those of fewer plans.
    """
    seatings = range(1, 1 << plans)  # in which plans one hospital has a seat
    pairs = list(itertools.combinations(range(plans), 2))
    orders = list(itertools.permutations(range(plans)))
    seen = set()
    for liars in range(hospitals - 1):
        for honest, lying in itertools.product(
            itertools.combinations_with_replacement(seatings, hospitals - liars),
            itertools.combinations_with_replacement(seatings, liars),
        ):
            columns = [
                sum((seating >> plan & 1) << place for place, seating in enumerate(honest + lying))
                for plan in range(plans)
            ]
            if any(column.bit_count() < LEAST_PARTIES for column in columns):
                continue
            for chosen in itertools.product(forms, repeat=plans):
                if any(
                    column.bit_count() < form.smallest
                    for column, form in zip(columns, chosen, strict=True)
                ):
                    continue
                specs = tuple(
                    PlanSpec(form, column) for form, column in zip(chosen, columns, strict=True)
                )
                if not Scenario(
                    hospitals, liars, specs, (Relation.NONE,) * len(pairs)
                ).withstands_its_liars:
                    continue
                for relations in itertools.product(Relation, repeat=len(pairs)):
                    scenario = Scenario(hospitals, liars, specs, relations)
                    relating = dict(zip(pairs, relations, strict=True))
                    if not _hangs_together(scenario):
                        continue
                    name = min(_name_of(honest, lying, chosen, relating, order) for order in orders)
                    if name not in seen:
                        seen.add(name)
                        yield scenario


def _name_of(
    honest: Sequence[int],
    lying: Sequence[int],
    forms: Sequence[type[SecureSum]],
    relations: dict[tuple[int, int], Relation],
    order: Sequence[int],
) -> tuple[Any, ...]:
    """Describe a scenario whose plans are put in another order."""

    def moved(seating: int) -> int:
        return sum((seating >> plan & 1) << place for place, plan in enumerate(order))

    return (
        tuple(sorted(map(moved, honest))),
        tuple(sorted(map(moved, lying))),
        tuple(forms[plan].name for plan in order),
        tuple(
            relations[min(one, other), max(one, other)].value
            for one, other in itertools.combinations(order, 2)
        ),
    )


def _hangs_together(scenario: Scenario) -> bool:
    """Tell whether related plans with an honest party in common join all plans."""
    plans, reached = scenario.plans, {0}
    for _ in plans:
        for one, other in scenario.related:
            if plans[one].seats & plans[other].seats & scenario.honest:
                reached |= {one, other} if reached & {one, other} else set()
    return len(reached) == len(plans)


# The rules ----------------------------------------------------------------------------------------


def _product_bound(journal: PlainJournal, queries: Sequence[bytes]) -> SetBound:
    return journal.queries.bound_on(queries)


def _product_resolve(
    journal: PlainJournal, plan_digest: bytes, run_id: bytes, claim: PlanClaim
) -> None:
    """Note what a settlement proves, as a party's round does."""
    note_settled(journal, plan_digest, claim, run_id=run_id)


@dataclass(frozen=True)
class Rules:
    """The rules that a party follows: the product's functions, unless a test replaces one.

    Attributes:
        bound_on: What a party's journal allows for a plan's queries.
        leaves_room: Whether a plan may be served: bound, seats, threshold.
        require_open_set: Whether a party signs a set.
        require_signers: Whether verdicts make a certificate.
        abandoned_by: What refusals prove.
        certified: What a certificate proves.
        resolve: Takes into the journal what a settlement proves; gets the plan, the run of the
            settlement, and the claim.
        shows_shares: Whether a party shows shares for its own verdict; gets whether there is a
            certificate for it.
        void_frees: Whether a void settlement without evidence frees the queries of a masked plan;
            gets whether this party gave a verdict on it.
    """

    bound_on: Callable[[PlainJournal, Sequence[bytes]], SetBound] = _product_bound
    leaves_room: Callable[..., bool] = SetBound.leaves_room
    require_open_set: Callable[..., None] = require_open_set
    require_signers: Callable[..., None] = require_signers
    abandoned_by: Callable[..., PlanClaim] = PlanClaim.abandoned_by
    certified: Callable[..., PlanClaim] = PlanClaim.certified
    resolve: Callable[[PlainJournal, bytes, bytes, PlanClaim], None] = _product_resolve
    shows_shares: Callable[[bool], bool] = bool
    void_frees: Callable[[bool], bool] = lambda has_judged: False


PRODUCT = Rules()


# One honest party ---------------------------------------------------------------------------------


class Stage(Enum):
    """How far a party is with a plan."""

    UNSEEN = 0
    BEGUN = 1
    SENT = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class Part:
    """A party's part in one plan, beside its journal.

    Attributes:
        stage: How far it is.
        bound: What it remembers of its journal's bound since it served the plan.
        is_gone: Whether it holds nothing of the plan in memory any more: it was restarted, left the
            run, or the plan was settled.
        verdict: The set that it signed, or `CLOSED`; None before.
        is_shown: Whether it showed its shares for that set.
    """

    stage: Stage = Stage.UNSEEN
    bound: SetBound | None = None
    is_gone: bool = False
    verdict: Parties | None = None
    is_shown: bool = False


class Party:
    """One state of an honest party: its journal and its parts."""

    __slots__ = ("journal", "origin", "parts", "place", "steps")

    def __init__(
        self, place: int, journal: PlainJournal, parts: tuple[Part, ...], origin: Any
    ) -> None:
        self.place = place
        self.journal = journal
        self.parts = parts
        self.origin = origin
        self.steps: dict[Event, int] = {}


class Stories(Enum):
    """How the coordinator proposes sets."""

    AGREED = "a set is proposed when it gets its certificate"
    EACH = "each party is told a set of its own"


@dataclass(frozen=True)
class Violation:
    """A state that breaks a promise.

    Attributes:
        promise: Which one, in words.
        lone: Hospitals whose exact votes are known: a sum of one, or a difference of one.
        trace: What happened, in order.
    """

    promise: str
    lone: Parties
    trace: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What a search found.

    Attributes:
        states: States visited, those that differ by names counted once.
        steps: Steps tried between them.
        opened: Every family of openable sums that was met: for each plan the sets of honest
            parties, up to names.
        violation: The first promise that was broken; None if none was.
    """

    states: int
    steps: int
    opened: frozenset[Any]
    violation: Violation | None


# The search ---------------------------------------------------------------------------------------

State = tuple[int, ...]
"""The state of each honest party, by its number."""

Sums = tuple[Parties, ...]
"""The honest parties of each sum that opens for one plan."""


class Search:
    """All that can happen in one scenario.

    Args:
        scenario: Hospitals, liars, plans.
        rules: What honest parties follow.
        stories: How sets are proposed.
        with_losses: Whether parties are restarted, leave runs, are told "void", fail between their
            journal's entry and their y, and refuse masked plans, too. Each of these only takes
            possibilities from the coordinator.
        by_name: Whether states that differ by names are told apart, for a readable trace.
        exact: Whether to stop only where one hospital's exact votes are known.
        most_sets: Most different sets that are proposed for one plan.
        served: Plans that all parties have served when the search begins, to shorten it.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        rules: Rules = PRODUCT,
        stories: Stories = Stories.AGREED,
        with_losses: bool = False,
        by_name: bool = False,
        exact: bool = False,
        most_sets: int = 1 << 30,
        served: Sequence[int] = (),
    ) -> None:
        self._scenario = scenario
        self._rules = rules
        self._stories = stories
        self._with_losses = with_losses
        self._by_name = by_name
        self._exact = exact
        self._most_sets = most_sets
        self._served = served
        self._plans = scenario.plans
        self._parties: list[Party] = []
        self._numbers: dict[Any, int] = {}
        self._own: dict[int, tuple[tuple[Event, int], ...]] = {}
        self._symmetries = _Symmetries(self)
        self._enough: dict[Any, bool] = {}
        self._sums: dict[Any, Sums] = {}
        self._judged: dict[Any, tuple[str, Parties] | None] = {}

    def run(self) -> Outcome:
        """Visit every state, or as many as it takes to find a broken promise."""
        parts = (Part(),) * len(self._plans)
        start = tuple(
            self._number(Party(place, PlainJournal(), parts, None))
            for place in members(self._scenario.honest)
        )
        for plan in self._served:
            start = tuple(
                self._step(number, ("serves", plan))
                if self._plans[plan].seats >> place & 1
                else number
                for place, number in enumerate(start)
            )
        came: dict[State, tuple[State, str] | None] = {start: None}
        waiting, steps, families = deque([start]), 0, set()
        while waiting:
            state = waiting.popleft()
            family = tuple(self._sums_of(state, plan) for plan in range(len(self._plans)))
            broken = self._broken(state, family)
            families.add(family)
            if broken is not None:
                trace = _trace(came, state) if self._by_name else ()
                return Outcome(
                    len(came), steps, self._nameless(families), Violation(*broken, trace)
                )
            for event, following in self._steps(state):
                steps += 1
                new = following if self._by_name else self._symmetries.first(following)
                if new not in came:
                    came[new] = (state, event)
                    waiting.append(new)
        return Outcome(len(came), steps, self._nameless(families), None)

    # Steps of all -----------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for place, number in enumerate(state):
            for event, new in self._own_steps(number):
                if event[0] == "judges" and not self._may_propose(state, event):
                    continue
                yield self._told(place, event), self._replaced(state, {place: new}, event[1])
            if self._stories is Stories.EACH:
                events = self._settlements(state, number)
            else:
                events = self._informed(state, number)
            for event in events:
                new = self._step(number, event)
                if new not in (-1, number):
                    yield self._told(place, event), self._replaced(state, {place: new}, event[1])
        if self._stories is Stories.AGREED:
            for plan, spec in enumerate(self._plans):
                if not spec.is_masked:
                    yield from self._refusals(state, plan)
                elif not self._certificates(state, plan):
                    yield from self._agreements(state, plan)

    def _may_propose(self, state: State, event: Event) -> bool:
        """Tell whether a set is among the most that may be proposed for a plan."""
        _, plan, chosen = event
        proposed = {self._parties[number].parts[plan].verdict for number in state}
        return len((proposed | {chosen}) - {None, CLOSED}) <= self._most_sets

    def _refusals(self, state: State, plan: int) -> Iterator[tuple[str, State]]:
        """Have all parties refuse a plan that did not serve it."""
        refused = {
            place: new
            for place, number in enumerate(state)
            if self._plans[plan].seats >> place & 1
            and (new := self._step(number, ("refuses", plan))) != -1
        }
        if refused:
            told = f"{sorted(refused)} refuse plan {plan}"
            yield told, self._replaced(state, refused, plan)

    def _agreements(self, state: State, plan: int) -> Iterator[tuple[str, State]]:
        """Have all that would sign a set sign it, where they are enough."""
        spec = self._plans[plan]
        for chosen in subsets(spec.seats):
            if 0 < chosen.bit_count() < spec.threshold:
                continue
            signed = {}
            for place in members((chosen or spec.seats) & self._scenario.honest):
                new = self._step(state[place], ("judges", plan, chosen))
                if new != -1:
                    signed[place] = new
            if self._is_certificate(plan, chosen, sum(1 << place for place in signed)):
                told = f"plan {plan}: {sorted(signed)} sign {_set(chosen)}"
                yield told, self._replaced(state, signed, plan)

    def _replaced(self, state: State, changed: dict[int, int], plan: int) -> State:
        """Change some parties; all that may show shares for the plan do so at once."""
        numbers = list(state)
        for place, number in changed.items():
            numbers[place] = number
        if not self._plans[plan].is_masked:
            return tuple(numbers)
        parts = [self._parties[number].parts[plan] for number in numbers]
        for place, part in enumerate(parts):
            if part.verdict and not part.is_shown and not part.is_gone:
                others = members(part.verdict & self._scenario.honest)
                came = all(parts[other].stage is Stage.SENT for other in others)
                if came and self._rules.shows_shares(
                    part.verdict in self._certificates(tuple(numbers), plan)
                ):
                    numbers[place] = self._step(numbers[place], ("shows", plan))
        return tuple(numbers)

    def _settlements(self, state: State, number: int) -> Iterator[Event]:
        """Name the settlements with evidence that a party can be told now."""
        party = self._parties[number]
        for plan, spec in enumerate(self._plans):
            if party.parts[plan].stage not in (Stage.BEGUN, Stage.SENT):
                continue
            if spec.is_masked:
                evidence = self._certificates(state, plan)
            else:
                evidence = tuple(subsets(self._refused(state, plan)))[:-1]
            for chosen in evidence:
                yield _settled_in(plan), plan, chosen

    def _informed(self, state: State, number: int) -> Iterator[Event]:
        """Name the plans that a party can be asked to serve, with what it is told before."""
        party = self._parties[number]
        asked = [
            plan
            for plan, spec in enumerate(self._plans)
            if spec.seats >> party.place & 1 and party.parts[plan].stage is Stage.UNSEEN
        ]
        told: list[tuple[Parties | None, ...]] = [()]
        for plan, spec in enumerate(self._plans):
            choices: list[Parties | None] = [None]
            if asked and party.parts[plan].stage is Stage.SENT and not party.parts[plan].is_gone:
                if spec.is_masked:
                    choices = list(self._certificates(state, plan)) or choices
                elif refused := self._refused(state, plan):
                    # Once an honest party refuses, all do that can: nobody is left to do so later.
                    choices = [refused] if refused & self._scenario.honest else [None, refused]
            told = [(*before, choice) for before in told for choice in choices]
        for plan in asked:
            for evidence in told:
                yield "serves", plan, *evidence

    def _refused(self, state: State, plan: int) -> Parties:
        """Return all that can be shown to have refused a plan."""
        refused = self._scenario.lying & self._plans[plan].seats
        for place, number in enumerate(state):
            if self._parties[number].parts[plan].stage is Stage.REFUSED:
                refused |= 1 << place
        return refused

    def _certificates(self, state: State, plan: int) -> tuple[Parties, ...]:
        """Return the verdicts on a plan that have a certificate."""
        given: dict[Parties, Parties] = {}
        for place, number in enumerate(state):
            verdict = self._parties[number].parts[plan].verdict
            if verdict is not None:
                given[verdict] = given.get(verdict, 0) | 1 << place
        return tuple(
            sorted(
                chosen
                for chosen, honest in given.items()
                if self._is_certificate(plan, chosen, honest)
            )
        )

    def _is_certificate(self, plan: int, chosen: Parties, honest: Parties) -> bool:
        """Tell whether these honest parties and all liars that may are enough signers."""
        spec = self._plans[plan]
        signers = honest | self._scenario.lying & (chosen or spec.seats)
        key = plan, chosen, signers
        if key not in self._enough:
            self._enough[key] = self._are_enough(spec, chosen, signers)
        return self._enough[key]

    def _are_enough(self, spec: PlanSpec, chosen: Parties, signers: Parties) -> bool:
        try:
            require_seats(_names(chosen), spec.fingerprints)
            self._rules.require_signers(
                _names(signers),
                survivors=_names(chosen),
                seats=spec.fingerprints,
                threshold=spec.threshold,
            )
        except FalseCertificateError:
            return False
        return not chosen or chosen.bit_count() >= spec.threshold

    # Steps of one -----------------------------------------------------------------------------

    def _own_steps(self, number: int) -> tuple[tuple[Event, int], ...]:
        """Return the steps of a party that need nobody else."""
        if number not in self._own:
            found = ((event, self._step(number, event)) for event in self._own_events(number))
            self._own[number] = tuple(
                (event, new) for event, new in found if new not in (-1, number)
            )
        return self._own[number]

    def _own_events(self, number: int) -> Iterator[Event]:
        party = self._parties[number]
        for plan, spec in enumerate(self._plans):
            part = party.parts[plan]
            if not spec.seats >> party.place & 1:
                continue
            if self._stories is Stories.EACH:
                yield "serves", plan
            if self._stories is Stories.EACH and (self._with_losses or not spec.is_masked):
                yield "refuses", plan
            if self._with_losses:
                yield "fails", plan
                yield "loses its memory of", plan
            for run, other in enumerate(self._plans):
                if run == plan or not other.seats >> party.place & 1:
                    continue
                # Parties of another run may sign that they refuse this plan, or that it is closed:
                # liars at will, and honest ones if it never came to them.
                liars = other.seats & self._scenario.lying
                if other.is_masked:
                    yield _settled_in(run), plan, CLOSED
                elif liars:
                    yield _settled_in(run), plan, liars
            if spec.is_masked:
                yield "is told void", plan
                if self._stories is Stories.EACH and part.verdict is None:
                    for chosen in subsets(spec.seats):
                        yield "judges", plan, chosen

    def _step(self, number: int, event: Event) -> int:
        """Return a party's state after an event; -1 if it does not take part in it."""
        steps = self._parties[number].steps
        if event not in steps:
            party = self._parties[number]
            journal = party.journal.copied()
            verb, plan, *rest = event
            acts: dict[str, Callable[..., Part | None]] = {
                _settled_in(run): partial(self._settle, run=run) for run in range(len(self._plans))
            }
            acts |= {
                "serves": self._serve,
                "refuses": self._refuse,
                "fails": self._fail,
                "loses its memory of": self._lose,
                "is told void": self._void,
                "judges": self._judge,
                "shows": self._show,
            }
            parts = list(party.parts)
            if verb == "serves":
                for other, chosen in enumerate(rest):
                    if chosen is not None:
                        parts[other] = self._settle(
                            party.place, journal, parts[other], other, chosen, run=other
                        )
                rest = []
            part = acts[verb](party.place, journal, parts[plan], plan, *rest)
            if part is None:
                steps[event] = -1
            else:
                parts[plan] = part
                new = Party(party.place, journal, tuple(parts), (number, event))
                steps[event] = self._number(new)
        return steps[event]

    def _serve(self, place: int, journal: PlainJournal, part: Part, plan: int) -> Part | None:
        """Judge a plan as the guard does; send a y or refuse."""
        if part.stage is not Stage.UNSEEN or part.verdict is not None:
            return None
        bound = self._review(journal, plan)
        if bound is None:
            if self._stories is Stories.AGREED:
                return None  # to refuse is a step of its own
            return self._refuse(place, journal, part, plan)
        self._claim(journal, plan)
        name = _plan_name(plan)
        journal.begin(run_id=name, epoch=1, plan_digest=name)
        journal.keep(name, (b"y",), expires_at=1)
        return Part(Stage.SENT, bound)

    def _review(self, journal: PlainJournal, plan: int) -> SetBound | None:
        spec = self._plans[plan]
        try:
            bound = self._rules.bound_on(journal, self._scenario.batches[plan])
        except KeyReuseError:
            return None
        has_room = self._rules.leaves_room(bound, spec.fingerprints, threshold=spec.threshold)
        return bound if has_room else None

    def _claim(self, journal: PlainJournal, plan: int) -> None:
        spec = self._plans[plan]
        journal.queries.claim(
            self._scenario.batches[plan],
            plan_digest=_plan_name(plan),
            claim=PlanClaim.sent(spec.fingerprints, survives_dropouts=spec.is_masked),
        )

    def _refuse(self, place: int, journal: PlainJournal, part: Part, plan: int) -> Part | None:
        """Promise never to send."""
        if part.stage not in (Stage.UNSEEN, Stage.BEGUN) or part.verdict is not None:
            return None
        if self._plans[plan].is_masked and not self._with_losses:
            return None  # it proves nothing
        journal.abandon(_plan_name(plan), run_id=_plan_name(plan))
        return Part(Stage.REFUSED)

    def _fail(self, place: int, journal: PlainJournal, part: Part, plan: int) -> Part | None:
        """Crash after the claim and before the y is kept."""
        if part.stage is not Stage.UNSEEN or part.verdict is not None:
            return None
        if self._review(journal, plan) is None:
            return None
        self._claim(journal, plan)
        name = _plan_name(plan)
        journal.begin(run_id=name, epoch=1, plan_digest=name)
        return Part(Stage.BEGUN, is_gone=True)

    def _lose(self, place: int, journal: PlainJournal, part: Part, plan: int) -> Part | None:
        """Forget a plan: a restart, another run, or a void settlement. The journal stays."""
        if part.stage is not Stage.SENT or part.is_gone:
            return None
        return Part(part.stage, None, is_gone=True, verdict=part.verdict, is_shown=part.is_shown)

    def _void(self, place: int, journal: PlainJournal, part: Part, plan: int) -> Part | None:
        """Take a void settlement without evidence."""
        if part.stage is not Stage.SENT or not self._rules.void_frees(part.verdict is not None):
            return None
        return self._settle(place, journal, part, plan, CLOSED, run=plan)

    def _judge(
        self, place: int, journal: PlainJournal, part: Part, plan: int, chosen: Parties
    ) -> Part | None:
        """Give the one verdict on a plan."""
        spec = self._plans[plan]
        if chosen:
            if part.stage is not Stage.SENT or part.is_gone or part.bound is None:
                return None
            if part.verdict not in (None, chosen):
                return None
            try:
                self._rules.require_open_set(
                    _names(chosen),
                    me=bytes([place]),
                    seats=spec.fingerprints,
                    least=max(spec.threshold, LEAST_PARTIES),
                    bound=part.bound,
                )
            except (TooFewSharesError, VerdictError):
                return None
        try:
            verdict = b"verdict" + bytes([chosen])
            journal.decide(_plan_name(plan), verdict, run_id=_plan_name(plan))
        except KeyReuseError:
            return None
        return Part(part.stage, part.bound, part.is_gone or not chosen, chosen, part.is_shown)

    def _show(self, place: int, journal: PlainJournal, part: Part, plan: int) -> Part:
        return Part(part.stage, part.bound, part.is_gone, part.verdict, is_shown=True)

    def _settle(
        self,
        place: int,
        journal: PlainJournal,
        part: Part,
        plan: int,
        chosen: Parties,
        *,
        run: int,
    ) -> Part:
        """Note what a settlement in a run proves: who refused, or the certificate of a set."""
        spec = self._plans[run]
        if spec.is_masked:
            claim = self._rules.certified(_names(chosen))
        else:
            claim = self._rules.abandoned_by(_names(chosen), seats=spec.fingerprints)
        self._rules.resolve(journal, _plan_name(plan), _plan_name(run), claim)
        if run != plan:
            return part
        return Part(part.stage, None, is_gone=True, verdict=part.verdict, is_shown=part.is_shown)

    def _number(self, party: Party) -> int:
        """Number a party's state; the same state gets the same number."""
        key = party.place, party.parts, party.journal.content
        if key not in self._numbers:
            self._numbers[key] = len(self._parties)
            self._parties.append(party)
        return self._numbers[key]

    # Promises ---------------------------------------------------------------------------------

    def _sums_of(self, state: State, plan: int) -> Sums:
        parts = tuple(self._parties[number].parts[plan] for number in state)
        sent = sum(1 << place for place, part in enumerate(parts) if part.stage is Stage.SENT)
        shown = tuple(part.verdict if part.is_shown else None for part in parts)
        key = plan, sent, shown
        if key not in self._sums:
            self._sums[key] = self._opened(self._plans[plan], sent, shown)
        return self._sums[key]

    def _opened(self, spec: PlanSpec, sent: Parties, shown: Sequence[Parties | None]) -> Sums:
        """Return the sums that open: the honest parties of each that no key joins to others."""
        honest = spec.seats & self._scenario.honest
        if not spec.is_masked:
            return (honest,) if sent == honest else ()
        liars = (spec.seats & self._scenario.lying).bit_count()
        sets = [chosen for chosen in shown if chosen]

        def opens(dealer: int, peer: int | None = None) -> bool:
            """Whether a dealer's self mask, or its key with a peer, has t shares."""
            holders = sum(
                chosen >> dealer & 1 and (peer is None or not chosen >> peer & 1) for chosen in sets
            )
            return bool(sent >> dealer & 1) and liars + holders >= spec.threshold

        found, waiting = [], honest
        while waiting:
            joined = reached = waiting & -waiting
            while reached:
                one = members(reached)[0]
                reached &= reached - 1
                for other in members(honest & ~joined):
                    if not opens(one, other) and not opens(other, one):
                        joined |= 1 << other
                        reached |= 1 << other
            waiting &= ~joined
            if all(opens(party) for party in members(joined)):
                found.append(joined)
        return tuple(found)

    def _broken(self, state: State, family: tuple[Sums, ...]) -> tuple[str, Parties] | None:
        """Return the promise that a state breaks, and the hospitals whose votes are known."""
        if family not in self._judged:
            self._judged[family] = self._broken_by(family)
        broken = self._judged[family]
        if broken is None and not self._exact:
            for plan, spec in enumerate(self._plans):
                if spec.is_masked and len(self._certificates(state, plan)) > 1:
                    return f"plan {plan} has two certificates", 0
        return broken

    def _broken_by(self, family: tuple[Sums, ...]) -> tuple[str, Parties] | None:
        broken: tuple[str, Parties] | None = None
        for plan, sums in enumerate(family):
            spec = self._plans[plan]
            liars = (spec.seats & self._scenario.lying).bit_count()
            for held in sums:
                if held.bit_count() < 2:
                    return f"plan {plan} opens the sum of {_set(held)} alone", held
                if held.bit_count() < spec.threshold - liars:
                    broken = f"plan {plan} opens the sum of {_set(held)}, too few", 0
        for one, other in self._scenario.related:
            for first, second in itertools.product(family[one], family[other]):
                told = f"plan {one} opens {_set(first)} and plan {other} {_set(second)}"
                if (first ^ second).bit_count() == 1:
                    return told, first ^ second
                if first != second and first & second:
                    broken = broken or (told, 0)
        return None if self._exact else broken

    # Names ------------------------------------------------------------------------------------

    def _nameless(self, families: set[tuple[Sums, ...]]) -> frozenset[Any]:
        return frozenset(self._symmetries.first_family(family) for family in families)

    def _told(self, place: int, event: Event) -> str:
        if not self._by_name:
            return ""
        verb, plan, *sets = event
        if verb != "serves":
            return f"{place} {verb} {' '.join(map(_set, sets))} plan {plan}"
        told = [
            f"{_set(chosen)} of plan {of}" for of, chosen in enumerate(sets) if chosen is not None
        ]
        return f"{place} serves plan {plan}" + (f", told {', '.join(told)}" if told else "")


class _Symmetries:
    """Names of hospitals that may be exchanged: those with seats in the same runs, liars apart.

    Of all states that differ by names one is chosen, by sorting hospitals by what is known of them
    and what the sets of others say of them. Where that does not tell two hospitals apart, a state
    may be visited under more than one name: that costs time and hides nothing.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        scenario = search._scenario
        groups: dict[Any, list[int]] = {}
        for place in range(scenario.hospitals):
            seating = tuple(plan.seats >> place & 1 for plan in scenario.plans)
            groups.setdefault((scenario.lying >> place & 1, seating), []).append(place)
        self._groups = list(groups.values())
        self._masks = [sum(1 << place for place in group) for group in self._groups]
        self._keys: list[int] = []
        self._exchanges: dict[tuple[int, ...], int] = {}
        self._places: list[tuple[int, ...]] = []
        self._moved: list[dict[int, int]] = []
        self._firsts: dict[State, State] = {}

    def first(self, state: State) -> State:
        """Return the state that stands for all that differ from this one by names."""
        found = self._firsts.get(state)
        if found is None:
            exchange = self._sorting(state)
            places, moved = self._places[exchange], self._moved[exchange]
            renamed = list(state)
            for place, number in enumerate(state):
                new = moved.get(number)
                renamed[places[place]] = self._again(number, exchange) if new is None else new
            found = self._firsts[state] = tuple(renamed)
        return found

    def first_family(self, family: tuple[Sums, ...]) -> Any:
        """Return the family of sums that stands for all that differ from this one by names."""
        return min(
            tuple(
                tuple(sorted(_moved(held, self._places[exchange]) for held in sums))
                for sums in family
            )
            for exchange in self._all_exchanges()
        )

    def _sorting(self, state: State) -> int:
        """Return the exchange after which the hospitals of each group are sorted."""
        while len(self._keys) < len(self._search._parties):
            self._keys.append(self._key(len(self._keys)))
        keys = sum(map(self._keys.__getitem__, state))
        exchange = list(range(self._search._scenario.hospitals))
        for group in self._groups:
            if len(group) > 1:
                ordered = sorted(group, key=lambda place: keys >> _LANE * place & _LANE_BITS)
                for new, old in zip(group, ordered, strict=True):
                    exchange[old] = new
        return self._exchange(tuple(exchange))

    def _all_exchanges(self) -> Iterator[int]:
        for orders in itertools.product(*map(itertools.permutations, self._groups)):
            exchange = dict(
                zip(itertools.chain(*self._groups), itertools.chain(*orders), strict=True)
            )
            yield self._exchange(tuple(exchange[place] for place in range(len(exchange))))

    def _exchange(self, places: tuple[int, ...]) -> int:
        if places not in self._exchanges:
            self._exchanges[places] = len(self._places)
            self._places.append(places)
            self._moved.append({})
        return self._exchanges[places]

    def _again(self, number: int, exchange: int) -> int:
        """Live the life of a party again under another name."""
        moved, places = self._moved[exchange], self._places[exchange]
        if number not in moved:
            party = self._search._parties[number]
            if party.origin is None:
                parts = (Part(),) * len(party.parts)
                new = Party(places[party.place], PlainJournal(), parts, None)
                moved[number] = self._search._number(new)
            else:
                earlier, (verb, plan, *sets) = party.origin
                event = (
                    *(verb, plan),
                    *(None if chosen is None else _moved(chosen, places) for chosen in sets),
                )
                moved[number] = self._search._step(self._again(earlier, exchange), event)
        return moved[number]

    def _key(self, number: int) -> int:
        """Return what a party says of itself and of others, in a lane of bits for each hospital.

        It says the same under all names.
        """
        party = self._search._parties[number]
        own: list[tuple[int, bool, bool]] = []
        sets: list[tuple[int, int, Parties]] = []
        for plan, part in enumerate(party.parts):
            own.append((part.stage.value, part.is_gone, part.is_shown))
            claim = party.journal.claim_on(_plan_name(plan))
            own.append((claim is None, claim is not None and claim.is_free, False))
            if part.verdict is not None:
                sets.append((plan, 0, part.verdict))
            openable = None if claim is None else claim.openable
            for place, bound in enumerate((part.bound, openable), 1):
                if bound is not None:
                    sets.append((plan, 2 * place, _parties_of(bound.needed)))
                if bound is not None and bound.allowed is not None:
                    sets.append((plan, 2 * place + 1, _parties_of(bound.allowed)))
        shapes = tuple(
            (
                *(*slot, chosen >> party.place & 1),
                *((chosen & mask).bit_count() for mask in self._masks),
            )
            for *slot, chosen in sets
        )
        color = hash((tuple(own), shapes))
        key = _weight(color) << _LANE * party.place
        for *slot, chosen in sets:
            weight = _weight(hash((color, *slot)))
            key += sum(weight << _LANE * other for other in members(chosen))
        return key


_LANE: Final = 80
"""Bits of a hospital's lane: room for the sum of a thousand weights."""

_LANE_BITS: Final = (1 << _LANE) - 1


def _weight(color: int) -> int:
    return color & (1 << 64) - 1


def _moved(chosen: Parties, places: Sequence[int]) -> Parties:
    return sum(1 << places[place] for place in members(chosen))


def _parties_of(names: frozenset[bytes]) -> Parties:
    return sum(1 << name[0] for name in names)


def _set(chosen: Parties) -> str:
    return "{" + ", ".join(map(str, members(chosen))) + "}" if chosen else "closed"


def _settled_in(run: int) -> str:
    return f"is settled in run {run} with"


@cache
def _plan_name(plan: int) -> bytes:
    return f"plan {plan}".encode()


def _trace(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    told: list[str] = []
    while (step := came[state]) is not None:
        state = step[0]
        told.append(step[1])
    return tuple(reversed(told))

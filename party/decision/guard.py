"""The hospital's veto: decides before the teachers run (rule R14). Any doubt is a refusal.

Nothing that the coordinator sends can lower a `Policy`. Every refusal of a batch comes before
its votes exist, and is a public code. So no refusal can depend on a vote (rule R12).
The rules R1 to R14 are in docs/explanation/threat-model.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from party.errors import Reason, RefusalError
from party.site.party_task import Evaluation
from party.site.policy import Aggregators, Policy, compared_body, is_small
from party.storage.query_journal import QueryJournal
from pate_fed.accounting import (
    DistributedCountsEvent,
    Outcomes,
    PrivacyEvent,
    PrivacyLedger,
    event_additive_delta,
)
from pate_fed.charges import RunLedger, lifelong_charge, noise_of
from pate_fed.errors import (
    BudgetExhaustedError,
    InvalidParameterError,
    InvalidTermsError,
    OutcomeCapError,
    UnsupportedEventError,
)
from pate_fed.mechanisms import DEPLOYED_MECHANISMS
from pate_fed.prices import charged_price, is_within_budget
from pate_fed.queries import QueryBatch, QueryPool
from pate_fed.terms import MOST_VOID_BATCHES, BatchTerms, RunTerms
from pate_fed.votes import TeacherWeights
from protocols.errors import KeyReuseError, MalformedMessageError
from protocols.forms import FORMS
from protocols.messages import RunInquiry, RunRecord
from protocols.rounds import ANY_SET, PlanClaim, SetBound, bound_on
from protocols.run_scope import RunScope, tally_of
from protocols.values import decode_value

T = TypeVar("T", RunTerms, BatchTerms)


@dataclass(frozen=True, slots=True)
class Consent:
    """The decisions of this party's people about runs, besides the policy.

    `approved_runs` are digests of every `RunScope` that a person approved; None where an approved
    pool is enough. While it `is_paused`, nothing new may be answered.
    """

    approved_runs: frozenset[bytes] | None = None
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks runs and batches against policy, journal and ledger; changes none of them.

    A review that refuses raises `RefusalError`, with the reason to send. `weights` are the votes
    per query of each of this party's teachers, together its quota, and `weights_by_pool` those on
    pools whose tasks ask for a data set by name; `checked_peers` fingerprints
    that its own people checked, with the owner of each; `aggregators` are its people's word on the
    federation's coordinator and tally.
    """

    policy: Policy
    weights: TeacherWeights
    checked_peers: Mapping[bytes, str]
    consent: Consent = Consent()
    aggregators: Aggregators = field(default_factory=Aggregators)
    weights_by_pool: Mapping[bytes, TeacherWeights] = field(default_factory=dict)

    def review_run(
        self, record: RunRecord | RunInquiry, *, seats: tuple[bytes, ...], me: bytes
    ) -> RunTerms:
        """Decide on a run; return the terms that it agrees to.

        Its record's signatures were verified; it may be the inquiry before it. `seats` are the
        fingerprints of all parties, in seat order; `me` is this party's.
        """
        self._review_parties(record, seats=seats, me=me)
        terms = _read(RunTerms, record.terms)
        if len(terms.weights) != len(seats):
            raise RefusalError(Reason.UNIT, "one quota must be for each party", len(terms.weights))
        most_votes = FORMS[record.form].most_votes
        self._review_terms(terms, seat=seats.index(me), most_votes=most_votes)
        self._review_noise(terms, record)
        if FORMS[record.form].adds_noise:  # late: our people are asked about nothing else then
            self.aggregators.require(tally_of(record))
        self._require_approved(terms)
        return terms

    def weights_on(self, pool: bytes) -> TeacherWeights:
        """Return our votes on a pool's queries: its task may ask for a data set by name."""
        return self.weights_by_pool.get(pool, self.weights)

    def review_price(self, run_ledger: RunLedger, *, seat: int, ledger: PrivacyLedger) -> None:
        """Refuse a run whose price at its caps exceeds its budget, or cannot be added up here.

        The price is a constant of the terms. So a run that is within its budget stays so, whatever
        is released, as long as its caps hold.
        """
        terms = run_ledger.terms
        if run_ledger.is_over:  # said when a query is asked
            return
        weight = terms.unit_votes_at(seat)
        try:
            charge = lifelong_charge(terms, run_ledger.worst_case(1), weight=weight)
            if charge is None:
                return
            ledger.can_afford(charge)  # refuses what has no cost that adds up
            _require_delta_for_tests(charge, ledger)
            fits = is_within_budget(terms, seat)  # takes longest, hence last
        except (UnsupportedEventError, InvalidParameterError) as error:
            raise RefusalError(Reason.PRICING, error.must, error.got) from error
        if not fits:
            raise RefusalError(
                Reason.BUDGET,
                f"a run must cost at most its budget, epsilon {terms.budgets[seat]:g}, at its caps",
                f"{charged_price(terms, seat).epsilon:g}",
            )

    def review_evaluation(
        self, evaluation: Evaluation, ledger: PrivacyLedger, *, own: str = ""
    ) -> None:
        """Refuse an evaluation that the policy does not allow; before each of its batches, too.

        Its noise is the hospitals' own, so a crafted student, or one that differs little from an
        earlier one, tells no more than this evaluation is charged. Each earlier evaluation is a
        charge in the ledger; `own` names its own, if it is there already.
        """
        charged = (entry.charged for entry in ledger.entries if entry.entry_id != own)
        done = sum(isinstance(event, DistributedCountsEvent) for event in charged)
        if done >= self.policy.most_evaluations:
            most = self.policy.most_evaluations
            raise RefusalError(Reason.EVALUATION, f"at most {most} evaluations", "one more")
        if not self.policy.evaluation_columns.issuperset(evaluation.by):
            raise RefusalError(
                Reason.EVALUATION, "patients must be grouped by columns our owner allows", "another"
            )
        if not evaluation.share:
            raise RefusalError(Reason.EVALUATION, "our settings must hold patients out", "nobody")

    def review_consent(self, terms: RunTerms, *, scope: RunScope) -> None:
        """Refuse while the hospital is paused, or a person has yet to approve the pool or the run.

        It is the last check of a run, so people are not asked about a run that is refused anyhow.
        It comes before every batch, so that people can take an approval, or a pin of the tally,
        back.
        """
        if self.consent.is_paused:
            raise RefusalError(Reason.PAUSED, "the hospital must not be paused", "a pause")
        if scope.tally:
            self.aggregators.require(scope.tally)
        self._require_approved(terms)
        approved = self.consent.approved_runs
        if approved is not None and scope.digest not in approved:
            raise RefusalError(Reason.APPROVAL, "a person must approve the run", "none yet")

    def review_batch(
        self,
        terms: bytes,
        *,
        words: int | None = None,
        seat: int,
        void_batches: int,
        lost_share: float,
        pool: QueryPool,
        queries: QueryJournal,
        ledger: PrivacyLedger,
        run_ledger: RunLedger,
    ) -> tuple[QueryBatch, Outcomes]:
        """Decide on a batch; return its queries, and the worst case to charge before it is sent.

        `terms` are those in its plan, canonical CBOR. `words` is the length of the vector that the
        plan asks for; None where there is no plan yet. `void_batches` were void since the run was
        set up; `lost_share` is the part of the budget for life that batches of this run used up
        without a result, over all its setups. `queries` are all that this party ever answered,
        `ledger` the charges of all earlier runs, `run_ledger` the counts of this run, within its
        caps.
        """
        asked, run_terms = _read(BatchTerms, terms), run_ledger.terms
        if asked.run != run_terms or words not in (None, asked.words):
            raise RefusalError(Reason.TERMS, "a batch must keep to the run's terms", "others")
        if void_batches >= MOST_VOID_BATCHES:
            raise RefusalError(
                Reason.VOIDS, f"a run must end after {MOST_VOID_BATCHES} void batches", "another"
            )
        if len(asked.indices) > run_ledger.left.asks:
            # Otherwise votes would leave for a charge of nothing.
            raise RefusalError(Reason.QUERIES, "the run's caps must leave this to ask", "less")
        batch = _ask(pool, asked)
        if queries.count() + queries.count_new(batch.digests) > self.policy.most_queries:
            raise RefusalError(
                Reason.QUERIES, f"at most {self.policy.most_queries} queries", "more"
            )
        worst = run_ledger.worst_case(len(batch))
        weight = run_terms.unit_votes_at(seat)
        charge = lifelong_charge(run_terms, worst, weight=weight, earlier=run_ledger.asks_before())
        try:
            run_ledger.reserve("review", worst)
            if charge is not None:
                ledger.reserve("review", charge)
        except (BudgetExhaustedError, OutcomeCapError) as error:
            raise RefusalError(Reason.BUDGET, error.must, error.got) from error
        share, most = 0.0 if charge is None else ledger.share_of(charge), self.policy.most_forfeited
        # Where records vote all setups together never cost more than was approved: only the cap.
        if run_terms.caps.patient_votes is None and not is_small(lost_share, share, most=most):
            raise RefusalError(
                Reason.VOIDS, f"a run must lose at most {most:g} of our budget for life", "more"
            )
        return batch, worst

    def review_queries(
        self,
        batch: QueryBatch,
        *,
        queries: QueryJournal,
        seats: Collection[bytes],
        threshold: int,
        task: bytes = b"",
        teachers: bytes = b"",
    ) -> SetBound:
        """Refuse a batch whose queries repeat answered ones more than rule R3 allows.

        With other teachers than in an earlier plan for the same task, the difference of two sums
        would show how their votes differ.

        `threshold` is the fewest parties whose sum opens, all of them in the additive form; `task`
        and `teachers` are digests. Returns the bound on the set that may open.
        """
        _require_same_teachers(queries.claims_of(batch.digests), task=task, teachers=teachers)
        try:
            bound = queries.bound_on(batch.digests)
        except KeyReuseError as error:
            raise RefusalError(Reason.QUERIES, error.must, error.got) from error
        _require_room(bound, seats, threshold=threshold)
        return bound

    def refused_alone(
        self,
        batch: QueryBatch,
        *,
        queries: QueryJournal,
        seats: Collection[bytes],
        threshold: int,
        task: bytes = b"",
        teachers: bytes = b"",
    ) -> list[int]:
        """Return the places of the queries to leave out, so that `review_queries` serves the rest.

        Each is looked at once, in order: journals are large. The arguments are the same.
        """
        digests = batch.digests
        refused, seen, bound = list[int](), set[bytes](), ANY_SET
        for place, (query, claims) in enumerate(
            zip(digests, queries.claims_of_each(digests), strict=True)
        ):
            try:
                _require_same_teachers(claims, task=task, teachers=teachers)
                narrower = bound & bound_on(claims)
                _require_room(narrower, seats, threshold=threshold)
                is_served = query not in seen
            except (RefusalError, KeyReuseError):
                is_served = False
            if is_served:
                bound = narrower
                seen.add(query)
            else:
                refused.append(place)
        return refused

    def _review_parties(
        self, record: RunRecord | RunInquiry, *, seats: tuple[bytes, ...], me: bytes
    ) -> None:
        policy = self.policy
        if record.simulated != policy.simulated:
            raise RefusalError(
                Reason.SIMULATED, f"simulated must be {policy.simulated}", record.simulated
            )
        # A form that survives drop-outs may open as few parties as its threshold.
        if min(len(seats), record.threshold) < max(3, policy.least_parties):
            raise RefusalError(
                Reason.TOO_FEW_PARTIES,
                f"a sum must hold at least {policy.least_parties} parties",
                min(len(seats), record.threshold),
            )
        peers = [seat for seat in seats if seat != me]
        form = FORMS.get(record.form) if record.form in policy.forms else None
        if form is None:
            raise RefusalError(Reason.FORM, "the form must be one that our owner allows", "another")
        if not form.adds_noise:
            self._require_checked(peers)
        # An unchecked peer may be the coordinator's invention, and counts as its ally. So do the
        # parties of the operator's own body. A body with several seats colludes with all of them,
        # or with none (rule R2).
        seats_of = Counter(compared_body(self.checked_peers.get(peer, "")) for peer in peers)
        operator = compared_body(self.aggregators.operator_body)
        allied = sum(seats_of.pop(ally, 0) for ally in {"", operator})
        allied += _most_seats(seats_of)
        least_colluders = max(1, policy.least_colluders, allied)
        if form.adds_noise:  # all others may collude; one number, so that a run has one scope
            least_colluders = max(least_colluders, form.most_colluders(len(seats)))
        fits = (
            record.suite in policy.suites
            and len(seats) >= form.smallest
            and record.threshold == form.threshold(len(seats))
            and record.dropouts == len(seats) - record.threshold
            and least_colluders <= record.colluders <= form.most_colluders(len(seats))
        )
        if not fits:
            raise RefusalError(
                Reason.FORM,
                "the suite must be allowed, and the form hide votes from all we do not trust",
                "not",
            )

    def _require_checked(self, peers: Collection[bytes]) -> None:
        """Refuse too few checked bodies among the peers of a sum that hides votes among them.

        In a verified sum an aggregator and all peers together see our votes with the whole noise of
        the other aggregator, once for each charge (docs/decisions/0020-neither-alone.md). The price
        is that of this view, so peers need not be real: what protects us is the other organisation,
        which `Aggregators.require` checks in their place. The price is of the privacy unit: among
        invented peers our noisy counts are seen unmixed.
        """
        policy = self.policy
        bodies = policy.other_bodies(
            (self.checked_peers[peer] for peer in peers if peer in self.checked_peers),
            operator_body=self.aggregators.operator_body,
        )
        least = max(2, policy.least_checked_peers)
        if len(bodies) < least:
            raise RefusalError(
                Reason.UNCHECKED_PEERS,
                f"peers of at least {least} other bodies checked by our people",
                len(bodies),
            )

    def _require_approved(self, terms: RunTerms) -> None:
        """Refuse another pool, before anything of it that is here could change the answer."""
        if terms.pool_digest not in self.policy.approved_pools:
            raise RefusalError(Reason.POOL, "the pool must be approved by our owner", "another")

    def _review_terms(self, terms: RunTerms, *, seat: int, most_votes: int | None) -> None:
        policy, budget = self.policy, terms.budgets[seat]
        if terms.is_evaluation:  # a public number of places, one for each patient
            is_ours = terms.weights[seat].heaviest == 1
        else:
            is_ours = terms.weights[seat] == self.weights_on(terms.pool_digest)
        if not is_ours:
            ours = self.weights_on(terms.pool_digest).votes
            raise RefusalError(Reason.UNIT, f"our quota must be {ours}", "another")
        # A report of more cannot be made: it would be charged for nothing.
        if most_votes is not None and terms.weights[seat].votes > most_votes:
            raise RefusalError(
                Reason.UNIT, f"we must have at most {most_votes} votes in this form", "more"
            )
        if terms.unit not in policy.units:
            raise RefusalError(Reason.UNIT, "the privacy unit must be one we allow", terms.unit)
        if terms.caps.labels is not None and not policy.simulated:
            # The price of a cap on "yes" supposes teachers that keep to it.
            raise RefusalError(
                Reason.TERMS, "inputs must have one label, as our teachers do", terms.caps.labels
            )
        rule, votes = terms.rule, terms.unit_votes
        quiet = (rule.sigma2 is not None and rule.sigma2 < policy.least_sigma2 * votes) or (
            rule.sigma1 is not None and rule.sigma1 < policy.least_sigma1
        )
        # Whatever a policy says, the others are for simulations.
        served = (
            policy.mechanisms
            if policy.simulated
            else policy.mechanisms.intersection(DEPLOYED_MECHANISMS)
        )
        is_known = terms.is_evaluation or rule.mechanism in served
        if quiet or terms.delta > policy.most_delta or not is_known:
            raise RefusalError(Reason.MECHANISM, "noise and delta must be within policy", "not")
        if budget > policy.most_epsilon:
            raise RefusalError(
                Reason.BUDGET, f"epsilon must be at most {policy.most_epsilon}", budget
            )

    def _review_noise(self, terms: RunTerms, record: RunRecord | RunInquiry) -> None:
        """Check who adds the noise, and that the parties' shares of it match the price.

        Who allows the verified form allows its noise: `sigma2` is that of each aggregator, so all
        our prices are those of a view that has the other one's noise alone.
        """
        rule, adds_noise = terms.rule, FORMS[record.form].adds_noise
        if rule.at_aggregators is not adds_noise or not (
            adds_noise or rule.noise_place in self.policy.noise_places
        ):
            raise RefusalError(
                Reason.MECHANISM, "noise must be added where our owner allows", rule.noise_place
            )
        if not rule.opens_noisy:
            return
        # `_review_parties` has compared these with the peers that our people checked.
        tolerated = (record.colluders, record.dropouts)
        if rule.at_parties and (rule.colluders, rule.dropouts) != tolerated:
            raise RefusalError(
                Reason.TERMS, "noise must be divided for the colluders of the run", "others"
            )
        if not FORMS[record.form].hides_vectors:
            raise RefusalError(
                Reason.FORM, "noise shares must be hidden: each alone is too narrow", record.form
            )
        try:
            noise_of(terms).require_room(terms.total_votes)
        except InvalidParameterError as error:
            raise RefusalError(Reason.MECHANISM, error.must, error.got) from error


def _require_same_teachers(claims: Iterable[PlanClaim], *, task: bytes, teachers: bytes) -> None:
    """Refuse a query that other teachers answered for the same task."""
    if any(claim.task == task and claim.teachers != teachers for claim in claims):
        raise RefusalError(
            Reason.QUERIES, "the teachers of an earlier plan must answer again", "others"
        )


def _require_room(bound: SetBound, seats: Collection[bytes], *, threshold: int) -> None:
    """Refuse queries whose earlier plans leave no set of this run that may open."""
    if not bound.leaves_room(seats, threshold=threshold):
        raise RefusalError(
            Reason.QUERIES,
            "an earlier plan with one of these queries must leave a set of this run that may open",
            "none",
        )


def _require_delta_for_tests(charge: PrivacyEvent, ledger: PrivacyLedger) -> None:
    """Refuse a test of stability that this hospital can never pay for."""
    needed, kept = event_additive_delta(charge), ledger.additive_delta
    if needed > kept:
        raise RefusalError(
            Reason.PRICING,
            f"delta_for_tests must hold one test of stability, {needed:.3g}; the first start fixed "
            "it for life",
            f"{kept:.3g}",
        )


def _most_seats(seats_of: Mapping[str, int]) -> int:
    """Return the seats of the largest body that has several; 0 if none has."""
    most = max(seats_of.values(), default=0)
    return most if most > 1 else 0


def _ask(pool: QueryPool, terms: BatchTerms) -> QueryBatch:
    if terms.run.pool_digest != pool.digest:
        raise RefusalError(Reason.POOL, "the pool must be the one at this party", "another")
    try:
        return pool.ask(terms.indices)
    except InvalidParameterError as error:
        raise RefusalError(Reason.QUERIES, error.must, error.got) from error


def _read(kind: type[T], data: bytes) -> T:
    try:
        return kind.from_record(decode_value(data))
    except (InvalidTermsError, MalformedMessageError) as error:
        raise RefusalError(Reason.TERMS, error.must, error.got) from error

"""A run that waits for a person: its question, its parties, its price, its fit to our table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from party.errors import ApprovalError, Fault, fault_of
from party.site.document_child import AskedTask
from party.site.peers import Pin
from party.site.people_decisions import Approval, Subject
from party.site.site import Site
from party.site.task_review import TaskReview
from pate_fed.accounting import FormalCost, PrivacyLedger, event_additive_delta
from pate_fed.accounting.costs import neighbors
from pate_fed.charges import whole_charge
from pate_fed.evaluation import neighbors_of
from pate_fed.prices import charged_number
from pate_fed.terms import RunTerms
from protocols.values import decode_value


@dataclass(frozen=True, slots=True)
class Cost:
    """The largest cost of a run, and its part of this hospital's budget for life.

    Attributes:
        charged_epsilon, charged_view: Of the view that `share` is charged for, in short.
        neighbors, view, method: Of `run_epsilon`, in words.
        used: Share of the budget for life that other runs have used until now, from 0 to 1.
        share: Share that this run takes at its caps; what is left of it returns.
        room: How many such runs the rest of the budget holds, this one included.
        tests_before: Delta charged for tests of stability over all runs until now.
        tests_after: The same if the run is taken to its caps.
        delta_for_tests: Part of delta kept for them over all runs; 0 for none.
    """

    run_epsilon: float
    charged_epsilon: float
    charged_view: str
    delta: float
    neighbors: str
    view: str
    method: str
    used: float
    share: float
    room: int
    lifetime_epsilon: float
    tests_before: float
    tests_after: float
    delta_for_tests: float

    @property
    def fits(self) -> bool:
        """Whether the budget for life holds all of it; otherwise the run stops before."""
        return self.room > 0


@dataclass(frozen=True, slots=True)
class RunProposal:
    """A run that waits, of a federation with this name.

    `terms` are None where a pool was approved beforehand. `peers` have our people's names for them,
    None if nobody checked them. `aggregators` are coordinator and tally in our people's words, the
    latter empty where the run has none. `cost` is None where it has no price, or not all is known;
    `fault` says why terms or cost cannot be read, or what its tally needs of our people first.
    """

    approval: Approval
    federation: str
    terms: RunTerms | None
    peers: tuple[tuple[bytes, str | None], ...]
    aggregators: tuple[str, str]
    cost: Cost | None
    fault: Fault | None = None

    @property
    def votes(self) -> dict[bytes, int]:
        """Votes of each hospital on a query, by fingerprint; empty where nobody votes."""
        terms, seats = self.terms, self.approval.seats
        if terms is None or terms.is_evaluation or len(terms.weights) != len(seats):
            return {}
        return {seat: one.votes for seat, one in zip(seats, terms.weights, strict=True)}

    @property
    def pool(self) -> bytes:
        """Digest of the pool that it asks about."""
        if self.approval.subject is Subject.POOL:
            return self.approval.digest
        if self.terms is None:
            raise ApprovalError("a run that waits must have its terms")
        return self.terms.pool_digest


def proposal_of(
    site: Site,
    approval: Approval,
    *,
    ledger: PrivacyLedger,
    pins: Iterable[Pin],
    costs: Callable[[RunTerms], FormalCost],
) -> RunProposal:
    """Work out a run's proposal for a person; one that cannot be read has a `fault`."""
    me = site.identity.public.fingerprint
    names = {pin.identity.fingerprint: pin.name for pin in pins}
    peers = tuple((seat, names.get(seat)) for seat in approval.seats if seat != me)
    federation = site.federation_of(approval.coordinator)
    both = _aggregators(site, approval)
    if not approval.terms:
        return RunProposal(approval, federation, None, peers, both, None)
    terms = cost = None
    try:
        terms = RunTerms.from_record(decode_value(approval.terms))
        if me in approval.seats and terms.spec.is_private:
            seat = approval.seats.index(me)
            cost = _cost(terms, seat, ledger, costs(terms))
        joined = site.membership_at(approval.coordinator)
        if approval.tally and joined is not None:
            joined.settings.aggregators.require(approval.tally)
    except Exception as error:  # others asked for it: no fault of theirs hides another request
        return RunProposal(approval, federation, terms, peers, both, cost, fault_of(error))
    return RunProposal(approval, federation, terms, peers, both, cost)


def _aggregators(site: Site, approval: Approval) -> tuple[str, str]:
    """Name coordinator and tally, each with its owner, as far as our people know them."""
    joined = site.membership_at(approval.coordinator)
    owner = "" if joined is None else joined.settings.operator_body
    coordinator = f"the coordinator ({owner})" if owner else "the coordinator"
    if not approval.tally:
        return coordinator, ""
    pinned = None if joined is None else joined.settings.tally
    if joined is None or pinned is None or pinned.identity.fingerprint != approval.tally:
        return coordinator, f"a tally that is NOT PINNED HERE ({approval.tally.hex()[:16]}...)"
    return coordinator, f"the tally {pinned.name} ({joined.settings.tally_body})"


@dataclass(frozen=True, slots=True)
class Request:
    """A proposal with everything that its owner reads before deciding.

    `task` and its `review` are None if it was not read; `unread` says why it could not be.
    """

    proposal: RunProposal
    task: AskedTask | None = None
    review: TaskReview | None = None
    unread: Fault | None = None

    @property
    def approval(self) -> Approval:
        """The entry, as it was asked."""
        return self.proposal.approval

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything that keeps it from being approved."""
        unread = (one for one in (self.proposal.fault, self.unread) if one is not None)
        return (*unread, *(() if self.review is None else self.review.faults))

    def require_no_fault(self) -> None:
        """Raise the first fault of a request that cannot be approved: it could not be answered."""
        for fault in self.faults:
            raise fault
        if self.task is None:
            raise ApprovalError("a request must be read before it is approved")


def _cost(terms: RunTerms, seat: int, ledger: PrivacyLedger, stated: FormalCost) -> Cost | None:
    charge = whole_charge(terms, seat)
    if charge is None:
        return None
    epsilon, view = charged_number(terms, seat, stated=stated)
    return Cost(
        run_epsilon=stated.epsilon,
        charged_epsilon=epsilon,
        charged_view=view,
        delta=terms.delta,
        neighbors=neighbors_of(terms.unit)
        if terms.is_evaluation
        else neighbors(
            terms.unit, terms.unit_votes_at(seat), patient_votes=terms.caps.patient_votes
        ),
        view=stated.holds_for,
        method=stated.method,
        used=ledger.used_share(),
        share=ledger.share_of(charge),
        room=ledger.room_for(charge),
        lifetime_epsilon=ledger.epsilon,
        tests_before=ledger.charged_delta(),
        tests_after=ledger.charged_delta() + event_additive_delta(charge),
        delta_for_tests=ledger.additive_delta,
    )

"""`privacy.json`: the run's cost in each view."""

from __future__ import annotations

from typing import Annotated, Literal

from pate_fed.record.base import About, Count, File, Number, RecordTable, Share
from pate_fed.record.settings import Parameters
from pate_fed.run_folder import PRIVACY

Unit = Literal["record", "party"]


class UsedMechanism(Parameters):
    """The rule that made labels of votes, and its caps."""

    name: Annotated[
        str, About("as in [`--mechanism`](command-line.md#questions-and-mechanism)", "yes")
    ]
    shares: Annotated[
        Count | None, About("noise at the parties: hospitals minus colluders and lost ones", "yes")
    ] = None
    aggregators: Annotated[
        Count | None, About("`--sum verified`: those who add the full amount of noise each", "yes")
    ] = None
    unit_votes: Annotated[
        Count | None, About("`stable-*`: votes of one change", "yes", "votes")
    ] = None
    gamma: Annotated[
        Number | None,
        About("`lnmax` and `immutable`: inverse scale of the noise, sqrt(2) / sigma2", "yes"),
    ] = None
    constant: Annotated[
        Number | None,
        About("`immutable`: votes given to the top class before the noise", "yes", "votes"),
    ] = None
    max_asks: Annotated[Count, About("cap on queries, fixed before the run", "yes", "queries")]
    max_answers: Annotated[Count, About("cap on answers, likewise", "yes", "queries")]
    labels: Annotated[
        Count | None, About("of each input, if several; each makes a query of its own", "yes")
    ] = None
    label_cap: Annotated[Count | None, About("most of them to which one unit says yes", "yes")] = (
        None
    )
    patient_votes: Annotated[
        Count | None,
        About("`--teacher neighbors`: cap on the queries that one patient votes on", "yes"),
    ] = None


class AddedNoise(RecordTable):
    """Where noise came from."""

    place: Annotated[str, About("`coordinator`, `parties` or `aggregators`", "yes")]
    source: Annotated[str, About("source of the random numbers", "yes")]
    delta_slack: Annotated[
        Number | None,
        About(
            "bound on the delta added by imperfect noise, with a warning above a tenth of delta; "
            "null if nothing is protected",
            "yes",
        ),
    ]


class Budget(RecordTable):
    """The limit that was agreed before the run."""

    epsilon: Annotated[
        Number, About("the most that the run may cost at its caps, the largest of several", "yes")
    ]
    delta: Annotated[Number, About("its delta", "yes")]
    order_of_series: Annotated[
        Number | None,
        About(
            "of a simulation: the order at which [all runs of its series]"
            "(../explanation/privacy-guarantee.md#a-series-of-runs) add up, fixed by the first one",
            "yes",
        ),
    ]
    kept_for_tests: Annotated[
        Number | None, About("`stable-*`: the part of `delta` for tests", "yes")
    ] = None


class Bound(RecordTable):
    """An epsilon and how it was computed."""

    epsilon: Annotated[Number | None, About("null if no finite number holds", "yes")]
    method: Annotated[str, About("how it was computed", "yes")]


class PublicBound(Bound):
    """The guarantee for readers of labels and "no answer"s, at the caps; it counts all of `runs`.

    Everything else that is told of a run's cost is told of this number.
    """

    holds_for: Annotated[str, About("its readers, in words", "yes")]
    not_covered: Annotated[
        str | None, About("`--partition dirichlet`: the dealing by class, in words", "yes")
    ] = None


class CoordinatorBound(Bound):
    """Null and `trusted`; with noise at the parties the guarantee against the coordinator."""

    holds_for: Annotated[str | None, About("against whom, in words", "yes")] = None


class RemovalBound(Bound):
    """The smaller number that compares a hospital's vote with no vote at all."""

    privacy_unit: Annotated[Unit, About("`party`", "yes")]
    neighboring_definition: Annotated[str, About("the two compared cases, in words", "yes")]


class Views(RecordTable):
    """A bound for each reader."""

    public: Annotated[
        PublicBound, About("readers of labels: at the caps; it counts all of `runs`", "yes")
    ]
    removal: Annotated[
        RemovalBound | None,
        About(
            "the smaller number that compares a hospital's vote with no vote at all, for the same "
            "readers and delta; null where none is proved: for patients, for hospitals of several "
            "votes, for noise at the parties, for several runs, and for mechanisms other than "
            "`threshold`, `interactive-threshold` and `gnmax`",
            "yes",
        ),
    ]
    coordinator: Annotated[
        CoordinatorBound,
        About(
            "null and `trusted`; noise at the parties or at the aggregators: the number that "
            "budgets bound",
            "yes",
        ),
    ]
    tally: Annotated[
        CoordinatorBound | None,
        About(
            "`--sum verified`: the guarantee against the other aggregator, which sees as much; "
            "null without one",
            "yes",
        ),
    ] = None


class RunBound(Bound):
    """A run whose labels are used, with its part of the public number."""

    run: Annotated[str, About("its name; a number in the public edition", "yes")]
    delta: Annotated[Number, About("its delta", "yes")]


class PartyCost(Bound):
    """One hospital: the cost of one of its units in the charged view, and its budget."""

    party: Annotated[str, About("its name; a number in the public edition", "yes")]
    teachers: Annotated[Count, About("its teachers", "yes")]
    votes: Annotated[Count, About("those that it casts on each query", "yes", "votes")]
    unit_votes: Annotated[Count, About("those that one unit can move", "yes", "votes")]
    budget: Annotated[Number, About("its limit on `epsilon`", "yes")]

    @property
    def facts(self) -> tuple[object, ...]:
        """All but its name."""
        return tuple(value for name, value in self if name != "party")


class PerInstance(Bound):
    """The papers' bound for the actual votes.

    [**Private**](../decisions/0009-per-instance-number-is-private.md).
    """

    order: Annotated[Number | None, About("its Renyi order", "yes")]
    releasable: Annotated[bool, About("false", "yes")]


class Output(RecordTable):
    """What the run made."""

    output: Annotated[str, About("its name", "yes")]
    seen_by: Annotated[str, About("who sees it", "yes")]
    bounded_by: Annotated[str, About("the field with its epsilon", "yes")]


class Booked(RecordTable):
    """A batch in the ledger."""

    batch: Annotated[Count, About("its number", "yes")]
    state: Annotated[str, About("`committed`, `forfeited` or `cancelled`", "yes")]
    asked: Annotated[Count, About("0 if void", "yes", "queries")]
    answered: Annotated[Count, About("0 if void", "yes", "queries")]
    charged: Annotated[
        Count,
        About("with and without an answer; noise at the parties: opened rows", "yes", "queries"),
    ]


class WithLabels(Bound):
    """Labels and counts together."""

    delta: Annotated[Number, About("its delta", "yes")]


class EvaluationPrice(RecordTable):
    """The price of counts of held-out patients."""

    epsilon: Annotated[Number, About("of the noisy counts", "yes")]
    delta: Annotated[Number, About("its delta", "yes")]
    sigma: Annotated[Number, About("noise of each count", "yes", "patients")]
    unit_patients: Annotated[
        Count, About("held-out patients of one unit, at most", "yes", "patients")
    ]
    view: Annotated[str, About("who sees the counts", "yes")]
    neighboring_definition: Annotated[str, About("the two compared cases, in words", "yes")]
    method: Annotated[str, About("how it was computed", "yes")]
    trust: Annotated[str, About("in words", "yes")]
    with_labels: Annotated[WithLabels, About("and why it adds up so", "yes")]


class Privacy(File):
    """Content of `privacy.json`."""

    FILE = PRIVACY

    simulated: Annotated[bool, About("whether the run was a rehearsal on one machine", "yes")]
    delta: Annotated[
        Number, About("delta of `views` and `parties`; `budget.delta` is that of budgets", "yes")
    ]
    dp_flavor: Annotated[str, About("`(epsilon, delta)`, or `none`", "yes")]
    privacy_unit: Annotated[Unit, About("`record` (a patient) or `party` (a hospital)", "yes")]
    unit_votes: Annotated[
        Count, About("those that one unit of the costliest hospital can move", "yes", "votes")
    ]
    neighboring_definition: Annotated[str, About("the two compared cases, in words", "yes")]
    mechanism: Annotated[UsedMechanism, About("rule and caps", "yes")]
    noise: Annotated[AddedNoise, About("its place and source", "yes")]
    budget: Annotated[Budget, About("the limits agreed before the run", "yes")]
    views: Annotated[Views, About("the cost, by reader", "yes")]
    runs: Annotated[
        tuple[RunBound, ...],
        About(
            "all runs whose labels are used: earlier ones that drew an answer (all runs before "
            "this one, by the names of their directories), and this one if it asked anything; "
            "with several, epsilons and deltas add up",
            "yes",
        ),
    ]
    parties: Annotated[tuple[PartyCost, ...], About("the hospitals, by name", "yes")]
    per_instance: Annotated[
        PerInstance | None,
        About(
            "[**private**](../decisions/0009-per-instance-number-is-private.md): the papers' bound "
            "for the actual votes; `epsilon` is null in a deployment and with noise at the parties",
            "no",
        ),
    ]
    charged: Annotated[
        Share | None,
        About("share of `mechanism.max_asks` that was charged; null without a price", "yes"),
    ]
    ledger: Annotated[tuple[Booked, ...], About("the batches, in order", "yes")]
    evaluation: Annotated[
        EvaluationPrice | None,
        About("null but with `simulate --evaluate private` and after `pate-fed evaluate`", "yes"),
    ]
    sum: Annotated[
        str, About("form of the secure sum: `additive`, `masked`, `verified` or `plain`", "yes")
    ]
    guarantee: Annotated[str, About("the guarantee in words", "yes")]
    trust_model: Annotated[
        str,
        About(
            "`central` (the coordinator holds the exact sum), `distributed` (hospitals add the "
            "noise) or `two aggregators` (each adds the whole noise: neither sees a sum without "
            "the other's)",
            "yes",
        ),
    ]
    threat_model: Annotated[
        str,
        About("the trusted parties, their tasks and the meaning of the sealing suite", "yes"),
    ]
    outputs: Annotated[tuple[Output, ...], About("what the run made, most secret first", "yes")]
    post_processing: Annotated[str, About("the cost of what is computed from labels", "yes")]
    unprotected: Annotated[tuple[str, ...], About("gaps of the guarantee, in words", "yes")]

    @property
    def at_parties(self) -> bool:
        """Whether the hospitals added the noise."""
        return self.noise.place == "parties"

    @property
    def at_aggregators(self) -> bool:
        """Whether the coordinator and the tally added it, each the full amount."""
        return self.noise.place == "aggregators"

    @property
    def do_records_vote(self) -> bool:
        """Whether patients' own records voted, and no teachers."""
        return self.mechanism.patient_votes is not None

    @property
    def opens_noisy(self) -> bool:
        """Whether nobody saw an exact sum."""
        return self.at_parties or self.at_aggregators

    @property
    def charged_view(self) -> str:
        """The view of the budgets: that of the receiver of the hospitals' messages."""
        return "coordinator" if self.opens_noisy else "public"

    @property
    def protects_nobody(self) -> bool:
        """Whether the mechanism has no price at all."""
        return self.dp_flavor == "none"

    @property
    def budgets(self) -> tuple[float, ...]:
        """Budget of each hospital."""
        return tuple(party.budget for party in self.parties)

    @property
    def epsilons(self) -> tuple[float | None, ...]:
        """Cost for each hospital."""
        return tuple(party.epsilon for party in self.parties)

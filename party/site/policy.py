"""The policy of a hospital's owner: the rules that the guard holds every run to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from party.errors import Reason, RefusalError
from pate_fed.accounting.costs import DeployedPlace, PrivacyUnit
from pate_fed.accounting.formal_cost import ROUNDING_ROOM
from pate_fed.accounting.ranges import RANGES
from pate_fed.cells import folded, plain
from pate_fed.mechanisms import DEPLOYED_MECHANISMS
from protocols.forms import DEPLOYED_FORMS
from protocols.identity import PublicIdentity
from protocols.suites import DEFAULT_SUITE, SUITES

_HOSPITALS: Final = RANGES["parties"].metadata
_NOISE: Final = RANGES["sigma"].metadata | {"ge": 0}
_COUNT: Final = {"ge": 0, "le": 10**9}
_MOST_COLUMNS: Final = 10_000

SMALL_BATCH = 0.1
"""A small batch, as a part of the lifetime budget: a hospital can lose that much and go on."""


def _each_of(names: Iterable[str]) -> dict[str, object]:
    """Return the metadata of a list whose entries have these names, for its schema."""
    return {"json_schema_extra": {"items": {"type": "string", "enum": sorted(names)}}}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in the table `[policy]` of a site's file.

    Attributes:
        least_parties: Fewest hospitals of a run and of an opened sum, ours among them. 4 or more
            refuse every verified run: three of its reports may open.
        least_checked_peers: How many other hospitals our people must have checked, by owner. Our
            own body and the operator's do not count.
        least_colluders: Fewest hospitals that may help the coordinator to lie, in vain. They learn
            no votes of ours, and see them with no less noise than charged.
        own_body: Body that owns this hospital: its other hospitals are no other body. As
            `Guard.checked_peers` names it; empty for the hospital's own name.
        forms: Secure sums that we take part in.
        suites: Sealing suites that we accept. X25519 alone only where the owner wrote so.
        mechanisms: Ways from votes to labels.
        noise_places: Who may add the noise.
        units: The privacy unit of a price: a patient (record) or a hospital (party).
        least_sigma1: Least noise of a test of stability, in changes of one unit.
        least_sigma2: Least noise of each count, votes per vote of one patient.
        most_queries: Most queries that we ever answer, over all runs.
        most_epsilon: Largest epsilon that one run may cost. The ledger bounds all runs together.
        most_delta: Largest delta of a run.
        most_forfeited: Largest part of the lifetime budget that one run may use up for ever without
            a result, over all its setups. The first such batch may be larger; a later one is
            refused if with it they could exceed this.
        most_returned: Largest part of the lifetime budget whose charges ever come back on the word
            of other hospitals alone. The first such charge may be larger; a later one stays if with
            it they would exceed this.
        most_evaluations: Most private evaluations that we ever take part in; 0 for none.
        evaluation_columns: Columns by whose groups an evaluation may count our patients.
    """

    least_parties: int = field(default=3, metadata=_HOSPITALS | {"ge": 3})
    least_checked_peers: int = field(default=4, metadata=_HOSPITALS | {"ge": 2})
    least_colluders: int = field(default=1, metadata=_HOSPITALS)
    own_body: str = ""
    forms: frozenset[str] = field(
        default=frozenset({"additive", "masked", "verified"}), metadata=_each_of(DEPLOYED_FORMS)
    )
    suites: frozenset[str] = field(default=frozenset({DEFAULT_SUITE}), metadata=_each_of(SUITES))
    mechanisms: frozenset[str] = field(
        default=frozenset({"threshold", "gnmax"}), metadata=_each_of(DEPLOYED_MECHANISMS)
    )
    noise_places: frozenset[DeployedPlace] = frozenset({"coordinator", "parties"})
    units: frozenset[PrivacyUnit] = frozenset({"record", "party"})
    least_sigma1: float = field(default=1.0, metadata=_NOISE)
    least_sigma2: float = field(default=1.0, metadata=_NOISE)
    most_queries: int = field(default=10_000, metadata=_COUNT)
    most_epsilon: float = field(default=5.0, metadata=RANGES["epsilon"].metadata | {"ge": 0})
    most_delta: float = field(default=1e-5, metadata={"ge": 0, "le": 1})
    most_forfeited: float = field(default=SMALL_BATCH, metadata={"ge": 0, "le": 1})
    most_returned: float = field(default=SMALL_BATCH, metadata={"ge": 0, "le": 1})
    most_evaluations: int = field(default=10, metadata=_COUNT)
    evaluation_columns: frozenset[str] = field(
        default=frozenset(), metadata={"max_length": _MOST_COLUMNS}
    )

    def other_bodies(self, names: Iterable[str], *, operator_body: str) -> frozenset[str]:
        """Return the bodies of these names that are neither ours nor the operator's."""
        others = {compared_body(name) for name in names}
        return frozenset(others - {compared_body(self.own_body), compared_body(operator_body)})


@dataclass(frozen=True, slots=True)
class Aggregators:
    """The coordinator and the tally of one federation, as our people found them.

    Attributes:
        operator_body: Owner of the coordinator: hospitals that it owns count as its allies. As
            `Guard.checked_peers` names it; empty if nobody said it.
        tally: The tally that our people pinned; None for none.
        tally_body: Its owner; empty for none.
    """

    operator_body: str = ""
    tally: PublicIdentity | None = None
    tally_body: str = ""

    @property
    def fault(self) -> str:
        """What keeps the two from a verified run, by their owners; "" if nothing does.

        A verified sum has two organisations, so both owners must be known to our people, and
        differ. A hospital may be one of them: the other one's noise protects its votes.
        """
        if not compared_body(self.operator_body):
            return (
                "For verified runs say who owns the coordinator: `pate-party policy set "
                "operator_body NAME`."
            )
        if compared_body(self.tally_body) == compared_body(self.operator_body):
            return (
                f"Verified runs need two owners: {self.operator_body} has coordinator and tally. "
                "Mend a slip by `pate-party tally --body NAME`, or `pate-party policy set "
                "operator_body NAME`."
            )
        return ""

    def require(self, tally: bytes) -> None:
        """Refuse a tally, by its fingerprint, that our people did not pin, or a fault of owners.

        Both aggregators together read every vote. So our own people say who runs each.
        """
        if self.tally is None or self.tally.fingerprint != tally:
            raise RefusalError(
                Reason.TALLY,
                "this run's tally must be pinned: `pate-party tally`, and compare its 12 words "
                "with its own people",
            )
        if fault := self.fault:
            raise RefusalError(Reason.TALLY, fault)


def compared_body(name: str) -> str:
    """Return a body's name as names are compared: capitals and extra blanks make no other body."""
    return folded(plain(name))


def is_small(before: float, part: float, *, most: float) -> bool:
    """Tell whether one more part of a budget keeps within a bound on such parts; the first does.

    Otherwise a run in one large batch, or the first restart of its life, would end there.
    """
    return not before or before + part <= most * ROUNDING_ROOM


@dataclass(frozen=True, slots=True)
class Policy(Rules):
    """The rules of a party's owner, and the decisions that stand in no file.

    A `simulated` party takes part in simulations, and in nothing else.
    """

    approved_pools: frozenset[bytes] = frozenset()
    simulated: bool = False

"""The policy of a hospital's owner: the rules that the guard holds every run to."""

from __future__ import annotations

from dataclasses import dataclass

from pate_fed.accounting.statement import NoisePlace
from protocols.envelope import DEFAULT_SUITE


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of a party's owner.

    Attributes:
        approved_pools: Digests of the query pools that its owner approved.
        least_parties: Fewest parties of a run, at least 3.
        least_checked_peers: Fewest other bodies with a party whose fingerprint its own people
            checked, at least 2: a smaller run is refused. The operator's body does not count.
        least_colluders: Fewest hospitals that may collude with the coordinator without learning our
            votes, or seeing them with less noise than charged; at least 1. A run that promises less
            is refused.
        operator_body: Body that runs the coordinator, as `Guard.checked_peers` names it; empty if
            it has no party. Its parties count as colluders.
        forms: Secure sums that it takes part in.
        suites: Sealing suites that it accepts; X25519 alone only where its owner wrote so.
        mechanisms: Rules from votes to labels that it takes part in.
        noise_places: Who may add the noise.
        units: Privacy units that it takes part under.
        least_sigma1: Least noise of the threshold check, per vote of the privacy unit.
        least_sigma2: Least noise of a count, per vote of the privacy unit.
        most_queries: Most queries, over all runs.
        near_distance: Largest part of their length by which two queries may differ and count as
            near, next to the same question (rule R3); see `pate_fed.query_sketches`. At least
            `LEAST_NEAR_DISTANCE`, which replaces smaller values, and at most 1/2.
        most_near_queries: Most queries, over all runs, that may be near to one answered before in
            any run, or to an earlier one of their batch. None for any number. Each of them is
            served only by a run that opens the same parties.
        most_epsilon: Largest budget for this party of one run: a run that may charge it more is
            refused. The ledger bounds the charges of all runs together.
        most_delta: Largest delta of a run.
        trusts_valid_votes: Whether its owner trusts all parties to send valid vote rows. Only then
            may a run be charged by the joint price, which is void without that.
        simulated: Whether it takes part in simulations, and in nothing else.
    """

    approved_pools: frozenset[bytes]
    least_parties: int = 3
    least_checked_peers: int = 4
    least_colluders: int = 1
    operator_body: str = ""
    forms: frozenset[str] = frozenset({"additive", "masked"})
    suites: frozenset[str] = frozenset({DEFAULT_SUITE})
    mechanisms: frozenset[str] = frozenset({"confident", "gnmax"})
    noise_places: frozenset[NoisePlace] = frozenset({"coordinator", "parties"})
    units: frozenset[str] = frozenset({"record", "party"})
    least_sigma1: float = 1.0
    least_sigma2: float = 1.0
    most_queries: int = 10_000
    near_distance: float = 0.02
    most_near_queries: int | None = 10
    most_epsilon: float = 5.0
    most_delta: float = 1e-5
    trusts_valid_votes: bool = False
    simulated: bool = False

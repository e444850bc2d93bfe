"""Votes that are checked together with the tally: its keys for a run, this end's machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from coordinator.errors import TallyRefusedError
from coordinator.runs.labeling.job import Aggregation, LabelingJob
from coordinator.tally.served_run import noise_law
from pate_fed import wording
from pate_fed.terms import RunTerms
from protocols import wire
from protocols.errors import ProtocolError
from protocols.identity import PublicIdentity
from protocols.messages import KeyStatement, Plan, RunOffer, RunRecord
from protocols.rounds.seating import ROLE_TALLY, require_statement
from protocols.verified import CheckingCoordinator, ReportTaken, VoteBatch
from protocols.verified.vote_side import report_taken


@dataclass(frozen=True, slots=True)
class AggregatorKeys:
    """What a run's record has of both: the coordinator's sealing key, the tally's statement."""

    coordinator: bytes = b""
    tally: bytes = b""


class VoteChecking:
    """One run's dealings with its tally."""

    def __init__(
        self,
        job: LabelingJob,
        aggregation: Aggregation,
        terms: RunTerms,
        hospitals: Mapping[bytes, PublicIdentity],
    ) -> None:
        self._job = job
        self._with = aggregation
        self._terms = terms
        self._hospitals = dict(hospitals)

    def keys_for(self, offer: wire.Signed) -> AggregatorKeys:
        """Return both aggregators' keys, as a run's record has them, once the tally stated its own.

        Asked again, the tally gives the same answer: so this tells, too, whether it is there.

        Raises:
            TallyUnreachableError: it cannot be reached.
            TallyRefusedError: it takes no part, or what it said is no statement for this offer.
        """
        tally, told = self._with.tally, wire.expect(offer, RunOffer)
        said = tally.state(offer.frame)
        try:
            signed = wire.decode(said)
            signed.verify(tally.identity)
            require_statement(
                wire.expect(signed, KeyStatement),
                tally.identity.fingerprint,
                offer_digest=offer.digest,
                suite=told.suite,
                expires_at=told.expires_at,
                role=ROLE_TALLY,
            )
        except ProtocolError as error:
            raise TallyRefusedError(error.must, error.got, reason=error.code) from error
        return AggregatorKeys(self._with.sealing_key().public_bytes, signed.frame)

    def machine(self, record: RunRecord, plan: Plan) -> CheckingCoordinator:
        """Return this end's machine for a plan, as far as its journal says."""
        job, terms = self._job, self._terms
        digest = wire.digest_of(plan)
        batch = VoteBatch.of_record(
            record,
            plan_digest=digest,
            queries=plan.words // terms.columns,
            columns=terms.columns,
            votes=dict(zip(self._hospitals, terms.quotas, strict=True)),
        )
        return CheckingCoordinator(
            batch,
            identity=job.identity,
            key=self._with.sealing_key(),
            other=self._with.tally.identity,
            hospitals=self._hospitals,
            least_parties=record.threshold,
            journal=self._with.journal(digest),
            random_bytes=job.random_bytes,
            draw_noise=noise_law(terms),
        )

    def reported(self, plan_digest: bytes) -> frozenset[bytes]:
        """Return the hospitals whose reports came for a plan; none once its steps are erased."""
        return frozenset(
            report_taken(step.report).header.sender
            for step in self._with.journal(plan_digest).steps()
            if isinstance(step, ReportTaken)
        )

    def ask(self, packet: list[bytes]) -> bytes:
        """Ask the tally about a plan; return its answer."""
        return self._with.tally.check(wire.pack(packet))


def absences(lost: Sequence[tuple[str, ...]], rejected: Sequence[tuple[str, ...]]) -> list[str]:
    """Say in a line who was not heard and whose reports held no votes, each in how many batches.

    Both have an entry for each batch that opened; of unverified votes `rejected` has none.
    """
    if not rejected:
        return []
    found = []
    for what, names in (("not heard", lost), ("reports that held no votes", rejected)):
        counts = Counter(chain(*names)).items()
        said = [
            f"{name} (in {wording.plural(count, 'batch', 'batches')})" for name, count in counts
        ]
        found += [f"{what}: {', '.join(said)}"] if said else []
    return found


def rejection_notes(rejected: Sequence[tuple[str, ...]]) -> list[str]:
    """Name the hospitals that are rejected in some batches, and count those batches."""
    return [
        f"{wording.plural(count, 'report')} of {name} held no votes: both aggregators left it out "
        "of the sum."
        for name, count in Counter(name for names in rejected for name in names).items()
    ]

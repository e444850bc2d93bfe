"""One run at this hospital: its counts within its caps, and its charges in the ledger for life.

Both are changed in one step. A run that is set up anew after a hospital restarted keeps its
account: an approval is of one price at the caps, for any number of setups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from party.site.policy import is_small
from party.storage.ledger_store import LedgerStore, RunCharges
from pate_fed.accounting import EntryState, Outcomes, PrivacyEvent, PrivacyLedger
from pate_fed.charges import RunLedger, lifelong_charge, outcomes_of
from pate_fed.errors import InvalidTermsError
from pate_fed.releases import NoisyRelease
from pate_fed.terms import RunTerms
from protocols.messages import Settlement
from protocols.rounds import PlanClaim
from protocols.values import decode_value


class RunAccount:
    """The account of one run, set up under `run_id`; `charges` count until the store has some."""

    def __init__(self, store: LedgerStore, charges: RunCharges, *, run_id: bytes) -> None:
        self._store = store
        self._first = charges
        self._run_id = run_id

    @classmethod
    def open(
        cls, store: LedgerStore, terms: RunTerms, *, scope: bytes, seat: int, run_id: bytes
    ) -> Self:
        """Open the account of a run that is set up, or was before. Nothing is written yet."""
        return cls(
            store, RunCharges(scope, seat, RunLedger.of(terms, at_party=True)), run_id=run_id
        )

    @classmethod
    def find(cls, store: LedgerStore, *, run_id: bytes) -> Self | None:
        """Return the account of a run from an earlier setup; None if there is none."""
        charges = store.charges_of(run_id)
        return None if charges is None else cls(store, charges, run_id=run_id)

    @property
    def ledger(self) -> RunLedger:
        """The run's ledger: its counts, within its caps."""
        return self._charges.ledger

    @property
    def terms(self) -> RunTerms:
        """Terms of the run."""
        return self.ledger.terms

    def state_of(self, entry_id: str) -> EntryState | None:
        """Return the state of an entry; None if there is none of this name."""
        entries = self.ledger.outcomes.entries
        return next((one.state for one in entries if one.entry_id == entry_id), None)

    # Steps ------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Note that the run is set up under its id, so that a late settlement finds its account."""
        self._save(self.ledger)

    def reserve(self, entry_id: str, worst: Outcomes) -> None:
        """Charge the worst case of a batch, if that is left, before anything is sent (rule R13)."""
        reserved = self.ledger.reserve(entry_id, worst)
        ledger = self._store.load()
        charge = self._charge(worst, entry_id)
        self._save(reserved, ledger if charge is None else ledger.reserve(entry_id, charge))

    def settle(
        self,
        settlement: Settlement,
        proven: PlanClaim | None,
        *,
        entry_id: str,
        queries: int,
        me: bytes,
        most_returned: float,
    ) -> None:
        """Charge the release, or all that was reserved; free nothing on a mere claim.

        A settlement that comes twice changes nothing. Raises `InvalidTermsError` where no run under
        these terms can have that release.
        """
        if self.state_of(entry_id) not in (None, EntryState.RESERVED):
            return
        if settlement.state == "released":
            self._end_released(settlement.result, entry_id=entry_id, queries=queries)
        else:
            self._end_void(
                entry_id, queries=queries, proven=proven, me=me, most_returned=most_returned
            )

    def lost_share(self, *, but: str = "") -> float:
        """Return the share of the budget for life that this run, `but` an entry, lost.

        Lost is what it used up without a result. An open one counts: nobody knows its end.
        """
        own = {one.entry_id for one in self.ledger.outcomes.entries} - {but}
        ledger, lost = self._store.load(), (EntryState.RESERVED, EntryState.FORFEITED)
        return ledger.share_of(
            *(one.reserved for one in ledger.entries if one.entry_id in own and one.state in lost)
        )

    # Helpers ----------------------------------------------------------------------------------

    def _end_void(
        self,
        entry_id: str,
        *,
        queries: int,
        proven: PlanClaim | None,
        me: bytes,
        most_returned: float,
    ) -> None:
        """Settle a void batch; where we had no part in it, only its caps are used up."""
        run, ledger = self.ledger, self._store.load()
        is_free = proven is not None and proven.gives_back(
            noise_at_parties=self.terms.rule.at_parties
        )
        if self.state_of(entry_id) is None:
            run = run if is_free else run.pass_over(entry_id, queries)
        else:
            if self.terms.do_records_vote:
                # Later batches were charged less, as if this one had used up votes of patients.
                end, step = EntryState.FORFEITED, ledger.forfeit
            elif proven is not None and proven.never_opens(but_for=me):
                end, step = EntryState.CANCELLED, ledger.cancel
            elif is_free and self._may_return(ledger, entry_id, most=most_returned):
                end, step = EntryState.RETURNED, ledger.give_back
            else:
                end, step = EntryState.FORFEITED, ledger.forfeit
            is_charged = end is EntryState.FORFEITED
            run = run.end_void(entry_id, is_counted=not is_free, is_charged=is_charged)
            ledger = step(entry_id) if self.terms.spec.is_private else ledger
        self._save(run, ledger)

    def _end_released(self, result: bytes, *, entry_id: str, queries: int) -> None:
        """Charge the release of a batch; where we had no part in it, only its caps are used up."""
        release = NoisyRelease.from_record(decode_value(result))
        released, digest = outcomes_of(release), release.digest
        if self.state_of(entry_id) is None:
            self._save(self.ledger.follow(entry_id, len(release), released, digest))
            return
        self._require_possible(entry_id, release, queries=queries)
        ledger = self._store.load()
        paid = self.ledger.paid_for(entry_id, released)
        charge = self._charge(paid, entry_id)
        self._save(
            self.ledger.commit(entry_id, released, digest),
            ledger if charge is None else ledger.commit(entry_id, charge, digest),
        )

    def _charge(self, outcomes: Outcomes, entry_id: str) -> PrivacyEvent | None:
        earlier = self.ledger.asks_before(entry_id)
        return lifelong_charge(self.terms, outcomes, weight=self._weight, earlier=earlier)

    def _require_possible(self, entry_id: str, release: NoisyRelease, *, queries: int) -> None:
        """Refuse an outcome list that no run under these terms can have."""
        if len(release) != queries:
            raise InvalidTermsError(f"a release must cover {queries} queries", len(release))
        if (release.labels >= self.terms.classes).any():
            raise InvalidTermsError("labels must be classes of the run")
        shape = None if release.tallies is None else release.tallies.shape
        if shape != ((queries, self.terms.classes) if self.terms.is_evaluation else None):
            raise InvalidTermsError("tallies must be released by evaluations alone", "")
        # Otherwise a coordinator could look at everything and have all of it refunded.
        after = self.ledger.commit(entry_id, outcomes_of(release), release.digest)
        if release.asked < len(release) and not after.is_over:
            raise InvalidTermsError("only the cap on answers may leave a query unasked")

    def _may_return(self, ledger: PrivacyLedger, entry_id: str, *, most: float) -> bool:
        """Tell whether a charge may come back on the word of others, over all runs and for life."""
        returned = ledger.events_of(EntryState.RETURNED)
        own = [one.reserved for one in ledger.entries if one.entry_id == entry_id]
        return most > 0 and is_small(ledger.share_of(*returned), ledger.share_of(*own), most=most)

    @property
    def _charges(self) -> RunCharges:
        # Never kept here: a settlement of an earlier setup may come at any time.
        return self._store.charges(self._first.scope) or self._first

    @property
    def _weight(self) -> int:
        """Votes that one of this party's privacy units can move."""
        return self.terms.unit_votes_at(self._charges.seat)

    def _save(self, run: RunLedger, ledger: PrivacyLedger | None = None) -> None:
        charges = replace(self._first, ledger=run)
        ledger = self._store.load() if ledger is None else ledger
        self._store.save_run(ledger, charges, run_id=self._run_id)

    def __repr__(self) -> str:
        return f"RunAccount({self._first.scope.hex()[:16]})"

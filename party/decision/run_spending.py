"""A hospital's charges, by run: the ledger beside the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from party.storage.ledger_store import RunCharges
from party.storage.site_audit_log import SiteAct
from pate_fed.accounting import EntryState, FormalCost, LedgerEntry, PrivacyLedger
from pate_fed.charges import whole_charge
from pate_fed.nodes.audit_log import AuditEntry
from pate_fed.prices import charged_number
from pate_fed.terms import RunTerms


@dataclass(frozen=True, slots=True)
class RunSpending:
    """The charge of one run; what its terms say is None or empty where these are unknown.

    Attributes:
        run: Its newest id, hex; empty for charges without a record in the audit log.
        coordinator: Fingerprint of its coordinator; empty if no record names it.
        open_batches: Batches that are not settled.
        share: Share of the budget for life that all of them together use. Shares add up.
        tests_delta: Delta of their tests of stability.
        epsilon, view: Of its whole terms, in the view of readers.
        charged_epsilon, charged_view: The same in the view that `share` is charged for, in short.
        room: How many more such runs the rest of the budget holds.
    """

    run: str
    coordinator: bytes
    batches: int
    open_batches: int
    share: float
    tests_delta: float
    epsilon: float | None = None
    view: str = ""
    charged_epsilon: float | None = None
    charged_view: str = ""
    room: int | None = None
    name: str = ""
    unit: str = ""
    mechanism: str = ""


def spending_by_run(
    ledger: PrivacyLedger,
    records: Iterable[AuditEntry],
    *,
    charges: Callable[[bytes], RunCharges | None],
    costs: Callable[[RunTerms], FormalCost],
) -> tuple[RunSpending, ...]:
    """Return each run's charge, oldest first."""
    # Runs of several federations may be open: only a batch's own record names the federation of a
    # charge.
    last, runs, coordinators = "", dict[str, str](), dict[str, bytes]()
    for record in records:
        match record.act, record.facts:
            case SiteAct.RUN_ACCEPTED, {"run": bytes(run), "coordinator": bytes(coordinator)}:
                last = run.hex()
                coordinators[last] = coordinator
            case SiteAct.CHARGED, {"charge": str(charge)}:
                runs[charge] = last if len(set(coordinators.values())) == 1 else ""
            case SiteAct.BATCH_ANSWERED, {"run": bytes(run), "plan": bytes(plan)}:
                runs[plan.hex()] = run.hex()
    accounts = {
        name: charges(bytes.fromhex(name)) if name else None for name in {*runs.values(), ""}
    }
    groups: dict[bytes, tuple[str, list[LedgerEntry]]] = {}
    for entry in ledger.entries:
        name = runs.get(entry.entry_id, "")
        account = accounts[name]
        # A run that was set up anew has another id, and the same account.
        key = name.encode() if account is None else account.scope
        groups[key] = name, [*groups.get(key, ("", []))[1], entry]
    spent = []
    for name, own in groups.values():
        alone, account = replace(ledger, entries=tuple(own)), accounts[name]
        one = RunSpending(
            name,
            coordinators.get(name, b""),
            len(own),
            sum(entry.state is EntryState.RESERVED for entry in own),
            alone.used_share(),
            alone.charged_delta(),
        )
        spent.append(one if account is None else _with_terms(one, account, ledger, costs))
    return tuple(spent)


def _with_terms(
    one: RunSpending,
    charges: RunCharges,
    ledger: PrivacyLedger,
    costs: Callable[[RunTerms], FormalCost],
) -> RunSpending:
    terms = charges.ledger.terms
    stated, whole = costs(terms), whole_charge(terms, charges.seat)
    epsilon, view = charged_number(terms, charges.seat, stated=stated)
    return replace(
        one,
        epsilon=stated.epsilon,
        view=stated.holds_for,
        charged_epsilon=epsilon,
        charged_view=view,
        room=None if whole is None else ledger.room_for(whole),
        name=terms.name,
        unit=terms.unit,
        mechanism=terms.rule.mechanism,
    )

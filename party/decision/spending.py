"""A hospital's charges, by run: the ledger beside the audit log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from party.storage.audit import AuditKind, AuditRecord
from pate_fed.accounting import EntryState, PrivacyLedger


@dataclass(frozen=True, slots=True)
class RunSpending:
    """The charge of one run.

    Attributes:
        run: Its id, hex; empty for charges without a record in the audit log.
        coordinator: Fingerprint of its coordinator; empty if no record names it.
        batches: Batches that were charged.
        open_batches: Those of them that are not settled.
        epsilon: Of all of them together, at the ledger's delta.
        tests_delta: Delta of their tests of stability.
    """

    run: str
    coordinator: bytes
    batches: int
    open_batches: int
    epsilon: float
    tests_delta: float


def spending_by_run(
    ledger: PrivacyLedger, records: Iterable[AuditRecord]
) -> tuple[RunSpending, ...]:
    """Return each run's charge, oldest first.

    The numbers do not add up to the whole: several charges together cost less than their sum.

    Args:
        ledger: For life.
        records: Of the audit log.
    """
    # Runs of several federations may be open: only a batch's own record names the federation of a
    # charge.
    last, runs, coordinators = "", dict[str, str](), dict[str, bytes]()
    for record in records:
        match record.kind, record.detail:
            case AuditKind.RUN_ACCEPTED, {"run": bytes(run), "coordinator": bytes(coordinator)}:
                last = run.hex()
                coordinators[last] = coordinator
            case AuditKind.CHARGED, {"charge": str(charge)}:
                runs[charge] = last if len(set(coordinators.values())) == 1 else ""
            case AuditKind.BATCH_ANSWERED, {"run": bytes(run), "plan": bytes(plan)}:
                runs[plan.hex()] = run.hex()
    names = dict.fromkeys(runs.get(entry.entry_id, "") for entry in ledger.entries)
    return tuple(_spending(ledger, runs, name, coordinators.get(name, b"")) for name in names)


def _spending(
    ledger: PrivacyLedger, runs: dict[str, str], name: str, coordinator: bytes
) -> RunSpending:
    own = tuple(entry for entry in ledger.entries if runs.get(entry.entry_id, "") == name)
    alone = replace(ledger, entries=own)
    return RunSpending(
        name,
        coordinator,
        len(own),
        sum(entry.state is EntryState.RESERVED for entry in own),
        alone.charged_epsilon(),
        alone.charged_delta(),
    )

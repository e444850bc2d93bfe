"""What a hospital was charged, run by run: the ledger beside the audit log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from party.audit import AuditKind, AuditRecord
from pate_fed.accounting import EntryState, PrivacyLedger


@dataclass(frozen=True, slots=True)
class RunSpending:
    """What one run was charged.

    Attributes:
        run: Its id, hex; empty for what no record of the audit log speaks of.
        batches: Batches that were charged.
        open_batches: Those of them that are not settled.
        epsilon: Of all of them together, at the ledger's delta.
    """

    run: str
    batches: int
    open_batches: int
    epsilon: float


def spending_by_run(
    ledger: PrivacyLedger, records: Iterable[AuditRecord]
) -> tuple[RunSpending, ...]:
    """Return what each run was charged, oldest first.

    The numbers do not add up to the whole: together, charges cost less than one by one.

    Args:
        ledger: For life.
        records: Of the audit log.
    """
    runs, run = dict[str, str](), ""
    for record in records:
        match record.kind, record.detail:
            case AuditKind.RUN_ACCEPTED, {"run": bytes(run_id)}:
                run = run_id.hex()
            case AuditKind.CHARGED, {"charge": str(charge)}:
                runs[charge] = run
    names = dict.fromkeys(runs.get(entry.entry_id, "") for entry in ledger.entries)
    return tuple(_spending(ledger, runs, name) for name in names)


def _spending(ledger: PrivacyLedger, runs: dict[str, str], name: str) -> RunSpending:
    own = tuple(entry for entry in ledger.entries if runs.get(entry.entry_id, "") == name)
    return RunSpending(
        name,
        len(own),
        sum(entry.state is EntryState.RESERVED for entry in own),
        replace(ledger, entries=own).charged_epsilon(),
    )

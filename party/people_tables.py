"""What the hospital's own people are shown, as plain values: for the command line and the page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from party.decision.run_spending import RunSpending
from party.owner import OpenSite
from party.site.fetched_results import answered_runs
from party.site.message_words import words_of_sent


def budget_table(opened: OpenSite) -> dict[str, Any]:
    """Return the budget for life, and each run's charge."""
    ledger, runs = opened.spending()
    return {
        "epsilon": ledger.epsilon,
        "delta": ledger.delta,
        "words": ledger.budget_words,
        "used_share": ledger.used_share(),
        "delta_for_tests": ledger.additive_delta,
        "tests_delta": ledger.charged_delta(),
        "batches": len(ledger.entries),
        "order": ledger.order,
        "runs": [_run_table(opened, one) for one in runs],
    }


def _run_table(opened: OpenSite, one: RunSpending) -> dict[str, Any]:
    table = asdict(one)
    table["federation"] = opened.site.federation_of(table.pop("coordinator"))
    table["open"] = table.pop("open_batches")
    return table


def sent_table(opened: OpenSite, *, most: int, skip: int = 0) -> dict[str, Any]:
    """Return the newest messages that left this site, newest first, and the totals."""
    rows, times, size = opened.sent.total()
    return {
        "messages": times,
        "bytes": size,
        "rows": rows,
        "shown": [
            {
                "number": one.number,
                "federation": opened.site.federation_of(one.coordinator),
                "kind": one.kind,
                "title": words_of_sent(one.kind)[0],
                "meaning": words_of_sent(one.kind)[1],
                "run": one.run_id.hex(),
                "times": one.times,
                "bytes": one.size,
                "sha256": one.digest.hex(),
                "first_at": one.first_at,
                "last_at": one.last_at,
            }
            for one in opened.sent.newest(most, skip=skip)
        ],
    }


def runs_table(opened: OpenSite) -> list[dict[str, Any]]:
    """Return the runs that this hospital answered in, oldest first."""
    return [
        {
            "run": one.run.hex(),
            "federation": opened.site.federation_of(one.coordinator),
            "agreed_at": one.at,
            "batches": one.batches,
            "is_closed": bool(one.head),
        }
        for one in answered_runs(opened.log.entries())
    ]
